"""The runs of a node as they lie in the agent's state folder: made, looked at, stopped, forgotten.

``runs/JOB@ATTEMPT`` belongs to the agent, ``shared/JOB@ATTEMPT`` to the job. A run's folder appears complete or not at
all. A guard holds its lock as long as it lives, so no process id has to be believed: a lock that can be taken means
that no guard is left, and what the agent then does under the lock no guard can do at the same time."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bloxopt.errors import AgentError
from bloxopt.runtime.agent import limits, processes
from bloxopt.runtime.agent.files import FolderLock, Lease, Record, Terms, boot_id, sync_folder, write_file
from bloxopt.runtime.agent.guard import LEASE, LOCK, LOGS, ORDER, STATE, Stage
from bloxopt.runtime.agent.orders import NOT_STARTED, Order
from bloxopt.runtime.messages import RunReport, RunState
from bloxopt.runtime.progress import read_progress

RunKey = tuple[str, int]
"""A job's id and the attempt."""

RUN_DIR_VARIABLE = "BLOXOPT_RUN_DIR"
_FORGOTTEN = "forgotten"
_GUARD_LOG = "guard.log"
_MOST_SPAWNS = 3
_SPAWN_PATIENCE = 20.0
_HUNG_SECONDS = 60.0
_GUARD_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


class LocalRun:
    """One run whose folder is there."""

    def __init__(self, folder: Path, order: Order) -> None:
        self.folder = folder
        self.order = order
        self.key: RunKey = (order.job_id, order.attempt)
        self._lock = FolderLock(folder / LOCK)
        self._record = Record(folder / STATE)
        self._lease = Lease(folder / LEASE)
        self._guard: subprocess.Popen[bytes] | None = None
        self._spawned_at = 0.0
        self._spawns = 0
        self._ended: RunReport | None = None
        self._forgotten_at: float | None = None

    @property
    def logs(self) -> Path:
        return self.folder / LOGS

    @property
    def forgotten(self) -> bool:
        """Whether its end is known to the scheduler."""
        return (self.folder / _FORGOTTEN).exists()

    @property
    def forgotten_seconds(self) -> float:
        """For how long this agent has known that the scheduler knows of its end; not by the clock, which may jump."""
        if self._forgotten_at is None:
            self._forgotten_at = time.monotonic()
        return time.monotonic() - self._forgotten_at

    def set_forgotten(self) -> None:
        (self.folder / _FORGOTTEN).touch()

    def look(self) -> RunReport:
        """How the run is now; where its guard was killed, what is left of it is killed too.

        Raises OSError where that cannot be told now.
        """
        try:
            return self._look()
        except OSError:
            if self.folder.exists():
                raise
        # Somebody has deleted it: its guard stops the run, and can no longer say how it ended.
        if self._kill_what_is_left():
            return self._report(RunState.STOPPING, None)
        return self._write_end(None, True, "the folder of the run was deleted: how it ended is unknown")

    def _look(self) -> RunReport:
        if self._guard is not None:
            self._guard.poll()
        if self._ended is not None:
            return self._ended
        state = self._state()
        if state is not None and state["stage"] == Stage.ENDED:
            return self._take_end(state)
        if not self._lock.take():
            return self._report(RunState.STARTING if state is None else RunState(state["stage"]), state)
        try:
            return self._look_without_guard()
        finally:
            self._lock.release()

    def start(self) -> None:
        """See to it that a guard begins the run, if none has. Harmless when one has, or is about to."""
        if self._ended is not None or self._state() is not None:
            return
        if (
            self._guard is not None
            and self._guard.poll() is None
            and time.monotonic() < self._spawned_at + _SPAWN_PATIENCE
        ):
            return
        if self._spawns >= _MOST_SPAWNS:
            self.close(NOT_STARTED, preempted=False, message=f"its guard could not be started: {self._guard_log()}")
            return
        self._spawns += 1
        self._spawned_at = time.monotonic()
        try:
            log = os.open(self.folder / _GUARD_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            log = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            # In a session of its own: what ends the agent's terminal or group leaves it alone.
            self._guard = subprocess.Popen(
                [sys.executable, "-P", "-m", "bloxopt.runtime.agent.guard", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env={name: os.environ[name] for name in _GUARD_ENVIRONMENT if name in os.environ},
            )
        except OSError as error:
            with contextlib.suppress(OSError):
                os.write(log, f"{error}\n".encode())
        finally:
            os.close(log)

    def stop(self, grace_message: str = "stopped before it had begun") -> None:
        """Tell the guard to stop the run; where none has begun it, none will."""
        if self._ended is None and not self.close(0, preempted=True, message=grace_message):
            self._lease.stop()

    def renew(self, deadline: float, length: float) -> None:
        """Let the run go on until ``deadline`` (:func:`boottime`)."""
        if self._ended is None:
            self._lease.renew(deadline, length)

    def close(self, exit_code: int | None, preempted: bool, message: str) -> bool:
        """End a run that no guard has begun, for good; False if one has or is about to."""
        if not self._lock.take():
            return False
        try:
            if self._state() is not None:
                return False
            self._write_end(exit_code, preempted, message)
            return True
        finally:
            self._lock.release()

    def reap(self) -> None:
        """Let the guard of a run that has ended end too, so that it does not stay as a zombie."""
        if self._guard is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._guard.wait(1.0)

    def _look_without_guard(self) -> RunReport:
        # Read again: a guard may have written its last word after the first look.
        state = self._state()
        if state is not None and state["stage"] == Stage.ENDED:
            return self._take_end(state)
        if self.order.boot_id != boot_id():
            return self._write_end(None, True, "the node was restarted: how the run ended is unknown", state)
        if state is None:
            return self._report(RunState.STARTING, None)
        if self._kill_what_is_left():
            return self._report(RunState.STOPPING, state)
        return self._write_end(None, True, "the guard of the run was killed: how the run ended is unknown", state)

    def _kill_what_is_left(self) -> bool:
        """Kill what a guard has left behind; True if there was anything: look again whether it has ended."""
        left = processes.with_variable(RUN_DIR_VARIABLE, self.order.run_dir)
        for each in left:
            processes.send(each, signal.SIGKILL)
        cgroup = None if self.order.cgroup is None else Path(self.order.cgroup) / self.folder.name
        if cgroup is not None and cgroup.is_dir():
            limits.kill_cgroup(cgroup)
            limits.remove_cgroup(cgroup)
            return bool(left) or cgroup.exists()
        return bool(left)

    def _state(self) -> dict[str, Any] | None:
        try:
            return self._record.read()
        except OSError:
            return None

    def _write_end(
        self, exit_code: int | None, preempted: bool, message: str, state: dict[str, Any] | None = None
    ) -> RunReport:
        progress = self._progress(state)
        end = {
            "stage": Stage.ENDED,
            "exit_code": exit_code,
            "preempted": preempted,
            "message": message[:1000],
            "steps": progress[0],
            "steps_per_second": progress[1],
        }
        # Nothing of it is left, whether or not the disk takes the note: the next agent will find out again.
        with contextlib.suppress(OSError):
            self._record.write(end)
        return self._take_end(end)

    def _take_end(self, state: dict[str, Any]) -> RunReport:
        self._ended = RunReport(
            job_id=self.order.job_id,
            attempt=self.order.attempt,
            state=RunState.ENDED,
            exit_code=state["exit_code"],
            preempted=state["preempted"],
            steps=state["steps"],
            steps_per_second=state["steps_per_second"],
            message=state["message"],
        )
        return self._ended

    def _report(self, state: RunState, record: dict[str, Any] | None) -> RunReport:
        steps, rate = self._progress(record)
        return RunReport(
            job_id=self.order.job_id,
            attempt=self.order.attempt,
            state=state,
            preempted=record is not None and record["preempted"],
            steps=steps,
            steps_per_second=rate,
            message="" if record is None else record["message"],
        )

    def _progress(self, record: dict[str, Any] | None) -> tuple[float | None, float | None]:
        found = max(read_progress(Path(self.order.run_dir)).values(), key=lambda each: each.steps, default=None)
        if found is None:
            return (None, None) if record is None else (record.get("steps"), record.get("steps_per_second"))
        rate = found.steps_per_second
        if rate is not None and rate > 0 and time.monotonic() - found.time > max(_HUNG_SECONDS, 10 / rate):
            # Ten steps overdue: it stands still.
            rate = 0.0
        return found.steps, rate

    def _guard_log(self) -> str:
        try:
            return (self.folder / _GUARD_LOG).read_text(errors="replace").strip()[-500:] or "it said nothing"
        except OSError as error:
            return str(error)


class RunFolders:
    """The state folder of an agent. One agent at a time; raises AgentError where it cannot be used at all."""

    def __init__(self, root: Path) -> None:
        self._runs, self._shared = root / "runs", root / "shared"
        self._lock = FolderLock(root / "agent.lock")
        try:
            for folder, mode in ((root, 0o711), (self._runs, 0o700), (self._shared, 0o711)):
                folder.mkdir(parents=True, exist_ok=True, mode=mode)
                # Jobs pass through to their own folder and can list none; the umask may have taken that away.
                folder.chmod(mode)
            if not self._lock.take():
                raise AgentError(f"another agent uses the state folder {root}: stop it, or give this one its own")
        except OSError as error:
            raise AgentError(f"the state folder {root} cannot be used: {error.strerror or error}") from None

    def close(self) -> None:
        self._lock.release()

    def run_dir(self, key: RunKey) -> Path:
        """The folder that belongs to the job."""
        return self._shared / _folder_name(key)

    def create(self, order: Order, deadline: float, length: float) -> LocalRun:
        """The folder of a new run, complete and on the disk. Raises OSError, and leaves nothing then."""
        key = (order.job_id, order.attempt)
        folder, draft, shared = self._runs / _folder_name(key), self._runs / f".{_folder_name(key)}", self.run_dir(key)
        try:
            shutil.rmtree(draft, ignore_errors=True)
            shutil.rmtree(shared, ignore_errors=True)
            shared.mkdir(mode=0o700)
            (draft / LOGS).mkdir(parents=True)
            write_file(draft / ORDER, order.to_bytes())
            write_file(draft / LOCK, b"")
            Record(draft / STATE).create()
            Lease(draft / LEASE).create(Terms(deadline, length, stop=False))
            sync_folder(draft)
            draft.rename(folder)
            sync_folder(self._runs)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            shutil.rmtree(shared, ignore_errors=True)
            raise
        return LocalRun(folder, order)

    def load(self) -> Iterator[LocalRun]:
        """The runs that an earlier agent left; what it had begun to make or to remove is removed."""
        known = set()
        for folder in sorted(self._runs.iterdir()):
            try:
                order = None if folder.name.startswith(".") else Order.from_file(folder / ORDER)
            except (OSError, ValueError):
                order = None
            if order is None:
                _discard_unreadable(folder)
            else:
                known.add(folder.name)
                yield LocalRun(folder, order)
        for folder in self._shared.iterdir():
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)

    def remove(self, run: LocalRun) -> None:
        """Drop all that is kept of a run that has ended."""
        run.reap()
        grave = run.folder.with_name(f".{run.folder.name}")
        with contextlib.suppress(OSError):
            run.folder.rename(grave)
        shutil.rmtree(self.run_dir(run.key), ignore_errors=True)
        shutil.rmtree(grave, ignore_errors=True)


def _discard_unreadable(folder: Path) -> None:
    """Remove a folder that is no run; where a guard lives in it, tell that to stop, for a later start to remove."""
    lock = FolderLock(folder / LOCK)
    try:
        unguarded = lock.take()
    except OSError:
        unguarded = True
    if unguarded:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()
    else:
        with contextlib.suppress(OSError):
            Lease(folder / LEASE).stop()


def _folder_name(key: RunKey) -> str:
    # Neither ids nor numbers hold an @.
    return f"{key[0]}@{key[1]}"
