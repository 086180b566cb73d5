"""Simulation: the round loop over a cluster that moves its own clock."""

from __future__ import annotations

from bloxopt.simulation.failures import Outage, RandomFailures
from bloxopt.simulation.options import PRESETS, SimulationOptions, preset_table
from bloxopt.simulation.result import SimulationResult
from bloxopt.simulation.simulate import ProgressUpdate, simulate

__all__ = [
    "PRESETS",
    "Outage",
    "ProgressUpdate",
    "RandomFailures",
    "SimulationOptions",
    "SimulationResult",
    "preset_table",
    "simulate",
]
