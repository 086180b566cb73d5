"""Placement by the steepest descent of fragmentation (FGD): every task goes where it spoils the least for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bloxopt.arguments import checked_arguments
from bloxopt.jobs import BoolArray, FloatArray, IntArray
from bloxopt.placement.fewest_nodes import fewest_nodes
from bloxopt.placement.fragmentation import TargetWorkload
from bloxopt.placement.strategy import Found, Offer
from bloxopt.runtime.resources import WHOLE_GPU, Resources

if TYPE_CHECKING:
    from bloxopt.placement.workspace import Workspace

Task = tuple[int, int, float, float]
"""Thousandths of each GPU, GPUs, CPUs and GiB of memory of the whole task."""

_MOST_STATES = 100_000
_NOT_WORKED_OUT = np.nan


class FragmentationGradient:
    """The node and GPU on which the expected fragmentation grows least (FGD); ties go to the first node.

    ``workload`` is what is expected to come (default: the job mix of the trace itself). What a task does to a node
    depends only on what is free there, so it is worked out once for each state in which nodes are and each kind of
    task, and a round looks only at nodes that changed. A gang that fits no node takes the emptiest ones whole
    and the best one for the rest. Lives for one run. Source: Weng et al., "Beware of Fragmentation", ATC 2023.
    Raises :class:`~bloxopt.errors.InputError` for a workload made for other GPU types than the cluster has.
    """

    @checked_arguments()
    def __init__(self, workload: TargetWorkload | None = None) -> None:
        self.workload = workload
        self._memory: _NodeStates | None = None

    def __call__(self, offer: Offer, need: int) -> Found | None:
        available = offer.available
        workspace, row = offer.workspace, offer.row
        memory = self._memory
        if memory is None or not memory.belongs_to(workspace):
            workload = self.workload or TargetWorkload.of(workspace.jobs, workspace.cluster, workspace.runs_on)
            workload.check_cluster(workspace.cluster)
            memory = self._memory = _NodeStates(workspace, workload)
        memory.look_at(workspace.free)
        jobs = workspace.jobs
        milli, cpus, memory_gib = jobs.gpu_milli[row], jobs.cpus_per_gpu[row], jobs.memory_gib_per_gpu[row]

        level: FloatArray = np.zeros(0)

        def choose(fits: BoolArray, rest: int) -> int:
            nonlocal level
            growth, level = memory.growth((milli, rest, float(rest * cpus), float(rest * memory_gib)))
            return int(np.where(fits, growth, np.inf).argmin())

        found = fewest_nodes(available, need, choose)
        if found is None or milli == WHOLE_GPU:
            return found
        node = found.nodes[0]
        first = int(workspace.cluster.gpu_offset[node])
        gpus = slice(first, first + int(workspace.cluster.node_gpus[node]))
        best = workspace.free.milli[gpus] == level[memory.state[node]]
        if workspace.free.slices is not None:
            # The measure knows sums, not places: of partitioned GPUs another one may have to do.
            best &= workspace.able_gpus(milli)[gpus]
            if not best.any():
                return found
        return Found(found.nodes, found.counts, (first + int(best.argmax()),))


class _NodeStates:
    """The states in which nodes were seen, numbered, and the growth of fragmentation by task and state.

    A state is what is free: GPUs in rising order, CPUs, memory, and the GPU type.
    """

    def __init__(self, workspace: Workspace, workload: TargetWorkload) -> None:
        cluster = workspace.cluster
        self._cluster = cluster
        self._jobs = workspace.jobs
        self._workload = workload
        nodes = len(cluster.nodes)
        self._first: list[int] = cluster.gpu_offset.tolist()
        self._widest = int(cluster.node_gpus.max())
        self._kind: list[int] = cluster.node_gpu_type.tolist()
        self._milli: IntArray = np.full(cluster.num_gpus, -1, dtype=np.int64)
        self._cpus: FloatArray = np.full(nodes, np.inf)
        self._memory_gib: FloatArray = np.full(nodes, np.inf)
        self._free: Resources | None = None
        self._seen = 0
        self.state: IntArray = np.zeros(nodes, dtype=np.int64)
        self._forget()

    def _forget(self) -> None:
        self._number: dict[tuple[float, ...], int] = {}
        self._rows: FloatArray = np.zeros((64, self._widest + 3))
        self._known: dict[Task, tuple[FloatArray, FloatArray]] = {}

    def belongs_to(self, workspace: Workspace) -> bool:
        return workspace.cluster is self._cluster and workspace.jobs is self._jobs

    def look_at(self, free: Resources) -> None:
        """Find the state of every node that changed since the last look."""
        nodes = self._changed(free)
        if len(self._number) > _MOST_STATES:
            self._forget()
            nodes = list(range(len(self.state)))
        for node in nodes:
            key = self._describe(node)
            number = self._number.get(key)
            if number is None:
                number = self._number[key] = len(self._number)
                if number == len(self._rows):
                    self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
                self._rows[number, -len(key) :] = key
            self.state[node] = number

    def _describe(self, node: int) -> tuple[float, ...]:
        """The state of a node: GPUs in rising order, CPUs, memory, GPU type."""
        gpus = sorted(self._milli[self._first[node] : self._first[node + 1]].tolist())
        # Booked and given back, CPUs may come back with rounding errors, which would make new states.
        return (*gpus, round(self._cpus[node].item(), 6), round(self._memory_gib[node].item(), 6), self._kind[node])

    def _changed(self, free: Resources) -> list[int]:
        """Nodes on which something changed since the last look, after noting what is free there now."""
        if free is self._free:
            nodes = list(dict.fromkeys(free.touched[self._seen :]))
            for node in nodes:
                gpus = slice(self._first[node], self._first[node + 1])
                self._milli[gpus] = free.milli[gpus]
                if free.cpus is not None and free.memory_gib is not None:
                    self._cpus[node] = free.cpus[node]
                    self._memory_gib[node] = free.memory_gib[node]
        else:
            moved = (free.milli != self._milli).nonzero()[0]
            self._milli[moved] = free.milli[moved]
            changed = [free.node_of[moved]]
            for known, now in ((self._cpus, free.cpus), (self._memory_gib, free.memory_gib)):
                if now is not None:
                    moved = (now != known).nonzero()[0]
                    known[moved] = now[moved]
                    changed.append(moved)
            nodes = np.unique(np.concatenate(changed)).tolist()
        self._free, self._seen = free, len(free.touched)
        return nodes

    def growth(self, task: Task) -> tuple[FloatArray, FloatArray]:
        """By how many thousandths fragmentation grows if a node takes a task, (nodes,); meaningless where it cannot.

        And the GPU that it takes, as what is free on that, by state: for a task with part of a GPU.
        """
        known = self._known.get(task)
        if known is None or len(known[0]) < len(self._rows):
            growth, level = np.full((2, len(self._rows)), _NOT_WORKED_OUT)
            if known is not None:
                growth[: len(known[0])], level[: len(known[1])] = known
            known = self._known[task] = (growth, level)
        growth, level = known
        at_nodes = growth[self.state]
        unknown = np.isnan(at_nodes)
        if unknown.any():
            missing = states = self.state[unknown]
            if len(missing) > 1:
                states = np.unique(missing)
            growth[states], level[states] = self._work_out(task, self._rows[states])
            at_nodes[unknown] = growth[missing]
        return at_nodes, level

    def _work_out(self, task: Task, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Growth and GPU level of a task on states, one row each."""
        milli, count, cpus, memory_gib = task
        workload = self._workload
        gpus = rows[:, :-3]
        # Before and after in one go: the same GPU types, once with all that is free and once without what is taken.
        host = np.concatenate([rows[:, -3:], rows[:, -3:] - (cpus, memory_gib, 0.0)])
        weights = workload.class_weights(host[:, 0], host[:, 1], host[:, 2].astype(np.int64))
        usable = workload.usable(gpus)
        together = usable.sum(axis=1)
        before = workload.value(together, weights[: len(rows)])
        weights = weights[len(rows) :]
        if milli == WHOLE_GPU:
            after = workload.value(together - WHOLE_GPU * count, weights)
            return (before - after - WHOLE_GPU * count).round(6), np.full(len(rows), float(WHOLE_GPU))
        left = gpus - milli
        after = workload.value(together[:, None, :] - usable + workload.usable(left), weights[:, None, :])
        growth = np.where(left >= 0, (before[:, None] - after - milli).round(6), np.inf)
        # GPUs come in rising order, so that of equal ones it is the fullest.
        best = growth.argmin(axis=1)
        every = np.arange(len(rows))
        return growth[every, best], gpus[every, best]
