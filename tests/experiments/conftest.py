"""A small result made by hand: three jobs on two nodes, one of them preempted, one never finished."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from bloxopt.simulation.result import SimulationResult


def hand_made_result(**config: object) -> SimulationResult:
    jobs = pd.DataFrame(
        {
            "job_id": ["a", "b", "c"],
            "job_type": ["resnet", "lstm", "resnet"],
            "tenant": ["x", "y", "x"],
            "gpus": [2, 1, 4],
            "arrival": [0.0, 360.0, 400.5],
            "start": [0.0, 360.0, np.nan],
            "finish": [1000.25, 720.0, np.nan],
            "jct": [1000.25, 360.0, np.nan],
            "queueing_delay": [0.0, 0.0, np.nan],
            "run_seconds": [640.25, 360.0, 0.0],
            "gpu_seconds": [1280.5, 360.0, 0.0],
            "preemptions": [1, 0, 0],
            "restarts": [1, 0, 0],
            "finish_time_ratio": [0.75, 0.5, np.nan],
            "rejected": [False, False, False],
            "not_admitted": [None, None, None],
            "deadline": [900.0, 720.0, np.nan],
        }
    )
    rounds = pd.DataFrame(
        {
            "round": [0, 1, 2],
            "time": [0.0, 360.0, 720.0],
            "seconds": [360.0, 360.0, 360.0],
            "active_jobs": [1, 3, 2],
            "running_jobs": [1, 1, 1],
            "waiting_jobs": [0, 2, 1],
            "gpus_used": [2, 1, 2],
            "gpus_up": [4, 4, 4],
            "admitted": [1, 2, 0],
            "started": [1, 1, 1],
            "stopped": [0, 1, 0],
            "solved": [True, True, False],
            "rung": ["solved", "greedy", None],
            "termination": ["optimal", "optimal", None],
            "solver": ["highs", "highs", None],
            "objective": [1.0, 0.5, np.nan],
            "bound": [1.0, 0.5, np.nan],
            "gap": [0.0, 0.0, np.nan],
            "solves": [1, 1, 0],
            "solve_seconds": [0.01, 0.02, 0.0],
            "build_seconds": [0.001, 0.002, 0.0],
            "decide_seconds": [0.015, 0.025, 0.001],
        }
    )
    placements = pd.DataFrame(
        {
            "job_id": ["a", "b", "a"],
            "node": ["node-0", "node-0", "node-1"],
            "gpu_type": ["V100", "V100", "K80"],
            "gpus": [2, 1, 2],
            "start": [0.0, 360.0, 720.0],
            "end": [360.0, 720.0, 1000.25],
        }
    )
    settings = {
        "trace": "tiny",
        "cluster": "2xV100+2xK80",
        "policy": "fifo",
        "solver": "highs",
        "preset": "default",
        "options": {"round_seconds": 360.0},
        "seed": 0,
    }
    return SimulationResult(jobs, rounds, placements, {**settings, **config}, wall_seconds=1.5)


@pytest.fixture
def result() -> SimulationResult:
    return hand_made_result()


@pytest.fixture
def make_result():
    return hand_made_result
