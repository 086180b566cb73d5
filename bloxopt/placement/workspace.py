"""The free resources while a round is being placed: a scratch copy that jobs take from and give back to."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from bloxopt.cluster import Cluster
from bloxopt.jobs import BoolArray, FloatArray, IntArray, JobTable
from bloxopt.placement.strategy import Found, Offer, Strategy
from bloxopt.placement.user_strategy import trusted
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.resources import WHOLE_GPU, Grant, Resources

if TYPE_CHECKING:
    from bloxopt.placement.rules import Rules


class Workspace:
    """Free GPUs (CPUs, memory) of an assignment, counting only nodes that are up.

    ``find`` looks for a gang's GPUs without taking them; ``take`` and ``give_back`` book grants. ``rules`` are the
    placement constraints, None if there are none. ``runs_on`` (jobs, types): GPU types on which each job makes
    progress, None where that is not known.
    """

    def __init__(
        self,
        assignment: Assignment,
        cluster: Cluster,
        jobs: JobTable,
        node_up: BoolArray,
        strategy: Strategy,
        rules: Rules | None = None,
        runs_on: BoolArray | None = None,
    ) -> None:
        self.cluster = cluster
        self.jobs = jobs
        self.free: Resources = assignment.free.copy()
        self.rules = rules
        self.runs_on = runs_on
        self._strategy = trusted(strategy)
        self._found_no_place: set[tuple[float, ...]] = set()
        uniform = len(cluster.gpu_types) == 1 and bool(node_up.all())
        self._usable: list[BoolArray] | None = (
            None
            if uniform
            else [np.equal(cluster.node_gpu_type, kind) & node_up for kind in range(len(cluster.gpu_types))]
        )

    def find(self, row: int, gpu_type: int, need: int, beside: int | None = None) -> Grant | None:
        """GPUs for a gang of ``need``, None if the strategy finds none.

        ``beside``: another job that is to share them; there are CPUs and memory for both then.
        """
        available = self._available(row, gpu_type, beside)
        if int(available.sum()) < need:
            return None
        offer = Offer(available, row, gpu_type, self)
        if self.rules is None:
            found = self._strategy(offer, need)
        else:
            # Searches under rules are dear, and what found no place finds none while jobs only take.
            jobs = self.jobs
            shape = (gpu_type, need, *(int(code[row]) for code in (jobs.needs, jobs.tenant, jobs.job_type)))
            host = (_host_need(jobs.cpus_per_gpu, row, beside), _host_need(jobs.memory_gib_per_gpu, row, beside))
            asked = (*shape, jobs.gpu_milli[row], *host)
            if asked in self._found_no_place:
                return None
            found = self.rules.search(self._strategy, offer, need)
            if found is None:
                self._found_no_place.add(asked)
        return None if found is None else self.grant(row, gpu_type, found)

    def grant(self, row: int, gpu_type: int, found: Found) -> Grant:
        """The grant of job ``row`` on nodes found for it, with free GPUs picked where the search left them open."""
        nodes, counts, gpus = Found(*found)
        milli = self.jobs.gpu_milli[row]
        gpus = self._pick(nodes, counts, milli) if gpus is None else gpus
        parts = self.free.slices
        slices = 0 if parts is None or milli == WHOLE_GPU else parts.choose(gpus[0], milli)
        return Grant(gpu_type, nodes, counts, gpus, milli, slices)

    @property
    def strategy(self) -> Strategy:
        """How a gang's nodes are found."""
        return self._strategy

    def usable(self, gpu_type: int) -> BoolArray:
        """Nodes of a type that are up, (nodes,)."""
        return np.equal(self.cluster.node_gpu_type, gpu_type) if self._usable is None else self._usable[gpu_type]

    def over(self, assignment: Assignment, strategy: Strategy) -> Workspace:
        """The same nodes and rules with another strategy and the free resources of another assignment."""
        other = copy(self)
        other.free = assignment.free.copy()
        other._strategy = strategy
        other._found_no_place = set()
        return other

    def take(self, row: int, grant: Grant) -> None:
        self.free.take(row, grant)

    def give_back(self, row: int, grant: Grant) -> None:
        self.free.give_back(row, grant)
        self._found_no_place.clear()

    def has_host_room(self, nodes: tuple[int, ...], counts: tuple[int, ...], rows: tuple[int, ...]) -> bool:
        """Whether nodes have CPUs and memory for each of the jobs ``rows`` on ``counts`` GPUs of theirs."""
        at, held, who = list(nodes), np.array(counts), list(rows)
        stocks = ((self.free.cpus, self.jobs.cpus_per_gpu), (self.free.memory_gib, self.jobs.memory_gib_per_gpu))
        return all(stock is None or bool((stock[at] + 1e-6 >= held * need[who].sum()).all()) for stock, need in stocks)

    def _available(self, row: int, gpu_type: int, beside: int | None = None) -> IntArray:
        """GPUs of a type on each node that job ``row`` could use, (nodes,)."""
        jobs, left = self.jobs, self.free
        free = left.gpus if jobs.gpu_milli[row] == WHOLE_GPU else self._shareable(row)
        if self._usable is not None:
            free = free * self._usable[gpu_type]
        for stock, need in ((left.cpus, jobs.cpus_per_gpu), (left.memory_gib, jobs.memory_gib_per_gpu)):
            if stock is not None and (each := _host_need(need, row, beside)) > 0:
                # Towards zero: a stock that rounding left just below nothing serves no GPU.
                free = np.minimum(stock / each + 1e-9, free).astype(np.int64)
        return free

    def _shareable(self, row: int) -> IntArray:
        """GPUs of each node with enough left for a job that asks for part of one."""
        return np.add.reduceat(self.able_gpus(self.jobs.gpu_milli[row]).astype(np.int64), self.cluster.gpu_offset[:-1])

    def able_gpus(self, milli: int) -> BoolArray:
        """GPUs with so many thousandths free, and on partitioned ones a place for the instance: (GPUs,)."""
        able = self.free.milli >= milli
        parts = self.free.slices
        return able if parts is None or milli == WHOLE_GPU else able & parts.has_room(milli)

    def _pick(self, nodes: tuple[int, ...], counts: tuple[int, ...], milli: int) -> tuple[int, ...]:
        """The first whole GPUs free on each node; for a share the fullest GPU that still has room."""
        offset = self.cluster.gpu_offset
        gpus: list[int] = []
        for node, count in zip(nodes, counts, strict=True):
            left = self.free.milli[offset[node] : offset[node + 1]]
            able = left >= milli
            if self.free.slices is not None:
                able &= self.able_gpus(milli)[offset[node] : offset[node + 1]]
            order = able.nonzero()[0]
            if milli < WHOLE_GPU:
                order = order[np.argsort(left[order], kind="stable")]
            gpus.extend((order[:count] + offset[node]).tolist())
        return tuple(gpus)


def _host_need(need: FloatArray, row: int, beside: int | None) -> float:
    """CPUs or memory per GPU of a job and, if there is one, of the job beside it."""
    return float(need[row]) if beside is None else float(need[row] + need[beside])
