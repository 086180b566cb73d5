"""The programs that solvers are measured on: max-min fairness and one configuration per job."""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array

from bloxopt.formulations.solving.standard_form import StandardForm

NUM_TYPES = 3
GPUS_PER_JOB = (1, 2, 4, 8)
GPUS_PER_JOB_PROBABILITY = (0.7, 0.1, 0.15, 0.05)  # the mix of Gavel's multi-GPU traces
NUM_CONFIGURATIONS = 12


def max_min(num_jobs: int, capacity_per_type: float, seed: int = 0) -> StandardForm:
    """Heterogeneity-aware max-min fairness (Gavel, OSDI 2020, section 4.1) as ``max t``.

    Columns: the share of time ``x[i, j]`` of job i on type j, in [0, 1], job by job, then the free
    level t. Rows: N of normalised throughput ``Σ_j rate_ij s_i / w_i · x_ij − t ≥ 0``, N of time share
    ``Σ_j x_ij ≤ 1``, one of capacity a type ``Σ_i s_i x_ij ≤ capacity_per_type`` (GPUs).
    """
    random = np.random.default_rng(seed)
    rate = random.lognormal(0.0, 1.0, (num_jobs, NUM_TYPES))
    gpus = random.choice(GPUS_PER_JOB, num_jobs, p=GPUS_PER_JOB_PROBABILITY).astype(float)
    weight = random.choice([1.0, 2.0, 4.0], num_jobs, p=[0.8, 0.15, 0.05])
    normalised = rate * gpus[:, None] / (weight * rate.mean(axis=1))[:, None]

    num_columns = num_jobs * NUM_TYPES + 1
    job = np.repeat(np.arange(num_jobs), NUM_TYPES)
    gpu_type = np.tile(np.arange(NUM_TYPES), num_jobs)
    column = np.arange(num_jobs * NUM_TYPES)
    level = np.full(num_jobs, num_columns - 1)
    rows = np.concatenate([job, np.arange(num_jobs), num_jobs + job, 2 * num_jobs + gpu_type])
    columns = np.concatenate([column, level, column, column])
    values = np.concatenate([normalised.ravel(), -np.ones(num_jobs), np.ones(len(column)), gpus[job]])
    num_rows = 2 * num_jobs + NUM_TYPES
    return StandardForm(
        cost=np.append(np.zeros(num_columns - 1), -1.0),
        matrix=coo_array((values, (rows, columns)), shape=(num_rows, num_columns)).tocsc(),
        row_lower=np.concatenate([np.zeros(num_jobs), np.full(num_jobs + NUM_TYPES, -np.inf)]),
        row_upper=np.concatenate(
            [np.full(num_jobs, np.inf), np.ones(num_jobs), np.full(NUM_TYPES, float(capacity_per_type))]
        ),
        lower=np.append(np.zeros(num_columns - 1), -np.inf),
        upper=np.append(np.ones(num_columns - 1), np.inf),
        integer=np.zeros(num_columns, dtype=bool),
    )


def contended(num_jobs: int, seed: int = 0) -> StandardForm:
    """Max-min fairness where jobs compete: N/48 GPUs of each type."""
    return max_min(num_jobs, num_jobs / 48, seed)


def plentiful(num_jobs: int, seed: int = 0) -> StandardForm:
    """Max-min fairness where the slowest job's own cap decides: N GPUs of each type."""
    return max_min(num_jobs, num_jobs, seed)


def one_configuration(num_jobs: int, seed: int = 0) -> StandardForm:
    """Sia's program (SOSP 2023, section 3.4): at most one of 12 configurations a job, binary, random utility.

    Configurations are 1, 2, 4 or 8 GPUs of one of three types; each type has N/4 GPUs.
    """
    random = np.random.default_rng(seed)
    gpus = np.tile(np.repeat(np.array(GPUS_PER_JOB, float), NUM_TYPES), num_jobs)
    gpu_type = np.tile(np.tile(np.arange(NUM_TYPES), len(GPUS_PER_JOB)), num_jobs)
    job = np.repeat(np.arange(num_jobs), NUM_CONFIGURATIONS)
    speed = random.lognormal(0.0, 0.5, (num_jobs, NUM_TYPES))[job, gpu_type]
    efficiency = random.uniform(0.4, 0.95, num_jobs)[job]
    utility = speed * gpus**efficiency
    num_columns = num_jobs * NUM_CONFIGURATIONS
    column = np.arange(num_columns)
    rows = np.concatenate([job, num_jobs + gpu_type])
    values = np.concatenate([np.ones(num_columns), gpus])
    return StandardForm(
        cost=-utility,
        matrix=coo_array((values, (rows, np.tile(column, 2))), shape=(num_jobs + NUM_TYPES, num_columns)).tocsc(),
        row_lower=np.full(num_jobs + NUM_TYPES, -np.inf),
        row_upper=np.concatenate([np.ones(num_jobs), np.full(NUM_TYPES, np.ceil(num_jobs / 4))]),
        lower=np.zeros(num_columns),
        upper=np.ones(num_columns),
        integer=np.ones(num_columns, dtype=bool),
    )
