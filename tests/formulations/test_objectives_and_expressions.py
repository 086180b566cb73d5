"""How expressions and objectives combine, what they are worth, and which combinations are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from instances import PlainModel, make_space, normalised, spaces

from bloxopt.errors import FormulationError, SolverError
from bloxopt.formulations import (
    Affine,
    Capacity,
    ColumnValue,
    Cost,
    EffectiveThroughput,
    Expression,
    FinishTimeRatio,
    GpusUsed,
    Lexicographic,
    MaxMin,
    MaxSum,
    MinMax,
    NormalizedThroughput,
    OneConfiguration,
    Policy,
    Priority,
    RemainingTime,
    RestartPenalty,
    Restarts,
    TenantQuota,
    TimeFraction,
    TimeShare,
    Total,
    WaterFilling,
    per_job,
)
from bloxopt.formulations.expressions import build_expression
from bloxopt.formulations.orders.order_keys import Arrival
from bloxopt.solvers.base import Termination

SPACE = make_space(
    [[4, 2], [6, 0], [1, 1]], [1, 2, 1], [2, 3], tenants=["a", "b", "a"], weights=[1, 2, 1], steps=[100, 300, 50],
    gpu_type=[1, -1, 0], gpus=[1, 0, 1], restart_cost=36.0,
)  # fmt: skip
X = np.array([0.5, 0.25, 0.75, 0.25, 0.5])  # job-0 fast, job-0 mid, job-1 fast, job-2 fast, job-2 mid


def at(expression, space=SPACE, x=X):
    return build_expression(expression, space).at(x).tolist()


def test_expressions_measure_what_they_say():
    assert at(EffectiveThroughput()) == [2.5, 4.5, 0.75]
    assert at(TimeFraction()) == [0.75, 0.75, 0.75]
    assert at(GpusUsed()) == [0.75 + 1.5 + 0.75]
    assert at(GpusUsed(by="gpu_type")) == [0.5 + 1.5 + 0.25, 0.25 + 0.5]
    assert at(GpusUsed(by="tenant")) == [1.5, 1.5]
    assert at(GpusUsed(by="job")) == [0.75, 1.5, 0.75]
    assert at(Cost({"fast": 2.0, "MID": 1.0})) == [1.25, 3.0, 1.0]
    assert at(Total(Cost({"fast": 2.0, "mid": 1.0}))) == [5.25]
    assert at(Restarts()) == pytest.approx([36 * 0.75, 0.0, 36 * 0.75])
    assert at(Restarts(seconds=10)) == pytest.approx([7.5, 0.0, 7.5])
    assert at(RemainingTime()) == pytest.approx([100 / 2.5, 300 / 4.5, 50 / 0.75])
    assert at(ColumnValue(np.arange(5.0))) == [0.25, 1.5, 2.75]


def test_normalized_throughput_is_gavels_by_default_and_each_part_can_be_left_out():
    dense = np.zeros((3, 2))
    dense[SPACE.job, SPACE.gpu_type] = X
    assert at(NormalizedThroughput()) == pytest.approx((normalised(SPACE) * dense).sum(axis=1).tolist())
    plain = at(NormalizedThroughput(weighted=False, scale_by_gpus=False))
    assert plain == pytest.approx([2.5 / 2.8, 4.5 / 2.4, 0.75])
    assert at(NormalizedThroughput("fastest", weighted=False)) == pytest.approx([2.5 / 4, 2 * 4.5 / 6, 0.75])
    assert at(NormalizedThroughput(np.array([1.0, 2, 3]), weighted=False, scale_by_gpus=False)) == [2.5, 2.25, 0.25]
    isolated = at(NormalizedThroughput("isolated", weighted=False, scale_by_gpus=False))
    assert isolated == pytest.approx((np.array([2.5, 4.5, 0.75]) / SPACE.isolated_rate).tolist())


def test_the_finish_time_ratio_is_one_on_the_isolated_share_at_the_start():
    space = make_space([[4.0], [2.0]], [1, 1], [1], steps=[100, 200])
    assert at(FinishTimeRatio(), space, np.array([0.5, 0.5])) == pytest.approx([1.0, 1.0])
    assert at(FinishTimeRatio(), space, np.array([0.0, 1.0]))[0] == np.inf


def test_expressions_add_subtract_scale_and_weigh_per_job():
    throughput, share = EffectiveThroughput(), TimeFraction()
    assert at(2 * throughput - share) == [2 * 2.5 - 0.75, 2 * 4.5 - 0.75, 0.75]
    assert at(1.0 - share / 3) == [0.75, 0.75, 0.75]
    assert at(throughput * np.array([1.0, 0.0, 2.0])) == [2.5, 0.0, 1.5]
    assert at(np.array([1.0, 0.0, 2.0]) * throughput) == [2.5, 0.0, 1.5]
    assert at(throughput * {"job-1": 3.0}) == [2.5, 13.5, 0.75]
    assert at(2 * RemainingTime() + 1) == pytest.approx([81, 2 * 300 / 4.5 + 1, 100 / 0.75 + 1])


def test_a_users_expression_is_a_class_with_build_or_a_plain_function():
    class FastTime(Expression):
        def build(self, space):
            return 1.0 * (space.gpu_type == 0)

    def on_mid(space):
        return per_job(space, 1.0 * (space.gpu_type == 1))

    assert at(FastTime()) == [0.5, 0.75, 0.25]
    assert at(on_mid) == [0.25, 0.0, 0.5]
    total = Policy(objective=MaxSum(lambda space: np.ones(space.num_columns))).allocate(SPACE).objective
    assert total == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (lambda space: np.ones(3), r"shape \(3,\), expected one per column: \(5,\)"),
        (lambda space: np.full(5, np.nan), "not a finite number"),
        (lambda space: "no", "gave str"),
        (EffectiveThroughput, "add parentheses"),
        (3, "not an expression"),
        (EffectiveThroughput() * np.ones(2), "3 finite numbers, one per row"),
        (EffectiveThroughput() * {"job-9": 1.0}, "'job-9', which is not in the trace"),
        (GpusUsed() * {"job-1": 1.0}, "a row per job"),
        (EffectiveThroughput() * float("nan"), "weight is nan"),
        (EffectiveThroughput() + GpusUsed(), "cannot add expressions of 3 and 1 rows"),
        (RemainingTime() + EffectiveThroughput(), "a reciprocal expression can only be scaled"),
        (-1 * RemainingTime(), "negative number"),
        (GpusUsed(by="rack"), "by is 'rack'"),
        (NormalizedThroughput("best"), "reference is 'best'"),
        (NormalizedThroughput(np.ones(2)), "3 finite steps/s"),
        (Restarts(seconds=-1), "seconds is -1"),
    ],
)
def test_expressions_that_make_no_sense_are_refused(expression, message):
    with pytest.raises(FormulationError, match=message):
        at(expression)


def test_a_sum_of_objectives_trades_them_off():
    fair, total = MaxMin(NormalizedThroughput()), MaxSum(TimeFraction())
    mixed = Policy(objective=2 * fair + 0.1 * total).allocate(SPACE)
    smallest = min(at(NormalizedThroughput(), x=mixed.x))
    assert mixed.objective == pytest.approx(2 * smallest + 0.1 * mixed.x.sum(), rel=1e-6)
    assert mixed.objective >= 2 * Policy(objective=fair).allocate(SPACE).objective - 1e-9


def test_a_restart_penalty_keeps_jobs_where_they_are_when_nothing_is_lost():
    space = make_space([[2, 2], [2, 2]], [1, 1], [1, 1], gpu_type=[1, 0], gpus=[1, 1], restart_cost=30.0)
    policy = Policy(objective=MaxMin(NormalizedThroughput()) - 0.05 * RestartPenalty())
    np.testing.assert_allclose(policy.allocate(space).time_share, [[0, 1], [1, 0]], atol=1e-6)
    gone = RestartPenalty().utility(space, np.zeros(4))
    assert gone == pytest.approx(2 * 30 / 360)
    assert RestartPenalty(seconds=90).utility(space, np.zeros(4)) == pytest.approx(0.5)


def test_concave_terms_take_no_negative_weight():
    with pytest.raises(FormulationError, match="MaxMin has weight -1"):
        MaxSum(TimeFraction()) - MaxMin(NormalizedThroughput())
    with pytest.raises(FormulationError, match="MinMax has weight -2"):
        -2 * MinMax(GpusUsed(by="gpu_type"))
    with pytest.raises(FormulationError, match="weight is nan"):
        float("nan") * MaxSum(TimeFraction())


@pytest.mark.parametrize("staged", [WaterFilling(NormalizedThroughput()), Priority(Arrival())], ids=["wf", "priority"])
def test_staged_objectives_do_not_add(staged):
    with pytest.raises(FormulationError, match=f"{type(staged).__name__}.*Lexicographic"):
        staged + MaxSum(TimeFraction())


def test_reciprocals_belong_in_min_max_alone():
    for objective in (MaxSum(RemainingTime()), MaxMin(RemainingTime()), WaterFilling(RemainingTime())):
        with pytest.raises(FormulationError, match="RemainingTime is a reciprocal"):
            Policy(objective=objective).allocate(SPACE)
    with pytest.raises(FormulationError, match=r"MinMax\(RemainingTime\) cannot be a term of a sum"):
        Policy(objective=MinMax(RemainingTime()) - 0.1 * RestartPenalty()).allocate(SPACE)


def test_what_is_not_an_objective_is_refused_with_the_way_out():
    with pytest.raises(FormulationError, match="wrap it in MaxMin"):
        Policy(objective=EffectiveThroughput())
    with pytest.raises(FormulationError, match="add parentheses"):
        Policy(objective=Priority)
    with pytest.raises(FormulationError, match="wrap it in MaxSum"):
        MaxSum(TimeFraction()) + EffectiveThroughput()
    with pytest.raises(FormulationError, match="not an Objective"):
        Policy(objective="max_min")


def test_min_max_of_an_affine_expression_reports_the_largest_value():
    space = make_space([[2, 1], [2, 1]], [1, 1], [2, 2])
    needed = [Capacity(), TimeShare()]
    busy = MaxSum(TimeFraction())
    allocation = Policy(objective=Lexicographic([busy, MinMax(GpusUsed(by="gpu_type"))]), constraints=needed).allocate(
        space
    )
    assert allocation.objective == pytest.approx(2.0, rel=1e-5)
    assert max(at(GpusUsed(by="gpu_type"), space, allocation.x)) == pytest.approx(1.0, abs=1e-5)
    assert Policy(objective=MinMax(GpusUsed(by="gpu_type"))).allocate(space).objective == pytest.approx(0.0, abs=1e-7)


@settings(max_examples=25, deadline=None)
@given(spaces(with_state=True))
def test_lexicographic_keeps_the_first_and_then_does_its_best_for_the_second(space):
    first = Policy(objective=MaxMin(NormalizedThroughput())).allocate(space)
    both = Policy(objective=Lexicographic([MaxMin(NormalizedThroughput()), MaxSum(EffectiveThroughput())])).allocate(
        space
    )
    model = PlainModel(space)
    coefficients = normalised(space)
    rows = [model.row(i, coefficients[i]) for i in range(space.num_jobs)]
    best = model.maximise(space.requested_rate.ravel(), rows, [first.objective * (1 - 1e-6)] * space.num_jobs)
    assert both.objective >= first.objective * (1 - 3e-6)
    assert both.throughput.sum() == pytest.approx(-best.fun, rel=1e-5)


@pytest.mark.parametrize(
    "first", [MinMax(RemainingTime()), MinMax(FinishTimeRatio()), WaterFilling(NormalizedThroughput())], ids=repr
)
def test_staged_objectives_can_come_first_in_an_order(first):
    space = make_space([[4, 2], [6, 1], [1, 1]], [1, 2, 1], [1, 2], steps=[100, 300, 50])
    alone = Policy(objective=first).allocate(space)
    both = Policy(objective=Lexicographic([first, MaxSum(TimeFraction())])).allocate(space)
    assert both.objective == pytest.approx(alone.objective, rel=1e-5)
    assert both.x.sum() >= alone.x.sum() - 1e-5


def test_priority_first_then_fill_what_is_left():
    space = make_space([[3.0], [3.0], [3.0]], [1, 4, 1], [4])
    both = Policy(objective=Lexicographic([Priority(Arrival()), MaxSum(TimeFraction())])).allocate(space)
    assert both.x.tolist() == pytest.approx([1.0, 0.0, 0.0]), "job-2 may not pass job-1, so stays as Priority left it"


def test_an_integer_min_max_is_exact():
    space = make_space([[4, 2], [6, 1], [5, 5]], [1, 1, 1], [1, 2], steps=[100, 300, 50])
    policy = Policy(objective=MinMax(RemainingTime()), constraints=[Capacity(), OneConfiguration()])
    allocation = policy.allocate(space)
    # job-1 must have the fast GPU (50 s); then job-0 takes 50 s on a slow one.
    assert allocation.objective == pytest.approx(50.0)
    assert set(allocation.x.tolist()) <= {0.0, 1.0}
    assert allocation.bound == pytest.approx(50.0, rel=1e-5)


def test_a_job_that_can_get_nothing_is_named():
    space = make_space([[1.0], [1.0]], [1, 1], [2], tenants=["a", "b"])
    policy = Policy(objective=MinMax(RemainingTime()), constraints=[Capacity(), TimeShare(), TenantQuota({"b": 0})])
    with pytest.raises(SolverError, match="job-1"):
        policy.allocate(space)


def test_jobs_that_cannot_run_now_take_no_part():
    space = make_space([[2.0, 1.0], [3.0, 0.0]], [1, 1], [1, 1])
    space.capacity = np.array([0, 1])
    assert space.runnable.tolist() == [True, False]
    allocation = Policy(objective=MaxMin(NormalizedThroughput())).allocate(space)
    assert allocation.objective == pytest.approx(1.0 / 1.5)
    assert Policy(objective=MinMax(FinishTimeRatio())).allocate(space).termination is Termination.OPTIMAL
    assert Policy(objective=Priority(Arrival())).allocate(space).x.tolist() == [1.0]


def test_nothing_to_allocate_is_an_empty_allocation():
    space = make_space([[2.0]], [1], [1])
    space.capacity = np.array([0])
    allocation = Policy(objective=MaxMin(NormalizedThroughput())).allocate(space)
    assert (len(allocation.x), allocation.objective, allocation.num_solves) == (0, 0.0, 0)
    assert allocation.time_share.shape == (1, 1)


def test_affine_rows_that_do_not_fit_are_refused():
    class Broken(Expression):
        def build(self, space):
            return Affine(np.array([0]), np.array([99]), np.ones(1), np.zeros(1))

    from bloxopt.formulations import Constraint, Limit

    class BrokenBlock(Constraint):
        def limits(self, space):
            return [Limit(Broken(), upper=1.0)]

    with pytest.raises(FormulationError, match="BrokenBlock: a row refers to a column outside"):
        Policy(objective=MaxSum(TimeFraction()), constraints=[BrokenBlock()]).allocate(SPACE)
