"""Placement by the steepest descent of fragmentation (FGD): every task goes where it spoils the least for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bloxopt.jobs import FloatArray, IntArray
from bloxopt.placement.fewest_nodes import fewest_nodes
from bloxopt.placement.fragmentation import TargetWorkload
from bloxopt.placement.strategy import Found, Offer
from bloxopt.runtime.resources import WHOLE_GPU

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
    """

    def __init__(self, workload: TargetWorkload | None = None) -> None:
        self.workload = workload
        self._memory: _NodeStates | None = None

    def __call__(self, offer: Offer, need: int) -> Found | None:
        available = offer.available
        if not available.any():
            return None
        workspace, row = offer.workspace, offer.row
        memory = self._memory
        if memory is None or not memory.belongs_to(workspace):
            workload = self.workload or TargetWorkload.of(workspace.jobs, workspace.cluster, workspace.runs_on)
            memory = self._memory = _NodeStates(workspace, workload)
        memory.look_at(workspace)
        jobs = workspace.jobs
        milli, cpus, memory_gib = jobs.gpu_milli[row], jobs.cpus_per_gpu[row], jobs.memory_gib_per_gpu[row]

        def choose(fits: np.ndarray[tuple[int], np.dtype[np.bool_]], rest: int) -> int:
            growth, _ = memory.growth((milli, rest, float(rest * cpus), float(rest * memory_gib)))
            return int(np.where(fits, growth, np.inf).argmin())

        found = fewest_nodes(available, need, choose)
        if found is None or milli == WHOLE_GPU:
            return found
        node = found.nodes[0]
        _, level = memory.growth((milli, 1, float(cpus), float(memory_gib)))
        first = int(workspace.cluster.gpu_offset[node])
        gpus = workspace.free.milli[first : first + int(workspace.cluster.node_gpus[node])]
        return Found(found.nodes, found.counts, (first + int((gpus == level[node]).argmax()),))


class _NodeStates:
    """The states in which nodes were seen, numbered, and the growth of fragmentation by task and state.

    A state is what is free: GPUs in falling order, CPUs, memory, and the GPU type.
    """

    def __init__(self, workspace: Workspace, workload: TargetWorkload) -> None:
        cluster = workspace.cluster
        self._cluster = cluster
        self._jobs = workspace.jobs
        self._workload = workload
        nodes = len(cluster.nodes)
        local = np.arange(int(cluster.node_gpus.max()))
        # A slot past the last GPU stands for those that a node lacks.
        self._slots: IntArray = np.where(
            local < cluster.node_gpus[:, None], cluster.gpu_offset[:-1, None] + local, cluster.num_gpus
        )
        self._milli: IntArray = np.full(cluster.num_gpus, -1, dtype=np.int64)
        unlimited = np.full(nodes, np.inf)
        self._cpus: FloatArray = unlimited
        self._memory_gib: FloatArray = unlimited.copy()
        self.state: IntArray = np.zeros(nodes, dtype=np.int64)
        self._forget()

    def _forget(self) -> None:
        self._number: dict[bytes, int] = {}
        self._rows: FloatArray = np.zeros((0, self._slots.shape[1] + 3))
        self._known: dict[Task, tuple[FloatArray, FloatArray]] = {}

    def belongs_to(self, workspace: Workspace) -> bool:
        return workspace.cluster is self._cluster and workspace.jobs is self._jobs

    def look_at(self, workspace: Workspace) -> None:
        """Find the state of every node that changed since the last look."""
        free = workspace.free
        changed = free.milli != self._milli
        nodes = self._cluster.gpu_node[changed]
        self._milli[changed] = free.milli[changed]
        for seen, now in ((self._cpus, free.cpus), (self._memory_gib, free.memory_gib)):
            if now is not None:
                moved = (now != seen).nonzero()[0]
                seen[moved] = now[moved]
                nodes = np.concatenate([nodes, moved])
        if not len(nodes):
            return
        nodes = np.unique(nodes)
        if len(self._number) > _MOST_STATES:
            self._forget()
            nodes = np.arange(len(self.state))
        rows = self._describe(nodes)
        numbers, fresh = [], []
        for position, key in enumerate(row.tobytes() for row in rows):
            number = self._number.get(key)
            if number is None:
                number = self._number[key] = len(self._number)
                fresh.append(position)
            numbers.append(number)
        self.state[nodes] = numbers
        if fresh:
            self._rows = np.concatenate([self._rows, rows[fresh]])

    def _describe(self, nodes: IntArray) -> FloatArray:
        """The state of nodes, one row each: GPUs, CPUs, memory, GPU type."""
        gpus = np.append(self._milli, 0)[self._slots[nodes]]
        gpus.sort(axis=1)
        rows = np.empty((len(nodes), gpus.shape[1] + 3))
        rows[:, :-3] = gpus[:, ::-1]
        # Booked and given back, CPUs may come back with rounding errors, which would make new states.
        rows[:, -3] = np.round(self._cpus[nodes], 6) + 0.0
        rows[:, -2] = np.round(self._memory_gib[nodes], 6) + 0.0
        rows[:, -1] = self._cluster.node_gpu_type[nodes]
        return rows

    def growth(self, task: Task) -> tuple[FloatArray, FloatArray]:
        """By how many thousandths fragmentation grows if a node takes a task, and the free GPU it takes; (nodes,).

        The GPU is given by what is free on it, for a task with part of one. Meaningless where the task does not fit.
        """
        known = self._known.get(task)
        count = len(self._number)
        if known is None or len(known[0]) < count:
            old = 0 if known is None else len(known[0])
            # Twice the room, so that growing by one state at a time costs little.
            blank = np.full(2 * count - old, _NOT_WORKED_OUT)
            known = (blank, blank.copy()) if known is None else tuple(np.concatenate([part, blank]) for part in known)  # type: ignore[assignment]
            assert known is not None
            self._known[task] = known
        growth, level = known
        at_nodes = growth[self.state]
        unknown = np.isnan(at_nodes)
        if unknown.any():
            states = np.unique(self.state[unknown])
            growth[states], level[states] = self._work_out(task, self._rows[states])
            at_nodes = growth[self.state]
        return at_nodes, level[self.state]

    def _work_out(self, task: Task, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Growth and GPU level of a task on states, one row each."""
        milli, count, cpus, memory_gib = task
        workload = self._workload
        gpus = rows[:, :-3].astype(np.int64)
        kind = rows[:, -1].astype(np.int64)
        usable = workload.usable(gpus)
        before = workload.value(usable, workload.class_weights(rows[:, -3], rows[:, -2], kind))
        weights = workload.class_weights(rows[:, -3] - cpus, rows[:, -2] - memory_gib, kind)
        if milli == WHOLE_GPU:
            after = workload.value(usable - WHOLE_GPU * count, weights)
            return np.round(before - after - WHOLE_GPU * count, 6), np.full(len(rows), float(WHOLE_GPU))
        least = workload.least
        left = gpus - milli
        gained = np.where(left[:, :, None] >= least, left[:, :, None], 0)
        lost = np.where(gpus[:, :, None] >= least, gpus[:, :, None], 0)
        after = workload.value(usable[:, None, :] - lost + gained, weights[:, None, :])
        growth = np.where(left >= 0, np.round(before[:, None] - after - milli, 6), np.inf)
        # Of equal GPUs the fullest: the last one in falling order.
        best = growth.shape[1] - 1 - growth[:, ::-1].argmin(axis=1)
        every = np.arange(len(rows))
        return growth[every, best], gpus[every, best].astype(np.float64)
