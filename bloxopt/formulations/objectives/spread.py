"""The price of gangs that run on more nodes than they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bloxopt.formulations.checks import amount_of_each_type, checked_amount, checked_amounts
from bloxopt.formulations.expressions import per_job
from bloxopt.formulations.objectives.base import Objective
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray


@dataclass(frozen=True)
class SpreadPenalty(Objective):
    """GPUs of gangs that are not consolidated, on average over time; subtract it.

    ``Σ_c weight s_c x_c`` over columns c that run on more nodes than necessary and slower for it, s_c their GPUs.
    ``weight`` is a number >= 0, or one per GPU type (others count 0). It comes on top of the slowdown itself,
    which is in the rates of the columns: for traffic that gangs cause each other, say. Linear in x and >= 0.
    """

    weight: float | Mapping[str, float] = 1.0
    uses_spread = True
    progress_dependent = False

    def __post_init__(self) -> None:
        if isinstance(self.weight, Mapping):
            checked_amounts("SpreadPenalty", self.weight, "weight")
        else:
            checked_amount("SpreadPenalty", "weight", self.weight)

    def terms(self, space: AllocationSpace, program: Program) -> Affine:
        return per_job(space, self._price(space)).total()

    def utility(self, space: AllocationSpace, x: FloatArray) -> float:
        return float(self._price(space) @ x)

    def _price(self, space: AllocationSpace) -> FloatArray:
        """Price of each column per unit of time, (num_columns,)."""
        twin = space.has_twin & (space.spread == 1)
        if isinstance(self.weight, Mapping):
            each = amount_of_each_type("SpreadPenalty", self.weight, "weight", space.gpu_types, default=0.0)
            weight = each[space.gpu_type]
        else:
            weight = np.full(space.num_columns, float(self.weight))
        price: FloatArray = weight * space.gpu_demand * twin
        return price
