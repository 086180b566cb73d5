"""Metrics of the last plan: how it came about, how good it is proven to be, and which blocks cost the most."""

from __future__ import annotations

import math
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from bloxopt.formulations.allocation import Allocation


class PlanCollector(Collector):
    """The certificate of the last allocation, worked out when it is asked for; what is not proven has no series."""

    def __init__(self) -> None:
        self.last: Allocation | None = None

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        plan = self.last
        if plan is None:
            return
        proven = plan.certificate
        how = {"solver": plan.solver, "rung": str(plan.rung), "status": proven.status}
        yield InfoMetricFamily("bloxopt_plan", "How the last plan came about", value=how)
        checked = proven.verification
        for name, text, value in (
            ("objective", "Objective of the last plan, in its natural sense", proven.objective),
            ("bound", "Best objective that is proven possible", proven.bound),
            ("gap_ratio", "Relative distance of the objective from the bound", proven.gap),
            ("verified", "1 if the prices prove the plan optimal", None if checked is None else checked.verified),
            ("duality_gap_ratio", "Gap that the prices leave", None if checked is None else checked.duality_gap),
        ):
            if value is not None and not math.isnan(value):
                yield GaugeMetricFamily(f"bloxopt_plan_{name}", text, value=float(value))
        binding = GaugeMetricFamily(
            "bloxopt_plan_binding_price",
            "Summed size of the prices of a binding block (of a MIP: rows without room)",
            labels=["block"],
        )
        for block, price in proven.binding.items():
            binding.add_metric([block], price)
        yield binding
