"""GPUs of a node: what any source of them says, and one that makes them up."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from typing import Protocol

from bloxopt.errors import ConfigError
from bloxopt.runtime.messages import GpuHealth, GpuInfo

MOST_GPUS = 1024


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What a source sees: its GPUs by index, and, where it fails as a whole, why in ``failure``."""

    gpus: tuple[GpuInfo, ...]
    failure: str = ""


class GpuSource(Protocol):
    """Where an agent looks for GPUs."""

    def read(self) -> GpuReading:
        """What is there now. Never raises for a GPU or a source that fails: says so."""
        ...


class SimulatedGpus:
    """GPUs that are not there, for trying out a cluster: ``8xA100``, or several types, ``4xA100+4xV100``.

    Their measurements are unknown, as nothing is measured. Raises ConfigError for text of another form."""

    def __init__(self, description: str, node: str = "simulated") -> None:
        types: list[str] = []
        for part in description.split("+"):
            match = re.fullmatch(r"(\d{1,4})x([A-Za-z0-9][A-Za-z0-9._-]{0,62})", part.strip())
            if match is None or int(match[1]) == 0:
                raise ConfigError(f"simulated GPUs {description!r}: write a count and a type, such as 8xA100")
            types += [match[2]] * int(match[1])
        if len(types) > MOST_GPUS:
            raise ConfigError(f"simulated GPUs {description!r}: a node has at most {MOST_GPUS}")
        self._gpus = tuple(
            GpuInfo(index=index, uuid=f"SIMULATED-{node}-{index}"[:96], gpu_type=gpu_type)
            for index, gpu_type in enumerate(types)
        )

    def read(self) -> GpuReading:
        return GpuReading(self._gpus)


class GpuMonitor:
    """Asks a source again and again in a thread of its own: a driver that hangs must not stop the heartbeats."""

    def __init__(self, source: GpuSource, patience: float) -> None:
        self._source = source
        self._patience = patience
        self._interval = 5.0
        self._reading: GpuReading | None = None
        self._read_at = self._started_at = time.monotonic()
        self._done = threading.Event()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="bloxopt-gpus", daemon=True)

    def start(self, first_reading: float) -> None:
        """Begin, and wait up to ``first_reading`` seconds for what is there."""
        self._thread.start()
        self._first.wait(first_reading)

    def stop(self) -> None:
        self._done.set()

    def set_interval(self, seconds: float) -> None:
        self._interval = seconds

    def latest(self) -> GpuReading:
        """The last reading; where it is older than the patience allows, its GPUs as not answering."""
        reading, age = self._reading, time.monotonic() - self._read_at
        if reading is None:
            return GpuReading((), "the GPUs have not been read yet" if age < self._patience else "NVML does not answer")
        if age < self._patience + self._interval:
            return reading
        failure = f"NVML has not answered for {age:.0f} s"
        return GpuReading(tuple(unanswered(gpu, failure) for gpu in reading.gpus), failure)

    def _watch(self) -> None:
        while not self._done.is_set():
            try:
                self._reading = self._source.read()
            except Exception as error:
                known = () if self._reading is None else self._reading.gpus
                failure = f"the GPUs cannot be read: {type(error).__name__}: {error}"[:1000]
                self._reading = GpuReading(tuple(unanswered(gpu, failure) for gpu in known), failure)
            self._read_at = time.monotonic()
            self._first.set()
            self._done.wait(self._interval)


def unanswered(gpu: GpuInfo, message: str) -> GpuInfo:
    """A GPU that is known and cannot be asked: what it is stays, what was measured is unknown."""
    health = GpuHealth.FAILED if gpu.health is GpuHealth.FAILED else GpuHealth.DEGRADED
    return GpuInfo(
        index=gpu.index,
        uuid=gpu.uuid,
        gpu_type=gpu.gpu_type,
        memory_gib=gpu.memory_gib,
        xid_errors=gpu.xid_errors,
        links=gpu.links,
        health=health,
        message=message[:4096],
    )
