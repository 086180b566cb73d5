"""The program builder, elastic jobs, limits of time, and the example that users copy from."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from instances import make_space, spaces

from bloxopt.errors import FormulationError
from bloxopt.formulations import (
    Affine,
    AllocationSpace,
    Arrival,
    Capacity,
    EffectiveThroughput,
    MaxMin,
    MaxSum,
    NormalizedThroughput,
    OneConfiguration,
    Policy,
    Priority,
    Program,
    Session,
    TenantQuota,
    TimeShare,
    WaterFilling,
)
from bloxopt.jobs import Job
from bloxopt.solvers.base import SolverOptions, Termination
from bloxopt.solvers.registry import get_solver


def test_a_program_starts_with_time_shares_and_keeps_what_blocks_add_by_family():
    space = make_space([[2, 1], [3, 1]], [1, 2], [1, 2])
    program = Program(space)
    program.block = "A"
    own = program.add_columns(2, lower=-1.0, upper=[3.0, 4.0], integer=True)
    row = EffectiveThroughput().build(space).plus_column(int(own[0]), -2.0).shifted(0.5)
    program.add_rows(row, lower=0.0, upper=7.0)
    program.add_rows(Affine.one_column(int(own[1])), upper=1.0, labels=["mine"], family="B")
    form = program.compile(Affine.one_column(0).scaled(3.0).shifted(1.0))
    assert own.tolist() == [space.num_columns, space.num_columns + 1]
    assert form.integer.tolist() == [False] * space.num_columns + [True, True]
    assert form.lower[-2:].tolist() == [-1.0, -1.0]
    assert form.upper[-2:].tolist() == [3.0, 4.0]
    np.testing.assert_allclose(form.row_lower, [-0.5, -0.5, -np.inf])
    np.testing.assert_allclose(form.row_upper, [6.5, 6.5, 1.0])
    np.testing.assert_allclose(form.matrix.toarray()[0], [2, 1, 0, -2, 0])
    assert form.objective(np.zeros(form.num_columns)) == -1.0
    assert form.cost[0] == -3.0
    assert [(family.name, family.row_labels()) for family in program.families] == [
        ("A", ["job-0", "job-1"]),
        ("B", ["mine"]),
    ]


def test_copies_do_not_share_rows_columns_or_integrality():
    program = Program(make_space([[2.0]], [1], [1]))
    twin = program.copy()
    twin.make_integer()
    twin.add_rows(Affine.one_column(0), upper=0.5)
    twin.restrict(np.array([0]), 0.0, 0.25)
    assert (program.num_rows, program.is_mip, twin.num_rows, twin.is_mip) == (0, False, 1, True)
    assert program.compile_rows().upper.tolist() == [1.0]
    assert twin.compile_rows().upper.tolist() == [0.25]


def test_bounds_that_cross_or_are_no_numbers_are_refused_with_the_block():
    program = Program(make_space([[2.0]], [1], [1]))
    program.block = "Mine"
    with pytest.raises(FormulationError, match=r"Mine: row 0 has bounds 2.0 and 1.0"):
        program.add_rows(Affine.one_column(0), lower=2.0, upper=1.0)
    with pytest.raises(FormulationError, match="Mine: row 0"):
        program.add_rows(Affine.one_column(0), lower=np.nan)
    with pytest.raises(FormulationError, match="Mine: columns need"):
        program.add_columns(1, lower=1.0, upper=0.0)


def elastic_space():
    jobs = [
        Job(job_id="wide", job_type="m", num_gpus=2, min_gpus=1, max_gpus=4, total_steps=100),
        Job(job_id="narrow", job_type="m", num_gpus=1, total_steps=100),
    ]
    return AllocationSpace.from_jobs(jobs, "4xv100", lambda job_type, gpu_type, gpus: float(gpus) ** 0.8)


def test_an_elastic_job_may_be_given_any_of_its_sizes():
    space = elastic_space()
    assert space.num_gpus[space.job == 0].tolist() == [1, 2, 3, 4]
    allocation = Policy(objective=MaxSum(EffectiveThroughput()), constraints=[Capacity(), OneConfiguration()]).allocate(
        space
    )
    # Three GPUs for the wide job and one for the narrow make 3^0.8 + 1, more than 4^0.8.
    assert allocation.objective == pytest.approx(3**0.8 + 1)


def test_priority_gives_an_elastic_job_the_largest_size_that_fits():
    space = elastic_space()
    x = Policy(objective=Priority(Arrival(), backfill=True)).allocate(space).x
    assert space.num_gpus[x == 1].tolist() == [4]


def test_water_filling_uses_all_sizes_of_an_elastic_job():
    levels = Policy(objective=WaterFilling(EffectiveThroughput())).allocate(elastic_space()).levels
    # The narrow job is full at one step/s; the wide one then has three GPUs.
    assert levels.tolist() == pytest.approx([3**0.8, 1.0], rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(spaces(with_state=True))
def test_priority_with_a_quota_stays_within_it_and_needs_no_solver(space):
    policy = Policy(
        objective=Priority(Arrival(), backfill=True), constraints=[Capacity(), TimeShare(), TenantQuota({"default": 3})]
    )
    allocation = policy.allocate(space)
    assert allocation.num_solves == 0
    assert space.num_gpus @ allocation.x <= 3
    left = 3 - space.num_gpus @ allocation.x
    served = allocation.time_share.sum(axis=1) > 0
    free = space.capacity - np.bincount(space.gpu_type, space.num_gpus * allocation.x, len(space.gpu_types))
    fits = (space.num_gpus <= np.minimum(left, free[space.gpu_type])) & ~served[space.job]
    assert not fits.any(), "a job that fits was left out"


def space_of_many_levels():
    rng = np.random.default_rng(0)
    rates = np.exp(rng.normal(1.0, 1.2, 24))[:, None] * np.sort(rng.uniform(0.2, 4.0, (24, 3)), axis=1)[:, ::-1]
    return make_space(rates, rng.choice([1, 1, 2, 4], 24), [12, 12, 14])


def test_when_time_is_up_what_was_found_is_returned_and_reported_as_such(monkeypatch):
    space = space_of_many_levels()
    policy = Policy(objective=WaterFilling(NormalizedThroughput()), solver="highs")
    whole = policy.allocate(space)
    monkeypatch.setattr(Session, "out_of_time", property(lambda session: session.num_solves >= 2))
    cut_short = policy.allocate(space)
    assert cut_short.num_solves == 2 < whole.num_solves
    assert cut_short.termination is Termination.FEASIBLE
    assert cut_short.bound >= whole.objective * (1 - 1e-6) >= cut_short.objective * (1 - 2e-6)


def test_the_time_limit_is_what_is_left_for_each_solve():
    class Patient:
        name = "patient"
        capabilities = get_solver("highs").capabilities
        limits: ClassVar[list[float]] = []

        def solve(self, form, options=SolverOptions(), warm_start=None):
            self.limits.append(options.time_limit)
            return get_solver("highs").solve(form, options)

    space = space_of_many_levels()
    policy = Policy(objective=WaterFilling(NormalizedThroughput()), solver=Patient())
    policy.allocate(space, options=SolverOptions(time_limit=60.0))
    assert len(Patient.limits) > 2
    assert 60.0 > Patient.limits[0] > Patient.limits[-1] > 0.0


def test_the_solver_can_be_overridden_for_one_allocation():
    space = make_space([[2, 1], [3, 1]], [1, 2], [1, 2])
    policy = Policy(objective=MaxMin(NormalizedThroughput()), solver="highs")
    assert policy.allocate(space, solver="ortools:glop").solver == "ortools:glop"
    assert policy.allocate(space).solver == "highs"


def test_the_example_of_an_own_policy_runs(capsys):
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "own_policy.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert "PowerCap is binding: total" in shown
    assert "proven bound" in shown
