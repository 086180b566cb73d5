"""Explanations of results on disk: the experiment is run again up to the moment in question."""

from __future__ import annotations

from pathlib import Path

from bloxopt.errors import InputError
from bloxopt.experiments import load_result, make_experiment
from bloxopt.experiments.run import run_experiment
from bloxopt.experiments.store import load_config
from bloxopt.explanations.explain import explain
from bloxopt.explanations.reasons import Explanation
from bloxopt.rounds import Scheduler
from bloxopt.runtime.backend import ClusterState
from bloxopt.simulation.result import SimulationResult


class _ReachedError(Exception):
    """The moment in question has come; carries the answer out of the simulation."""

    def __init__(self, answer: Explanation) -> None:
        super().__init__()
        self.answer = answer


def explain_result(
    folder: str | Path, job_id: str, at: float | None = None, *, remedies: bool = True, horizon: float = 30 * 86_400.0
) -> Explanation:
    """Why ``job_id`` did not run in the first round at or after ``at`` (s) of a result folder.

    Default for ``at``: the first round in which the job waited, or that of its arrival if it never did. Simulations are
    deterministic, so running one again gives the state that there was. Raises
    :class:`~bloxopt.errors.ResultError` for a folder that holds no result and
    :class:`~bloxopt.errors.InputError` for a job or a time that it does not have.
    """
    result = load_result(folder)
    moment = _moment(result, job_id, at)

    def look(scheduler: Scheduler, state: ClusterState) -> None:
        if state.now >= moment:
            raise _ReachedError(explain(scheduler, state, job_id, remedies=remedies, horizon=horizon))

    experiment = make_experiment(load_config(folder)["experiment"])
    try:
        run_experiment(experiment, before_round=look)
    except _ReachedError as reached:
        return reached.answer
    raise InputError(
        f"{folder}: no round at or after {moment:g} s: the last one began at {result.rounds.time.max():g} s"
    )


def _moment(result: SimulationResult, job_id: str, at: float | None) -> float:
    """The time of the round to look at."""
    jobs = result.jobs[result.jobs["job_id"] == job_id]
    if jobs.empty:
        some = ", ".join(result.jobs["job_id"].head(3))
        raise InputError(f"no job {job_id!r} in this result: jobs have ids such as {some}")
    if at is not None:
        return at
    arrival, end = float(jobs["arrival"].iloc[0]), float(jobs["finish"].iloc[0])
    spells = result.placements[result.placements["job_id"] == job_id]
    for time in result.rounds["time"]:
        if time >= arrival and not time >= end:
            running = (spells["start"] <= time) & (spells["end"] > time)
            if not running.any():
                return float(time)
    return arrival
