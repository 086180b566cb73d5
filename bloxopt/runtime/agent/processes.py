"""Processes as /proc shows them, named by id and start time, so that a recycled id is never mistaken."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


class Process(NamedTuple):
    """A process: its id, when it started (clock ticks since boot) and its parent's id."""

    pid: int
    start: int
    parent: int


def process(pid: int) -> Process | None:
    """The process with this id; None where there is none or it has ended and only waits to be reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name stands in brackets and may hold anything, brackets too.
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else Process(pid, int(fields[19]), int(fields[1]))


def is_alive(pid: int, start: int) -> bool:
    """Whether the very process that started then under this id still runs."""
    found = process(pid)
    return found is not None and found.start == start


def processes() -> list[Process]:
    """Every process of the machine."""
    found = (process(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return [each for each in found if each is not None]


def descendants(root: int) -> list[Process]:
    """Every process below ``root``, at any depth."""
    children: dict[int, list[Process]] = {}
    for each in processes():
        children.setdefault(each.parent, []).append(each)
    found: list[Process] = []
    wanted = [root]
    while wanted:
        below = children.get(wanted.pop(), [])
        found += below
        wanted += [each.pid for each in below]
    return found


def with_variable(name: str, value: str) -> list[Process]:
    """Processes started with ``name=value`` in their environment, among those whose environment may be read."""
    wanted = f"{name}={value}".encode()
    found = []
    for each in processes():
        try:
            environment = Path(f"/proc/{each.pid}/environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            found.append(each)
    return found


def send(target: Process, number: int) -> None:
    """Send a signal to the very process, or to none."""
    try:
        descriptor = os.pidfd_open(target.pid)
    except OSError:
        return
    try:
        # Its id cannot be given to another one while the descriptor is held, so what is checked here is what is hit.
        if is_alive(target.pid, target.start):
            signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        pass
    finally:
        os.close(descriptor)


def adopt_orphans() -> None:
    """Descendants whose parents end become children of this process, whatever sessions they have started."""
    _control(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """The kernel kills this process when its parent ends. Call after the last change of user, which clears it."""
    _control(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _control(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
