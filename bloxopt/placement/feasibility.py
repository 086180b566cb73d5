"""What could ever be placed: the largest gang for every job, and why a job fits nowhere."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from bloxopt.cluster import Cluster
from bloxopt.errors import ClusterError, TraceError
from bloxopt.jobs import BoolArray, IntArray, JobTable
from bloxopt.needs import PlacementNeeds
from bloxopt.placement.rules import allowed_nodes, labels_of, selected, states_needs
from bloxopt.placement.topology import Topology

if TYPE_CHECKING:
    from bloxopt.formulations.space import ConfigurationCatalog


def needs_limit(jobs: JobTable, cluster: Cluster) -> bool:
    """Whether anything but the number of GPUs limits where jobs can be placed."""
    cpus = bool(jobs.cpus_per_gpu.any() and np.isfinite(cluster.node_cpus).any())
    memory = bool(jobs.memory_gib_per_gpu.any() and np.isfinite(cluster.node_memory_gib).any())
    return cpus or memory or states_needs(jobs, cluster)


def largest_gangs(jobs: JobTable, cluster: Cluster) -> IntArray:
    """Most GPUs of each type that each job can get on the empty cluster within its needs, (jobs, types).

    The needs are its node selector, taints, tenant, CPUs and memory, ``max_nodes`` and ``same_rack="required"``.
    Raises :class:`TraceError` for a label, value or toleration, and :class:`ClusterError` for a reserved
    tenant, that does not exist.
    """
    check_names(jobs, cluster)
    shape = np.column_stack([jobs.needs, jobs.tenant, jobs.cpus_per_gpu, jobs.memory_gib_per_gpu])
    distinct, first, inverse = np.unique(shape, axis=0, return_index=True, return_inverse=True)
    gangs = np.array([_largest_gang(jobs, cluster, int(row)) for row in first], dtype=np.int64)
    return gangs.reshape(len(distinct), -1)[inverse.ravel()]


def _largest_gang(jobs: JobTable, cluster: Cluster, row: int) -> IntArray:
    """The same for one job, (types,)."""
    needs = jobs.need_kinds[jobs.needs[row]]
    mask = allowed_nodes(cluster, needs, jobs.tenants[jobs.tenant[row]])
    usable = usable_gpus(jobs, cluster, row, mask)
    return gang_by_type(cluster, usable, needs.max_nodes, needs.same_rack == "required")


def usable_gpus(jobs: JobTable, cluster: Cluster, row: int, mask: BoolArray) -> IntArray:
    """GPUs of each empty node of a mask for which it also has the job's CPUs and memory, (nodes,)."""
    usable = np.where(mask, cluster.node_gpus, 0)
    for stock, need in (
        (cluster.node_cpus, jobs.cpus_per_gpu[row]),
        (cluster.node_memory_gib, jobs.memory_gib_per_gpu[row]),
    ):
        if need > 0:
            with np.errstate(over="ignore"):  # next to no need: as many as there are
                usable = np.minimum(usable, np.floor(np.minimum(stock / need + 1e-9, usable))).astype(np.int64)
    return usable


def gang_by_type(cluster: Cluster, usable: IntArray, max_nodes: int | None, one_rack: bool) -> IntArray:
    """Most GPUs of each type on at most ``max_nodes`` nodes, of one rack if ``one_rack``, (types,)."""
    best = best_racks(cluster, usable, max_nodes) if one_rack else None
    if best is not None:
        return np.asarray(best.max(axis=0))
    kinds = range(len(cluster.gpu_types))
    per_type = [np.sort(usable[cluster.node_gpu_type == kind])[::-1] for kind in kinds]
    return np.array([int(gpus[:max_nodes].sum()) for gpus in per_type], dtype=np.int64)


def best_racks(cluster: Cluster, usable: IntArray, max_nodes: int | None) -> IntArray:
    """Most GPUs of each type on at most ``max_nodes`` nodes of each rack, (racks, types)."""
    topology = Topology.of(cluster)
    kinds, rack = cluster.node_gpu_type, topology.node_rack
    # Nodes of a rack and type, largest first, numbered from 0: the first max_nodes of each count.
    order = np.lexsort([-usable, kinds, rack])
    group = rack[order] * len(cluster.gpu_types) + kinds[order]
    start = np.searchsorted(group, group, side="left")
    counted = np.arange(len(order)) - start < (len(order) if max_nodes is None else max_nodes)
    size = len(topology.rack_names) * len(cluster.gpu_types)
    gpus = np.bincount(group, weights=np.where(counted, usable[order], 0), minlength=size)
    return gpus.astype(np.int64).reshape(len(topology.rack_names), -1)


def check_names(jobs: JobTable, cluster: Cluster) -> None:
    """Raise for a label, value, toleration or reserved tenant that neither side knows."""
    if any(need.node_selector or need.tolerations for need in jobs.need_kinds):
        known: dict[str, set[str]] = {}
        for node in cluster.nodes:
            for name, value in labels_of(node).items():
                known.setdefault(name, set()).add(value)
        taints = {taint for node in cluster.nodes for taint in node.taints}
        for code in np.unique(jobs.needs).tolist():
            job = f"job {jobs.job_id[int(np.argmax(jobs.needs == code))]!r}"
            for name, value in jobs.need_kinds[code].node_selector:
                if name not in known:
                    _unknown(f"{job}: node_selector asks for label {name!r}, which no node has", name, known)
                if value not in known[name]:
                    _unknown(f"{job}: node_selector asks for {name} {value!r}, which no node has", value, known[name])
            for taint in jobs.need_kinds[code].tolerations:
                if taint not in taints:
                    _unknown(f"{job}: tolerations has taint {taint!r}, which no node has", taint, taints)
    for node in cluster.nodes:
        if node.reserved_for is not None and jobs.unknown_tenant([node.reserved_for]):
            what = f"node {node.name!r} is reserved for tenant {node.reserved_for!r}, which no job has"
            raise ClusterError(what + _choices(node.reserved_for, jobs.tenants))


def _unknown(what: str, name: str, known: Iterable[str]) -> NoReturn:
    raise TraceError(what + _choices(name, known))


def _choices(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if not names:
        return "; there are none"
    close = difflib.get_close_matches(name, names, n=1)
    shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    return f": did you mean {close[0]!r}? There are {shown}" if close else f"; there are {shown}"


def check_placeable(catalog: ConfigurationCatalog) -> None:
    """Raise :class:`TraceError` for the first job whose needs no part of the cluster can meet.

    The message says at which level it fails (labels, taints, tenant, drained nodes, CPUs and memory, number of
    nodes, rack) and what would fit.
    """
    stuck = np.flatnonzero((np.diff(catalog.offsets) == 0) & (catalog.requested_rate > 0).any(axis=1))
    for row in stuck.tolist():
        reason = explain(catalog.table, catalog.cluster, row, catalog.requested_rate[row] > 0)
        if reason is not None:
            more = f" ({len(stuck)} jobs cannot be placed)" if len(stuck) > 1 else ""
            raise TraceError(f"job {catalog.table.job_id[row]!r} {reason}{more}")


def explain(jobs: JobTable, cluster: Cluster, row: int, runs_on: BoolArray) -> str | None:
    """Why the smallest gang of a job fits nowhere; None if only the cluster's size is the reason.

    ``runs_on`` (types,) are the GPU types that it can use.
    """
    needs = jobs.need_kinds[jobs.needs[row]]
    need = int(jobs.min_gpus[row])
    kinds = [cluster.gpu_types[kind] for kind in np.flatnonzero(runs_on)]
    asked = f"{need} {kinds[0] if len(kinds) == 1 else 'GPUs of one type (' + ', '.join(kinds) + ')'}"

    def most(usable: IntArray, max_nodes: int | None = None) -> int:
        return int(gang_by_type(cluster, usable, max_nodes, False)[runs_on].max(initial=0))

    mask = np.ones(len(cluster.nodes), dtype=bool)
    if most(cluster.node_gpus) < need:
        return None
    for condition, phrase, way_out in _conditions(needs, cluster, jobs.tenants[jobs.tenant[row]]):
        mask &= condition
        have = most(np.where(mask, cluster.node_gpus, 0))
        if have < need:
            return f"needs {asked} {phrase}, which have {have}: {way_out}{_at_most(have)}"
    usable = usable_gpus(jobs, cluster, row, mask)
    if (have := most(usable)) < need:
        return (
            f"needs {asked} with {jobs.cpus_per_gpu[row]:g} CPUs and {jobs.memory_gib_per_gpu[row]:g} GiB of memory "
            f"each; the nodes it may use have enough for {have}: lower those needs{_at_most(have)}"
        )
    if (have := most(usable, needs.max_nodes)) < need:
        enough = next(count for count in range(1, len(mask) + 1) if most(usable, count) >= need)
        return (
            f"needs {asked} on at most {needs.max_nodes} nodes; the largest {needs.max_nodes} have {have}: "
            f"use max_nodes={enough}{_at_most(have)}"
        )
    if needs.same_rack == "required":
        racks = best_racks(cluster, usable, needs.max_nodes)[:, runs_on].max(axis=1)
        best = int(racks.argmax())
        if racks[best] < need:
            nodes = "" if needs.max_nodes is None else f" on at most {needs.max_nodes} nodes"
            return (
                f"needs {asked} in one rack{nodes}; the largest rack, {Topology.of(cluster).rack_names[best]!r}, "
                f"has {racks[best]}: use same_rack='preferred'{_at_most(int(racks[best]))}"
            )
    return None


def _conditions(needs: PlacementNeeds, cluster: Cluster, tenant: str) -> list[tuple[BoolArray, str, str]]:
    """Masks of nodes in the order in which a job's needs are told, with the words for each."""
    nodes = cluster.nodes
    wanted = dict(needs.node_selector)
    labels = " and ".join(f"{name}={value}" for name, value in wanted.items())
    tolerated = set(needs.tolerations)
    taints = sorted({taint for node in nodes for taint in node.taints} - tolerated)
    return [
        (np.array([selected(node, wanted) for node in nodes]), f"on nodes with {labels}", "select other nodes"),
        (
            np.array([tolerated.issuperset(node.taints) for node in nodes]),
            "on nodes whose taints it tolerates",
            f"add tolerations ({', '.join(taints)})",
        ),
        (
            np.array([node.reserved_for in (None, tenant) for node in nodes]),
            f"on nodes that tenant {tenant!r} may use",
            "reserve fewer nodes for others",
        ),
        (~cluster.node_drained, "on nodes that are not drained", "put drained nodes back into service"),
    ]


def _at_most(have: int) -> str:
    return f", or ask for at most {have} GPUs" if have else ""
