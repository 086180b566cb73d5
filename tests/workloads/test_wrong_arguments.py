"""Wrong kinds of arguments, enormous times and inputs without an end: one typed error each, with the way out."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bloxopt as bx
from bloxopt.errors import ClusterError, InputError, ThroughputError, TraceError
from bloxopt.jobs import MAX_SECONDS, JobTable

TRACE = bx.Trace.from_jobs([bx.Job(job_id=str(i), arrival=60.0 * i, duration=100.0) for i in range(4)])

WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "window of texts": (lambda: TRACE.window("a", "b"), "window: start is 'a', must be a number"),
    "load of text": (lambda: TRACE.scale_load("x"), "scale_load: factor is 'x', must be a number"),
    "bound of text": (lambda: TRACE.where(max_gpus="x"), "where: max_gpus is 'x', must be a whole number"),
    "bound that is no number": (lambda: TRACE.where(min_duration=math.nan), "where: min_duration is nan"),
    "tenant of a number": (lambda: TRACE.where(tenant=3), "where: tenant is 3, must be text or a list"),
    "unknown condition": (lambda: TRACE.where(max_gpu=3), "where: unknown option 'max_gpu': did you mean 'max_gpus'"),
    "missing argument": (lambda: TRACE.scale_load(), "missing a required argument: 'factor'"),
    "negative seed": (lambda: TRACE.with_gpu_demand({1: 1}, -1), "seed is -1, must be a whole number >= 0"),
    "demand of texts": (lambda: TRACE.with_gpu_demand({"a": 1}), "counts must be whole numbers of GPUs"),
    "demand of a number": (lambda: TRACE.with_gpu_demand(3), "mix is 3, must be a mapping"),
    "range of text": (lambda: TRACE.with_elastic_range("a", 1), "min_gpus is 'a', must be a whole number"),
    "cost of text": (lambda: TRACE.with_restart_cost("x"), "seconds is 'x', must be a number"),
    "row beyond the end": (lambda: TRACE.take([99]), "cannot take .*row numbers from 0 to 3"),
    "rows out of order": (lambda: TRACE.take([2, 1]), "cannot take .*increasing row numbers"),
    "mask of another length": (lambda: TRACE.take([True]), "cannot take"),
    "rows of text": (lambda: TRACE.take("x"), "cannot take"),
    "no rows": (lambda: TRACE.take([]), "no job is left"),
    "write to a number": (lambda: TRACE.write(3), "cannot write a trace to 3"),
    "rate of text": (lambda: bx.generate_trace(3, jobs_per_hour="x"), "jobs_per_hour is 'x', must be a number"),
    "tenants of text": (lambda: bx.generate_trace(3, 1, tenants="x"), "tenants is 'x', must be a mapping"),
    "restart cost of text": (
        lambda: bx.generate_trace(3, 1, restart_cost="x"),
        "restart_cost is 'x', must be a number",
    ),
    "unknown argument": (lambda: bx.generate_trace(3, 1, sead=1), "unknown option 'sead': did you mean 'seed'"),
    "format of a number": (lambda: bx.load_trace("gavel-15", format=3), "trace format must be a name, not 3"),
    "trace of nothing": (lambda: bx.load_trace(None), "cannot load a trace from None"),
    "jobs of nothing": (lambda: bx.Trace.from_jobs(None), "cannot make a trace of None"),
    "jobs of numbers": (lambda: bx.Trace.from_jobs([1]), "from 1: give Job objects"),
    "throughput of a number": (lambda: bx.Trace.from_jobs([bx.Job(job_id="a", duration=1)], 3), "throughputs of int"),
    "cluster of numbers": (lambda: bx.Cluster((1, 2)), "give Node objects"),
    "cluster of text": (lambda: bx.Cluster("4xV100"), "Cluster.from_string"),
    "cluster of nothing": (lambda: bx.load_cluster(None), "cannot make a cluster of NoneType"),
}


@pytest.mark.parametrize("case", WRONG)
def test_arguments_of_another_kind_are_refused_by_name(case: str) -> None:
    call, message = WRONG[case]
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("field", ["arrival", "duration", "deadline", "restart_cost"])
def test_no_time_of_a_job_goes_beyond_the_limit(field: str) -> None:
    values = {"arrival": 0.0, "duration": 1.0}
    bx.Job(job_id="a", **{**values, field: MAX_SECONDS})  # type: ignore[arg-type]
    with pytest.raises(TraceError, match=rf"job 'a': {field} is 1.1e\+12|1100000000000"):
        bx.Job(job_id="a", **{**values, field: 1.1 * MAX_SECONDS})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["arrival", "duration", "deadline", "restart_cost"])
def test_no_time_of_a_file_goes_beyond_the_limit(field: str, tmp_path: Path) -> None:
    row = {"job_id": "a", "arrival": "0", "duration": "1", "num_gpus": "1", "deadline": "", "restart_cost": ""}
    row[field] = "1e13"
    file = tmp_path / "t.csv"
    file.write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n")
    with pytest.raises(TraceError, match=rf"t.csv:2: {field} is '1e13', must be at most 1e\+12"):
        bx.load_trace(file)


@pytest.mark.parametrize(
    "make",
    [
        lambda: bx.generate_trace(3, jobs_per_hour=1e-300),
        lambda: bx.generate_trace(3, interarrival=1e12),
        lambda: bx.generate_trace(3, 1, durations=1e13),
        lambda: TRACE.scale_load(1e-300),
        lambda: TRACE.with_restart_cost(1e13),
        lambda: bx.Trace("t", JobTable.from_columns(job_id=["a"], arrival=[1e13], num_gpus=[1], duration=[1.0])),
    ],
)
def test_no_trace_has_times_beyond_the_limit(make: Callable[[], bx.Trace]) -> None:
    with pytest.raises(TraceError, match=r"at most 1e\+12 s"):
        make()


@pytest.mark.parametrize("shipped", ["gavel-15", "shockwave-120"])
def test_a_job_type_that_the_table_lacks_is_named_with_the_job_and_the_closest_type(shipped: str) -> None:
    trace = bx.load_trace(shipped)
    jobs = [*trace.jobs][:2]
    strange = bx.Job(job_id="odd", job_type="ResNet-18 (batch size 77)", total_steps=10)
    mixed = bx.Trace.from_jobs([*jobs, strange], trace.throughput)
    message = (
        r"job 'odd': job type 'ResNet-18 \(batch size 77\)' is not .* did you mean 'ResNet-18 \(batch size \d+\)'\?"
    )
    with pytest.raises(ThroughputError, match=message):
        mixed.durations()


def test_a_throughput_function_that_fails_is_named_with_what_it_was_asked() -> None:
    def broken(job_type: str, gpu_type: str, num_gpus: int) -> float:
        return 1 / 0

    for function, message in (
        (broken, r"throughput of 'generic' on 1 x V100: broken\(.*\) raised ZeroDivisionError.*line \d+\)"),
        (lambda job_type: 1.0, r"throughput of 'generic' on 1 x V100: .* raised TypeError: .* takes 1 positional"),
    ):
        trace = bx.Trace.from_jobs([bx.Job(job_id="a", total_steps=1)], function)
        with pytest.raises(ThroughputError, match=message):
            trace.durations()


@pytest.mark.parametrize("name", ["pipe.csv", "pipe.json", "pipe.toml"])
def test_a_pipe_or_device_is_never_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    for path in (tmp_path / name, Path("/dev/zero")):
        for read in (bx.load_trace, lambda path: bx.load_trace("gavel-15", throughput=path)):
            with pytest.raises(InputError, match="not a regular file"):
                read(path)
    if not name.endswith(".json"):
        kind = {".csv": bx.Cluster.from_csv, ".toml": bx.Cluster.from_toml}[Path(name).suffix]
        with pytest.raises(ClusterError, match="not a regular file"):
            kind(tmp_path / name)


def test_submodules_are_found_without_an_import_of_their_own() -> None:
    assert "gavel-15" in bx.workloads.TRACES
    assert "csv" in bx.workloads.FORMATS
    for name in ("experiments", "formulations", "placement", "selection", "simulation", "solvers"):
        assert getattr(bx, name).__name__ == f"bloxopt.{name}"
        assert name in dir(bx)
    with pytest.raises(AttributeError):
        _ = bx.nothing
