"""Series of every GPU and running job in Prometheus' text format, written directly: as objects they took a second.

Nobody waits for whoever reads them: every list is copied in one step, without the lock of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from bloxopt.runtime.live import LiveCluster
from bloxopt.runtime.messages import GpuHealth, GpuInfo
from bloxopt.runtime.store import JobRecord

LABELS = ("Hostname", "UUID", "gpu", "modelName")
"""As NVIDIA's DCGM exporter names them, so that its dashboards fit."""

_GIB = 2.0**30


class _Family(NamedTuple):
    """What a family says of an attribute of every GPU: its ``number``; an attribute that is None is not known."""

    kind: str
    name: str
    text: str
    attribute: str
    number: Callable[[Any], float] = float


_FAMILIES = (
    _Family("gauge", "bloxopt_gpu_utilisation_ratio", "Utilisation of a GPU", "utilisation"),
    _Family("gauge", "bloxopt_gpu_memory_total_bytes", "Memory of a GPU", "memory_gib", _GIB.__mul__),
    _Family("gauge", "bloxopt_gpu_memory_used_bytes", "Memory of a GPU in use", "memory_used_gib", _GIB.__mul__),
    _Family("gauge", "bloxopt_gpu_temperature_celsius", "Temperature of a GPU", "temperature"),
    _Family("gauge", "bloxopt_gpu_power_watts", "Power that a GPU draws", "power"),
    _Family(
        "gauge",
        "bloxopt_gpu_throttled",
        "1 if the clocks of a GPU are low",
        "throttled",
        lambda reasons: float(bool(reasons)),
    ),
    _Family(
        "gauge",
        "bloxopt_gpu_degraded",
        "1 if something is wrong with a GPU",
        "health",
        lambda health: float(health is GpuHealth.DEGRADED),
    ),
    _Family(
        "gauge",
        "bloxopt_gpu_failed",
        "1 if nothing may run on a GPU",
        "health",
        lambda health: float(health is GpuHealth.FAILED),
    ),
    _Family("counter", "bloxopt_gpu_ecc_errors_total", "Uncorrected memory errors since boot", "ecc_errors"),
    _Family(
        "counter",
        "bloxopt_gpu_xid_errors_total",
        "XID errors since the agent started",
        "xid_errors",
        lambda errors: float(len(errors)),
    ),
)
_ALLOCATED = _Family(
    "gauge", "bloxopt_gpu_allocated", "1 if a job has a GPU", "", lambda owner: float(owner is not _NOBODY)
)
_INFO, _INFO_TEXT = "bloxopt_gpu_job_info", "1: the job that a GPU was given to"
_NOBODY = ""

_WHICH = attrgetter("uuid", "index", "gpu_type")
_WHAT = attrgetter(*(family.attribute for family in _FAMILIES))


class _NodeLines:
    """The lines of one node's GPUs, a text for each family; those of what has not changed stay written."""

    def __init__(self, host: str, which: Sequence[tuple[str, int, str]]) -> None:
        self.which = which
        self._labels = [
            _labels(zip(LABELS, (host, uuid, str(index), gpu_type), strict=True)) for uuid, index, gpu_type in which
        ]
        self._written: dict[str, tuple[tuple[Any, ...], bytes]] = {}

    def of(self, family: _Family, values: tuple[Any, ...]) -> bytes:
        """The lines of a family, of whose attribute each GPU has one of the ``values``."""
        name, number = family.name, family.number
        known = self._written.get(name)
        if known is None or known[0] != values:
            lines = zip(self._labels, values, strict=True)
            shown = [f"{name}{{{labels}}} {number(value)}\n" for labels, value in lines if value is not None]
            known = self._written[name] = values, "".join(shown).encode()
        return known[1]

    def owners(self, owners: tuple[str, ...]) -> bytes:
        """Which job has each GPU, by the labels of the job."""
        known = self._written.get(_INFO)
        if known is None or known[0] != owners:
            lines = zip(self._labels, owners, strict=True)
            shown = [f"{_INFO}{{{labels},{owner}}} 1.0\n" for labels, owner in lines if owner is not _NOBODY]
            known = self._written[_INFO] = owners, "".join(shown).encode()
        return known[1]


@dataclass(slots=True)
class _Going:
    """A job that runs, its labels, and how many GPUs it has."""

    job: JobRecord
    labels: str
    gpus: int = 0


class LiveSeries:
    """Writes the series of a live cluster."""

    def __init__(self, live: LiveCluster) -> None:
        self._live = live
        self._lines: dict[str, _NodeLines] = {}
        self._going: dict[str, _Going] = {}

    def text(self) -> Iterator[bytes]:
        """Every series of every GPU and running job now, in parts. What is not known of a GPU has no series."""
        going: dict[str, _Going] = {}
        families: list[list[bytes]] = [[] for _ in _FAMILIES]
        allocated: list[bytes] = []
        info: list[bytes] = []
        # All of a node at once: what one looks at again and again is at hand then.
        for host, contact in list(self._live.contacts.items()):
            infos = contact.infos
            if not infos:
                continue
            lines = self._lines_of(host, infos)
            for family, written, values in zip(_FAMILIES, families, zip(*map(_WHAT, infos), strict=True), strict=True):
                written.append(lines.of(family, values))
            on = self._owners(host, going)
            owners = tuple([on.get(gpu.index, _NOBODY) for gpu in infos])
            allocated.append(lines.of(_ALLOCATED, owners))
            info.append(lines.owners(owners))
        self._going = going
        yield from _job_text(list(going.values()))
        for family, written in zip((*_FAMILIES, _ALLOCATED), (*families, allocated), strict=True):
            yield _head(family.name, family.kind, family.text)
            yield from written
        yield _head(_INFO, "gauge", _INFO_TEXT)
        yield from info

    def _lines_of(self, host: str, infos: Sequence[GpuInfo]) -> _NodeLines:
        which = list(map(_WHICH, infos))
        lines = self._lines.get(host)
        if lines is None or lines.which != which:
            lines = self._lines[host] = _NodeLines(host, which)
        return lines

    def _owners(self, host: str, going: dict[str, _Going]) -> dict[int, str]:
        """The labels of the jobs that GPUs of a node were given to; jobs and GPUs are counted in ``going``."""
        jobs, before = self._live.jobs, self._going
        on: dict[int, str] = {}
        for run in self._live.runs_on(host):
            job = jobs.get(run.job_id)
            if job is None or not job.wanted or run.attempt != job.attempt:
                continue
            one = going.get(run.job_id)
            if one is None:
                known = before.get(run.job_id)
                labels = _labels((("job_id", job.job_id), ("user", job.user))) if known is None else known.labels
                one = going[run.job_id] = _Going(job, labels)
            one.gpus += len(run.gpus)
            for gpu in run.gpus:
                on[gpu] = one.labels
        return on


_JOB_FAMILIES: tuple[tuple[str, str, Callable[[_Going], float | None]], ...] = (
    ("bloxopt_job_gpus", "GPUs of a running job", attrgetter("gpus")),
    ("bloxopt_job_steps", "Steps that a running job has done", attrgetter("job.steps")),
    ("bloxopt_job_steps_per_second", "Rate of a running job", attrgetter("job.steps_per_second")),
    ("bloxopt_job_attained_seconds", "Time that a running job has had GPUs", attrgetter("job.attained_seconds")),
)


def _job_text(going: Sequence[_Going]) -> Iterator[bytes]:
    labels = [one.labels for one in going]
    for name, text, value in _JOB_FAMILIES:
        yield _head(name, "gauge", text)
        lines = zip(labels, map(value, going), strict=True)
        yield "".join([f"{name}{{{one}}} {float(amount)}\n" for one, amount in lines if amount is not None]).encode()


def _head(name: str, kind: str, text: str) -> bytes:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n".encode()


def _labels(pairs: Iterable[tuple[str, str]]) -> str:
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in pairs])


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
