"""A job is checked when it is made; a table holds the same jobs as columns."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from bloxopt.errors import TraceError
from bloxopt.jobs import Job, JobTable

GOOD = {"job_id": "a", "duration": 60.0}


def test_a_job_needs_only_an_id_and_work() -> None:
    job = Job(job_id="a", duration=60)
    assert (job.arrival, job.num_gpus, job.gpu_range, job.tenant) == (0.0, 1, (1, 1), "default")


def test_an_elastic_job_has_a_range_of_gpus() -> None:
    assert Job(job_id="a", duration=1, num_gpus=4, min_gpus=2, max_gpus=8).gpu_range == (2, 8)


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("job_id", "", "a non-empty string"),
        ("job_id", 7, "a non-empty string"),
        ("job_id", "a\nb", "printable"),
        ("job_type", "", "a non-empty string"),
        ("tenant", None, "a non-empty string"),
        ("arrival", -1, "a finite number of seconds >= 0"),
        ("arrival", math.nan, "a finite number of seconds >= 0"),
        ("arrival", math.inf, "a finite number of seconds >= 0"),
        ("arrival", "0", "a finite number of seconds >= 0"),
        ("arrival", True, "a finite number of seconds >= 0"),
        ("arrival", 10**400, "a finite number of seconds >= 0"),
        ("duration", 0, "a finite number of seconds > 0"),
        ("duration", math.nan, "a finite number of seconds > 0"),
        ("total_steps", -5, "a finite number of steps > 0"),
        ("total_steps", math.inf, "a finite number of steps > 0"),
        ("num_gpus", 0, "a whole number of GPUs"),
        ("num_gpus", 1.5, "a whole number of GPUs"),
        ("num_gpus", 10**30, "a whole number of GPUs"),
        ("min_gpus", 0, "a whole number of GPUs"),
        ("max_gpus", math.inf, "a whole number of GPUs"),
        ("weight", 0, "a finite number > 0"),
        ("weight", math.nan, "a finite number > 0"),
        ("deadline", 0, "a time after its arrival"),
        ("deadline", math.nan, "a time after its arrival"),
        ("restart_cost", -1, "a finite number of seconds >= 0"),
        ("cpus_per_gpu", -1, "a finite number >= 0"),
        ("memory_gib_per_gpu", math.nan, "a finite number >= 0"),
    ],
)
def test_a_bad_field_is_named_with_its_value(field: str, value: object, wanted: str) -> None:
    with pytest.raises(TraceError, match=rf"{field} is {re.escape(repr(value))}, must be .*{wanted}"):
        Job(**{**GOOD, field: value})  # type: ignore[arg-type]


def test_a_job_without_work_is_refused() -> None:
    with pytest.raises(TraceError, match="total_steps is None, must be given, or duration instead"):
        Job(job_id="a")


def test_a_request_outside_the_elastic_range_is_refused() -> None:
    with pytest.raises(TraceError, match="num_gpus is 1, must be between min_gpus 2 and max_gpus 4"):
        Job(job_id="a", duration=1, num_gpus=1, min_gpus=2, max_gpus=4)


def test_a_table_is_sorted_by_arrival_and_keeps_the_order_of_equals() -> None:
    jobs = [Job(job_id=name, arrival=when, duration=1) for name, when in [("a", 5), ("b", 1), ("c", 5), ("d", 1)]]
    assert list(JobTable.from_jobs(jobs).job_id) == ["b", "d", "a", "c"]


def test_a_table_gives_back_the_jobs_it_was_made_of() -> None:
    jobs = [
        Job(job_id="a", duration=60, num_gpus=2, min_gpus=1, max_gpus=4, tenant="x", deadline=99, weight=2),
        Job(job_id="b", arrival=1, total_steps=10, num_gpus=1, min_gpus=1, max_gpus=1, job_type="t", restart_cost=3),
        Job(job_id="c", arrival=2, total_steps=10, duration=5, num_gpus=1, min_gpus=1, max_gpus=1, cpus_per_gpu=3),
    ]
    assert list(JobTable.from_jobs(jobs)) == jobs


def test_steps_of_a_job_with_a_duration_alone_are_its_seconds() -> None:
    table = JobTable.from_jobs([Job(job_id="a", duration=60), Job(job_id="b", total_steps=7)])
    assert list(table.total_steps) == [60, 7]
    assert np.isnan(table.duration[1])


def test_ids_must_be_unique() -> None:
    with pytest.raises(TraceError, match="job id 'a' appears twice"):
        JobTable.from_jobs([Job(job_id="a", duration=1), Job(job_id="a", duration=2)])


def test_columns_must_be_equally_long_and_known() -> None:
    with pytest.raises(TraceError, match="job column duration has 1 values for 2 jobs"):
        JobTable.from_columns(job_id=["a", "b"], arrival=[0, 0], num_gpus=[1, 1], duration=[1])
    with pytest.raises(TypeError, match="unknown job columns: durations"):
        JobTable.from_columns(job_id=["a"], arrival=[0], num_gpus=[1], durations=[1])


def test_taking_rows_keeps_types_and_tenants() -> None:
    jobs = [Job(job_id=name, duration=1, tenant=name, job_type=name) for name in "abc"]
    part = JobTable.from_jobs(jobs).take([2, 0])
    assert list(part.tenant_names) == ["c", "a"]
    assert list(part.job_type_names) == ["c", "a"]


def test_an_empty_table_is_possible() -> None:
    assert len(JobTable.from_jobs([])) == 0
