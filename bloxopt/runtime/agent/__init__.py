"""What runs on a GPU server: the agent, which converges to what the scheduler desires, and a guard for each run."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bloxopt.runtime.agent.agent import Agent
    from bloxopt.runtime.agent.config import AgentConfig
    from bloxopt.runtime.agent.gpus import GpuReading, GpuSource, SimulatedGpus
    from bloxopt.runtime.agent.nvml import NvmlGpus

__all__ = ["Agent", "AgentConfig", "GpuReading", "GpuSource", "NvmlGpus", "SimulatedGpus"]

# Imported when first asked for: guards, one process a run, load none of it.
_EXPORTS = {
    "Agent": "agent",
    "AgentConfig": "config",
    "GpuReading": "gpus",
    "GpuSource": "gpus",
    "NvmlGpus": "nvml",
    "SimulatedGpus": "gpus",
}


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
