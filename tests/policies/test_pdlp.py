"""PDLP, the first-order method, on whatever the policies ask of it: it breaks off, and it talks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from instances import make_space

from bloxopt.errors import SolverError
from bloxopt.formulations import Affine, Capacity, TimeShare, per_job
from bloxopt.formulations.policies import get_policy
from bloxopt.formulations.solving.program import Program
from bloxopt.solvers.base import Capabilities, SolverOptions, SolverResult, Termination
from bloxopt.solvers.registry import get_solver

POLICIES = ("min_makespan", "finish_time_fairness", "water_filling_max_min_fairness")
TOLERANCE = 1e-5


def random_space(seed):
    """Rates over up to four decades, up to 12 jobs and 3 GPU types, all in the middle of their lives."""
    rng = np.random.default_rng(seed)
    count, types = rng.integers(1, 13), rng.integers(1, 4)
    gpus = rng.choice([1, 1, 1, 2, 3, 4, 8], count)
    capacity = np.maximum(rng.integers(1, 12, types), gpus.max())
    decades = rng.choice([0, 2, 4])
    rates = 10 ** rng.uniform(-decades / 2, decades / 2, (count, 1)) * 10 ** rng.uniform(-0.7, 0.7, (count, types))
    steps = rates.max(axis=1) * 10 ** rng.uniform(2, 5, count)
    arrivals = np.sort(rng.uniform(0, 5000, count))
    return make_space(
        rates, gpus, capacity, steps=steps, arrivals=arrivals, weights=rng.choice([1, 1, 2, 0.5, 10], count),
        now=arrivals.max() + 100.0, remaining_steps=steps * rng.choice([1, 0.5, 0.01, 0.9], count),
        isolated_seconds=rng.uniform(0, 4000, count),
    )  # fmt: skip


def one_job_space():
    """At 1e-8 PDLP takes 20,000 iterations here until its steps become too short to move on."""
    return make_space([[2.3927, 2.2799]], [3], [6, 11], steps=[595.05608754])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_numerical_failure_with_a_good_point_at_hand_is_an_answer(policy, capfd):
    space = one_job_space()
    allocation = get_policy(policy).allocate(space, solver="ortools:pdlp")
    assert allocation.termination is Termination.OPTIMAL
    assert allocation.objective == pytest.approx(get_policy(policy).allocate(space).objective, rel=TOLERANCE)
    assert capfd.readouterr() == ("", ""), "warnings of PDLP would spoil output that programs read"


def _agrees_with_the_simplex_method(seeds):
    endings = []
    for seed in seeds:
        space = random_space(seed)
        for policy in POLICIES:
            expected = get_policy(policy).allocate(space, solver="highs")
            found = get_policy(policy).allocate(space, solver="ortools:pdlp")
            assert found.objective == pytest.approx(expected.objective, rel=TOLERANCE), (seed, policy)
            endings.append(found.termination)
    assert set(endings) == {Termination.OPTIMAL}


def test_policies_agree_with_the_simplex_method_on_random_jobs(capfd):
    _agrees_with_the_simplex_method(range(60))
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_policies_agree_with_the_simplex_method_on_many_random_jobs():
    _agrees_with_the_simplex_method(range(60, 800))


@pytest.mark.parametrize("seconds", [1e-3, 0.05])
def test_the_time_limit_holds_for_all_tries_together(seconds):
    """On programs of which it says after a second that 1e-8 cannot be reached, too."""
    rng = np.random.default_rng(0)
    rates = 10 ** rng.uniform(-2, 2, (1500, 3))
    space = make_space(rates, rng.choice([1, 2, 4], 1500), [300, 300, 300], steps=10 ** rng.uniform(2, 7, 1500))
    program = Program(space)
    for block in (Capacity(), TimeShare()):
        block.build(space, program)
    theta = program.add_columns(1)
    program.add_rows(
        per_job(space, space.rate / space.remaining_steps[space.job]).plus_column(int(theta[0]), -1.0), 0.0
    )
    form = program.compile(Affine.one_column(int(theta[0])))
    result = get_solver("ortools:pdlp").solve(form, SolverOptions(time_limit=seconds))
    assert result.solve_seconds < seconds + 1.0
    assert result.termination in (Termination.OPTIMAL, Termination.FEASIBLE, Termination.LIMIT_NO_SOLUTION)


def test_without_a_time_limit_nobody_is_told_to_raise_it():
    class Failing:
        name = "failing"
        capabilities = Capabilities()

        def solve(self, form, options=SolverOptions(), warm_start=None):
            return SolverResult(self.ending, message="lost its way", solver=self.name)

    for ending in (Termination.ERROR, Termination.LIMIT_NO_SOLUTION):
        solver = Failing()
        solver.ending = ending
        with pytest.raises(SolverError, match=r"lost its way.*choose another solver") as caught:
            get_policy("min_makespan").allocate(one_job_space(), solver=solver)
        assert "raise the time limit" not in str(caught.value)


@pytest.mark.parametrize(("trace", "first"), [("gavel-100", 20), ("shockwave-120", 30)])
def test_a_simulation_with_pdlp_prints_json_and_nothing_else(trace, first):
    command = [
        Path(sys.executable).with_name("bloxopt"),
        "simulate",
        "--trace",
        trace,
        "--cluster",
        "8xV100+16xP100+24xK80",
    ]
    command += ["--first", str(first), "--policy", "finish_time_fairness", "--solver", "ortools:pdlp", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["summary"]["finished"] == first


def test_pdlp_states_the_tolerance_it_is_held_to():
    assert get_solver("ortools:pdlp").tolerance.objective == TOLERANCE
