"""/metrics: Prometheus' naming conventions, what operators need to see, and no more series than there are things."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from bloxopt.runtime.live import answer
from bloxopt.runtime.messages import GpuInfo, Heartbeat, RunReport, RunState
from tests.runtime.live_world import gpus
from tests.runtime.service_world import World, running

_NO_BASE_UNITS = re.compile(
    r"_(milli|micro|nano|kilo|mega|giga)?(ms|us|ns|sec|s|m|h|d|b|kb|mb|gb|minutes|hours|days|weeks|percent|fahrenheit"
    r"|milliseconds|kilobytes|megabytes|gigabytes|bits)(_|$)"
)
_DCGM = {"gpu", "UUID", "modelName", "Hostname"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(tmp_path_factory.mktemp("metrics"), policy="max_min_fairness") as world:
        world.beat()
        yield world


def _metrics(world: World) -> dict[str, Metric]:
    answer = world.call("root", "GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.text))
    assert len({family.name for family in families}) == len(families)
    return {family.name: family for family in families}


def _value(family: Metric, **labels: str) -> float:
    (value,) = (sample.value for sample in family.samples if labels.items() <= sample.labels.items())
    return float(value)


def _running_job(world: World) -> str:
    """A job that runs on both GPUs."""
    job_id = world.submit(num_gpus=2)
    for _ in range(200):
        if any(run.job_id == job_id for run in world.beat().runs):
            break
        time.sleep(0.05)
    world.beat(runs=(RunReport(job_id=job_id, attempt=1, state=RunState.RUNNING, steps=5.0, steps_per_second=2.0),))
    return job_id


def _end(world: World, job_id: str) -> None:
    world.beat(runs=(RunReport(job_id=job_id, attempt=1, state=RunState.ENDED, exit_code=0),))
    world.beat()


def _report(world: World, measured: list[GpuInfo]) -> None:
    """A heartbeat of node n1 with its GPUs as measured."""
    world.sequence += 1
    fields = {"node": "n1", "instance": "i", "sequence": world.sequence, "address": "127.0.0.1"}
    answer(world.service.live, Heartbeat.model_validate({**fields, "gpus": measured}))


def test_names_follow_the_conventions_of_prometheus(world: World) -> None:
    job_id = _running_job(world)
    for family in _metrics(world).values():
        assert re.fullmatch(r"bloxopt_[a-z][a-z0-9_]*", family.name)
        assert family.documentation
        assert not _NO_BASE_UNITS.search(family.name), family.name
        assert not re.search(r"_(gauge|counter|histogram|summary|total|count|sum|bucket)$", family.name), family.name
        for sample in family.samples:
            if family.type == "counter":
                assert sample.name in (f"{family.name}_total", f"{family.name}_created")
            # `job` and `instance` are what Prometheus itself calls whom it asks.
            assert {"job", "instance"}.isdisjoint(sample.labels)
            assert all(re.fullmatch("[a-z][a-z0-9_]*", label) for label in sample.labels if label not in _DCGM)
    _end(world, job_id)


def test_rounds_plans_and_their_certificates_are_shown(world: World) -> None:
    made = [world.submit(num_gpus=2) for _ in range(3)]
    for _ in range(200):
        world.beat()
        shown = _metrics(world)
        if "bloxopt_plan_binding_price" in shown and shown["bloxopt_plan_binding_price"].samples:
            break
        time.sleep(0.05)
    (plan,) = shown["bloxopt_plan_info"].samples
    assert (plan.labels["rung"], plan.labels["status"]) == ("solved", "optimal")
    assert plan.labels["solver"]
    objective = _value(shown["bloxopt_plan_objective"])
    assert objective > 0
    assert _value(shown["bloxopt_plan_bound"]) == pytest.approx(objective)
    assert _value(shown["bloxopt_plan_gap_ratio"]) == pytest.approx(0.0, abs=1e-6)
    assert _value(shown["bloxopt_plan_verified"]) == 1.0
    assert _value(shown["bloxopt_plan_duality_gap_ratio"]) < 1e-5
    binding = {sample.labels["block"]: sample.value for sample in shown["bloxopt_plan_binding_price"].samples}
    assert binding["Capacity"] > 0, "three jobs share two GPUs"
    assert _value(shown["bloxopt_rounds"]) >= 1
    assert {sample.labels["rung"] for sample in shown["bloxopt_allocations"].samples if sample.labels} == {
        "solved",
        "incumbent",
        "other_solver",
        "carried_over",
        "greedy",
    }
    for name in ("round", "solve", "build"):
        family = shown[f"bloxopt_{name}_duration_seconds"]
        assert family.type == "histogram"
        assert next(sample.value for sample in family.samples if sample.name.endswith("_count")) >= 1
    for name in ("missed_deadlines", "round_failures", "placement_retries"):
        assert shown[f"bloxopt_{name}"].type == "counter"
    for job_id in made:
        world.call("root", "POST", f"/v1/jobs/{job_id}/cancel")


def test_the_queue_is_shown_by_reason_and_jobs_by_status(world: World) -> None:
    before = _value(_metrics(world)["bloxopt_queue_jobs"], reason="never_started")
    job_id = world.submit(gpu_types=["None"])
    for _ in range(100):
        shown = _metrics(world)
        if _value(shown["bloxopt_queue_jobs"], reason="never_started") == before + 1:
            break
        time.sleep(0.05)
    assert {sample.labels["reason"] for sample in shown["bloxopt_queue_jobs"].samples} == {
        "not_admitted",
        "never_started",
        "preempted",
        "restarting",
    }
    assert _value(shown["bloxopt_jobs"], status="pending") >= 1
    world.call("root", "POST", f"/v1/jobs/{job_id}/cancel")


def test_jobs_have_series_while_they_run_and_gpus_say_whose_they_are(world: World) -> None:
    job_id = _running_job(world)
    for _ in range(10):
        world.submit(gpu_types=["None"])
    for _ in range(100):
        shown = _metrics(world)
        if _value(shown["bloxopt_job_steps"], job_id=job_id):
            break
        time.sleep(0.05)  # steps are booked from time to time
    assert _value(shown["bloxopt_job_gpus"], job_id=job_id, user="ada") == 2
    assert _value(shown["bloxopt_job_steps"], job_id=job_id) == 5
    assert _value(shown["bloxopt_job_steps_per_second"], job_id=job_id) == 2
    owners = shown["bloxopt_gpu_job_info"].samples
    assert len(owners) == 2
    assert all({*_DCGM, "job_id", "user"} == sample.labels.keys() for sample in owners)
    assert {sample.labels["job_id"] for sample in owners} == {job_id}
    for family in shown.values():
        jobs = {sample.labels["job_id"] for sample in family.samples if "job_id" in sample.labels}
        assert jobs <= {job_id}, "jobs that do not run have no series"
    _end(world, job_id)
    text = world.call("root", "GET", "/metrics").text
    assert job_id not in text
    for job in world.call("ada", "GET", "/v1/jobs?status=pending").json()["jobs"]:
        world.call("ada", "POST", f"/v1/jobs/{job['job_id']}/cancel")


def test_gpus_have_the_labels_of_dcgm_and_what_is_unknown_no_series(world: World) -> None:
    world.beat()
    shown = _metrics(world)
    for name in ("allocated", "failed", "degraded", "throttled", "xid_errors"):
        samples = shown[f"bloxopt_gpu_{name}"].samples
        assert len(samples) == 2
        assert all(sample.labels.keys() == _DCGM for sample in samples)
    assert shown["bloxopt_gpu_ecc_errors"].type == "counter"
    for name in ("temperature_celsius", "power_watts", "memory_used_bytes", "utilisation_ratio", "ecc_errors"):
        assert not shown[f"bloxopt_gpu_{name}"].samples


def test_who_asks_for_what_there_is_not_makes_no_series_of_their_own(world: World) -> None:
    for number in range(5):
        world.call(None, f"MADEUP{number}", f"/v1/nothing-{number}")
        world.call("ada", "GET", f"/v1/jobs/nothing-{number}")
        world.call("ada", f"MADEUP{number}", "/v1/jobs")
        world.call("ada", "GET", f"/nothing-{number}")
    answer = world.call("root", "GET", "/metrics")
    assert "MADEUP" not in answer.text
    assert "nothing-" not in answer.text
    counts = [
        sample
        for sample in _metrics(world)["bloxopt_http_request_duration_seconds"].samples
        if sample.name.endswith("_count")
    ]
    assert {sample.labels["method"] for sample in counts} <= {"GET", "POST", "other"}
    known = set(world.client.get("/openapi.json").json()["paths"]) | {"", "/openapi.json"}
    assert {sample.labels["route"] for sample in counts} <= known


def test_the_process_its_store_and_its_version_are_shown(world: World, tmp_path: Path) -> None:
    shown = _metrics(world)
    assert _value(shown["bloxopt_process_resident_memory_bytes"]) > 1e6
    assert _value(shown["bloxopt_store_size_bytes"]) > 10_000
    assert "version" in shown["bloxopt_build_info"].samples[0].labels
    assert time.time() - _value(shown["bloxopt_last_round_timestamp_seconds"]) < 60


def test_what_stays_written_between_two_scrapes_follows_every_change(tmp_path: Path) -> None:
    """Of a node whose GPUs are measured anew, put in another order or exchanged, and of jobs that come and go."""
    with running(tmp_path) as world:
        for first, second in ((None, None), (41.5, None), (41.5, 62.0), (None, 62.0), (None, None)):
            measured = [
                gpu.model_copy(update={"temperature": value})
                for gpu, value in zip(gpus(2), (first, second), strict=True)
            ]
            _report(world, measured)
            shown = _metrics(world)["bloxopt_gpu_temperature_celsius"].samples
            expected = {str(k): value for k, value in enumerate((first, second)) if value is not None}
            assert {sample.labels["gpu"]: sample.value for sample in shown} == expected
        failed = gpus(2, failed=(1,))
        _report(world, failed[::-1])
        assert _value(_metrics(world)["bloxopt_gpu_failed"], gpu="1") == 1.0
        assert _value(_metrics(world)["bloxopt_gpu_failed"], gpu="0") == 0.0
        exchanged = [gpu.model_copy(update={"uuid": f'new "{gpu.index}"\\'}) for gpu in gpus(2)]
        _report(world, exchanged)
        assert {sample.labels["UUID"] for sample in _metrics(world)["bloxopt_gpu_failed"].samples} == {
            'new "0"\\',
            'new "1"\\',
        }
        for _ in range(2):
            job_id = _running_job(world)
            assert {s.labels["job_id"] for s in _metrics(world)["bloxopt_gpu_job_info"].samples} == {job_id}
            assert {s.value for s in _metrics(world)["bloxopt_gpu_allocated"].samples} == {1.0}
            _end(world, job_id)
            assert not _metrics(world)["bloxopt_gpu_job_info"].samples
            assert {s.value for s in _metrics(world)["bloxopt_gpu_allocated"].samples} == {0.0}


def test_nobody_who_looks_waits_for_a_change_that_is_being_stored(world: World) -> None:
    """/metrics, and lists of nodes and jobs, while another thread holds the cluster."""
    world.beat()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with world.service.live.lock:
            held.set()
            done.wait(30.0)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        with ThreadPoolExecutor() as pool:
            for path in ("/metrics", "/v1/nodes", "/v1/jobs"):
                answer = pool.submit(world.call, "root", "GET", path).result(timeout=20.0)
                assert answer.status_code == 200
    finally:
        done.set()
        thread.join()
