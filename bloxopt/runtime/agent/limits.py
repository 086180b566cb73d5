"""CPUs and memory of a run: a cgroup (v2) where one may be made, else affinity and limits of each process."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_CONTROLLERS = ("cpuset", "memory")


def prepare_parent(folder: Path) -> None:
    """Make the cgroup below which runs get theirs, and hand on the controllers that it has. Raises OSError."""
    folder.mkdir(exist_ok=True)
    available = (folder / "cgroup.controllers").read_text().split()
    for controller in _CONTROLLERS:
        if controller in available:
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")


class Limits(NamedTuple):
    """What holds for a run: its ``cgroup`` if it has one, what each process must set for itself, and what could not
    be done, as ``complaints`` for people."""

    cgroup: Path | None
    cpus: Sequence[int] | None
    data_bytes: int | None
    complaints: list[str]


def establish(parent: str | None, name: str, cpus: Sequence[int] | None, memory_bytes: int | None) -> Limits:
    """Set up what can be set up for a run called ``name``; never raises for what cannot."""
    complaints: list[str] = []
    cgroup: Path | None = None
    if parent is not None:
        try:
            cgroup = Path(parent) / name
            cgroup.mkdir(exist_ok=True)
            # In a folder of another file system, the settings below would be plain files, and limit nothing.
            (cgroup / "cgroup.procs").stat()
        except OSError as error:
            complaints.append(f"no cgroup in {parent}: {error.strerror}")
            cgroup = None
    if cgroup is not None and cpus is not None:
        with contextlib.suppress(OSError):
            # Affinity, which every rank sets as well, does most of it: nothing to complain of.
            (cgroup / "cpuset.cpus").write_text(",".join(map(str, cpus)))
    data_bytes = memory_bytes
    if memory_bytes is not None:
        if cgroup is None:
            complaints.append("memory is limited for each process, not for the run: no cgroup")
        else:
            try:
                (cgroup / "memory.max").write_text(str(memory_bytes))
                data_bytes = None
            except OSError as error:
                complaints.append(f"memory is limited for each process, not for the run: {error.strerror}")
    return Limits(cgroup, cpus, data_bytes, complaints)


def enter(limits: Limits) -> None:
    """Put this process under the limits; with the rights of the guard, before they are given up. Raises OSError."""
    if limits.cgroup is not None:
        (limits.cgroup / "cgroup.procs").write_text("0")
    if limits.cpus:
        os.sched_setaffinity(0, limits.cpus)
    if limits.data_bytes is not None:
        # Private data, not address space: CUDA reserves far more addresses than it uses.
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = limits.data_bytes if hard == resource.RLIM_INFINITY else min(limits.data_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def kill_cgroup(cgroup: Path) -> None:
    """SIGKILL for every process in it: at once where the kernel can (5.14), else one by one."""
    try:
        (cgroup / "cgroup.kill").write_text("1")
    except OSError:
        with contextlib.suppress(OSError):
            for pid in (cgroup / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)


def killed_for_memory(cgroup: Path) -> bool:
    """Whether the kernel killed a process of this cgroup because its memory was used up."""
    try:
        events = dict(line.split() for line in (cgroup / "memory.events").read_text().splitlines())
    except (OSError, ValueError):
        return False
    return int(events.get("oom_kill", 0)) > 0


def remove_cgroup(cgroup: Path) -> None:
    with contextlib.suppress(OSError):
        cgroup.rmdir()
