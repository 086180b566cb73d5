"""Blox' simulator (Agarwal et al., EuroSys 2024) on its generated lists of 501 jobs, of which 200 to 500 count."""

from __future__ import annotations

from functools import partial

from bloxopt.reproduction.base import Figure, Run
from bloxopt.simulation import simulate

TRACKED = range(200, 501)


def _measure(trace: str, cluster: str, policy: str) -> dict[str, float | None]:
    result = simulate(trace, cluster, policy, preset="blox")
    tracked = result.jobs[result.jobs["job_id"].astype(int).isin(TRACKED)]
    return {"average_jct": float(tracked["jct"].mean()), "preemptions": float(result.jobs["preemptions"].sum())}


def _run(trace: str, cluster: str, policy: str, *figures: Figure) -> Run:
    return Run(
        trace=trace,
        policy=policy,
        source="Blox' simulator",
        measure=partial(_measure, trace, cluster, policy),
        figures=figures,
    )


RUNS = (
    _run("blox-c16-fifo-8", "16x4xV100", "fifo", Figure(metric="average_jct", reference=164180.6)),
    _run("blox-mx-fifo-4", "32x4xV100", "fifo", Figure(metric="average_jct", reference=70414.0)),
    _run(
        "blox-mx-las-8",
        "32x4xV100",
        "las",
        Figure(metric="average_jct", reference=70921.5),
        Figure(metric="preemptions", reference=6090.0, unit=""),
    ),
)
