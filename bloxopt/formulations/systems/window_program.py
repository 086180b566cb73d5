"""The rounds of a window as one program in how many of them each job gets.

Rounds are interchangeable: what a schedule ``x_jt`` in {0, 1} of job j in round t is worth depends on the counts
``n_j = Σ_t x_jt`` alone. So the program has an integer per column instead of a binary per column and round, and the
capacity of a round, summed over the window, ``Σ_j s_j n_j ≤ T G``. That is a relaxation only where gangs of more than
one GPU cannot be packed into the rounds: its bound holds for the full program too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.sums import sum_by
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class WindowWelfare:
    """``Σ_j weight_j pwl(done_j + v_j / whole_j) / (J T) − makespan_weight max_j (remaining_j − v_j)⁺`` over J jobs.

    ``v_j ≤ remaining_j`` seconds is the work that job j does in the window of T ``rounds`` of ``round_seconds``, in
    time on its fastest GPUs. ``pwl`` is the logarithm of the part of its work that it has then done, interpolated
    between ``points`` (ascending from 0 to 1), where ``log 0`` counts as ``log origin``. Arrays (num_jobs,).
    """

    weight: FloatArray
    done: FloatArray
    whole: FloatArray
    remaining: FloatArray
    rate: FloatArray
    rounds: int
    round_seconds: float
    points: FloatArray
    origin: float
    makespan_weight: float

    def worked(self, space: AllocationSpace, count: FloatArray) -> FloatArray:
        """Seconds of work that counts of rounds by column allow each job, at most what it could do."""
        reach = sum_by(space.job, count * space.rate / self.rate[space.job], space.num_jobs) * self.round_seconds
        return np.minimum(reach, self.most)

    def value(self, space: AllocationSpace, count: FloatArray) -> float:
        """The welfare of counts of rounds by column."""
        worked = self.worked(space, count)
        logs = np.interp(self.done + worked / self.whole, self.points, self._logs)
        longest = float(np.maximum(self.remaining - worked, 0.0).max(initial=0.0))
        return float(self.weight @ logs) / (space.num_jobs * self.rounds) - self.makespan_weight * longest

    def add_to(self, program: Program, at_least: FloatArray | None = None) -> tuple[Affine, IntArray]:
        """The welfare as one row, and the integer columns that count the rounds of each column of the space.

        ``at_least`` seconds of work that each job must do in the window. Adds columns and rows to ``program``, whose
        time shares become counts over T.
        """
        space = program.space
        jobs, columns = space.num_jobs, space.num_columns
        one, each = np.arange(columns), np.arange(jobs)
        count = program.add_columns(columns, 0.0, float(self.rounds), integer=True)
        worked = program.add_columns(jobs, 0.0 if at_least is None else np.maximum(at_least, 0.0), self.most)
        # Measured so that no weight is above 1: what a solver overlooks in a row must not count a million times.
        unit = np.maximum(self.weight, 1.0)
        log = program.add_columns(jobs, self._logs[0] * unit, self._logs[-1] * unit)
        longest = int(program.add_columns(1)[0])

        def rows(*parts: tuple[IntArray, IntArray, FloatArray], constant: FloatArray) -> Affine:
            row, column, value = (np.concatenate([part[k] for part in parts]) for k in range(3))
            return Affine(row, column, value, constant)

        ones = np.ones(jobs)
        shares = rows(
            (one, one, np.full(columns, float(self.rounds))),
            (one, count, -np.ones(columns)),
            constant=np.zeros(columns),
        )
        program.add_rows(shares, lower=0.0, upper=0.0)
        speed = self.round_seconds * space.rate / self.rate[space.job]
        program.add_rows(rows((space.job, count, speed), (each, worked, -ones), constant=np.zeros(jobs)), lower=0.0)
        slope = np.diff(self._logs) / np.diff(self.points)
        for k, steep in enumerate(slope.tolist()):
            below = self._logs[k] + steep * (self.done - self.points[k])
            program.add_rows(
                rows((each, worked, unit * steep / self.whole), (each, log, -ones), constant=unit * below), lower=0.0
            )
        left = rows((each, worked, ones), (each, np.full(jobs, longest), ones), constant=-self.remaining)
        program.add_rows(left, lower=0.0)
        scale = self.weight / unit / (jobs * self.rounds)
        column, value = np.append(log, longest), np.append(scale, -self.makespan_weight)
        return Affine(np.zeros(jobs + 1, np.int64), column, value, np.zeros(1)), count

    @property
    def _logs(self) -> FloatArray:
        return np.log(np.maximum(self.points, self.origin))

    @property
    def most(self) -> FloatArray:
        """Seconds of work after which a job is done at the speed it has had so far."""
        return np.maximum((1.0 - self.done) * self.whole, 0.0)


def interpolation_error(points: FloatArray, origin: float, lowest: float = 0.0) -> float:
    """Largest amount by which the interpolated logarithm is below ``log u`` for u in [``lowest``, 1].

    Between points a < b the gap is largest at u = 1/slope, where it is ``log u − (log a + (u − a)/u)``. Below the
    second point it is as large as the choice of ``origin`` makes it.
    """
    logs = np.log(np.maximum(points, origin))
    slope = np.diff(logs) / np.diff(points)
    worst = np.clip(1.0 / slope, np.maximum(points[:-1], lowest), points[1:])
    inside = points[1:] > max(lowest, 0.0)
    gap = np.log(np.maximum(worst, origin)) - np.interp(worst, points, logs)
    return float(gap[inside].max(initial=0.0))
