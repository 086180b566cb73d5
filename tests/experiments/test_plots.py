"""The figures show what the results say, with units, and are written as images of the format asked for."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloxopt.errors import ResultError
from bloxopt.experiments import gantt, plots
from bloxopt.simulation.result import SimulationResult

SIGNATURES = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF"}


def _axes(figure):
    (axes,) = figure.axes
    return axes


def test_the_jct_cdf_rises_to_the_share_of_jobs_that_finished(result):
    axes = _axes(plots.plot_jct_cdf(result))
    (line,) = axes.get_lines()
    np.testing.assert_allclose(line.get_xdata(), np.array([360.0, 360.0, 1000.25]) / 3600)
    np.testing.assert_allclose(line.get_ydata(), [0, 100 / 3, 200 / 3])
    assert "(hours)" in axes.get_xlabel()
    assert "(%)" in axes.get_ylabel()
    assert axes.get_xscale() == "log"
    assert axes.get_title(loc="left").splitlines() == ["Job completion times", "tiny · 2xV100+2xK80 · fifo"]


def test_several_results_are_labelled_by_what_differs_and_titled_by_what_does_not(make_result):
    figure = plots.plot_jct_cdf([make_result(policy="fifo"), make_result(policy="las")])
    axes = _axes(figure)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "fifo (1 of 3 jobs unfinished)",
        "las (1 of 3 jobs unfinished)",
    ]
    assert axes.get_title(loc="left").endswith("tiny · 2xV100+2xK80")
    assert len({line.get_color() for line in axes.get_lines()}) == 2


def test_equal_results_still_get_labels_of_their_own(make_result):
    axes = _axes(plots.plot_queue_length([make_result(), make_result()]))
    assert [line.get_label() for line in axes.get_lines()] == ["fifo", "fifo (2)"]


def test_the_seeds_of_a_policy_are_pooled_into_one_line(make_result):
    axes = _axes(plots.plot_jct_cdf({"fifo": [make_result(), make_result()]}))
    (line,) = axes.get_lines()
    assert list(line.get_ydata()) == pytest.approx([0, 100 / 6, 200 / 6, 300 / 6, 400 / 6])


def test_utilisation_is_the_share_of_the_gpus_that_are_up(result):
    result.rounds["gpus_up"] = [4, 2, 0]
    result.rounds["gpus_used"] = [2, 1, 0]
    axes = _axes(plots.plot_utilisation(result))
    np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), [50, 50, 0, 0])
    np.testing.assert_allclose(axes.get_lines()[0].get_xdata(), np.array([0, 360, 720, 1080]) / 3600)


def test_the_queue_length_counts_waiting_and_running_jobs(result):
    lines = {line.get_label(): line.get_ydata() for line in _axes(plots.plot_queue_length(result)).get_lines()}
    assert list(lines["waiting"]) == [0, 2, 1, 1]
    assert list(lines["running"]) == [1, 1, 1, 1]


def test_long_series_are_averaged_without_moving_the_mean(make_result):
    count = 20_000
    used = np.random.default_rng(0).integers(0, 5, count)
    rounds = pd.DataFrame(
        {"time": np.arange(count) * 60.0, "seconds": 60.0, "gpus_used": used, "gpus_up": 4, "waiting_jobs": used}
    )
    base = make_result()
    axes = _axes(plots.plot_utilisation(SimulationResult(base.jobs, rounds, base.placements, base.config)))
    series = axes.get_lines()[0].get_ydata()[:-1]
    assert len(series) == 400
    assert np.mean(series) == pytest.approx(25 * used.mean())


def test_a_long_idle_round_stays_long_when_the_series_is_averaged(make_result):
    seconds = np.full(2000, 60.0)
    seconds[1000] = 120_000.0
    used = np.full(2000, 4)
    used[1000] = 0
    rounds = pd.DataFrame(
        {"time": np.append(0, np.cumsum(seconds)[:-1]), "seconds": seconds, "gpus_used": used, "gpus_up": 4}
    )
    base = make_result()
    axes = _axes(plots.plot_utilisation(SimulationResult(base.jobs, rounds, base.placements, base.config)))
    series = axes.get_lines()[0].get_ydata()[:-1]
    assert np.mean(series) == pytest.approx(50, abs=0.1)
    assert np.mean(series == 0) == pytest.approx(0.5, abs=0.01)


def test_the_gantt_chart_has_a_lane_per_gpu_and_a_bar_per_spell(result):
    axes = _axes(plots.plot_gantt(result))
    (bars,) = axes.collections
    boxes = [path.get_extents() for path in bars.get_paths()]
    hours, lanes = [box.width for box in boxes], [box.height for box in boxes]
    np.testing.assert_allclose(hours, np.array([360, 360, 280.25]) / 3600)
    np.testing.assert_allclose(lanes, [2, 1, 2])
    assert axes.get_ylim() == (4, 0)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["node-0 (V100)", "node-1 (K80)"]
    # Bars of node-1 lie below the two lanes of node-0.
    assert boxes[2].y0 == 2


def test_nodes_with_names_of_their_own_get_as_many_lanes_as_gpus_in_use_at_once(result):
    result.placements["node"] = ["left", "left", "right"]
    axes = _axes(plots.plot_gantt(result))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["left (V100)", "right (K80)"]
    assert axes.get_ylim() == (4, 0)


def test_a_large_gantt_chart_is_cut_and_says_so(make_result):
    nodes, each = 200, 100
    start = np.tile(np.arange(each) * 3600.0, nodes)
    placements = pd.DataFrame(
        {
            "job_id": [f"job-{i}" for i in range(nodes * each)],
            "node": np.repeat([f"node-{i}" for i in range(nodes)], each),
            "gpu_type": "V100",
            "gpus": 1,
            "start": start,
            "end": start + 1800,
        }
    )
    base = make_result(cluster="200x1xV100")
    axes = _axes(plots.plot_gantt(SimulationResult(base.jobs, base.rounds, placements, base.config)))
    title = axes.get_title(loc="left")
    assert "first 160 of 200 nodes" in title
    assert "first 37 hours" in title
    assert len(axes.collections[0].get_paths()) <= gantt.MOST_SEGMENTS
    assert len(axes.get_yticks()) < 70


def test_touching_spells_of_a_job_are_one_bar():
    frame = pd.DataFrame(
        {
            "job_id": ["a", "a", "b", "a"],
            "node": "n",
            "gpu_type": "V100",
            "gpus": [1, 1, 1, 1],
            "start": [0.0, 10.0, 0.0, 30.0],
            "end": [10.0, 20.0, 20.0, 40.0],
        }
    )
    joined = gantt.merged(frame)
    assert sorted(zip(joined["job_id"], joined["start"], joined["end"], strict=True)) == [
        ("a", 0.0, 20.0),
        ("a", 30.0, 40.0),
        ("b", 0.0, 20.0),
    ]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 10), st.integers(1, 4)), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
def test_no_lane_is_used_twice_at_once_and_none_is_added_in_vain(spells):
    frame = pd.DataFrame(
        {"node": "n", "gpus": gpus, "start": float(start), "end": float(start + length)}
        for start, length, gpus in sorted(spells)
    )
    blocks = gantt.lanes_of(frame)
    peak = max(
        sum(row.gpus for row in frame.itertuples() if row.start <= moment < row.end) for moment in frame["start"]
    )
    for moment in frame["start"]:
        used = [
            lane
            for row, parts in zip(frame.itertuples(), blocks, strict=True)
            if row.start <= moment < row.end
            for first, count in parts
            for lane in range(first, first + count)
        ]
        assert len(used) == len(set(used))
        assert max(used) < peak
    assert [sum(count for _, count in parts) for parts in blocks] == list(frame["gpus"])


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_plots_are_images_of_the_format_asked_for(result, make_result, tmp_path, ending):
    written = plots.plot_result(result, tmp_path, [ending])
    assert sorted(path.stem for path in written) == ["gantt", "jct_cdf", "queue_length", "solves", "utilisation"]
    for path in written:
        assert path.read_bytes().startswith(SIGNATURES[ending])
        assert path.stat().st_size > 3000
    assert not [path for path in tmp_path.iterdir() if path not in written]


def test_the_same_result_gives_the_same_file(result, tmp_path):
    for ending in ("png", "svg"):
        for name in ("first", "second"):
            plots.plot_jct_cdf(result, tmp_path / f"{name}.{ending}")
        assert (tmp_path / f"first.{ending}").read_bytes() == (tmp_path / f"second.{ending}").read_bytes()


def test_an_unknown_format_is_refused_by_name(result, tmp_path):
    with pytest.raises(ResultError, match=r"cdf.bmp: cannot draw a 'bmp' file"):
        plots.plot_jct_cdf(result, tmp_path / "cdf.bmp")


def test_a_result_in_which_nothing_ran_can_still_be_drawn(make_result):
    base = make_result()
    jobs = base.jobs.assign(finish=np.nan, jct=np.nan)
    empty = SimulationResult(jobs, base.rounds.iloc[:0], base.placements.iloc[:0], base.config)
    for plot in plots.PLOTS.values():
        plot(empty).canvas.draw()


def test_every_plan_is_drawn_with_its_gap_and_its_rung_and_the_time_it_took(make_result):
    result = make_result(options={"round_budget": 0.02})
    result.rounds["gap"] = [1e-4, np.nan, np.nan]
    above, below = (drawing := plots.PLOTS["solves"](result)).axes
    by_label = {line.get_label(): line for line in above.get_lines()}
    np.testing.assert_allclose(by_label["solved (1)"].get_xydata(), [[0.0, 1e-4]])
    assert "greedy (1)" in by_label
    assert [line.get_marker() for line in above.get_lines() if len(line.get_xdata())] == [".", "x"], "no bound, no gap"
    times = np.concatenate([line.get_ydata() for line in below.get_lines() if line.get_marker() == "."])
    np.testing.assert_allclose(times, [15.0, 25.0])
    assert [line.get_ydata() for line in below.get_lines() if line.get_linestyle() == "--"] == [[20.0, 20.0]]
    assert [text.get_text() for text in drawing.legends[0].get_texts()] == ["solved (1)", "greedy (1)", "deadline"]


def test_a_simulation_without_plans_has_an_empty_figure(result):
    result.rounds["solved"] = False
    above, _ = plots.PLOTS["solves"](result).axes
    assert len(above.get_lines()) == 0


def test_results_of_before_rounds_had_rungs_are_drawn_too(result):
    rounds = result.rounds.drop(columns=["rung", "decide_seconds"])
    older = SimulationResult(result.jobs, rounds, result.placements, result.config)
    assert len(plots.PLOTS["solves"](older).axes) == 2


def test_gaps_above_1_and_plans_without_a_bound_stay_in_sight_and_are_told_apart(result):
    rounds = result.rounds.copy()
    rounds["solved"] = True
    rounds["gap"] = [4.0, np.nan, *np.zeros(len(rounds) - 2)]
    changed = SimulationResult(result.jobs, rounds, result.placements, result.config, result.wall_seconds)
    above, _ = plots.PLOTS["solves"](changed).axes
    lowest, highest = above.get_ylim()
    drawn = np.concatenate([line.get_ydata() for line in above.lines])
    assert ((drawn >= lowest) & (drawn <= highest)).all()
    assert "no bound" in above.get_ylabel()
