"""Minimise the largest of ``offset_i + numerator_i / e_i(x)``: finish-time ratios, remaining times.

A value ρ is reached if every ``e_i`` reaches the level ``ℓ_i(ρ) = numerator_i / (ρ − offset_i)``. Each level
program gives an allocation, so an upper bound, and a cut ``Σ λ_i e_i ≤ reach``, so that no ρ with
``Σ λ_i ℓ_i(ρ) > reach`` is possible: the root is a lower bound and the next guess (Newton's method with the exact
curve in place of its tangent). With all offsets 0 the first program is already exact: the minimum makespan is one LP.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bloxopt.errors import SolverError
from bloxopt.formulations.solving.affine import Affine, Reciprocal
from bloxopt.formulations.solving.certificate import Proof
from bloxopt.formulations.solving.levels import Cut, LevelProgram, LevelSolution
from bloxopt.formulations.solving.session import Outcome, Session
from bloxopt.jobs import FloatArray
from bloxopt.solvers.base import Termination

GAP = 1e-6
"""Relative distance between the value and its proven bound at which the search stops."""
_MOST_SOLVES = 40


def minimise_largest(session: Session, rows: Reciprocal) -> Outcome:
    """The allocation whose largest value is least, with a certified bound (utility = −value)."""
    if not len(rows.offset):
        # Nothing is left to do; any allocation within the blocks will serve.
        program = session.program()
        solved = session.solve(program, Affine.nothing())
        return Outcome(solved.x, 0.0, 0.0, solved.result.termination, program)
    level_program = LevelProgram(session, rows.base, "MinMax", duals=not session.program().is_mip)
    most = np.maximum(rows.base.limits(session.exclusive_job)[1], 0.0)
    # Alone on its best configuration a job reaches this much, which bounds the value without any program.
    lower, upper = float(rows.value_at(most).max()), np.inf
    guess = max(lower, float(rows.at(_even_shares(session)).max()))
    best: LevelSolution | None = None
    sharpest: LevelSolution | None = None
    most_proven = -np.inf
    if not np.isfinite(guess):
        raise _no_throughput(rows, most, None)
    for _ in range(_MOST_SOLVES):
        solution = level_program.solve(np.minimum(rows.required(guess), most))
        value = float(rows.at(solution.x).max())
        if value < upper:
            upper = value
        if best is None or value <= upper:
            best = solution
        if solution.cut is not None:
            proven = least_value(rows, solution.cut)
            if sharpest is None or proven > most_proven:
                sharpest, most_proven = solution, proven
            lower = max(lower, proven)
            following = lower
        else:
            if solution.theta_bound is not None and solution.theta_bound <= 1.0 + GAP:
                lower = max(lower, guess * (1.0 - GAP))
            following = upper
        closed = upper - lower <= GAP * abs(upper)
        if closed or session.out_of_time or not np.isfinite(following) or abs(following - guess) <= 1e-12 * abs(guess):
            break
        guess = following
    assert best is not None
    if not np.isfinite(upper):
        raise _no_throughput(rows, rows.base.at(best.x), best.cut)
    ending = best.solved.result.termination
    if ending is Termination.OPTIMAL and upper - lower > 100 * GAP * abs(upper):
        ending = Termination.FEASIBLE
    return Outcome(
        x=best.x,
        utility=-upper,
        bound=-lower if np.isfinite(lower) else None,
        termination=ending,
        program=best.solved.program,
        prices=_prices(rows, best, upper),
        levels=rows.base.at(best.x),
        message=best.solved.result.message,
        proof=None
        if sharpest is None
        else _proof(level_program, rows, np.minimum(most, rows.required(upper)), upper, best, sharpest),
    )


def _proof(
    program: LevelProgram,
    rows: Reciprocal,
    levels: FloatArray,
    value: float,
    best: LevelSolution,
    sharpest: LevelSolution,
) -> Proof | None:
    """That no allocation reaches a value clearly below the one found."""
    proof, cut = program.proof(levels, best, sharpest), sharpest.cut
    if proof is None or cut is None:
        return None
    steepness = _steepness(rows, cut, value)
    worth = float(cut.weight @ levels)
    return replace(proof, sensitivity=worth / (steepness * abs(value))) if steepness > 0 and value else None


def least_value(rows: Reciprocal, cut: Cut) -> float:
    """The ρ at which ``Σ λ_i ℓ_i(ρ) = reach``: below it the levels ask for more than the cut allows.

    Newton's method on ``1 / Σ λ_i ℓ_i(ρ) − 1 / reach``, which rises, is concave, and so is approached from
    the left: whatever step it stops at is still a valid bound.
    """
    used = cut.weight > 1e-12 * max(1e-300, float(cut.weight.max(initial=0.0)))
    mass = cut.weight[used] * rows.numerator[used]
    if not len(mass) or cut.reach <= 0:
        return -np.inf
    # Counted from the largest offset, which may exceed the rest of ρ by many orders of magnitude.
    top = float(rows.offset[used].max())
    below = top - rows.offset[used]
    above = float((mass / cut.reach - below).max())
    for _ in range(100):
        share = mass / (above + below)
        total = float(share.sum())
        slope = float((share / (above + below)).sum())
        step = total * (total - cut.reach) / (cut.reach * slope)
        above += max(0.0, step)
        if step <= 1e-15 * above:
            break
    return top + above


def _prices(rows: Reciprocal, solution: LevelSolution, value: float) -> FloatArray | None:
    """Prices of the value rather than of θ: dρ = d reach / Σ λ_i |ℓ_i'(ρ)| at the ρ that was found."""
    if solution.prices is None or solution.cut is None:
        return None
    steepness = _steepness(rows, solution.cut, value)
    return solution.prices / steepness if steepness > 0 else None


def _steepness(rows: Reciprocal, cut: Cut, value: float) -> float:
    """By how much ``Σ λ_i ℓ_i(ρ)`` falls per unit of ρ at the value."""
    room = np.maximum(value - rows.offset, 1e-300)
    return float((cut.weight * rows.numerator / room**2).sum())


def _no_throughput(rows: Reciprocal, base: FloatArray, cut: Cut | None) -> SolverError:
    # All rows are stuck at 0 together with the one that holds them there, which is the one with a price.
    suspect = -base if cut is None else cut.weight * rows.numerator
    worst = int(np.argmax(suspect))
    name = str(rows.labels()[worst]) if rows.labels else f"row {worst}"
    return SolverError(
        f"MinMax: job {name!r} gets no throughput in any allocation found, so its value has no bound; relax the "
        "constraints or leave it out"
    )


def _even_shares(session: Session) -> FloatArray:
    """A rough allocation to start from: every job an even part of the GPUs, split over its columns."""
    space = session.space
    columns = np.maximum(np.bincount(space.job, minlength=space.num_jobs), 1)
    even = float(space.capacity.sum()) / max(1, space.num_jobs) / space.gpu_demand
    return np.asarray(np.minimum(1.0, even) / columns[space.job], dtype=np.float64)
