"""Goodput of Pollux' applications against their files, batch sizes against a search of the whole grid."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from bloxopt.errors import FormulationError, ThroughputError
from bloxopt.formulations import AllocationSpace
from bloxopt.formulations.policies import get_policy
from bloxopt.jobs import Job, JobTable
from bloxopt.workloads import load_trace
from bloxopt.workloads.pollux_goodput import PolluxGoodput, batch_splits
from bloxopt.workloads.shipped import data_path

DIRECTORY = data_path("pollux/profiles")
LARGEST_LOCAL = {"yolov3": 8}


@pytest.fixture(scope="module")
def measured():
    return PolluxGoodput(DIRECTORY)


def table(job_type, count=1):
    return JobTable.from_jobs([Job(job_id=f"j{i}", job_type=job_type, total_steps=1.0) for i in range(count)])


def read(application):
    """Placements, and statistics by batch size, straight from the files."""
    folder = DIRECTORY / application
    placements = pd.read_csv(folder / "placements.csv", dtype={"placement": str})
    sizes = sorted(int(path.stem.removeprefix("validation-")) for path in folder.glob("validation-*.csv"))
    return placements, {size: pd.read_csv(folder / f"validation-{size}.csv") for size in sizes}


def plain_goodput(application, digits, epoch, local, passes):
    """Progress per second at a split, by the formulas of the paper; None where it was not measured."""
    placements, validation = read(application)
    rows = placements[placements.placement == digits].sort_values("local_bsz")
    if not rows.local_bsz.min() <= local <= rows.local_bsz.max():
        return None
    step = np.interp(local, rows.local_bsz, rows.step_time)
    sync = np.interp(local, rows.local_bsz, rows.sync_time)
    batch, sizes = sum(map(int, digits)) * local * passes, list(validation)
    sqr = np.interp(batch, sizes, [validation[size].grad_sqr[epoch] for size in sizes])
    var = np.interp(batch, sizes, [validation[size].grad_var[epoch] for size in sizes])
    gain = (var + sqr) / (var / (batch / sizes[0]) + sqr)
    return gain / (step + (passes - 1) * (step - sync))


@pytest.mark.parametrize(
    ("application", "digits", "epoch"),
    [("cifar10", "44", 30), ("cifar10", "1", 0), ("bert", "124", 1), ("deepspeech2", "4", 50), ("yolov3", "2", 49)],
)
def test_the_batch_size_is_the_best_of_the_whole_grid(measured, application, digits, epoch):
    placements, validation = read(application)
    gpus, sizes = sum(map(int, digits)), list(validation)
    smallest = int(placements.local_bsz.min())
    largest = LARGEST_LOCAL.get(application, int(placements.local_bsz.max()))
    best, at = -1.0, None
    local_sizes = range(smallest, largest + 1, 1 if largest < 300 else 31)
    for local in [*local_sizes, largest]:
        for passes in range(1, sizes[-1] // (gpus * local) + 1):
            batch = gpus * local * passes
            fewest = math.ceil(local * passes / largest)
            if gpus == 1 and batch > sizes[0]:
                fewest = max(fewest, 2)
            if batch < sizes[0] or passes != fewest:
                continue
            value = plain_goodput(application, digits, epoch, local, passes)
            if value is not None and value > best:
                best, at = value, (local, passes)
    job = table(application).in_phase(np.array([epoch]))
    rate = measured.rates_on(job, "T4", [tuple(map(int, digits))])[0]
    local, passes = (int(part[epoch]) for part in measured.best_splits(application, tuple(map(int, digits))))
    assert rate == pytest.approx(plain_goodput(application, digits, epoch, local, passes), rel=1e-9)
    assert rate >= best * (1 - 1e-9), (at, (local, passes))


def test_rates_on_packed_gpus_are_those_of_their_placement(measured):
    job = table("deepspeech2", 3)
    packed = measured.rates(job, ["T4", "V100"], np.array([3, 6, 16]))
    assert packed[:, 0] == pytest.approx(measured.rates_on(job, "T4", [(3,), (4, 2), (4, 4, 4, 4)]))
    assert not packed[:, 1].any()


def test_splits_stay_within_the_published_limits(measured):
    application = measured.applications["imagenet"]
    for gpus in (1, 3, 40):
        splits = batch_splits(application, gpus)
        assert (splits.local >= 20).all()
        assert (splits.local <= 200).all()
        assert (splits.batch_size >= 200).all()
        assert (splits.batch_size <= 12800).all()
        assert (np.diff(splits.batch_size) > 0).all()
        if gpus == 1:
            assert (splits.passes[splits.batch_size > 200] >= 2).all()


def test_epochs_are_phases_and_their_end_is_the_least_progress_measured(measured):
    phases = measured.phases(table("cifar10"))
    _, validation = read("cifar10")
    assert phases.end == pytest.approx(np.min([frame.progress[:100] for frame in validation.values()], axis=0))


@pytest.mark.parametrize("application", ["bert", "cifar10", "deepspeech2", "imagenet", "yolov3"])
def test_fits_predict_steps_within_a_fifth(measured, application):
    fitted = measured.fit(application)
    assert fitted.step_error < 0.13
    assert fitted.pass_error < 0.21
    model = fitted.model
    assert 1.0 <= model.overlap <= 10.0
    assert model.across > model.within > 0


def test_jobs_that_choose_by_the_fit_run_as_measured_and_no_faster_than_those_that_know(measured):
    chosen, predicted = PolluxGoodput(DIRECTORY, "measured", "fitted"), measured.prediction
    for counts in ((1,), (3,), (4, 4), (1, 2, 4)):
        rate, best = chosen._by_epoch("bert", counts), measured._by_epoch("bert", counts)
        assert (rate <= best * (1 + 1e-12)).all()
        local, passes = chosen.best_splits("bert", counts)
        assert np.array_equal(local, predicted.best_splits("bert", counts)[0])
        digits = "".join(map(str, counts))
        for epoch in range(len(rate)):
            true = plain_goodput("bert", digits, epoch, int(local[epoch]), int(passes[epoch]))
            assert rate[epoch] == pytest.approx(true, rel=1e-9)


def test_jobs_with_a_batch_size_keep_it(measured):
    rate = measured.rates(table("ncf (batch size 32768)"), ["T4"], np.array([1]))[0, 0]
    assert rate == pytest.approx(plain_goodput("ncf", "1", 0, 16384, 2), rel=1e-9)
    fitted = measured.prediction.rates(table("ncf (batch size 32768)"), ["T4"], np.array([1]))[0, 0]
    assert fitted == pytest.approx(rate, rel=0.3)


def test_what_remains_is_the_time_of_the_epochs_to_come(measured):
    job = table("bert").in_phase(np.array([1]))
    left = measured.remaining_seconds(job, ["T4", "V100"], np.array([4]))
    progress = measured.applications["bert"].progress
    assert left[0, 0] == pytest.approx((progress[1] - progress[0]) / measured.rates(job, ["T4"], np.array([4]))[0, 0])
    assert np.isinf(left[0, 1])


def test_unknown_applications_and_sources_are_refused(measured):
    with pytest.raises(ThroughputError, match="'resnet' is not of Pollux' applications"):
        measured.rates(table("resnet"), ["T4"], np.array([1]))
    with pytest.raises(ThroughputError, match="'guessed'"):
        PolluxGoodput(DIRECTORY, "guessed")
    with pytest.raises(ThroughputError, match="cannot be read"):
        PolluxGoodput("no/such/folder")
    with pytest.raises(ThroughputError, match="no application 'resnet'"):
        measured.fit("resnet")


def test_the_adaptive_trace_has_elastic_jobs_and_ncf_on_one_gpu():
    trace = load_trace("pollux-6-adaptive")
    names = trace.jobs.job_type_names
    ncf = names == "ncf (batch size 32768)"
    assert len(trace) == 160
    assert (trace.jobs.max_gpus[ncf] == 1).all()
    assert (trace.jobs.min_gpus == 1).all()
    assert set(trace.jobs.max_gpus[names == "cifar10"]) == {64}
    assert set(trace.jobs.max_gpus[names == "bert"]) == {64}


def test_an_oracle_without_a_prediction_cannot_be_planned_with():
    space = AllocationSpace.from_jobs([Job(job_id="j", duration=10.0)], "1xT4")
    with pytest.raises(FormulationError, match="has no prediction"):
        get_policy("pollux", predictor="own").allocate(space)
