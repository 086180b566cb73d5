"""Checks of what people pass to ``simulate``: one message each that names the argument and what it takes."""

from __future__ import annotations

import numbers
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bloxopt.errors import InputError
from bloxopt.formulations.space import ConfigurationCatalog
from bloxopt.hosts import HostAllocation, get_host_allocation
from bloxopt.placement import get_placement
from bloxopt.placement.strategy import Strategy
from bloxopt.selection import RoundSelector, get_selector
from bloxopt.simulation.failures import Outage, RandomFailures
from bloxopt.simulation.options import PRESETS, SimulationOptions
from bloxopt.solvers.base import SolverOptions

if TYPE_CHECKING:
    from bloxopt.workloads.trace import Trace

_MOST_ROUNDS = 10_000_000
"""Rounds that one job may need at least: more would not end in any useful time."""
_MOST_EVENTS_PER_ROUND = 10_000
"""Node failures and repairs expected in one round, at most."""


def as_trace(source: Any) -> Trace:
    """A trace from a name, a path or a trace."""
    from bloxopt.workloads import load_trace
    from bloxopt.workloads.trace import Trace

    if isinstance(source, Trace):
        return source
    if not isinstance(source, (str, Path)):
        raise InputError(
            f"trace is a {type(source).__name__}: it must be a Trace, a name of `bloxopt traces` or a path; make one "
            "of Job objects with Trace.from_jobs([...])"
        )
    return load_trace(source)


def chosen_options(
    preset: str | None,
    options: SimulationOptions | None,
    round_seconds: Any,
    placement: str | Strategy | None,
    selector: str | RoundSelector | None,
    host_allocation: str | HostAllocation | None = None,
) -> SimulationOptions:
    """The preset, or the options instead, with what was changed one by one."""
    if options is not None and not isinstance(options, SimulationOptions):
        raise InputError(f"options is {options!r}: it must be a SimulationOptions")
    if options is not None and preset is not None:
        raise InputError(f"preset {preset!r} and options are both given: options replaces the preset, give one of them")
    if preset is not None and not isinstance(preset, str):
        raise InputError(f"preset is {preset!r}: it must be the name of one, such as {', '.join(PRESETS)}")
    chosen: SimulationOptions = PRESETS.get("default" if preset is None else preset) if options is None else options
    changes: dict[str, Any] = {}
    if round_seconds is not None:
        real = isinstance(round_seconds, numbers.Real) and not isinstance(round_seconds, (bool, np.bool_))
        changes["round_seconds"] = _as_float(round_seconds) if real else round_seconds
    if isinstance(placement, str):
        changes["placement"] = placement
    if isinstance(selector, str):
        changes["selector"] = selector
    if isinstance(host_allocation, str):
        changes["host_allocation"] = host_allocation
    return chosen.with_(**changes)


def as_placement(placement: Any, options: SimulationOptions) -> Strategy:
    """The strategy itself if one was given, else the one that the options name."""
    if placement is None or isinstance(placement, str):
        return get_placement(options.placement, **options.placement_options)
    return get_placement(placement)


def as_host_allocation(allocation: Any, options: SimulationOptions) -> HostAllocation | None:
    """The host allocation itself if one was given, else the one that the options name, if they do."""
    if allocation is None or isinstance(allocation, str):
        name = options.host_allocation
        return None if name is None else get_host_allocation(name, **options.host_allocation_options)
    if not callable(getattr(allocation, "allocate", None)) or isinstance(allocation, type):
        raise InputError(
            f"host_allocation is {allocation!r}: it must be a name of `bloxopt host-allocations` or a HostAllocation"
        )
    chosen: HostAllocation = allocation
    return chosen


def as_selector(selector: Any, options: SimulationOptions) -> RoundSelector:
    """The selector itself if one was given, else a new one of the kind that the options name."""
    if selector is None or isinstance(selector, str):
        return get_selector(options.selector, **options.selector_options)
    if not callable(getattr(selector, "select", None)) or isinstance(selector, type):
        raise InputError(f"selector is {selector!r}: it must be a name of `bloxopt selectors` or a RoundSelector")
    chosen: RoundSelector = selector
    return chosen


def checked_seed(seed: Any) -> int:
    if isinstance(seed, (bool, np.bool_)) or not isinstance(seed, numbers.Integral) or seed < 0:
        raise InputError(f"seed is {seed!r}: it must be a whole number >= 0")
    return int(seed)


def check_others(solver_options: Any, failures: Any, max_rounds: Any, progress: Any) -> None:
    """The remaining arguments, which are used as they are."""
    if solver_options is not None and not isinstance(solver_options, SolverOptions):
        raise InputError(f"solver_options is {solver_options!r}: it must be a SolverOptions")
    if failures is not None and not isinstance(failures, RandomFailures):
        fine = isinstance(failures, (list, tuple)) and all(isinstance(entry, Outage) for entry in failures)
        if not fine:
            raise InputError(f"failures is {failures!r}: it must be a RandomFailures or a list of Outage")
    whole = isinstance(max_rounds, numbers.Integral) and not isinstance(max_rounds, (bool, np.bool_))
    if max_rounds is not None and (not whole or max_rounds < 1):
        raise InputError(f"max_rounds is {max_rounds!r}: it must be None or a whole number >= 1")
    if progress is not None and not callable(progress):
        raise InputError(f"progress is {progress!r}: it must be a function of a ProgressUpdate")


def check_it_can_end(
    catalog: ConfigurationCatalog, options: SimulationOptions, failures: Any, max_rounds: int | None
) -> None:
    """Raise for rounds so short, or failures so frequent, that the simulation would not end in useful time."""
    length = options.round_seconds
    if isinstance(failures, RandomFailures):
        cycle = failures.mean_seconds_between_failures + failures.mean_seconds_to_repair
        events = 2 * len(catalog.cluster.nodes) * length / cycle
        if options.round_end == "next_event":
            length = min(length, length / events)  # each of them ends a round
        elif events > _MOST_EVENTS_PER_ROUND:
            raise InputError(
                f"failures: about {events:.3g} failures and repairs would fall into each round of "
                f"{options.round_seconds:g} s: use longer times between failures and to repair"
            )
    if max_rounds is not None:
        return
    fastest = np.maximum.reduceat(catalog.rate, catalog.offsets[:-1])
    rounds = catalog.table.total_steps / fastest / length
    longest = int(rounds.argmax())
    if rounds[longest] > _MOST_ROUNDS:
        raise InputError(
            f"job {catalog.table.job_id[longest]!r} needs {rounds[longest]:.3g} rounds of {length:.3g} s "
            f"even at its fastest, more than {_MOST_ROUNDS:,}: use longer rounds (round_seconds), a shorter job, fewer "
            "failures, or max_rounds"
        )


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")
