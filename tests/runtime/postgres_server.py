"""A PostgreSQL server of the tests' own, over a socket in a folder, that can be stopped and killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class PostgresServer:
    """A running server with an empty database; ``url`` is what a scheduler's configuration says."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._binaries, self._folder, self._data = binaries, folder, folder / "data"
        # The server refuses to run as root.
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(folder, self._user)
        self.url = f"postgresql://bloxopt@/postgres?host={folder}"
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "bloxopt", "--no-sync")
        self.start()

    def start(self) -> None:
        """Start, and wait until it answers."""
        options = f"-c listen_addresses= -c unix_socket_directories={self._folder} -c fsync=off"
        self._run("pg_ctl", "-D", str(self._data), "-w", "-l", str(self._folder / "log"), "-o", options, "start")

    def stop(self) -> None:
        """Stop in order: what is under way is given up, what was committed is kept."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "-m", "fast", "stop")

    def kill(self) -> None:
        """kill -9 of the server and of all that it has started; the next start recovers from its log."""
        main = int((self._data / "postmaster.pid").read_text().splitlines()[0])
        # It starts no more that would be missed.
        os.kill(main, signal.SIGSTOP)
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        every = [main, *map(int, children)]
        for pid in every:
            os.kill(pid, signal.SIGKILL)
        # Until they are reaped they count as running, for PostgreSQL too.
        while any(Path(f"/proc/{pid}").exists() for pid in every):
            time.sleep(0.01)

    def close(self) -> None:
        """Stop at once, if it runs."""
        command = [str(self._binaries / "pg_ctl"), "-D", str(self._data), "-m", "immediate", "stop"]
        subprocess.run(command, check=False, capture_output=True, user=self._user, cwd=self._folder)

    def _run(self, name: str, *arguments: str) -> None:
        command = [str(self._binaries / name), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, user=self._user, cwd=self._folder)
        if done.returncode:
            log = self._folder / "log"
            raise OSError(f"{name} failed: {done.stderr}{log.read_text()[-1000:] if log.exists() else ''}")


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server while the block lasts; skips the test where PostgreSQL is not installed or cannot be started."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    binaries = next((folder for folder in folders if (folder / "initdb").exists()), None)
    if binaries is None:
        pytest.skip("PostgreSQL is not installed: no initdb on PATH or below /usr/lib/postgresql")
    # A socket's path has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="bloxopt-pg-", dir="/tmp") as folder:
        try:
            server = PostgresServer(binaries, Path(folder))
        except OSError as error:
            pytest.skip(f"PostgreSQL cannot be started here: {error}")
        try:
            yield server
        finally:
            server.close()
