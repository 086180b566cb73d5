"""Which configurations a job may be given now: growth step by step, and sizes that pack onto nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.checks import checked_amount, checked_flag
from bloxopt.formulations.constraints.base import Constraint
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import BoolArray, FloatArray


class _Closed(Constraint):
    """Base of blocks that close columns: the time shares of those are 0."""

    def closed(self, space: AllocationSpace) -> BoolArray:
        """Columns that no job may use now, (num_columns,)."""
        raise NotImplementedError

    def build(self, space: AllocationSpace, program: Program) -> None:
        columns = self.closed(space).nonzero()[0]
        if len(columns):
            program.restrict(columns, 0.0, 0.0)

    def violations(self, space: AllocationSpace, x: FloatArray) -> FloatArray:
        return np.abs(x[self.closed(space)])

    def labels(self, space: AllocationSpace) -> Sequence[str]:
        columns = self.closed(space).nonzero()[0]
        types = np.asarray(space.gpu_types, dtype=object)[space.gpu_type[columns]]
        jobs, gpus = space.job_ids[space.job[columns]], space.num_gpus[columns]
        return [f"{job} on {count} x {kind}" for job, count, kind in zip(jobs, gpus, types, strict=True)]


@dataclass(frozen=True)
class ScaleUpLimit(_Closed):
    """A job gets at most ``factor`` times the GPUs it has run on so far, and its fewest to begin with.

    With ``by_type`` (Sia, SOSP 2023) each GPU type counts on its own, since what is known of one says little of
    another; otherwise all together (Pollux, OSDI 2021). Rigid jobs are not concerned.
    """

    factor: float = 2.0
    by_type: bool = False
    name: str | None = field(default=None, kw_only=True)
    progress_dependent = True

    def __post_init__(self) -> None:
        checked_amount("ScaleUpLimit", "factor", self.factor, 1.0)
        checked_flag("ScaleUpLimit", "by_type", self.by_type)

    def closed(self, space: AllocationSpace) -> BoolArray:
        place = space.job * len(space.gpu_types) + space.gpu_type
        fewest = np.full(space.num_jobs * len(space.gpu_types), np.iinfo(np.int64).max)
        np.minimum.at(fewest, place, space.num_gpus)
        most = self.factor * self._seen(space)
        if not self.by_type:
            most = np.repeat(most.max(axis=1, keepdims=True), len(space.gpu_types), axis=1)
        closed: BoolArray = space.num_gpus > np.maximum(most.ravel(), fewest)[place]
        return closed

    def _seen(self, space: AllocationSpace) -> FloatArray:
        """Most GPUs of each type that every job has run on, now included, (num_jobs, types)."""
        seen = np.zeros((space.num_jobs, len(space.gpu_types)))
        for kind, name in enumerate(space.gpu_types):
            memory = space.ledger.memory(f"scale_up_limit.{name}")
            on_type = np.where(space.current_gpu_type == kind, space.current_num_gpus, 0)
            seen[:, kind] = np.maximum(memory[space.index], on_type)
            memory[space.index] = seen[:, kind]
        return seen


@dataclass(frozen=True)
class NodeShapes(_Closed):
    """Elastic jobs take sizes that fill nodes without gaps: within a node, or a number of whole nodes.

    ``within`` a node: ``"powers_of_two"`` (Sia, SOSP 2023) or ``"any"`` number of its GPUs. A node is the largest of
    the GPU type. Jobs to whose range no such size belongs keep all of theirs.
    """

    within: str = "powers_of_two"
    name: str | None = field(default=None, kw_only=True)
    progress_dependent = False

    def __post_init__(self) -> None:
        if self.within not in ("powers_of_two", "any"):
            raise FormulationError(f"NodeShapes: within is {self.within!r}, must be 'powers_of_two' or 'any'")

    def closed(self, space: AllocationSpace) -> BoolArray:
        cluster = space.cluster
        size = np.array([cluster.node_gpus[cluster.node_gpu_type == k].max() for k in range(len(space.gpu_types))])
        gpus, node = space.num_gpus, size[space.gpu_type]
        shaped = (gpus & (gpus - 1)) == 0 if self.within == "powers_of_two" else np.ones(len(gpus), dtype=bool)
        large = np.flatnonzero(gpus >= node)
        shaped[large] = gpus[large] % node[large] == 0
        able = np.bincount(space.job[shaped], minlength=space.num_jobs) > 0
        closed: BoolArray = ~shaped & able[space.job]
        return closed
