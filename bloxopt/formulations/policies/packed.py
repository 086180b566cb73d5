"""Space sharing: policies in which two jobs may run on the same GPUs at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bloxopt.formulations import Capacity, PairedShares, Policy, TimeShare
from bloxopt.formulations.policies.finish_time_fairness import finish_time_fairness
from bloxopt.formulations.policies.max_min_fairness import max_min_fairness
from bloxopt.formulations.policies.max_sum_throughput import max_sum_throughput, max_sum_throughput_raw
from bloxopt.formulations.policies.min_makespan import min_makespan
from bloxopt.formulations.policies.water_filling import water_filling_max_min_fairness


def packed(base: Callable[..., Policy], threshold: float = 1.0, **options: Any) -> Policy:
    """The policy that the factory ``base`` makes, with jobs that may share their GPUs in pairs.

    Pairs are considered whose normalised throughputs add up to more than ``threshold``; 1 loses nothing. ``options``
    go to ``base``; ``constraints`` among them are those beside :class:`~bloxopt.formulations.PairedShares`.
    """
    blocks = options.pop("constraints", None)
    blocks = (Capacity(), TimeShare()) if blocks is None else tuple(blocks)
    plain = base()
    described = {
        "name": f"{plain.name}_packed",
        "source": plain.source,
        "description": f"{plain.description}; jobs may share GPUs in pairs",
    }
    return base(**{**described, "constraints": (*blocks, PairedShares(threshold)), **options})


def max_min_fairness_packed(threshold: float = 1.0, **options: Any) -> Policy:
    """Max-min fairness with space sharing (Gavel, OSDI 2020, §3.1), correct for mixed gang sizes."""
    return packed(max_min_fairness, threshold, **options)


def water_filling_max_min_fairness_packed(threshold: float = 1.0, **options: Any) -> Policy:
    """Leximin of the normalised throughputs with space sharing."""
    return packed(water_filling_max_min_fairness, threshold, **options)


def finish_time_fairness_packed(threshold: float = 1.0, **options: Any) -> Policy:
    """Finish-time fairness with space sharing; the isolated share that it compares with has no sharing."""
    return packed(finish_time_fairness, threshold, **options)


def min_makespan_packed(threshold: float = 1.0, **options: Any) -> Policy:
    """Minimum makespan with space sharing (Gavel's ``min_total_duration_packed``)."""
    return packed(min_makespan, threshold, **options)


def max_sum_throughput_packed(threshold: float = 1.0, **options: Any) -> Policy:
    """Most work done, in average GPUs' worth, with space sharing."""
    return packed(max_sum_throughput, threshold, **options)


def max_sum_throughput_raw_packed(threshold: float = 1.0, **options: Any) -> Policy:
    """Most steps/s with space sharing (the throughput sum of Gavel's packed policies)."""
    return packed(max_sum_throughput_raw, threshold, **options)
