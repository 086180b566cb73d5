"""The traces that ship with bloxopt: where they lie, where they come from, under which licence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from bloxopt.errors import TraceError
from bloxopt.registry import Registry
from bloxopt.throughput import TableThroughput


@dataclass(frozen=True, kw_only=True)
class ShippedTrace:
    """A registered trace; ``path`` is relative to the shipped data, or absolute for one of your own.

    ``cluster`` is the default cluster, a string for ``load_cluster``; ``jobs`` the number of jobs.
    """

    name: str
    description: str
    jobs: int
    cluster: str
    path: str
    format: str
    source: str
    licence: str
    notes: tuple[str, ...] = ()

    def location(self) -> Path:
        """The file to read."""
        return data_path(self.path)


def data_path(relative: str) -> Path:
    """A path inside the shipped data: ``bloxopt/_traces`` of an installation or ``traces/`` of a checkout."""
    package = Path(__file__).resolve().parent.parent
    for root in (package / "_traces", package.parent / "traces"):
        if root.is_dir():
            return root / relative
    raise TraceError(
        f"the shipped traces are missing: neither {package / '_traces'} nor {package.parent / 'traces'} exists; "
        "install bloxopt again"
    )


@lru_cache(maxsize=8)
def shipped_throughput(relative: str) -> TableThroughput:
    """A throughput table in Gavel's JSON among the shipped data, read once."""
    return TableThroughput.from_gavel_json(data_path(relative))


def list_traces() -> list[dict[str, Any]]:
    """One row per registered trace: name, description, jobs, cluster, format, source, licence, notes."""
    fields = ("name", "description", "jobs", "cluster", "format", "source", "licence", "notes")
    return [{field: getattr(TRACES.get(name), field) for field in fields} for name in TRACES]


def _gavel(name: str, jobs: int, path: str, description: str) -> ShippedTrace:
    return ShippedTrace(
        name=name,
        description=description,
        jobs=jobs,
        cluster="8xV100+16xP100+24xK80",
        path=f"gavel/{path}",
        format="gavel",
        source="Gavel (Narayanan et al., OSDI 2020), github.com/stanford-futuredata/gavel",
        licence="MIT",
    )


_POLLUX_NOTES = {
    "pollux": "rigid gangs at the requested batch size; throughputs measured on T4 GPUs, packed four to a node",
    "pollux-epochs": "rigid gangs at the requested batch size, epoch by epoch; rates measured on T4 GPUs, by placement",
    "pollux-elastic": "any number of GPUs at the requested batch size, epoch by epoch; rates on T4 GPUs, by placement",
    "pollux-adaptive": "any number of GPUs at the best batch size of each epoch; rates on T4 GPUs, by placement",
    "pollux-adaptive-fitted": "the same at the batch size that a model fitted to the measurements holds for the best",
}


def _pollux(number: int, description: str, format: str = "pollux") -> ShippedTrace:
    return ShippedTrace(
        name=f"pollux-{number}{format.removeprefix('pollux')}",
        description=description,
        jobs=160,
        cluster="16x4xT4",
        path=f"pollux/workloads/workload-{number}.csv",
        format=format,
        source="Pollux (Qiao et al., OSDI 2021), github.com/petuum/adaptdl, branch osdi21-artifact",
        licence="Apache-2.0",
        notes=(_POLLUX_NOTES[format],),
    )


_SHOCKWAVE_NOTES = {
    "shockwave": "jobs run at their first batch size; extra['mode'] says how it would adapt",
    "shockwave-regimes": "batch sizes adapt as in Shockwave's simulator; a step is one at the first batch size",
}


def _shockwave(description: str, format: str = "shockwave") -> ShippedTrace:
    return ShippedTrace(
        name=f"shockwave-120{format.removeprefix('shockwave')}",
        description=description,
        jobs=120,
        cluster="8x4xV100",
        path="shockwave/canonical_120jobs.trace",
        format=format,
        source="Shockwave (Zheng et al., NSDI 2023), github.com/uw-mad-dash/shockwave",
        licence="MIT",
        notes=(_SHOCKWAVE_NOTES[format],),
    )


def _blox(name: str, path: str, cluster: str, description: str) -> ShippedTrace:
    return ShippedTrace(
        name=name,
        description=description,
        jobs=501,
        cluster=cluster,
        path=f"blox/{path}",
        format="blox",
        source="generated as by Blox (Agarwal et al., EuroSys 2024); multi-GPU counts from the Philly trace",
        licence="CC-BY-4.0",
    )


def _elasticflow(number: int, jobs: int, servers: int) -> ShippedTrace:
    return ShippedTrace(
        name=f"elasticflow-{number:02}",
        description=f"cluster {number} of 10 of Microsoft's ITP, up to 60 days",
        jobs=jobs,
        # The sizes of these clusters are not published. Each is the smallest number of 8-GPU servers
        # that holds the largest job and puts the offered load at 80 % or less; the type is nominal.
        cluster=f"{servers}x8xV100",
        path=f"elasticflow/raw-traces.tar.gz/cluster{number:02}.csv",
        format="elasticflow",
        source="Microsoft ITP, published with ElasticFlow (Gu et al., ASPLOS 2023), github.com/pkusys/ElasticFlow",
        licence="MIT",
        notes=("the cluster's size is not published: servers of 8 GPUs for an offered load of at most 80 %",),
    )


_SHIPPED = (
    _gavel(
        "gavel-100", 100, "minimize_makespan.trace", "100 jobs at time 0, 1 to 4 GPUs (minimum makespan experiment)"
    ),
    _gavel(
        "gavel-96", 96, "max_min_fairness.trace", "96 jobs over 12.9 hours, 1 to 4 GPUs (max-min fairness experiment)"
    ),
    _gavel("gavel-15", 15, "artifact_evaluation.trace", "15 short jobs at time 0 (artifact evaluation)"),
    _shockwave("120 jobs, 1 to 4 GPUs, at their first batch size"),
    _shockwave("the same jobs, whose batch sizes change as they train", "shockwave-regimes"),
    ShippedTrace(
        name="tiresias-60",
        description="60 short jobs, 1 to 8 GPUs",
        jobs=60,
        cluster="4x4xP100",
        path="tiresias/60_job.csv",
        format="tiresias",
        source="Tiresias (Gu et al., NSDI 2019), github.com/SymbioticLab/Tiresias",
        licence="Apache-2.0",
    ),
    _pollux(1, "160 jobs over 8 hours, workload 1 of 8"),
    _pollux(6, "160 jobs over 8 hours, workload 6 of 8 (the one of the published tables)"),
    _pollux(6, "workload 6 as in Pollux' own simulator: rates by placement and epoch", "pollux-epochs"),
    _pollux(6, "workload 6 as for its Optimus: the same with elastic gangs", "pollux-elastic"),
    _pollux(6, "workload 6 as for Pollux itself: elastic gangs that adapt their batch size", "pollux-adaptive"),
    _pollux(6, "the same, batch sizes chosen by a fitted model", "pollux-adaptive-fitted"),
    ShippedTrace(
        name="synergy-100",
        description="100 single-GPU jobs within 0.1 s, with CPU and memory needs",
        jobs=100,
        cluster="4x8xV100:24cpus:500gib",
        path="synergy/static_100jobs.csv",
        format="synergy",
        source="Synergy (Mohan et al., OSDI 2022), github.com/msr-fiddle/synergy",
        licence="MIT",
        notes=("durations are those with the proportional share of 3 CPUs and 62.5 GiB a GPU",),
    ),
    _blox("blox-c16-fifo-8", "c16_Fifo_8_jobs.csv", "16x4xV100", "501 single-GPU jobs, 8 an hour (FIFO reference)"),
    _blox("blox-mx-fifo-4", "mx_Fifo_4_jobs.csv", "32x4xV100", "501 jobs, 1 to 16 GPUs, 4 an hour (FIFO reference)"),
    _blox("blox-mx-las-8", "mx_Las_8_jobs.csv", "32x4xV100", "501 jobs, 1 to 16 GPUs, 8 an hour (LAS reference)"),
    ShippedTrace(
        name="philly",
        description="Microsoft's Philly cluster, 109 days of 2017, 15 virtual clusters",
        jobs=82247,
        cluster="231x8xP100+321x2xP100",
        path="philly/philly.csv.gz",
        format="philly",
        source="Microsoft Philly (Jeon et al., ATC 2019), github.com/msr-fiddle/philly-traces, in the form of AdaptDL",
        licence="CC-BY-4.0",
        notes=(
            "82,247 jobs: the figure of 82,248 counts the blank line at the end of the file",
            "552 servers of 2 or 8 GPUs, 2,490 GPUs, as published; how many of each follows; one GPU type is assumed",
        ),
    ),
    _elasticflow(1, jobs=1595, servers=8),
    _elasticflow(2, jobs=5778, servers=14),
    _elasticflow(3, jobs=3011, servers=22),
    _elasticflow(4, jobs=15802, servers=78),
    _elasticflow(5, jobs=3629, servers=2),
    _elasticflow(6, jobs=2396, servers=14),
    _elasticflow(7, jobs=12699, servers=41),
    _elasticflow(8, jobs=13047, servers=11),
    _elasticflow(9, jobs=11134, servers=5),
    _elasticflow(10, jobs=260, servers=2),
)

TRACES = Registry("trace", {trace.name: trace for trace in _SHIPPED})
"""Every registered trace by name; add your own with ``TRACES.register(name, ShippedTrace(...))``."""
