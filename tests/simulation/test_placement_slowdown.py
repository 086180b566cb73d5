"""What spreading a gang costs: models, the rates of the simulation, and bad input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bloxopt as bx
from bloxopt.errors import ConfigError, ThroughputError
from bloxopt.formulations.space import ConfigurationCatalog
from bloxopt.placement import Found, Offer
from bloxopt.placement.slowdown import Slowdown, as_slowdown, fewest_nodes
from bloxopt.throughput import TableThroughput
from bloxopt.workloads.pollux_profiles import load_profiles
from bloxopt.workloads.shipped import data_path

TABLE = TableThroughput(
    {
        ("model", "V100", 4): 10.0,
        ("model", "V100_unconsolidated", 4): 4.0,
        ("keen", "V100", 4): 10.0,
        ("keen", "V100_unconsolidated", 4): 12.0,
        ("other", "V100", 4): 10.0,
        ("model", "V100", 1): 3.0,
        ("model", "V100_unconsolidated", 1): 3.0,
    }
)


def one_a_node(offer: Offer, need: int) -> Found | None:
    """As many nodes as GPUs."""
    nodes = offer.available.nonzero()[0][:need]
    return Found(tuple(nodes.tolist()), (1,) * need) if len(nodes) == need else None


def factor(slowdown: Slowdown, job_type: str, gpu_type: str, gpus: int, nodes: int, fewest: int = 1) -> float:
    jobs = bx.JobTable.from_jobs([bx.Job(job_id="a", job_type=job_type, total_steps=1.0, num_gpus=gpus)])
    return float(slowdown.factors(jobs, gpu_type, np.array([gpus]), np.array([nodes]), np.array([fewest]))[0])


def finish(trace: bx.Trace, cluster: str, **arguments: object) -> list[float]:
    result = bx.simulate(trace, cluster, "fifo", **arguments)  # type: ignore[arg-type]
    return result.jobs.finish.tolist()


# ---------------------------------------------------------------------------------------- models


def test_a_table_slows_gangs_on_more_than_the_fewest_nodes() -> None:
    slowdown = as_slowdown(TABLE)
    assert factor(slowdown, "model", "v100", 4, nodes=1) == 1.0
    assert factor(slowdown, "model", "V100", 4, nodes=2) == pytest.approx(0.4)
    assert factor(slowdown, "model", "V100", 4, nodes=4) == pytest.approx(0.4)
    assert factor(slowdown, "model", "V100", 4, nodes=2, fewest=2) == 1.0


def test_a_pair_that_was_not_measured_takes_the_mean_of_its_type_and_count() -> None:
    # Measured: 0.4, and 12 / 10, which counts as 1.
    assert factor(as_slowdown(TABLE), "keen", "V100", 4, nodes=2) == 1.0
    assert factor(as_slowdown(TABLE), "other", "V100", 4, nodes=2) == pytest.approx(0.4**0.5)


def test_gavels_table_gives_its_published_ratios() -> None:
    table = TableThroughput.from_gavel_json(data_path("gavel/simulation_throughputs.json.gz")).table
    slowdown = as_slowdown("gavel")
    for (job_type, kind, count), apart in table.items():
        together = table.get((job_type, kind.removesuffix("_unconsolidated"), count), 0.0)
        if kind.endswith("_unconsolidated") and together > 0 and apart > 0:
            measured = factor(slowdown, job_type, kind.removesuffix("_unconsolidated"), count, nodes=2)
            assert measured == pytest.approx(min(1.0, apart / together))


def test_pollux_profiles_give_the_rate_measured_on_that_many_nodes() -> None:
    # bert, batch size 24 on 2 GPUs: 12 samples each; measured on one node ("2") and on two ("11").
    import pandas as pd

    rows = pd.read_csv(data_path("pollux/profiles") / "bert" / "placements.csv", dtype={"placement": str})
    step = rows[rows.local_bsz == 12].set_index("placement").step_time
    measured = factor(as_slowdown("pollux"), "bert (batch size 24)", "T4", 2, nodes=2)
    assert measured == pytest.approx(step["2"] / step["11"])
    assert measured < 1


def test_pollux_packed_gangs_keep_the_rate_of_the_profiles() -> None:
    trace = bx.load_trace("pollux-1")
    profiles, jobs = load_profiles(data_path("pollux/profiles")), trace.jobs
    fewest = -(-jobs.num_gpus // 4)
    assert set(profiles)
    np.testing.assert_array_equal(as_slowdown("pollux").factors(jobs, "T4", jobs.num_gpus, fewest, fewest), 1.0)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=6), st.integers(1, 48))
def test_fewest_nodes_are_enough_and_one_less_is_not(sizes: list[int], need: int) -> None:
    if need <= sum(sizes):
        fewest = int(fewest_nodes(np.array(sizes), np.array([need]))[0])
        largest = sorted(sizes, reverse=True)
        assert sum(largest[:fewest]) >= need > sum(largest[: fewest - 1])


# ---------------------------------------------------------------------------------------- simulation


def trace_of(*gpus: int) -> bx.Trace:
    return bx.Trace.from_jobs([bx.Job(job_id=f"job-{i}", duration=1000.0, num_gpus=n) for i, n in enumerate(gpus)])


def test_a_spread_gang_takes_as_much_longer_as_the_function_says() -> None:
    trace = trace_of(4)

    def half(nodes: int, gpus: int) -> float:
        return 1.0 if nodes == 1 else 0.5

    assert finish(trace, "4x4xV100", slowdown=half) == [1000.0]
    assert finish(trace, "4x4xV100", slowdown=half, placement=one_a_node) == [2000.0]
    assert finish(trace, "4x4xV100", placement=one_a_node) == [1000.0]


def test_nodes_that_no_placement_avoids_cost_nothing() -> None:
    assert finish(trace_of(8), "4x4xV100", slowdown="gavel") == [1000.0]


def test_the_option_takes_the_traces_own_table() -> None:
    jobs = [bx.Job(job_id="a", job_type="model", total_steps=1000.0, num_gpus=4)]
    trace = bx.Trace.from_jobs(jobs, TABLE)
    options = bx.SimulationOptions(placement_slowdown=True, placement="consolidated")
    assert finish(trace, "4x4xV100", options=options) == [100.0]
    assert finish(trace, "4x4xV100", options=options, placement=one_a_node) == [250.0]


def test_slowdown_is_off_unless_asked_for() -> None:
    trace = bx.load_trace("gavel-15")
    plain = bx.simulate(trace, "4x2xV100+4x2xP100+4x2xK80", "fifo", placement="first_fit")
    slowed = bx.simulate(trace, "4x2xV100+4x2xP100+4x2xK80", "fifo", placement="first_fit", slowdown="gavel")
    assert not plain.config["options"]["placement_slowdown"]
    assert slowed.config["options"]["placement_slowdown"]
    assert slowed.summary()["average_jct"] >= plain.summary()["average_jct"]


def test_rates_on_nodes_are_those_of_the_catalog_times_the_slowdown() -> None:
    trace = bx.load_trace("gavel-100")
    cluster = bx.load_cluster("4x4xV100+4x4xP100+4x4xK80")
    catalog = ConfigurationCatalog(trace.jobs, cluster, trace.throughput, as_slowdown("gavel"))
    rows = np.flatnonzero(trace.jobs.num_gpus == 4)
    kind = np.zeros(len(rows), dtype=np.int64)
    together = catalog.rate_on_nodes(rows, kind, trace.jobs.num_gpus[rows], np.ones(len(rows), dtype=np.int64))
    apart = catalog.rate_on_nodes(rows, kind, trace.jobs.num_gpus[rows], np.full(len(rows), 2))
    np.testing.assert_array_equal(together, catalog.rate_of(rows, kind, trace.jobs.num_gpus[rows]))
    assert (apart <= together).all()
    assert (apart < together).any()


# ---------------------------------------------------------------------------------------- bad input


def test_a_table_without_unconsolidated_rows_is_refused() -> None:
    with pytest.raises(ThroughputError, match="no rows for GPU types named <type>_unconsolidated"):
        as_slowdown(TableThroughput({("model", "V100", 1): 1.0}))
    with pytest.raises(ThroughputError, match="cannot make a slowdown of DurationThroughput"):
        bx.simulate(trace_of(4), "4x4xV100", options=bx.SimulationOptions(placement_slowdown=True))


def test_a_gpu_type_that_the_table_does_not_know_is_named() -> None:
    with pytest.raises(ThroughputError, match="no rows for a100_unconsolidated; it knows v100"):
        bx.simulate(trace_of(4), "4x4xA100", slowdown=TABLE, placement=one_a_node)


@pytest.mark.parametrize("source", ["galvel", "no/such/file.json", 7, None])
def test_an_unknown_slowdown_is_refused_with_the_ways_out(source: object) -> None:
    with pytest.raises(ThroughputError, match=r"'gavel'.* 'pollux'"):
        as_slowdown(source)


def test_a_job_type_outside_pollux_profiles_is_named(tmp_path: Path) -> None:
    with pytest.raises(ThroughputError, match=r"job type 'model' is not of Pollux' profiles"):
        factor(as_slowdown("pollux"), "model", "T4", 2, nodes=2)


@pytest.mark.parametrize("value", [0.0, -1.0, 1.5, float("nan"), "slow"])
def test_a_function_must_give_factors_up_to_1(value: object) -> None:
    with pytest.raises(ThroughputError, match="slowdown of 4 GPUs on 2 nodes"):
        factor(as_slowdown(lambda nodes, gpus: value), "model", "V100", 4, nodes=2)


@pytest.mark.parametrize(("name", "value"), [("placement_slowdown", 1), ("placement_retries", -1)])
def test_options_of_the_wrong_kind_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        bx.SimulationOptions(**{name: value})
