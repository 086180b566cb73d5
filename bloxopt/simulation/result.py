"""What a simulation gives back: tables of jobs, rounds and placements, and a summary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """Tables of one simulation; times in seconds from the start of the trace.

    ``jobs``: one row a job: job_id, job_type, tenant, gpus, arrival, start, finish, jct,
    queueing_delay, run_seconds, gpu_seconds, preemptions, restarts, finish_time_ratio, rejected, not_admitted (why
    a job was rejected or still waits, None for all others), deadline; NaN for what never happened or is not there.
    ``rounds``: one row a round: round, time, seconds, active_jobs, running_jobs, waiting_jobs, gpus_used, gpus_up,
    admitted, started, stopped, solved, rung (how the allocation came about), termination, solver, objective, bound,
    gap, binding (blocks that cost utility), verified (optimality by duals), solves, resumed (how many of them began
    from an earlier answer), rebuild (why the first of them did not, "" if it did), solve_seconds, build_seconds,
    decide_seconds and late_seconds (of real time, to decide the round and past its deadline). ``placements``: one row a
    job, node and spell: job_id, node, gpu_type, gpus, start, end.
    ``config``: everything that is needed to run it again.
    """

    jobs: pd.DataFrame
    rounds: pd.DataFrame
    placements: pd.DataFrame
    config: dict[str, Any]
    wall_seconds: float = 0.0

    def summary(self) -> dict[str, Any]:
        """Counts, JCT statistics (s), makespan (s), utilisation of the GPUs up, preemptions, solver effort.

        JCT is finish - arrival over finished jobs; makespan is the last finish minus the first arrival;
        utilisation is GPU-seconds used over GPU-seconds up, from the first arrival to the last finish;
        deadlines_met is the part of the jobs with a deadline that finished by it, None without any.
        """
        jobs, rounds = self.jobs, self.rounds
        done = jobs[jobs["finish"].notna()]
        jct = done["jct"].to_numpy(dtype=float)
        begin, end = float(jobs["arrival"].min()), float(done["finish"].max()) if len(done) else np.nan
        offered = _gpu_seconds_up(rounds, begin, end)
        due = jobs[jobs["deadline"].notna()]
        # Completions are exact up to rounding of the clock, far below a microsecond.
        met = due["finish"].to_numpy(dtype=float) <= due["deadline"].to_numpy(dtype=float) + 1e-6

        def statistic(function: Any, values: Any, *arguments: float) -> float | None:
            return float(function(values, *arguments)) if len(values) else None

        return {
            "policy": self.config.get("policy"),
            "solver": self.config.get("solver"),
            "jobs": len(jobs),
            "finished": len(done),
            "rejected": int(jobs["rejected"].sum()),
            "deadlines_met": float(met.mean()) if len(due) else None,
            "average_jct": statistic(np.mean, jct),
            "median_jct": statistic(np.median, jct),
            "p95_jct": statistic(np.percentile, jct, 95),
            "p99_jct": statistic(np.percentile, jct, 99),
            "makespan": end - begin if len(done) else None,
            "average_queueing_delay": statistic(np.mean, done["queueing_delay"].to_numpy(dtype=float)),
            "worst_finish_time_ratio": statistic(np.max, done["finish_time_ratio"].to_numpy(dtype=float)),
            "utilisation": float(jobs["gpu_seconds"].sum()) / offered if offered > 0 else None,
            "preemptions": int(jobs["preemptions"].sum()),
            "restarts": int(jobs["restarts"].sum()),
            "rounds": len(rounds),
            "plans": int(rounds["solved"].sum()),
            "solves": int(rounds["solves"].sum()),
            "solve_seconds": float(rounds["solve_seconds"].sum()),
            "build_seconds": float(rounds["build_seconds"].sum()),
            "wall_seconds": self.wall_seconds,
        }


def _gpu_seconds_up(rounds: pd.DataFrame, begin: float, end: float) -> float:
    """GPU-seconds that were up between two times."""
    start = rounds["time"].to_numpy(dtype=float)
    stop = start + rounds["seconds"].to_numpy(dtype=float)
    inside = np.clip(np.minimum(stop, end) - np.maximum(start, begin), 0.0, None)
    return float(np.nansum(inside * rounds["gpus_up"].to_numpy(dtype=float)))
