"""Every round of a log decided again from its recorded inputs, and compared with what was decided then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from bloxopt.anytime import Rung
from bloxopt.errors import BloxoptError, InputError
from bloxopt.experiments.store import versions
from bloxopt.formulations.allocation import Allocation
from bloxopt.rounds import Scheduler
from bloxopt.runtime.backend import ClusterState
from bloxopt.runtime.live.memory import restore
from bloxopt.runtime.live.recording import ROUND, SNAPSHOT, plan_data
from bloxopt.runtime.problems import first_problem
from bloxopt.runtime.replay.backend import RecordedBackend
from bloxopt.runtime.replay.deadline import RecordedLadder
from bloxopt.runtime.replay.log import LogEvent, reading
from bloxopt.runtime.replay.shape import check_shape
from bloxopt.runtime.service.config import ServiceConfig

KINDS = (ROUND, SNAPSHOT)
"""Kinds of the events that a replay reads."""

_DECISION: Mapping[str, Any] = {"admitted": [], "rejected": [], "stopped": [], "started": {}}
_PLAN = ("rung", "termination", "solver", "objective")
_SLOW = 0.5
"""Part of its budget from which on a round may have been cut short while its jobs were selected or placed."""


@dataclass(frozen=True)
class Difference:
    """A round that was decided otherwise: ``what`` differs, as ``recorded`` and as ``replayed``, and its ``inputs``."""

    round: int
    place: str
    time: float
    what: tuple[str, ...]
    recorded: dict[str, Any]
    replayed: dict[str, Any]
    inputs: dict[str, Any]


@dataclass
class Report:
    """What a replay found.

    ``rounds`` replayed, the ``first`` to the ``last``; ``identical`` of them, ``given`` of which had no time for a
    solver's proof, so that their shares are taken from the log; ``timed`` differ where the time that deciding took then
    may be why; ``different`` ones differ. ``starts`` is the first round at which the log can be begun. ``versions``
    that differ from those of the log, as (recorded, here). ``ended`` why the log could not be followed any further.
    """

    first: int | None = None
    last: int | None = None
    rounds: int = 0
    identical: int = 0
    given: int = 0
    failed: int = 0
    timed: int = 0
    different: int = 0
    starts: int | None = None
    versions: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    difference: Difference | None = None
    ended: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return vars(self) | {"difference": None if self.difference is None else vars(self.difference)}


@dataclass(frozen=True)
class _Recorded:
    """A round of the log, with the snapshot before it, if there is one."""

    event: LogEvent
    snapshot: LogEvent | None

    @property
    def number(self) -> int:
        return int(self.event.data["number"])


def replay(
    events: Iterable[LogEvent],
    start: int | None = None,
    end: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Decide the rounds ``start`` to ``end`` (None: all there are) of a log again.

    Rounds before ``start`` are decided too, from the snapshot before it on, and not counted. Raises
    :class:`~bloxopt.errors.InputError` for a log that does not hold these rounds, or that does not fit itself.
    """
    report, run = Report(), _Run()
    for recorded, following in _rounds(events, start, report):
        if end is not None and recorded.number > end:
            break
        counts = start is None or recorded.number >= start
        try:
            run.decide(recorded, following, report if counts else None)
        except InputError as error:
            if report.difference is None:
                raise
            # What was recorded does not fit itself any more, which the difference has shown already.
            report.ended = str(error)
            break
        if progress is not None:
            progress(recorded.number)
    if not report.rounds:
        raise InputError(_nothing(report, start, end))
    return report


def _nothing(report: Report, start: int | None, end: int | None) -> str:
    if report.starts is None:
        return "the log has no snapshot to begin a replay at: it is not that of a scheduler that records its rounds"
    wanted = f"rounds from {start or 'the first'} to {end or 'the last'}"
    return f"the log has none of the {wanted}: it can be replayed from round {report.starts} on"


def _rounds(
    events: Iterable[LogEvent], start: int | None, report: Report
) -> Iterator[tuple[_Recorded, Mapping[str, Any]]]:
    """Rounds from the last snapshot at or before ``start`` on, each with the data of the next one."""
    waiting: list[_Recorded] = []
    for recorded in _recorded(events, report):
        if start is not None and recorded.number <= start and recorded.snapshot is not None:
            waiting.clear()
        waiting.append(recorded)
        while len(waiting) > 1 and (start is None or recorded.number > start):
            yield waiting[0], waiting[1].event.data
            waiting.pop(0)
    if start is not None and report.starts is not None and start < report.starts:
        raise InputError(f"round {start} is not in the log any more: it can be replayed from round {report.starts} on")
    following = [recorded.event.data for recorded in waiting[1:]]
    yield from zip(waiting, [*following, {}], strict=False)


def _recorded(events: Iterable[LogEvent], report: Report) -> Iterator[_Recorded]:
    """The rounds from the first snapshot on; raises for one that is missing."""
    snapshot: LogEvent | None = None
    last: int | None = None
    for event in events:
        if event.kind not in KINDS or (event.kind == ROUND and snapshot is None and last is None):
            continue
        with reading(event):
            check_shape(event.kind, event.data)
            number = int(event.data["number"])
        if event.kind == SNAPSHOT:
            snapshot = event
            report.starts = number if report.starts is None else report.starts
            continue
        if last is not None and number != last + 1:
            raise InputError(f"{event.place}: round {number} comes after round {last}: what is between them is missing")
        yield _Recorded(event, snapshot)
        snapshot, last = None, number


class _Run:
    """A scheduler over recorded rounds, one after the other."""

    def __init__(self) -> None:
        self._config = ServiceConfig()
        self._backend: RecordedBackend | None = None
        self._scheduler: Scheduler | None = None
        self._ladder: RecordedLadder | None = None
        self._plan: Allocation | None = None
        self._renew = False
        self._uncertain = False

    def decide(self, recorded: _Recorded, following: Mapping[str, Any], report: Report | None) -> None:
        """Decide one round again, and note in the ``report`` what came of it."""
        data = recorded.event.data
        with reading(recorded.event):
            backend, scheduler = self._prepared(recorded, following, report)
            rung = data.get("plan", {}).get("rung", Rung.SOLVED)
            what, then, now = _compared(data, backend, *self._run(scheduler))
        # What such a solve left for the next ones to begin from is not known.
        self._uncertain = self._uncertain or rung in (Rung.INCUMBENT, Rung.OTHER_SOLVER)
        budget = self._config.rounds.budget
        timed = self._uncertain or bool(budget and data.get("seconds", 0.0) >= _SLOW * budget)
        if report is None:
            return
        report.first, report.last = report.first or recorded.number, recorded.number
        report.rounds += 1
        report.given += rung != Rung.SOLVED
        report.failed += "failed" in data
        report.identical += not what
        report.timed += bool(what) and timed
        report.different += bool(what) and not timed
        if what and not timed and report.difference is None:
            place = recorded.event.place
            report.difference = Difference(recorded.number, place, data["now"], what, then, now, backend.inputs())

    def _prepared(
        self, recorded: _Recorded, following: Mapping[str, Any], report: Report | None
    ) -> tuple[RecordedBackend, Scheduler]:
        """The backend with the round's inputs, and the scheduler that is to decide it."""
        data, fresh = recorded.event.data, bool(recorded.event.data.get("fresh"))
        memory, told = None, {}
        if recorded.snapshot is not None:
            told = recorded.snapshot.data
            memory = told.get("memory")
            if self._backend is None or fresh:
                self._config = _config(told["config"])
                rounds = self._config.rounds
                self._backend = RecordedBackend(rounds.seconds, rounds.every_gpu_count_up_to)
                self._scheduler = None
            if report is not None:
                report.versions |= _other_versions(told["versions"])
            self._backend.take_in(told, everything=True)
        backend = self._backend
        assert backend is not None
        backend.take_in(data, everything=False)
        anew = fresh or self._scheduler is None
        built = told.get("built_rates", {}) if anew and memory is not None and not data.get("rebuilt") else {}
        backend.begin(data, following, anew, built)
        if anew:
            self._ladder = RecordedLadder() if self._config.rounds.budget else None
            self._scheduler = self._config.make_scheduler(backend, self._ladder)
            self._scheduler.before_round, self._scheduler.inspect = self._before, self._planned
            if memory is not None:
                restore(self._scheduler, memory, backend.node_up)
        scheduler = self._scheduler
        assert scheduler is not None
        if fresh or memory is not None:
            self._uncertain = False
            if scheduler.resolver is not None:
                scheduler.resolver.forget()  # as was done then
        self._renew = bool(data.get("nodes_changed")) and not anew
        if self._ladder is not None:
            self._ladder.recorded = data.get("plan")
        return backend, scheduler

    def _run(self, scheduler: Scheduler) -> tuple[Allocation | None, str]:
        """The plan that was made, if any, and why the round failed, "" if it did not."""
        self._plan = None
        try:
            scheduler.run_round()
        except BloxoptError as error:
            return None, str(error)
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"
        return self._plan, ""

    def _before(self, scheduler: Scheduler, _: ClusterState) -> None:
        if self._renew:
            scheduler.placement = self._config.make_placement()

    def _planned(self, allocation: Allocation, _: object) -> None:
        self._plan = allocation


def _compared(
    data: Mapping[str, Any], backend: RecordedBackend, plan: Allocation | None, failure: str
) -> tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]:
    """What differs between the recorded decision and that of the replay, and both."""
    if "failed" in data and not data.get("while_deciding"):
        return (), {}, {}  # what it had decided is not known
    then = {name: data.get(name, nothing) for name, nothing in _DECISION.items()}
    then["failed"] = data.get("failed", "")
    recorded = data.get("plan")
    then["plan"] = None if recorded is None else {name: recorded.get(name) for name in _PLAN}
    now = dict(_DECISION) | backend.made | {"failed": failure}
    now["plan"] = None if plan is None else {name: plan_data(plan)[name] for name in _PLAN}
    if then["failed"] or failure:
        then, now = {"failed": then["failed"]}, {"failed": failure}
    return tuple(name for name in then if then[name] != now[name]), then, now


def _config(plain: Mapping[str, Any]) -> ServiceConfig:
    """The configuration that rounds were decided by; raises InputError for one that means nothing here."""
    try:
        config = ServiceConfig.model_validate(plain)
    except ValidationError as error:
        keys, text = first_problem(error, ServiceConfig)
        raise InputError(f"the recorded configuration is not known to this version: {'.'.join(keys)}: {text}") from None
    config.check()
    return config


def _other_versions(recorded: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Versions that are not those of the log: as recorded, and here."""
    here = versions()
    names = sorted(recorded.keys() | here.keys())
    return {name: (recorded.get(name), here.get(name)) for name in names if recorded.get(name) != here.get(name)}
