"""Shockwave's simulator (Zheng et al., NSDI 2023) on its canonical trace of 120 jobs that adapt their batch sizes."""

from __future__ import annotations

from functools import partial

import numpy as np

from bloxopt.formulations.policies import get_policy
from bloxopt.jobs import FloatArray
from bloxopt.reproduction.base import OTHER_SEMANTICS, Figure, Run
from bloxopt.simulation import SimulationResult, simulate
from bloxopt.workloads import load_trace
from bloxopt.workloads.readers.shockwave import THROUGHPUTS
from bloxopt.workloads.regime_throughput import RegimeThroughput
from bloxopt.workloads.shipped import shipped_throughput
from bloxopt.workloads.trace import Trace

TRACE = "shockwave-120-regimes"
CLUSTER = "32x1xV100"
GPUS = 32

UNFAIR = 1.05
"""Finish-time ratio above which Shockwave's authors call a job treated unfairly."""


def finish_time_ratios(result: SimulationResult, trace: Trace, gpus: int = GPUS) -> FloatArray:
    """Completion time of each job over ``isolated × max(1, jobs / gpus)``, to five digits, in order of the trace.

    ``isolated`` is what its profile says that the job takes alone. So the contention that a fair share is measured by
    is that of all jobs of the trace at once, as in the published figures.
    """
    profile = RegimeThroughput(shipped_throughput(THROUGHPUTS), rules="profile")
    alone = profile.isolated_seconds(trace.jobs, "v100") * max(1.0, len(trace) / gpus)
    completion = result.jobs.set_index("job_id")["jct"].loc[list(trace.jobs.job_id)].to_numpy(dtype=np.float64)
    return np.asarray(np.round(completion / alone, 5))


def _measure(policy: str, **options: object) -> dict[str, float | None]:
    trace = load_trace(TRACE)
    result = simulate(trace, CLUSTER, get_policy(policy, **options), preset="shockwave")
    ratios = finish_time_ratios(result, trace)
    summary = result.summary()
    return {
        "makespan": summary["makespan"],
        "average_jct": summary["average_jct"],
        "worst_finish_time_ratio": float(ratios.max()),
        "unfair_jobs": 100.0 * float(np.mean(ratios > UNFAIR)),
    }


_UNITS = {"makespan": "s", "average_jct": "s", "worst_finish_time_ratio": "", "unfair_jobs": "%"}


def _run(
    policy: str,
    source: str,
    references: tuple[float, float, float, float],
    options: dict[str, object] | None = None,
    **changes: dict[str, object],
) -> Run:
    """The four published figures of one policy; ``changes`` are fields of the figure of that metric."""
    figures = tuple(
        Figure(metric=metric, reference=reference, unit=unit, **changes.get(metric, {}))  # type: ignore[arg-type]
        for (metric, unit), reference in zip(_UNITS.items(), references, strict=True)
    )
    measure = partial(_measure, policy, **(options or {}))
    return Run(trace=TRACE, policy=policy, source=source, measure=measure, figures=figures)


_ONE_JOB = "one job of 120 is 0.83 points: here 29 exceed 1.05 and there 30"

_MANY_MAKESPANS = (
    "many allocations have the shortest makespan: which one the solver gives moves the average completion time from "
    "19,160 to 21,000 s and the worst ratio from 8.2 to 8.5 in a replica of the published simulator, whose bisection "
    "also stops up to 5 % above the optimum"
)

_MANY_RATIOS = (
    "only the largest ratio is optimised: which of the optimal allocations the solver gives moves the makespan from "
    "29.9 to 32.3 ks, the average completion time from 10.2 to 12.0 ks, the worst ratio at the end from 2.5 to 3.9 and "
    "the unfair jobs from 20 to 27 % in a replica of the published simulator"
)

_GANGS = (
    "theirs matches a gang of s as if it were a job of one GPU, by seconds, and gives it 1/s of the time; ours by "
    "GPU-seconds, and it runs until it is done. A replica of their simulator with their rule gives their figures"
)

_TIME_LEFT = (
    "theirs estimates the time left in whole epochs and is one epoch short; ours goes by the work done. In a prototype "
    "of their scheduler that alone moves the average from 9,905 to 10,555 s and the makespan from 23.4 to 22.6 ks"
)

_SINGLE_JOBS = (
    "only the first 8 of the 20 rounds of a window are carried out, so that small differences early move single jobs: "
    "4 to 12 % were seen with other gaps and powers of the same policy"
)

RUNS = (
    _run(
        "max_min_fairness_agnostic",
        "Shockwave's simulator: max_min_fairness",
        (33207.66, 11274.12, 2.947, 25.0),
        unfair_jobs={"explanation": _ONE_JOB},
    ),
    _run(
        "min_makespan",
        "Shockwave's simulator: min_total_duration, found by bisection",
        (24204.82, 19806.73, 7.741, 74.17),
        average_jct={"explanation": _MANY_MAKESPANS},
        worst_finish_time_ratio={"explanation": _MANY_MAKESPANS},
        unfair_jobs={"explanation": _MANY_MAKESPANS},
    ),
    _run(
        "finish_time_fairness",
        "Shockwave's simulator: finish_time_fairness, which its authors call Themis",
        (31929.0, 11302.0, 3.438, 22.5),
        makespan={"explanation": _MANY_RATIOS},
        worst_finish_time_ratio={"explanation": _MANY_RATIOS},
        unfair_jobs={"explanation": _MANY_RATIOS},
    ),
    _run(
        "allox",
        "Shockwave's simulator: allox, alpha 0.2",
        (32489.0, 9926.0, 4.964, 27.5),
        {"alpha": 0.2},
        makespan={"explanation": _GANGS},
        worst_finish_time_ratio={"explanation": _GANGS},
        unfair_jobs={"explanation": _GANGS},
    ),
    _run(
        "shockwave",
        "Shockwave's authors' output, with Gurobi",
        (24197.0, 9958.0, 1.784, 5.0),
        makespan={"goal": "at_most"},
        average_jct={"tolerance": OTHER_SEMANTICS, "explanation": _TIME_LEFT},
        worst_finish_time_ratio={"goal": "at_most"},
        unfair_jobs={"goal": "at_most", "explanation": _SINGLE_JOBS},
    ),
)
