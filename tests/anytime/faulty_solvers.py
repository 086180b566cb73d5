"""Solvers that fail in every way a solver can; importable by the worker processes."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import struct
import sys
import time
from dataclasses import replace

import numpy as np

from bloxopt.solvers import get_solver
from bloxopt.solvers.base import Capabilities, SolverOptions, SolverResult, Termination

HANGING = ("hang", "stop", "deaf to signals", "memory that grows slowly")
"""What is noticed at the deadline only."""

FAULTS = (
    *HANGING,
    "crash",
    "exit",
    "raise",
    "memory",
    "nothing",
    "text",
    "nan",
    "infinite",
    "negative",
    "wrong shape",
    "matrix",
    "prices of the wrong shape",
    "garbage",
    "half a message",
    "one byte at a time",
    "dies in the middle of its answer",
    "answers a question before",
    "answers a question to come",
    "lies: feasible",
    "lies: infeasible",
    "lies: unbounded",
    "limit",
    "error",
)

_ENDINGS = {
    "lies: infeasible": Termination.INFEASIBLE,
    "lies: unbounded": Termination.UNBOUNDED,
    "limit": Termination.LIMIT_NO_SOLUTION,
    "error": Termination.ERROR,
}


class Faulty:
    """Fails as its ``fault`` says."""

    name = "faulty"
    capabilities = Capabilities(mip=True, duals=True, time_limit=True)

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def solve(self, form, options: SolverOptions = SolverOptions(), warm_start=None) -> SolverResult:
        _end_or_hang(self.fault)
        _disturb_the_connection(self.fault)
        if self.fault == "raise":
            raise RuntimeError("boom")
        if self.fault == "nothing":
            return None  # type: ignore[return-value]
        if self.fault in _ENDINGS:
            return SolverResult(_ENDINGS[self.fault], solver="faulty")
        if self.fault == "lies: value":
            true = get_solver("highs").solve(form, options, warm_start)
            return replace(true, objective=true.objective * 10 - 1, bound=true.objective * 10 - 1, solver="faulty")
        zeros = np.zeros(form.num_columns)
        x = {
            "nan": zeros * np.nan,
            "infinite": zeros + np.inf,
            "negative": zeros - 1.0,
            "wrong shape": np.zeros(form.num_columns + 1),
            "matrix": np.zeros((form.num_columns, 1)),
            "text": "a solution",
            "lies: feasible": zeros + 1.0,
        }.get(self.fault, zeros)
        prices = {"prices of the wrong shape": form.num_rows + 1, "lies: optimality, with prices": form.num_rows}
        duals = np.zeros(prices[self.fault]) if self.fault in prices else None
        return SolverResult(Termination.OPTIMAL, x=x, objective=0.0, bound=0.0, row_duals=duals, solver="faulty")


def _end_or_hang(fault: str) -> None:
    if fault == "hang":
        time.sleep(1000)
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "deaf to signals":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(1000)
    if fault == "memory that grows slowly":
        hoard = []
        while True:
            hoard.append(bytearray(1 << 20))
            time.sleep(0.01)
    if fault == "memory":
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        bytearray(64 << 30)
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "exit":
        sys.exit(7)


def _disturb_the_connection(fault: str) -> None:
    """Write to the connection over which the worker process, whose argument it is, gives its answers."""
    if fault == "garbage":
        os.write(int(sys.argv[1]), b"Segmentation fault\n" * 100)
    if fault in ("half a message", "dies in the middle of its answer"):
        os.write(int(sys.argv[1]), struct.pack("!Q", 1000) + b"half")
        if fault == "half a message":
            time.sleep(1000)
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "one byte at a time":
        os.write(int(sys.argv[1]), struct.pack("!Q", 1_000_000))
        while True:
            os.write(int(sys.argv[1]), b"x")
            time.sleep(0.005)
    if fault in ("answers a question before", "answers a question to come"):
        message = pickle.dumps((0 if fault == "answers a question before" else 1000, None))
        os.write(int(sys.argv[1]), struct.pack("!Q", len(message)) + message)


class Slow:
    """A real solver that takes its time first, whatever its limit."""

    name = "slow"
    capabilities = Capabilities(mip=True, duals=True, time_limit=True)

    def __init__(self, seconds: float, solver: str = "highs") -> None:
        self.seconds, self.solver = seconds, solver

    def solve(self, form, options: SolverOptions = SolverOptions(), warm_start=None) -> SolverResult:
        time.sleep(self.seconds)
        return get_solver(self.solver).solve(form, SolverOptions(mip_gap=options.mip_gap), warm_start)
