"""A training loop that leaves a ledger: every step, every checkpoint, and whom it meets that should be gone.

python crash_job.py FOLDER STEPS SECONDS_PER_STEP STEPS_PER_CHECKPOINT KIND. Each rank does all steps and has its own
checkpoint. KIND: ``trains``; ``helped``, with a stubborn helper process a rank; ``fails``, which exits with code 3
after a few steps.

A rank holds a lock on its attempt and on its GPUs as long as it or its helper lives, and the kernel gives them back
when they are gone: that it can have its own, and that those of all former attempts are free, is what it looks at first.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

from bloxopt.runtime import client

STEPS_BEFORE_FAILURE = 5


class Ledger:
    """Appends entries, each on the disk before the next thing is done."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, what: str, number: int) -> None:
        entry = {
            "what": what,
            "number": number,
            "rank": client.rank(),
            "attempt": client.attempt(),
            "node": os.environ["BLOXOPT_NODE"],
            "pid": os.getpid(),
            "at": time.monotonic(),
        }
        os.write(self._file, json.dumps(entry).encode() + b"\n")
        os.fsync(self._file)


def is_free(path: Path, how: int) -> bool:
    """Whether the lock can be had; held from then on if ``how`` is exclusive."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    if how == fcntl.LOCK_SH:
        os.close(descriptor)
    return True


def look_around(folder: Path, ledger: Ledger) -> None:
    """Take the locks of this rank, and note who else is there."""
    attempt, rank = client.attempt(), client.rank()
    if not is_free(folder / f"attempt-{attempt}.{rank}", fcntl.LOCK_EX):
        ledger.note("started twice", attempt)
    for former in range(1, attempt):
        for path in folder.glob(f"attempt-{former}.*"):
            if not is_free(path, fcntl.LOCK_SH):
                ledger.note("meets a former attempt", former)
    gpus = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    mine = [gpus[client.local_rank()]] if client.local_world_size() == len(gpus) else gpus
    for gpu in mine:
        if not is_free(folder.parent / "gpus" / f"{os.environ['BLOXOPT_NODE']}.{gpu}", fcntl.LOCK_EX):
            ledger.note("finds its GPU in use", int(gpu))


def start_helper() -> None:
    """A process that does not end by itself, in a session of its own, and holds the locks too."""
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)


def main(folder: Path, total: int, seconds: float, every: int, kind: str) -> int:
    client.should_checkpoint()  # from here on SIGTERM is a wish
    ledger = Ledger(folder)
    look_around(folder, ledger)
    if kind == "helped":
        start_helper()
    checkpoint = folder / f"checkpoint.{client.rank()}"
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    ledger.note("begins", done)

    def save() -> None:
        draft = folder / f"draft.{client.rank()}"
        with draft.open("w") as file:
            file.write(str(done))
            file.flush()
            os.fsync(file.fileno())
        ledger.note("is saving", done)
        draft.rename(checkpoint)

    for number in client.steps(range(done, total), done):
        time.sleep(seconds)
        ledger.note("step", number)
        done = number + 1
        if done % every == 0:
            save()
        if client.should_checkpoint():
            break
        if kind == "fails" and done >= STEPS_BEFORE_FAILURE:
            ledger.note("leaves", done)
            return 3
    save()
    ledger.note("leaves", done)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
