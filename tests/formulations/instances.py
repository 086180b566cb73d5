"""Small random scheduling instances, and the same programs written plainly for SciPy."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from scipy.optimize import linprog

from bloxopt.formulations import AllocationSpace
from bloxopt.jobs import Job
from bloxopt.throughput import TableThroughput

TYPES = ("fast", "mid", "slow")


def make_space(
    rates,
    num_gpus,
    capacity,
    *,
    weights=None,
    steps=None,
    arrivals=None,
    tenants=None,
    now=None,
    round_seconds=360.0,
    deadlines=None,
    restart_cost=0.0,
    kept_beside=0.7,
    pair_threshold=None,
    **state,
) -> AllocationSpace:
    """A space with steps/s ``rates`` (jobs, types), ``num_gpus`` per job and ``capacity`` GPUs per type.

    Jobs of equal gangs keep ``kept_beside`` of their rates, a number or (jobs, jobs, types), while they share GPUs.
    """
    rates = np.asarray(rates, dtype=float)
    count = len(rates)
    jobs = [
        Job(
            job_id=f"job-{i}",
            job_type=f"model-{i}",
            arrival=0.0 if arrivals is None else float(arrivals[i]),
            total_steps=1000.0 if steps is None else float(steps[i]),
            num_gpus=int(num_gpus[i]),
            tenant="default" if tenants is None else tenants[i],
            weight=1.0 if weights is None else float(weights[i]),
            deadline=None if deadlines is None else deadlines[i],
            restart_cost=restart_cost,
        )
        for i in range(count)
    ]
    table = {
        (f"model-{i}", TYPES[j], int(num_gpus[i])): float(rates[i, j])
        for i in range(count)
        for j in range(rates.shape[1])
    }
    kept = np.broadcast_to(kept_beside, (count, count, rates.shape[1]))
    pairs = {
        (f"model-{a}", f"model-{b}", TYPES[j], int(num_gpus[a])): (
            rates[a, j] * kept[a, b, j],
            rates[b, j] * kept[b, a, j],
        )
        for a in range(count)
        for b in range(a)
        for j in range(rates.shape[1])
        if num_gpus[a] == num_gpus[b]
    }
    cluster = "+".join(f"{capacity[j]}x{TYPES[j]}" for j in range(rates.shape[1]))
    return AllocationSpace.from_jobs(
        jobs,
        cluster,
        TableThroughput(table, pairs),
        now=now,
        round_seconds=round_seconds,
        pair_threshold=pair_threshold,
        **state,
    )


@st.composite
def spaces(draw, max_jobs=5, max_types=3, with_state=False):
    """Instances with up to ``max_jobs`` jobs of 1, 2 or 4 GPUs on up to ``max_types`` GPU types."""
    count = draw(st.integers(1, max_jobs))
    types = draw(st.integers(1, max_types))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    gpus = rng.choice([1, 1, 2, 4], size=count)
    capacity = [int(gpus.max()) + draw(st.integers(0, 4)) for _ in range(types)]
    rates = rng.uniform(0.2, 20.0, size=(count, types))
    rates[:, 1:][rng.random((count, types - 1)) < 0.2] = 0.0
    more = {}
    if with_state:
        arrivals = np.sort(rng.uniform(0.0, 500.0, count))
        steps = rng.uniform(100.0, 5000.0, count)
        more = {
            "arrivals": arrivals,
            "steps": steps,
            "now": float(arrivals.max() + rng.uniform(0.0, 300.0)),
            "weights": rng.choice([1.0, 2.0, 0.5], size=count),
            "remaining_steps": steps * rng.uniform(0.1, 1.0, count),
            "isolated_seconds": rng.uniform(0.0, 400.0, count),
            "attained_seconds": rng.uniform(0.0, 400.0, count).round(-1),
            "attained_service": rng.uniform(0.0, 400.0, count).round(-1),
        }
    return make_space(rates, gpus, capacity, **more)


class PlainModel:
    """The base program of Gavel's paper over a dense (jobs, types) matrix x, for SciPy's HiGHS."""

    def __init__(self, space: AllocationSpace) -> None:
        self.rates = space.requested_rate
        self.s = space.requested_gpus.astype(float)
        self.c = space.capacity.astype(float)
        self.m, self.k = self.rates.shape
        possible = (self.rates > 0) & (self.s[:, None] <= self.c[None, :])
        self.bounds = [(0.0, 1.0 if ok else 0.0) for ok in possible.ravel()]
        rows, right = [], []
        for j in range(self.k):
            row = np.zeros((self.m, self.k))
            row[:, j] = self.s
            rows.append(row.ravel())
            right.append(self.c[j])
        for i in range(self.m):
            row = np.zeros((self.m, self.k))
            row[i] = 1.0
            rows.append(row.ravel())
            right.append(1.0)
        self.rows, self.right = np.array(rows), np.array(right)

    def row(self, i: int, coefficients: np.ndarray) -> np.ndarray:
        row = np.zeros((self.m, self.k))
        row[i] = coefficients
        return row.ravel()

    def maximise(self, cost: np.ndarray, extra_rows=(), extra_right=()):
        """max costᵀx with additional ``row x ≥ right``; returns SciPy's result."""
        rows = np.vstack([self.rows, *[-np.asarray(row)[None, :] for row in extra_rows]])
        right = np.concatenate([self.right, [-value for value in extra_right]])
        return linprog(-cost, A_ub=rows, b_ub=right, bounds=self.bounds, method="highs")

    def max_min(self, coefficients: np.ndarray, free=None, floors=None):
        """max min over ``free`` jobs of Σ_j coefficients_ij x_ij, the others at least ``floors``."""
        free = range(self.m) if free is None else free
        floors = floors or {}
        rows = [np.append(row, 0.0) for row in self.rows]
        right = list(self.right)
        for i in free:
            rows.append(np.append(-self.row(i, coefficients[i]), 1.0))
            right.append(0.0)
        for i, value in floors.items():
            rows.append(np.append(-self.row(i, coefficients[i]), 0.0))
            right.append(-value)
        cost = np.zeros(self.m * self.k + 1)
        cost[-1] = -1.0
        result = linprog(cost, A_ub=np.array(rows), b_ub=right, bounds=[*self.bounds, (0, None)], method="highs")
        return (-result.fun if result.status == 0 else None), result

    def feasible(self, rates_needed: np.ndarray) -> bool:
        """Whether every job can have at least ``rates_needed`` steps/s."""
        rows = [self.row(i, self.rates[i]) for i in range(self.m)]
        return self.maximise(np.zeros(self.m * self.k), rows, list(rates_needed)).status == 0


def normalised(space: AllocationSpace) -> np.ndarray:
    """Gavel's coefficients s_i T_ij / (w_i prop_i), written independently of the package's expressions."""
    c = space.cluster.capacity.astype(float)
    proportional = (space.requested_rate * c).sum(axis=1) / c.sum()
    return space.requested_rate * (space.requested_gpus / space.weight / proportional)[:, None]
