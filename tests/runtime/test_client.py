"""The client of training scripts: cheap, alone, harmless outside bloxopt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bloxopt.runtime.progress import MOST_RANKS, SIZE, ProgressWriter, read_progress


def script(code: str, run_dir: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own, in the environment that agents give."""
    given = {**os.environ, **environment}
    if run_dir is not None:
        given |= {"BLOXOPT_RUN_DIR": str(run_dir), "BLOXOPT_JOB_ID": "job", "BLOXOPT_ATTEMPT": "2"}
    return subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)


def test_only_the_standard_library_is_imported() -> None:
    code = (
        "import json, sys, time; begin = time.perf_counter(); import bloxopt.runtime.client;"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)))"
    )
    # What the interpreter itself loads at its start (editable installs, say) is not ours.
    bare = "import json, sys; print(json.dumps(sorted({n.partition('.')[0] for n in sys.modules})))"
    before = set(json.loads(script(bare).stdout))
    assert set(json.loads(script(code).stdout)) - before == {"bloxopt"}


def test_steps_are_told_and_counted_when_their_body_is_done(tmp_path: Path) -> None:
    code = (
        "from bloxopt.runtime import client\n"
        "seen = []\n"
        "for item in client.steps('abcde', start=10):\n"
        "    seen.append((item, client.steps_done()))\n"
        "print(seen, client.steps_done())"
    )
    told = script(code, tmp_path, RANK="3").stdout.strip()
    assert told == "[('a', 10), ('b', 11), ('c', 12), ('d', 13), ('e', 14)] 15"
    progress = read_progress(tmp_path)[3]
    assert progress.steps == 15
    assert progress.steps_per_second is not None
    assert progress.steps_per_second > 0


def test_a_step_left_by_break_does_not_count(tmp_path: Path) -> None:
    code = "from bloxopt.runtime import client\nfor item in client.steps(range(10)):\n    if item == 4: break"
    script(code, tmp_path)
    assert read_progress(tmp_path)[0].steps == 4


def test_the_rate_is_that_of_the_loop(tmp_path: Path) -> None:
    code = (
        "import time\nfrom bloxopt.runtime import client\nclient.RATE_WINDOW = 0.2\n"
        "for item in client.steps(range(60)): time.sleep(0.01)"
    )
    script(code, tmp_path)
    rate = read_progress(tmp_path)[0].steps_per_second
    assert rate is not None
    assert 20 < rate <= 100


def test_outside_bloxopt_nothing_happens() -> None:
    code = (
        "import signal\nfrom bloxopt.runtime import client\n"
        "assert list(client.steps([1, 2])) == [1, 2] and client.steps_done() == 2\n"
        "assert not client.should_checkpoint() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL\n"
        "print(client.is_managed(), client.job_id(), client.attempt(), client.resume_steps(), client.rank(),\n"
        "      client.local_rank(), client.world_size(), client.local_world_size(), client.node_rank())"
    )
    assert script(code).stdout.strip() == "False None 0 0.0 0 0 1 1 0"


def test_the_environment_is_read_as_agents_give_it(tmp_path: Path) -> None:
    code = (
        "from bloxopt.runtime import client\n"
        "print(client.is_managed(), client.job_id(), client.attempt(), client.resume_steps(), client.rank(),\n"
        "      client.local_rank(), client.world_size(), client.local_world_size(), client.node_rank())"
    )
    told = script(
        code,
        tmp_path,
        BLOXOPT_RESUME_STEPS="1234.5",
        RANK="5",
        LOCAL_RANK="1",
        WORLD_SIZE="8",
        LOCAL_WORLD_SIZE="4",
        NODE_RANK="1",
    )
    assert told.stdout.strip() == "True job 2 1234.5 5 1 8 4 1"


def test_should_checkpoint_is_true_after_sigterm_and_calls_who_listened_before(tmp_path: Path) -> None:
    code = (
        "import os, signal\nfrom bloxopt.runtime import client\nheard = []\n"
        "signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))\n"
        "first = client.should_checkpoint()\nos.kill(os.getpid(), signal.SIGTERM)\n"
        "print(first, client.should_checkpoint(), heard == [signal.SIGTERM])"
    )
    assert script(code, tmp_path).stdout.strip() == "False True True"


def test_before_the_first_question_sigterm_ends_the_process_as_ever(tmp_path: Path) -> None:
    code = (
        "import os, signal\nfrom bloxopt.runtime import client\n"
        "for step in client.steps(range(3)): os.kill(os.getpid(), signal.SIGTERM)"
    )
    with pytest.raises(subprocess.CalledProcessError) as caught:
        script(code, tmp_path)
    assert caught.value.returncode == -signal.SIGTERM


def test_workers_that_a_job_forks_end_at_sigterm(tmp_path: Path) -> None:
    code = (
        "import os, signal, time\nfrom bloxopt.runtime import client\nclient.should_checkpoint()\n"
        "worker = os.fork()\n"
        "if worker == 0: time.sleep(60)\n"
        "time.sleep(0.1)\nos.kill(worker, signal.SIGTERM)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))"
    )
    assert script(code, tmp_path).stdout.strip() == "-15"


@pytest.mark.parametrize("folder", ["missing", "plain file"])
def test_a_run_folder_that_cannot_be_written_stops_no_job(tmp_path: Path, folder: str) -> None:
    target = tmp_path / "folder"
    if folder == "plain file":
        target.write_text("")
    code = "from bloxopt.runtime import client\nprint(len(list(client.steps(range(5)))))"
    assert script(code, target).stdout.strip() == "5"


def test_a_step_takes_no_system_call(tmp_path: Path) -> None:
    """The kernel counts those that could block or move data: none is added by 100,000 steps."""
    code = (
        "import resource\nfrom bloxopt.runtime import client\nlist(client.steps(range(10)))\n"
        "def counts():\n"
        "    io = dict(line.split(': ') for line in open('/proc/self/io').read().splitlines())\n"
        "    return int(io['syscr']), int(io['syscw'])\n"
        "counts(); before = counts(); list(client.steps(range(100000))); after = counts()\n"
        "print(after[0] - before[0], after[1] - before[1])"
    )
    quiet = code.replace("list(client.steps(range(100000)))", "None")
    assert script(code, tmp_path).stdout == script(quiet, tmp_path).stdout


def test_a_step_costs_less_than_ten_microseconds(tmp_path: Path) -> None:
    code = (
        "import time\nfrom bloxopt.runtime import client\nbest = 1.0\n"
        "for _ in range(5):\n"
        "    begin = time.process_time()\n"
        "    for step in client.steps(range(20000)): client.should_checkpoint()\n"
        "    best = min(best, (time.process_time() - begin) / 20000)\n"
        "print(best)"
    )
    assert float(script(code, tmp_path).stdout) < 10e-6


def test_what_a_job_puts_in_its_folder_harms_no_reader(tmp_path: Path) -> None:
    ProgressWriter(str(tmp_path), 7).store(3.0, time.monotonic())
    folder = tmp_path / "progress"
    (folder / "1").write_bytes(b"short")
    (folder / "2").write_bytes(b"\xff" * SIZE)
    (folder / "3").symlink_to(folder / "7")
    os.mkfifo(folder / "4")
    (folder / "5").mkdir()
    (folder / "x").write_text("")
    nan = ProgressWriter(str(tmp_path), 6)
    nan.store(float("nan"), 0.0)
    assert {rank: progress.steps for rank, progress in read_progress(tmp_path).items()} == {7: 3.0}
    assert read_progress(tmp_path)[7].steps_per_second is None
    other = tmp_path / "other"
    other.mkdir()
    (other / "progress").symlink_to(folder)
    assert read_progress(other) == {}
    for name in range(1000, 1000 + 2 * MOST_RANKS):
        (folder / str(name)).write_bytes((folder / "7").read_bytes())
    assert len(read_progress(tmp_path)) <= MOST_RANKS
