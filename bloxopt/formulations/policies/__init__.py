"""The published policies by name: one file each and one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from bloxopt.arguments import check_options
from bloxopt.errors import FormulationError, UnknownNameError, guarded
from bloxopt.formulations.constraints.base import describe
from bloxopt.formulations.policy import Policy
from bloxopt.registry import Registry

_HERE = "bloxopt.formulations.policies"

POLICIES = Registry(
    "policy",
    {
        "fifo": f"{_HERE}.fifo:fifo",
        "strategy_proof": f"{_HERE}.strategy_proof:strategy_proof",
        "srtf": f"{_HERE}.srtf:srtf",
        "las": f"{_HERE}.las:las",
        "shortest": f"{_HERE}.srtf:shortest",
        "srsf": f"{_HERE}.srtf:srsf",
        "sjf": f"{_HERE}.srtf:sjf",
        "ssf": f"{_HERE}.srtf:ssf",
        "themis": f"{_HERE}.themis:themis",
        "tiresias": f"{_HERE}.tiresias:tiresias",
        "gittins": f"{_HERE}.tiresias:gittins",
        "serpt": f"{_HERE}.tiresias:serpt",
        "afs": f"{_HERE}.afs:afs",
        "edf": f"{_HERE}.edf:edf",
        "elasticflow": f"{_HERE}.elasticflow:elasticflow",
        "optimus": f"{_HERE}.optimus:optimus",
        "hived": f"{_HERE}.hived:hived",
        "isolated": f"{_HERE}.isolated:isolated",
        "max_min_fairness": f"{_HERE}.max_min_fairness:max_min_fairness",
        "max_min_fairness_agnostic": f"{_HERE}.max_min_fairness:max_min_fairness_agnostic",
        "water_filling_max_min_fairness": f"{_HERE}.water_filling:water_filling_max_min_fairness",
        "allox": f"{_HERE}.allox:allox",
        "gandiva_fair": f"{_HERE}.gandiva_fair:gandiva_fair",
        "hierarchical": f"{_HERE}.hierarchical:hierarchical",
        "min_cost": f"{_HERE}.min_cost:min_cost",
        "min_cost_slos": f"{_HERE}.min_cost:min_cost_slos",
        "min_makespan": f"{_HERE}.min_makespan:min_makespan",
        "finish_time_fairness": f"{_HERE}.finish_time_fairness:finish_time_fairness",
        "finish_time_order": f"{_HERE}.finish_time_order:finish_time_order",
        "max_sum_throughput": f"{_HERE}.max_sum_throughput:max_sum_throughput",
        "automatic": f"{_HERE}.automatic:automatic",
        "max_sum_throughput_raw": f"{_HERE}.max_sum_throughput:max_sum_throughput_raw",
        "gandiva": f"{_HERE}.gandiva:gandiva",
        "antman": f"{_HERE}.antman:antman",
        "max_min_fairness_packed": f"{_HERE}.packed:max_min_fairness_packed",
        "water_filling_max_min_fairness_packed": f"{_HERE}.packed:water_filling_max_min_fairness_packed",
        "finish_time_fairness_packed": f"{_HERE}.packed:finish_time_fairness_packed",
        "min_makespan_packed": f"{_HERE}.packed:min_makespan_packed",
        "max_sum_throughput_packed": f"{_HERE}.packed:max_sum_throughput_packed",
        "max_sum_throughput_raw_packed": f"{_HERE}.packed:max_sum_throughput_raw_packed",
        "pollux": f"{_HERE}.pollux:pollux",
        "sia": f"{_HERE}.sia:sia",
        "shockwave": f"{_HERE}.shockwave:shockwave",
    },
)

SETTINGS = tuple(field.name for field in fields(Policy) if field.init and field.name != "objective")
"""What every factory hands on to its Policy."""

ALIASES = {
    "fifo_perf": "fifo",
    "max_min_fairness_perf": "max_min_fairness",
    "water_filling_perf": "water_filling_max_min_fairness",
    "max_min_fairness_strategy_proof_perf": "strategy_proof",
    "max_min_fairness_water_filling_perf": "water_filling_max_min_fairness",
    "min_total_duration": "min_makespan",
    "min_total_duration_perf": "min_makespan",
    "finish_time_fairness_perf": "finish_time_fairness",
    "max_sum_throughput_perf": "max_sum_throughput_raw",
    "max_sum_throughput_normalized_by_cost_perf": "min_cost",
    "max_sum_throughput_normalized_by_cost_perf_SLOs": "min_cost_slos",
    "max_min_fairness_water_filling_packed": "water_filling_max_min_fairness_packed",
    "min_total_duration_packed": "min_makespan_packed",
}
"""Names under which Gavel knows the policies."""


def get_policy(policy: str | Policy, **options: Any) -> Policy:
    """The policy of that name or alias, or the Policy itself; ``options`` go to its factory.

    Raises :class:`~bloxopt.errors.UnknownNameError` with a suggestion and
    :class:`~bloxopt.errors.FormulationError` for options that it does not take.
    """
    if isinstance(policy, Policy):
        if options:
            raise FormulationError(
                f"policy {policy.name!r} is an object already: it takes no options ({', '.join(options)})"
            )
        return policy
    if not isinstance(policy, str):
        raise FormulationError(f"{policy!r} is neither the name of a policy nor a Policy")
    name = ALIASES.get(policy, policy)
    if name not in POLICIES:
        raise UnknownNameError("policy", policy, [*POLICIES, *ALIASES])
    factory: Callable[..., Policy] = POLICIES.get(name)
    check_options(factory, options, f"policy {policy!r}", FormulationError, rest=SETTINGS)
    with guarded(f"policy {policy!r}", FormulationError):
        return factory(**options)


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One line of ``bloxopt policies``."""

    name: str
    objective: str
    blocks: str
    source: str
    aliases: str


def policy_table() -> list[PolicyRow]:
    """All registered policies, in order of registration."""
    rows = []
    for name in POLICIES:
        policy = get_policy(name)
        rows.append(
            PolicyRow(
                name=name,
                objective=policy.description,
                blocks=", ".join([type(policy.objective).__name__, *map(describe, policy.blocks)]),
                source=policy.source,
                aliases=", ".join(alias for alias, target in ALIASES.items() if target == name),
            )
        )
    return rows
