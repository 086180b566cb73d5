"""Why there is no solution: a conflict that is one, relaxations that are the smallest, in the user's own terms."""

from __future__ import annotations

import time
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
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.diagnosis import Diagnosis, diagnose
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.formulations.space import AllocationSpace
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


class TestTextIsMeantToBeFollowed:
    """Figures are rounded to the side on which there is a solution."""

    def test_a_share_with_no_end(self) -> None:
        # 2 of 7 GPUs are 0.285714… of the cluster: 0.2858 would still be too much.
        diagnosis = _diagnosed(
            _space(9, 9, 7), Capacity(), TimeShare(), TenantQuota({"vision": 2}), _promise("vision", 0.5)
        )
        told = {relaxed.old.block: relaxed.new.own_terms for relaxed in diagnosis.alternatives}
        assert told == {"MinimumShare.vision": "0.2857 (2 GPUs)", "TenantQuota": "at most 3.5 GPUs"}
        policy = Policy(
            objective=MaxSum(EffectiveThroughput()),
            constraints=[Capacity(), TimeShare(), TenantQuota({"vision": 2}), _promise("vision", 0.2857)],
        )
        policy.allocate(_space(9, 9, 7))

    def test_a_budget_with_no_end(self) -> None:
        # 7 / 3 GPUs at 22/7 an hour cost 7.33333 less a little: at most 7.333 would not do.
        price = {"V100": 22.0 / 7.0}
        diagnosis = _diagnosed(
            _space(9, 9, 7), Capacity(), TimeShare(), Budget(5.0, price), _promise("vision", 1.0 / 3.0)
        )
        budget = next(relaxed for relaxed in diagnosis.alternatives if relaxed.old.block == "Budget")
        assert budget.new.own_terms == "at most 7.334 per hour"
        assert str(budget).startswith("Budget('per hour') by 2.334 per hour")

    def test_a_promise_larger_than_what_its_jobs_can_use(self) -> None:
        jobs = [Job(job_id="v", duration=10.0, num_gpus=2, tenant="vision"), Job(job_id="s", duration=10.0, tenant="s")]
        space = AllocationSpace.from_jobs(jobs, "8xV100")
        diagnosis = _diagnosed(space, Capacity(), TimeShare(), TenantQuota({"vision": 1.5}), _promise("vision", 0.6))
        assert "MinimumShare.vision('vision') 0.6 (2 GPUs, all that its jobs can use)" in str(diagnosis)
        assert "to 0.1875 (1.5 GPUs)" in str(diagnosis)

    def test_a_bound_alone(self) -> None:
        jobs = [Job(job_id="late", duration=1000.0, tenant="vision")]
        text = str(_diagnosed(AllocationSpace.from_jobs(jobs, "1xV100"), Capacity(), MinimumShare(2.0)))
        assert text.startswith(
            "no allocation satisfies MinimumShare('late') 2 (2 steps/s): the least change that helps"
        )


def test_changes_count_as_parts_of_their_bounds_however_small_these_are() -> None:
    # Beside a gang of 4 on 4 GPUs nothing is left for half a GPU: an eighth of the gang's part is a smaller change than
    # all of the other's 0.005 steps/s, although that is the smaller number.
    class AtLeast(Constraint):
        progress_dependent = False

        def __init__(self, name: str, least: float, of: GpusUsed | EffectiveThroughput, job: int) -> None:
            self.name, self.least, self.of, self.job = name, least, of, job

        def limits(self, space: AllocationSpace) -> list[Limit]:
            return [Limit(self.of, lower=np.where(np.arange(space.num_jobs) == self.job, self.least, -np.inf))]

    jobs = [Job(job_id="slow", duration=1e4, num_gpus=1), Job(job_id="wide", duration=1e4, num_gpus=4)]
    space = AllocationSpace.from_jobs(jobs, "4xV100", lambda job, gpu_type, num_gpus: 0.01)
    blocks = AtLeast("wide", 4.0, GpusUsed(by="job"), 1), AtLeast("slow", 0.005, EffectiveThroughput(), 0)
    diagnosis = _diagnosed(space, Capacity(), TimeShare(), *blocks)
    assert [relaxed.old.block for relaxed in diagnosis.relaxation] == ["wide"]
    assert diagnosis.relaxation[0].by == pytest.approx(0.5)


@pytest.mark.parametrize("solver", ["ortools:cp-sat", "highs"])
def test_a_solver_that_takes_no_continuous_columns_is_helped_out(solver: str) -> None:
    jobs = [Job(job_id=f"v{k}", duration=1e4, num_gpus=2, tenant="vision") for k in range(4)]
    space = AllocationSpace.from_jobs(jobs, "8xV100")
    blocks = Capacity(), OneConfiguration(), TenantQuota({"vision": 3}), _promise("vision", 0.5)
    diagnosis = _diagnosed(space, *blocks, solver=solver)
    assert {bound.block for bound in diagnosis.conflict} == {"TenantQuota", "MinimumShare.vision"}
    assert {relaxed.old.block: relaxed.by for relaxed in diagnosis.alternatives} == {
        "TenantQuota": pytest.approx(1.0),
        "MinimumShare.vision": pytest.approx(2.0),
    }


def test_a_diagnosis_can_be_asked_for_when_the_time_of_the_round_is_over() -> None:
    blocks = Capacity(), TimeShare(), _promise("vision", 0.6), _promise("speech", 0.6)
    policy = Policy(
        objective=MaxSum(EffectiveThroughput()),
        constraints=blocks,
        options=SolverOptions(time_limit=0.5),
        solver="pulp:cbc",
    )
    with pytest.raises(InfeasibleError) as raised:
        policy.allocate(_space())
    time.sleep(0.6)
    diagnosis = raised.value.diagnosis
    assert diagnosis is not None
    assert diagnosis.irreducible
    assert len(diagnosis.alternatives) == 2


def test_time_shares_stay_parts_where_only_a_block_counts_in_whole_numbers() -> None:
    class Rented(Constraint):
        """At least one licence, whole."""

        progress_dependent = False

        def build(self, space: AllocationSpace, program: Program) -> None:
            licences = program.add_columns(1, 0.0, 3.0, integer=True)
            program.add_rows(
                Affine(np.zeros(1, int), licences, np.ones(1), np.zeros(1)), lower=1.0, labels=("licences",)
            )

        def violations(self, space: AllocationSpace, x: np.ndarray) -> np.ndarray:
            return np.zeros(0)

        def labels(self, space: AllocationSpace) -> list[str]:
            return []

    jobs = [Job(job_id=f"v{k}", duration=1e4, num_gpus=2, tenant="vision") for k in range(3)]
    space = AllocationSpace.from_jobs(jobs, "3xV100")
    blocks = Capacity(), TimeShare(), Rented(), TenantQuota({"vision": 2.5}), _promise("vision", 0.9)
    diagnosis = _diagnosed(space, *blocks)
    assert [relaxed.by for relaxed in diagnosis.relaxation] == [pytest.approx(0.2)]


def test_columns_whose_own_bounds_leave_nothing() -> None:
    class Between(Constraint):
        """A whole number between 0.2 and 0.8."""

        progress_dependent = False

        def build(self, space: AllocationSpace, program: Program) -> None:
            program.add_columns(1, 0.2, 0.8, integer=True)

    diagnosis = _diagnosed(_space(2, 2), Between())
    assert diagnosis.conflict == ()
    assert str(diagnosis) == "no allocation stays within the bounds of its columns"


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
