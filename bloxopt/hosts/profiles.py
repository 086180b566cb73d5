"""Sensitivity profiles: how fast a model runs with so many CPUs and so much memory beside each of its GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bloxopt.errors import ThroughputError
from bloxopt.input_files import read_input
from bloxopt.jobs import FloatArray

_ROUNDING = 1e-9


class SensitivityProfile:
    """One model on one number of GPUs: relative throughput over CPUs and GiB for each GPU.

    ``cpus`` and ``memory_gib`` ascend; ``relative`` (CPUs, memory) is the throughput over that of the share that the
    trace's rates stand for, 0 where nothing was measured. Between measured points the rate is that of the best
    measured point within what the job has, as in Synergy's table look-ups. :attr:`points` are the measured points
    that no smaller one equals, the slowest first: (points, 3) of CPUs, GiB and relative throughput.
    """

    def __init__(self, cpus: FloatArray, memory_gib: FloatArray, relative: FloatArray) -> None:
        self.cpus, self.memory_gib = cpus, memory_gib
        # What is reached with less is reached with more: also bridges points that were not measured.
        self.reached: FloatArray = np.maximum.accumulate(np.maximum.accumulate(relative, axis=0), axis=1)
        self.points = self._points()

    def rate(self, cpus: FloatArray | float, memory_gib: FloatArray | float) -> FloatArray:
        """Relative throughput with so many CPUs and GiB for each GPU; 0 below the smallest measured point."""
        row = np.searchsorted(self.cpus, np.asarray(cpus) + _ROUNDING, side="right") - 1
        column = np.searchsorted(self.memory_gib, np.asarray(memory_gib) + _ROUNDING, side="right") - 1
        return np.where((row >= 0) & (column >= 0), self.reached[row, column], 0.0)

    def _points(self) -> FloatArray:
        reached = self.reached
        less_cpus = np.vstack([np.zeros(len(self.memory_gib)), reached[:-1]])
        less_memory = np.hstack([np.zeros((len(self.cpus), 1)), reached[:, :-1]])
        row, column = np.nonzero((reached > less_cpus) & (reached > less_memory))
        points = np.column_stack([self.cpus[row], self.memory_gib[column], reached[row, column]])
        order = np.lexsort((points[:, 1], points[:, 0], points[:, 2]))
        chosen: FloatArray = points[order]
        return chosen


class SensitivityProfiles:
    """Profiles by job type and number of GPUs, over common axes of CPUs and GiB for each GPU.

    ``relative`` maps (job type, GPUs) to rows of relative throughputs, one row a number of CPUs; rows with fewer
    entries than there are memory sizes are of the largest sizes; 0 stands for a point that was not measured.
    ``source`` names them in messages. Raises :class:`~bloxopt.errors.ThroughputError` naming what cannot be used.
    """

    def __init__(
        self,
        cpus: Sequence[float],
        memory_gib: Sequence[float],
        relative: Mapping[tuple[str, int], Sequence[Sequence[float]]],
        source: str = "sensitivity profiles",
    ) -> None:
        self.source = source
        cpu_axis = _axis(source, "CPU", cpus)
        memory_axis = _axis(source, "memory", memory_gib)
        self._profiles: dict[tuple[str, int], SensitivityProfile] = {}
        for (job_type, gpus), rows in relative.items():
            values = _matrix(f"{source}: {job_type} on {gpus} GPUs", rows, cpu_axis, memory_axis)
            self._profiles[job_type, int(gpus)] = SensitivityProfile(
                cpu_axis, memory_axis[len(memory_axis) - values.shape[1] :], values
            )
        if not self._profiles:
            raise ThroughputError(f"{source}: there is no profile in it")

    def profile(self, job_type: str, gpus: int) -> SensitivityProfile:
        """The profile of a job type on so many GPUs; raises :class:`ThroughputError` naming one that is missing."""
        found = self._profiles.get((job_type, gpus))
        if found is not None:
            return found
        counts = sorted(count for name, count in self._profiles if name == job_type)
        known = (
            f"it was profiled on {', '.join(map(str, counts))} GPUs"
            if counts
            else f"profiled are {', '.join(sorted({name for name, _ in self._profiles}))}"
        )
        raise ThroughputError(f"{self.source}: no profile of {job_type!r} on {gpus} GPUs: {known}")

    @classmethod
    def from_json(cls, path: str | Path) -> SensitivityProfiles:
        """From a file in the form of ``traces/synergy/sensitivity.json``.

        ``cpu_axis`` and ``memory_gib_axis`` for each GPU; ``models`` → ``<job type>_<GPUs>`` →
        ``relative_throughput``. Source: Mohan et al., OSDI 2022, the profiles of its simulator.
        """
        path = Path(path)
        try:
            document: Any = json.loads(read_input(path, ThroughputError))
        except (ValueError, RecursionError) as error:
            raise ThroughputError(f"{path}: not valid JSON: {error}") from error
        try:
            relative = {}
            for key, entry in document["models"].items():
                job_type, _, gpus = key.rpartition("_")
                if not job_type or not gpus.isdecimal():
                    raise ThroughputError(f"{path}: the model {key!r} is not named <job type>_<GPUs>")
                relative[job_type, int(gpus)] = entry["relative_throughput"]
            axes = document["cpu_axis"], document["memory_gib_axis"]
        except (KeyError, TypeError, AttributeError) as error:
            raise ThroughputError(
                f"{path}: not a file of sensitivity profiles ({type(error).__name__}: {error}): it needs cpu_axis, "
                "memory_gib_axis and models, each with relative_throughput"
            ) from error
        return cls(*axes, relative, str(path))


def as_profiles(source: Any) -> SensitivityProfiles:
    """Profiles from profiles, ``"synergy"`` (those that ship) or the path of a JSON file."""
    if isinstance(source, SensitivityProfiles):
        return source
    if source == "synergy":
        from bloxopt.workloads.shipped import data_path

        profiles = SensitivityProfiles.from_json(data_path("synergy/sensitivity.json"))
        profiles.source = "Synergy's profiles"
        return profiles
    if isinstance(source, (str, Path)):
        return SensitivityProfiles.from_json(source)
    raise ThroughputError(
        f"cannot make sensitivity profiles of {type(source).__name__}: give 'synergy', the path of a JSON file or "
        "SensitivityProfiles"
    )


def _axis(source: str, name: str, values: Sequence[float]) -> FloatArray:
    try:
        axis = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        axis = np.zeros(0)
    if axis.ndim != 1 or not len(axis) or not np.isfinite(axis).all() or axis[0] <= 0 or (np.diff(axis) <= 0).any():
        raise ThroughputError(f"{source}: the {name} axis is {values!r}, must be ascending numbers > 0")
    return axis


def _matrix(where: str, rows: Sequence[Sequence[float]], cpus: FloatArray, memory: FloatArray) -> FloatArray:
    try:
        values = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError):
        raise ThroughputError(f"{where}: relative throughputs are {rows!r}, must be rows of equal length") from None
    if values.ndim != 2 or len(values) != len(cpus) or not 1 <= values.shape[1] <= len(memory):
        raise ThroughputError(
            f"{where}: relative throughputs have the shape {values.shape}, must be {len(cpus)} numbers of CPUs by at "
            f"most {len(memory)} memory sizes"
        )
    if not (np.isfinite(values) & (values >= 0)).all():
        raise ThroughputError(
            f"{where}: relative throughputs must be finite numbers >= 0, 0 where nothing was measured"
        )
    if not values.any():
        raise ThroughputError(f"{where}: all relative throughputs are 0, so that nothing was measured")
    return values
