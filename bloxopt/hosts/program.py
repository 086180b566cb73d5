"""The program of Synergy-OPT: the CPUs and memory of all jobs of a round together, as one integer program.

Jobs that nothing tells apart form a group g. With y[g,k] jobs at configuration k (c_k CPUs and m_k GiB for each GPU,
relative throughput w_k), and z[g,k,n] pieces of u_g GPUs at k on node n:

    max Σ_g,k w_k y[g,k]                                      total throughput, each job's relative to its reference
    Σ_k y[g,k] = jobs in g                                    every job runs
    Σ_n u_g z[g,k,n] = s_g y[g,k]                             on as many GPUs as it has
    Σ_g,k u_g z[g,k,n] ≤ GPUs_n,  Σ c_k u_g z ≤ CPUs_n,  Σ m_k u_g z ≤ GiB_n

over the configurations with at least the proportional throughput. u_g is the whole gang (s_g GPUs) where it is to stay
on one node, else 1. Jobs that stay where they are have y alone, and use what their places say. Source: Mohan et al.,
OSDI 2022, section 3.2, whose code has one variable a job and no servers, and places the answer by a second program.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bloxopt.hosts.servers import Places
from bloxopt.jobs import FloatArray

if TYPE_CHECKING:
    from bloxopt.formulations.solving.standard_form import StandardForm


@dataclass(frozen=True, slots=True)
class Group:
    """``rows`` jobs on ``gpus`` GPUs each that nothing tells apart.

    ``points`` (configurations, 3): CPUs, GiB for each GPU and relative throughput. ``places`` where each of them
    is, None for jobs that may go to any of ``nodes``, whole or, with ``split``, GPU by GPU; ``least`` is the relative
    throughput of the proportional share of each of these, below which no job there may be.
    """

    rows: tuple[int, ...]
    gpus: int
    points: FloatArray
    places: Places | None
    nodes: tuple[int, ...] = ()
    least: tuple[float, ...] = ()
    split: bool = False


@dataclass(frozen=True, slots=True)
class Stock:
    """GPUs, CPUs and GiB of each node, (nodes,)."""

    gpus: FloatArray
    cpus: FloatArray
    memory_gib: FloatArray

    def pooled(self) -> Stock:
        """All nodes as one machine: what no placement can exceed."""
        return Stock(*(np.array([amounts.sum()]) for amounts in (self.gpus, self.cpus, self.memory_gib)))


class HostProgram:
    """The program of some groups over a stock of nodes, and the way from its answer back to the groups."""

    def __init__(self, groups: list[Group], stock: Stock) -> None:
        self.groups = groups
        self.stock = stock
        self._entries: list[tuple[int, int, float]] = []
        self._worth: list[float] = []
        self._most: list[float] = []
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._node_row = [self._row(-np.inf, float(amount)) for kind in self._amounts() for amount in kind]
        self.jobs_at: list[list[int]] = []
        """Column of y by group and configuration."""
        self.pieces_at: list[list[dict[int, int]]] = []
        """Columns of z by group, configuration and node; empty for groups that stay where they are."""
        for group in groups:
            self._add(group)

    def _amounts(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        return self.stock.gpus, self.stock.cpus, self.stock.memory_gib

    def _row(self, lower: float, upper: float) -> int:
        self._lower.append(lower)
        self._upper.append(upper)
        return len(self._lower) - 1

    def _column(self, worth: float, most: float) -> int:
        self._worth.append(worth)
        self._most.append(most)
        return len(self._worth) - 1

    def _use(self, column: int, node: int, gpus: float, point: FloatArray) -> None:
        nodes = len(self.stock.gpus)
        for kind, amount in enumerate((gpus, gpus * point[0], gpus * point[1])):
            if amount:
                self._entries.append((self._node_row[kind * nodes + node], column, amount))

    def _add(self, group: Group) -> None:
        every = self._row(len(group.rows), len(group.rows))
        jobs: list[int] = []
        pieces: list[dict[int, int]] = []
        for point in group.points:
            column = self._column(float(point[2]), len(group.rows))
            jobs.append(column)
            self._entries.append((every, column, 1.0))
            if group.places is not None:
                for node, count in group.places:
                    self._use(column, node, count, point)
                pieces.append({})
                continue
            unit = 1 if group.split else group.gpus
            balance = self._row(0.0, 0.0)
            self._entries.append((balance, column, -float(group.gpus)))
            at = {}
            for node, least in zip(group.nodes, group.least, strict=True):
                if point[2] < least - 1e-9:
                    continue
                most = min(len(group.rows) * group.gpus // unit, int(self.stock.gpus[node]) // unit)
                if most < 1:
                    continue
                at[node] = self._column(0.0, most)
                self._entries.append((balance, at[node], float(unit)))
                self._use(at[node], node, unit, point)
            pieces.append(at)
        self.jobs_at.append(jobs)
        self.pieces_at.append(pieces)

    def pooled(self) -> HostProgram:
        """The same jobs on one machine with all that the nodes have."""
        alone = [replace(group, places=((0, group.gpus),), nodes=(), least=(), split=False) for group in self.groups]
        return HostProgram(alone, self.stock.pooled())

    def form(self, relaxed: bool = False, at_least: float | None = None) -> StandardForm:
        """The program as a minimisation.

        ``relaxed`` lets jobs mix configurations (Synergy's first linear program). With ``at_least`` any division with
        that total throughput will do: there is nothing left to minimise.
        """
        from scipy.sparse import csc_array

        from bloxopt.formulations.solving.standard_form import StandardForm

        entries, lower, upper = self._entries, self._lower, self._upper
        worth = np.array(self._worth)
        count = len(worth)
        if at_least is not None:
            total = len(lower)
            entries = [*entries, *((total, int(column), float(worth[column])) for column in np.flatnonzero(worth))]
            lower, upper = [*lower, at_least], [*upper, np.inf]
        rows, columns, values = (np.array(part) for part in zip(*entries, strict=True))
        return StandardForm(
            cost=-worth if at_least is None else np.zeros(count),
            matrix=csc_array((values.astype(np.float64), (rows, columns)), shape=(len(lower), count)),
            row_lower=np.array(lower),
            row_upper=np.array(upper),
            lower=np.zeros(count),
            upper=np.array(self._most, dtype=np.float64),
            integer=np.full(count, not relaxed),
        )
