"""Hierarchical fairness: against progressive filling written plainly, and the messages for trees that make no sense."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import PlainModel, make_space, normalised
from scipy.optimize import linprog

from bloxopt.errors import FormulationError
from bloxopt.formulations import Deadlines, GpusUsed, Lexicographic, MaxSum, Policy
from bloxopt.formulations.automatic import AutomaticPolicy, ByLoad
from bloxopt.formulations.policies import get_policy

# --- an oracle: Gavel's iteration, with the speeds of a tree worked out recursively and one LP per test ---


def speeds(tree, jobs_of, weights, stopped):
    """How fast each job rises: weights of live siblings share what their parent has; FIFO leaves serve the first."""

    def live(name):
        entity = tree[name]
        if "children" in entity:
            return any(live(child) for child in entity["children"])
        return any(i not in stopped for i in jobs_of[name])

    speed = {}

    def pour(names, amount):
        running = [name for name in names if live(name)]
        total = sum(tree[name]["weight"] for name in running)
        for name in running:
            part = amount * tree[name]["weight"] / total
            if "children" in tree[name]:
                pour(tree[name]["children"], part)
                continue
            waiting = [i for i in jobs_of[name] if i not in stopped]
            if tree[name].get("policy") == "fifo":
                speed[waiting[0]] = part
            else:
                whole = sum(weights[i] for i in waiting)
                for i in waiting:
                    speed[i] = part * weights[i] / whole

    pour([name for name in tree if tree[name].get("top")], 1.0)
    return speed


def progressive_filling(space, tree, jobs_of):
    """Levels of all jobs: raise all by one LP, then stop each that one more LP cannot raise beside the others'."""
    model = PlainModel(space)
    coefficients = normalised(space) * space.weight[:, None]
    m = space.num_jobs
    level, stopped = np.zeros(m), set()
    while len(stopped) < m:
        speed = speeds(tree, jobs_of, space.weight, stopped)
        rows = [np.append(row, 0.0) for row in model.rows]
        right = list(model.right)
        for i in range(m):
            rows.append(np.append(-model.row(i, coefficients[i]), speed.get(i, 0.0)))
            right.append(-level[i] + 1e-9)
        cost = np.zeros(m * model.k + 1)
        cost[-1] = -1.0
        bounds = [*model.bounds, (0, None)]
        result = linprog(cost, A_ub=np.array(rows), b_ub=right, bounds=bounds, method="highs")
        assert result.status == 0
        for i, rate in speed.items():
            level[i] += rate * result.x[-1]
        gain = {}
        for i in speed:
            floors = {k: level[k] * (1 - 1e-9) - 1e-9 for k in range(m) if k != i}
            most, _ = model.max_min(coefficients, [i], floors)
            gain[i] = most / max(level[i], 1e-3) - 1.0
        # HiGHS keeps rows to 1e-7 only: where nothing rises any more, the one that could rise least is stuck.
        least = min(gain, key=gain.get)
        stuck = {least} if result.x[-1] < 1e-6 else set()
        stopped |= stuck | {i for i, more in gain.items() if more <= 1e-5}
    return level


@st.composite
def trees(draw):
    """Spaces whose tenants hang in a tree of two or three levels, some leaves first in, first out."""
    count = draw(st.integers(2, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    types = draw(st.integers(1, 2))
    gpus = rng.choice([1, 1, 2], size=count)
    rates = rng.uniform(0.2, 20.0, size=(count, types))
    rates[:, 1:][rng.random((count, types - 1)) < 0.2] = 0.0
    tenants = [str(name) for name in rng.choice(["a", "b", "c", "d"], size=count)]
    space = make_space(
        rates,
        gpus,
        [int(gpus.max()) + draw(st.integers(0, 2)) for _ in range(types)],
        tenants=tenants,
        arrivals=np.sort(rng.uniform(0, 100, count)),
        weights=rng.choice([1.0, 2.0, 0.5], size=count),
    )
    policy = {name: draw(st.sampled_from(["fairness", "fifo"])) for name in "abcd"}
    weight = {name: draw(st.sampled_from([0.5, 1.0, 3.0])) for name in [*"abcd", "top", "mid"]}
    leaf = {name: {"weight": weight[name], "policy": policy[name]} for name in "abcd"}
    nested = {
        "a": leaf["a"],
        "top": {
            "weight": weight["top"],
            "children": {
                "b": leaf["b"],
                "mid": {"weight": weight["mid"], "children": {"c": leaf["c"], "d": leaf["d"]}},
            },
        },
    }
    plain = {
        "a": {**leaf["a"], "top": True},
        "top": {"weight": weight["top"], "children": ["b", "mid"], "top": True},
        "mid": {"weight": weight["mid"], "children": ["c", "d"]},
        **{name: leaf[name] for name in "bcd"},
    }
    names = [space.catalog.table.tenants[code] for code in space.tenant]
    jobs_of = {name: [i for i, owner in enumerate(names) if owner == name] for name in "abcd"}
    return space, nested, plain, jobs_of


@settings(max_examples=30, deadline=None)
@given(trees(), st.sampled_from(["highs", "cvxpy:clarabel"]))
def test_levels_equal_progressive_filling_one_job_at_a_time(instance, solver):
    space, nested, plain, jobs_of = instance
    expected = progressive_filling(space, plain, jobs_of)
    allocation = get_policy("hierarchical", entities=nested).allocate(space, solver=solver)
    np.testing.assert_allclose(allocation.levels, expected, rtol=2e-4, atol=2e-5)


def test_without_options_each_tenant_is_an_entity_of_weight_one():
    # Tenant a has three jobs, b one: each tenant gets half of the two GPUs, not each job a quarter.
    space = make_space([[1.0]] * 4, [1] * 4, [2], tenants=["a", "a", "a", "b"])
    np.testing.assert_allclose(get_policy("hierarchical").allocate(space).x, [1 / 3, 1 / 3, 1 / 3, 1.0], atol=1e-6)
    one = make_space([[1.0]] * 3, [1] * 3, [2])
    levels = get_policy("water_filling_max_min_fairness").allocate(one).levels
    np.testing.assert_allclose(get_policy("hierarchical").allocate(one).levels, levels, rtol=1e-6)


def test_weights_hold_on_every_level_and_fifo_serves_the_first():
    tenants = ["vision", "vision", "nlp", "product", "product"]
    space = make_space([[1.0]] * 5, [1] * 5, [3], tenants=tenants, arrivals=[0, 1, 2, 3, 4])
    tree = {
        "research": {"weight": 2, "children": {"vision": {"policy": "fifo"}, "nlp": {}}},
        "product": {"weight": 1},
    }
    x = get_policy("hierarchical", entities=tree).allocate(space).x
    # Research gets 2 of 3 GPUs: one for vision's first job, one for nlp; product's two jobs share the third.
    np.testing.assert_allclose(x, [1.0, 0.0, 1.0, 0.5, 0.5], atol=1e-6)


def test_what_a_full_entity_cannot_use_goes_to_its_siblings_first():
    space = make_space([[1.0]] * 6, [1] * 6, [4], tenants=["vision", "nlp", "nlp", "nlp", "product", "product"])
    tree = {"research": {"children": {"vision": 3.0, "nlp": 1.0}}, "product": 1.0}
    x = get_policy("hierarchical", entities=tree).allocate(space).x
    # Both entities get 2 GPUs; vision's part of research's is 1.5 GPUs, but it has one job.
    np.testing.assert_allclose(x, [1.0, 1 / 3, 1 / 3, 1 / 3, 1.0, 1.0], atol=1e-6)


def test_flat_tables_with_parents_are_the_same_tree():
    space = make_space([[1.0], [2.0], [3.0]], [1, 1, 1], [1], tenants=["a", "b", "c"])
    nested = {"up": {"weight": 2, "children": {"a": 1, "b": {"weight": 3}}}, "c": 1}
    flat = {"a": {"parent": "up"}, "b": {"parent": "up", "weight": 3}, "c": 1, "up": {"weight": 2}}
    grouped = {"up": {"weight": 2, "tenants": ["a", "b"]}, "others": {}}
    x = [get_policy("hierarchical", entities=tree).allocate(space).x for tree in (nested, flat)]
    np.testing.assert_allclose(x[0], x[1], atol=1e-9)
    np.testing.assert_allclose(x[0], [1 / 6, 1 / 2, 1 / 3], atol=1e-6)
    both = get_policy("hierarchical", entities=grouped, default="others").allocate(space).x
    np.testing.assert_allclose(both, [1 / 3, 1 / 3, 1 / 3], atol=1e-6)


LOOP: dict = {"a": {"weight": 1}}
LOOP["a"]["children"] = {"b": {"children": LOOP}}


@pytest.mark.parametrize(
    ("entities", "message"),
    [
        ({"a": {"parent": "b"}, "b": {"parent": "c"}, "c": {"parent": "a"}}, "'a' is its own ancestor"),
        ({"a": {"parent": "a"}}, "'a' is its own ancestor"),
        (LOOP, "'a' is below itself: a > b > a"),
        ({"a": {"parent": "boss"}}, "'a' has the parent 'boss'"),
        ({"a": {"weight": 0}}, "weight of entity 'a' is 0.0, must be > 0"),
        ({"a": -2}, "weight of entity 'a' is -2"),
        ({"a": {"weight": "much"}}, "weight of entity 'a' is 'much'"),
        ({"a": {"weight": float("nan")}}, "weight of entity 'a'"),
        ({"a": {"wieght": 1}}, "unknown key 'wieght'"),
        ({"a": {"policy": "lottery"}}, "policy of entity 'a' is 'lottery'"),
        ({"up": {"policy": "fifo", "children": {"a": 1}}}, "entity 'up' has entities below it"),
        ({"up": {"children": {"a": 1}}, "a": 2}, "entity 'a' appears twice"),
        ({"up": {"children": {"a": {"parent": "b"}}}, "b": 1}, "child of 'up' and has the parent 'b'"),
        ({"x": {"tenants": ["a"]}, "y": {"tenants": ["a"]}}, "tenant 'a' is in two entities, 'x' and 'y'"),
        ({"x": {"tenants": "a"}}, "tenants of entity 'x' is 'a'"),
        ({}, "no entities given"),
        (["a"], "entities"),
        ({"a": {"children": ["b"]}}, "must be a table"),
    ],
)
def test_trees_that_make_no_sense_are_named(entities, message):
    with pytest.raises(FormulationError, match=message):
        get_policy("hierarchical", entities=entities)


def test_tenants_outside_the_tree_are_an_error_or_have_a_default_leaf():
    space = make_space([[1.0], [1.0]], [1, 1], [1], tenants=["a", "stranger"])
    with pytest.raises(FormulationError, match="'stranger' has jobs but is in no entity"):
        get_policy("hierarchical", entities={"a": 1}).allocate(space)
    with pytest.raises(FormulationError, match="'stranger' has jobs but is not a leaf"):
        get_policy("hierarchical", entities={"stranger": {"children": {"a": 1}}}).allocate(space)
    with pytest.raises(FormulationError, match="default entity 'guests' is not a leaf; leaves are a"):
        get_policy("hierarchical", entities={"a": 1}, default="guests")
    tree = {"a": 3, "guests": {"weight": 1, "tenants": []}}
    x = get_policy("hierarchical", entities=tree, default="guests").allocate(space).x
    np.testing.assert_allclose(x, [0.75, 0.25], atol=1e-6)


def test_whoever_combines_a_tree_without_a_default_knows_whom_it_does_not_serve():
    tree, whole = {"a": 1, "b": {"children": {"c": 1}}}, {"default": "c"}
    assert get_policy("hierarchical").unserved == ""
    assert get_policy("hierarchical", entities=tree, **whole).unserved == ""
    alone = get_policy("hierarchical", entities=tree)
    assert (
        alone.unserved == "jobs of tenants that its tree does not name (it names 'a', 'c'): give default, such as 'a'"
    )
    staged = Policy(objective=Lexicographic([alone.objective, MaxSum(GpusUsed())]))
    chosen = AutomaticPolicy(candidates=[get_policy("fifo"), alone], rule=ByLoad([1.0]))
    assert staged.unserved == chosen.unserved == alone.unserved
    assert "impossible='drop'" in Policy(objective=MaxSum(GpusUsed()), constraints=[Deadlines()]).unserved
    assert Policy(objective=MaxSum(GpusUsed()), constraints=[Deadlines("drop")]).unserved == ""
