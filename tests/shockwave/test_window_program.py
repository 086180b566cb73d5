"""The window as a program in counts of rounds: against every schedule and the binary program of all rounds."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

import bloxopt as bx
from bloxopt.formulations import AllocationSpace, Capacity, TimeShare
from bloxopt.formulations.solving.packing import Packing
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.session import Session
from bloxopt.formulations.systems.window_program import WindowWelfare, interpolation_error
from bloxopt.formulations.systems.window_rounds import rounds_of_window
from bloxopt.solvers import SolverOptions, get_solver

POINTS = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
ORIGIN = 1e-6


def space_of(sizes: list[int], gpus: int) -> AllocationSpace:
    jobs = [bx.Job(job_id=f"j{k}", num_gpus=size, duration=1000.0) for k, size in enumerate(sizes)]
    return AllocationSpace.from_jobs(jobs, f"{gpus}x1xV100", round_seconds=100.0)


def welfare_of(space: AllocationSpace, rounds: int, seed: int, makespan_weight: float = 1e-3) -> WindowWelfare:
    rng = np.random.default_rng(seed)
    jobs = space.num_jobs
    done = rng.choice([0.0, 0.1, 0.5, 0.93], jobs)
    whole = rng.uniform(150.0, 900.0, jobs)
    remaining = (1.0 - done) * whole * rng.uniform(0.7, 1.3, jobs)
    weight = rng.choice([1.0, 1.0, 4.0, 30.0], jobs)
    return WindowWelfare(weight, done, whole, remaining, np.ones(jobs), rounds, 100.0, POINTS, ORIGIN, makespan_weight)


def value_of_schedule(welfare: WindowWelfare, x: np.ndarray) -> float:
    """The published objective of binary ``x`` (jobs, rounds), written out job by job."""
    total, left = 0.0, []
    for j in range(len(x)):
        seconds = min(100.0 * x[j].sum(), (1.0 - welfare.done[j]) * welfare.whole[j])
        total += welfare.weight[j] * np.interp(
            welfare.done[j] + seconds / welfare.whole[j], POINTS, np.log(np.maximum(POINTS, ORIGIN))
        )
        left.append(max(0.0, welfare.remaining[j] - seconds))
    return total / (len(x) * x.shape[1]) - welfare.makespan_weight * max(left)


def solve_window(space: AllocationSpace, welfare: WindowWelfare) -> tuple[np.ndarray, float]:
    """The plan (rounds, jobs) and the proven bound."""
    session = Session(
        space, {"Capacity": Capacity(), "TimeShare": TimeShare()}, get_solver("highs"), SolverOptions(mip_gap=0.0)
    )
    program = session.program()
    row, count = welfare.add_to(program)
    solved = session.solve(program, row)
    whole = np.rint(solved.result.x[count]).astype(int)
    single = session.program()
    single.make_integer()
    packing = Packing.of(single)
    assert packing is not None
    owed = np.maximum(whole * space.gpu_demand, 1)
    order = np.argsort(-welfare.remaining, kind="stable")
    plan = rounds_of_window(packing, whole, welfare.weight / owed, order, welfare.rounds)
    return plan, solved.utility_bound


def best_of_all(space: AllocationSpace, welfare: WindowWelfare, gpus: int) -> float:
    """The best over every schedule, round by round."""
    sizes = space.requested_gpus
    subsets = [np.array(s) for s in itertools.product([0, 1], repeat=len(sizes)) if np.dot(s, sizes) <= gpus]
    return max(
        value_of_schedule(welfare, np.array(choice).T)
        for choice in itertools.combinations_with_replacement(subsets, welfare.rounds)
    )


@settings(max_examples=40)
@given(st.lists(st.sampled_from([1, 1, 2, 4]), min_size=1, max_size=4), st.integers(1, 3), st.integers(0, 10**6))
def test_bound_and_plan_enclose_the_best_of_all_schedules(sizes: list[int], rounds: int, seed: int) -> None:
    gpus = 4
    space = space_of(sizes, gpus)
    welfare = welfare_of(space, rounds, seed)
    plan, bound = solve_window(space, welfare)
    best = best_of_all(space, welfare, gpus)
    value = value_of_schedule(welfare, plan.T)
    assert value == pytest.approx(welfare.value(space, plan.sum(axis=0).astype(float)), abs=1e-9)
    assert value <= best + 1e-9
    assert best <= bound + 1e-6
    if max(sizes) == 1:
        assert value == pytest.approx(best, abs=1e-6)


@settings(max_examples=40)
@given(st.integers(2, 4), st.integers(2, 3), st.integers(0, 10**6))
def test_the_welfare_of_others_counts_beside_a_job_that_weighs_a_million_times_as_much(
    jobs: int, rounds: int, seed: int
) -> None:
    """As jobs do that are late in their last round: what a solver overlooks must not be more than all others have."""
    space = space_of([1] * jobs, 1)
    welfare = welfare_of(space, rounds, seed)
    weight, whole = welfare.weight.copy(), welfare.whole.copy()
    weight[0], whole[0] = 1e6, 90.0
    welfare = replace(welfare, weight=weight, whole=whole, remaining=np.minimum(welfare.remaining, whole))
    plan, bound = solve_window(space, welfare)
    best = best_of_all(space, welfare, 1)
    assert best <= bound + 1e-6 * max(1.0, abs(best))
    assert value_of_schedule(welfare, plan.T) == pytest.approx(best, rel=1e-6, abs=1e-6)


@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(1, 8), st.integers(2, 10), st.integers(0, 10**6))
def test_with_gangs_of_one_gpu_every_job_gets_its_rounds(jobs: int, gpus: int, rounds: int, seed: int) -> None:
    """Any counts of at most T with a sum of at most T·G can be spread over the rounds, and are."""
    rng = np.random.default_rng(seed)
    space = space_of([1] * jobs, gpus)
    count = rng.integers(0, rounds + 1, jobs)
    while count.sum() > gpus * rounds:
        count[rng.integers(jobs)] = 0
    program = Program(space)
    Capacity().build(space, program)
    TimeShare().build(space, program)
    packing = Packing.of(program)
    assert packing is not None
    plan = rounds_of_window(packing, count, rng.uniform(0, 1, jobs), np.arange(jobs), rounds)
    assert (plan.sum(axis=1) == min(gpus, jobs)).all()  # no GPU idles while a job waits
    assert (plan.sum(axis=0) >= count).all()


def test_counts_of_gangs_that_fit_are_nearly_always_packed() -> None:
    """Counts taken from random schedules that leave hardly a GPU idle: few windows lose a round of some job."""
    rng = np.random.default_rng(3)
    lost = []
    for _ in range(40):
        gpus, rounds = int(rng.choice([8, 16])), 10
        sizes = rng.choice([1, 1, 1, 2, 4], 30).tolist()
        schedule = np.zeros((rounds, len(sizes)), dtype=int)
        for current in range(rounds):
            free = gpus
            for job in rng.permutation(len(sizes)):
                if sizes[job] <= free and rng.random() < 0.8:
                    schedule[current, job] = 1
                    free -= sizes[job]
        space = space_of(sizes, gpus)
        program = Program(space)
        Capacity().build(space, program)
        TimeShare().build(space, program)
        packing = Packing.of(program)
        assert packing is not None
        count = schedule.sum(axis=0)
        plan = rounds_of_window(packing, count, rng.uniform(0, 1, len(sizes)), np.arange(len(sizes)), rounds)
        assert (plan @ space.gpu_demand <= gpus).all()
        lost.append(int(np.maximum(count - plan.sum(axis=0), 0) @ space.gpu_demand))
    assert np.mean(np.array(lost) == 0) >= 0.9
    assert max(lost) <= 4


def test_jobs_that_need_every_round_left_go_before_urgent_ones() -> None:
    space = space_of([1, 1, 1], 2)
    program = Program(space)
    Capacity().build(space, program)
    packing = Packing.of(program)
    assert packing is not None
    plan = rounds_of_window(packing, np.array([2, 2, 2]), np.array([9.0, 8.0, 1.0]), np.arange(3), 3)
    assert plan.sum(axis=0).tolist() == [2, 2, 2]
    assert plan.sum(axis=1).tolist() == [2, 2, 2]


def test_urgent_jobs_get_the_earlier_rounds() -> None:
    space = space_of([1, 1, 1], 1)
    program = Program(space)
    Capacity().build(space, program)
    packing = Packing.of(program)
    assert packing is not None
    plan = rounds_of_window(packing, np.array([1, 1, 1]), np.array([2.0, 9.0, 5.0]), np.arange(3), 3)
    assert plan.argmax(axis=1).tolist() == [1, 2, 0]


def test_gangs_that_cannot_be_packed_are_seen_by_the_bound() -> None:
    """A gang of 4 for one round and one of 2 for both: the sum fits the window of 2 × 4 GPUs, no two rounds do."""
    space = space_of([4, 2], 4)
    welfare = WindowWelfare(
        np.ones(2), np.array([0.0, 0.0]), np.array([100.0, 200.0]), np.array([100.0, 200.0]), np.ones(2), 2, 100.0,
        POINTS, ORIGIN, 1e-3,
    )  # fmt: skip
    plan, bound = solve_window(space, welfare)
    best = best_of_all(space, welfare, 4)
    assert value_of_schedule(welfare, plan.T) <= best + 1e-9 < bound


def full_program(welfare: WindowWelfare, sizes: np.ndarray, gpus: int) -> float:
    """The published program with a binary per job and round and special ordered sets of points, by SciPy's HiGHS."""
    jobs, rounds, points = len(sizes), welfare.rounds, len(POINTS)
    width = rounds + 1 + 2 * points
    columns = jobs * width + 1
    longest = columns - 1
    rows: list[tuple[dict[int, float], float, float]] = []
    cost = np.zeros(columns)
    cost[longest] = welfare.makespan_weight
    integral = np.zeros(columns)
    logs = np.log(np.maximum(POINTS, ORIGIN))
    for j in range(jobs):
        first = j * width
        seconds, share, chosen = first + rounds, first + rounds + 1, first + rounds + 1 + points
        integral[first : first + rounds] = 1
        integral[chosen : chosen + points] = 1
        rows.append(({seconds: 1.0, **{first + t: -100.0 for t in range(rounds)}}, -np.inf, 0.0))
        at = {share + k: POINTS[k] for k in range(points)}
        rows.append(({seconds: -1.0 / welfare.whole[j], **at}, welfare.done[j], welfare.done[j]))
        rows.append(({share + k: 1.0 for k in range(points)}, 1.0, 1.0))
        rows.append(({chosen + k: 1.0 for k in range(points)}, -np.inf, 2.0))
        for k in range(points):
            rows.append(({share + k: 1.0, chosen + k: -1.0}, -np.inf, 0.0))
            rows += [({chosen + k: 1.0, chosen + later: 1.0}, -np.inf, 1.0) for later in range(k + 2, points)]
        rows.append(({longest: 1.0, seconds: 1.0}, welfare.remaining[j], np.inf))
        cost[share : share + points] = -welfare.weight[j] * logs / (jobs * rounds)
    rows += [({j * width + t: float(sizes[j]) for j in range(jobs)}, -np.inf, float(gpus)) for t in range(rounds)]
    entries = [(r, c, v) for r, (row, _, _) in enumerate(rows) for c, v in row.items()]
    r, c, v = (np.array(part) for part in zip(*entries, strict=True))
    matrix = coo_array((v, (r.astype(int), c.astype(int))), shape=(len(rows), columns)).tocsr()
    upper = np.where(integral > 0, 1.0, np.inf)
    solved = milp(
        cost,
        constraints=LinearConstraint(matrix, [row[1] for row in rows], [row[2] for row in rows]),
        bounds=Bounds(0, upper),
        integrality=integral,
        options={"mip_rel_gap": 1e-6, "time_limit": 20.0},
    )
    assert solved.status == 0
    return float(-solved.fun)


@pytest.mark.parametrize("seed", range(4))
def test_the_same_welfare_as_the_full_binary_program(seed: int) -> None:
    sizes = [1, 1, 1, 1, 2, 2, 1, 1]
    space = space_of(sizes, 4)
    welfare = welfare_of(space, 4, seed)
    plan, bound = solve_window(space, welfare)
    full = full_program(welfare, np.array(sizes), 4)
    assert value_of_schedule(welfare, plan.T) == pytest.approx(full, abs=2e-6)
    assert bound >= full - 2e-6


@settings(max_examples=50)
@given(
    st.lists(st.floats(0.01, 0.99), min_size=1, max_size=6, unique=True),
    st.floats(1e-9, 1e-3),
    st.floats(0.0, 0.5),
)
def test_the_stated_error_of_the_interpolated_logarithm_is_its_largest(
    inner: list[float], origin: float, lowest: float
) -> None:
    points = np.array([0.0, *sorted(inner), 1.0])
    u = np.geomspace(max(lowest, origin), 1.0, 4001)
    gap = np.log(u) - np.interp(u, points, np.log(np.maximum(points, origin)))
    assert gap.max() == pytest.approx(interpolation_error(points, origin, lowest), abs=5e-3)
    assert gap[u >= points[1]].min() >= -1e-9  # never above the logarithm from the second point on


def test_the_published_points_cost_little_beyond_the_first() -> None:
    assert interpolation_error(POINTS, ORIGIN, lowest=0.2) == pytest.approx(0.0597, abs=1e-3)
    # Below 0.2 the straight line from log(1e-6) stands in for the logarithm: a steep reward for getting started.
    assert interpolation_error(POINTS, ORIGIN) == pytest.approx(8.704, abs=1e-3)
