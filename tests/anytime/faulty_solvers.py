"""Solvers that fail in every way a solver can; importable by the worker processes."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

from bloxopt.solvers import get_solver
from bloxopt.solvers.base import Capabilities, SolverOptions, SolverResult, Termination

FAULTS = (
    "hang",
    "crash",
    "raise",
    "nothing",
    "nan",
    "wrong shape",
    "lies: feasible",
    "lies: optimal at zero",
    "lies: infeasible",
    "lies: unbounded",
    "limit",
    "error",
)


class Faulty:
    """Fails as its ``fault`` says."""

    name = "faulty"
    capabilities = Capabilities(mip=True, duals=True, time_limit=True)

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def solve(self, form, options: SolverOptions = SolverOptions(), warm_start=None) -> SolverResult:
        if self.fault == "hang":
            time.sleep(1000)
        if self.fault == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "raise":
            raise RuntimeError("boom")
        if self.fault == "nothing":
            return None  # type: ignore[return-value]
        if self.fault in ("lies: infeasible", "lies: unbounded", "limit", "error"):
            ending = {
                "lies: infeasible": Termination.INFEASIBLE,
                "lies: unbounded": Termination.UNBOUNDED,
                "limit": Termination.LIMIT_NO_SOLUTION,
                "error": Termination.ERROR,
            }[self.fault]
            return SolverResult(ending, solver="faulty")
        x = {
            "nan": np.full(form.num_columns, np.nan),
            "wrong shape": np.zeros(form.num_columns + 1),
            "lies: feasible": np.ones(form.num_columns),
            "lies: optimal at zero": np.zeros(form.num_columns),
        }[self.fault]
        return SolverResult(Termination.OPTIMAL, x=x, objective=0.0, bound=0.0, solver="faulty")


class Slow:
    """A real solver that takes its time first, whatever its limit."""

    name = "slow"
    capabilities = Capabilities(mip=True, duals=True, time_limit=True)

    def __init__(self, seconds: float, solver: str = "highs") -> None:
        self.seconds, self.solver = seconds, solver

    def solve(self, form, options: SolverOptions = SolverOptions(), warm_start=None) -> SolverResult:
        time.sleep(self.seconds)
        return get_solver(self.solver).solve(form, SolverOptions(mip_gap=options.mip_gap), warm_start)
