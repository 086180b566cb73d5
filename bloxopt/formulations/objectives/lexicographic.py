"""Objectives in order of importance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bloxopt.errors import FormulationError
from bloxopt.formulations.objectives.base import Objective, check_stages
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.session import Outcome, Session
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Lexicographic(Objective):
    """Optimise the first objective, then the second among its optima, and so on.

    Each stage's value is kept within ``tolerance`` (relative) in the stages after it. The reported value
    and bound are those of the first stage, prices those of the last.
    """

    stages: Sequence[Objective]
    tolerance: float = 1e-6
    curvature = "staged"

    def __post_init__(self) -> None:
        stages = check_stages(self.stages, "Lexicographic")
        if not (isinstance(self.tolerance, (int, float)) and 0 <= self.tolerance < 1):
            raise FormulationError(f"Lexicographic: tolerance is {self.tolerance!r}, must be in [0, 1)")
        object.__setattr__(self, "stages", stages)

    @property
    def progress_dependent(self) -> bool:  # type: ignore[override]
        return any(stage.progress_dependent for stage in self.stages)

    @property
    def uses_spread(self) -> bool:  # type: ignore[override]
        return any(stage.uses_spread for stage in self.stages)

    @property
    def unserved(self) -> str:  # type: ignore[override]
        return next((stage.unserved for stage in self.stages if stage.unserved), "")

    @property
    def work_conserving(self) -> bool:  # type: ignore[override]
        return all(stage.work_conserving for stage in self.stages)

    @property
    def minimised(self) -> bool:  # type: ignore[override]
        return self.stages[0].minimised

    def utility(self, space: AllocationSpace, x: FloatArray) -> float | None:
        return self.stages[0].utility(space, x)

    def solve(self, session: Session) -> Outcome:
        first = outcome = self.stages[0].solve(session)
        for before, stage in zip(self.stages, self.stages[1:], strict=False):
            if session.out_of_time:
                break
            session.hold(before, outcome, self.tolerance)
            outcome = stage.solve(session)
        utility = self.stages[0].utility(session.space, outcome.x)
        return Outcome(
            x=outcome.x,
            utility=first.utility if utility is None else utility,
            bound=first.bound,
            termination=outcome.termination,
            program=outcome.program,
            prices=outcome.prices,
            ranking=first.ranking,
            levels=first.levels,
            message=outcome.message,
        )

    def hold(self, session: Session, program: Program, outcome: Outcome, tolerance: float) -> None:
        raise FormulationError("Lexicographic cannot be a stage of another: list its objectives in one")

    def rank(self, space: AllocationSpace) -> IntArray | None:
        return self.stages[0].rank(space)

    def next_change(self, space: AllocationSpace) -> float:
        return min(stage.next_change(space) for stage in self.stages)
