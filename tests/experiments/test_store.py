"""A result folder holds a whole result or none, and gives back exactly what was written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pandas as pd
import pytest

from bloxopt.errors import ResultError
from bloxopt.experiments.files import plain, staged, toml_text, write_atomically
from bloxopt.experiments.store import differences, load_config, load_result, load_summary, save_result, versions

EXPERIMENT = {"trace": {"name": "tiny"}, "simulation": {"seed": 3}, "policy": {"name": "fifo", "options": {}}}


def test_a_result_comes_back_exactly(result, tmp_path):
    back = load_result(save_result(result, tmp_path / "run"))
    for table in ("jobs", "rounds", "placements"):
        pd.testing.assert_frame_equal(getattr(back, table), getattr(result, table), check_dtype=False)
    assert back.config == plain(result.config)
    assert back.summary() == result.summary()


def test_a_result_without_rounds_or_placements_comes_back(make_result, tmp_path):
    empty = make_result()
    empty = type(empty)(empty.jobs, empty.rounds.iloc[:0], empty.placements.iloc[:0], empty.config)
    back = load_result(save_result(empty, tmp_path / "run", plot_formats=["png"]))
    assert len(back.rounds) == len(back.placements) == 0
    assert list(back.placements.columns) == list(empty.placements.columns)


def test_the_folder_holds_tables_summary_configuration_versions_and_plots(result, tmp_path):
    folder = save_result(result, tmp_path / "run", experiment=EXPERIMENT, plot_formats=["png", "svg"])
    plots = {
        f"{name}.{end}"
        for name in ("jct_cdf", "utilisation", "queue_length", "gantt", "solves")
        for end in ("png", "svg")
    }
    tables = {"jobs.parquet", "rounds.parquet", "placements.parquet"}
    assert {file.name for file in folder.iterdir()} == {
        "summary.json",
        "config.json",
        "experiment.toml",
        *tables,
        *plots,
    }
    assert load_summary(folder)["average_jct"] == pytest.approx(680.125)
    config = load_config(folder)
    assert config["experiment"] == EXPERIMENT
    assert config["versions"] == versions()
    assert {"python", "bloxopt", "numpy", "ortools", "highspy"} <= versions().keys()
    assert tomllib.loads((folder / "experiment.toml").read_text()) == EXPERIMENT


def test_json_files_are_strictly_valid_where_values_are_not_numbers(make_result, tmp_path):
    unfinished = make_result()
    unfinished.jobs["finish"] = float("nan")
    folder = save_result(unfinished, tmp_path / "run")

    def refuse(text):
        raise AssertionError(f"{text} is not JSON")

    summary = json.loads((folder / "summary.json").read_text(), parse_constant=refuse)
    assert summary["finished"] == 0
    assert summary["average_jct"] is None


def test_results_of_another_run_are_not_overwritten_unasked(result, make_result, tmp_path):
    folder = save_result(result, tmp_path / "run")
    with pytest.raises(ResultError, match=r"run: holds the results of another run.*--overwrite"):
        save_result(make_result(policy="las"), folder)
    assert load_result(folder).config["policy"] == "fifo"


def test_overwriting_replaces_everything_including_old_plots(result, make_result, tmp_path):
    folder = save_result(result, tmp_path / "run", experiment=EXPERIMENT, plot_formats=["svg"])
    (folder / "notes.txt").write_text("mine")
    save_result(make_result(policy="las"), folder, overwrite=True, plot_formats=["png"])
    assert load_result(folder).config["policy"] == "las"
    assert not list(folder.glob("*.svg"))
    assert (folder / "gantt.png").exists()
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_file_in_the_place_of_the_folder_is_named(result, tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(ResultError, match="run: results cannot be written: it is a file"):
        save_result(result, tmp_path / "run")
    with pytest.raises(ResultError, match="the folder cannot be made: Not a directory"):
        save_result(result, tmp_path / "run" / "deeper")


@pytest.mark.parametrize("name", ["jobs.parquet", "placements.parquet", "config.json", "summary.json"])
def test_an_incomplete_folder_is_refused_naming_what_is_missing(result, tmp_path, name):
    folder = save_result(result, tmp_path / "run")
    (folder / name).unlink()
    with pytest.raises(ResultError, match=re.escape(f"not a complete result folder: {name} is missing")):
        load_result(folder)


@pytest.mark.parametrize("name", ["rounds.parquet", "config.json", "summary.json"])
def test_a_corrupt_file_is_refused_by_name(result, tmp_path, name):
    folder = save_result(result, tmp_path / "run")
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ResultError, match=rf"{re.escape(name)}: corrupt"):
        load_result(folder)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ResultError, match="nowhere: no such result folder"):
        load_result(tmp_path / "nowhere")


FULL_DISK = """
    import resource, sys
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    from conftest import hand_made_result
    from bloxopt.errors import ResultError
    from bloxopt.experiments.store import save_result
    result = hand_made_result(policy="las")
    import pandas, pyarrow.parquet, matplotlib.figure  # written bytecode must not meet the limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        save_result(result, sys.argv[1], overwrite=True, plot_formats={formats!r})
    except ResultError as error:
        print(error)
        sys.exit(2)
"""


@pytest.mark.parametrize("formats", [(), ("png",)], ids=["table", "plot"])
def test_a_full_disk_leaves_earlier_results_whole_and_no_partial_file(result, make_result, tmp_path, formats):
    folder = save_result(result, tmp_path / "run")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    script = textwrap.dedent(FULL_DISK).format(tests=str(Path(__file__).parent), formats=formats)
    for place in (folder, tmp_path / "new" / "run"):
        ended = subprocess.run(
            [sys.executable, "-B", "-c", script, str(place)], capture_output=True, text=True, timeout=120, check=False
        )
        assert ended.returncode == 2, ended.stderr
        assert str(place) in ended.stdout
        assert ended.stdout.endswith(": File too large\n")
        assert ".partial" not in ended.stdout
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert not (tmp_path / "new").exists()


def test_files_that_cannot_be_renamed_into_place_leave_the_old_ones(tmp_path, monkeypatch):
    target = tmp_path / "table.csv"
    target.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ResultError, match=r"table.csv: cannot be written: No space left on device"):
        write_atomically(target, lambda path: path.write_text("new"))
    assert [file.name for file in tmp_path.iterdir()] == ["table.csv"]
    assert target.read_text() == "old"


def test_an_interrupt_while_writing_leaves_nothing_behind(tmp_path):
    def write_and_be_interrupted() -> None:
        with staged(tmp_path / "run", last="summary.json") as stage:
            (stage / "jobs.parquet").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_be_interrupted()
    assert not (tmp_path / "run").exists()


def test_what_a_killed_run_left_behind_is_cleared_away(result, tmp_path):
    (tmp_path / "run" / ".partial-killed").mkdir(parents=True)
    (tmp_path / "run" / ".partial-killed" / "jobs.parquet").write_text("half")
    assert not list(save_result(result, tmp_path / "run").glob(".partial-*"))


def test_what_differs_from_a_stored_run_is_named_by_key(result, tmp_path):
    folder = save_result(result, tmp_path / "run", experiment=EXPERIMENT, inputs={"/a.csv": "1", "/b.csv": "2"})
    inputs = {"/a.csv": "1", "/b.csv": "2"}
    elsewhere = {**EXPERIMENT, "output": {"folder": "elsewhere"}}
    assert differences(folder, elsewhere, inputs) == []
    changed = {**EXPERIMENT, "simulation": {"seed": 4}, "solver": {"name": "highs"}}
    assert differences(folder, changed, inputs) == [
        "simulation.seed is 3 there and 4 here",
        "solver.name is unset there and 'highs' here",
    ]
    assert differences(folder, EXPERIMENT, {**inputs, "/b.csv": "3"}) == ["/b.csv has changed since"]


def test_toml_text_reads_back_as_the_same_tables():
    document = {
        "text": 'quotes " \\ and \n lines, Umläute, \x7f',
        "numbers": [1, 2.5, -1e-9, float("inf")],
        "flag": True,
        "nothing": None,
        "table": {"empty": {}, "a key": {"x": 1}, "list": [{"node": "n", "start": 0.0}]},
    }
    expected = {key: value for key, value in document.items() if value is not None}
    assert tomllib.loads(toml_text(document)) == expected
