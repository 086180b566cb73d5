"""A whole cluster of simulated GPUs on this machine: one scheduler, an agent for each node, real jobs."""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bloxopt.cluster import load_cluster
from bloxopt.errors import ConfigError, InputError
from bloxopt.runtime.agent.files import FolderLock
from bloxopt.runtime.agent.processes import die_with_parent
from bloxopt.runtime.people import People, SchedulerError
from bloxopt.runtime.service.config import load_config, make_config

PATIENCE = 60.0
"""Seconds that the scheduler and the agents have to come up."""

_LOCK, _ADMIN_TOKEN, _CONFIG = "up.lock", "admin.token", "scheduler.toml"
_UNDER_WAY = ["starting", "running", "stopping"]
_SETTINGS = """# Made by bloxopt up at each start.
policy = {policy}

[rounds]
seconds = {round_seconds!r}
shortest = {shortest!r}
end = "{round_end}"

[leases]
lease_seconds = 60.0
heartbeat_seconds = 0.5
margin_seconds = 5.0
lost_seconds = 15.0

[server]
port = {port}
"""


class Interrupted(Exception):  # noqa: N818 - it is no error
    """Whoever started the cluster wants it to stop."""


class LocalCluster:
    """A scheduler and agents as processes of their own, all of whose files are in ``folder``.

    ``nodes`` is a cluster as :func:`~bloxopt.cluster.load_cluster` takes it, such as ``4x8xA100``. ``policy``,
    ``round_seconds`` (s) and ``round_end`` are as in the scheduler's configuration. ``port`` 0 stands for any free one.
    As root, jobs run as the account ``user``; else as whoever this is. They may work in ``folder/work`` and below
    ``workdirs``. A folder may be used again, with the jobs that are in its store, but not by two at once. ``wanted`` is
    set by whoever wants :meth:`start` to give up (:class:`Interrupted`) or :meth:`stop` to wait for no job.

    Raises :class:`~bloxopt.errors.InputError` for what cannot be used.
    """

    def __init__(
        self,
        nodes: str,
        folder: Path,
        *,
        policy: str = "max_min_fairness",
        round_seconds: float = 10.0,
        round_end: str = "next_event",
        port: int = 0,
        user: str | None = None,
        workdirs: tuple[Path, ...] = (),
    ) -> None:
        self.nodes = load_cluster(nodes).nodes
        try:
            make_config({"policy": policy}, folder)
        except ConfigError as error:
            raise ConfigError(f"--policy: {str(error).removeprefix('policy: ')}") from None
        self.folder = folder.absolute()
        self.work = self.folder / "work"
        self.user = _account(user)
        for each in workdirs:
            if not each.is_dir():
                raise InputError(f"--workdir {each}: there is no such folder: make it first, for jobs to work below")
        self.workdirs = (self.work, *(each.absolute() for each in workdirs))
        self._policy, self._round_seconds, self._round_end = policy, float(round_seconds), round_end
        self._port = _free_port(port)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._people: People | None = None
        self.wanted = threading.Event()
        self._lock = self._take_folder()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def token_file(self) -> Path:
        """The admin's token, readable by its owner alone."""
        return self.folder / _ADMIN_TOKEN

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which bloxopt's commands find this cluster."""
        return {"BLOXOPT_SCHEDULER": self.url, "BLOXOPT_TOKEN": self.token_file.read_text().strip()}

    def start(self) -> None:
        """Return when every node has registered. Raises InputError with the last words of what failed."""
        config = self.folder / _CONFIG
        config.write_text(
            _SETTINGS.format(
                policy=json.dumps(self._policy),
                round_seconds=self._round_seconds,
                shortest=min(0.2, self._round_seconds),
                round_end=self._round_end,
                port=self._port,
            )
        )
        load_config(config)
        self._spawn("scheduler", "scheduler", "--config", str(config), "--admin-token-file", str(self.token_file))
        self._until(self._answers, "the scheduler did not answer")
        people = self._people = People(self.url, self.environment["BLOXOPT_TOKEN"])
        for view in people.get("/v1/nodes"):
            # Drained by stop(), which does not show as long as a node is lost.
            people.post(f"/v1/nodes/{view['name']}/undrain")
        for node in self.nodes:
            self._start_agent(people, node.name, f"{node.num_gpus}x{node.gpu_type}")
        names = {node.name for node in self.nodes}
        self._until(
            lambda: names <= {view["name"] for view in people.get("/v1/nodes") if view["state"] == "up"},
            "not every node registered",
        )

    def check(self) -> None:
        """Raise InputError if a process has ended that should not have."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise InputError(
                    f"{name} ended with code {process.returncode}: {self._last_words(name)} ({self._log(name)})"
                )

    def stop(self, patience: float = 60.0) -> int:
        """Preempt all jobs, which have their grace to save, then end agents and scheduler.

        Returns how many jobs still ran after ``patience`` seconds, or when :attr:`wanted` was set: their leases end
        within a minute, and they with them.
        """
        left = 0
        try:
            if self._people is not None and self._processes["scheduler"].poll() is None:
                left = self._preempt(self._people, patience)
                self._people.close()
        except SchedulerError:
            left = -1
        finally:
            # The scheduler is the last to end, and the first that was started.
            for name in reversed(self._processes):
                _end(self._processes[name])
            self._lock.release()
        return left

    # -- how it works --------------------------------------------------------------------------------------------------

    def _take_folder(self) -> FolderLock:
        folder = self.folder
        lock = FolderLock(folder / _LOCK)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()) and not (folder / _LOCK).exists():
                raise InputError(f"{folder} holds other files: name a new folder, or one of an earlier bloxopt up")
            if not lock.take():
                raise InputError(f"{folder} is in use by another bloxopt up: stop it, or name another folder")
            folder.chmod(0o711)
            self.work.mkdir(exist_ok=True)
            if self.user is not None:
                _hand_over(self.work, pwd.getpwnam(self.user))
        except OSError as error:
            lock.release()
            raise InputError(f"the folder {folder} cannot be used: {error.strerror or error}") from None
        except InputError:
            lock.release()
            raise
        return lock

    def _start_agent(self, people: People, name: str, gpus: str) -> None:
        folder = self.folder / name
        folder.mkdir(exist_ok=True, mode=0o711)
        token_file = folder / "token"
        if not token_file.exists():
            body = {"role": "node", "subject": name, "lifetime": None}
            _write_secret(token_file, people.post("/v1/tokens", body)["token"])
        arguments = ["--scheduler", self.url, "--token-file", str(token_file), "--node", name, "--simulate", gpus]
        arguments += ["--address", "127.0.0.1", "--state-folder", str(folder / "state")]
        for workdir in self.workdirs:
            arguments += ["--workdir", str(workdir)]
        if self.user is not None:
            arguments += ["--user", self.user]
        self._spawn(name, "agent", *arguments)

    def _spawn(self, name: str, *arguments: str) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("BLOXOPT_")}
        with self._log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "bloxopt.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for the command alone, which then ends all in order
                preexec_fn=die_with_parent,
            )

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _last_words(self, name: str) -> str:
        lines = self._log(name).read_text(errors="replace").strip().splitlines()
        telling = [line for line in lines if '"level": "info"' not in line] or lines
        return telling[-1].removeprefix("error: ") if telling else "it said nothing"

    def _answers(self) -> bool:
        if not self.token_file.exists() or not self.token_file.read_text().strip():
            return False
        try:
            with People(self.url, self.environment["BLOXOPT_TOKEN"], timeout=5.0) as people:
                people.get("/healthz")
                return True
        except SchedulerError:
            return False

    def _until(self, happened: Callable[[], bool], otherwise: str) -> None:
        end = time.monotonic() + PATIENCE
        while not happened():
            self.check()
            if time.monotonic() > end:
                raise InputError(f"{otherwise} within {PATIENCE:g} s: see the logs in {self.folder}")
            if self.wanted.wait(0.2):
                raise Interrupted

    def _preempt(self, people: People, patience: float) -> int:
        # Idle nodes first: a job that has to leave its node should not start on the next one to be drained.
        for view in sorted(people.get("/v1/nodes"), key=lambda view: int(view["gpus_in_use"])):
            if view["state"] != "drained":
                people.post(f"/v1/nodes/{view['name']}/drain")
        end = time.monotonic() + patience
        while left := len(people.get("/v1/jobs", status=_UNDER_WAY, limit=1000)["jobs"]):
            if time.monotonic() > end or self.wanted.wait(0.2):
                break
        return left


def _account(user: str | None) -> str | None:
    """The account that jobs run as; None: this one."""
    if os.geteuid() != 0:
        if user is not None and user != pwd.getpwuid(os.geteuid()).pw_name:
            raise ConfigError(f"--user {user}: only root can run jobs as another account")
        return None
    name = "nobody" if user is None else user
    try:
        pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(f"--user {name}: there is no such account on this machine") from None
    return name


def _hand_over(folder: Path, account: pwd.struct_passwd) -> None:
    """Give a folder to the account of the jobs. Raises InputError where that has no way to it."""
    os.chown(folder, account.pw_uid, account.pw_gid)
    groups = os.getgrouplist(account.pw_name, account.pw_gid)
    for parent in folder.resolve().parents:
        status = parent.stat()
        bit = 0o100 if status.st_uid == account.pw_uid else 0o010 if status.st_gid in groups else 0o001
        if not status.st_mode & bit and account.pw_uid != 0:
            raise InputError(
                f"jobs run as {account.pw_name}, who cannot enter {parent}: name another --folder, below /var/tmp say"
            )


def _write_secret(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{text}\n")


def _free_port(port: int) -> int:
    """This port, or any for 0. Raises InputError where another program listens on it."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError as error:
            raise InputError(f"the scheduler cannot listen on 127.0.0.1:{port}: {error.strerror}") from None
        free: int = one.getsockname()[1]
        return free


def _end(process: subprocess.Popen[bytes], patience: float = 15.0) -> None:
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
