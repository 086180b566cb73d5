"""GPUs given out a few at a time: a job has at most one column, which is exchanged for a larger one while it fits."""

from __future__ import annotations

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.solving.packing import Packing, Room
from bloxopt.formulations.solving.session import Session
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray


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
        self._allowed = packing.allowed
        self._room = Room(packing)
        self.x: FloatArray = np.zeros(session.space.num_columns)

    def exchange(self, old: int, new: int) -> bool:
        """Give column ``new`` in place of ``old`` (-1: none); False, and nothing changed, if it does not fit."""
        if not self._allowed[new]:
            return False
        if old >= 0:
            self._room.give_back(old)
        fits = self._room.fits(new)
        if fits:
            self._room.take(new)
            if old >= 0:
                self.x[old] = 0.0
            self.x[new] = 1.0
        elif old >= 0:
            self._room.take(old)
        return fits


def columns_by_size(space: AllocationSpace) -> dict[tuple[int, int, int], int]:
    """The column of each job, GPU type and number of GPUs; of twins the faster one."""
    slowest_first = np.argsort(space.rate, kind="stable")
    parts = (space.job, space.gpu_type, space.num_gpus)
    keys = zip(*(part[slowest_first].tolist() for part in parts), strict=True)
    return dict(zip(keys, slowest_first.tolist(), strict=True))
