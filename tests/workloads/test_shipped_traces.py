"""Every shipped trace holds what its source holds: the totals were counted with awk in the original files."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from bloxopt.cluster import load_cluster
from bloxopt.throughput import checked_rates
from bloxopt.workloads import TRACES, list_traces, load_trace
from bloxopt.workloads.shipped import data_path

# name: jobs, sum of GPUs, sum of seconds (None: only steps), last arrival in seconds
FACTS = {
    "gavel-100": (100, 175, None, 0),
    "gavel-96": (96, 169, None, 46317),
    "gavel-15": (15, 18, None, 0),
    "shockwave-120": (120, 164, 496241, 5011),
    "shockwave-120-regimes": (120, 164, 496241, 5011),
    "tiresias-60": (60, 170, 10705, 1779),
    "pollux-1": (160, 1092, None, 27695),
    "pollux-6": (160, 1134, None, 28189),
    "pollux-6-epochs": (160, 1134, None, 28189),
    "pollux-6-elastic": (160, 1134, None, 28189),
    "pollux-6-adaptive": (160, 1134, None, 28189),
    "pollux-6-adaptive-fitted": (160, 1134, None, 28189),
    "synergy-100": (100, 100, None, 0.099),
    "blox-c16-fifo-8": (501, 501, 33817793.253, 221763),
    "blox-mx-fifo-4": (501, 740, 33817793.253, 443278),
    "blox-mx-las-8": (501, 740, 33817793.253, 221763),
    "philly": (82247, 107235, 1080390950, 1513929731 - 1504521041),
    "elasticflow-01": (1595, 3728, 20289535, 2916375),
    "elasticflow-02": (5778, 11785, 132718039, 5161376),
    "elasticflow-03": (3011, 18760, 66687976, 4263429),
    "elasticflow-04": (15802, 47958, 315756560, 5136817),
    "elasticflow-05": (3629, 4329, 37065933, 5120458),
    "elasticflow-06": (2396, 12429, 58543236, 5151898),
    "elasticflow-07": (12699, 23330, 328660006, 5135939),
    "elasticflow-08": (13047, 14336, 189776423, 3663365),
    "elasticflow-09": (11134, 11134, 140402737, 4531199),
    "elasticflow-10": (260, 383, 8508681, 2837918),
}


def test_every_registered_trace_is_checked_here() -> None:
    assert set(TRACES) == set(FACTS)


@pytest.mark.parametrize("name", FACTS)
def test_a_shipped_trace_holds_what_its_source_holds(name: str) -> None:
    jobs, gpus, seconds, last = FACTS[name]
    trace = load_trace(name)
    assert len(trace) == jobs == TRACES.get(name).jobs
    assert trace.jobs.num_gpus.sum() == gpus
    assert trace.jobs.arrival[-1] == pytest.approx(last)
    if seconds is not None:
        assert trace.jobs.duration.sum() == pytest.approx(seconds)
    assert len(set(trace.jobs.job_id)) == jobs
    assert trace.name == name
    assert trace.source
    assert trace.licence


@pytest.mark.parametrize("name", FACTS)
def test_every_job_of_a_shipped_trace_can_run_on_its_default_cluster(name: str) -> None:
    trace = load_trace(name)
    assert trace.default_cluster is not None
    cluster = load_cluster(trace.default_cluster)
    cluster.check_fits(trace.jobs)
    rates = checked_rates(trace.throughput, trace.jobs, cluster.gpu_types, trace.jobs.num_gpus)
    runnable = (rates > 0) & (trace.jobs.num_gpus[:, None] <= cluster.capacity)
    assert runnable.any(axis=1).all()


def test_steps_of_gavels_traces_are_those_of_the_files() -> None:
    totals = {name: load_trace(name).jobs.total_steps.sum() for name in ("gavel-100", "gavel-96", "gavel-15")}
    assert totals == {"gavel-100": 42596220, "gavel-96": 18166806, "gavel-15": 304697}


def test_gavel_ids_follow_the_lines_of_the_file() -> None:
    jobs = load_trace("gavel-100").jobs
    assert list(jobs.job_id) == [str(line) for line in range(100)]
    assert jobs.job_type_names[0] == "Transformer (batch size 128)"
    assert jobs.total_steps[0] == 19605


def test_gavel_throughputs_are_those_of_its_table() -> None:
    trace = load_trace("gavel-100")
    rates = checked_rates(trace.throughput, trace.jobs, ["V100", "p100", "K80"], trace.jobs.num_gpus)
    table = trace.throughput.table
    assert rates[0, 0] == table["Transformer (batch size 128)", "v100", 1] > 0
    # The one hole of the table: ResNet-50 at batch size 128 does not run on several K80.
    assert table["ResNet-50 (batch size 128)", "k80", 2] == 0


def test_shockwave_keeps_the_batch_size_mode_of_each_job() -> None:
    trace = load_trace("shockwave-120")
    modes, counts = np.unique(trace.extra["mode"].astype(str), return_counts=True)
    assert dict(zip(modes, counts, strict=True)) == {"accordion": 59, "gns": 57, "static": 4}
    # The second line of the file.
    assert trace.extra["mode"][1] == "accordion"
    assert trace.jobs.total_steps[1] == 143450
    assert trace.jobs.duration[1] == 3338


def test_philly_arrivals_count_from_the_first_timestamp_and_are_sorted() -> None:
    trace = load_trace("philly")
    assert trace.jobs.arrival[0] == 0
    assert np.all(np.diff(trace.jobs.arrival) >= 0)
    assert trace.jobs.num_gpus.max() == 128
    assert set(trace.jobs.tenants) == set(np.unique(trace.jobs.tenant_names.astype(str)))
    assert len(trace.jobs.tenants) == 15
    assert (trace.jobs.tenant_names == "6214e9").sum() == 41226
    # gpu_time of the file, a column that the reader does not use.
    assert trace.jobs.duration @ trace.jobs.num_gpus == 3521082502
    # The file's first row, 2017-10-09 07:01:55, is job "0".
    first = np.flatnonzero(trace.jobs.job_id == "0")[0]
    assert trace.jobs.arrival[first] == 35 * 86400 - (3 * 3600 + 28 * 60 + 46)


def test_philly_loads_in_under_two_seconds() -> None:
    started = time.perf_counter()
    load_trace("philly")
    assert time.perf_counter() - started < 2


def test_synergy_durations_are_iterations_times_the_profiled_seconds() -> None:
    jobs = load_trace("synergy-100").jobs
    alexnet = jobs.job_type_names == "alexnet"
    assert jobs.total_steps.sum() == 13241816
    assert jobs.duration[alexnet].sum() == pytest.approx(200471 * 0.6)


def test_pollux_work_is_the_iterations_of_the_last_measured_epoch() -> None:
    jobs = load_trace("pollux-6").jobs
    steps = dict(zip(jobs.job_type_names, jobs.total_steps, strict=True))
    assert steps["cifar10 (batch size 2048)"] == 3178
    assert steps["ncf (batch size 32768)"] == 1548
    assert steps["imagenet (batch size 6400)"] == 23972


def test_pollux_step_times_are_measured_ones() -> None:
    trace = load_trace("pollux-6")
    table = trace.throughput.table
    # 32,768 samples on one GPU: the row 1,32768 of placements.csv, no interpolation.
    assert table["ncf (batch size 32768)", "t4", 1] == pytest.approx(1 / 0.02131553226047092)
    # 6,400 images on four GPUs are 1,600 each, at most 200 at once (row 4,200): eight passes, one synchronisation.
    step, sync = 1.0050264596939087, 0.0075231265068054195
    assert table["imagenet (batch size 6400)", "t4", 4] == pytest.approx(1 / (step + 7 * (step - sync)))
    # 64 images for YOLOv3 on four GPUs are 16 each; Pollux' simulator allows 8 at once (row 4,8).
    step, sync = 0.5009251087903976, 0.11896183347702027
    assert table["yolov3 (batch size 64)", "t4", 4] == pytest.approx(1 / (step + (step - sync)))


def test_pollux_has_throughputs_for_measured_gpu_counts_only() -> None:
    table = load_trace("pollux-6").throughput.table
    counts = {count for job_type, _, count in table if job_type == "imagenet (batch size 6400)"}
    assert counts == {*range(1, 17), 24, 32, 48, 64}


def test_elasticflow_default_clusters_follow_the_stated_rule() -> None:
    for name in (name for name in TRACES if name.startswith("elasticflow")):
        trace = load_trace(name)
        largest = math.ceil(trace.jobs.num_gpus.max() / 8)
        loaded = math.ceil(trace.offered_load() / 0.8 / 8)
        assert trace.default_cluster == f"{max(largest, loaded)}x8xV100", name


def test_philly_default_cluster_has_the_published_servers_and_gpus() -> None:
    cluster = load_cluster(TRACES.get("philly").cluster)
    assert (len(cluster.nodes), cluster.num_gpus) == (552, 2490)


def test_the_list_of_traces_has_a_row_for_each_with_source_and_licence() -> None:
    rows = list_traces()
    assert [row["name"] for row in rows] == list(TRACES)
    assert all(row["source"] and row["licence"] and row["description"] for row in rows)
    assert all(row["licence"] in {"MIT", "Apache-2.0", "CC-BY-4.0"} for row in rows)


def test_every_source_has_its_licence_text_beside_the_data() -> None:
    for name in TRACES:
        folder = TRACES.get(name).path.split("/")[0]
        assert list(data_path(folder).glob("LICENSE*")), folder
