"""MIG: GPUs cut into instances of fixed sizes at fixed places, which a share of a GPU must fit.

A GPU of the A100 or H100 kind has 7 compute and 8 memory slices. An instance takes a run of memory slices that may
start at few places only, so what is free as a sum may be of no use: two 3g instances leave one compute slice and no
memory for it. Source: NVIDIA's MIG user guide, and ``nvidia-smi mig -lgipp``, which lists sizes and starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from bloxopt.cluster import MIG_LABEL, Cluster
from bloxopt.errors import ClusterError
from bloxopt.jobs import BoolArray, IntArray

COMPUTE_SLICES = 7
MEMORY_SLICES = 8


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A size of instance: ``compute`` of 7 slices, ``memory`` of 8, and the memory slices at which it may start."""

    name: str
    compute: int
    memory: int
    starts: tuple[int, ...]

    @property
    def placements(self) -> tuple[int, ...]:
        """Memory slices taken, as a bit mask, at every start."""
        return tuple(((1 << self.memory) - 1) << start for start in self.starts)


def _profiles(slice_gib: int) -> tuple[MigProfile, ...]:
    """The profiles of a GPU whose memory slices have so many GB (nominally)."""
    return (
        MigProfile(f"1g.{slice_gib}gb", 1, 1, (0, 1, 2, 3, 4, 5, 6)),
        MigProfile(f"2g.{2 * slice_gib}gb", 2, 2, (0, 2, 4)),
        MigProfile(f"3g.{4 * slice_gib}gb", 3, 4, (0, 4)),
        MigProfile(f"4g.{4 * slice_gib}gb", 4, 4, (0,)),
        MigProfile(f"7g.{8 * slice_gib}gb", 7, 8, (0,)),
    )


MIG_PROFILES: dict[str, tuple[MigProfile, ...]] = {
    "A100-40GB": _profiles(5),
    "A100-80GB": _profiles(10),
    "H100-80GB": _profiles(10),
}
"""Profiles by GPU model: one for each number of compute slices. The 1g profile with twice the memory and those with
media extensions (``+me``) are not modelled."""


def mig_share(profile: str, model: str | None = None) -> float:
    """``Job.gpu_share`` that asks for a profile such as ``3g.20gb``: its part of 7 compute slices, 3/7 rounded down.

    Rounded down to 1/1000, in which shares are booked, so that seven 1g instances are not more than a GPU. A share
    says how many compute slices a job gets, not on which model: ``model`` (such as ``A100-40GB``) checks that this one
    has the profile, and a node selector ``{"mig": model}`` keeps the job on its nodes. ``1g.10gb`` is the profile
    of the 80 GB models.
    Raises :class:`~bloxopt.errors.ClusterError` for a model that is not known and a profile that it does not have
    (without ``model``: that none has).
    """
    if model is not None and (not isinstance(model, str) or model not in MIG_PROFILES):
        raise ClusterError(f"MIG model is {model!r}, must be one of {', '.join(MIG_PROFILES)}")
    models = MIG_PROFILES if model is None else {model: MIG_PROFILES[model]}
    for profiles in models.values():
        for entry in profiles:
            if entry.name == profile:
                return (1000 * entry.compute // COMPUTE_SLICES) / 1000
    listed = "; ".join(f"{name}: {', '.join(entry.name for entry in entries)}" for name, entries in models.items())
    raise ClusterError(f"{profile!r} is no MIG profile that is modelled: choose one of {listed}")


def label_fault(model: str, gpu_type: str) -> str | None:
    """What is wrong with a node's MIG label, None if nothing: the model must be known, and one of its GPU type.

    An ``A100-40GB`` may be of type A100, A100-40GB or A100-SXM4-40GB; the case does not matter.
    """
    if model not in MIG_PROFILES:
        return f"must be one of {', '.join(MIG_PROFILES)}"
    kind, memory = model.split("-")
    parts = gpu_type.upper().replace("_", "-").split("-")
    if kind in parts and all(part == memory for part in parts if part.endswith("GB")):
        return None
    return f"but its GPUs are {gpu_type}: the label must be the model of these GPUs"


class SliceMap:
    """Memory slices taken on every GPU, as bit masks (GPUs,); on GPUs that are not partitioned always 0."""

    __slots__ = ("partitioned", "taken")

    def __init__(self, partitioned: BoolArray) -> None:
        self.partitioned = partitioned
        self.taken: IntArray = np.zeros(len(partitioned), dtype=np.int64)

    @classmethod
    def of(cls, cluster: Cluster) -> SliceMap | None:
        """The empty map of a cluster, None if no node is partitioned."""
        models = [dict(node.labels).get(MIG_LABEL) if node.labels else None for node in cluster.nodes]
        if not any(models):
            return None
        return cls(np.array([model is not None for model in models])[cluster.gpu_node])

    def copy(self) -> SliceMap:
        other = SliceMap(self.partitioned)
        other.taken = self.taken.copy()
        return other

    def has_room(self, milli: int) -> BoolArray:
        """GPUs with a place for the instance that serves a share, (GPUs,); True where not partitioned."""
        room: BoolArray = _choices(milli)[self.taken] > 0
        return room | ~self.partitioned

    def choose(self, gpu: int, milli: int) -> int:
        """Slices for a share on a GPU with room for it: those that leave most instances possible; 0 if it is whole."""
        return int(_choices(milli)[self.taken[gpu]]) if self.partitioned[gpu] else 0

    def fault(self, gpu: int, milli: int, slices: int) -> str | None:
        """What is wrong with giving a share these slices of a GPU, None if nothing is."""
        if not self.partitioned[gpu]:
            return "is not partitioned" if slices else None
        if slices not in _placements(milli):
            return f"has no instance of the profile for {milli}/1000 on memory slices {slices:08b}"
        return "has some of these memory slices in use" if self.taken[gpu] & slices else None


@cache
def _placements(milli: int) -> tuple[int, ...]:
    """Where the smallest profile that covers a share may be."""
    profiles = MIG_PROFILES["A100-40GB"]
    # A share written as 3/7 is rounded to 429/1000, a little more than the slices have.
    covering = [entry for entry in profiles if entry.compute * 1000 / COMPUTE_SLICES > milli - 1]
    return min(covering, key=lambda entry: (entry.compute, entry.memory)).placements


@cache
def _choices(milli: int) -> IntArray:
    """For every set of taken slices the placement that leaves most instances possible, 0 if none is: (256,)."""
    everything = [place for entry in MIG_PROFILES["A100-40GB"] for place in entry.placements]
    choices = np.zeros(1 << MEMORY_SLICES, dtype=np.int64)
    for taken in range(len(choices)):
        free = [place for place in _placements(milli) if not place & taken]
        choices[taken] = max(
            free, key=lambda place: (sum(not other & (taken | place) for other in everything), place), default=0
        )
    choices.setflags(write=False)
    return choices
