"""How fast jobs run, from what they report: an oracle that begins with the users' estimates and learns."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bloxopt.jobs import FloatArray, IntArray, JobTable

UNNAMED = "generic"
"""The job type of jobs that name none, which have nothing in common."""

LEAST_RATE = 1e-9
"""Steps/s: slower than a step in thirty years no job is believed to be."""

_WORTH_KNOWING = 0.05
"""By what part a rate has to change before plans are made with the new one."""


class LearnedThroughput:
    """A :class:`~bloxopt.throughput.ThroughputOracle` for live jobs.

    By itself it takes a job to run at the rate its user estimated, in proportion to its GPUs, on every GPU type that
    it may use. What jobs report corrects that: on the same GPU type and number, by what was measured there; on
    other numbers of that type, by what was measured at the nearest; on other types, by what was measured on any. What
    one job of a named type reports holds for the others of it. Rates are in steps/s.
    """

    def __init__(self) -> None:
        self._measured: dict[str, dict[tuple[str, int], float]] = {}
        self._allowed: Mapping[str, Collection[str]] = {}
        self._lock = threading.Lock()
        self.version = 0
        """Counts changes that are worth another plan."""
        self.changed: set[str] = set()
        """Kinds of jobs of which something was measured or forgotten since whoever keeps a record cleared this."""

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            kept = {kind: dict(known) for kind, known in self._measured.items()}
            return vars(self) | {"_measured": kept, "changed": set(self.changed), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def allow(self, gpu_types: Mapping[str, Collection[str]]) -> None:
        """The GPU types that jobs may use, by job id; any where a job is not named."""
        self._allowed = {job_id: {name.lower() for name in types} for job_id, types in gpu_types.items()}

    def learn(self, job_id: str, job_type: str, gpu_type: str, num_gpus: int, rate: float) -> None:
        """A job runs at ``rate`` steps/s there; one next to 0, or beyond all numbers, says nothing yet."""
        if not LEAST_RATE <= rate < np.inf:
            return
        with self._lock:
            known = self._measured.setdefault(_kind(job_id, job_type), {})
            before = known.get((gpu_type.lower(), num_gpus))
            known[gpu_type.lower(), num_gpus] = rate
            if rate != before:
                self.changed.add(_kind(job_id, job_type))
            if before is None or abs(rate - before) > _WORTH_KNOWING * before:
                self.version += 1

    def forget(self, job_id: str, job_type: str) -> None:
        """A job is over: what it alone was known for is not needed any more."""
        if job_type == UNNAMED:
            kind = _kind(job_id, job_type)
            with self._lock:
                if self._measured.pop(kind, None) is not None:
                    self.changed.add(kind)

    def measured(self) -> list[tuple[str, str, int, float]]:
        """Job type (or job, where it names none), GPU type in lower case, GPUs and steps/s of all that was measured."""
        with self._lock:
            return [(kind, *place, rate) for kind, known in self._measured.items() for place, rate in known.items()]

    def known(self, kinds: Iterable[str] | None = None) -> dict[str, list[tuple[str, int, float]]]:
        """What was measured of kinds of jobs (None: of all): GPU type, GPUs and steps/s, in the order of first sight.

        Of a kind that is not known (any more): nothing.
        """
        with self._lock:
            chosen = list(self._measured) if kinds is None else sorted(kinds)
            return {kind: [(*place, rate) for place, rate in self._measured.get(kind, {}).items()] for kind in chosen}

    def take_over(self, known: Mapping[str, Iterable[tuple[str, int, float]]]) -> None:
        """Know of these kinds what :meth:`known` said, and nothing else of them."""
        with self._lock:
            for kind, measured in known.items():
                self._measured.pop(kind, None)
                if places := {(gpu_type, num_gpus): rate for gpu_type, num_gpus, rate in measured}:
                    self._measured[kind] = places

    def rates(self, jobs: JobTable, gpu_types: Sequence[str], num_gpus: IntArray) -> FloatArray:
        """Steps/s of job i on ``num_gpus[i]`` GPUs of type j; 0 where it may not run."""
        names = [name.lower() for name in gpu_types]
        estimate = jobs.total_steps / jobs.duration * (num_gpus / jobs.num_gpus)
        rates = np.repeat(estimate[:, None], len(names), axis=1)
        with self._lock:
            if self._measured:
                self._correct(rates, jobs, names, num_gpus)
        if self._allowed:
            for row, job_id in enumerate(jobs.job_id.tolist()):
                allowed = self._allowed.get(job_id)
                if allowed:
                    rates[row, [name not in allowed for name in names]] = 0.0
        return rates

    def _correct(self, rates: FloatArray, jobs: JobTable, names: list[str], num_gpus: IntArray) -> None:
        """Put what was measured in place of estimates."""
        order = np.argsort(jobs.job_type, kind="stable")
        ends = np.searchsorted(jobs.job_type[order], np.arange(len(jobs.job_types)), side="right").tolist()
        for kind, begin, end in zip(jobs.job_types, [0, *ends], ends, strict=False):
            rows = order[begin:end]
            if kind != UNNAMED:
                # What is known holds for all of its jobs on as many GPUs.
                if known := self._measured.get(kind):
                    counts = num_gpus[rows]
                    for count in np.unique(counts).tolist():
                        same = rows[counts == count]
                        for column, name in enumerate(names):
                            rates[same, column] = _rate(known, name, count, rates[same, column] / count)
                continue
            for row in rows.tolist():
                if known := self._measured.get(_kind(jobs.job_id[row], kind)):
                    count = int(num_gpus[row])
                    for column, name in enumerate(names):
                        rates[row, column] = _rate(known, name, count, rates[row, column] / count)


def _kind(job_id: str, job_type: str) -> str:
    """Under what name a job's rates are known: a job id has a dash in it where it might be taken for a type."""
    return f"job {job_id}" if job_type == UNNAMED else job_type


def _rate(
    known: Mapping[tuple[str, int], float], gpu_type: str, count: int, estimate: FloatArray
) -> float | FloatArray:
    """Steps/s of some jobs from the nearest that was measured; ``estimate`` is what their users said, a GPU."""
    exact = known.get((gpu_type, count))
    if exact is not None:
        return exact
    same = [(abs(measured - count), measured, rate) for (name, measured), rate in known.items() if name == gpu_type]
    if same:
        _, measured, rate = min(same)
        return rate * count / measured
    # Elsewhere only how far the estimate was off is known.
    off = np.mean([rate / (measured * estimate) for (_, measured), rate in known.items()], axis=0)
    return np.asarray(estimate * count * off)
