"""Jobs: one ``Job`` for people, one columnar ``JobTable`` for the arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bloxopt.arguments import unknown_name
from bloxopt.errors import BloxoptError, TraceError
from bloxopt.needs import NO_NEEDS, PlacementNeeds

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

MAX_GPUS = 1_000_000
"""Most GPUs that a job may ask for: beyond any cluster, so a larger number is a mistake in the input."""

MAX_SECONDS = 1e12
"""Largest time (s), some 30,000 years: at later ones a float no longer tells moments a thousandth of a second apart."""

TIME_LIMIT = f"at most {MAX_SECONDS:g} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training job: a gang of GPUs that runs a number of steps.

    ``num_gpus`` is what the job asks for. A rigid gang runs on exactly that many GPUs; an elastic
    job on any of ``min_gpus`` … ``max_gpus`` (both default to ``num_gpus``).

    The work is ``total_steps`` (with a throughput in steps/s from an oracle) or ``duration``
    (seconds on the GPUs it asks for); with a duration alone, a step is one such second.

    Units: seconds up to ``MAX_SECONDS`` (``arrival``, ``duration``, ``deadline``, ``restart_cost``), steps, GPUs, CPUs,
    GiB. ``deadline`` is an absolute time, ``None`` for none. ``restart_cost`` is the time a job
    loses each time it starts again after a preemption. ``weight`` is its priority weight (> 0).
    ``gpu_share`` below 1 asks for that part of one GPU, which the job shares with others. ``needs`` holds
    its placement constraints.
    Raises :class:`~bloxopt.errors.TraceError` naming the job and the field.
    """

    job_id: str
    arrival: float = 0.0
    job_type: str = "generic"
    total_steps: float | None = None
    duration: float | None = None
    num_gpus: int = 1
    min_gpus: int | None = None
    max_gpus: int | None = None
    tenant: str = "default"
    weight: float = 1.0
    deadline: float | None = None
    restart_cost: float = 0.0
    cpus_per_gpu: float = 0.0
    memory_gib_per_gpu: float = 0.0
    gpu_share: float = 1.0
    needs: PlacementNeeds = NO_NEEDS

    def __post_init__(self) -> None:
        def fail(field: str, value: object, wanted: str) -> None:
            raise TraceError(f"job {self.job_id!r}: {field} is {value!r}, must be {wanted}")

        def number(field: str, value: Any, low: float, strict: bool, wanted: str) -> None:
            if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
                fail(field, value, wanted)
            # abs() first: math.isfinite overflows on integers that no float holds.
            if not abs(value) <= _LARGEST or value < low or (strict and value == low):
                fail(field, value, wanted)

        def seconds(field: str, value: Any, low: float, strict: bool, wanted: str) -> None:
            number(field, value, low, strict, wanted)
            if value > MAX_SECONDS:
                fail(field, value, TIME_LIMIT)

        for field in ("job_id", "job_type", "tenant"):
            text = getattr(self, field)
            if not isinstance(text, str) or not text or not text.isprintable():
                fail(field, text, "a non-empty string of printable characters")
        seconds("arrival", self.arrival, 0.0, False, "a finite number of seconds >= 0")
        if self.total_steps is None and self.duration is None:
            fail("total_steps", None, "given, or duration instead")
        if self.total_steps is not None:
            number("total_steps", self.total_steps, 0.0, True, "a finite number of steps > 0")
        if self.duration is not None:
            seconds("duration", self.duration, 0.0, True, "a finite number of seconds > 0")
        for field in ("num_gpus", "min_gpus", "max_gpus"):
            value = getattr(self, field)
            if value is None and field != "num_gpus":
                continue
            wanted = f"a whole number of GPUs from 1 to {MAX_GPUS}"
            number(field, value, 1, False, wanted)
            if value > MAX_GPUS or value != int(value):
                fail(field, value, wanted)
        low, high = self.gpu_range
        if not low <= self.num_gpus <= high:
            fail("num_gpus", self.num_gpus, f"between min_gpus {low} and max_gpus {high}")
        number("weight", self.weight, 0.0, True, "a finite number > 0")
        if self.deadline is not None:
            seconds("deadline", self.deadline, self.arrival, True, "a time after its arrival")
        seconds("restart_cost", self.restart_cost, 0.0, False, "a finite number of seconds >= 0")
        number("cpus_per_gpu", self.cpus_per_gpu, 0.0, False, "a finite number >= 0")
        number("memory_gib_per_gpu", self.memory_gib_per_gpu, 0.0, False, "a finite number >= 0")
        number("gpu_share", self.gpu_share, 0.001, False, "a part of a GPU from 0.001 to 1")
        if self.gpu_share > 1 or (self.gpu_share < 1 and (low, high) != (1, 1)):
            fail("gpu_share", self.gpu_share, "at most 1, and below 1 only for jobs of one GPU")
        if not isinstance(self.needs, PlacementNeeds):
            fail("needs", self.needs, "a PlacementNeeds")

    @property
    def gpu_range(self) -> tuple[int, int]:
        """Fewest and most GPUs the job can run on."""
        return (
            self.num_gpus if self.min_gpus is None else self.min_gpus,
            self.num_gpus if self.max_gpus is None else self.max_gpus,
        )


@dataclass(frozen=True, eq=False)
class JobTable:
    """The same jobs as arrays of equal length, sorted by arrival (stable).

    ``total_steps`` is always set: where a job came with a duration alone it equals the duration.
    ``duration`` is NaN where unknown and ``deadline`` is +inf where there is none. ``job_type``, ``tenant``
    and ``needs`` are codes into ``job_types``, ``tenants`` and ``need_kinds``. ``phase`` is where each job stands when
    its rates are asked for (see :mod:`bloxopt.phases`): 0 in a trace. ``is_open`` tells the jobs of a live cluster at
    present, where others come and go, from those of a trace, which are all there are: see :meth:`unknown_tenant`.
    """

    job_id: NDArray[np.object_]
    arrival: FloatArray
    job_type: IntArray
    total_steps: FloatArray
    duration: FloatArray
    num_gpus: IntArray
    min_gpus: IntArray
    max_gpus: IntArray
    tenant: IntArray
    weight: FloatArray
    deadline: FloatArray
    restart_cost: FloatArray
    cpus_per_gpu: FloatArray
    memory_gib_per_gpu: FloatArray
    gpu_share: FloatArray
    needs: IntArray
    phase: IntArray
    need_kinds: tuple[PlacementNeeds, ...]
    job_types: tuple[str, ...]
    tenants: tuple[str, ...]
    is_open: bool = False

    @classmethod
    def from_jobs(cls, jobs: Sequence[Job]) -> JobTable:
        """Columns from ``Job`` objects; raises on a duplicate ``job_id``."""
        seen: set[str] = set()
        for job in jobs:
            if not isinstance(job, Job):
                raise TraceError(f"cannot make a table of jobs from {job!r}: give Job objects")
            if job.job_id in seen:
                raise TraceError(f"job id {job.job_id!r} appears twice: job ids must be unique")
            seen.add(job.job_id)
        return cls.from_columns(
            job_id=[job.job_id for job in jobs],
            arrival=[job.arrival for job in jobs],
            job_type=[job.job_type for job in jobs],
            total_steps=[math.nan if job.total_steps is None else job.total_steps for job in jobs],
            duration=[math.nan if job.duration is None else job.duration for job in jobs],
            num_gpus=[job.num_gpus for job in jobs],
            min_gpus=[job.gpu_range[0] for job in jobs],
            max_gpus=[job.gpu_range[1] for job in jobs],
            tenant=[job.tenant for job in jobs],
            weight=[job.weight for job in jobs],
            deadline=[math.inf if job.deadline is None else job.deadline for job in jobs],
            restart_cost=[job.restart_cost for job in jobs],
            cpus_per_gpu=[job.cpus_per_gpu for job in jobs],
            memory_gib_per_gpu=[job.memory_gib_per_gpu for job in jobs],
            gpu_share=[job.gpu_share for job in jobs],
            needs=[job.needs for job in jobs],
        )

    def check_times(self) -> None:
        """Raise :class:`~bloxopt.errors.TraceError` for the first job with a time beyond ``MAX_SECONDS``."""
        for name in ("arrival", "duration", "deadline", "restart_cost"):
            values: FloatArray = getattr(self, name)
            late = (values > MAX_SECONDS) & np.isfinite(values)
            if np.any(late):
                row = int(np.argmax(late))
                raise TraceError(f"job {self.job_id[row]!r}: {name} is {values[row]:g} s, must be {TIME_LIMIT}")

    @classmethod
    def from_columns(
        cls, *, job_id: Any, arrival: Any, num_gpus: Any, is_open: bool = False, **columns: Any
    ) -> JobTable:
        """Columns as sequences; those left out take the defaults of :class:`Job`.

        The values are trusted (readers validate rows first, see ``workloads``); only the lengths are
        checked, the jobs put in order of arrival and ``total_steps`` filled in from ``duration``.
        """
        count = len(job_id)
        for name, values in {"arrival": arrival, "num_gpus": num_gpus, **columns}.items():
            if values is not None and len(values) != count:
                raise TraceError(f"job column {name} has {len(values)} values for {count} jobs")
        arrival = np.asarray(arrival, dtype=np.float64)
        gpus = np.asarray(num_gpus, dtype=np.int64)

        def column(name: str, default: Any, dtype: Any) -> NDArray[Any]:
            value = columns.pop(name, None)
            return np.full(count, default, dtype) if value is None else np.asarray(value, dtype)

        def coded(name: str, default: str) -> tuple[IntArray, tuple[str, ...]]:
            value = columns.pop(name, None)
            if value is None:
                return np.zeros(count, np.int64), (default,)
            names, codes = np.unique(np.asarray(value, dtype=object).astype(str), return_inverse=True)
            return codes.astype(np.int64), tuple(str(entry) for entry in names)

        duration = column("duration", math.nan, np.float64)
        steps = column("total_steps", math.nan, np.float64)
        job_type, job_types = coded("job_type", "generic")
        tenant, tenants = coded("tenant", "default")
        needs, need_kinds = _coded_needs(columns.pop("needs", None), count)
        min_gpus = columns.pop("min_gpus", None)
        max_gpus = columns.pop("max_gpus", None)
        table = cls(
            job_id=np.asarray(job_id, dtype=object),
            arrival=arrival,
            job_type=job_type,
            total_steps=np.where(np.isnan(steps), duration, steps),
            duration=duration,
            num_gpus=gpus,
            min_gpus=gpus.copy() if min_gpus is None else np.asarray(min_gpus, np.int64),
            max_gpus=gpus.copy() if max_gpus is None else np.asarray(max_gpus, np.int64),
            tenant=tenant,
            weight=column("weight", 1.0, np.float64),
            deadline=column("deadline", math.inf, np.float64),
            restart_cost=column("restart_cost", 0.0, np.float64),
            cpus_per_gpu=column("cpus_per_gpu", 0.0, np.float64),
            memory_gib_per_gpu=column("memory_gib_per_gpu", 0.0, np.float64),
            gpu_share=column("gpu_share", 1.0, np.float64),
            needs=needs,
            phase=np.zeros(count, dtype=np.int64),
            need_kinds=need_kinds,
            job_types=job_types,
            tenants=tenants,
            is_open=is_open,
        )
        if columns:
            raise TypeError(f"unknown job columns: {', '.join(columns)}")
        if np.any(np.diff(table.arrival) < 0):
            table = table.take(np.argsort(table.arrival, kind="stable"))
        return table

    def __len__(self) -> int:
        return len(self.job_id)

    def take(self, index: Any) -> JobTable:
        """The jobs at ``index`` (integers or a mask), with the same code tables."""
        return replace(self, **{name: getattr(self, name)[index] for name in _ARRAY_FIELDS})

    def in_phase(self, phase: IntArray) -> JobTable:
        """The same jobs, each in the given phase of its work."""
        return replace(self, phase=phase)

    def unknown_tenant(self, names: Iterable[str]) -> str | None:
        """The first of ``names`` that must be a slip, since no job has this tenant; None if there is none.

        Where the table is open a tenant without jobs is absent for now, and none is a slip.
        """
        return None if self.is_open else next((name for name in names if name not in self.tenants), None)

    def tenant_codes(self, user: str, names: Iterable[str], error: type[BloxoptError]) -> dict[str, int]:
        """Code of each tenant among ``names`` that has jobs in the table.

        Raises ``error``, in the name of ``user``, for one that must be a slip: see :meth:`unknown_tenant`.
        """
        listed = list(names)
        unknown = self.unknown_tenant(listed)
        if unknown is not None:
            raise error(f"{user}: unknown tenant {unknown!r}: {unknown_name(unknown, self.tenants)}")
        return {name: self.tenants.index(name) for name in listed if name in self.tenants}

    @cached_property
    def tenant_names(self) -> NDArray[np.object_]:
        """Tenant of each job as a string."""
        return np.asarray(self.tenants, dtype=object)[self.tenant]

    @cached_property
    def job_type_names(self) -> NDArray[np.object_]:
        """Job type of each job as a string."""
        return np.asarray(self.job_types, dtype=object)[self.job_type]

    @cached_property
    def gpu_milli(self) -> list[int]:
        """Part of each of its GPUs that a job gets, in thousandths."""
        parts: list[int] = np.round(self.gpu_share * 1000).astype(np.int64).tolist()
        return parts

    @cached_property
    def host_size(self) -> list[float]:
        """CPUs and memory that a job takes for each of its GPUs, each as a part of the most that any job takes."""
        size = np.zeros(len(self))
        for need in (self.cpus_per_gpu, self.memory_gib_per_gpu):
            if need.any():
                size += need / need.max()
        sizes: list[float] = size.tolist()
        return sizes

    @cached_property
    def has_shares(self) -> bool:
        """Whether some job asks for part of a GPU only."""
        return bool((self.gpu_share < 1.0).any())

    @cached_property
    def gpu_demand(self) -> IntArray | FloatArray:
        """GPUs that each job asks for, a share counting as its part: whole numbers if no job shares."""
        return self.num_gpus * self.gpu_share.round(3) if self.has_shares else self.num_gpus

    def job(self, index: int) -> Job:
        """Row ``index`` as a :class:`Job`."""
        duration, deadline = float(self.duration[index]), float(self.deadline[index])
        timed = self.total_steps[index] == duration
        return Job(
            job_id=str(self.job_id[index]),
            arrival=float(self.arrival[index]),
            job_type=self.job_types[self.job_type[index]],
            total_steps=None if timed else float(self.total_steps[index]),
            duration=None if math.isnan(duration) else duration,
            num_gpus=int(self.num_gpus[index]),
            min_gpus=int(self.min_gpus[index]),
            max_gpus=int(self.max_gpus[index]),
            tenant=self.tenants[self.tenant[index]],
            weight=float(self.weight[index]),
            deadline=None if math.isinf(deadline) else deadline,
            restart_cost=float(self.restart_cost[index]),
            cpus_per_gpu=float(self.cpus_per_gpu[index]),
            memory_gib_per_gpu=float(self.memory_gib_per_gpu[index]),
            gpu_share=float(self.gpu_share[index]),
            needs=self.need_kinds[self.needs[index]],
        )

    def __iter__(self) -> Iterator[Job]:
        return (self.job(index) for index in range(len(self)))


def _coded_needs(needs: Any, count: int) -> tuple[IntArray, tuple[PlacementNeeds, ...]]:
    """Codes of equal needs, and the needs they stand for; no needs at all where none are given."""
    if needs is None:
        return np.zeros(count, np.int64), (NO_NEEDS,)
    kinds: dict[PlacementNeeds, int] = {}
    codes = [kinds.setdefault(entry, len(kinds)) for entry in needs]
    return np.array(codes, dtype=np.int64), tuple(kinds) or (NO_NEEDS,)


_LARGEST = float(np.finfo(np.float64).max)
_ARRAY_FIELDS = tuple(
    f.name for f in fields(JobTable) if f.name not in ("job_types", "tenants", "need_kinds", "is_open")
)
