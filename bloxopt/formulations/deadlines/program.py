"""The question of the deadlines as a program: can all be met, and with how few GPUs?

Progressive filling answers it one job at a time and may miss a schedule; the program of whole gangs in rounds
does not, and its relaxation proves that there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.sparse import csc_array

from bloxopt.formulations.deadlines.jobs import PlannedJob, Profile
from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.jobs import BoolArray, FloatArray, IntArray
from bloxopt.solvers.base import Solver, SolverOptions, Termination

MOST_COLUMNS = 20_000
"""Largest program of whole gangs that is tried: columns are jobs × sizes × rounds."""


class _Rows:
    """A matrix row by row, as triplets, with bounds."""

    def __init__(self) -> None:
        self.row: list[IntArray] = []
        self.column: list[IntArray] = []
        self.value: list[FloatArray] = []
        self.lower: list[float] = []
        self.upper: list[float] = []

    def add(self, columns: IntArray, values: FloatArray, lower: float = -np.inf, upper: float = np.inf) -> None:
        self.row.append(np.full(len(columns), len(self.lower)))
        self.column.append(columns)
        self.value.append(np.asarray(values, dtype=np.float64))
        self.lower.append(lower)
        self.upper.append(upper)

    def form(self, cost: FloatArray, upper: FloatArray, integer: bool) -> StandardForm:
        count = len(cost)
        entries = (np.concatenate(self.value), (np.concatenate(self.row), np.concatenate(self.column)))
        return StandardForm(
            cost=cost,
            matrix=csc_array(entries, shape=(len(self.lower), count)),
            row_lower=np.array(self.lower),
            row_upper=np.array(self.upper),
            lower=np.zeros(count),
            upper=upper,
            integer=np.full(count, integer),
        )


def proven_impossible(
    jobs: Sequence[PlannedJob], capacity: FloatArray, solver: Solver, options: SolverOptions | None = None
) -> bool:
    """Whether no schedule whatever meets the deadlines of all ``jobs``: the linear program has no solution.

    ``x`` seconds of each size of each job between each two deadlines that follow each other, of any GPU type
    (``capacity`` (types,)): a job has at most all of that time, the GPUs at most all of theirs, and
    ``Σ rate · x`` is all its work. Gangs may change at any moment and restarts cost nothing here, so every schedule of
    whole rounds is among them.
    """
    if any(job.due <= 0 and job.work > 0 for job in jobs):
        return True
    ends = np.unique([job.due for job in jobs])
    spans = np.diff(np.concatenate([[0.0], ends]))
    rows = _Rows()
    owner, kind, rate, demand, span = _columns(jobs, [int(np.searchsorted(ends, job.due)) + 1 for job in jobs])
    columns = np.arange(len(owner))
    for i, job in enumerate(jobs):
        mine = columns[owner == i]
        rows.add(mine, rate[mine] / job.work, lower=1.0)
        for b in np.unique(span[mine]):
            rows.add(mine[span[mine] == b], np.ones(int((span[mine] == b).sum())), upper=spans[b])
    for j in range(len(capacity)):
        for b in range(len(spans)):
            used = columns[(kind == j) & (span == b)]
            if len(used):
                rows.add(used, demand[used], upper=capacity[j] * spans[b])
    if not len(columns):
        return bool(jobs)
    result = solver.solve(rows.form(demand, spans[span], integer=False), options or SolverOptions())
    return result.termination is Termination.INFEASIBLE


def fewest_gpu_seconds(
    jobs: Sequence[PlannedJob],
    capacity: FloatArray,
    length: float,
    solver: Solver,
    options: SolverOptions | None = None,
) -> tuple[Termination, Mapping[int, Profile]]:
    """Profiles by which all ``jobs`` meet their deadlines with the fewest GPU-seconds, by a binary program.

    ``y`` is 1 where a job has a size in a round of ``length`` seconds: one size a round, GPUs within ``capacity``
    (types,), ``Σ rate · seconds before the deadline · y`` all its work. A restart takes ``rate · restart`` off
    where a size begins (``z ≥ y_k − y_{k−1}``), for the first start too. Answers with the ending and
    profiles by position, none unless there is a solution; a program of more than ``MOST_COLUMNS`` is not tried
    (``LIMIT_NO_SOLUTION``).
    """
    rounds = [max(0, int(np.ceil(job.due / length))) for job in jobs]
    size = sum(count * sum(sizes.largest for sizes in job.sizes) for job, count in zip(jobs, rounds, strict=True))
    if size > MOST_COLUMNS:
        return Termination.LIMIT_NO_SOLUTION, {}
    if not size:
        return (Termination.INFEASIBLE if jobs else Termination.OPTIMAL), {}
    owner, kind, rate, demand, step = _columns(jobs, rounds)
    columns = np.arange(len(owner))
    costly = np.array([job.restart > 0 for job in jobs])[owner]
    starts = np.full(len(owner), -1)
    starts[costly] = len(owner) + np.arange(int(costly.sum()))
    rows = _Rows()
    for i, job in enumerate(jobs):
        mine = columns[owner == i]
        seconds = np.clip(job.due - step[mine] * length, 0.0, length)
        paying = mine[costly[mine]]
        rows.add(
            np.concatenate([mine, starts[paying]]),
            np.concatenate([rate[mine] * seconds, -rate[paying] * job.restart]) / job.work,
            lower=1.0,
        )
        for k in range(rounds[i]):
            now = mine[step[mine] == k]
            rows.add(now, np.ones(len(now)), upper=1.0)
            if job.restart > 0 and k == 0:
                for column in now:
                    held = job.gpu_type == kind[column] and job.gpus * job.share == demand[column]
                    rows.add(np.array([column, starts[column]]), np.array([1.0, -1.0]), upper=float(held))
            elif job.restart > 0:
                earlier = mine[step[mine] == k - 1]
                for column, same in zip(now, earlier, strict=True):
                    rows.add(np.array([column, same, starts[column]]), np.array([1.0, -1.0, -1.0]), upper=0.0)
    for j in range(len(capacity)):
        for k in range(max(rounds)):
            used = columns[(kind == j) & (step == k)]
            if len(used):
                rows.add(used, demand[used], upper=float(capacity[j]))
    cost = np.concatenate([demand * length, np.zeros(int(costly.sum()))])
    result = solver.solve(rows.form(cost, np.ones(len(cost)), integer=True), options or SolverOptions())
    if result.x is None:
        return result.termination, {}
    return result.termination, _profiles(jobs, result.x[: len(owner)] > 0.5, owner, kind, demand, step)


def _columns(
    jobs: Sequence[PlannedJob], periods: Sequence[int]
) -> tuple[IntArray, IntArray, FloatArray, FloatArray, IntArray]:
    """Job, GPU type, rate, GPUs and period of every size of every job in each of its periods, job by job."""
    owner, kinds, rates, demands, steps = [], [], [], [], []
    for i, job in enumerate(jobs):
        for k in range(periods[i]):
            for j, sizes in enumerate(job.sizes):
                owner.append(np.full(sizes.largest, i))
                kinds.append(np.full(sizes.largest, j))
                rates.append(sizes.rates[1:])
                demands.append(sizes.counts[1:] * job.share)
                steps.append(np.full(sizes.largest, k))
    if not owner:
        none = np.zeros(0, dtype=np.int64)
        return none, none, np.zeros(0), np.zeros(0), none
    return tuple(np.concatenate(part) for part in (owner, kinds, rates, demands, steps))  # type: ignore[return-value]


def _profiles(
    jobs: Sequence[PlannedJob], chosen: BoolArray, owner: IntArray, kind: IntArray, demand: FloatArray, step: IntArray
) -> dict[int, Profile]:
    """The chosen columns as profiles."""
    profiles = {}
    for i, job in enumerate(jobs):
        mine = np.flatnonzero(chosen & (owner == i))
        if len(mine):
            counts = np.zeros(int(step[mine].max()) + 1, dtype=np.int64)
            kinds = np.zeros_like(counts)
            counts[step[mine]] = np.round(demand[mine] / job.share).astype(np.int64)
            kinds[step[mine]] = kind[mine]
            profiles[i] = Profile(kinds, counts)
    return profiles
