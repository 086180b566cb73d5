"""How batch sizes adapt: every epoch's size, when a job asks for the next, and the rates that follow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bloxopt as bx
from bloxopt.errors import ThroughputError, TraceError
from bloxopt.phases import Phases
from bloxopt.throughput import TableThroughput
from bloxopt.workloads.batch_size_regimes import MODES, batch_size_regimes
from bloxopt.workloads.readers.shockwave import THROUGHPUTS
from bloxopt.workloads.regime_throughput import RegimeThroughput
from bloxopt.workloads.shipped import data_path, shipped_throughput

from . import shockwave_replica as replica

FIRST_SIZES = {
    "ResNet-18": (16, 32, 64, 128, 256),
    "ResNet-50": (16, 32, 64, 128),
    "Transformer": (16, 128),
    "LM": (5, 10, 20, 40, 80),
    "Recommendation": (512, 1024, 2048, 4096, 8192),
}

kinds = st.sampled_from([(model, size) for model, sizes in FIRST_SIZES.items() for size in sizes])


def by_epoch(sizes: list[int], ends: list[int], epochs: int) -> list[int]:
    return [sizes[int(np.searchsorted(ends, epoch, side="right"))] for epoch in range(epochs)]


@given(kinds, st.sampled_from([1, 2, 4]), st.sampled_from(MODES), st.integers(1, 400))
def test_the_profile_has_the_published_size_in_every_epoch(
    kind: tuple[str, int], gpus: int, mode: str, epochs: int
) -> None:
    sizes, ends = batch_size_regimes(*kind, gpus, mode, epochs, "profile")
    assert by_epoch(sizes, ends, epochs) == replica.profile(*kind, gpus, mode, epochs)


@given(kinds, st.sampled_from([1, 2, 4]), st.sampled_from(["accordion", "gns"]), st.integers(5, 300))
def test_jobs_ask_for_another_size_when_the_published_simulator_does(
    kind: tuple[str, int], gpus: int, mode: str, epochs: int
) -> None:
    model, first = kind
    if model == "Transformer" or first == replica.LARGEST[model]:
        assert batch_size_regimes(model, first, gpus, mode, epochs) == ([first], [])
        return
    sizes, ends = batch_size_regimes(model, first, gpus, mode, epochs)
    rates = {(f"{model} (batch size {size})", gpus): 1.0 for size in FIRST_SIZES[model]}
    job = replica.ReplicaJob(0, model, first, epochs * -(-replica.SAMPLES[model] // first), gpus, mode, 0.0, rates)
    asked = []
    for epoch in range(epochs):
        for done in (0, 1):  # with whole epochs done, and just begun on the next
            job.done = epoch * job.per_epoch(job.size) + done
            job.wanted = job.wants()
            if job.wanted is not None:
                asked.append(epoch)
                job.change_size()
                job.wanted = None
    assert asked == [end for end in ends if end < epochs]
    assert job.size == sizes[-1]


def test_a_known_job_of_each_mode() -> None:
    assert batch_size_regimes("LM", 5, 4, "gns", 100, "profile") == ([5, 10, 20, 40, 80], [11, 31, 71, 91])
    assert batch_size_regimes("LM", 5, 4, "gns", 50) == ([5, 10, 20], [9, 29])
    assert batch_size_regimes("ResNet-50", 32, 1, "accordion", 60, "profile") == ([32, 128, 32, 128], [19, 30, 40])
    assert batch_size_regimes("ResNet-50", 32, 1, "accordion", 70) == (
        [32, 128, 32, 128, 32, 128],
        [9, 29, 39, 59, 69],
    )
    assert batch_size_regimes("ResNet-50", 32, 1, "static", 70) == ([32], [])


def test_an_epoch_takes_the_time_of_its_batch_size() -> None:
    """Epoch by epoch: work over rate in the phase is the steps of an epoch over the table's steps/s at its size."""
    trace = bx.load_trace("shockwave-120-regimes")
    oracle = RegimeThroughput(shipped_throughput(THROUGHPUTS), rules="profile")
    phases = Phases.of(oracle, trace.jobs)
    assert phases is not None
    for row, job in enumerate(replica.load_jobs()):
        per_epoch = job.per_epoch(job.first)
        sizes = replica.profile(job.model, job.first, job.gpus, job.mode, job.epochs)
        for epoch in range(row % 5, job.epochs, 23):
            phase = phases.phase_at(np.array([row]), np.array([float(epoch * per_epoch)]))
            jobs = trace.jobs.take(np.array([row])).in_phase(phase)
            rate = oracle.rates(jobs, ["v100"], jobs.num_gpus)[0, 0]
            assert per_epoch / rate == pytest.approx(job.per_epoch(sizes[epoch]) / job.rate(sizes[epoch]))


def test_isolated_seconds_are_those_of_the_published_profiles() -> None:
    trace = bx.load_trace("shockwave-120-regimes")
    oracle = RegimeThroughput(shipped_throughput(THROUGHPUTS), rules="profile")
    theirs = np.array([job.alone for job in replica.load_jobs()])
    # Theirs lets a job of several GNS sizes return to the first in its last epoch.
    np.testing.assert_allclose(oracle.isolated_seconds(trace.jobs, "V100"), theirs, rtol=0.03)
    assert np.isclose(oracle.isolated_seconds(trace.jobs, "V100"), theirs, rtol=1e-9).mean() > 0.7


def test_a_job_stays_at_a_batch_size_that_runs_on_its_gpus() -> None:
    table = TableThroughput(
        {
            ("ResNet-50 (batch size 32)", "v100", 1): 4.0,
            ("ResNet-50 (batch size 128)", "v100", 1): 2.0,
            ("ResNet-50 (batch size 32)", "k80", 1): 1.0,
        }
    )
    job = bx.Job(job_id="a", job_type="ResNet-50 (batch size 32), accordion", total_steps=3125 * 25)
    jobs = bx.Trace.from_jobs([job], RegimeThroughput(table)).jobs
    late = jobs.in_phase(np.array([1]))
    rates = RegimeThroughput(table).rates(late, ["v100", "k80", "p100"], np.array([1]))
    assert rates[0].tolist() == [2.0 * 3125 / 782, 1.0, 0.0]


@pytest.mark.parametrize(
    ("job_type", "message"),
    [
        ("LM (batch size 10)", "does not say how its batch size changes"),
        ("LM (batch size 10), sometimes", "mode 'sometimes' is not known"),
        ("GPT-9 (batch size 10), gns", "is not of Shockwave's models"),
        ("LM (batch size 0), gns", "is not of Shockwave's models"),
    ],
)
def test_job_types_that_cannot_be_read_are_refused(job_type: str, message: str) -> None:
    trace = bx.Trace.from_jobs([bx.Job(job_id="a", job_type=job_type, total_steps=10.0)])
    with pytest.raises(ThroughputError, match=message):
        bx.simulate(trace, "1xV100", "fifo", throughput=RegimeThroughput(shipped_throughput(THROUGHPUTS)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [("\tgns\t", "\tadaptive\t", ":1: mode is 'adaptive'"), ("LM (batch", "ML (batch", ":1: job type 'ML")],
)
def test_rows_that_cannot_be_read_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    first = data_path("shockwave/canonical_120jobs.trace").read_text().splitlines()[0]
    path = tmp_path / "broken.trace"
    path.write_text(first.replace(old, new) + "\n")
    with pytest.raises(TraceError, match=message):
        bx.load_trace(path, format="shockwave-regimes")


def test_both_readings_have_the_same_jobs() -> None:
    static, regimes = bx.load_trace("shockwave-120"), bx.load_trace("shockwave-120-regimes")
    for name in ("job_id", "arrival", "total_steps", "num_gpus", "duration"):
        assert list(getattr(static.jobs, name)) == list(getattr(regimes.jobs, name))
    assert all(
        kind.endswith(f", {mode}")
        for kind, mode in zip(regimes.jobs.job_type_names, regimes.extra["mode"], strict=True)
    )
    # A file is read as the static one unless the other is asked for.
    assert isinstance(bx.load_trace(data_path("shockwave/canonical_120jobs.trace")).throughput, TableThroughput)


def test_regimes_end_the_trace_sooner_than_the_first_batch_sizes() -> None:
    spans = {
        name: bx.simulate(bx.load_trace(name).head(30), "16x1xV100", "fifo", preset="shockwave").summary()["makespan"]
        for name in ("shockwave-120", "shockwave-120-regimes")
    }
    assert spans["shockwave-120-regimes"] < 0.97 * spans["shockwave-120"]
