"""Explanations of results on disk: the experiment is run again up to the moment in question."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bloxopt.errors import BloxoptError, InputError, ResultError
from bloxopt.experiments import Experiment, load_result, make_experiment
from bloxopt.experiments.run import input_hashes, resolve, run_experiment
from bloxopt.experiments.store import differences, load_config
from bloxopt.explanations.explain import explain
from bloxopt.explanations.reasons import Explanation
from bloxopt.rounds import Scheduler
from bloxopt.runtime.backend import ClusterState
from bloxopt.simulation.result import SimulationResult

_COLUMNS = {
    "jobs": ("job_id", "arrival", "start", "finish"),
    "rounds": ("time",),
    "placements": ("job_id", "start", "end"),
}
_SAME_TIME = 1e-6
"""Seconds that two simulations of one experiment may lie apart."""


class _ReachedError(Exception):
    """The moment in question has come; carries the answer out of the simulation."""

    def __init__(self, answer: Explanation) -> None:
        super().__init__()
        self.answer = answer


class _AnotherRunError(Exception):
    """The simulation does not go as the stored one did."""


def explain_result(
    folder: str | Path, job_id: str, at: float | None = None, *, remedies: bool = True, horizon: float = 30 * 86_400.0
) -> Explanation:
    """Why ``job_id`` did not run in the first round at or after ``at`` (s) of a result folder.

    Default for ``at``: the first round in which the job waited, or that of its arrival if it never did. The experiment
    is run again; that its rounds, starts and finishes up to then are those of the folder is checked. Raises
    :class:`~bloxopt.errors.ResultError` for a folder that holds no result, or one that the experiment no longer gives,
    and :class:`~bloxopt.errors.InputError` for a job or a time that it does not have.
    """
    result = _loaded(Path(folder))
    moment = _moment(result, job_id, at)
    experiment = resolve(_experiment(Path(folder)))
    _check_files(Path(folder), experiment)
    history = _History(result)

    def look(scheduler: Scheduler, state: ClusterState) -> None:
        history.check_round(state.now)
        if state.now >= moment:
            history.check_jobs(scheduler, state.now)
            raise _ReachedError(explain(scheduler, state, job_id, remedies=remedies, horizon=horizon))

    try:
        run_experiment(experiment, before_round=look)
    except _ReachedError as reached:
        return reached.answer
    except _AnotherRunError as error:
        why = "; ".join(differences(Path(folder), experiment.document(), input_hashes(experiment)))
        raise ResultError(
            f"{folder}: run again, {error}, so its rounds cannot be explained: "
            f"{why or 'with a time limit or round budget, rounds depend on how fast the machine is'}"
        ) from error
    raise InputError(
        f"{folder}: no round at or after {moment:g} s: the last one began at {result.rounds['time'].max():g} s"
    )


class _History:
    """What a stored result says of the rounds and jobs up to a moment, to compare a simulation with."""

    def __init__(self, result: SimulationResult) -> None:
        self.result = result
        self.times = result.rounds["time"].to_numpy(dtype=float)
        self.rounds = 0

    def check_round(self, now: float) -> None:
        """Raise unless the next round of the simulation is the next of the result."""
        if self.rounds < len(self.times) and abs(self.times[self.rounds] - now) > _SAME_TIME:
            raise _AnotherRunError(
                f"the experiment has a round at {now:g} s instead of one at {self.times[self.rounds]:g} s"
            )
        self.rounds += 1

    def check_jobs(self, scheduler: Scheduler, now: float) -> None:
        """Raise unless the same jobs had come, started (how often) and finished before ``now``."""
        jobs, ledger, table = self.result.jobs, scheduler.backend.ledger, scheduler.backend.catalog.table
        if list(jobs["job_id"]) != [str(job) for job in table.job_id]:
            raise _AnotherRunError("the experiment has other jobs")
        spells = self.result.placements[["job_id", "start"]].drop_duplicates()
        spells = spells[spells["start"] < now - _SAME_TIME]
        starts = spells.groupby("job_id").size().reindex(jobs["job_id"], fill_value=0).to_numpy()
        stored = [(starts, np.where(np.isnan(ledger.start), 0, 1 + ledger.restarts), "starts")]
        for name, array in (("finish", ledger.finish), ("arrival", table.arrival)):
            column = jobs[name].to_numpy(dtype=float)
            stored.append((np.where(column <= now, column, np.inf), np.where(array <= now, array, np.inf), name))
        for old, new, what in stored:
            close = np.isclose(old, new, rtol=0.0, atol=_SAME_TIME)
            if not close.all():
                job = str(jobs["job_id"].iloc[int(np.flatnonzero(~close)[0])])
                raise _AnotherRunError(f"the experiment differs in the {what} of job {job!r} before {now:g} s")


def _loaded(folder: Path) -> SimulationResult:
    """The result in a folder, with all columns that are looked at."""
    if (folder / "comparison.json").is_file():
        some = next((str(path.parent) for path in sorted(folder.glob("*/summary.json"))), f"{folder}/…")
        raise ResultError(f"{folder}: a comparison of several results: name one of them, such as {some}")
    result = load_result(folder)
    for table, columns in _COLUMNS.items():
        missing = set(columns) - set(getattr(result, table).columns)
        if missing:
            raise ResultError(f"{folder}/{table}.parquet: corrupt: column {sorted(missing)[0]!r} is missing")
    return result


def _experiment(folder: Path) -> Experiment:
    """The experiment that gave the result."""
    document = load_config(folder)["experiment"]
    if document is None:
        raise ResultError(
            f"{folder}: the result was saved without its experiment, so it cannot be run again; in Python, call "
            "explain(scheduler, state, job_id) in simulate(..., before_round=...)"
        )
    if not isinstance(document, dict):
        raise ResultError(f"{folder}/config.json: corrupt: 'experiment' is no JSON object")
    try:
        return make_experiment(document)
    except BloxoptError as error:
        raise ResultError(f"{folder}/config.json: the experiment cannot be read: {error}") from error


def _check_files(folder: Path, experiment: Experiment) -> None:
    """Raise if a file that the experiment reads is not what it was."""
    stored = load_config(folder)["inputs"]
    for path, digest in input_hashes(experiment).items():
        if stored.get(path, digest) != digest:
            raise ResultError(
                f"{folder}: {path} has changed since, so that the experiment has other rounds now: run it again, or "
                "bring the old file back"
            )


def _moment(result: SimulationResult, job_id: str, at: float | None) -> float:
    """The time of the round to look at."""
    jobs = result.jobs[result.jobs["job_id"] == job_id]
    if jobs.empty:
        some = ", ".join(result.jobs["job_id"].head(3))
        raise InputError(f"no job {job_id!r} in this result: jobs have ids such as {some}")
    if at is not None:
        if not at >= 0.0:
            raise InputError(f"at is {at!r}: it must be a number of seconds >= 0")
        return at
    arrival, end = float(jobs["arrival"].iloc[0]), float(jobs["finish"].iloc[0])
    spells = result.placements[result.placements["job_id"] == job_id]
    for time in result.rounds["time"]:
        if time >= arrival and not time >= end:
            running = (spells["start"] <= time) & (spells["end"] > time)
            if not running.any():
                return float(time)
    return arrival
