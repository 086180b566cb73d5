"""The agent of a node: tells the scheduler what it sees, and converges to what the answer says should be.

Level-triggered: each look compares all that is desired with all that is there, so that answers may be lost, repeated
or late, and the agent killed at any point. Runs belong to their guards, and live on without it, under their leases."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass

import bloxopt
from bloxopt.runtime.agent.config import AgentConfig
from bloxopt.runtime.agent.connection import ConnectionLostError, SchedulerConnection
from bloxopt.runtime.agent.files import boottime
from bloxopt.runtime.agent.generation import next_generation
from bloxopt.runtime.agent.gpus import GpuMonitor, GpuReading, GpuSource
from bloxopt.runtime.agent.limits import prepare_parent
from bloxopt.runtime.agent.ordering import order_for
from bloxopt.runtime.agent.orders import IO_ERROR, UNUSABLE
from bloxopt.runtime.agent.runs import LocalRun, RunFolders, RunKey
from bloxopt.runtime.agent.upload import LogUploader
from bloxopt.runtime.messages import SOONEST_NEWS, DesiredRun, DesiredState, Heartbeat, RunReport, RunState

_LOGGER = logging.getLogger("bloxopt.agent")

_TICK = 0.2
_FIRST_READING = 10.0
_FIRST_HEARTBEAT = 5.0
_MOST_BACKOFF = 30.0
_LONGEST_LOG_WAIT = 600.0
_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class _Granted:
    """The last answer: what is desired, and until when it holds (:func:`boottime`)."""

    runs: dict[RunKey, DesiredRun]
    deadline: float
    lease_seconds: float


class Agent:
    """An agent with its GPUs. ``run`` works until :meth:`stop`; runs go on after that, under their leases.

    Raises AgentError where the state folder cannot be used, ConfigError for settings that cannot."""

    def __init__(self, config: AgentConfig, gpus: GpuSource) -> None:
        self.config = config
        self.instance = uuid.uuid4().hex
        self._connection = SchedulerConnection(config)
        self._folders = RunFolders(config.state_folder)
        self.generation = next_generation(config.state_folder)
        self._monitor = GpuMonitor(gpus, config.gpu_patience_seconds)
        self._uploader = LogUploader(self._connection)
        self._runs: dict[RunKey, LocalRun] = {run.key: run for run in self._folders.load()}
        self._unstartable: dict[RunKey, RunReport] = {}
        self._gone: OrderedDict[RunKey, None] = OrderedDict()
        self._granted: _Granted | None = None
        self._waiting: set[RunKey] = set()
        self._sequence = 0
        self._applied = -1
        self._interval, self._soonest = _FIRST_HEARTBEAT, SOONEST_NEWS
        self._failures = 0
        self._cgroup = self._prepare_cgroup()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let :meth:`run` return after what it is doing. May be called from signal handlers and other threads."""
        self._stopped.set()

    def run(self) -> None:
        """Work until stopped."""
        for warning in self.config.warnings():
            _LOGGER.warning(warning)
        self._monitor.start(_FIRST_READING)
        reading = self._monitor.latest()
        _LOGGER.info("node %s: %d GPUs, %d runs found", self.config.node, len(reading.gpus), len(self._runs))
        if reading.failure:
            _LOGGER.error(reading.failure)
        next_beat = last_beat = 0.0
        reported: object = None
        try:
            while not self._stopped.is_set():
                try:
                    reports = self.converge()
                except OSError as error:
                    # Nothing is said rather than something wrong: leases run out if it does not pass.
                    _LOGGER.error("the state of the runs cannot be told: %s", error)
                    self._stopped.wait(1.0)
                    continue
                stages = [(report.job_id, report.attempt, report.state) for report in reports]
                now = time.monotonic()
                if now >= next_beat or (stages != reported and not self._failures and now >= last_beat + self._soonest):
                    last_beat = now
                    if self.beat(reports):
                        reported = stages
                        self._upload()
                    next_beat = max(time.monotonic(), last_beat + self._pause())
                    continue
                self._stopped.wait(_TICK)
        finally:
            self._monitor.stop()
            self._connection.close()
            self._folders.close()

    def beat(self, reports: list[RunReport]) -> bool:
        """One heartbeat; True if it was answered, and the answer taken."""
        reading = self._monitor.latest()
        sent_at = boottime()
        heartbeat = Heartbeat(
            node=self.config.node,
            instance=self.instance,
            sequence=self._sequence,
            address=self.config.address,
            gpus=list(reading.gpus),
            cpus=float(len(os.sched_getaffinity(0))),
            memory_gib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30,
            healthy=not reading.failure,
            message=reading.failure[:4096],
            runs=reports,
            version=bloxopt.__version__,
            generation=self.generation,
            taken=self._applied,
        )
        self._sequence += 1
        self._give_up_what_is_not_in(heartbeat)
        try:
            desired = self._connection.beat(heartbeat)
        except ConnectionLostError as error:
            self._failures += 1
            _LOGGER.warning("heartbeat %d failed: %s", heartbeat.sequence, error)
            return False
        if self._failures:
            _LOGGER.info("the scheduler answers again after %d failed heartbeats", self._failures)
        self._failures = 0
        self.take(desired, sent_at)
        return True

    def _give_up_what_is_not_in(self, heartbeat: Heartbeat) -> None:
        """What the scheduler hears has not been taken up, it may give to another node: only its answer to this, or a
        later one, may start that here."""
        if self._granted is not None:
            told = {(report.job_id, report.attempt) for report in heartbeat.runs}
            for key in self._granted.runs.keys() - told:
                del self._granted.runs[key]

    def take(self, desired: DesiredState, sent_at: float) -> None:
        """Take an answer to a heartbeat sent at ``sent_at`` (:func:`boottime`), unless a later one was taken before."""
        if desired.sequence < self._applied:
            return
        self._applied = desired.sequence
        self._interval, self._soonest = desired.heartbeat_seconds, desired.news_seconds
        self._monitor.set_interval(max(desired.heartbeat_seconds, 1.0))
        # From the sending on, so that the lease ends here no later than the scheduler believes.
        deadline = sent_at + desired.lease_seconds
        for run in self._runs.values():
            try:
                run.renew(deadline, desired.lease_seconds)
            except OSError as error:
                _LOGGER.error("the lease of %s cannot be renewed: %s", run.key, error)
        forget = set(desired.forget)
        self._granted = _Granted(
            {(each.job_id, each.attempt): each for each in desired.runs if (each.job_id, each.attempt) not in forget},
            deadline,
            desired.lease_seconds,
        )
        self._waiting.intersection_update(self._granted.runs)
        for key in forget:
            self._forget(key)

    def converge(self) -> list[RunReport]:
        """Compare what is there with what is desired, do what is to be done at once, and report every run."""
        reports = {key: run.look() for key, run in self._runs.items()}
        if self._granted is not None:
            for key, run in self._runs.items():
                if key not in self._granted.runs and reports[key].state is not RunState.ENDED:
                    self._stop_run(run)
            for key, desired in self._granted.runs.items():
                if not self._is_over(key, reports) and boottime() < self._granted.deadline:
                    self._start_run(key, desired, reports, self._granted)
        for key, run in list(self._runs.items()):
            reports[key] = run.look()
            if run.forgotten:
                del reports[key]
                self._remove_when_sent(key, run)
        return [*reports.values(), *self._unstartable.values()]

    def _is_over(self, key: RunKey, reports: dict[RunKey, RunReport]) -> bool:
        ended = key in reports and reports[key].state is RunState.ENDED
        return ended or key in self._unstartable or key in self._gone

    def _start_run(self, key: RunKey, desired: DesiredRun, reports: dict[RunKey, RunReport], granted: _Granted) -> None:
        if key in self._runs:
            self._runs[key].start()
            return
        alive = [run for other, run in self._runs.items() if reports[other].state is not RunState.ENDED]
        reason = _obstacle(desired, alive)
        if reason:
            if key not in self._waiting:
                self._waiting.add(key)
                _LOGGER.info("%s attempt %d %s", *key, reason)
            return
        self._waiting.discard(key)
        problem = _unknown_gpus(desired, self._monitor.latest())
        if problem:
            self._refuse(key, UNUSABLE, problem)
            return
        try:
            order = order_for(desired, self.config, self._folders.run_dir(key), alive, self._cgroup)
            run = self._folders.create(order, granted.deadline, granted.lease_seconds)
        except OSError as error:
            self._refuse(key, IO_ERROR, f"the state folder of the node's agent cannot be written: {error}")
            return
        self._runs[key] = run
        reports[key] = run.look()
        run.start()
        _LOGGER.info("started %s attempt %d on GPUs %s", key[0], key[1], desired.gpus)

    def _refuse(self, key: RunKey, code: int, message: str) -> None:
        self._unstartable[key] = RunReport(
            job_id=key[0], attempt=key[1], state=RunState.ENDED, exit_code=code, message=message[:4096]
        )
        _LOGGER.error("cannot start %s attempt %d: %s", key[0], key[1], message)

    def _stop_run(self, run: LocalRun) -> None:
        try:
            run.stop()
        except OSError as error:
            _LOGGER.error("%s cannot be told to stop: %s", run.key, error)

    def _forget(self, key: RunKey) -> None:
        run = self._runs.get(key)
        if run is not None:
            if run.look().state is not RunState.ENDED:
                # It cannot know of an end that has not come.
                return
            try:
                run.set_forgotten()
            except OSError:
                # Its report is sent again until there is space for the mark.
                return
        self._unstartable.pop(key, None)
        self._gone[key] = None
        while len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)

    def _remove_when_sent(self, key: RunKey, run: LocalRun) -> None:
        if self._uploader.is_complete(run) or run.forgotten_seconds > _LONGEST_LOG_WAIT:
            self._uploader.drop(run)
            self._folders.remove(run)
            del self._runs[key]

    def _upload(self) -> None:
        try:
            self._uploader.upload(self._runs.values(), self.config.upload_bytes_per_heartbeat, self._interval / 2)
        except OSError as error:
            _LOGGER.warning("logs could not be sent: %s", error)

    def _pause(self) -> float:
        """From one heartbeat to the next (s): longer after each failure, and never in step with other agents for long,
        whatever they all have waited for."""
        if not self._failures:
            return self._interval * random.uniform(0.9, 1.0)
        lease = self._granted.lease_seconds if self._granted is not None else _MOST_BACKOFF
        longest = max(min(_MOST_BACKOFF, lease / 8), SOONEST_NEWS)
        return min(self._interval * 2.0 ** min(self._failures - 1, 10), longest) * random.uniform(0.5, 1.0)

    def _prepare_cgroup(self) -> str | None:
        if self.config.cgroup is None:
            return None
        try:
            prepare_parent(self.config.cgroup)
        except OSError as error:
            _LOGGER.warning("cgroup %s cannot be used: %s", self.config.cgroup, error)
        return str(self.config.cgroup)


def _obstacle(desired: DesiredRun, alive: list[LocalRun]) -> str:
    """Why a run must wait: another one still holds its GPUs, or an earlier attempt of its job still lives."""
    for run in alive:
        if run.order.job_id == desired.job_id:
            return f"waits for the end of attempt {run.order.attempt}"
        shared = sorted({*run.order.gpus} & {*desired.gpus})
        if shared:
            return f"waits for GPU {', '.join(map(str, shared))}: {run.order.job_id} still holds it"
    return ""


def _unknown_gpus(desired: DesiredRun, reading: GpuReading) -> str:
    known = {gpu.index for gpu in reading.gpus}
    unknown = sorted({*desired.gpus} - known)
    if unknown and not reading.failure:
        return f"this node has no GPU {', '.join(map(str, unknown))}"
    return "a GPU is named twice" if len({*desired.gpus}) < len(desired.gpus) else ""
