"""Priority orders (FIFO, SRTF, LAS, …) as lexicographic programs, with an exact greedy shortcut.

In the given order each job gets the configuration with the highest throughput that is still possible: the binary
program ``lexmax (p_1ᵀx, p_2ᵀx, …)`` where ``p_i`` ranks the configurations of the i-th job. When all rows
are of the packing kind (``Σ a x ≤ b`` with a, b ≥ 0, or bounds of one column), leaving every later job out is
always possible, so what fits now can be decided job by job: greedy is exact. Otherwise each job is a MIP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.checks import checked_flag, shown
from bloxopt.formulations.expressions import per_job
from bloxopt.formulations.objectives.base import Objective
from bloxopt.formulations.orders.order_keys import OrderKey, key_of, next_change_of
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.packing import Packing
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.session import Outcome, Session
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray, IntArray
from bloxopt.solvers.base import Termination

_MOST_STAGES = 1000
"""Jobs for which one MIP each is accepted when the constraints leave no shortcut."""


@dataclass(frozen=True, eq=False)
class Priority(Objective):
    """Serve jobs in the ``order`` of one key, or of several (later ones break ties of earlier ones).

    Each gets the configuration of highest throughput that fits into what those before it left (of equal
    ones that with fewer GPUs, then the first GPU type of the cluster). At the first job that does not fit
    the pass stops, as in Gavel's ``fifo_perf`` and in Blox; with ``backfill`` later jobs may go ahead. A job
    that cannot run on any GPU that is up does not hold up the others. The reported value is the number of
    jobs served.
    """

    order: OrderKey | Sequence[OrderKey]
    backfill: bool = False
    curvature = "staged"

    def __post_init__(self) -> None:
        several = isinstance(self.order, Iterable) and not isinstance(self.order, str)
        keys: tuple[OrderKey, ...] = tuple(self.order) if several else (self.order,)  # type: ignore[arg-type, assignment]
        for key in keys:
            if not isinstance(key, OrderKey):
                hint = ": add parentheses" if isinstance(key, type) and issubclass(key, OrderKey) else ""
                raise FormulationError(
                    f"Priority: {shown(key)} is not an order key such as Arrival() or AttainedService(){hint}"
                )
        checked_flag("Priority", "backfill", self.backfill)
        if not keys:
            raise FormulationError("Priority needs at least one order key")
        object.__setattr__(self, "order", keys)

    @property
    def _keys(self) -> tuple[OrderKey, ...]:
        return self.order  # type: ignore[return-value]

    @property
    def progress_dependent(self) -> bool:  # type: ignore[override]
        return any(key.progress_dependent for key in self._keys)

    @property
    def work_conserving(self) -> bool:  # type: ignore[override]
        return self.backfill

    def rank(self, space: AllocationSpace) -> IntArray:
        keys = self._keys
        if len(keys) == 1:
            return np.argsort(key_of(keys[0], space), kind="stable")
        return np.lexsort([key_of(key, space) for key in reversed(keys)])

    def next_change(self, space: AllocationSpace) -> float:
        return min(next_change_of(key, space) for key in self._keys)

    def utility(self, space: AllocationSpace, x: FloatArray) -> float:
        return float(np.round(x).sum())

    def solve(self, session: Session) -> Outcome:
        space = session.space
        order = self.rank(space)
        queue = order[space.runnable[order]]
        program = session.program()
        program.make_integer()
        packing = Packing.of(program)
        if packing is not None and packing.forced_fit:
            x = packing.fill(queue, *_preferred(space), backfill=self.backfill)
            ending = Termination.OPTIMAL
        else:
            x, ending = self._one_program_per_job(session, program, queue)
        served = self.utility(space, x)
        return Outcome(x, served, served, ending, ranking=order)

    def hold(self, session: Session, program: Program, outcome: Outcome, tolerance: float) -> None:
        program.restrict(np.arange(session.space.num_columns), np.round(outcome.x), np.round(outcome.x))

    def _one_program_per_job(
        self, session: Session, program: Program, queue: IntArray
    ) -> tuple[FloatArray, Termination]:
        space = session.space
        if len(queue) > _MOST_STAGES:
            raise FormulationError(
                f"Priority: with constraints other than upper limits each of the {len(queue)} jobs needs a program of "
                f"its own, at most {_MOST_STAGES} are accepted: drop lower bounds such as MinimumShare, or use MaxSum"
            )
        program.block = program.unique_family("Priority")
        program.add_rows(per_job(space, np.ones(space.num_columns)), upper=1.0)
        columns, first = _preferred(space)
        x = np.zeros(space.num_columns)
        ending = Termination.OPTIMAL
        for job in queue:
            mine = columns[first[job] : first[job + 1]]
            worth = np.arange(len(mine), 0, -1, dtype=np.float64)
            stage = Affine(np.zeros(len(mine), np.int64), mine, worth, np.zeros(1))
            solved = session.solve(program, stage)
            if solved.result.termination is not Termination.OPTIMAL:
                ending = solved.result.termination
            x = np.round(solved.x)
            program.restrict(mine, x[mine], x[mine])
            if not self.backfill and not x[mine].any():
                break
        # Jobs after the one that did not fit get only what the constraints insist on.
        least = per_job(space, -np.ones(space.num_columns)).total()
        return np.round(session.solve(program, least).x), ending


def _preferred(space: AllocationSpace) -> tuple[IntArray, IntArray]:
    """Columns sorted by job and, within a job, best first: highest rate, fewest GPUs, order of the cluster.

    Returned with the offsets (num_jobs + 1,) that delimit each job's part.
    """
    columns = np.lexsort((space.gpu_type, space.num_gpus, -space.rate, space.job))
    count = np.bincount(space.job, minlength=space.num_jobs)
    return columns, np.concatenate([[0], np.cumsum(count)])
