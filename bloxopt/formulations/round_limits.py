"""Upper limits that hold in every round, not only on average over the plan.

A plan's time shares keep a limit such as a tenant's quota on average; a round runs whole gangs, so it has to
keep it as well. Limits on several jobs together (GPUs of a tenant, cost per hour) hold in each round; limits
on one job's own time share or throughput are about the average by nature, and so are lower limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from scipy.sparse import csc_array, csr_array, vstack

from bloxopt.errors import CheckError, FormulationError
from bloxopt.formulations.constraints.base import Constraint, Limit, built_limits, describe
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import BoolArray, FloatArray
from bloxopt.pairing import ALONE

_ROUNDING = 1e-6


class RoundLimits:
    """Rows ``Σ use x ≤ room`` over the columns of a space for x of 0 and 1, with what is left of each.

    Columns are found by job row of the ledger, GPU type, GPU count and kind of the partner; :meth:`admit` keeps count
    while a round is filled.
    """

    def __init__(self, space: AllocationSpace, use: csc_array, room: FloatArray, names: Sequence[str]) -> None:
        self.space = space
        self.use = use
        self.room = room
        self.names = names
        self._left = room.copy()
        self._column = {key: column for column, key in enumerate(self._keys())}

    @classmethod
    def of(cls, blocks: Sequence[Constraint], space: AllocationSpace) -> RoundLimits | None:
        """The limits that ``blocks`` put on each round; None if there are none.

        Raises :class:`FormulationError` for a job that could never run under those that do not change with time.
        """
        parts: list[csr_array] = []
        rooms: list[FloatArray] = []
        names: list[str] = []
        lasting: list[bool] = []
        for block in blocks:
            for built, _, upper in built_limits(describe(block), block.round_limits, space):
                if _is_per_job(built, space):
                    continue
                rows = csr_array((built.value, (built.row, built.column)), shape=(built.num_rows, space.num_columns))
                room = np.broadcast_to(upper, built.num_rows) - built.constant
                # Only "less is always possible" rows can be kept by leaving jobs out.
                positive = np.ones(built.num_rows, dtype=bool)
                positive[built.row[built.value < 0]] = False
                kept = (np.isfinite(room) & positive).nonzero()[0]
                labels = list(built.labels()) if built.labels else [str(row) for row in range(built.num_rows)]
                parts.append(rows[kept])
                rooms.append(room[kept])
                names += [f"{describe(block)}[{labels[row]}]" for row in kept]
                lasting += [not block.progress_dependent] * len(kept)
        if not names:
            return None
        use = csc_array(vstack(parts))
        use.eliminate_zeros()
        limits = cls(space, use, np.concatenate(rooms), names)
        limits._refuse_jobs_that_can_never_run(np.array(lasting))
        return limits

    def admit(self, row: int, gpu_type: int, num_gpus: int, partner: int = ALONE) -> bool:
        """Take the job's part of every limit if all have room for it; False, and nothing taken, if not.

        ``partner`` is the kind of the job that it shares its GPUs with.
        """
        column = self._column.get((row, gpu_type, num_gpus, partner))
        if column is None:
            return False
        entries = slice(self.use.indptr[column], self.use.indptr[column + 1])
        rows, use = self.use.indices[entries], self.use.data[entries]
        if (use > self._left[rows] + _ROUNDING).any():
            return False
        self._left[rows] -= use
        return True

    def admit_all(self, jobs: Sequence[tuple[int, int, int, int]]) -> bool:
        """The same for several jobs that run together or not at all."""
        columns = [self._column.get(job, -1) for job in jobs]
        if min(columns) < 0:
            return False
        use = self.use[:, columns].sum(axis=1)
        if (use > self._left + _ROUNDING).any():
            return False
        self._left -= use
        return True

    def _keys(self) -> Iterator[tuple[int, int, int, int]]:
        space = self.space
        row = space.index[space.job].tolist()
        return zip(row, space.gpu_type.tolist(), space.num_gpus.tolist(), space.partner.tolist(), strict=True)

    def possible(self, rows: BoolArray | None = None) -> BoolArray:
        """Columns that fit when nothing else runs, (num_columns,), by all limits or some of their ``rows``."""
        entry = np.repeat(np.arange(self.space.num_columns), np.diff(self.use.indptr))
        over = self.use.data > self.room[self.use.indices] + _ROUNDING
        if rows is not None:
            over &= rows[self.use.indices]
        possible = np.ones(self.space.num_columns, dtype=bool)
        possible[entry[over]] = False
        return possible

    def block(self) -> Constraint:
        """The same limits as a constraint block for a binary program over the same space."""
        return _Rows(self.use, self.room, self.names)

    def check(self, running: Iterable[tuple[int, int, int, int]]) -> None:
        """Raise :class:`CheckError` if jobs that run, as (row, GPU type, GPUs, partner's kind), break a limit."""
        columns = [self._column[key] for key in running if key in self._column]
        total = self.use[:, columns].sum(axis=1)
        over = total - self.room - 1e-4 * np.maximum(1.0, np.abs(self.room))
        worst = int(np.argmax(over))
        if over[worst] > 0:
            raise CheckError(
                f"{self.names[worst]} allows {self.room[worst]:g} in a round and {total[worst]:g} would be used"
            )

    def _refuse_jobs_that_can_never_run(self, lasting: BoolArray) -> None:
        """Judged by the ``lasting`` rows alone: a limit for the night lets jobs run by day."""
        space = self.space
        possible = self.possible(lasting)
        can = np.bincount(space.job, weights=possible, minlength=space.num_jobs) > 0
        stuck = (space.runnable & ~can).nonzero()[0]
        if not len(stuck):
            return
        columns = (space.job == stuck[0]).nonzero()[0]
        rows = self.use[:, columns].tocoo()
        over = (rows.data > self.room[rows.row] + _ROUNDING) & lasting[rows.row]
        row = int(rows.row[over][0])
        more = f" (and {len(stuck) - 1} others)" if len(stuck) > 1 else ""
        raise FormulationError(
            f"job {space.job_ids[stuck[0]]!r}{more} can never run: {self.names[row]} allows {self.room[row]:g} in any "
            f"round and the job alone takes {rows.data[over].min():g}; raise the limit or make the job smaller"
        )


class _Rows(Constraint):
    """Given rows over the columns of one space."""

    progress_dependent = False

    def __init__(self, use: csc_array, room: FloatArray, names: Sequence[str]) -> None:
        self._use, self._room, self._names = use, room, names

    def limits(self, space: AllocationSpace) -> list[Limit]:
        entries = self._use.tocoo()
        rows = Affine(
            entries.row.astype(np.int64),
            entries.col.astype(np.int64),
            entries.data,
            np.zeros(len(self._room)),
            lambda: list(self._names),
        )
        return [Limit(lambda _: rows, upper=self._room)]


def _is_per_job(rows: Affine, space: AllocationSpace) -> bool:
    """True for an expression with a row per active job."""
    if rows.num_rows != space.num_jobs or rows.labels is None:
        return False
    return list(rows.labels()) == list(space.job_ids)
