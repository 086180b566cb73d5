"""The guard of one run: starts its ranks, keeps its logs, stops it when told or when its lease ends, says how it ended.

One small process a run, ``python -m bloxopt.runtime.agent.guard FOLDER``, which needs no agent once it has begun: the
agent may be stopped, killed or replaced meanwhile. It holds the folder's lock as long as it lives, and begins a run
only once, whatever number of guards is started for it. A killed guard takes its ranks along.

The lease is kept so that nothing of the run is left at its end: SIGTERM comes the grace period earlier, though at most
a third of the lease."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import struct
import sys
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from bloxopt.runtime.agent import limits, processes
from bloxopt.runtime.agent.files import FolderLock, Lease, Record, Terms, boottime
from bloxopt.runtime.agent.launch import LaunchError, account, start_rank
from bloxopt.runtime.agent.logs import LogWriter
from bloxopt.runtime.agent.orders import IO_ERROR, Order
from bloxopt.runtime.progress import read_progress

ORDER, STATE, LEASE, LOCK, LOGS = "order.json", "state", "lease", "lock", "logs"
"""What lies in a run's folder."""

_CHUNK = 1 << 16
_IDLE_WAIT, _STOPPING_WAIT = 0.2, 0.05
_MOST_MESSAGE = 1000


class Stage(StrEnum):
    """How far a guard is with its run."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(slots=True)
class _Rank:
    pid: int
    number: int
    ended: bool = False


@dataclass(slots=True)
class Guard:
    """Supervises one run until nothing of it is left."""

    folder: Path
    order: Order
    _ranks: list[_Rank] = field(default_factory=list)
    _stage: Stage = Stage.STARTING
    _exit_code: int = 0
    _preempted: bool = False
    _message: str = ""
    _kill_at: float | None = None
    _told_to_stop: bool = False
    _outputs: dict[int, LogWriter] = field(default_factory=dict)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _wakeup: int = -1
    _held: limits.Limits = field(default_factory=lambda: limits.Limits(None, None, None, []))

    def run(self) -> None:
        """Start, supervise, and leave the record of how it ended."""
        processes.adopt_orphans()
        self._listen()
        if not self._save():
            # Without this note a second guard could begin the run again.
            return
        try:
            self._start()
        except LaunchError as error:
            self._fail(error.code, str(error))
        except OSError as error:
            self._fail(IO_ERROR, f"could not start: {error}")
        while not self._step():
            pass
        self._finish()

    def _start(self) -> None:
        terms = self._terms()
        if terms.stop or self._is_over(terms):
            self._preempted = True
            return
        owner = account(self.order.user)
        run_dir = Path(self.order.run_dir)
        if os.geteuid() == 0:
            os.chown(run_dir, owner.uid, owner.gid)
        self._held = limits.establish(self.order.cgroup, self.folder.name, self.order.cpus, self.order.memory_bytes)
        self._message = "; ".join([*self.order.notes, *self._held.complaints])
        for index, number in enumerate(self.order.ranks):
            reader, writer = os.pipe()
            try:
                pid = start_rank(self.order, index, owner, self._held, writer)
            except BaseException:
                os.close(reader)
                raise
            finally:
                os.close(writer)
            os.set_blocking(reader, False)
            self._outputs[reader] = LogWriter(
                self.folder / LOGS, number, self.order.log_segment_bytes, self.order.log_segments
            )
            self._selector.register(reader, selectors.EVENT_READ)
            self._ranks.append(_Rank(pid, number))
        self._stage = Stage.RUNNING
        self._save()

    def _step(self) -> bool:
        """Wait a moment and look after everything; True once no process of the run is left."""
        wait = _IDLE_WAIT if self._kill_at is None else _STOPPING_WAIT
        for key, _ in self._selector.select(wait if self._ranks else 0):
            if key.fileobj == self._wakeup:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wakeup, _CHUNK)
            else:
                self._read_output(key.fd)
        if self._reap():
            return True
        terms = self._terms()
        if all(rank.ended for rank in self._ranks):
            # Only strays are left, which no one waits for.
            self._kill()
        elif self._kill_at is not None:
            if time.monotonic() >= self._kill_at or boottime() >= terms.deadline:
                self._kill()
        elif terms.stop:
            self._preempt(self.order.grace_seconds)
        elif self._is_over(terms):
            self._message = "stopped at the end of its node's lease: the scheduler could not be reached"
            self._preempt(min(self.order.grace_seconds, terms.deadline - boottime()))
        return False

    def _terms(self) -> Terms:
        try:
            terms = Lease(self.folder / LEASE).read()
        except (OSError, struct.error):
            # No one can renew what cannot be read.
            return Terms(0.0, 0.0, stop=True)
        return terms._replace(stop=terms.stop or self._told_to_stop)

    def _is_over(self, terms: Terms) -> bool:
        return boottime() >= terms.deadline - min(self.order.grace_seconds, terms.length / 3)

    def _preempt(self, grace: float) -> None:
        self._preempted = True
        self._terminate(grace)

    def _fail(self, code: int, message: str) -> None:
        self._exit_code, self._message = code, message
        if self._ranks:
            self._terminate(0)

    def _terminate(self, grace: float) -> None:
        self._stage = Stage.STOPPING
        self._kill_at = time.monotonic() + grace
        self._save()
        for target in self._to_be_told():
            processes.send(target, signal.SIGTERM)
            # One that was stopped sees the signal only when it goes on.
            processes.send(target, signal.SIGCONT)

    def _to_be_told(self) -> list[processes.Process]:
        """Processes that use the client, and they alone below their rank: their helpers, such as the workers of a data
        loader, must live on for the checkpoint. Every process of a rank where none does."""
        parents = {each.pid: each for each in processes.descendants(os.getpid())}
        users = {progress.process for progress in read_progress(Path(self.order.run_dir)).values()} & parents.keys()
        told = [parents[pid] for pid in users]
        ranks_with_user = set()
        for pid in users:
            while pid in parents:
                ranks_with_user.add(pid)
                pid = parents[pid].parent
        for rank in self._ranks:
            if not rank.ended and rank.pid in parents and rank.pid not in ranks_with_user:
                told += [parents[rank.pid], *processes.descendants(rank.pid)]
        return told

    def _kill(self) -> None:
        if self._held.cgroup is not None:
            limits.kill_cgroup(self._held.cgroup)
        for target in processes.descendants(os.getpid()):
            processes.send(target, signal.SIGKILL)

    def _reap(self) -> bool:
        """Take note of what has ended; True if there is nothing left to end: orphans have become children too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            for rank in self._ranks:
                if rank.pid == pid and not rank.ended:
                    rank.ended = True
                    self._note(rank.number, os.waitstatus_to_exitcode(status))

    def _note(self, number: int, code: int) -> None:
        if code != 0 and self._exit_code == 0:
            self._exit_code = code
            if not self._preempted:
                ending = f"exited with code {code}" if code > 0 else f"was ended by {_signal_name(-code)}"
                self._message = f"rank {number} {ending}"
        if code != 0 and self._kill_at is None and not all(rank.ended for rank in self._ranks):
            # The others would wait for it for ever.
            self._terminate(self.order.grace_seconds)

    def _read_output(self, descriptor: int) -> None:
        """Take what there is in a pipe; at its end, close it."""
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            if self._stage is Stage.ENDED:
                self._close_output(descriptor)
            return
        if data:
            self._outputs[descriptor].write(data)
        else:
            self._close_output(descriptor)

    def _close_output(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        self._outputs.pop(descriptor).close()
        os.close(descriptor)

    def _finish(self) -> None:
        self._stage = Stage.ENDED
        for descriptor in list(self._outputs):
            # No process of the run is left: what is in the pipes is all there is.
            while descriptor in self._outputs:
                self._read_output(descriptor)
        if self._held.cgroup is not None:
            if limits.killed_for_memory(self._held.cgroup):
                self._message = "killed: it used more memory than it had asked for"
            limits.remove_cgroup(self._held.cgroup)
        while not self._save() and self.folder.exists():
            time.sleep(1.0)

    def _save(self) -> bool:
        """Write the record; False where the disk fails."""
        progress = max(read_progress(Path(self.order.run_dir)).values(), key=lambda each: each.steps, default=None)
        state: dict[str, Any] = {
            "stage": self._stage,
            "exit_code": self._exit_code if self._stage is Stage.ENDED else None,
            "preempted": self._preempted,
            "message": self._message[:_MOST_MESSAGE],
            "ranks": [(rank.pid, rank.number) for rank in self._ranks[:128]],
            "guard": os.getpid(),
            "steps": None if progress is None else progress.steps,
            "steps_per_second": None if progress is None else progress.steps_per_second,
        }
        try:
            Record(self.folder / STATE).write(state)
        except OSError:
            return False
        return True

    def _listen(self) -> None:
        """Wake up when a child ends; SIGTERM to the guard itself (the machine shuts down, say) preempts the run."""
        self._wakeup, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_stop)

    def _on_stop(self, number: int, frame: object) -> None:
        self._told_to_stop = True


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main(arguments: list[str]) -> int:
    """Guard the run in the folder named; does nothing if another guard does, or one has begun before."""
    folder = Path(arguments[0])
    lock = FolderLock(folder / LOCK)
    if not lock.take(patience=1.0) or Record(folder / STATE).read() is not None:
        return 0
    os.chdir("/")
    Guard(folder, Order.from_file(folder / ORDER)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
