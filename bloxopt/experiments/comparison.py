"""Many runs of one experiment: every combination of the listed values, in parallel processes, as one table."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from bloxopt.errors import BloxoptError, ConfigError, ResultError
from bloxopt.experiments.config import Experiment
from bloxopt.experiments.files import json_text, write_atomically
from bloxopt.experiments.reading import labels_of, make_experiment
from bloxopt.experiments.run import check_inputs, input_hashes, resolve, run_and_save
from bloxopt.experiments.store import (
    check_free,
    differences,
    holds_result,
    is_complete,
    load_result,
    load_summary,
)

if TYPE_CHECKING:
    from bloxopt.simulation.result import SimulationResult

AXES: Mapping[str, tuple[str, str]] = {
    "traces": ("trace", "trace"),
    "clusters": ("cluster", "cluster"),
    "loads": ("load", "trace.load"),
    "presets": ("preset", "simulation.preset"),
    "selectors": ("selector", "simulation.selector"),
    "placements": ("placement", "simulation.placement"),
    "host_allocations": ("host_allocation", "simulation.host_allocation"),
    "admissions": ("admission", "admission"),
    "policies": ("policy", "policy"),
    "solvers": ("solver", "solver"),
    "seeds": ("seed", "simulation.seed"),
}
"""Key of ``[compare]`` to its column in the table and the key of the experiment it sets."""

FAILED = "failed"

_NOT_AVERAGED = ("policy", "solver")


@dataclass(frozen=True)
class Run:
    """One combination: its folder's name, the values it stands for, and the resolved experiment."""

    name: str
    values: Mapping[str, Any]
    experiment: Experiment


@dataclass
class Outcome:
    """How a run ended: ``finished``, ``resumed`` (found finished) or ``failed`` with the message."""

    run: Run
    status: str
    summary: dict[str, Any] = field(default_factory=dict)
    message: str = ""

    def row(self) -> dict[str, Any]:
        """One line of ``comparison.csv``."""
        measured = {key: value for key, value in self.summary.items() if key not in self.run.values}
        return {"run": self.run.name, **self.run.values, "status": self.status, "message": self.message, **measured}


def plan_runs(experiment: Experiment) -> list[Run]:
    """Every combination of the values under ``[compare]``, in the order listed; what is not listed stays."""
    origin = experiment.origin
    listed = experiment.compare.model_dump(exclude_none=True) if experiment.compare else {}
    if "loads" in listed and experiment.trace is None and "traces" not in listed:
        raise ConfigError(
            f"{origin.name('compare.loads')}: only a [trace] can be scaled; set generate.jobs_per_hour instead"
        )
    document = {key: table for key, table in experiment.document().items() if key not in ("compare", "output")}
    keys = [key for key in AXES if key in listed]
    runs: dict[str, Run] = {}
    for combination in itertools.product(*(listed[key] for key in keys)):
        overrides = {AXES[key][1]: value for key, value in zip(keys, combination, strict=True)}
        labels = dict(origin.labels)
        for key in keys:
            labels |= labels_of(AXES[key][1], origin.name(f"compare.{key}"))
        single = resolve(make_experiment(document, overrides, labels, origin.prefix))
        chosen = {AXES[key][0]: value for key, value in zip(keys, combination, strict=True)}
        # Always there, so that a comparison can be resumed with a value more of any of them.
        chosen |= {
            "policy": single.policy.name,
            "solver": single.solver.name or "default",
            "seed": single.simulation.seed,
        }
        values = {column: chosen[column] for column, _ in AXES.values() if column in chosen}
        name = "__".join(_file_name(column, value) for column, value in values.items())
        if name in runs:
            name = f"{name}__{len(runs)}"
        runs[name] = Run(name, values, single)
    return list(runs.values())


def compare(
    experiment: Experiment,
    folder: str | Path,
    *,
    processes: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    on_outcome: Callable[[Outcome, int], None] | None = None,
) -> list[Outcome]:
    """Run every combination, each into a folder of its own beneath ``folder``, and write the table after each.

    ``processes`` is the number of parallel processes (default: the CPUs this process may use).
    ``resume`` keeps runs that are finished, if they were made by the same experiment, input files
    and version; ``overwrite`` replaces what is there. ``on_outcome`` is called with each outcome and
    the number of runs. A run that fails is an outcome with its message, not an exception; the
    outcomes come back in the order of :func:`plan_runs`. A script that calls this needs
    ``if __name__ == "__main__":``, as processes are started by importing it again.

    What the runs name is loaded once before the first starts. Raises a :class:`~bloxopt.errors.BloxoptError` if some
    of it cannot be, and :class:`~bloxopt.errors.ResultError` if the folder cannot be used or holds other results.
    """
    folder = Path(folder)
    runs = plan_runs(experiment)
    check_inputs(run.experiment for run in runs)
    done = _finished_before(runs, folder, resume, overwrite)
    outcomes = {name: outcome for name, outcome in done.items() if outcome is not None}

    def report(outcome: Outcome) -> None:
        outcomes[outcome.run.name] = outcome
        write_table([outcomes[run.name] for run in runs if run.name in outcomes], folder)
        if on_outcome is not None:
            on_outcome(outcome, len(runs))

    for outcome in list(outcomes.values()):
        report(outcome)
    left = [run for run in runs if run.name not in outcomes]
    workers = min(len(left), processes or _usable_cpus())
    for outcome in _in_this_process(left, folder) if workers <= 1 else _in_parallel(left, folder, workers):
        report(outcome)
    return [outcomes[run.name] for run in runs]


def comparison_table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row per run in full detail."""
    return pd.DataFrame([outcome.row() for outcome in outcomes])


def averaged_table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row per combination without the seed: runs, failed, and mean and standard deviation over seeds.

    For each measured quantity q the columns ``q`` and ``q_std`` (sample deviation, NaN for one seed).
    """
    rows = []
    groups: dict[tuple[Any, ...], list[Outcome]] = {}
    for outcome in outcomes:
        key = tuple(value for column, value in outcome.run.values.items() if column != "seed")
        groups.setdefault(key, []).append(outcome)
    for group in groups.values():
        values = {column: value for column, value in group[0].run.values.items() if column != "seed"}
        good = pd.DataFrame([outcome.summary for outcome in group if outcome.summary])
        measured = good.drop(columns=[name for name in _NOT_AVERAGED if name in good]).apply(pd.to_numeric)
        mean, deviation = measured.mean(), measured.std(ddof=1)
        statistics = {name: entry for q in measured for name, entry in ((q, mean[q]), (f"{q}_std", deviation[q]))}
        rows.append({**values, "runs": len(group), "failed": len(group) - len(good), **statistics})
    return pd.DataFrame(rows)


def write_table(outcomes: Sequence[Outcome], folder: Path) -> None:
    """``comparison.csv`` (a row per run) and ``comparison.json`` (runs and averages)."""
    runs, averages = comparison_table(outcomes), averaged_table(outcomes)
    document = {"runs": runs.to_dict(orient="records"), "averages": averages.to_dict(orient="records")}
    write_atomically(folder / "comparison.csv", lambda path: runs.to_csv(path, index=False))
    write_atomically(folder / "comparison.json", lambda path: _write_text(path, json_text(document)))


def results_of_rows(rows: Sequence[Mapping[str, Any]], folder: str | Path) -> dict[str, list[SimulationResult]]:
    """Results of the finished runs of a comparison, for overlaid plots: label to the results of all its seeds.

    ``rows`` are those of ``comparison.json``; the label names what differs between the runs.
    """
    columns = [column for column, _ in AXES.values() if column != "seed" and any(column in row for row in rows)]
    differing = [column for column in columns if len({str(row.get(column)) for row in rows}) > 1] or ["policy"]
    groups: dict[str, list[SimulationResult]] = {}
    for row in rows:
        if row["status"] != FAILED:
            label = " · ".join(str(row.get(column)) for column in differing)
            groups.setdefault(label, []).append(load_result(Path(folder) / row["run"]))
    return groups


def _finished_before(runs: Sequence[Run], folder: Path, resume: bool, overwrite: bool) -> dict[str, Outcome | None]:
    """What stands in the way is found before any work is spent; with ``resume`` the finished runs come back."""
    if (folder / "comparison.json").exists() and not (resume or overwrite):
        raise ResultError(
            f"{folder}: holds another comparison: go on with it (--resume), overwrite it (--overwrite) or choose "
            "another folder"
        )
    found: dict[str, Outcome | None] = {}
    for run in runs:
        place = folder / run.name
        if resume and is_complete(place):
            changes = differences(place, run.experiment.document(), input_hashes(run.experiment))
            if not changes:
                found[run.name] = Outcome(run, "resumed", load_summary(place))
                continue
            if not overwrite:
                raise ResultError(
                    f"{place}: cannot resume: it holds the results of another configuration "
                    f"({'; '.join(changes[:3])}); choose another folder, or replace them (--resume --overwrite)"
                )
        # An incomplete result, left by a run that was killed, is in nobody's way.
        found[run.name] = None
        check_free(place, overwrite=overwrite or (holds_result(place) and not is_complete(place)))
    folder.mkdir(parents=True, exist_ok=True)
    return found


def _in_this_process(runs: Sequence[Run], folder: Path) -> Iterator[Outcome]:
    return (_run_one(run, folder) for run in runs)


def _in_parallel(runs: Sequence[Run], folder: Path, workers: int) -> Iterator[Outcome]:
    """Outcomes as they come. When a worker dies, which run killed it is found by running the rest alone."""
    pending = {run.name: run for run in runs}
    for outcome in _pooled(list(runs), folder, workers):
        if outcome is None:
            break
        del pending[outcome.run.name]
        yield outcome
    for run in pending.values():
        died = Outcome(run, FAILED, message="its process died, perhaps for want of memory")
        yield next(_pooled([run], folder, 1)) or died


def _pooled(runs: Sequence[Run], folder: Path, workers: int) -> Iterator[Outcome | None]:
    """Outcomes of a pool as they come; None, and no more, once the pool broke."""
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_ignore_interrupt)
    try:
        futures: list[Future[Outcome]] = [pool.submit(_run_one, run, folder) for run in runs]
        for future in as_completed(futures):
            try:
                yield future.result()
            except BrokenProcessPool:
                yield None
                return
    except BaseException:
        # Ctrl-C: runs that have started are of no more use; their folders stay untouched.
        pool.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _usable_cpus() -> int:
    """CPUs that this process may use, which a container can limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ignore_interrupt() -> None:
    """Ctrl-C reaches the whole process group; the parent alone answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run_one(run: Run, folder: Path) -> Outcome:
    try:
        result = run_and_save(run.experiment, folder / run.name, overwrite=True)
    except BloxoptError as error:
        return Outcome(run, FAILED, message=str(error))
    except (Exception, SystemExit) as error:  # a bug in one policy or solver must not cost the other runs
        return Outcome(run, FAILED, message=f"{type(error).__name__}: {error}")
    return Outcome(run, "finished", result.summary())


def _file_name(column: str, value: object) -> str:
    """``seed-0``, ``ortools-glop``; of a path its last part."""
    text = re.sub(r"[^A-Za-z0-9._+-]+", "-", Path(str(value)).name).strip("-.")
    return f"{column}-{text}" if isinstance(value, (int, float)) else text


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
