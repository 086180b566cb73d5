"""What users write into blocks fails with one message that names the block, the place and what is expected."""

import inspect
from fractions import Fraction

import numpy as np
import pytest
from instances import make_space

from bloxopt.errors import BloxoptError, FormulationError, InputError, SolverError, UnknownNameError
from bloxopt.formulations import (
    Affine,
    AllocationSpace,
    Arrival,
    AttainedService,
    Budget,
    Capacity,
    ColumnValue,
    Constraint,
    Cost,
    EffectiveThroughput,
    Expression,
    Lexicographic,
    Limit,
    MaxMin,
    MaxSum,
    NormalizedThroughput,
    Objective,
    OrderKey,
    Policy,
    Priority,
    RestartPenalty,
    SpreadPenalty,
    TimeFraction,
    TimeShare,
    Total,
    WaterFilling,
)
from bloxopt.formulations.policies import get_policy
from bloxopt.jobs import Job
from bloxopt.solvers import SolverOptions


@pytest.fixture(scope="module")
def space():
    return make_space([[4.0, 1.0], [3.0, 2.0], [2.0, 2.0]], [1, 2, 1], [2, 2])


def bad_values():
    """Values that are no array of one number per row, and never mean one."""
    return [None, "x", ["1", "2", "3"], {"a": 1}, 1j, np.array([1j, 2, 3]), [[1.0, 2.0, 3.0]], object(), [None, 1, 2]]


def allocate(space, *constraints, objective=None):
    blocks = [Capacity(), TimeShare(), *constraints]
    return Policy(objective=objective or MaxSum(EffectiveThroughput()), constraints=blocks).allocate(space)


# --- expressions --------------------------------------------------------------------------------------------------


class Raises(Expression):
    def build(self, space):
        return {}["missing"]


def test_an_expression_that_raises_is_named_with_the_line_and_keeps_its_cause(space):
    line = inspect.getsourcelines(Raises.build)[1] + 1
    with pytest.raises(
        FormulationError, match=rf"expression Raises: build.*KeyError.*test_user_code.py, line {line}"
    ) as e:
        allocate(space, objective=MaxSum(Raises()))
    assert isinstance(e.value.__cause__, KeyError)


@pytest.mark.parametrize(
    "wrap", [MaxSum, MaxMin, WaterFilling, lambda e: MaxSum(Total(e)), lambda e: MaxSum(2 * e + 1)]
)
def test_an_expression_that_raises_is_named_wherever_it_stands(space, wrap):
    with pytest.raises(FormulationError, match="expression Raises"):
        allocate(space, objective=wrap(Raises()))


@pytest.mark.parametrize("value", [*bad_values(), 3.0, [1.0, 2.0]])
@pytest.mark.parametrize("place", ["objective", "limit"])
def test_what_is_not_one_coefficient_per_column_is_refused(space, value, place):
    def mine(space):
        return value

    class Block(Constraint):
        def limits(self, space):
            return [Limit(mine, upper=1.0)]

    constraints, objective = ([], MaxSum(mine)) if place == "objective" else ([Block()], None)
    with pytest.raises(FormulationError, match="expression mine"):
        allocate(space, *constraints, objective=objective)


@pytest.mark.parametrize(
    ("affine", "message"),
    [
        (Affine(np.array([5]), np.array([0]), np.ones(1), np.zeros(1)), "outside its 1 rows"),
        (Affine(np.array([0, 0]), np.array([0]), np.ones(1), np.zeros(1)), "each entry needs all three"),
        (Affine(np.array([0]), np.array([0]), np.array([1j]), np.zeros(1)), "must be finite numbers"),
        (Affine(np.array([0]), np.array([0]), np.array([np.nan]), np.zeros(1)), "not a finite number"),
    ],
)
def test_an_affine_that_does_not_fit_together_is_refused(space, affine, message):
    with pytest.raises(FormulationError, match=message):
        allocate(space, objective=MaxSum(lambda space: affine))


def test_whole_numbers_truth_values_and_fractions_are_numbers(space):
    ones = [1] * space.num_columns
    expected = allocate(space, objective=MaxSum(ColumnValue(np.ones(space.num_columns)))).objective
    for value in (ones, np.ones(space.num_columns, bool), [Fraction(1)] * space.num_columns):
        assert allocate(space, objective=MaxSum(lambda space, value=value: value)).objective == pytest.approx(expected)


@pytest.mark.parametrize(
    "make", [lambda e: e / 0, lambda e: e / "x", lambda e: e - "x", lambda e: e - None, lambda e: e / e]
)
def test_arithmetic_with_what_is_no_number_is_refused(make):
    with pytest.raises(FormulationError):
        make(EffectiveThroughput())


@pytest.mark.parametrize(
    "weights", ["x", 1j, True, [1.0], np.array([1j, 2, 3]), {"job-0": "x"}, {"job-9": 1.0}, np.nan]
)
def test_weights_that_are_no_numbers_are_refused(space, weights):
    with pytest.raises(FormulationError, match="weight"):
        allocate(space, objective=MaxSum(EffectiveThroughput() * weights))


def test_sums_of_lists_work_as_in_python(space):
    e = EffectiveThroughput()
    twice = allocate(space, objective=MaxSum(sum([e, e]))).objective
    assert twice == pytest.approx(allocate(space, objective=sum([MaxSum(e), MaxSum(e)])).objective)
    assert twice == pytest.approx(2 * allocate(space, objective=MaxSum(e)).objective)
    with pytest.raises(FormulationError, match="objectives add to objectives"):
        sum([MaxSum(e)], 1)


# --- constraints ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["lower", "upper"])
@pytest.mark.parametrize("value", [*bad_values(), np.nan, np.ones(2), np.array([1.0, np.nan, 1.0])])
def test_a_bound_that_is_not_one_number_per_row_is_refused(space, side, value):
    class Mine(Constraint):
        def limits(self, space):
            return [Limit(TimeFraction(), **{side: value})]

    with pytest.raises(FormulationError, match=rf"constraint block Mine: {side} of a Limit"):
        allocate(space, Mine())
    with pytest.raises(FormulationError, match=rf"constraint block Mine: {side} of a Limit"):
        Mine().violations(space, np.zeros(space.num_columns))


@pytest.mark.parametrize("value", [None, 3, Limit(TimeFraction()), ["x"], [None], "x", {"a": 1}, [TimeFraction()]])
def test_limits_that_are_no_list_of_limits_are_refused(space, value):
    class Mine(Constraint):
        def limits(self, space):
            return value

    with pytest.raises(FormulationError, match=r"constraint block Mine: limits\(space\) gave .* must be a"):
        allocate(space, Mine())
    with pytest.raises(FormulationError, match=r"constraint block Mine: limits\(space\) gave"):
        Policy(objective=MaxSum(EffectiveThroughput()), constraints=[Capacity(), Mine()]).round_limits(space)


@pytest.mark.parametrize("method", ["limits", "build", "violations", "labels"])
def test_a_block_whose_method_raises_is_named(space, method):
    def fail(self, space, *more):
        raise RuntimeError("no luck")

    class Tight(Constraint):
        def limits(self, space):
            yield Limit(TimeFraction(), upper=0.5)

    mine = type("Mine", (Tight,), {method: fail})()
    with pytest.raises(FormulationError, match=rf"constraint block Mine: {method}\(.*RuntimeError: no luck .*line"):
        _ = allocate(space, mine).violations


@pytest.mark.parametrize("value", [None, "x", [[1.0]], 1j])
def test_violations_of_the_wrong_kind_are_named(space, value):
    class Mine(Constraint):
        def limits(self, space):
            return []

        def violations(self, space, x):
            return value

    with pytest.raises(FormulationError, match=r"constraint block Mine: (what )?violations"):
        allocate(space, Mine())


def test_prices_of_gpu_types_that_the_cluster_does_not_have_are_refused(space):
    prices = {"fast": 2.0, "mid": 1.0, "fst": 3.0}
    for use in (
        lambda: allocate(space, Budget(5.0, prices)),
        lambda: allocate(space, objective=-1 * MaxSum(Cost(prices))),
    ):
        with pytest.raises(
            FormulationError, match="price of GPU type 'fst', which the cluster does not have; it has fast, mid"
        ):
            use()
    with pytest.raises(FormulationError, match="SpreadPenalty: weight of GPU type 'fst'"):
        SpreadPenalty({"fst": 1.0}).utility(space, np.zeros(space.num_columns))
    for value in (3, None, {"fast": "x"}):
        with pytest.raises(FormulationError, match="Cost"):
            Cost(value)


# --- orders --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [*bad_values(), 1.0, [1.0, 2.0], [1.0, np.nan, 2.0]])
def test_a_key_that_is_not_one_number_per_job_is_refused(space, value):
    class Mine(OrderKey):
        def key(self, space):
            return value

    for order in (Mine(), [Arrival(), Mine()]):
        with pytest.raises(FormulationError, match=r"order key Mine: .*(must be|NaN)"):
            allocate(space, objective=Priority(order))


def test_a_key_that_raises_or_is_missing_is_named(space):
    class Mine(OrderKey):
        def key(self, space):
            return 1 / 0

    class Empty(OrderKey):
        pass

    with pytest.raises(FormulationError, match=r"order key Mine: key.*ZeroDivisionError.*line"):
        allocate(space, objective=Priority(Mine()))
    with pytest.raises(FormulationError, match=r"order key Empty does not say what it sorts by: override key\(space\)"):
        allocate(space, objective=Priority(Empty()))


def test_infinite_and_whole_keys_are_numbers(space):
    for value, last in (([1, 3, 2], 1), ([np.inf, 1.0, -np.inf], 0), ([False, False, True], 2)):
        order = type("Mine", (OrderKey,), {"key": lambda self, space, value=value: value})()
        assert Priority(order).rank(space)[-1] == last


@pytest.mark.parametrize("order", [None, 3, "arrival", [], ["x"], Arrival, [Arrival], lambda space: space.arrival])
def test_an_order_that_is_no_key_is_refused(order):
    with pytest.raises(FormulationError, match="Priority"):
        Priority(order)


# --- objectives and policies ---------------------------------------------------------------------------------------


def test_objectives_of_users_that_fail_or_give_something_else_are_named(space):
    def objective(**methods):
        return type("Mine", (Objective,), methods)()

    def fail(self, *more):
        raise RuntimeError("no luck")

    for value in (None, 3.0, np.ones(3), EffectiveThroughput().build(space)):
        with pytest.raises(FormulationError, match=r"objective Mine: terms\(space, program\) gave"):
            allocate(space, objective=objective(terms=lambda self, space, program, value=value: value))
    for methods in ({"terms": fail}, {"solve": fail}, {"solve": lambda self, session: 3}):
        with pytest.raises(FormulationError, match=r"objective Mine: (terms|solve)"):
            allocate(space, objective=objective(**methods))
    row = EffectiveThroughput().build(space).total()
    with pytest.raises(FormulationError, match=r"objective Mine: utility.*no luck"):
        allocate(space, objective=objective(terms=lambda self, space, program: row, utility=fail))


def test_a_solver_of_the_user_that_fails_is_named(space):
    class Mine:
        name = "mine"

        def __init__(self, answer):
            self.answer = answer

        def solve(self, form, options=SolverOptions(), warm_start=None):
            return self.answer()

    fair = MaxMin(NormalizedThroughput())
    for answer in (lambda: 1 / 0, lambda: None, lambda: "x"):
        with pytest.raises(SolverError, match="solver 'mine'"):
            Policy(objective=fair, solver=Mine(answer)).allocate(space)


FIELDS = [
    ("solver", [3, None, object(), ["highs"]]),
    ("options", [3, None, "x", {"time_limit": 3}]),
    ("name", [3, None, ""]),
    ("description", [3, None]),
    ("heterogeneity_aware", ["x", 3, None]),
    ("constraints", [3, "Capacity", Capacity(), [3], [Capacity]]),
]


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in FIELDS for value in values])
def test_a_field_of_a_policy_of_the_wrong_kind_is_refused_at_once(field, value):
    with pytest.raises(BloxoptError, match=r"solver|options|name|description|heterogeneity|constraint"):
        Policy(objective=MaxSum(EffectiveThroughput()), **{field: value})
    with pytest.raises(BloxoptError):
        get_policy("fifo", **{field: value})


def test_an_unknown_solver_is_refused_at_once_with_a_suggestion():
    for make in (
        lambda: Policy(objective=MaxSum(EffectiveThroughput()), solver="hihgs"),
        lambda: get_policy("las", solver="hihgs"),
    ):
        with pytest.raises(UnknownNameError, match="did you mean 'highs'"):
            make()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fifo", {"backfill": "x"}),
        ("las", {"gpu_weighted": 3}),
        ("srtf", {"backfill": None}),
        ("fifo", {"objective": 3}),
        ("fifo", {"weight": 3}),
    ],
)
def test_options_of_a_registered_policy_of_the_wrong_kind_are_refused(name, options):
    with pytest.raises(FormulationError):
        get_policy(name, **options)


@pytest.mark.parametrize("objective", [None, 3, "x", [MaxSum(EffectiveThroughput())], MaxSum, EffectiveThroughput()])
def test_an_objective_of_the_wrong_kind_is_refused(objective):
    with pytest.raises(FormulationError, match="objective"):
        Policy(objective=objective)
    with pytest.raises(FormulationError, match="Lexicographic"):
        Lexicographic(objective if not isinstance(objective, list) else 3)


@pytest.mark.parametrize("value", [None, 3, "gavel-15", [1]])
def test_allocate_takes_a_space_and_says_how_to_make_one(value):
    with pytest.raises(FormulationError, match=r"allocate takes an AllocationSpace.*from_jobs\(jobs, cluster\)"):
        get_policy("max_min_fairness").allocate(value)


def test_overrides_of_allocate_are_checked(space):
    policy = get_policy("max_min_fairness")
    for options in (3, "x", {"time_limit": 1}):
        with pytest.raises(FormulationError, match="SolverOptions"):
            policy.allocate(space, options=options)
    with pytest.raises(InputError, match="solver is 3"):
        policy.allocate(space, solver=3)
    with pytest.raises(UnknownNameError, match="did you mean 'highs'"):
        policy.allocate(space, solver="hihgs")


# --- the space -----------------------------------------------------------------------------------------------------

JOBS = [Job(job_id="a", duration=100.0), Job(job_id="b", duration=50.0, num_gpus=2)]


@pytest.mark.parametrize("jobs", [None, 3, JOBS[0], [1], [JOBS[0], None], "no-such-trace", [], {"a": 1}, object()])
def test_what_are_no_jobs_is_refused(jobs):
    with pytest.raises(InputError, match=r"job|trace"):
        AllocationSpace.from_jobs(jobs, "4xV100")


def test_the_name_of_a_trace_loads_it():
    assert AllocationSpace.from_jobs("gavel-15", "8xV100+8xP100+8xK80").num_jobs == 15


@pytest.mark.parametrize(
    ("argument", "value"),
    [(name, value) for name in ("now", "round_seconds") for value in ("x", np.nan, np.inf, True, [1.0], 1j)]
    + [("round_seconds", 0), ("round_seconds", -360.0), ("round_seconds", None)],
)
def test_times_that_are_no_times_are_refused(argument, value):
    with pytest.raises(InputError, match=f"{argument} is"):
        AllocationSpace.from_jobs(JOBS, "4xV100", **{argument: value})


STATES = [
    ("remaining_steps", [np.nan, -1.0, np.inf, "x", None, [1.0], [1.0, 2.0, 3.0], [[1.0, 2.0]], 1j]),
    ("attained_service", [np.nan, -1.0, "x", [1.0, -1.0]]),
    ("gpu_type", [-2, 1, 0.5, "V100", [0]]),
    ("gpus", [-1, 0.5, np.nan]),
    ("nodes", [0, "x"]),
    ("remaining", [1.0]),
    ("status", [1]),
    ("active", [1]),
    ("table", [None]),
]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in STATES for value in values])
def test_state_that_makes_no_sense_is_refused(name, value):
    with pytest.raises(InputError, match=name):
        AllocationSpace.from_jobs(JOBS, "4xV100", **{name: value})


def test_state_that_makes_sense_is_taken():
    space = AllocationSpace.from_jobs(
        JOBS, "4xV100", now=np.float64(5.0), remaining_steps=[3, np.int64(4)], gpu_type=[-1, 0], attained_seconds=2.0
    )
    assert space.remaining_steps.tolist() == [3.0, 4.0]
    assert space.attained_seconds.tolist() == [2.0, 2.0]
    assert space.current_num_gpus.tolist() == [0, 2]
    assert space.is_current.sum() == 1


# --- progress ------------------------------------------------------------------------------------------------------


def test_blocks_of_users_are_asked_every_round_unless_they_say_otherwise():
    class Silent(Constraint):
        def limits(self, space):
            return []

    class Steady(Silent):
        progress_dependent = False

    class Changed(Capacity):
        def limits(self, space):
            return []

    class Renamed(Capacity):
        pass

    fair = MaxMin(NormalizedThroughput())
    for block, expected in ((Silent(), True), (Steady(), False), (Changed(), True), (Renamed(), False)):
        assert Policy(objective=fair, constraints=[Capacity(), block]).progress_dependent is expected


def test_objectives_depend_on_progress_as_their_expressions_do():
    def mine(space):
        return np.ones(space.num_columns)

    class Own(Expression):
        def build(self, space):
            return np.ones(space.num_columns)

    class Steady(Own):
        progress_dependent = False

    steady = [EffectiveThroughput(), Steady(), 2 * Steady(), Steady() + EffectiveThroughput(), Total(Steady())]
    moving = [mine, Own(), 2 * Own(), Own() + EffectiveThroughput(), EffectiveThroughput() - Own(), Total(mine)]
    for wrap in (MaxSum, MaxMin, WaterFilling):
        assert not any(wrap(expression).progress_dependent for expression in steady)
        assert all(wrap(expression).progress_dependent for expression in moving)
    assert (MaxSum(Own()) - RestartPenalty()).progress_dependent
    assert not (MaxSum(Steady()) - RestartPenalty()).progress_dependent
    assert Lexicographic([MaxSum(Steady()), MaxSum(mine)]).progress_dependent
    assert Priority(type("Key", (OrderKey,), {"key": lambda self, space: space.arrival})()).progress_dependent
    assert not Priority(Arrival()).progress_dependent
    assert Priority([Arrival(), AttainedService()]).progress_dependent
    assert type("Own", (Objective,), {"terms": lambda self, space, program: None})().progress_dependent
