"""The command line in processes of its own: what a user sees, exit codes, stdout and stderr."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from bloxopt.cli import console, run

EXAMPLES = Path(__file__).parents[2] / "examples"


def bloxopt(*arguments: str, cwd: Path | None = None, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bloxopt.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        cwd=cwd,
        **options,
    )


def test_a_simulation_prints_its_summary_and_writes_its_folder(tmp_path):
    ended = bloxopt(
        *("simulate", "--trace", "gavel-15", "--cluster", "8xV100+16xP100+24xK80", "--policy", "max_min_fairness"),
        *("--solver", "auto", "--preset", "gavel", "--seed", "0", "--output", "results/x"),
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == "gavel-15 · 8xV100+16xP100+24xK80 · max_min_fairness · cvxpy:clarabel"
    summary = json.loads((tmp_path / "results/x/summary.json").read_text())
    (shown,) = [line.split()[-1] for line in lines if line.startswith("average JCT")]
    assert float(shown) == pytest.approx(summary["average_jct"] / 3600, abs=0.0006)
    assert ended.stderr == "results in results/x\n"
    names = {file.name for file in (tmp_path / "results/x").iterdir()}
    assert {"jobs.parquet", "rounds.parquet", "placements.parquet", "config.json", "jct_cdf.png", "gantt.png"} <= names
    assert len(pd.read_parquet(tmp_path / "results/x/jobs.parquet")) == 15


def test_json_is_all_there_is_on_stdout(tmp_path):
    ended = bloxopt(
        "simulate", "--trace", "gavel-15", "--policy", "fifo", "--json", "-o", "x", "--no-plots", cwd=tmp_path
    )
    document = json.loads(ended.stdout)
    assert document["summary"]["finished"] == 15
    assert document["config"]["policy"] == "fifo"
    assert document["experiment"]["trace"]["name"] == "gavel-15"
    assert document["folder"] == "x"
    assert not list((tmp_path / "x").glob("*.png"))


def test_the_default_cluster_is_the_traces_own():
    document = json.loads(bloxopt("simulate", "--trace", "tiresias-60", "--policy", "fifo", "--json").stdout)
    assert document["config"]["cluster"] == "4x4xP100"


def test_options_override_the_experiment_file(tmp_path):
    (tmp_path / "e.toml").write_text('trace = "gavel-15"\npolicy = "fifo"\n[simulation]\nseed = 4\n')
    ended = bloxopt("simulate", "e.toml", "--round-seconds", "60", "--set", "simulation.seed=9", "--json", cwd=tmp_path)
    config = json.loads(ended.stdout)["config"]
    assert (config["options"]["round_seconds"], config["seed"]) == (60, 9)


@pytest.mark.parametrize("name", ["simulate", "what_if", "composed", "hived"])
def test_the_examples_of_single_runs_work(name, tmp_path):
    ended = bloxopt("simulate", str(EXAMPLES / f"{name}.toml"), "--json", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)["summary"]
    assert summary["finished"] + summary["rejected"] == summary["jobs"]
    assert (tmp_path / "results" / name / "gantt.png").exists()


@pytest.mark.parametrize(("name", "runs"), [("compare", 4), ("generated", 6), ("demo", 4)])
def test_the_examples_of_comparisons_work(name, runs, tmp_path):
    ended = bloxopt("compare", str(EXAMPLES / f"{name}.toml"), "--jobs", "2", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    table = pd.read_csv(tmp_path / "results" / name / "comparison.csv", keep_default_na=False)
    assert list(table["status"]) == ["finished"] * runs
    assert (tmp_path / "results" / name / "jct_cdf.png").exists()
    assert "max_min_fairness" in ended.stdout


def test_there_are_no_other_examples():
    single = {"simulate", "what_if", "composed", "hived"}
    assert {file.stem for file in EXAMPLES.glob("*.toml")} == single | {"compare", "generated", "demo", "synergy"}


def test_a_failing_run_is_shown_at_the_end_and_the_others_are_kept(tmp_path):
    ended = bloxopt(
        *("compare", "--trace", "tiresias-60", "--clusters", "4x4xP100,1x4xP100", "--policy", "fifo", "-o", "c"),
        *("--jobs", "1", "--no-plots"),
        cwd=tmp_path,
    )
    assert ended.returncode == 2
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("error: 1x4xP100__fifo__default__seed-0: job ")
    assert "1 of 1" in ended.stdout
    assert (tmp_path / "c/4x4xP100__fifo__default__seed-0/summary.json").exists()


def test_plots_of_results_and_comparisons_can_be_drawn_later(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["--trace", "gavel-15", "--no-plots"]
    assert run(["simulate", *arguments, "--policy", "fifo", "-o", "a"]) == 0
    assert run(["compare", *arguments, "--policies", "fifo,max_min_fairness", "--jobs", "1", "-o", "c"]) == 0
    assert not list(tmp_path.rglob("*.png"))
    capsys.readouterr()
    assert run(["plot", "a", "--format", "svg", "--format", "png"]) == 0
    written = capsys.readouterr().out.split()
    assert len(written) == 10
    assert all((tmp_path / name).stat().st_size > 1000 for name in written)
    assert run(["plot", "c"]) == 0
    assert capsys.readouterr().out.split() == ["c/jct_cdf.png", "c/utilisation.png", "c/queue_length.png"]
    assert run(["plot", "a", "c/max_min_fairness__default__seed-0", "-o", "both"]) == 0
    assert (tmp_path / "both/queue_length.png").exists()
    assert run(["plot", "a", "c/max_min_fairness__default__seed-0"]) == 2
    assert "several results: give --output" in capsys.readouterr().err


def test_a_generated_trace_is_the_same_for_the_same_seed_and_can_be_simulated(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        arguments = ["--num-jobs", "12", "--jobs-per-hour", "30", "--durations", "600", "--seed", seed]
        assert run(["generate", f"{name}.csv", *arguments]) == 0
    assert Path("a.csv").read_bytes() == Path("b.csv").read_bytes() != Path("c.csv").read_bytes()
    assert capsys.readouterr().out == ""
    assert run(["simulate", "--trace", "a.csv", "--cluster", "2x8xV100", "--policy", "fifo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["finished"] == 12


def test_tables_in_a_pipe_are_not_cut(tmp_path):
    ended = bloxopt("traces", env={**os.environ, "COLUMNS": "40"})
    rows = ended.stdout.splitlines()
    assert rows[0].split()[:3] == ["name", "jobs", "cluster"]
    assert any("github.com/stanford-futuredata/gavel" in row and row.endswith("MIT") for row in rows)
    assert len(rows) == 1 + len(json.loads(bloxopt("traces", "--json").stdout))


def test_a_reader_that_stops_reading_gets_no_traceback():
    process = subprocess.Popen(
        [sys.executable, "-m", "bloxopt.cli", "traces", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.wait(timeout=60) == 1
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [["traces"], ["traces", "--json"], ["--version"]])
def test_output_that_cannot_be_written_is_one_line(arguments):
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "bloxopt.cli", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (2, "error: standard output: No space left on device\n")


def wait_until_it_has_worked(session: subprocess.Popen, seconds: float) -> None:
    """Wait for so much processor time of a session's processes: however busy the machine is, they are as far then."""
    if not Path("/proc/self/stat").exists():
        time.sleep(seconds)
        return
    give_up = time.monotonic() + 120.0
    while session.poll() is None and time.monotonic() < give_up:
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rsplit(")", 1)[1].split()
                ticks += int(fields[11]) + int(fields[12]) if int(fields[3]) == session.pid else 0
        if ticks >= seconds * os.sysconf("SC_CLK_TCK"):
            return
        time.sleep(0.1)


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_ctrl_c_ends_with_130_and_leaves_no_half_result(command, tmp_path):
    arguments = ["--policies", "fifo,max_min_fairness", "-j", "2"] if command == "compare" else []
    process = subprocess.Popen(
        [sys.executable, "-m", "bloxopt.cli", command, "--trace", "philly", *arguments, "-o", "x"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell that runs the tests in the background has them, and all below, ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_until_it_has_worked(process, 3.0)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130
    assert (out, err) == ("", "interrupted\n")
    assert not list(tmp_path.rglob("*.parquet"))
    assert not list(tmp_path.rglob(".partial-*"))


def test_help_and_version_are_quick_and_import_no_solver():
    code = (
        "import sys; from bloxopt.cli import run; code = run(['--help']); "
        "heavy = {'numpy', 'pandas', 'scipy', 'ortools', 'cvxpy', 'pulp', 'highspy', 'matplotlib', 'pydantic'}; "
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "[]\n")
    assert "simulate" in ended.stdout
    assert bloxopt("--version").stdout.startswith("bloxopt 0.")


def test_a_narrow_terminal_shows_fewer_columns_and_says_which_file_has_them(monkeypatch, capsys):
    monkeypatch.setattr(console, "_is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    row = {"policy": "max_min_fairness", **{f"quantity {i}": "123.456 ± 0.001" for i in range(6)}}
    left_out = console.print_table([row], at_least=2)
    assert left_out == ["quantity 2", "quantity 3", "quantity 4", "quantity 5"]
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert any("max_min_fairness   123.456 ± 0.001   123.456 ± 0.001" in line for line in lines)
    assert console.print_table([row], at_least=7) == []


def test_help_loses_no_word_of_what_options_say(monkeypatch, capsys):
    from typer.main import get_command

    from bloxopt.cli.app import app

    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERMINAL_WIDTH", "300")
    submit = get_command(app).commands["submit"]
    assert run(["submit", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Jobs from a TOML file: [[jobs]] tables." in shown
    texts = [option.help for option in submit.params if option.name not in ("file", "help")]
    assert len(texts) > 10
    assert [text for text in texts if text not in shown] == []


def test_errors_of_usage_name_the_help_of_their_command(capsys):
    for arguments, command in ([["queue", "--limit", "0"], "queue"], [["token", "revoke"], "token revoke"]):
        assert run(arguments) == 2
        assert capsys.readouterr().err.endswith(f"(see bloxopt {command} --help)\n")
    assert run(["nope"]) == 2
    assert capsys.readouterr().err.endswith("(see bloxopt --help)\n")
