"""Columns of jobs that share GPUs, and PairedShares: the optimum of a column for each pair, for mixed gangs too."""

from __future__ import annotations

import gzip
import itertools
import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import make_space
from scipy.optimize import linprog

from bloxopt.errors import FormulationError, InputError, ThroughputError
from bloxopt.formulations import (
    AllocationSpace,
    Capacity,
    MaxMin,
    MaxSum,
    NodeCapacity,
    NormalizedThroughput,
    OneConfiguration,
    PairedShares,
    Policy,
    RemainingTime,
    TimeShare,
)
from bloxopt.formulations.objectives.base import MinMax
from bloxopt.formulations.policies import get_policy
from bloxopt.formulations.solving import session as sessions
from bloxopt.jobs import Job
from bloxopt.pairing import ALONE
from bloxopt.solvers.base import SolverOptions, SolverResult, Termination
from bloxopt.solvers.registry import get_solver
from bloxopt.throughput import DurationThroughput, TableThroughput

RATE = {"a": (6.0, 3.0), "b": (4.0, 4.0), "c": (9.0, 1.0)}


def space_of(kinds, gpus, capacity, kept, threshold=1.0, **more):
    """Jobs of the named kinds; ``kept[a, b, j]`` is what kind a keeps of its rate beside kind b on GPU type j."""
    types = ("fast", "slow")[: len(capacity)]
    jobs = [
        Job(job_id=f"j{i}", job_type=kind, num_gpus=count, total_steps=1000.0 * (i + 1))
        for i, (kind, count) in enumerate(zip(kinds, gpus, strict=True))
    ]
    sizes = sorted(set(gpus))
    table = {(k, t, n): RATE[k][j] for k in RATE for j, t in enumerate(types) for n in sizes}
    pairs = {
        (a, b, t, n): (RATE[a][j] * kept[a, b, j], RATE[b][j] * kept[b, a, j])
        for a, b in itertools.combinations_with_replacement(RATE, 2)
        for j, t in enumerate(types)
        for n in sizes
    }
    cluster = "+".join(f"{count}x{t}" for count, t in zip(capacity, types, strict=True))
    return AllocationSpace.from_jobs(jobs, cluster, TableThroughput(table, pairs), pair_threshold=threshold, **more)


def column_per_pair(space, kept, kinds, weight, reference):
    """The largest minimum of ``weight_i * throughput_i`` with a column for each job and each pair, by SciPy."""
    n, types = space.num_jobs, len(space.capacity)
    gpus = space.requested_gpus
    rate = space.requested_rate
    entries = [(i, None, j) for i in range(n) for j in range(types)]
    entries += [(i, k, j) for i in range(n) for k in range(i + 1, n) for j in range(types) if gpus[i] == gpus[k]]
    capacity = np.zeros((types, len(entries) + 1))
    time = np.zeros((n, len(entries) + 1))
    level = np.zeros((n, len(entries) + 1))
    level[:, -1] = 1.0
    for c, (i, k, j) in enumerate(entries):
        capacity[j, c] = gpus[i]
        time[i, c] = 1.0
        beside = 1.0 if k is None else kept[kinds[i], kinds[k], j]
        level[i, c] = -weight[i] / reference[i] * rate[i, j] * beside
        if k is not None:
            time[k, c] = 1.0
            level[k, c] = -weight[k] / reference[k] * rate[k, j] * kept[kinds[k], kinds[i], j]
    cost = np.zeros(len(entries) + 1)
    cost[-1] = -1.0
    result = linprog(
        cost,
        np.vstack([capacity, time, level]),
        np.concatenate([space.capacity, np.ones(n), np.zeros(n)]),
        bounds=[(0, 1)] * len(entries) + [(None, None)],
    )
    assert result.status == 0
    return -result.fun


def random_kept(rng, types=2):
    return {(a, b, j): float(rng.uniform(0.3, 1.0)) for a in RATE for b in RATE for j in range(types)}


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_the_optimum_is_that_of_a_program_with_a_column_for_each_pair_of_jobs(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 7))
    kinds, gpus = rng.choice(list(RATE), n).tolist(), rng.choice([1, 1, 2], n).tolist()
    kept = random_kept(rng)
    space = space_of(kinds, gpus, rng.integers(2, 4, 2).tolist(), kept)
    weight = space.requested_gpus.astype(float)
    expected = column_per_pair(space, kept, kinds, weight, space.proportional_rate)
    packed = get_policy("max_min_fairness_packed").allocate(space)
    assert packed.objective == pytest.approx(expected, rel=1e-6)
    assert packed.objective >= get_policy("max_min_fairness").allocate(space).objective * (1 - 1e-9)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_packing_never_loses_whatever_is_optimised(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 6))
    space = space_of(
        rng.choice(list(RATE), n).tolist(), rng.choice([1, 1, 2], n).tolist(), [2, 2], random_kept(rng), now=500.0
    )
    for name in ("min_makespan", "finish_time_fairness", "max_sum_throughput", "max_sum_throughput_raw"):
        plain, packed = (get_policy(p).allocate(space).objective for p in (name, f"{name}_packed"))
        better = (
            packed <= plain * (1 + 1e-6)
            if name in ("min_makespan", "finish_time_fairness")
            else packed >= plain * (1 - 1e-6)
        )
        assert better, (name, plain, packed)


def test_pairs_that_do_not_pay_change_nothing_so_they_have_no_columns():
    kept = {(a, b, j): 0.5 for a in RATE for b in RATE for j in range(2)}
    with_all = space_of(["a", "b", "c"], [1, 1, 1], [1, 1], kept, threshold=0.0)
    without = space_of(["a", "b", "c"], [1, 1, 1], [1, 1], kept, threshold=1.0)
    assert (with_all.partner >= 0).any()
    assert (without.partner == ALONE).all()
    policy = get_policy("max_min_fairness_packed")
    assert policy.allocate(with_all).objective == pytest.approx(policy.allocate(without).objective, rel=1e-9)


def test_only_jobs_of_equal_gangs_share_and_only_with_another_job():
    space = space_of(["a", "a", "b"], [1, 1, 2], [4, 4], random_kept(np.random.default_rng(1)), threshold=0.0)
    names = space.catalog.pairing.names
    beside = [(int(i), names[p]) for i, p in zip(space.job, space.partner, strict=True) if p >= 0]
    assert beside == [(0, "a"), (0, "a"), (1, "a"), (1, "a")]
    alone = space_of(["a", "b"], [1, 2], [4, 4], random_kept(np.random.default_rng(1)), threshold=0.0)
    assert (alone.partner == ALONE).all()


def test_a_pair_takes_half_of_the_gang_for_each_and_runs_at_its_own_rate():
    kept = dict.fromkeys(random_kept(np.random.default_rng(0)), 0.8) | {("a", "b", 0): 0.9}
    space = space_of(["a", "b"], [2, 2], [4, 4], kept)
    shared = space.partner >= 0
    assert space.gpu_demand.tolist() == np.where(shared, 1.0, 2.0).tolist()
    assert space.rate[shared & (space.job == 0) & (space.gpu_type == 0)] == pytest.approx([6.0 * 0.9])
    assert space.to_pandas()["beside"].tolist() == ["", "", "b", "b", "", "", "a", "a"]


def test_three_of_a_kind_cannot_all_lean_on_one():
    """Job 0 of kind a cannot be beside the others for longer than these are beside it, nor beside itself."""
    kept = dict.fromkeys(random_kept(np.random.default_rng(0)), 0.9)
    space = space_of(["a", "a", "a"], [1, 1, 1], [2, 1], kept)
    block = PairedShares()
    own = ((space.partner >= 0) & (space.gpu_type == 0)).nonzero()[0]
    x = np.zeros(space.num_columns)
    x[own] = [1.0, 0.5, 0.5]
    assert block.violations(space, x).max() == 0
    x[own] = [1.0, 0.5, 0.4]
    assert block.violations(space, x).max() == pytest.approx(0.1)
    x[own] = [0.0, 0.0, 0.4]
    worst = block.violations(space, x)
    assert block.labels(space)[int(np.argmax(worst))] == "j2"


def test_both_sides_of_a_pair_have_the_same_time():
    kept = dict.fromkeys(random_kept(np.random.default_rng(0)), 0.9)
    space = space_of(["a", "b"], [1, 1], [1, 1], kept)
    block = PairedShares()
    x = np.where((space.partner >= 0) & (space.gpu_type == 0), [0.5 if j == 0 else 0.2 for j in space.job], 0.0)
    amount = block.violations(space, x)
    assert amount.max() == pytest.approx(0.3)
    assert block.labels(space)[int(np.argmax(amount))] == "a beside b on 1 x fast"


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_whole_rounds_with_pairs_equal_enumeration(seed):
    rng = np.random.default_rng(seed)
    kinds, gpus = rng.choice(list(RATE), 4).tolist(), rng.choice([1, 1, 2], 4).tolist()
    kept = random_kept(rng, 1)
    space = space_of(kinds, gpus, [2], kept)
    policy = Policy(
        objective=MaxSum(NormalizedThroughput()), constraints=[Capacity(), OneConfiguration(), PairedShares(whole=True)]
    )
    worth = lambda i, f: gpus[i] * space.requested_rate[i, 0] * f / space.proportional_rate[i]  # noqa: E731

    def best(jobs, left):
        """Leave out, run alone or pair the first job, then the rest."""
        if not jobs:
            return 0.0
        first, rest = jobs[0], jobs[1:]
        found = [best(rest, left)]
        if gpus[first] <= left:
            found.append(worth(first, 1.0) + best(rest, left - gpus[first]))
            for other in rest:
                if gpus[other] == gpus[first]:
                    together = worth(first, kept[kinds[first], kinds[other], 0])
                    together += worth(other, kept[kinds[other], kinds[first], 0])
                    found.append(together + best([k for k in rest if k != other], left - gpus[first]))
        return max(found)

    assert policy.allocate(space, solver="highs").objective == pytest.approx(best([0, 1, 2, 3], 2), rel=1e-6)


def test_sifting_gives_the_optimum_and_prices_of_the_whole_program(monkeypatch):
    rng = np.random.default_rng(3)
    kinds, gpus = rng.choice(list(RATE), 30).tolist(), rng.choice([1, 1, 2], 30).tolist()
    space = space_of(kinds, gpus, [6, 6], random_kept(rng))
    for objective in (MaxMin(NormalizedThroughput()), MaxSum(NormalizedThroughput()), MinMax(RemainingTime())):
        policy = Policy(objective=objective, constraints=[Capacity(), TimeShare(), PairedShares()], solver="highs")
        monkeypatch.setattr(sessions, "WORTH_SIFTING", 10**9)
        whole = policy.allocate(space)
        monkeypatch.setattr(sessions, "WORTH_SIFTING", 1)
        sifted = policy.allocate(space)
        assert sifted.num_solves > whole.num_solves
        assert sifted.objective == pytest.approx(whole.objective, rel=1e-7)
        assert sifted.gap <= 1e-6
        # The prices of the last pass prove the optimum of the whole program.
        assert sifted.duals is not None
        if sifted.proof is not None:
            assert sifted.certificate.verification.verified


class _OutOfTime:
    """HiGHS for the first program, and a limit that has passed for all others."""

    name = "out of time"
    capabilities = get_solver("highs").capabilities

    def __init__(self):
        self.calls = 0

    def solve(self, form, options=SolverOptions(), warm_start=None):
        self.calls += 1
        if self.calls == 1:
            return get_solver("highs").solve(form, options)
        return SolverResult(Termination.LIMIT_NO_SOLUTION, solver=self.name)


def test_a_limit_while_columns_join_leaves_a_feasible_answer_with_a_valid_bound(monkeypatch):
    rng = np.random.default_rng(5)
    space = space_of(rng.choice(list(RATE), 12).tolist(), [1] * 12, [3, 3], random_kept(rng))
    policy = get_policy("max_min_fairness_packed")
    monkeypatch.setattr(sessions, "WORTH_SIFTING", 1)
    best = policy.allocate(space, solver="highs").objective
    cut_short = policy.allocate(space, solver=_OutOfTime())
    assert cut_short.termination is Termination.FEASIBLE
    assert cut_short.objective < best * (1 - 1e-6)
    assert cut_short.bound >= best * (1 - 1e-9)


def published_time_rows(x, space, combinations):
    """Time rows as Gavel's published code forms them: the shares of each job's combinations, one job behind the
    other, cut into rows of equal length."""
    flat = np.concatenate([x[rows].ravel() for rows in combinations])
    return flat.reshape(len(combinations), -1).sum(axis=1)


def test_mixed_gangs_break_the_time_rows_of_the_published_packed_policies_and_not_ours():
    """In Gavel's code a (alone, with b) and c (alone only, the one gang of 2) have rows of different length; cut into
    equal ones, part of the time of a beside b counts for b: shares that give a job 4/3 of its time pass."""
    kept = dict.fromkeys(random_kept(np.random.default_rng(0), 3), 0.95)
    x = np.zeros((4, 3))  # a, b, c alone and a with b, on three GPU types
    combinations = [[0, 3], [1, 3], [2]]
    x[0] = [1.0, 0.0, 0.0]
    x[3] = [0.0, 0.0, 1 / 3]
    assert (published_time_rows(x, None, combinations) <= 1).all()
    assert x[[0, 3]].sum() == pytest.approx(4 / 3)
    space = space_of(["a", "b", "c"], [1, 1, 2], [2, 2], kept)
    column = (space.job == 0) & (space.gpu_type == 0) & (space.partner < 0)
    shared = (space.partner >= 0) & (space.gpu_type == 1)
    ours = np.where(column, 1.0, np.where(shared, 1 / 3, 0.0))
    assert TimeShare().violations(space, ours).max() == pytest.approx(1 / 3)
    assert PairedShares().violations(space, ours).max() == 0


def test_policies_that_do_not_pack_do_not_see_the_columns():
    kept = dict.fromkeys(random_kept(np.random.default_rng(0)), 0.9)
    space = space_of(["a", "b"], [1, 1], [1, 1], kept)
    assert get_policy("max_min_fairness").allocate(space).space.num_columns == 4 < space.num_columns
    assert (space.without(np.array([0])).partner == ALONE).all()


def test_elastic_jobs_share_at_the_gang_they_ask_for():
    jobs = [Job(job_id=f"j{i}", job_type="m", num_gpus=2, min_gpus=1, max_gpus=4, total_steps=100.0) for i in range(2)]
    table = {("m", "fast", n): float(n) for n in (1, 2, 3, 4)}
    oracle = TableThroughput(table, {("m", "m", "fast", 2): (1.8, 1.8)})
    space = AllocationSpace.from_jobs(jobs, "4xfast", oracle, pair_threshold=1.0)
    assert space.num_gpus[space.partner >= 0].tolist() == [2, 2]
    assert get_policy("max_min_fairness_packed").allocate(space).throughput.min() >= 1.0


def test_gavels_table_has_its_pairs(tmp_path):
    alone, pair = {"null": 4.0}, {"null": 4.0, "('m', 1)": [3.0, 2.0]}
    document = {"v100": {"('m', 1)": {"null": 2.0}, "('n', 1)": pair}}
    file = tmp_path / "table.json.gz"
    file.write_bytes(gzip.compress(json.dumps(document).encode()))
    oracle = TableThroughput.from_gavel_json(file)
    rates = oracle.paired_rates(["m", "n"], np.array([1, 1]), ["V100"])
    assert rates[:, :, 0].tolist() == [[0.0, 2.0], [3.0, 0.0]]
    document["v100"]["('n', 1)"] = alone | {"('m', 2)": [3.0, 2.0]}
    file.write_text(json.dumps(document))
    assert TableThroughput.from_gavel_json(file).pairs == {}  # gangs of different sizes do not share
    document["v100"]["('n', 1)"] = alone | {"m": [3.0, 2.0]}
    file.write_text(json.dumps(document))
    with pytest.raises(ThroughputError, match=re.escape("('n', 1): cannot read the partner 'm'")):
        TableThroughput.from_gavel_json(file)
    document["v100"]["('n', 1)"] = alone | {"('m', 1)": [3.0]}
    file.write_text(json.dumps(document))
    with pytest.raises(ThroughputError, match="is not \\(job type, partner"):
        TableThroughput.from_gavel_json(file)


class _Oracle(DurationThroughput):
    """Durations, and whatever is said of pairs."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def paired_rates(self, job_types, num_gpus, gpu_types):
        return self.answer


TWO = [Job(job_id=f"j{i}", duration=100.0) for i in range(2)]


@pytest.mark.parametrize(
    ("oracle", "message"),
    [
        (DurationThroughput(), "DurationThroughput does not say how fast jobs run beside each other"),
        (TableThroughput({("generic", "v100", 1): 1.0}), "TableThroughput does not say how fast"),
        (_Oracle(None), "does not say how fast"),
        (_Oracle(np.zeros((2, 2, 1))), r"gave shape \(2, 2, 1\), expected \(kinds, kinds, types\) = \(1, 1, 1\)"),
        (_Oracle(np.full((1, 1, 1), -1.0)), "'generic' beside 'generic' on 1 x V100 is -1.0"),
        (_Oracle(np.full((1, 1, 1), np.nan)), "is nan"),
        (_Oracle("fast"), "gave no numbers"),
    ],
)
def test_oracles_that_know_no_pairs_or_say_what_cannot_be_are_named(oracle, message):
    with pytest.raises(ThroughputError, match=message):
        AllocationSpace.from_jobs(TWO, "2xV100", oracle, pair_threshold=1.0)


def test_rates_of_a_pair_that_contradict_each_other_are_refused():
    with pytest.raises(ThroughputError, match=r"'m' beside 'n' on 1 x V100 is given as 2\.0 and as 1\.0"):
        TableThroughput({}, {("m", "n", "v100", 1): (2, 3), ("n", "m", "V100", 1): (3, 1)})
    with pytest.raises(ThroughputError, match="'m beside n' on 1 x v100 is -1"):
        TableThroughput({}, {("m", "n", "v100", 1): (-1, 3)})


def test_a_space_without_pairs_and_blocks_that_do_not_go_together_are_named():
    plain = make_space([[1.0], [1.0]], [1, 1], [1])
    with pytest.raises(FormulationError, match=r"pair_threshold=policy\.pair_threshold"):
        get_policy("max_min_fairness_packed").allocate(plain)
    for wrong in (-1, np.nan, "much"):
        with pytest.raises(FormulationError, match="PairedShares"):
            PairedShares(wrong)
    both = Policy(objective=MaxSum(NormalizedThroughput()), constraints=[Capacity(), NodeCapacity(), PairedShares()])
    assert both.uses_spread
    assert both.pair_threshold == 1.0


def test_partitioned_gpus_are_not_shared_by_pairs():
    from bloxopt.cluster import Cluster, Node

    cluster = Cluster([Node(name="n0", gpu_type="A100", num_gpus=1, labels={"mig": "A100-40GB"})])
    with pytest.raises(InputError, match="node 'n0': GPUs that are partitioned"):
        AllocationSpace.from_jobs(TWO, cluster, _Oracle(np.ones((1, 1, 1))), pair_threshold=1.0)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_the_order_of_jobs_does_not_matter_and_more_gpus_never_hurt(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 7))
    kinds, gpus = rng.choice(list(RATE), n), rng.choice([1, 1, 2], n)
    kept, order = random_kept(rng), rng.permutation(n)
    # Makespan depends on the steps, which go by position here; max-min fairness does not.
    policy = get_policy("max_min_fairness_packed")
    values = [
        policy.allocate(space_of(kinds[o].tolist(), gpus[o].tolist(), capacity, kept)).objective
        for o, capacity in ((np.arange(n), [2, 2]), (order, [2, 2]), (order, [4, 4]))
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    assert values[2] >= values[1] * (1 - 1e-6)
