"""No assignment can be built that oversubscribes a GPU, CPUs or memory, splits a gang or breaks a job's needs.

Random clusters, jobs, failures and strategies. A case is one change of an assignment: jobs stop, nodes fail and come
back, a strategy places jobs, and the grants it found are passed on as they are or corrupted. An oracle that adds
everything up anew says whether the result is possible: the change must succeed exactly if it is.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

import bloxopt as bx
from bloxopt.errors import CheckError
from bloxopt.needs import NO_NEEDS, PlacementNeeds
from bloxopt.placement import PLACEMENTS, get_placement
from bloxopt.placement.rules import Rules
from bloxopt.placement.workspace import Workspace
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.resources import Grant

CASES_PER_WORLD = 250
WHOLE_ROUNDS = {"exact"}
STRATEGIES = [name for name in PLACEMENTS if name not in WHOLE_ROUNDS]


def random_cluster(rng: random.Random) -> bx.Cluster:
    nodes = []
    for number in range(rng.randint(1, 7)):
        gpus = rng.choice([1, 2, 4, 4, 8])
        nodes.append(
            bx.Node(
                name=f"n{number}",
                gpu_type=rng.choice(["A", "A", "B"]),
                num_gpus=gpus,
                cpus=rng.choice([None, 4.0 * gpus, 8.0 * gpus]),
                memory_gib=rng.choice([None, 16.0 * gpus, 64.0 * gpus]),
                rack=f"rack-{number % 3}",
            )
        )
    return bx.Cluster(tuple(nodes))


def random_jobs(rng: random.Random) -> bx.JobTable:
    jobs = []
    for number in range(rng.randint(4, 24)):
        share = rng.choice([1.0, 1.0, 1.0, 0.5, 0.25, 0.3, 0.001, 0.999])
        gpus = 1 if share < 1 else rng.choice([1, 1, 2, 3, 4, 8])
        elastic = share == 1 and rng.random() < 0.2
        needs = [
            PlacementNeeds(exclusive_node=True),
            PlacementNeeds(anti_affinity="replicas"),
            PlacementNeeds(max_nodes=1),
            PlacementNeeds(same_rack="required"),
        ]
        jobs.append(
            bx.Job(
                job_id=f"j{number}",
                duration=1.0,
                job_type=rng.choice(["vgg16", "resnet50"]),
                num_gpus=gpus,
                max_gpus=2 * gpus if elastic else None,
                gpu_share=share,
                cpus_per_gpu=rng.choice([0.0, 1.0, 3.3, 8.0]),
                memory_gib_per_gpu=rng.choice([0.0, 8.0, 33.3]),
                needs=rng.choice(needs) if rng.random() < 0.15 else NO_NEEDS,
            )
        )
    return bx.JobTable.from_jobs(jobs)


class World:
    """One cluster, its jobs as plain objects, and what the oracle needs to know of them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.cluster = random_cluster(rng)
        self.jobs = random_jobs(rng)
        self.rules = Rules.of(self.cluster, self.jobs)
        self.job = list(self.jobs)
        self.host = [n for n, node in enumerate(self.cluster.nodes) for _ in range(node.num_gpus)]
        self.up = np.ones(len(self.cluster.nodes), dtype=bool)
        self.strategies = {name: get_placement(name) for name in STRATEGIES}

    def grant_is_sound(self, row: int, grant: Grant) -> bool:
        """One gang, whole, of the job's size and share, of one GPU type, where it says it is."""
        job, nodes = self.job[row], self.cluster.nodes
        low, high = job.gpu_range
        if not low <= len(grant.gpus) <= high or len(set(grant.gpus)) != len(grant.gpus):
            return False
        if grant.milli != round(job.gpu_share * 1000) or grant.slices:
            return False
        if any(nodes[self.host[gpu]].gpu_type != self.cluster.gpu_types[grant.gpu_type] for gpu in grant.gpus):
            return False
        told = [node for node, count in zip(grant.nodes, grant.counts, strict=True) for _ in range(count)]
        return told == [self.host[gpu] for gpu in grant.gpus] and len(set(grant.nodes)) == len(grant.nodes)

    def fits(self, grants: dict[int, Grant]) -> bool:
        """All grants together within every GPU, CPU and GiB, and within each other's needs."""
        milli = [0] * len(self.host)
        cpus = [0.0] * len(self.cluster.nodes)
        memory = [0.0] * len(self.cluster.nodes)
        company: list[list[int]] = [[] for _ in self.cluster.nodes]
        for row, grant in grants.items():
            for gpu in grant.gpus:
                milli[gpu] += grant.milli
                cpus[self.host[gpu]] += self.job[row].cpus_per_gpu
                memory[self.host[gpu]] += self.job[row].memory_gib_per_gpu
            for node in {self.host[gpu] for gpu in grant.gpus}:
                company[node].append(row)
        if max(milli) > 1000:
            return False
        for number, node in enumerate(self.cluster.nodes):
            if node.cpus is not None and cpus[number] > node.cpus + 1e-6:
                return False
            if node.memory_gib is not None and memory[number] > node.memory_gib + 1e-6:
                return False
            here = [self.job[row].needs for row in company[number]]
            if len(here) > 1 and any(needs.exclusive_node for needs in here):
                return False
            if sum(needs.anti_affinity == "replicas" for needs in here) > 1:
                return False
        return True

    def corrupt(self, row: int, grant: Grant) -> Grant:
        """The grant with something changed; the result may be sound by chance."""
        rng, gpus = self.rng, list(grant.gpus)
        anywhere = rng.randrange(len(self.host))
        kind = rng.randrange(9)
        if kind == 0:
            gpus[rng.randrange(len(gpus))] = anywhere
        elif kind == 1:
            gpus.append(anywhere)
        elif kind == 2 and len(gpus) > 1:
            gpus.pop()
        elif kind == 3:
            return grant._replace(milli=rng.choice([1000, 500, grant.milli - 1, 1, 0, -500]))
        elif kind == 4:
            return grant._replace(nodes=(*grant.nodes[:-1], rng.randrange(len(self.cluster.nodes))))
        elif kind == 5:
            return grant._replace(gpu_type=rng.randrange(len(self.cluster.gpu_types)))
        elif kind == 6:
            return grant._replace(counts=tuple(reversed(grant.counts)), nodes=tuple(reversed(grant.nodes)))
        elif kind == 7:
            gpus = rng.sample(range(len(self.host)), min(len(gpus), len(self.host)))
        else:
            return grant._replace(slices=rng.randrange(1, 256))
        gpus.sort()
        nodes = list(dict.fromkeys(self.host[gpu] for gpu in gpus))
        counts = tuple(sum(self.host[gpu] == node for gpu in gpus) for node in nodes)
        return grant._replace(gpus=tuple(gpus), nodes=tuple(nodes), counts=counts)

    def step(self, assignment: Assignment) -> tuple[Assignment, bool]:
        """One case: the assignment after it, and whether a change was refused."""
        rng = self.rng
        if rng.random() < 0.1:
            self.up = self.up.copy()
            node = rng.randrange(len(self.up))
            self.up[node] = not self.up[node]
        failed = [row for row, grant in assignment.items() if not all(self.up[node] for node in grant.nodes)]
        stop = sorted({*failed, *(row for row in assignment if rng.random() < 0.2)})
        strategy = self.strategies[rng.choice(STRATEGIES)]
        workspace = Workspace(assignment, self.cluster, self.jobs, self.up, strategy, self.rules)
        for row in stop:
            workspace.give_back(row, assignment[row])
        start: dict[int, Grant] = {}
        idle = [row for row in range(len(self.job)) if row not in assignment or row in stop]
        for row in rng.sample(idle, min(len(idle), 3)):
            low, high = self.job[row].gpu_range
            grant = workspace.find(row, rng.randrange(len(self.cluster.gpu_types)), rng.randint(low, high))
            if grant is not None:
                assert self.grant_is_sound(row, grant), grant
                assert all(self.up[node] for node in grant.nodes), "a strategy used a node that is down"
                workspace.take(row, grant)
                start[row] = grant
        kept = {row: grant for row, grant in assignment.items() if row not in stop}
        assert self.fits(kept | start), "a strategy took more than there is"
        if start and rng.random() < 0.6:
            row = rng.choice(list(start))
            start[row] = self.corrupt(row, start[row])
        sound = all(self.grant_is_sound(row, grant) for row, grant in start.items()) and self.fits(kept | start)
        try:
            after = assignment.change(stop, start)
        except CheckError:
            assert not sound, f"refused {start}"
            return assignment.change(stop, {}), True
        assert sound, f"accepted {start} beside {kept}"
        assert dict(after) == kept | start
        return after, False


def run(cases: int, seed: int) -> None:
    rng = random.Random(seed)
    refused = placed = 0
    for _ in range(cases // CASES_PER_WORLD):
        world = World(rng)
        assignment = Assignment(world.cluster, world.jobs)
        for _ in range(CASES_PER_WORLD):
            assignment, was_refused = world.step(assignment)
            refused += was_refused
            placed += len(assignment) > 0
        # Booked thousands of times over, what is free is still what an empty cluster less the grants has.
        fresh = Assignment(world.cluster, world.jobs).change([], dict(assignment)).free
        assert (assignment.free.milli == fresh.milli).all()
        assert (assignment.free.gpus == fresh.gpus).all()
        assert (assignment.free.jobs == fresh.jobs).all()
        if fresh.cpus is not None and fresh.memory_gib is not None:
            assert np.allclose(assignment.free.cpus, fresh.cpus)
            assert np.allclose(assignment.free.memory_gib, fresh.memory_gib)
    # The cases must be of both kinds, or nothing was tested.
    assert refused > cases / 10
    assert placed > cases / 2


def test_ten_thousand_random_changes() -> None:
    run(10_000, seed=0)


@pytest.mark.slow
def test_a_hundred_thousand_random_changes() -> None:
    run(100_000, seed=1)
