"""Bad input gives one line on stderr that says what is wrong and the way out, and exit code 2."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys

import pytest

from bloxopt.cli import run

SIMULATE = ["simulate", "--trace", "gavel-15", "--policy", "fifo"]

BAD_LINES = {
    "unknown command": (["simulat"], "No such command 'simulat'"),
    "unknown option": (["simulate", "--polici", "fifo"], "No such option: --polici"),
    "value of another kind": (["simulate", "--seed", "x"], "Invalid value for '--seed'"),
    "missing argument": (["plot"], "Missing argument"),
    "no trace": (["simulate"], "no trace: name one ([trace] or --trace, see `bloxopt traces`)"),
    "unknown trace": (["simulate", "--trace", "gavel-10"], "--trace: unknown trace 'gavel-10': did you mean 'gavel-1"),
    "unknown policy": (
        ["simulate", "--trace", "gavel-15", "--policy", "max_min_farness"],
        "--policy: unknown policy 'max_min_farness': did you mean 'max_min_fairness'? choose one of",
    ),
    "unknown solver": (
        [*SIMULATE, "--solver", "glop"],
        "--solver: unknown solver 'glop': did you mean 'ortools:glop'?",
    ),
    "unknown preset": ([*SIMULATE, "--preset", "gavl"], "--preset: unknown preset 'gavl': did you mean 'gavel'?"),
    "unknown placement": ([*SIMULATE, "--placement", "firstfit"], "did you mean 'first_fit'?"),
    "unknown selector": (
        [*SIMULATE, "--selector", "exakt"],
        "--selector: unknown selector 'exakt': did you mean 'exact'?",
    ),
    "missing trace file": (
        ["simulate", "--trace", "no.csv", "--cluster", "4xV100"],
        "no.csv: cannot be read: No such file",
    ),
    "missing cluster": (["simulate", "--trace", "jobs.csv"], "no cluster: trace file"),
    "malformed cluster": ([*SIMULATE, "--cluster", "8V100"], "8V100"),
    "missing cluster file": ([*SIMULATE, "--cluster", "no.toml"], "no.toml"),
    "job larger than the cluster": (
        ["simulate", "--trace", "jobs.csv", "--cluster", "2xV100", "--policy", "fifo"],
        "job 'big' needs 4 GPUs of one type but the largest pool of 2xV100 has 2",
    ),
    "zero throughput": ([*SIMULATE, "--cluster", "8xA100"], "zero throughput on every GPU type"),
    "empty trace": (["simulate", "--trace", "empty.csv", "--cluster", "4xV100"], "empty.csv"),
    "malformed trace": (["simulate", "--trace", "bad.csv", "--cluster", "4xV100"], "bad.csv"),
    "negative seed": ([*SIMULATE, "--seed", "-1"], "--seed: is -1, must be greater than or equal to 0"),
    "negative round": ([*SIMULATE, "--round-seconds", "-5"], "--round-seconds: is -5.0, must be greater than 0"),
    "not a number": ([*SIMULATE, "--round-seconds", "nan"], "--round-seconds: is nan, must be a finite number"),
    "zero load": ([*SIMULATE, "--load", "0"], "--load: is 0.0, must be greater than 0"),
    "set without value": ([*SIMULATE, "--set", "simulation.seed"], "--set simulation.seed: write KEY=VALUE"),
    "set of an unknown key": (
        [*SIMULATE, "--set", "simulation.sead=1"],
        "--set simulation.sead: unknown key; did you mean 'seed'?",
    ),
    "set into a value": ([*SIMULATE, "--set", "policy.name.x=1"], "policy.name.x: name is a value, not a table"),
    "missing experiment file": (["simulate", "no.toml"], "no.toml: no such experiment file"),
    "malformed TOML": (["simulate", "bad.toml"], "bad.toml: not valid TOML: "),
    "unknown key": (
        ["simulate", "key.toml"],
        "key.toml: simulation.rond_seconds: unknown key; did you mean 'round_sec",
    ),
    "wrong kind": (["simulate", "kind.toml"], "kind.toml: solver.time_limit: is 'long', must be a number"),
    "a comparison as a simulation": (["simulate", "compare.toml"], "compare.toml: has [compare]: run it with"),
    "output is a file": ([*SIMULATE, "-o", "jobs.csv"], "jobs.csv: results cannot be written: it is a file"),
    "output below a file": ([*SIMULATE, "-o", "jobs.csv/x"], "jobs.csv/x: the folder cannot be made: Not a directory"),
    "output that nobody can write": ([*SIMULATE, "-o", "/proc/results"], "/proc/results: the folder cannot be made: "),
    "comparison without output": (["compare", "--trace", "gavel-15"], "no output folder"),
    "unknown policy in a list": (
        ["compare", "--trace", "gavel-15", "--policies", "fifo,fofi", "-o", "c"],
        "--policies: unknown policy 'fofi': did you mean 'fifo'?",
    ),
    "value twice in a list": (
        ["compare", "--trace", "gavel-15", "--seeds", "1,1", "-o", "c"],
        "--seeds: lists 1 twice",
    ),
    "a mistake in the last of several runs": (
        ["compare", "--trace", "gavel-15", "--clusters", "4xV100,zz", "-o", "c"],
        "--clusters: cluster 'zz': cannot read 'zz'",
    ),
    "a missing trace among several": (
        ["compare", "--traces", "gavel-15,no.csv", "--cluster", "4xV100", "-o", "c"],
        "no.csv: cannot be read: No such file",
    ),
    "a policy file that exits in a comparison": (
        ["compare", "--trace", "gavel-15", "--policies", "fifo,leave.py:fair", "-o", "c"],
        "it raised SystemExit: 3 (",
    ),
    "a policy file that exits": (
        ["simulate", "--trace", "gavel-15", "--policy", "leave.py:fair"],
        "leave.py, line 2)",
    ),
    "unknown option of a selector": (
        [*SIMULATE, "--set", "simulation.selector_options.fo=3"],
        "--set simulation.selector_options.fo: selector_options: selector 'priorities': unknown option 'fo'",
    ),
    "unknown option of a policy": (
        [*SIMULATE, "--set", "policy.options.foo=3"],
        "--set policy.options.foo: policy 'fifo': unknown option 'foo': known are backfill",
    ),
    "a device as trace": (["simulate", "--trace", "/dev/zero", "--cluster", "4xV100"], "/dev/zero: not a regular file"),
    "a pipe as trace": (["simulate", "--trace", "./pipe.csv", "--cluster", "4xV100"], "pipe.csv: not a regular file"),
    "a pipe as cluster": ([*SIMULATE, "--cluster", "pipe.toml"], "pipe.toml: not a regular file"),
    "a pipe as experiment": (["simulate", "pipe.toml"], "pipe.toml: not a regular file"),
    "a pipe as throughputs": ([*SIMULATE, "--throughput", "pipe.csv"], "pipe.csv: not a regular file"),
    "jobs later than times go": (
        ["generate", "new.csv", "--jobs-per-hour", "1e-300"],
        "generate: the last of 100 jobs would arrive after",
    ),
    "an unknown trace format": (
        ["simulate", "--trace", "key.toml", "--cluster", "4xV100"],
        "name the format (--set trace.format=NAME",
    ),
    "no output folder": ([*SIMULATE, "--set", "output.folder="], "--set output.folder: is '', must not be empty"),
    "no processes": (["compare", "--trace", "gavel-15", "-j", "0", "-o", "c"], "Invalid value for '--jobs'"),
    "table below a file": (["reproduce", "--csv", "jobs.csv/x.csv"], "jobs.csv: the folder cannot be made: "),
    "table that is a folder": (["reproduce", "--csv", "."], ".: cannot be written: it is a folder"),
    "table that nobody can write": (
        ["audit", "--trace", "gavel-100", "--csv", "/proc/x/plans.csv"],
        "/proc/x: the folder cannot be made: ",
    ),
    "audit into a device": (
        ["audit", "--trace", "gavel-100", "--csv", "/dev/null"],
        "/dev/null: cannot be written: it is no regular file",
    ),
    "audit of a property twice": (
        ["audit", "--trace", "gavel-15", "--properties", "feasibility,feasibility"],
        "property 'feasibility' is named twice",
    ),
    "audit of no property": (["audit", "--trace", "gavel-15", "--properties", ","], "no property to audit"),
    "reproduction of an unknown system": (["reproduce", "gavle"], "unknown system 'gavle': did you mean 'gavel'?"),
    "explanation of nothing": (["explain", "nowhere", "0"], "nowhere: no such result folder"),
    "explanation at no time": (["explain", ".", "0", "--at", "-1"], "Invalid value for '--at'"),
    "plot of nothing": (["plot", "nowhere"], "nowhere: no such result folder"),
    "plot of another folder": (["plot", "."], ".: not a complete result folder: summary.json is missing"),
    "plot in an unknown format": (["plot", ".", "--format", "bmp"], "--format: is 'bmp', must be one of png, svg, pdf"),
    "generate over a file": (["generate", "jobs.csv"], "jobs.csv: exists: choose another name"),
    "generate without a rate": (["generate", "new.csv"], "needs either jobs_per_hour or interarrival"),
    "generate from an unknown distribution": (
        ["generate", "new.csv", "--jobs-per-hour", "5", "--durations", "gavl"],
        "'gavl': did you mean 'gavel'?",
    ),
    "generate an unknown kind of file": (["generate", "new.xyz", "--jobs-per-hour", "5"], "new.xyz"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    files = {
        "jobs.csv": "job_id,arrival,duration,num_gpus\nsmall,0,100,1\nbig,0,100,4\n",
        "empty.csv": "job_id,arrival,duration,num_gpus\n",
        "bad.csv": "job_id,arrival,duration,num_gpus\na,0,-5,1\n",
        "bad.toml": "[trace",
        "key.toml": 'trace = "gavel-15"\n[simulation]\nrond_seconds = 60\n',
        "kind.toml": 'trace = "gavel-15"\n[solver]\ntime_limit = "long"\n',
        "leave.py": "import sys\nsys.exit(3)\n",
        "compare.toml": 'trace = "gavel-15"\n[compare]\nseeds = [1, 2]\n',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for name in ("pipe.csv", "pipe.toml"):
        os.mkfifo(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("arguments", "message"), BAD_LINES.values(), ids=BAD_LINES.keys())
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, folder, capsys):
    before = sorted(folder.rglob("*"))
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


def test_json_prints_nothing_on_stdout_when_it_fails(folder, capsys):
    assert run([*SIMULATE, "--preset", "gavl", "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_results_of_another_run_are_kept_unless_overwritten(folder, capsys):
    assert run([*SIMULATE, "-o", "x", "--no-plots"]) == 0
    before = (folder / "x/summary.json").read_bytes()
    assert run([*SIMULATE, "--policy", "max_min_fairness", "-o", "x"]) == 2
    assert "x: holds the results of another run: choose another output folder" in capsys.readouterr().err
    assert (folder / "x/summary.json").read_bytes() == before
    assert run([*SIMULATE, "--policy", "max_min_fairness", "-o", "x", "--no-plots", "--overwrite"]) == 0
    assert json.loads((folder / "x/summary.json").read_text())["policy"] == "max_min_fairness"


@pytest.mark.parametrize(
    "command", ["traces", "policies", "admissions", "solvers", "placements", "selectors", "presets"]
)
def test_every_listing_names_the_same_things_for_people_and_as_json(command, capsys):
    assert run([command, "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert run([command]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split()[0] == "name"
    assert [row.split()[0] for row in rows] == names
    assert len(names) > 1


def test_without_a_command_the_help_is_shown(capsys):
    assert run([]) == 0
    assert "simulate" in capsys.readouterr().out


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_closed_stream_loses_what_is_printed_and_nothing_else(closed, folder):
    command = [sys.executable, "-m", "bloxopt.cli", *SIMULATE, "--no-plots", "-o", "x"]
    redirect = ">&-" if closed == "stdout" else "2>&-"
    done = subprocess.run(["sh", "-c", f'exec "$@" {redirect}', "sh", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (folder / "x/summary.json").exists()


def test_ctrl_c_while_the_program_starts_is_no_traceback(monkeypatch, capsys):
    real = builtins.__import__

    def interrupted(name, *arguments, **options):
        if name == "bloxopt.cli.app":
            raise KeyboardInterrupt
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    assert run(["traces"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
