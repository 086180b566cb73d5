"""Solves that begin from the answer of the round before give what solves from nothing give, or say why they did not."""

from __future__ import annotations

import importlib

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from instances import make_space

import bloxopt as bx
from bloxopt.cluster import load_cluster
from bloxopt.errors import InfeasibleError
from bloxopt.experiments import load_result, save_result
from bloxopt.formulations import (
    AllocationSpace,
    Capacity,
    EffectiveThroughput,
    GpusUsed,
    Limit,
    MaxMin,
    MaxSum,
    NormalizedThroughput,
    OneConfiguration,
    PairedShares,
    Policy,
    ProportionalFairness,
    TimeShare,
    WaterFilling,
)
from bloxopt.formulations.constraints import Constraint
from bloxopt.formulations.policies import get_policy
from bloxopt.formulations.solving import session as sessions
from bloxopt.formulations.solving.resuming import Resolver
from bloxopt.formulations.space import ConfigurationCatalog
from bloxopt.jobs import JobTable
from bloxopt.simulation import PRESETS, SimulationOptions
from bloxopt.solvers import get_solver, highs_resume
from bloxopt.solvers.base import Basis, Capabilities, SolverOptions, Start
from bloxopt.solvers.watchdog import Watched
from bloxopt.state import JobLedger

KINDS = ("v100", "p100", "k80")


class Rates:
    """Steps/s of every job on every GPU type, more GPUs helping less and less."""

    def __init__(self, count: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.table = np.exp(random.normal(0.0, 1.0, count))[:, None] * random.uniform(0.3, 4.0, (count, len(KINDS)))

    def rates(self, jobs, gpu_types, num_gpus):
        row = np.array([int(name[4:]) for name in jobs.job_id])
        return self.table[row] * np.asarray(num_gpus)[:, None] ** 0.8


class Churn:
    """Jobs that come, progress and go, on GPUs that fail and come back."""

    def __init__(self, seed: int, jobs: int = 24, gpus: int = 6, elastic: bool = False, total: int = 80) -> None:
        self.random = random = np.random.default_rng(seed)
        sizes = {"min_gpus": np.ones(total, int), "max_gpus": np.full(total, 4)} if elastic else {}
        table = JobTable.from_columns(
            job_id=[f"job-{i}" for i in range(total)],
            arrival=np.sort(random.uniform(0, 5000, total)),
            num_gpus=random.choice([1, 1, 2, 4], total),
            total_steps=random.uniform(1e3, 1e5, total),
            **sizes,
        )
        self.cluster = load_cluster("+".join(f"{gpus}x{kind}" for kind in KINDS))
        self.catalog = ConfigurationCatalog(table, self.cluster, Rates(total, seed))
        self.ledger = JobLedger(table)
        self.ledger.isolated_seconds[:] = random.uniform(1.0, 1e4, total)
        self.index, self.next, self.now = np.arange(jobs), jobs, 5000.0
        self.capacity = self.cluster.capacity

    def step(self) -> None:
        gone = self.random.choice(len(self.index), self.random.integers(0, 4), replace=False)
        come = int(self.random.integers(0, 4))
        self.index = np.concatenate([np.delete(self.index, gone), np.arange(self.next, self.next + come)])
        self.next += come
        self.ledger.remaining_steps[self.index] *= self.random.uniform(0.9, 1.0, len(self.index))
        self.now += 360.0
        if self.random.random() < 0.4:
            self.capacity = self.random.integers(4, self.cluster.capacity + 1)

    @property
    def space(self) -> AllocationSpace:
        return AllocationSpace(self.catalog, self.ledger, self.index, capacity=self.capacity, now=self.now)


def _one_configuration() -> Policy:
    value = MaxSum(NormalizedThroughput(weighted=False))
    return Policy(objective=value, constraints=[Capacity(), OneConfiguration()], options=SolverOptions(mip_gap=1e-6))


POLICIES = {
    "max_min_fairness": (lambda: get_policy("max_min_fairness"), False),
    "max_sum_throughput": (lambda: get_policy("max_sum_throughput"), False),
    "finish_time_fairness": (lambda: get_policy("finish_time_fairness"), False),
    "water_filling": (lambda: Policy(objective=WaterFilling(NormalizedThroughput())), False),
    "proportional_fairness": (lambda: Policy(objective=ProportionalFairness(NormalizedThroughput())), False),
    "one_configuration": (_one_configuration, True),
}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("solver", ["auto", "highs"])
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_value_is_that_of_a_solve_from_nothing_in_every_round(name: str, solver: str, seed: int) -> None:
    policy, elastic = POLICIES[name]
    churn, resolver = Churn(seed, elastic=elastic), Resolver(least_entries=0)
    for number in range(4):
        cold = policy().allocate(churn.space, solver=solver)
        warm = policy().allocate(churn.space, solver=solver, resume=resolver)
        assert warm.objective == pytest.approx(cold.objective, rel=2e-6, abs=1e-8)
        assert warm.termination == "optimal"
        warm.check(1e-6)
        if warm.levels is not None and name == "water_filling":
            assert np.sort(warm.levels) == pytest.approx(np.sort(cold.levels), rel=1e-4, abs=1e-7)
        if (proof := warm.certificate.verification) is not None:
            assert proof.verified
        assert (warm.rebuild == "first round") == (number == 0)
        churn.step()


def test_most_rounds_begin_from_the_answer_before() -> None:
    for name in ("max_min_fairness", "max_sum_throughput", "finish_time_fairness", "water_filling"):
        churn, resolver, resumed = Churn(1, elastic=POLICIES[name][1]), Resolver(least_entries=0), 0
        for _ in range(6):
            allocation = POLICIES[name][0]().allocate(churn.space, solver="highs", resume=resolver)
            resumed += allocation.rebuild == ""
            assert (allocation.resumed > 0) or allocation.rebuild != ""
            churn.step()
        assert resumed == 5, name


@pytest.mark.parametrize(("seed", "gpus"), [(0, 40), (1, 400)])
def test_sia_by_prices_stays_within_its_gap(seed: int, gpus: int) -> None:
    churn = Churn(seed, jobs=220, gpus=gpus, elastic=True, total=240)
    policy, resolver = get_policy("sia", scale_up=None), Resolver()
    for number in range(3):
        cold = policy.allocate(churn.space)
        warm = policy.allocate(churn.space, resume=resolver)
        # The gap of 1e-3 is one of mean powers; the mean itself is their power of −2.
        assert warm.objective == pytest.approx(cold.objective, rel=4e-3)
        assert warm.rebuild == ("" if number else "first round")
        churn.step()


def test_an_integer_program_begins_from_an_earlier_answer_that_still_fits() -> None:
    churn, resolver = Churn(1, elastic=True), Resolver(least_entries=0)
    rebuilds = []
    for gpus in (6, 6, 5, 1):
        churn.capacity = np.full(3, gpus)
        rebuilds.append(_one_configuration().allocate(churn.space, solver="highs", resume=resolver).rebuild)
    # On fewer GPUs than it uses the last answer is no answer.
    assert rebuilds == ["first round", "", *["highs cannot begin from the earlier answer"] * 2]


@pytest.mark.parametrize("solver", ["auto", "prices", "ortools:scip", "ortools:cp-sat", "pulp:cbc"])
def test_solvers_of_integer_programs_take_the_last_answer(solver: str) -> None:
    churn, resolver = Churn(2, elastic=True), Resolver(least_entries=0)
    for number in range(2):
        warm = _one_configuration().allocate(churn.space, solver=solver, resume=resolver)
        assert warm.resumed == number
        assert warm.objective == pytest.approx(_one_configuration().allocate(churn.space).objective, rel=1e-5)
        churn.index = churn.index[1:]


def test_jobs_are_known_by_their_ids_whatever_their_rows() -> None:
    churn, resolver = Churn(3), Resolver(least_entries=0)
    policy = get_policy("max_min_fairness")
    policy.allocate(churn.space, solver="highs", resume=resolver)
    order = np.random.default_rng(0).permutation(24)
    shuffled = AllocationSpace(churn.catalog.rebuilt(order), churn.ledger.take(order), np.arange(24), now=churn.now)
    again = policy.allocate(shuffled, solver="highs", resume=resolver)
    assert (again.rebuild, again.resumed) == ("", 1)
    assert again.objective == pytest.approx(policy.allocate(shuffled, solver="highs").objective, rel=1e-9)


class Few(Constraint):
    """At most so many GPUs."""

    progress_dependent = False

    def limits(self, space):
        return [Limit(GpusUsed(), upper=5.0)]


def test_the_reason_for_beginning_anew_is_told() -> None:
    policy, churn = get_policy("max_min_fairness"), Churn(4)
    space = churn.space
    assert policy.allocate(space).rebuild is None
    assert policy.allocate(space, resume=Resolver(0)).rebuild == "first round"
    assert policy.allocate(space, resume=Resolver()).rebuild == "fewer than 2000 entries"
    clarabel = policy.allocate(space, solver="cvxpy:clarabel", resume=Resolver(0))
    assert clarabel.rebuild == "solver 'cvxpy:clarabel' takes no start"
    assert get_policy("fifo").allocate(space, resume=Resolver(0)).rebuild is None

    resolver = Resolver(0)
    policy.allocate(space, solver="highs", resume=resolver)
    other = Policy(objective=policy.objective, constraints=[Capacity(), TimeShare(), Few()])
    assert other.allocate(space, solver="highs", resume=resolver).rebuild == "the blocks have changed"

    others = AllocationSpace(churn.catalog, churn.ledger, np.arange(40, 64), now=churn.now)
    assert other.allocate(others, solver="highs", resume=resolver).rebuild == "most columns are new"

    resolver.least_entries = 10**6
    assert other.allocate(space, solver="highs", resume=resolver).rebuild == "fewer than 1000000 entries"
    resolver.least_entries = 0
    assert other.allocate(space, solver="highs", resume=resolver).rebuild == "the last round left no answer"
    resolver.forget()
    assert other.allocate(space, solver="highs", resume=resolver).rebuild == "first round"


def test_blocks_whose_columns_cannot_be_told_apart_begin_anew_when_jobs_change() -> None:
    policy = Policy(objective=ProportionalFairness(EffectiveThroughput()))
    churn, resolver = Churn(5), Resolver(0)
    policy.allocate(churn.space, solver="highs", resume=resolver)
    assert policy.allocate(churn.space, solver="highs", resume=resolver).rebuild == ""
    churn.index = np.append(churn.index[1:], 30)
    rebuild = policy.allocate(churn.space, solver="highs", resume=resolver).rebuild
    assert rebuild == "ProportionalFairness has columns of its own that have changed"


class TwinRows(Constraint):
    """Two rows of one name."""

    progress_dependent = False

    def build(self, space, program):
        rows = GpusUsed(by="gpu_type").build(space)
        program.add_rows(rows, upper=1e9, labels=["same"] * rows.num_rows)

    def violations(self, space, x):
        return np.zeros(0)

    def labels(self, space):
        return []


def test_rows_of_equal_labels_begin_anew() -> None:
    policy = Policy(objective=MaxMin(EffectiveThroughput()), constraints=[Capacity(), TimeShare(), TwinRows()])
    churn, resolver = Churn(6), Resolver(0)
    policy.allocate(churn.space, solver="highs", resume=resolver)
    assert (
        policy.allocate(churn.space, solver="highs", resume=resolver).rebuild == "TwinRows has rows with equal labels"
    )


def test_sifted_programs_say_so(monkeypatch) -> None:
    monkeypatch.setattr(sessions, "WORTH_SIFTING", 1)
    space = make_space([[6.0, 3.0], [4.0, 4.0], [9.0, 1.0]] * 2, [1] * 6, [1, 2], kept_beside=0.8, pair_threshold=1.0)
    blocks = [Capacity(), TimeShare(), PairedShares()]
    policy = Policy(objective=MaxMin(NormalizedThroughput()), constraints=blocks, solver="highs")
    assert policy.allocate(space, resume=Resolver(0)).rebuild == "columns are sifted"


class Refusing:
    """Takes a start and does nothing with it."""

    name = "refusing"
    capabilities = Capabilities(duals=True, incremental=True)

    def solve(self, form, options=SolverOptions(), warm_start=None, start=None):
        return get_solver("highs").solve(form, options)


def test_a_solver_that_does_not_take_its_start_is_named() -> None:
    churn, resolver = Churn(7), Resolver(0)
    policy = get_policy("max_min_fairness")
    policy.allocate(churn.space, solver=Refusing(), resume=resolver)
    again = policy.allocate(churn.space, solver=Refusing(), resume=resolver)
    assert (again.rebuild, again.resumed) == ("solver 'highs' did not take the start", 0)


@pytest.mark.parametrize("solver", ["auto", "highs"])
def test_a_start_that_leads_nowhere_is_given_up_and_the_answer_is_the_same(solver: str, monkeypatch) -> None:
    monkeypatch.setattr(highs_resume, "_MOST_ITERATIONS", 0)
    monkeypatch.setattr(highs_resume, "_ITERATIONS_A_ROW", 0.0)
    policy, churn, resolver = get_policy("max_min_fairness"), Churn(8), Resolver(0)
    policy.allocate(churn.space, solver=solver, resume=resolver)
    # GPUs of two types are gone, and no iteration is allowed beyond one a new row.
    churn.capacity = np.array([1, 6, 4])
    again = policy.allocate(churn.space, solver=solver, resume=resolver)
    assert again.rebuild == "highs did not get from the earlier answer to the optimum: Iteration limit reached"
    assert again.resumed == 0
    assert again.objective == pytest.approx(policy.allocate(churn.space, solver=solver).objective, rel=1e-7)


def _grown(before: int, after: int) -> tuple[bx.Allocation, bx.Allocation]:
    """Max-min fairness once the jobs of a cluster have become many more, from the answer for few and from nothing."""
    policy, resolver = get_policy("max_min_fairness"), Resolver()
    churn = Churn(3, jobs=before, gpus=before // 2, total=after)
    for _ in range(3):
        policy.allocate(churn.space, resume=resolver)
    churn.index = np.arange(after)
    return policy.allocate(churn.space, resume=resolver), policy.allocate(churn.space)


@pytest.mark.parametrize("after", [5100, 9000])
def test_a_large_program_that_has_changed_much_costs_few_iterations_and_one_solve_by_the_fastest_method(
    after: int, monkeypatch
) -> None:
    iterations = []

    def counted(form, highs):
        iterations.append(highs.getInfo().simplex_iteration_count)
        return answer(form, highs)

    answer = highs_resume.highs_answer
    monkeypatch.setattr(highs_resume, "highs_answer", counted)
    resumed, anew = _grown(4800, after)
    rows = resumed.program.num_rows
    assert rows > highs_resume.LARGE_ROWS
    assert iterations[-1] <= 2 * highs_resume.most_iterations(rows) < 0.3 * rows
    assert resumed.objective == pytest.approx(anew.objective, rel=1e-6)
    assert resumed.solver == (anew.solver if resumed.rebuild else "highs")
    assert anew.solver == "cvxpy:clarabel"


def test_a_large_program_does_not_begin_from_a_point_without_a_basis() -> None:
    policy, churn, resolver = get_policy("max_min_fairness"), Churn(5, jobs=5100, gpus=2000, total=5200), Resolver()
    first = policy.allocate(churn.space, resume=resolver)
    again = policy.allocate(churn.space, resume=resolver)
    assert first.solver == again.solver == "cvxpy:clarabel"
    assert again.rebuild == (
        "highs did not get from the earlier answer to the optimum: it has no basis, and the program is large"
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 100_000), with_basis=st.booleans())
def test_whatever_the_start_the_optimum_is_the_optimum(seed: int, with_basis: bool) -> None:
    forms = []

    class Recording:
        name = "recording"
        capabilities = Capabilities(duals=True)

        def solve(self, form, options=SolverOptions(), warm_start=None):
            forms.append(form)
            return get_solver("highs").solve(form, options)

    get_policy("max_min_fairness").allocate(Churn(seed, jobs=12).space, solver=Recording())
    form, random = forms[0], np.random.default_rng(seed)
    basis = None
    if with_basis:
        basis = Basis(
            random.integers(0, 4, form.num_columns).astype(np.int8),
            random.integers(0, 4, form.num_rows).astype(np.int8),
        )
    start = Start(
        random.normal(size=form.num_columns),
        random.normal(size=form.num_rows),
        random.random(form.num_columns) < 0.3,
        random.random(form.num_rows) < 0.3,
        basis,
    )
    cold = get_solver("highs").solve(form)
    warm = get_solver("highs").solve(form, start=start)
    assert warm.termination == "optimal"
    assert warm.objective == pytest.approx(cold.objective, rel=1e-7, abs=1e-9)


def test_what_has_become_impossible_is_an_error_as_ever() -> None:
    churn, resolver = Churn(9), Resolver(0)

    def policy(share: float) -> Policy:
        from bloxopt.formulations import MinimumShare

        return Policy(
            objective=MaxSum(EffectiveThroughput()),
            constraints=[Capacity(), TimeShare(), MinimumShare(share, of="isolated")],
        )

    policy(0.5).allocate(churn.space, solver="highs", resume=resolver)
    with pytest.raises(InfeasibleError):
        policy(20.0).allocate(churn.space, solver="highs", resume=resolver)
    again = policy(0.5).allocate(churn.space, solver="highs", resume=resolver)
    assert again.rebuild == ""


def test_a_watched_solver_takes_starts_too() -> None:
    churn, resolver = Churn(10), Resolver(0)
    with Watched("highs") as solver:
        for number in range(2):
            allocation = get_policy("max_min_fairness").allocate(churn.space, solver=solver, resume=resolver)
            assert allocation.resumed == number
            churn.step()


@pytest.fixture
def small_programs_too(monkeypatch) -> None:
    # The package has a function of the module's name.
    module = importlib.import_module("bloxopt.simulation.simulate")
    monkeypatch.setattr(module, "Resolver", lambda: Resolver(least_entries=0))


def _judged(trace, policy: str, cluster: str = "4xV100+4xP100+4xK80", **more):
    """A simulation in which every plan is compared with one from nothing."""
    worst = []

    def compare(allocation, allocate) -> None:
        cold = allocate(allocation.space)
        worst.append(abs(allocation.objective - cold.objective) / max(1e-9, abs(cold.objective)))

    result = bx.simulate(trace, cluster, policy, solver="highs", inspect=compare, **more)
    assert worst
    assert max(worst) < 1e-6
    return result


@pytest.mark.usefixtures("small_programs_too")
@pytest.mark.parametrize("policy", ["max_min_fairness", "finish_time_fairness"])
def test_nodes_that_fail_and_come_back_change_no_value(policy: str) -> None:
    trace = bx.load_trace("gavel-15")
    failures = bx.RandomFailures(mean_seconds_between_failures=8_000, mean_seconds_to_repair=2_000)
    result = _judged(trace, policy, "2x2xV100+2x2xP100+2x2xK80", failures=failures, seed=1)
    solved = result.rounds[result.rounds["solved"]]
    assert result.rounds["gpus_up"].nunique() > 2
    assert solved["rebuild"].iloc[0] == "first round"
    assert (solved["rebuild"] == "").mean() > 0.8
    assert result.jobs["finish"].notna().all()


@pytest.mark.usefixtures("small_programs_too")
def test_rates_that_change_with_phases_change_no_value() -> None:
    trace = bx.load_trace("shockwave-120").head(12)
    result = _judged(trace, "max_min_fairness")
    assert (result.rounds.loc[result.rounds["solved"], "rebuild"] == "").mean() > 0.8


@pytest.mark.usefixtures("small_programs_too")
def test_a_simulation_is_the_same_every_time() -> None:
    first, second = (bx.simulate("gavel-15", "4xV100+4xP100", "max_min_fairness", seed=3) for _ in range(2))
    assert first.jobs["finish"].tolist() == second.jobs["finish"].tolist()
    assert first.rounds["rebuild"].tolist() == second.rounds["rebuild"].tolist()


@pytest.mark.usefixtures("small_programs_too")
def test_an_interior_point_solver_gives_its_own_answers_in_the_preset_of_gavel() -> None:
    runs = [
        bx.simulate(
            "gavel-15",
            "2xV100+2xP100+2xK80",
            "max_min_fairness",
            options=PRESETS.get("gavel").with_(incremental=incremental),
        )
        for incremental in (True, False)
    ]
    assert runs[0].jobs["finish"].tolist() == runs[1].jobs["finish"].tolist()
    assert set(runs[0].rounds["rebuild"].dropna()) == {"solver 'cvxpy:clarabel' takes no start"}
    assert runs[1].rounds["rebuild"].isna().all()


def test_small_programs_are_solved_as_ever() -> None:
    runs = [
        bx.simulate("gavel-15", "4xV100+4xP100", "max_min_fairness", options=SimulationOptions(incremental=incremental))
        for incremental in (True, False)
    ]
    assert runs[0].jobs["finish"].tolist() == runs[1].jobs["finish"].tolist()
    assert set(runs[0].rounds["rebuild"].dropna()) == {"fewer than 2000 entries"}


@pytest.mark.usefixtures("small_programs_too")
def test_saved_rounds_have_the_reasons(tmp_path) -> None:
    result = bx.simulate("gavel-15", "4xV100+4xP100", "max_min_fairness", solver="highs")
    assert result.rounds["resumed"].sum() > 5
    loaded = load_result(save_result(result, tmp_path / "run"))
    for column in ("resumed", "rebuild"):
        assert loaded.rounds[column].tolist() == result.rounds[column].tolist()


def test_the_option_is_true_or_false() -> None:
    with pytest.raises(bx.BloxoptError, match="incremental is 1"):
        SimulationOptions(incremental=1)  # type: ignore[arg-type]
