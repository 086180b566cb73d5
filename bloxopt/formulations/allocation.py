"""The answer of a policy: time shares, how good they are proven to be, and what each block says about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from bloxopt.errors import CheckError, FormulationError, guarded
from bloxopt.formulations.checks import real_numbers, shown
from bloxopt.formulations.constraints.base import Constraint
from bloxopt.formulations.solving.certificate import Certificate, Proof, verify
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.sums import sum_by
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray, IntArray
from bloxopt.solvers.base import Termination

CHECK_TOLERANCE = 1e-6
"""Largest violation accepted, relative to a limit where that exceeds 1."""

_NO_ROOM = 1e-6
"""Rows with less room, and blocks with a smaller part of the prices, count as full, and as costing nothing."""


@dataclass(frozen=True, eq=False)
class Allocation:
    """Time shares of the columns of ``space`` that were checked against every constraint block.

    ``x`` (num_columns,) in [0, 1]. ``objective`` is the value in its natural sense (the largest value for MinMax,
    the smallest for MaxMin and WaterFilling, jobs served for Priority); ``bound`` the best that is proven
    possible, None if the solver proves none. ``ranking`` is the order of the active jobs under a Priority
    objective, else None. ``levels`` has each counted job's value under WaterFilling (and its throughput under
    MinMax of a reciprocal), else None. ``solve_seconds`` counts the solver alone over ``num_solves``
    programs, ``build_seconds`` everything else. ``work_conserving``: whether GPUs without a claim may go to any job.
    ``rung`` says how it came about where a deadline was set (:class:`bloxopt.anytime.Rung`). ``rebuild`` says why its
    first program was solved without the answer of the allocation before, "" if it was solved from that, None where
    nothing is kept or no program was needed; ``resumed`` counts the solves that began from an earlier answer.
    """

    space: AllocationSpace
    x: FloatArray
    objective: float
    bound: float | None
    termination: Termination
    solver: str
    solve_seconds: float
    build_seconds: float
    num_solves: int
    constraints: Mapping[str, Constraint]
    ranking: IntArray | None = None
    levels: FloatArray | None = None
    message: str = ""
    program: Program | None = None
    prices: FloatArray | None = None
    proof: Proof | None = None
    work_conserving: bool = True
    rung: str = "solved"
    rebuild: str | None = None
    resumed: int = 0

    @property
    def gap(self) -> float | None:
        """Relative distance between objective and bound, None without a bound."""
        if self.bound is None:
            return None
        return abs(self.objective - self.bound) / max(1e-10, abs(self.objective))

    @cached_property
    def certificate(self) -> Certificate:
        """What is proven of it, checked independently of the solver."""
        proof = self.proof
        verification = None if proof is None or proof.form.is_mip else verify(proof)
        return Certificate(str(self.termination), self.objective, self.bound, self.gap, self.binding, verification)

    @cached_property
    def binding(self) -> dict[str, float]:
        """Constraint blocks that cost utility: the summed size of their rows' prices, largest first.

        Where there are no prices (a MIP, a closed form), the blocks with rows without room, and how many.
        """
        duals, slacks = self.duals, self.slacks
        if duals is not None:
            cost = {name: float(rows.abs().sum()) for name, rows in duals.items() if name in self.constraints}
        elif slacks is not None:
            cost = {name: float((rows <= _NO_ROOM).sum()) for name, rows in slacks.items() if name in self.constraints}
        else:
            return {}
        least = _NO_ROOM * max(cost.values(), default=0.0)
        return dict(sorted(((n, c) for n, c in cost.items() if c > least), key=lambda entry: -entry[1]))

    @cached_property
    def duals(self) -> dict[str, pd.Series[float]] | None:
        """Price of each row by block: the change of the utility per unit of its active bound.

        The utility is what is maximised (minus the value of MinMax), so a GPU more of a scarce type has a
        price > 0 and a higher minimum share one < 0. None for a MIP or a solver without duals. Of objectives
        solved in stages: those of the lowest level (WaterFilling) or the last stage (Lexicographic).
        """
        return None if self.prices is None else self._by_block(self.prices)

    @cached_property
    def slacks(self) -> dict[str, pd.Series[float]] | None:
        """Room left at the nearer bound of each row by block (negative: violated); None without a program."""
        if self.program is None:
            return None
        form = self.program.compile_rows()
        own = np.zeros(form.num_columns)
        own[: len(self.x)] = self.x
        # Only blocks over the space's own columns can be judged at x; rows that use others have no slack here.
        foreign = np.bincount(form.matrix.indices[form.matrix.indptr[len(self.x)] :], minlength=form.num_rows) > 0
        activity = form.matrix @ own
        room = np.minimum(activity - form.row_lower, form.row_upper - activity)
        return self._by_block(np.where(foreign, np.nan, room))

    @cached_property
    def violations(self) -> dict[str, pd.Series[float]]:
        """Amount by which x breaks each row of each block, worked out from x alone (0: it does not)."""
        return {
            name: pd.Series(
                violations_of(name, block, self.space, self.x), index=_labels_of(name, block, self.space), name=name
            )
            for name, block in self.constraints.items()
        }

    @cached_property
    def time_share(self) -> FloatArray:
        """Share of the time of each job on each GPU type, (num_jobs, types)."""
        types = len(self.space.gpu_types)
        flat = sum_by(self.space.job * types + self.space.gpu_type, self.x, self.space.num_jobs * types)
        return flat.reshape(self.space.num_jobs, types)

    @cached_property
    def throughput(self) -> FloatArray:
        """Steps/s of each job averaged over time, (num_jobs,)."""
        return sum_by(self.space.job, self.space.rate * self.x, self.space.num_jobs)

    def to_pandas(self) -> pd.DataFrame:
        """One row per column of the space with its ``time_share``."""
        return self.space.to_pandas().assign(time_share=self.x)

    def check(self, tolerance: float = CHECK_TOLERANCE) -> None:
        """Raise :class:`~bloxopt.errors.CheckError` naming the block and row that x breaks most, if any."""
        worst, where = tolerance, ""
        outside = float(max(-self.x.min(initial=0.0), self.x.max(initial=0.0) - 1.0))
        if not np.isfinite(self.x).all() or outside > tolerance:
            raise CheckError("the allocation has time shares outside [0, 1]: it was not applied")
        for name, block in self.constraints.items():
            amount = violations_of(name, block, self.space, self.x)
            if len(amount) and not float(amount.max()) <= worst:
                row = int(np.argmax(amount))
                worst = float(amount[row])
                where = f"{name}({_labels_of(name, block, self.space)[row]!r})"
        if where:
            source, remedy = f"of solver {self.solver!r}", "use a more exact solver"
            if not self.num_solves:
                source, remedy = "in closed form", "this objective cannot take that block into account"
            raise CheckError(
                f"the allocation {source} breaks {where} by {worst:.3g} (relative to limits above 1; tolerance "
                f"{tolerance:g}): it was not applied; {remedy}"
            )

    def _by_block(self, values: FloatArray) -> dict[str, pd.Series[float]]:
        assert self.program is not None
        parts: dict[str, list[pd.Series[float]]] = {}
        for family in self.program.families:
            rows = pd.Series(values[family.start : family.stop], index=family.row_labels(), name=family.name)
            parts.setdefault(family.name, []).append(rows)
        return {name: rows[0] if len(rows) == 1 else pd.concat(rows) for name, rows in parts.items()}


def violations_of(name: str, block: Constraint, space: AllocationSpace, x: FloatArray) -> FloatArray:
    """What a block says that ``x`` breaks; raises :class:`FormulationError` naming one that says nothing usable."""
    with guarded(f"constraint block {name}: violations(space, x)", FormulationError):
        given = block.violations(space, x)
    wanted = "an array of numbers, one per row of the block"
    amount = real_numbers(f"constraint block {name}: what violations(space, x) gave", given, wanted)
    if amount.ndim != 1:
        raise FormulationError(f"constraint block {name}: violations(space, x) gave {shown(given)}, must give {wanted}")
    return amount


def _labels_of(name: str, block: Constraint, space: AllocationSpace) -> list[str]:
    with guarded(f"constraint block {name}: labels(space)", FormulationError):
        return [str(label) for label in block.labels(space)]
