"""Output of jobs: kept in segments, sent from where the scheduler is, and never a reason for a job to stop."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloxopt.runtime.agent.files import boottime
from bloxopt.runtime.agent.logs import LogWriter, read_log, segments
from bloxopt.runtime.agent.runs import LocalRun, RunFolders, RunKey
from bloxopt.runtime.agent.upload import LogRefusedError, LogUploader
from bloxopt.runtime.messages import RunState
from tests.runtime.agent_support import SmallScheduler, agent_thread, home, order, python, run_of, scheduler, wait_until

__all__ = ["home", "scheduler"]


@settings(max_examples=40)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=30), st.integers(1, 50), st.integers(0, 300))
def test_segments_are_the_stream_that_was_written(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], segment: int, offset: int
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    writer = LogWriter(folder, 0, segment, 10_000)
    for piece in pieces:
        writer.write(piece)
    writer.close()
    whole = b"".join(pieces)
    assert read_log(folder, 0, 0, 10**6) == (0, whole)
    assert read_log(folder, 0, offset, 7)[1] == whole[offset : offset + 7]
    assert all(path.stat().st_size <= segment for _, path in segments(folder, 0))


def test_only_the_newest_segments_are_kept(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, 0, 10, 3)
    for count in range(100):
        writer.write(b"%09d\n" % count)
    writer.close()
    assert len(segments(tmp_path, 0)) == 3
    assert read_log(tmp_path, 0, 0, 1000) == (970, b"000000097\n000000098\n000000099\n")


def test_output_that_cannot_be_written_is_counted_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LogWriter(tmp_path, 0, 1000, 3)
    writer.write(b"before\n")
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    for _ in range(3):
        writer.write(b"lost\n")
    monkeypatch.setattr(os, "write", write)
    writer.write(b"after\n")
    writer.close()
    assert read_log(tmp_path, 0, 0, 1000)[1] == (
        b"before\n\n[bloxopt: 15 bytes of output were lost here: No space left on device]\nafter\n"
    )


class Sink:
    """A scheduler that stores logs and takes no gaps."""

    def __init__(self) -> None:
        self.stored: dict[int, bytes] = {}
        self.requests: list[int] = []
        self.refuses = False

    def send_log(self, key: RunKey, rank: int, offset: int, data: bytes) -> int:
        if self.refuses:
            raise LogRefusedError
        self.requests.append(len(data))
        stored = self.stored.get(rank, b"")
        if offset <= len(stored):
            self.stored[rank] = stored + data[len(stored) - offset :]
        return len(self.stored[rank])


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    folders = RunFolders(tmp_path / "state")
    run_dir = folders.run_dir(("job", 1))
    made = folders.create(order(run_dir, ranks=[0, 1], ranks_environment=[{}, {}]), boottime() + 100, 100)
    yield made
    folders.close()


def test_each_heartbeat_sends_a_bounded_amount_of_every_log_in_turn(run: LocalRun) -> None:
    for rank in (0, 1):
        writer = LogWriter(run.logs, rank, 1 << 20, 4)
        writer.write(bytes([65 + rank]) * 1000)
        writer.close()
    sink = Sink()
    uploader = LogUploader(sink)
    for _ in range(4):
        before = sum(map(len, sink.stored.values()))
        uploader.upload([run], 600, 10.0)
        assert sum(map(len, sink.stored.values())) - before <= 600
        assert min(len(sink.stored.get(rank, b"")) for rank in (0, 1)) > 0 or before == 0
    assert sink.stored == {0: b"A" * 1000, 1: b"B" * 1000}
    assert uploader.is_complete(run)


def test_an_agent_that_starts_anew_sends_on_from_where_the_scheduler_is(run: LocalRun) -> None:
    writer = LogWriter(run.logs, 0, 1 << 20, 4)
    writer.write(b"one\n")
    sink = Sink()
    LogUploader(sink).upload([run], 1000, 10.0)
    writer.write(b"two\n")
    writer.close()
    again = LogUploader(sink)
    assert not again.is_complete(run)
    again.upload([run], 1000, 10.0)
    assert sink.stored[0] == b"one\ntwo\n"
    assert again.is_complete(run)


def test_what_was_dropped_before_it_was_sent_is_told_in_the_log_and_the_rest_follows(run: LocalRun) -> None:
    writer = LogWriter(run.logs, 0, 10, 2)
    sink = Sink()
    uploader = LogUploader(sink)
    writer.write(b"000000000\n")
    uploader.upload([run], 1000, 10.0)
    for count in range(1, 10):
        writer.write(b"%09d\n" % count)
    uploader.upload([run], 1000, 10.0)
    expected = (
        b"000000000\n\n[bloxopt: 70 bytes of output were dropped here before they could be sent]\n"
        b"000000008\n000000009\n"
    )
    assert sink.stored[0] == expected
    writer.write(b"000000010\n")
    # The next agent knows the difference between offsets here and there too.
    again = LogUploader(sink)
    again.upload([run], 1000, 10.0)
    writer.close()
    assert sink.stored[0] == expected + b"000000010\n"
    assert again.is_complete(run)


def test_a_log_that_nobody_wants_is_sent_no_more(run: LocalRun) -> None:
    writer = LogWriter(run.logs, 0, 100, 2)
    writer.write(b"text")
    writer.close()
    sink = Sink()
    sink.refuses = True
    uploader = LogUploader(sink)
    uploader.upload([run], 1000, 10.0)
    assert uploader.is_complete(run)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 768 KiB."""
    target = tmp_path / "small"
    target.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=768k", "tmpfs", str(target)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    yield target
    subprocess.run(["umount", "-l", str(target)], check=True)


def test_a_full_disk_stops_no_run_and_hides_no_end(scheduler: SmallScheduler, small_disk: Path, home: Path) -> None:
    """Runs go on under leases that are renewed and end with their code; new ones say what is wrong, and wait for no
    one when there is space again."""
    scheduler.lease_seconds = 2.4
    flag = home / "go"
    code = (
        "import os, sys, time\n"
        "for _ in range(3000): sys.stdout.write('x' * 1023 + '\\n')\n"
        f"while not os.path.exists({str(flag)!r}): time.sleep(0.05)\n"
        "os._exit(9)"
    )
    sizes = {"log_segment_bytes": 1 << 18, "log_segments": 8, "upload_bytes_per_heartbeat": 1 << 16}
    with agent_thread(scheduler, small_disk, **sizes):
        key = scheduler.want(run_of("job", python(code)))
        scheduler.wait_for(key, RunState.RUNNING)
        wait_until(lambda: os.statvfs(small_disk).f_bavail == 0)
        began = time.monotonic()
        refused = scheduler.wait_for(scheduler.want(run_of("next", ["true"], gpus=[1])), RunState.ENDED)
        assert (refused.exit_code, refused.preempted) == (74, False)
        assert "No space left on device" in refused.message
        # Longer than a lease: it has been renewed.
        time.sleep(max(0.0, began + 2.6 - time.monotonic()))
        assert scheduler.state(key) is RunState.RUNNING
        flag.touch()
        assert scheduler.wait_for(key, RunState.ENDED).exit_code == 9
        wait_until(lambda: os.statvfs(small_disk).f_bavail > 20)
        assert scheduler.wait_for(scheduler.want(run_of("later", ["true"])), RunState.ENDED).exit_code == 0
