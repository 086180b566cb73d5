"""Simulations in which CPUs and memory are divided: rates, composition by name, failures, and bad input."""

from __future__ import annotations

import json

import pytest

import bloxopt as bx
from bloxopt.cli import run as run_cli
from bloxopt.cluster import Cluster, Node
from bloxopt.errors import BloxoptError, ConfigError, InputError, ThroughputError, UnknownNameError
from bloxopt.hosts import SensitivityProfiles
from bloxopt.hosts.tuned import Tuned
from bloxopt.jobs import Job
from bloxopt.needs import PlacementNeeds
from bloxopt.workloads.trace import Trace
from tests.hosts.servers import servers

CLUSTER_TOML = """
[[node]]
name = "server"
count = 4
gpu_type = "V100"
num_gpus = 8
cpus = 24
memory_gib = 500
"""


def _trace(*kinds: tuple[str, float], gpus: int = 1, **more) -> Trace:
    return Trace.from_jobs(
        [
            Job(job_id=f"{model}-{i}", job_type=model, duration=seconds, num_gpus=gpus, **more)
            for i, (model, seconds) in enumerate(kinds)
        ]
    )


def _finish(result) -> dict[str, float]:
    return dict(zip(result.jobs["job_id"], result.jobs["finish"], strict=True))


def test_jobs_progress_at_the_rate_of_the_cpus_and_memory_that_they_have() -> None:
    trace = _trace(("alexnet", 2940.0), ("res18", 2400.0), ("gnmt", 1000.0))
    plain = _finish(bx.simulate(trace, servers(1), "fifo"))
    assert plain == pytest.approx({"alexnet-0": 2940, "res18-1": 2400, "gnmt-2": 1000})
    assert _finish(bx.simulate(trace, servers(1), "fifo", host_allocation="proportional")) == pytest.approx(plain)
    # 12 CPUs make alexnet 2.94 times as fast, 9 make res18 2.4 times as fast, and gnmt needs 1.
    for name in ("tuned", "optimal"):
        fast = _finish(bx.simulate(trace, servers(1), "fifo", host_allocation=name))
        assert fast == pytest.approx({"alexnet-0": 1000, "res18-1": 1000, "gnmt-2": 1000})


def test_a_change_of_cpus_alone_is_no_restart() -> None:
    # In the first rounds the two share 15 CPUs beside what others hold; later each has more.
    trace = _trace(("res18", 4000.0), ("res18", 4000.0), ("alexnet", 1500.0), restart_cost=500.0)
    result = bx.simulate(trace, servers(1), "fifo", host_allocation="tuned")
    assert result.jobs["restarts"].tolist() == [0, 0, 0]
    assert result.jobs["preemptions"].tolist() == [0, 0, 0]
    # alexnet keeps its proportional share until one of the res18 jobs (9 CPUs each) is done.
    assert _finish(result)["alexnet-2"] == pytest.approx(1500)


def test_other_cpu_ratios_change_what_the_proportional_share_gives() -> None:
    trace = _trace(("res18", 1000.0))
    assert _finish(bx.simulate(trace, servers(1, cpus=32), "fifo", host_allocation="proportional")) == pytest.approx(
        {"res18-0": 1000 / 1.3}
    )
    assert _finish(bx.simulate(trace, servers(1, cpus=8), "fifo", host_allocation="proportional")) == pytest.approx(
        {"res18-0": 1000 / 0.37}
    )


@pytest.mark.parametrize("allocation", ["proportional", "tuned", "optimal"])
@pytest.mark.parametrize("policy", ["fifo", "las", "srtf", "max_min_fairness", "finish_time_order"])
def test_any_policy_runs_with_any_host_allocation(policy, allocation) -> None:
    trace = bx.load_trace("synergy-100").head(14)
    result = bx.simulate(trace, servers(1), policy, host_allocation=allocation, round_seconds=1800)
    assert result.summary()["finished"] == 14


def test_queues_and_failures_go_with_a_host_allocation() -> None:
    trace = bx.load_trace("synergy-100").head(24)
    outages = [bx.Outage("server-0", 3000.0, 9000.0)]
    for allocation in ("tuned", Tuned(repack=True)):
        result = bx.simulate(
            trace,
            servers(2),
            "las",
            selector="ranking",
            failures=outages,
            host_allocation=allocation,
            placement="first_fit",
            round_seconds=900,
        )
        assert result.summary()["finished"] == 24
        held = result.placements
        down = held[(held["node"] == "server-0") & (held["start"] < 9000.0) & (held["end"] > 3000.0)]
        assert len(down) == 0


def test_policy_and_host_allocation_are_combined_by_name_in_a_file(tmp_path, capsys) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER_TOML)
    (tmp_path / "experiment.toml").write_text(
        f"""
[trace]
name = "synergy-100"

[cluster]
path = "{tmp_path / "cluster.toml"}"

[policy]
name = "fifo"
options = {{backfill = true}}

[simulation]
preset = "synergy"
host_allocation = "proportional"
"""
    )
    assert run_cli(["simulate", str(tmp_path / "experiment.toml"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["summary"]["average_jct"] / 3600 == pytest.approx(5.631, abs=5e-4)
    assert document["config"]["options"]["host_allocation"] == "proportional"


def test_the_command_line_lists_host_allocations(capsys) -> None:
    assert run_cli(["host-allocations", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == ["proportional", "tuned", "optimal"]
    assert all(row["description"] for row in rows)


SIMULATE = ["simulate", "--trace", "synergy-100", "--first", "4", "--cluster", "8xV100", "--policy", "fifo"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host-allocation", "tunned"], "--host-allocation: unknown host allocation 'tunned': did you mean 'tuned'?"),
        (["--host-allocation", "tuned"], "node 'node-0' does not say how many cpus it has"),
        (
            ["--host-allocation", "tuned", "--set", "simulation.host_allocation_options.repak=true"],
            "simulation.host_allocation_options.repak: host_allocation_options: host allocation 'tuned': unknown",
        ),
        (
            ["--host-allocation", "tuned", "--set", "simulation.sensitivity=nowhere.json"],
            "simulation.sensitivity: nowhere.json",
        ),
    ],
)
def test_bad_input_on_the_command_line_is_one_message(arguments, message, capsys) -> None:
    assert run_cli([*SIMULATE, *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


REFUSED = [
    ({"host_allocation": "none"}, UnknownNameError, "unknown host allocation 'none'"),
    ({"host_allocation": 3}, InputError, "host_allocation is 3"),
    ({"host_allocation": Tuned}, InputError, "must be a name of `bloxopt host-allocations`"),
    ({"sensitivity": "synergy"}, InputError, "nothing divides CPUs and memory"),
    ({"host_allocation": "tuned", "sensitivity": 3}, ThroughputError, "cannot make sensitivity profiles of int"),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED)
def test_bad_arguments_are_refused(options, error, message) -> None:
    with pytest.raises(error, match=message):
        bx.simulate(_trace(("res18", 100.0)), servers(1), "fifo", **options)


def test_jobs_without_a_profile_are_refused_before_anything_runs() -> None:
    with pytest.raises(ThroughputError, match="job 'generic-0': Synergy's profiles: no profile of 'generic' on 1 GPUs"):
        bx.simulate(_trace(("generic", 100.0)), servers(1), "fifo", host_allocation="tuned")
    elastic = _trace(("res18", 100.0), min_gpus=1, max_gpus=4)
    with pytest.raises(ThroughputError, match="no profile of 'res18' on 3 GPUs: it was profiled on 1, 2, 4 GPUs"):
        bx.simulate(elastic, servers(1), "fifo", host_allocation="tuned")


def test_elastic_jobs_run_at_the_profile_of_the_gpus_they_have() -> None:
    relative = {("m", gpus): [[1.0], [1.5 * gpus]] for gpus in (1, 2)}
    profiles = SensitivityProfiles([3, 6], [60], relative)
    trace = _trace(("m", 1200.0), min_gpus=1, max_gpus=2)
    result = bx.simulate(
        trace, servers(1), "max_sum_throughput", host_allocation="tuned", sensitivity=profiles, round_seconds=60
    )
    # 2 GPUs are twice as fast, and 6 CPUs beside each another 3 times.
    assert _finish(result)["m-0"] == pytest.approx(200)


def test_jobs_with_placement_constraints_are_not_moved_blindly() -> None:
    trace = _trace(("res18", 100.0), needs=PlacementNeeds(max_nodes=1))
    assert bx.simulate(trace, servers(1), "fifo", host_allocation="tuned").summary()["finished"] == 1
    with pytest.raises(InputError, match="job 'res18-0' has placement constraints"):
        bx.simulate(trace, servers(1), "fifo", host_allocation=Tuned(repack=True))
    tainted = Cluster((Node(name="a", gpu_type="V100", num_gpus=8, cpus=24, memory_gib=500, reserved_for="default"),))
    with pytest.raises(InputError, match="node 'a' is tainted or reserved"):
        bx.simulate(_trace(("res18", 100.0)), tainted, "fifo", host_allocation=Tuned(repack=True))


def test_options_of_the_preset_go_with_its_host_allocation() -> None:
    from bloxopt.simulation import PRESETS

    synergy = PRESETS.get("synergy")
    assert synergy.host_allocation_options == {"repack": True}
    assert synergy.with_(host_allocation="optimal").host_allocation_options == {}
    assert synergy.with_(round_seconds=60.0).host_allocation_options == {"repack": True}
    with pytest.raises(ConfigError, match="first_round"):
        synergy.with_(first_round=-1.0)
    assert issubclass(ConfigError, BloxoptError)


def test_a_cluster_string_says_what_nodes_have_beside_their_gpus() -> None:
    cluster = bx.Cluster.from_string("2x8xV100:24cpus:500gib+4xP100+2xK80:8.5cpus+1xK80:64gib")
    assert [(node.cpus, node.memory_gib) for node in cluster.nodes] == [
        (24, 500),
        (24, 500),
        (None, None),
        (8.5, None),
        (None, 64),
    ]
    for text in ("8xV100:24", "8xV100:500gib:24cpus", "8xV100:cpus", "8xV100:-1cpus"):
        with pytest.raises(BloxoptError, match="cannot read"):
            bx.Cluster.from_string(text)


def test_the_shipped_trace_brings_servers_that_a_host_allocation_can_divide(capsys) -> None:
    arguments = ["simulate", "--trace", "synergy-100", "--first", "40", "--policy", "fifo", "--preset", "synergy"]
    average = {}
    for name in ("proportional", "tuned", "optimal"):
        assert run_cli([*arguments, "--host-allocation", name, "--json"]) == 0
        average[name] = json.loads(capsys.readouterr().out)["summary"]["average_jct"]
    assert average["optimal"] < average["tuned"] < average["proportional"]
