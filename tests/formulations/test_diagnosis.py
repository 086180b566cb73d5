"""Why there is no solution: a conflict that is one, relaxations that are the smallest, in the user's own terms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csc_array

from bloxopt.errors import InfeasibleError
from bloxopt.formulations import (
    Budget,
    Capacity,
    Constraint,
    Deadlines,
    EffectiveThroughput,
    GpusUsed,
    MaxSum,
    MinimumShare,
    OneConfiguration,
    Policy,
    TenantQuota,
    TimeShare,
)
from bloxopt.formulations.constraints.base import Limit, name_blocks
from bloxopt.formulations.diagnosis import Diagnosis, diagnose
from bloxopt.formulations.program import Program
from bloxopt.formulations.space import AllocationSpace
from bloxopt.formulations.standard_form import StandardForm
from bloxopt.jobs import Job
from bloxopt.solvers import get_solver
from bloxopt.solvers.base import SolverOptions

SOLVERS = ("highs", "cvxpy:clarabel", "ortools:glop", "pulp:cbc")


def _space(vision: int = 30, speech: int = 30, gpus: int = 48) -> AllocationSpace:
    jobs = [Job(job_id=f"v{k}", duration=1e4, tenant="vision") for k in range(vision)]
    jobs += [Job(job_id=f"s{k}", duration=1e4, tenant="speech") for k in range(speech)]
    return AllocationSpace.from_jobs(jobs, f"{gpus}xV100")


def _diagnosed(space: AllocationSpace, *blocks: Constraint, solver: str = "highs") -> Diagnosis:
    policy = Policy(objective=MaxSum(EffectiveThroughput()), constraints=blocks, solver=solver)
    with pytest.raises(InfeasibleError) as raised:
        policy.allocate(space)
    diagnosis = raised.value.diagnosis
    assert diagnosis is not None
    return diagnosis


def _promise(name: str, share: float) -> MinimumShare:
    return MinimumShare({name: share}, of="gpus", name=f"MinimumShare.{name}")


class TestSharesThatExceedTheCluster:
    @pytest.mark.parametrize("solver", SOLVERS)
    def test_they_are_named_with_what_they_are_too_much_and_what_would_fit(self, solver: str) -> None:
        # 0.6 and 0.6 of 48 GPUs: 57.6, that is 9.6 too many; 0.4 beside 0.6 fits.
        blocks = Capacity(), TimeShare(), _promise("vision", 0.6), _promise("speech", 0.6)
        diagnosis = _diagnosed(_space(), *blocks, solver=solver)
        assert {bound.block for bound in diagnosis.conflict} == {
            "Capacity",
            "MinimumShare.vision",
            "MinimumShare.speech",
        }
        assert sum(relaxed.by for relaxed in diagnosis.relaxation) == pytest.approx(9.6, abs=1e-4)
        assert {relaxed.old.unit for relaxed in diagnosis.relaxation} == {"GPUs"}
        alone = {relaxed.old.label: relaxed for relaxed in diagnosis.alternatives}
        assert [alone[name].by for name in ("vision", "speech")] == pytest.approx([9.6, 9.6], abs=1e-4)
        assert alone["vision"].new.own_terms == "0.4 (19.2 GPUs)"
        assert alone["vision"].old.own_terms == "0.6 (28.8 GPUs)"
        text = str(diagnosis)
        assert "MinimumShare.vision('vision') 0.6 (28.8 GPUs)" in text
        assert "to 0.4 (19.2 GPUs)" in text

    def test_what_would_fit_fits_and_a_little_more_does_not(self) -> None:
        space = _space()
        for share, fits in ((0.4, True), (0.401, False)):
            blocks = [Capacity(), TimeShare(), _promise("vision", share), _promise("speech", 0.6)]
            policy = Policy(objective=MaxSum(EffectiveThroughput()), constraints=blocks)
            if fits:
                policy.allocate(space)
            else:
                with pytest.raises(InfeasibleError):
                    policy.allocate(space)

    def test_blocks_that_have_nothing_to_do_with_it_are_not_named(self) -> None:
        innocent = TenantQuota({"vision": 40, "speech": 40}), Budget(1000.0, {"V100": 1.0})
        blocks = Capacity(), TimeShare(), *innocent, _promise("vision", 0.6), _promise("speech", 0.6)
        named = {bound.block for bound in _diagnosed(_space(), *blocks).conflict}
        assert named.isdisjoint({"TenantQuota", "Budget", "TimeShare"})


def test_a_quota_below_a_promise() -> None:
    diagnosis = _diagnosed(_space(), Capacity(), TimeShare(), TenantQuota({"vision": 10}), _promise("vision", 0.5))
    assert {bound.name for bound in diagnosis.conflict} == {"TenantQuota('vision')", "MinimumShare.vision('vision')"}
    assert [round(relaxed.by, 6) for relaxed in diagnosis.alternatives] == [14.0, 14.0]


def test_a_budget_too_small_for_the_promises() -> None:
    diagnosis = _diagnosed(_space(), Capacity(), TimeShare(), Budget(20.0, {"V100": 2.0}), _promise("vision", 0.5))
    budget = next(relaxed for relaxed in diagnosis.alternatives if relaxed.old.block == "Budget")
    assert budget.by == pytest.approx(28.0)
    assert budget.new.own_terms == "at most 48 per hour"


def test_deadlines_are_told_in_seconds() -> None:
    jobs = [Job(job_id=f"j{k}", duration=1000.0, deadline=1500.0) for k in range(3)]
    space = AllocationSpace.from_jobs(jobs, "1xV100")
    diagnosis = _diagnosed(space, Capacity(), TimeShare(), Deadlines())
    assert {bound.block for bound in diagnosis.conflict} == {"Capacity", "Deadlines"}
    assert "by 1500 s" in str(diagnosis)
    assert len(diagnosis.conflict) == 3, "two jobs are enough not to fit"


@pytest.mark.parametrize("solver", ["highs", "pulp:cbc", "ortools:scip"])
def test_integer_programs_are_diagnosed_too(solver: str) -> None:
    class AtLeast(Constraint):
        """The first two jobs of four GPUs run, on six GPUs."""

        progress_dependent = False

        def limits(self, space: AllocationSpace) -> list[Limit]:
            return [Limit(GpusUsed(by="job"), lower=np.where(np.arange(space.num_jobs) < 2, 4.0, 0.0))]

    jobs = [Job(job_id=f"j{k}", duration=1000.0, num_gpus=4) for k in range(3)]
    space = AllocationSpace.from_jobs(jobs, "6xV100")
    diagnosis = _diagnosed(space, Capacity(), OneConfiguration(), AtLeast(), solver=solver)
    assert {bound.name for bound in diagnosis.conflict} == {"Capacity('V100')", "AtLeast('j0')", "AtLeast('j1')"}
    assert {round(relaxed.by, 4) for relaxed in diagnosis.alternatives} == {4.0}, "a gang runs whole or not at all"


def _feasible(form: StandardForm) -> bool:
    """The verdict of an independent solver."""
    answer = milp(
        np.zeros(form.num_columns),
        constraints=LinearConstraint(form.matrix, form.row_lower, form.row_upper),
        integrality=form.integer.astype(int),
        bounds=Bounds(form.lower, form.upper),
    )
    return bool(answer.success)


class _Rows(Constraint):
    """Arbitrary rows."""

    progress_dependent = False

    def __init__(self, name: str, matrix: np.ndarray, lower: np.ndarray, upper: np.ndarray, physical: bool) -> None:
        self.name, self.matrix, self.lower, self.upper, self.physical = name, matrix, lower, upper, physical

    def build(self, space: AllocationSpace, program: Program) -> None:
        from bloxopt.formulations.affine import Affine

        sparse = csc_array(self.matrix).tocoo()
        rows = Affine(
            sparse.row.astype(np.int64), sparse.col.astype(np.int64), sparse.data, np.zeros(len(self.lower)), None
        )
        program.add_rows(rows, self.lower, self.upper)


@given(st.integers(0, 1_000_000), st.booleans(), st.integers(1, 4))
def test_every_claim_about_a_random_program_holds(seed: int, integer: bool, families: int) -> None:
    random = np.random.default_rng(seed)
    jobs = [Job(job_id=f"j{k}", duration=10.0) for k in range(int(random.integers(1, 6)))]
    space = AllocationSpace.from_jobs(jobs, "3xV100")
    blocks = []
    for number in range(families):
        count = int(random.integers(1, 4))
        lower = np.where(random.random(count) < 0.7, random.integers(-1, 3, count).astype(float), -np.inf)
        upper = np.where(random.random(count) < 0.5, np.maximum(lower, -1) + random.integers(0, 2, count), np.inf)
        matrix = random.integers(-1, 3, (count, space.num_columns)).astype(float)
        blocks.append(_Rows(f"block{number}", matrix, lower, upper, bool(random.random() < 0.3)))
    named = name_blocks(blocks)
    program = Program(space)
    for name, block in named.items():
        program.block = name
        block.build(space, program)
    if integer:
        program.make_integer()
    form = program.compile_rows()
    diagnosis = diagnose(program, named, lambda form: get_solver("highs").solve(form, SolverOptions()))
    assert (diagnosis is None) == _feasible(form)
    assume(diagnosis is not None)
    assert diagnosis.irreducible

    start = {family.name: family.start for family in program.families}

    def with_only(bounds) -> StandardForm:
        lower, upper = np.full(form.num_rows, -np.inf), np.full(form.num_rows, np.inf)
        for bound in bounds:
            row = start[bound.block] + int(bound.label)
            (lower if bound.side == "at least" else upper)[row] = bound.bound
        return replace(form, row_lower=lower, row_upper=upper)

    def after(*changes) -> StandardForm:
        lower, upper = form.row_lower.copy(), form.row_upper.copy()
        for change in changes:
            row = start[change.old.block] + int(change.old.label)
            side, sign = (lower, -1) if change.old.side == "at least" else (upper, 1)
            side[row] += sign * (change.by + 1e-6)
        return replace(form, row_lower=lower, row_upper=upper)

    assert not _feasible(with_only(diagnosis.conflict)), "the conflict is one"
    for left_out in diagnosis.conflict:
        assert _feasible(with_only([bound for bound in diagnosis.conflict if bound != left_out])), "and none too many"
    assert _feasible(after(*diagnosis.relaxation)), "the relaxation mends it"
    for alternative in diagnosis.alternatives:
        assert _feasible(after(alternative))
        less = replace(alternative, by=alternative.by * 0.99 - 2e-6)
        if less.by > 0:
            assert not _feasible(after(less)), "and less would not"


def test_a_program_with_a_solution_has_no_diagnosis() -> None:
    space = _space(3, 3)
    program = Program(space)
    for name, block in (blocks := name_blocks([Capacity(), TimeShare()])).items():
        program.block = name
        block.build(space, program)
    assert diagnose(program, blocks, lambda form: get_solver("highs").solve(form)) is None
