"""GPUs given out a few at a time: a job has at most one column, which is exchanged for a larger one while it fits."""

from __future__ import annotations

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.packing import Packing
from bloxopt.formulations.session import Session
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray

_ROUNDING = 1e-9


class Upgrades:
    """The columns that jobs have so far, within the constraint blocks of a session.

    Raises :class:`~bloxopt.errors.FormulationError` for blocks that are not upper limits alone: under those,
    giving less is not always possible.
    """

    def __init__(self, session: Session, user: str) -> None:
        program = session.program()
        program.make_integer()
        packing = Packing.of(program)
        if packing is None or packing.forced.any():
            raise FormulationError(
                f"{user} gives GPUs out a few at a time and takes upper limits only, such as Capacity, TimeShare, "
                "TenantQuota and Budget: leave out constraint blocks that promise somebody something"
            )
        self._packing = packing
        self._room: FloatArray = packing.room.copy()
        self.x: FloatArray = np.zeros(session.space.num_columns)

    def exchange(self, old: int, new: int) -> bool:
        """Give column ``new`` in place of ``old`` (-1: none); False, and nothing changed, if it does not fit."""
        packing = self._packing
        if not packing.allowed[new]:
            return False
        if old >= 0:
            self._book(old, -1.0)
        entries = slice(packing.start[new], packing.start[new + 1])
        fits = bool((packing.use[entries] <= self._room[packing.row[entries]] + _ROUNDING).all())
        if fits:
            self._book(new, 1.0)
        elif old >= 0:
            self._book(old, 1.0)
        return fits

    def _book(self, column: int, sign: float) -> None:
        packing = self._packing
        entries = slice(packing.start[column], packing.start[column + 1])
        np.subtract.at(self._room, packing.row[entries], sign * packing.use[entries])
        self.x[column] = max(sign, 0.0)


def columns_by_size(space: AllocationSpace) -> dict[tuple[int, int, int], int]:
    """The column of each job, GPU type and number of GPUs; of twins the faster one."""
    slowest_first = np.argsort(space.rate, kind="stable")
    keys = zip(space.job[slowest_first], space.gpu_type[slowest_first], space.num_gpus[slowest_first], strict=True)
    return {(int(i), int(j), int(n)): int(column) for (i, j, n), column in zip(keys, slowest_first, strict=True)}
