"""A log replays bit for bit, whatever happened in it; and what does not fit is told from what does."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from bloxopt.cli import run as run_cli
from bloxopt.errors import ClusterError, InputError
from bloxopt.runtime.replay import LogEvent, Report, read_log, replay, write_log
from bloxopt.runtime.store import Store
from bloxopt.runtime.store.pruning import prune_events
from tests.runtime.postgres_server import postgres_server
from tests.runtime.recorded_world import RecordedWorld


class Answer(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


Run = Callable[..., Answer]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """The command line."""

    def command(*arguments: str) -> Answer:
        capfd.readouterr()
        return Answer(run_cli(arguments), *capfd.readouterr())

    return command


def replayed(folder: Path, **limits: Any) -> Report:
    return replay(read_log(folder / "live.db"), **limits)


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        ("max_min_fairness", {}),
        ("las", {}),
        ("pollux", {"placement": "first_fit"}),
        ("finish_time_fairness", {"selector": "exact"}),
        ("tiresias", {"rounds": {"seconds": 10.0, "end": "fixed", "budget": 0.0}, "admission": "load_threshold"}),
    ],
)
def test_every_round_of_a_log_is_decided_as_it_was(tmp_path: Path, policy: str, settings: dict[str, Any]) -> None:
    RecordedWorld(tmp_path, policy=policy, **settings).live_through_everything()
    events = list(read_log(tmp_path / "live.db"))
    kinds = {event.kind for event in events}
    assert kinds >= {"attempt.stopped", "job.cancelled", "node.drained", "job.ended", "log.snapshot"}
    assert any(event.data.get("rates") for event in events if event.kind == "round")
    report = replayed(tmp_path)
    assert report.difference is None
    assert report.rounds == report.identical == report.last
    assert report.rounds > 20
    assert report.versions == {}


def test_a_log_in_postgresql_replays_too(tmp_path: Path) -> None:
    with postgres_server() as server:
        RecordedWorld(tmp_path, every=9, database=server.url).live_through_everything()
        report = replay(read_log(server.url))
        assert report.rounds == report.identical > 20
        assert replay(read_log(server.url), start=12).different == 0
        written = write_log(read_log(server.url), tmp_path / "log.jsonl")
    assert written == len(list(read_log(tmp_path / "log.jsonl"))) > 100
    assert replay(read_log(tmp_path / "log.jsonl")).identical == report.rounds


@pytest.mark.parametrize("budget", [30.0, 0.003])
def test_shares_that_no_solver_had_time_for_are_taken_from_the_log(tmp_path: Path, budget: float) -> None:
    world = RecordedWorld(tmp_path, rounds={"seconds": 10.0, "shortest": 1.0, "budget": budget})
    world.add("a", 4)
    world.beat()
    world.submit("ada", 1, 2, 4, 1)
    world.submit("bob", 2, min_gpus=1, max_gpus=4)
    world.rounds(8)
    world.kill()
    report = replayed(tmp_path)
    assert (report.given == 0) == (budget > 1.0)
    assert report.different == 0
    assert report.identical + report.timed == report.rounds == 8


def test_a_replay_begins_at_any_snapshot_and_decides_the_same(tmp_path: Path) -> None:
    RecordedWorld(tmp_path, every=5, policy="las").live_through_everything()
    events = list(read_log(tmp_path / "live.db"))
    remembered = [event.data for event in events if event.kind == "log.snapshot" and "memory" in event.data]
    assert len(remembered) >= 3
    last = replayed(tmp_path).last
    assert last is not None
    for start in (1, 4, 9, 14, last):
        report = replayed(tmp_path, start=start, end=last)
        assert (report.first, report.last, report.identical) == (start, last, last - start + 1)
    # What comes before the snapshot is not looked at.
    second = remembered[1]["number"]
    later = replay(event for event in events if event.data.get("number", last) >= second)
    assert (later.starts, later.first, later.identical) == (second, second, later.rounds)


def test_a_pruned_log_says_from_which_round_on_it_replays(tmp_path: Path) -> None:
    RecordedWorld(tmp_path, every=6).live_through_everything()
    store = Store(str(tmp_path / "live.db"))
    times = [event.time for event in read_log(tmp_path / "live.db", ["log.snapshot"])]
    for _ in prune_events(store, times[-1] + 0.5):
        pass
    store.close()
    report = replayed(tmp_path)
    assert report.starts is not None
    assert report.starts == report.first
    assert report.starts > 6
    assert report.identical == report.rounds
    with pytest.raises(InputError, match=rf"round 2 is not in the log any more: .* from round {report.starts} on"):
        replayed(tmp_path, start=2)
    with pytest.raises(InputError, match="none of the rounds from 500 to the last"):
        replayed(tmp_path, start=500)


def test_a_round_that_failed_is_in_the_log_and_fails_again(tmp_path: Path) -> None:
    cells = {"name": "guaranteed_cells", "options": {"virtual_clusters": {"eve": {"node:A100": 2}}}}
    world = RecordedWorld(tmp_path, policy="fifo", placement=cells)
    world.add("a", 2)
    world.beat()
    world.submit("ada", 1, 1)
    with pytest.raises(ClusterError, match="node:A100") as failure:
        world.rounds(1)
    world.fail(failure.value)
    # The next rounds go well, since there are as many nodes as are promised.
    world.add("b", 2)
    world.beat()
    world.rounds(3)
    world.kill()
    report = replayed(tmp_path)
    assert (report.rounds, report.identical, report.failed) == (4, 4, 1)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("log")
    RecordedWorld(folder).live_through_everything()
    write_log(read_log(folder / "live.db"), folder / "log.jsonl")
    return (folder / "log.jsonl").read_text().splitlines()


def changed(lines: list[str], kind: str, number: int, change: Callable[[dict[str, Any]], Any]) -> list[str]:
    """The lines with one round, or the snapshot before it, changed."""
    found = [json.loads(line) for line in lines]
    (event,) = [event for event in found if event["kind"] == kind and event["data"].get("number") == number]
    change(event["data"])
    return [json.dumps(event) for event in found]


def first_started(lines: list[str]) -> int:
    """A round after the first that starts a job on GPUs of node a."""
    for line in lines:
        data = json.loads(line)["data"]
        if data.get("number", 0) > 1 and any("a" in place[1] for place in data.get("started", {}).values()):
            return int(data["number"])
    raise AssertionError("none")


def test_a_log_that_was_tampered_with_is_found_out(tmp_path: Path, lines: list[str], run: Run) -> None:
    number = first_started(lines)

    def another_gpu(data: dict[str, Any]) -> None:
        place = next(place for place in data["started"].values() if "a" in place[1])
        place[1]["a"] = [(gpu + 1) % 4 for gpu in place[1]["a"]]

    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(lines))
    assert run("replay", str(log)).exit_code == 0
    log.write_text("\n".join(changed(lines, "round", number, another_gpu)))
    answer = run("replay", str(log))
    assert answer.exit_code == 1
    assert "first difference" in answer.stdout
    assert f"round {number} ({log}, line" in answer.stdout
    document = json.loads(run("replay", str(log), "--json").stdout)
    difference = document["difference"]
    assert document["different"] >= 1
    assert (difference["round"], difference["what"]) == (number, ["started"])
    assert difference["inputs"]["nodes"][0]["node"] == "a"
    # Before it everything is as it was.
    assert run("replay", str(log), "--to", str(number - 1)).exit_code == 0


def test_other_inputs_give_other_decisions(tmp_path: Path, lines: list[str]) -> None:
    def longer(data: dict[str, Any]) -> None:
        for spell in data["ran"][::2]:
            spell[3] *= 100.0

    number = next(
        found["number"]
        for line in lines
        if len((found := json.loads(line)["data"]).get("ran", ())) > 2 and found["number"] > 3
    )
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(changed(lines, "round", number, longer)))
    report = replay(read_log(log))
    assert report.difference is not None
    assert report.difference.round >= number


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: [*lines[:9], lines[9][:40], *lines[10:]], r"line 10: not a line of JSON"),
        (lambda lines: [*lines[:9], "[1, 2]", *lines[10:]], r"line 10: not an event: it must be an object"),
        (lambda lines: [*lines[:9], '{"number": 10}', *lines[10:]], r"line 10: not an event: time is None"),
        (lambda lines: [*lines[:9], *lines[8:]], r"line 10: event 9 comes after event 9"),
        (
            lambda lines: changed(lines, "round", 3, lambda data: data.pop("now")),
            r"line \d+: the event is damaged: now is missing",
        ),
        (
            lambda lines: changed(lines, "round", 3, lambda data: data.update(started=[1, 2])),
            r"line \d+: the event is damaged: started is \[1, 2\]",
        ),
        (
            lambda lines: changed(lines, "round", 3, lambda data: data.update(started={"job": ["A100", {}]})),
            r"line \d+: the event is damaged: started\.job\.1 is \{\}",
        ),
        (
            lambda lines: changed(lines, "round", 3, lambda data: data.update(now=math.nan)),
            r"line \d+: the event is damaged: now is nan",
        ),
        (
            lambda lines: [*lines[:9], json.dumps(json.loads(lines[9]) | {"time": math.nan}), *lines[10:]],
            "line 10: not an event: time is nan",
        ),
        (
            lambda lines: changed(lines, "round", 3, lambda data: data.update(running={"ghost": ["A100", {"a": [0]}]})),
            "damaged, or does not fit those before it: no 'ghost' is known",
        ),
        (
            lambda lines: changed(lines, "round", 3, lambda data: data.update(number=4)),
            "round 4 comes after round 2: what is between them is missing",
        ),
        (
            lambda lines: changed(lines, "log.snapshot", 1, lambda data: data["config"]["policy"].update(name="fof")),
            "unknown policy 'fof': did you mean 'fifo'",
        ),
        (lambda lines: [line for line in lines if "log.snapshot" not in line], "the log has no snapshot"),
    ],
)
def test_a_damaged_log_is_told_by_its_line(
    tmp_path: Path, lines: list[str], run: Run, damage: Callable[[list[str]], list[str]], message: str
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(damage(lines)))
    with pytest.raises(InputError, match=message):
        replay(read_log(log))
    answer = run("replay", str(log))
    assert answer.exit_code == 2
    assert "Traceback" not in answer.stderr


def test_numbers_come_back_as_the_same_numbers(tmp_path: Path, lines: list[str]) -> None:
    found = [json.loads(line) for line in lines]
    again = tmp_path / "again.jsonl"
    write_log((LogEvent(**event, place="") for event in found), again)
    assert again.read_text().splitlines() == lines
    assert json.loads(json.dumps(0.1 + 0.2)) == 0.1 + 0.2
    with pytest.raises(InputError, match="is there already"):
        write_log([], again)


def test_jobs_that_wait_unchanged_and_idle_clusters_cost_the_log_nothing(tmp_path: Path) -> None:
    world = RecordedWorld(tmp_path, policy="fifo")
    world.add("a", 2)
    world.beat()
    world.rounds(5)
    # One round says what there is; then nothing happens.
    assert len(list(read_log(tmp_path / "live.db", ["round"]))) == 1
    ids = [job_id for _ in range(60) for job_id in world.submit("ada", 2, 2, 2, 2, 2)]
    world.rounds(6)
    rounds = list(read_log(tmp_path / "live.db", ["round"]))
    assert len(rounds) == 7
    mentioned = [{job_id for job_id in ids if job_id in json.dumps(event.data)} for event in rounds]
    assert len(mentioned[1]) == 300
    assert all(len(names) <= 2 for names in mentioned[2:])
    world.kill()
    assert replayed(tmp_path).identical == 7


def test_the_workload_of_a_log_is_simulated_under_another_policy(tmp_path: Path, lines: list[str], run: Run) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(lines))
    answer = run("replay", str(log), "--policy", "las", "-o", str(tmp_path / "las"), "--json")
    assert answer.exit_code == 0, answer.stderr
    live, same, other = json.loads(answer.stdout)["rows"]
    assert live["jobs"] == same["jobs"] == other["jobs"]
    assert other["finished"] == other["jobs"]
    # Jobs have the work that they had: the simulator under the same policy comes near to what happened.
    assert same["average_jct"] == pytest.approx(live["average_jct"], rel=0.35)
    summary = json.loads((tmp_path / "las" / "summary.json").read_text())
    assert summary["policy"] == "las"
    assert summary["average_jct"] == other["average_jct"]
    again = run("replay", str(log), "--policy", "las", "-o", str(tmp_path / "las"))
    assert again.exit_code == 2
    assert "holds the results of another run" in again.stderr


def test_a_workload_has_the_outages_and_the_work_that_there_was(tmp_path: Path) -> None:
    from bloxopt.runtime.replay.simulation import simulate_workload
    from bloxopt.runtime.replay.workload import read_workload

    world = RecordedWorld(tmp_path, policy="fifo")
    world.add("a", 2)
    world.add("b", 1)
    world.beat()
    # Says 80 steps, does 80; and one that says nothing of its steps and is told to end.
    (done,) = world.submit("ada", 1)
    (silent,) = world.submit("ada", 2, total_steps=None, duration=1000.0)
    (never,) = world.submit("bob", 64)
    world.rounds(12)
    assert world.live.find(done).final
    world.silent.add("b")
    world.rounds(5)
    world.silent.clear()
    world.rounds(3)
    attained = world.live.find(silent).attained_service
    world.live.cancel(silent, "ada")
    world.live.cancel(never, "bob")
    world.rounds(3)
    world.kill()
    workload = read_workload(read_log(tmp_path / "live.db"), "log")
    assert workload.left_out == 1
    steps = dict(zip(workload.trace.jobs.job_id.tolist(), workload.trace.jobs.total_steps.tolist(), strict=True))
    assert steps[done] == 80.0
    assert steps[silent] == pytest.approx(attained / 2)
    (outage,) = [outage for outage in workload.outages if outage.node == "b"]
    assert 80.0 < outage.start < outage.end
    assert np.isfinite(outage.end)
    assert workload.cluster.describe() == "2xA100+1xA100"
    # Both that ran are over, live as in a simulation, and so count: averages beside each other are of the same jobs.
    row, simulated = workload.live_row(), simulate_workload(workload).summary()
    assert row["jobs"] == row["finished"] == simulated["finished"] == 2
    over = [world.live.find(job_id) for job_id in (done, silent)]
    assert row["average_jct"] == pytest.approx(np.mean([job.finished_at - job.submitted_at for job in over]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.db"], "nowhere.db: no such log"),
        (["{log}", "--policy", "fof"], "unknown policy 'fof'"),
        (["{log}", "--set", "policy.x=1"], "give --policy too"),
        (["{log}", "--policy", "fifo", "--set", "x=1"], "write PART.KEY=VALUE"),
        (["{log}", "--policy", "fifo", "--from", "3"], "--from and --to are for the replay of rounds"),
        (["{log}", "-o", "folder"], "--output is for a simulation"),
    ],
)
def test_wrong_arguments_are_named(
    tmp_path: Path, lines: list[str], run: Run, arguments: list[str], message: str
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(lines))
    answer = run("replay", *(argument.format(log=log) for argument in arguments))
    assert answer.exit_code == 2
    assert message in answer.stderr
