"""A policy: an objective, constraints and a solver; it turns an allocation space into an allocation."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bloxopt.errors import FormulationError, guarded
from bloxopt.formulations.allocation import CHECK_TOLERANCE, Allocation
from bloxopt.formulations.checks import checked_flag, shown
from bloxopt.formulations.constraints import Capacity, Constraint, TimeShare
from bloxopt.formulations.constraints.base import name_blocks
from bloxopt.formulations.objectives.base import Objective, check_objective, describe_objective
from bloxopt.formulations.round_limits import RoundLimits
from bloxopt.formulations.solving.repair import repaired
from bloxopt.formulations.solving.resuming import Resolver
from bloxopt.formulations.solving.session import Outcome, Session
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import IntArray
from bloxopt.solvers.base import Solver, SolverOptions, Termination
from bloxopt.solvers.registry import check_solver, get_solver


@dataclass(frozen=True, kw_only=True, eq=False)
class Policy:
    """What to optimise, subject to what, solved by which solver (a name of ``bloxopt solvers`` or a Solver).

    ``constraints`` defaults to Capacity and TimeShare. A policy holds no state: one object may serve many
    simulations and a live cluster at once. ``heterogeneity_aware`` is False for a policy to which all GPU types
    are the same (it only matters where a preset treats such policies apart). ``source`` names the publication. Raises
    :class:`~bloxopt.errors.FormulationError` for blocks that are not what they should be.
    """

    objective: Objective
    constraints: Sequence[Constraint] | None = None
    solver: str | Solver = "auto"
    options: SolverOptions = field(default_factory=SolverOptions)
    name: str = "custom"
    description: str = ""
    source: str = ""
    heterogeneity_aware: bool = True
    _limiting: tuple[Constraint, ...] = field(init=False, repr=False, default=())

    def __post_init__(self) -> None:
        for field_name, text in (("name", self.name), ("description", self.description), ("source", self.source)):
            if not isinstance(text, str) or (field_name == "name" and not text):
                raise FormulationError(f"policy: {field_name} is {shown(text)}, must be text")
        user = f"policy {self.name!r}"
        check_objective(self.objective, user)
        check_solver(self.solver)
        _check_options(user, self.options)
        checked_flag(user, "heterogeneity_aware", self.heterogeneity_aware)
        given = (Capacity(), TimeShare()) if self.constraints is None else self.constraints
        if not isinstance(given, Iterable) or isinstance(given, str):
            raise FormulationError(f"{user}: constraints is {shown(given)}, must be a list of constraint blocks")
        blocks = tuple(given)
        for block in blocks:
            if not isinstance(block, Constraint):
                hint = ": add parentheses" if isinstance(block, type) and issubclass(block, Constraint) else ""
                raise FormulationError(f"{user}: {shown(block)} is not a constraint block{hint}")
        name_blocks(blocks)
        object.__setattr__(self, "constraints", blocks)
        object.__setattr__(self, "_limiting", tuple(block for block in blocks if block.limits_rounds))

    @property
    def blocks(self) -> tuple[Constraint, ...]:
        """The constraint blocks."""
        return tuple(self.constraints or ())

    @property
    def progress_dependent(self) -> bool:
        """True if jobs' progress alone changes the answer (attained service, deadlines …).

        Others need to be solved again only when jobs or GPUs come and go.
        """
        return self.objective.progress_dependent or any(block.progress_dependent for block in self.blocks)

    @property
    def unserved(self) -> str:
        """Which jobs make it fail for all, and the option that changes that; empty if it serves whatever jobs come."""
        return next(filter(None, (self.objective.unserved, *(block.unserved for block in self.blocks))), "")

    @property
    def decides_rounds(self) -> bool:
        """True if its allocations are for one round each, so that none is kept for the next."""
        return self.objective.decides_rounds

    @property
    def uses_spread(self) -> bool:
        """True if the program decides whether gangs are consolidated, so that it needs columns for both."""
        return self.objective.uses_spread or any(block.uses_spread for block in self.blocks)

    @property
    def pair_threshold(self) -> float | None:
        """A number if jobs may share GPUs in the program, so that it needs columns for that: what a pair must reach.

        See :class:`bloxopt.pairing.Pairing`; of several blocks the lowest counts.
        """
        return min((block.pair_threshold for block in self.blocks if block.pair_threshold is not None), default=None)

    @property
    def work_conserving(self) -> bool:
        """True if GPUs that no job has a claim to may go to any; False if jobs must not overtake."""
        return self.objective.work_conserving

    def round_limits(self, space: AllocationSpace) -> RoundLimits | None:
        """The upper limits of its blocks that hold in every round, None if it has none."""
        return RoundLimits.of(self._limiting, space) if self._limiting else None

    def rank(self, space: AllocationSpace) -> IntArray | None:
        """Active jobs in the order of a Priority objective, without building a program; None for others."""
        return self.objective.rank(space)

    def next_change(self, space: AllocationSpace) -> float:
        """Seconds until its answer changes next if what runs now goes on and no job comes or ends; inf if unknown."""
        with guarded(f"objective {describe_objective(self.objective)}: next_change(space)", FormulationError):
            return self.objective.next_change(space)

    def allocate(
        self,
        space: AllocationSpace,
        solver: str | Solver | None = None,
        options: SolverOptions | None = None,
        resume: Resolver | None = None,
    ) -> Allocation:
        """The best allocation for ``space``, checked against every block before it is returned.

        ``solver`` and ``options`` override the policy's own; the time limit covers all its solves together. ``resume``
        has the answers of the allocation before, for solvers that can begin from them, and gets those of this one.
        Raises :class:`~bloxopt.errors.InfeasibleError` naming the blocks that conflict,
        :class:`~bloxopt.errors.UnboundedError`, :class:`~bloxopt.errors.SolverError` where a limit left no
        solution, and :class:`~bloxopt.errors.CheckError` for one that breaks a block.
        """
        started = time.perf_counter()
        user = f"policy {self.name!r}"
        if not isinstance(space, AllocationSpace):
            raise FormulationError(
                f"{user}: allocate takes an AllocationSpace, not {shown(space)}: make one with "
                "AllocationSpace.from_jobs(jobs, cluster)"
            )
        if options is not None:
            _check_options(user, options)
        chosen = self.solver if solver is None else solver
        if self.pair_threshold is None:
            # A policy that does not pack must not see the columns that another one needs.
            space = space.alone()
        named = name_blocks(self.blocks)
        resumption = None if resume is None else resume.begin()
        session = Session(space, named, get_solver(chosen), options or self.options, resumption)
        if space.num_columns:
            outcome = self._solve(session)
        else:
            outcome = Outcome(np.zeros(0), 0.0, 0.0, Termination.OPTIMAL, message="no job can run")
        x = repaired(session, outcome.x, CHECK_TOLERANCE)
        with guarded(f"objective {describe_objective(self.objective)}: utility(space, x)", FormulationError):
            utility = self.objective.utility(space, x) if space.num_columns else 0.0
        sign = -1.0 if self.objective.minimised else 1.0
        allocation = Allocation(
            space=space,
            x=x,
            objective=sign * (outcome.utility if utility is None else utility) + 0.0,
            bound=None if outcome.bound is None else sign * outcome.bound + 0.0,
            termination=outcome.termination,
            solver=session.solver_name if session.num_solves else "none",
            solve_seconds=session.solve_seconds,
            build_seconds=0.0,
            num_solves=session.num_solves,
            constraints=named,
            ranking=outcome.ranking,
            levels=outcome.levels,
            message=outcome.message,
            program=outcome.program,
            prices=outcome.prices,
            proof=outcome.proof,
            work_conserving=self.work_conserving,
            rebuild=None if resumption is None else resumption.rebuild,
            resumed=0 if resumption is None else resumption.resumed,
        )
        allocation.check()
        if resumption is not None:
            resumption.end()
        object.__setattr__(allocation, "build_seconds", time.perf_counter() - started - session.solve_seconds)
        return allocation

    def _solve(self, session: Session) -> Outcome:
        name = describe_objective(self.objective)
        with guarded(f"objective {name}: solve(session)", FormulationError):
            outcome: object = self.objective.solve(session)
        if not isinstance(outcome, Outcome):
            raise FormulationError(f"objective {name}: solve(session) gave {shown(outcome)}, must give an Outcome")
        return outcome


def _check_options(user: str, options: object) -> None:
    if not isinstance(options, SolverOptions):
        raise FormulationError(
            f"{user}: options is {shown(options)}, must be SolverOptions(time_limit=..., mip_gap=...)"
        )
