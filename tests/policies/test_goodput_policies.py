"""Pollux and Sia against enumeration and programs of their own, and what their blocks promise."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

import bloxopt as bx
from bloxopt.errors import BloxoptError
from bloxopt.formulations import (
    AfterRestart,
    AllocationSpace,
    Capacity,
    EffectiveThroughput,
    MaxSum,
    NodeShapes,
    OneConfiguration,
    Policy,
    ScaleUpLimit,
    Speedup,
)
from bloxopt.formulations.policies import get_policy
from bloxopt.jobs import Job
from bloxopt.simulation.failures import Outage
from bloxopt.solvers.base import SolverOptions
from bloxopt.throughput import TableThroughput

EXACT = SolverOptions(mip_gap=1e-9)
NOW = 600.0


def elastic_space(seed, count, types, cluster, most=8, running=0.5, rigid=0.0):
    """Jobs with random concave rates, some of them running, arrived within the last 10 minutes."""
    rng = np.random.default_rng(seed)
    names = ["t4", "v100", "a100"][:types]
    asked = rng.choice([1, 2, 4], count)
    fixed = rng.random(count) < rigid
    jobs = [
        Job(
            job_id=f"j{i}", job_type=f"m{i}", arrival=float(rng.uniform(0, NOW - 60)), total_steps=1e4,
            num_gpus=int(asked[i]) if fixed[i] else 1, max_gpus=None if fixed[i] else most,
        )
        for i in range(count)
    ]  # fmt: skip
    table = {}
    for i in range(count):
        power = rng.uniform(0.3, 1.0)
        for name in names:
            speed = rng.uniform(0.5, 3.0)
            table.update({(f"m{i}", name, n): float(speed * n**power) for n in range(1, most + 1)})
    space = AllocationSpace.from_jobs(jobs, cluster, TableThroughput(table), now=NOW)
    runs = np.flatnonzero(rng.random(count) < running)
    for row in runs.tolist():
        columns = np.flatnonzero((space.job == row) & (space.num_gpus <= 2))
        if len(columns):
            column = rng.choice(columns)
            space.ledger.gpu_type[row], space.ledger.gpus[row] = space.gpu_type[column], space.num_gpus[column]
            space.ledger.restarts[row] = rng.integers(0, 5)
    return AllocationSpace(space.catalog, space.ledger, space.index, now=NOW)


def published_goodput(space, restart_seconds=30.0):
    """Sia's normalised goodputs less its restart factor, job by job as its paper writes them."""
    value = np.empty(space.num_columns)
    for job in range(space.num_jobs):
        mine = np.flatnonzero(space.job == job)
        least = mine[np.lexsort((space.num_gpus[mine], space.rate[mine]))[0]]
        goodput = space.rate[mine] / space.rate[least] * space.num_gpus[least]
        age, restarts = NOW - space.arrival[job], space.ledger.restarts[space.index[job]]
        factor = max(age - restarts * restart_seconds, 0.0) / (age + restart_seconds)
        if space.running[job] and age >= restart_seconds:
            goodput = np.where(space.is_current[mine], goodput, factor * goodput)
        value[mine] = np.maximum(goodput, 3000.0**-2)  # no cost above 3,000
    return value


def in_shape(space, column, node):
    gpus = int(space.num_gpus[column])
    return gpus in (1, 2, 4) if gpus < node else gpus % node == 0


def sia_cost(space, allocation):
    """The published objective of what was allocated."""
    chosen = np.flatnonzero(allocation.x > 0.5)
    return float((published_goodput(space)[chosen] ** -0.5).sum() + 1.1 * (space.num_jobs - len(chosen)))


def enumerated(space, allowed, cost, none):
    """Least cost over all choices of an allowed column or none for each job."""
    options = [[-1, *np.flatnonzero((space.job == job) & allowed)] for job in range(space.num_jobs)]
    best = np.inf
    for choice in itertools.product(*options):
        columns = [column for column in choice if column >= 0]
        used = np.bincount(space.gpu_type[columns], space.num_gpus[columns], len(space.gpu_types))
        if (used <= space.capacity).all():
            best = min(best, cost[columns].sum() + none * (space.num_jobs - len(columns)))
    return best


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 2))
def test_sia_is_the_best_of_all_choices(seed, count, types):
    cluster = "+".join(f"1x4x{name}" for name in ["t4", "v100"][:types])
    space = elastic_space(seed, count, types, cluster, most=4)
    allocation = get_policy("sia", scale_up=None).allocate(space, options=EXACT)
    allowed = np.array([in_shape(space, column, 4) for column in range(space.num_columns)])
    best = enumerated(space, allowed, published_goodput(space) ** -0.5, 1.1)
    assert sia_cost(space, allocation) == pytest.approx(best, rel=1e-6)
    assert allocation.objective == pytest.approx((best / count) ** -2, rel=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_sia_equals_a_program_written_for_scipy(seed):
    space = elastic_space(seed, 40, 3, "4x4xt4+3x4xv100+2x4xa100", most=16, rigid=0.3)
    fixed = np.bincount(space.job, minlength=space.num_jobs) <= 3  # rigid: one size on each type
    allowed = np.array([fixed[space.job[c]] or in_shape(space, c, 4) for c in range(space.num_columns)])
    cost = published_goodput(space) ** -0.5 - 1.1
    top = np.zeros((space.num_jobs, space.num_columns))
    top[space.job, np.arange(space.num_columns)] = 1.0
    use = np.zeros((3, space.num_columns))
    use[space.gpu_type, np.arange(space.num_columns)] = space.num_gpus
    found = milp(
        cost,
        integrality=np.ones(space.num_columns),
        bounds=Bounds(0, allowed.astype(float)),
        constraints=[LinearConstraint(top, -np.inf, 1.0), LinearConstraint(use, -np.inf, space.capacity)],
        options={"mip_rel_gap": 1e-9},
    )
    best = found.fun + 1.1 * space.num_jobs
    exact = get_policy("sia", scale_up=None).allocate(space, options=SolverOptions(mip_gap=1e-6))
    assert sia_cost(space, exact) == pytest.approx(best, rel=1e-5)
    usual = get_policy("sia", scale_up=None).allocate(space)
    assert sia_cost(space, usual) <= best * (1 + 1e-3) + 1e-9


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_pollux_is_the_best_of_all_choices_that_fit_onto_nodes(seed, count):
    space = elastic_space(seed, count, 1, "2x3xt4", most=4)
    allocation = get_policy("pollux", scale_up=None).allocate(space, options=EXACT)
    fair = int(np.ceil(6 / count))
    value = np.empty(space.num_columns)
    for job in range(count):
        mine = np.flatnonzero(space.job == job)
        size = space.num_gpus[mine]
        reference = space.rate[mine][size == size[size <= fair].max()][0]
        age, restarts = NOW - space.arrival[job], space.ledger.restarts[job]
        factor = max(age - restarts * 30.0, 0.0) / (age + 30.0)
        value[mine] = space.rate[mine] / reference * np.where(space.is_current[mine], 1.0, factor)
    best = -np.inf
    for choice in itertools.product(*[[-1, *np.flatnonzero(space.job == job)] for job in range(count)]):
        sizes = sorted((int(space.num_gpus[column]) for column in choice if column >= 0), reverse=True)
        if not packs(sizes, (3, 3)):
            continue
        held = np.array([(value[column] if column >= 0 else 0.0) + 1e-3 for column in choice])
        best = max(best, 1.0 / np.mean(1.0 / held))
    assert allocation.objective == pytest.approx(best, rel=1e-5)


def packs(sizes, free):
    """Whether gangs fit onto nodes whole, those larger than a node (3) as a full one and the rest."""
    if not sizes:
        return True
    gang, rest = sizes[0], sizes[1:]
    pieces = [3, gang - 3] if gang > 3 else [gang]

    def put(pieces, free):
        if not pieces:
            return packs(rest, free)
        fitting = [node for node, room in enumerate(free) if room >= pieces[0]]
        return any(put(pieces[1:], (*free[:n], free[n] - pieces[0], *free[n + 1 :])) for n in fitting)

    return put(pieces, tuple(free))


def test_a_restart_is_worth_it_only_for_a_gain_above_the_factor():
    jobs = [Job(job_id="old", job_type="m", total_steps=1e4, max_gpus=2)]
    table = TableThroughput({("m", "t4", 1): 1.0, ("m", "t4", 2): 1.05})
    for now, gpus in ((100.0, 1), (100_000.0, 2)):
        space = AllocationSpace.from_jobs(jobs, "1x2xt4", table, now=now, gpu_type=0, gpus=1)
        allocation = get_policy("pollux").allocate(space)
        assert int(space.num_gpus[allocation.x > 0.5][0]) == gpus


def test_the_restart_factor_is_the_published_one():
    jobs = [Job(job_id=name, job_type="m", total_steps=1.0) for name in ("runs", "waits")]
    space = AllocationSpace.from_jobs(jobs, "4xt4", TableThroughput({("m", "t4", 1): 1.0}), now=300.0, gpu_type=[0, -1])
    space.ledger.restarts[:] = 4
    rate = EffectiveThroughput()
    assert AfterRestart(rate, 30.0, waiting=True).factor(space) == pytest.approx([180 / 330, 180 / 330])
    assert AfterRestart(rate, 30.0).factor(space) == pytest.approx([180 / 330, 1.0])
    assert AfterRestart(rate, 400.0).factor(space) == pytest.approx([1.0, 1.0])
    assert AfterRestart(rate, 100.0, waiting=True).factor(space) == pytest.approx([0.0, 0.0])
    assert AfterRestart(rate, 0.0, waiting=True).factor(space) == pytest.approx([1.0, 1.0])


def test_speedups_are_one_at_the_reference():
    space = elastic_space(1, 6, 2, "2x4xt4+2x4xv100", most=4)
    least = Speedup("least").build(space).value
    for job in range(6):
        mine = least[space.job == job]
        assert mine.min() == space.num_gpus[space.job == job][mine.argmin()]
    fair = Speedup("fair").build(space).value
    at_two = space.num_gpus == 2  # 8 GPUs of a type for 6 jobs, rounded up
    assert np.bincount(space.job[at_two], fair[at_two]) / 2 == pytest.approx(np.ones(6))


def most_gpus(space, *blocks):
    """GPUs that each job gets on its own when throughput is all that counts."""
    policy = Policy(objective=MaxSum(EffectiveThroughput()), constraints=[Capacity(), OneConfiguration(), *blocks])
    x = policy.allocate(space).x
    return np.bincount(space.job, x * space.num_gpus, space.num_jobs).tolist()


def test_jobs_grow_to_twice_the_most_they_have_run_on():
    space = elastic_space(3, 1, 1, "16xt4", most=16, running=0.0)
    block, ledger = ScaleUpLimit(2.0), space.ledger

    def after(gpus):
        ledger.gpu_type[0], ledger.gpus[0] = (0, gpus) if gpus else (-1, 0)
        return most_gpus(AllocationSpace(space.catalog, ledger, space.index, now=NOW), block)[0]

    assert after(0) == 1.0
    assert after(1) == 2.0
    assert after(3) == 6.0
    assert after(1) == 6.0  # what a job has run on once, it may have again
    assert after(0) == 6.0


def test_scale_up_counts_each_type_on_its_own_if_asked():
    space = elastic_space(3, 1, 2, "8xt4+8xv100", most=8, running=0.0)
    space.ledger.gpu_type[0], space.ledger.gpus[0] = 0, 4
    space = AllocationSpace(space.catalog, space.ledger, space.index, now=NOW)
    closed = ScaleUpLimit(2.0, by_type=True).closed(space)
    assert space.num_gpus[~closed & (space.gpu_type == 0)].max() == 8
    assert space.num_gpus[~closed & (space.gpu_type == 1)].tolist() == [1]
    assert not ScaleUpLimit(2.0).closed(space).any()


def test_shapes_fill_nodes_and_leave_rigid_jobs_alone():
    jobs = [
        Job(job_id="elastic", job_type="m", total_steps=1.0, max_gpus=12),
        Job(job_id="rigid", job_type="m", total_steps=1.0, num_gpus=3),
        Job(job_id="between", job_type="m", total_steps=1.0, min_gpus=5, num_gpus=5, max_gpus=7),
    ]
    table = TableThroughput({("m", "t4", n): float(n) for n in range(1, 13)})
    space = AllocationSpace.from_jobs(jobs, "4x4xt4", table)
    open_columns = ~NodeShapes().closed(space)
    sizes = [space.num_gpus[open_columns & (space.job == job)].tolist() for job in range(3)]
    assert sizes == [[1, 2, 4, 8, 12], [3], [5, 6, 7]]
    assert space.num_gpus[~NodeShapes("any").closed(space) & (space.job == 0)].tolist() == [1, 2, 3, 4, 8, 12]


@pytest.mark.parametrize("policy", ["pollux", "sia"])
def test_they_run_mixed_traces_with_failures_to_the_end(policy):
    trace = bx.load_trace("gavel-15").with_elastic_range(1, 4)
    result = bx.simulate(trace, "2x4xV100+2x4xP100", policy, failures=[Outage("node-0", 3600.0, 7200.0)])
    assert result.jobs["finish"].notna().all()


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("sia", {"exponent": 0.5}, "below 0"),
        ("sia", {"cost_of_none": 0.0}, "above 0"),
        ("sia", {"scale_up": 0.5}, "factor"),
        ("pollux", {"exponent": 2.0}, "exponent"),
        ("pollux", {"restart_seconds": -1.0}, "seconds"),
        ("pollux", {"predictor": 3}, "throughput"),
    ],
)
def test_options_that_make_no_sense_are_refused(policy, options, message):
    with pytest.raises(BloxoptError, match=message):
        get_policy(policy, **options)
