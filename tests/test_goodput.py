"""The goodput model: step times and efficiency as written in the paper, and fits that find what made the data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloxopt.errors import ThroughputError
from bloxopt.goodput import StepTimeModel, fit_step_times, statistical_efficiency

MODEL = StepTimeModel(0.05, 0.004, 0.3, 0.02, 0.08, 0.005, 2.0)


def plain_step(model, nodes, gpus, local, accumulated):
    """The paper's formulas, one number at a time."""
    computing = model.compute + model.compute_per_sample * local
    if nodes > 1:
        exchange = model.across + model.across_per_gpu * max(gpus - 2, 0)
    elif gpus > 1:
        exchange = model.within + model.within_per_gpu * max(gpus - 2, 0)
    else:
        exchange = 0.0
    together = (computing**model.overlap + exchange**model.overlap) ** (1 / model.overlap)
    return together + accumulated * computing


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(1e-3, 10.0), min_size=6, max_size=6),
    st.floats(1.0, 10.0),
    st.integers(1, 64),
    st.integers(1, 16),
    st.integers(1, 500),
    st.integers(0, 5),
)
def test_step_times_are_those_of_the_paper(values, overlap, gpus, nodes, local, accumulated):
    model, nodes = StepTimeModel(*values, overlap), min(nodes, gpus)
    expected = plain_step(model, nodes, gpus, local, accumulated)
    assert float(model.step_seconds(nodes, gpus, local, accumulated)) == pytest.approx(expected, rel=1e-5)


def test_efficiency_falls_from_one_with_the_batch_and_slower_with_more_noise():
    batches = np.array([32, 64, 128, 1024])
    low, high = statistical_efficiency(10.0, 32, batches), statistical_efficiency(1000.0, 32, batches)
    assert low[0] == high[0] == 1.0
    assert (np.diff(low) < 0).all()
    assert (high[1:] > low[1:]).all()
    assert low[1] == pytest.approx((10 + 32) / (10 + 64))


def observations(model, seed=0, noise=0.0):
    rng = np.random.default_rng(seed)
    cells = [(n, g, b) for g in (1, 2, 3, 4, 6, 8, 16) for n in (1, 2, 4) if n <= g <= 4 * n for b in (8, 16, 64, 128)]
    nodes, gpus, local = (np.array(column) for column in zip(*cells, strict=True))
    alone = model.pass_seconds(local) * np.exp(noise * rng.normal(size=len(local)))
    step = model.step_seconds(nodes, gpus, local) * np.exp(noise * rng.normal(size=len(local)))
    return nodes, gpus, local.astype(float), alone, step


def test_a_fit_predicts_what_a_known_model_made():
    fitted = fit_step_times(*observations(MODEL))
    # The terms that keep gamma and the slopes small bias it a little, as in Pollux.
    assert fitted.step_error < 0.03
    assert fitted.pass_error < 0.03
    for nodes, gpus, local in ((1, 4, 32), (2, 8, 64), (4, 12, 100)):
        true = plain_step(MODEL, nodes, gpus, local, 0)
        assert float(fitted.model.step_seconds(nodes, gpus, local)) == pytest.approx(true, rel=0.08)


def test_the_reported_errors_are_those_of_the_data():
    nodes, gpus, local, alone, step = observations(MODEL, noise=0.2)
    fitted = fit_step_times(nodes, gpus, local, alone, step)
    logs = [
        math.log(float(fitted.model.step_seconds(n, g, b))) - math.log(s)
        for n, g, b, s in zip(nodes, gpus, local, step, strict=True)
    ]
    assert fitted.step_error == pytest.approx(math.sqrt(np.mean(np.square(logs))), rel=1e-6)
    assert 0.1 < fitted.step_error < 0.3


def test_what_was_not_seen_is_taken_to_cost_little():
    nodes, gpus, local, alone, step = observations(MODEL)
    one = gpus == 1
    fitted = fit_step_times(nodes[one], gpus[one], local[one], alone[one], step[one]).model
    assert fitted.within == pytest.approx(1e-8)
    assert float(fitted.step_seconds(1, 4, 32)) == pytest.approx(float(fitted.pass_seconds(32)), rel=1e-3)
    same = one & (local == 16)
    only = fit_step_times(nodes[same], gpus[same], local[same], alone[same], step[same]).model
    assert only.compute == pytest.approx(alone[same].mean() / 2)


@pytest.mark.parametrize(("column", "value"), [(0, -1.0), (2, 0.0), (3, float("nan")), (4, float("inf"))])
def test_observations_that_are_no_times_are_refused_by_name(column, value):
    columns = [values.astype(float) for values in observations(MODEL)]
    columns[column][1] = value
    name = ("nodes", "gpus", "local", "pass_seconds", "step_seconds")[column]
    with pytest.raises(ThroughputError, match=name):
        fit_step_times(*columns)


def test_observations_of_different_lengths_are_refused():
    columns = list(observations(MODEL))
    with pytest.raises(ThroughputError, match="one length"):
        fit_step_times(*columns[:4], columns[4][:-1])
