"""For training scripts: report steps, learn that it is time to save, resume where the last attempt was.

>>> from bloxopt.runtime import client
>>> start = load_checkpoint() or 0                         # doctest: +SKIP
>>> for batch in client.steps(batches[start:], start):     # doctest: +SKIP
...     train(batch)
...     if client.should_checkpoint():
...         save_checkpoint(client.steps_done() + 1)
...         break

Outside bloxopt everything here does nothing: the same script runs by hand. A step costs well under 10 µs and no system
call. Nothing but the standard library is imported. Use it from the main thread."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from types import FrameType
from typing import Any, TypeVar

from bloxopt.runtime.progress import ProgressWriter

Item = TypeVar("Item")

RATE_WINDOW = 5.0
"""Steps a second are measured over windows of this length (s), or over one step where that takes longer."""


def is_managed() -> bool:
    """Whether this process was started by a bloxopt agent."""
    return "BLOXOPT_RUN_DIR" in os.environ


def job_id() -> str | None:
    """The job's id; None outside bloxopt."""
    return os.environ.get("BLOXOPT_JOB_ID")


def attempt() -> int:
    """Which start of the job this is, from 1; 0 outside bloxopt."""
    return _integer("BLOXOPT_ATTEMPT", 0)


def resume_steps() -> float:
    """Steps that the scheduler knows to have been done before this start. Your own checkpoint knows better."""
    try:
        return float(os.environ.get("BLOXOPT_RESUME_STEPS", "0"))
    except ValueError:
        return 0.0


def rank() -> int:
    """This process among all of the job, from 0."""
    return _integer("RANK", 0)


def local_rank() -> int:
    """This process among those of its node, from 0: the index of its GPU among the visible ones."""
    return _integer("LOCAL_RANK", 0)


def world_size() -> int:
    """Processes of the job; 1 outside bloxopt and torchrun."""
    return _integer("WORLD_SIZE", 1)


def local_world_size() -> int:
    """Processes of the job on this node."""
    return _integer("LOCAL_WORLD_SIZE", 1)


def node_rank() -> int:
    """This node among those of the job, from 0."""
    return _integer("NODE_RANK", 0)


def steps(iterable: Iterable[Item], start: float = 0) -> Iterator[Item]:
    """The items of ``iterable``; each is a step, done when the loop asks for the next one.

    ``start`` is the number of steps done before the first of them, as your checkpoint has it. A step that is left by
    ``break`` or an error does not count.
    """
    done = start
    report(done)
    for item in iterable:
        yield item
        done += 1
        report(done)


def report(done: float) -> None:
    """Say that ``done`` steps have been done in all, for loops that :func:`steps` cannot wrap."""
    global _done, _reporter
    _done = done
    if _reporter is None:
        _reporter = _Reporter(done)
    _reporter.report(done)


def steps_done() -> float:
    """Steps reported last: within the body of a loop over :func:`steps`, those before the current one."""
    return _done


def should_checkpoint() -> bool:
    """True once the job has been told to stop (SIGTERM): save and leave, before the grace period ends.

    The first call installs the handler; until then SIGTERM ends the process as it does any other. A handler that was
    there before is called as well. Raises ValueError if the first call is not in the main thread, as signals can only
    be handled there.
    """
    if not _handler_installed and is_managed():
        _install_handler()
    return _stop_seen


class _Reporter:
    """Stores steps, and their rate over windows; does nothing where there is no run folder or it is not writable:
    a job is never stopped because its progress cannot be seen."""

    def __init__(self, done: float) -> None:
        self._writer: ProgressWriter | None = None
        self._window_start, self._window_steps, self._window = monotonic(), done, 0.0
        folder = os.environ.get("BLOXOPT_RUN_DIR")
        if folder is not None:
            with contextlib.suppress(OSError):
                self._writer = ProgressWriter(folder, rank())

    def report(self, done: float) -> None:
        writer = self._writer
        if writer is None:
            return
        now = monotonic()
        writer.store(done, now)
        if now - self._window_start > self._window:
            self._measure(writer, done, now)

    def _measure(self, writer: ProgressWriter, done: float, now: float) -> None:
        if done > self._window_steps:
            writer.store_rate((done - self._window_steps) / (now - self._window_start))
            # The first step alone gives the first rate, so that short jobs have one.
            self._window = RATE_WINDOW
        self._window_start, self._window_steps = now, done


_reporter: _Reporter | None = None
_done = 0.0
_handler_installed = False
_stop_seen = False
_previous: Callable[[int, FrameType | None], Any] | int | None = None


def _install_handler() -> None:
    global _handler_installed, _previous
    if threading.current_thread() is not threading.main_thread():
        raise ValueError("call should_checkpoint() in the main thread first: only there can signals be handled")
    _previous = signal.signal(signal.SIGTERM, _on_stop)
    os.register_at_fork(after_in_child=_restore_handler)
    _handler_installed = True


def _on_stop(number: int, frame: FrameType | None) -> None:
    global _stop_seen
    _stop_seen = True
    if callable(_previous):
        _previous(number, frame)


def _restore_handler() -> None:
    """Workers that a job forks end at SIGTERM as before: what starts them (a data loader, say) stops them with it."""
    if signal.getsignal(signal.SIGTERM) is _on_stop:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if _previous is None else _previous)


def _integer(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        return default
