"""A policy that chooses among policies does what the chosen one would."""

from __future__ import annotations

import numpy as np
import pytest

import bloxopt as bx
from bloxopt.errors import FormulationError, UnknownNameError
from bloxopt.formulations import Arrival, MaxMin, NormalizedThroughput, Policy, Priority, ShortestRemaining
from bloxopt.formulations.automatic import AutomaticPolicy, ByLoad, BySimulation, load_of
from bloxopt.formulations.policies import get_policy
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import Job
from bloxopt.simulation.forward import look_ahead
from bloxopt.workloads.trace import Trace

FIFO = Policy(objective=Priority(Arrival()), name="fifo")
SRTF = Policy(objective=Priority(ShortestRemaining()), name="srtf")
FAIR = Policy(objective=MaxMin(NormalizedThroughput()), name="fair")


def _space(*durations: float, gpus: int = 1, **state: object) -> AllocationSpace:
    jobs = [Job(job_id=f"j{k}", duration=duration, num_gpus=gpus) for k, duration in enumerate(durations)]
    return AllocationSpace.from_jobs(jobs, "2xV100", **state)


class TestByLoad:
    @pytest.mark.parametrize(("jobs", "choice"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)])
    def test_the_load_is_gpus_asked_for_over_gpus_up(self, jobs: int, choice: int) -> None:
        space = _space(*[100.0] * jobs)
        assert load_of(space) == jobs / 2
        assert ByLoad([1.0, 2.0]).choose(space, [FIFO, SRTF, FAIR], None) == choice

    def test_what_was_chosen_stays_until_the_load_is_clearly_beyond_the_limit(self) -> None:
        rule = ByLoad([1.4], hysteresis=0.2)
        assert rule.choose(_space(1.0, 1.0, 1.0), [FIFO, SRTF], 0) == 0
        assert rule.choose(_space(1.0, 1.0, 1.0), [FIFO, SRTF], None) == 1
        assert rule.choose(_space(1.0, 1.0, 1.0, 1.0), [FIFO, SRTF], 0) == 1
        assert rule.choose(_space(1.0, 1.0, 1.0), [FIFO, SRTF], 1) == 1
        assert rule.choose(_space(1.0, 1.0), [FIFO, SRTF], 1) == 0

    def test_a_whole_simulation_equals_that_of_the_only_policy_ever_chosen(self) -> None:
        trace = bx.load_trace("gavel-100").head(30)
        fair = bx.simulate(trace, "8xV100+16xP100+24xK80", FAIR)
        both = AutomaticPolicy(candidates=[FAIR, FIFO], rule=ByLoad([1e9]))
        assert bx.simulate(trace, "8xV100+16xP100+24xK80", both).jobs["finish"].equals(fair.jobs["finish"])

    def test_gpus_without_a_claim_idle_as_under_the_policy_in_force(self) -> None:
        # FIFO lets nobody overtake; under max-min the small job would fill the idle GPU.
        jobs = [
            Job(job_id="a", duration=100.0),
            Job(job_id="b", duration=50.0, num_gpus=2),
            Job(job_id="c", duration=9.0),
        ]
        both = AutomaticPolicy(candidates=[FIFO, FAIR], rule=ByLoad([1e9]))
        options = {"round_seconds": 10.0}
        alone = bx.simulate(Trace.from_jobs(jobs), "2xV100", FIFO, **options)
        chosen = bx.simulate(Trace.from_jobs(jobs), "2xV100", both, **options)
        assert chosen.jobs["start"].tolist() == alone.jobs["start"].tolist()


class TestBySimulation:
    def test_it_chooses_the_policy_that_turns_out_best(self) -> None:
        # A long job first: FIFO makes the short ones wait, SRTF does not.
        jobs = [Job(job_id="long", duration=5000.0)] + [Job(job_id=f"s{k}", duration=100.0) for k in range(8)]
        policy = AutomaticPolicy(candidates=[FIFO, SRTF], rule=BySimulation(horizon=1e5))
        best = bx.simulate(Trace.from_jobs(jobs), "1xV100", policy, round_seconds=50.0)
        alone = {p.name: bx.simulate(Trace.from_jobs(jobs), "1xV100", p, round_seconds=50.0) for p in (FIFO, SRTF)}
        jct = {name: result.summary()["average_jct"] for name, result in alone.items()}
        assert best.summary()["average_jct"] == pytest.approx(min(jct.values()))
        assert min(jct, key=jct.__getitem__) == "srtf"

    def test_ties_keep_the_policy_in_force(self) -> None:
        space = _space(100.0)
        rule = BySimulation(horizon=1000.0, interval=1.0)
        assert rule.choose(space, [FIFO, SRTF], None) == 0
        space.ledger.notes.clear()
        assert rule.choose(space, [FIFO, SRTF], 1) == 1

    def test_it_is_asked_again_only_after_its_interval(self) -> None:
        space = _space(5000.0, 5000.0, 100.0, 100.0)
        rule = BySimulation(interval=100.0)
        assert rule.choose(space, [FIFO, SRTF], None) == 1
        assert rule.choose(space, [SRTF, FIFO], 1) == 1, "within the interval nothing is simulated"

    def test_a_whole_simulation_is_no_worse_than_the_worst_candidate(self) -> None:
        trace, cluster = bx.load_trace("gavel-100").head(25), "2xV100+4xP100+6xK80"
        names = ("fifo", "las", "srtf")
        jct = {name: bx.simulate(trace, cluster, name).summary()["average_jct"] for name in names}
        chosen = bx.simulate(trace, cluster, get_policy("automatic", candidates=names, interval=36000.0))
        assert chosen.summary()["average_jct"] <= max(jct.values())
        assert chosen.jobs["finish"].notna().all()


class TestLookingAhead:
    def test_from_the_beginning_it_is_the_simulation_itself(self) -> None:
        trace, cluster = bx.load_trace("gavel-100").head(20), "2xV100+4xP100+6xK80"
        whole = bx.simulate(trace, cluster, "fifo", placement="first_fit", round_seconds=360.0)
        outlook = look_ahead(AllocationSpace.from_jobs(trace, cluster), get_policy("fifo"), horizon=1e9)
        assert outlook.finish == pytest.approx(whole.jobs["finish"].to_numpy())
        assert outlook.start == pytest.approx(whole.jobs["start"].to_numpy())

    def test_it_goes_on_from_what_was_done_and_runs(self) -> None:
        space = _space(
            100.0, 100.0, 100.0, remaining_steps=[60.0, 100.0, 100.0], gpu_type=[0, 0, -1], round_seconds=10.0
        )
        outlook = look_ahead(space, FIFO, horizon=1e6)
        assert outlook.finish.tolist() == [60.0, 100.0, 160.0]
        assert outlook.start.tolist() == [0.0, 0.0, 60.0]

    def test_jobs_that_run_do_not_pay_for_a_restart(self) -> None:
        job = Job(job_id="a", duration=100.0, restart_cost=30.0)
        space = AllocationSpace.from_jobs([job], "1xV100", gpu_type=[0], attained_seconds=[5.0])
        assert look_ahead(space, FIFO, horizon=1e6).finish.tolist() == [100.0]

    def test_beyond_the_horizon_what_is_left_is_added(self) -> None:
        outlook = look_ahead(_space(1000.0, 400.0, round_seconds=100.0), FIFO, horizon=200.0)
        assert outlook.until == 200.0
        assert outlook.finish.tolist() == [1000.0, 400.0]

    def test_nothing_of_the_present_changes(self) -> None:
        space = _space(100.0, 200.0, 300.0, gpu_type=[0, -1, -1], attained_service=[7.0, 0.0, 0.0])
        before = {
            name: np.copy(column) for name, column in vars(space.ledger).items() if isinstance(column, np.ndarray)
        }
        look_ahead(space, SRTF, horizon=1e6)
        for name, column in before.items():
            assert np.array_equal(column, getattr(space.ledger, name), equal_nan=column.dtype.kind == "f"), name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ByLoad([2.0, 1.0]), "ascend"),
        (lambda: ByLoad([0.0]), "greater than 0"),
        (lambda: ByLoad([float("nan")]), "limit"),
        (lambda: ByLoad([1.0], hysteresis=1.0), "hysteresis"),
        (lambda: BySimulation(horizon=0.0), "horizon"),
        (lambda: BySimulation(interval=-1.0), "interval"),
        (lambda: AutomaticPolicy(candidates=[FIFO], rule=ByLoad([])), "at least two"),
        (lambda: AutomaticPolicy(candidates=["fifo", "las"], rule=ByLoad([1.0])), "not a Policy"),
        (lambda: AutomaticPolicy(candidates=[FIFO, SRTF], rule="load"), "rule"),
        (lambda: get_policy("automatic", rule="load"), "one limit fewer"),
        (lambda: get_policy("automatic", rule="lod"), "rule"),
        (lambda: get_policy("automatic", candidates=["fifo"]), "at least two"),
    ],
)
def test_what_cannot_be_used_is_named(make, message: str) -> None:
    with pytest.raises(FormulationError, match=message):
        make()


def test_a_candidate_that_does_not_exist_is_named() -> None:
    with pytest.raises(UnknownNameError, match="fifo"):
        get_policy("automatic", candidates=["fif0", "las"])
