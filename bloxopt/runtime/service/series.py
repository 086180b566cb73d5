"""Series of every GPU and running job in Prometheus' text format, written directly: as objects they took a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from bloxopt.runtime.live import LiveCluster
from bloxopt.runtime.messages import GpuHealth, GpuInfo
from bloxopt.runtime.store import JobRecord

LABELS = ("Hostname", "UUID", "gpu", "modelName")
"""As NVIDIA's DCGM exporter names them, so that its dashboards fit."""

_GIB = 2.0**30


class _Seen(NamedTuple):
    """A GPU, its labels, and the job (id and user) that it was given to."""

    gpu: GpuInfo
    labels: str
    job: tuple[str, str] | None


def _in_bytes(gib: float | None) -> float | None:
    return None if gib is None else gib * _GIB


_FAMILIES: tuple[tuple[str, str, str, Callable[[_Seen], float | None]], ...] = (
    ("gauge", "utilisation_ratio", "Utilisation of a GPU", lambda seen: seen.gpu.utilisation),
    ("gauge", "memory_total_bytes", "Memory of a GPU", lambda seen: _in_bytes(seen.gpu.memory_gib)),
    ("gauge", "memory_used_bytes", "Memory of a GPU in use", lambda seen: _in_bytes(seen.gpu.memory_used_gib)),
    ("gauge", "temperature_celsius", "Temperature of a GPU", lambda seen: seen.gpu.temperature),
    ("gauge", "power_watts", "Power that a GPU draws", lambda seen: seen.gpu.power),
    ("gauge", "throttled", "1 if the clocks of a GPU are low", lambda seen: bool(seen.gpu.throttled)),
    ("gauge", "degraded", "1 if something is wrong with a GPU", lambda seen: seen.gpu.health is GpuHealth.DEGRADED),
    ("gauge", "failed", "1 if nothing may run on a GPU", lambda seen: seen.gpu.health is GpuHealth.FAILED),
    ("gauge", "allocated", "1 if a job has a GPU", lambda seen: seen.job is not None),
    ("counter", "ecc_errors_total", "Uncorrected memory errors since boot", lambda seen: seen.gpu.ecc_errors),
    ("counter", "xid_errors_total", "XID errors since the agent started", lambda seen: len(seen.gpu.xid_errors)),
)


def gpu_text(live: LiveCluster) -> str:
    """Every series of every GPU now. What is not known of a GPU has no series."""
    with live.lock:
        infos = {name: live.contacts[name].infos for name in live.nodes}
        on = {
            (run.node, gpu): (job.job_id, job.user)
            for job in live.going()
            if job.wanted
            for run in live.runs_of(job)
            if not run.ended
            for gpu in run.gpus
        }
    seen = [_Seen(gpu, _labels_of(gpu, host), on.get((host, gpu.index))) for host in infos for gpu in infos[host]]
    lines: list[str] = []
    for kind, name, text, value in _FAMILIES:
        full = f"bloxopt_gpu_{name}"
        lines += (f"# HELP {full} {text}", f"# TYPE {full} {kind}")
        lines += [f"{full}{{{one.labels}}} {float(amount)}" for one in seen if (amount := value(one)) is not None]
    full = "bloxopt_gpu_job_info"
    lines += (f"# HELP {full} 1: the job that a GPU was given to", f"# TYPE {full} gauge")
    for _, labels, job in seen:
        if job is not None:
            whose = _labels(zip(("job_id", "user"), job, strict=True))
            lines.append(f"{full}{{{labels},{whose}}} 1.0")
    return "\n".join(lines) + "\n"


_JOB_FAMILIES: tuple[tuple[str, str, Callable[[JobRecord], float | None]], ...] = (
    ("steps", "Steps that a running job has done", lambda job: job.steps),
    ("steps_per_second", "Rate of a running job", lambda job: job.steps_per_second),
    ("attained_seconds", "Time that a running job has had GPUs", lambda job: job.attained_seconds),
)


def job_text(live: LiveCluster) -> str:
    """Every series of every job that runs now."""
    with live.lock:
        jobs = [(job, sum(len(run.gpus) for run in live.runs_of(job))) for job in live.going() if job.wanted]
    seen = [(job, _labels((("job_id", job.job_id), ("user", job.user))), gpus) for job, gpus in jobs]
    lines = ["# HELP bloxopt_job_gpus GPUs of a running job", "# TYPE bloxopt_job_gpus gauge"]
    lines += [f"bloxopt_job_gpus{{{labels}}} {float(gpus)}" for _, labels, gpus in seen]
    for name, text, value in _JOB_FAMILIES:
        full = f"bloxopt_job_{name}"
        lines += (f"# HELP {full} {text}", f"# TYPE {full} gauge")
        lines += [
            f"{full}{{{labels}}} {float(amount)}" for job, labels, _ in seen if (amount := value(job)) is not None
        ]
    return "\n".join(lines) + "\n"


def _labels_of(gpu: GpuInfo, host: str) -> str:
    return _labels(zip(LABELS, (host, gpu.uuid, str(gpu.index), gpu.gpu_type), strict=True))


def _labels(pairs: Iterable[tuple[str, str]]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
