"""Cluster files: TOML with nodes, network and links, and CSV with nodes alone."""

from __future__ import annotations

import csv
import io
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from bloxopt.cluster import MAX_NODES, Cluster, Node
from bloxopt.errors import ClusterError
from bloxopt.input_files import read_input
from bloxopt.network import DEFAULT_NETWORK, GpuLinks, Network, RackNetwork
from bloxopt.topology_sources.hostlist import expand_hostlist
from bloxopt.topology_sources.nvidia_smi import GpuMatrix, read_nvidia_smi

_Made = TypeVar("_Made")
_TABLES = ("node", "network", "rack", "gpu", "topology")


def read_toml(path: Path) -> Cluster:
    """A cluster of ``[[node]]`` tables (``count`` repeats one; its name then gets a number, or is a hostlist).

    Optional beside them: ``topology`` (Slurm's topology.conf or .yaml, for rack and data centre of each node),
    ``[network]``, ``[[rack]]`` and ``[gpu.TYPE]`` with bandwidths in GB/s. Paths are relative to the file. Raises
    :class:`ClusterError` naming the file, the table and the key.
    """
    data = read_input(path, ClusterError)
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ClusterError(f"{path}: not valid TOML: {error}") from error
    extra = set(document) - set(_TABLES)
    tables = document.get("node")
    if extra or not isinstance(tables, list) or not all(isinstance(row, dict) for row in tables):
        found = f"; unknown key {sorted(extra)[0]!r}, known are {', '.join(_TABLES)}" if extra else ""
        raise ClusterError(f"{path}: expected [[node]] tables{found} (the format: docs/clusters.md)")
    network = _network(path, document)
    rows = [(f"node {i + 1}", row) for i, row in enumerate(tables)]
    nodes = _nodes(path, rows, network)
    if "topology" in document:
        nodes = _with_homes(path, document["topology"], nodes, rows)
    return _cluster(path, nodes, network)


def read_csv(path: Path) -> Cluster:
    """A cluster of rows with the columns name, gpu_type, num_gpus and, where known, the other fields of a node."""
    data = read_input(path, ClusterError)
    try:
        with io.StringIO(data.decode("utf-8-sig"), newline="") as handle:
            reader = csv.DictReader(handle, restkey="", strict=True)
            rows = []
            for row in reader:
                if "" in row:
                    raise ClusterError(f"{path}: line {reader.line_num}: more fields than the header has")
                rows.append((f"line {reader.line_num}", {k: v for k, v in row.items() if v not in (None, "")}))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ClusterError(f"{path}: not valid CSV: {error}") from error
    return _cluster(path, _nodes(path, rows, DEFAULT_NETWORK), DEFAULT_NETWORK)


def _cluster(path: Path, nodes: Sequence[Node], network: Network) -> Cluster:
    if not nodes:
        raise ClusterError(f"{path}: no nodes; a cluster needs at least one")
    try:
        return Cluster(tuple(nodes), network)
    except ClusterError as error:
        raise ClusterError(f"{path}: {error}") from error


def _nodes(path: Path, rows: Sequence[tuple[str, dict[Any, Any]]], network: Network) -> list[Node]:
    known = {f.name for f in fields(Node)} | {"count"}
    nodes: list[Node] = []
    for place, row in rows:
        where = f"{path}: {place}"
        unknown = {str(key) for key in row} - known
        if unknown:
            raise ClusterError(
                f"{where}: unknown key {sorted(unknown)[0]!r}; known: {', '.join(sorted(known))} (docs/clusters.md)"
            )
        missing = {"gpu_type", "num_gpus"} - set(row)
        if missing:
            raise ClusterError(f"{where}: {sorted(missing)[0]} is missing")
        names = _names(where, row, len(nodes))
        num_gpus = _whole(where, "num_gpus", row["num_gpus"])
        links, island_gpus = _links(path, where, row, num_gpus, network)
        values: dict[str, Any] = {
            "gpu_type": row["gpu_type"],
            "num_gpus": num_gpus,
            "cpus": _number(where, "cpus", row["cpus"]) if "cpus" in row else None,
            "memory_gib": _number(where, "memory_gib", row["memory_gib"]) if "memory_gib" in row else None,
            "rack": row.get("rack", "rack-0"),
            "datacenter": row.get("datacenter", "datacenter-0"),
            "island_gpus": _whole(where, "island_gpus", row["island_gpus"]) if "island_gpus" in row else island_gpus,
            "links": links,
            "labels": _labels(where, row.get("labels", {})),
            "taints": _taints(where, row.get("taints", [])),
            "reserved_for": row.get("reserved_for"),
            "drained": _flag(where, "drained", row.get("drained", False)),
        }
        for name in names:
            try:
                nodes.append(Node(name=name, **values))
            except ClusterError as error:
                raise ClusterError(f"{where}: {error}") from error
    return nodes


def _names(where: str, row: Mapping[str, Any], before: int) -> list[str]:
    """Names of the nodes of a row: a hostlist such as ``node[01-16]``, or ``count`` numbered ones."""
    base = row.get("name")
    if base is not None and (not isinstance(base, str) or not base):
        raise ClusterError(f"{where}: name is {base!r}, must be text in quotes")
    names = expand_hostlist(base, where) if isinstance(base, str) and "[" in base else None
    count = _whole(where, "count", row.get("count", 1 if names is None else len(names)))
    if not 1 <= count <= MAX_NODES - before:
        raise ClusterError(f"{where}: count is {count}, must be from 1 to {MAX_NODES} nodes in all")
    if names is not None:
        if count != len(names):
            raise ClusterError(f"{where}: count is {count}, but {base!r} stands for {len(names)} nodes: drop count")
        return names
    if base and count == 1:
        return [base]
    return [f"{base}-{number}" if base else f"node-{before + number}" for number in range(count)]


def _links(
    path: Path, where: str, row: Mapping[str, Any], num_gpus: int, network: Network
) -> tuple[tuple[tuple[float, ...], ...] | None, int | None]:
    """Links of a node and its island size: from rows of GB/s, or from a file with nvidia-smi's matrix."""
    value = row.get("links")
    if value is None:
        return None, None
    if isinstance(value, str):
        file = path.parent / value
        matrix = _matrix(file, where)
        if len(matrix.names) != num_gpus:
            raise ClusterError(f"{where}: {file} has links of {len(matrix.names)} GPUs, but the node has {num_gpus}")
        return matrix.links(network.links_of(str(row["gpu_type"]))), matrix.island_gpus
    if not isinstance(value, list) or not all(isinstance(line, list) for line in value):
        raise ClusterError(f"{where}: links must be a file of `nvidia-smi topo -m` or rows of GB/s")
    # What a GPU reaches itself with is of no interest, so 0 may stand there.
    return tuple(
        tuple(math.inf if i == j else _number(where, "links", speed) for j, speed in enumerate(line))
        for i, line in enumerate(value)
    ), None


def _matrix(file: Path, where: str) -> GpuMatrix:
    try:
        text = read_input(file, ClusterError).decode("utf-8-sig")
    except ClusterError as error:
        raise ClusterError(f"{where}: links: {error}") from error
    except UnicodeDecodeError as error:
        raise ClusterError(f"{where}: links: {file} is not text: {error}") from error
    return read_nvidia_smi(text, str(file))


def _with_homes(
    path: Path, source: Any, nodes: Sequence[Node], rows: Sequence[tuple[str, dict[Any, Any]]]
) -> list[Node]:
    """The nodes in the racks and data centres of Slurm's topology, which must name exactly these nodes."""
    if not isinstance(source, str):
        raise ClusterError(f"{path}: topology is {source!r}, must be the name of Slurm's topology.conf or .yaml")
    for place, row in rows:
        if twice := {"rack", "datacenter"} & set(row):
            raise ClusterError(f"{path}: {place}: {min(twice)} is given here and by topology {source!r}: drop one")
    return place_nodes(nodes, path.parent / source)


def place_nodes(nodes: Sequence[Node], topology: Path) -> list[Node]:
    """The same nodes in the racks and data centres that Slurm's topology.conf or .yaml gives them.

    Raises :class:`ClusterError` for a node that only one of them has, or that is in a rack or data centre already.
    """
    from bloxopt.topology_sources.slurm import read_slurm

    for node in nodes:
        if (node.rack, node.datacenter) != ("rack-0", "datacenter-0"):
            raise ClusterError(
                f"{topology}: the cluster has a topology already, such as rack {node.rack!r} of data centre "
                f"{node.datacenter!r} for node {node.name!r}: drop one"
            )
    homes = read_slurm(topology)
    names = {node.name for node in nodes}
    if unknown := [name for name in homes if name not in names]:
        raise ClusterError(
            f"{topology}: node {unknown[0]!r} is not in the cluster{_more(unknown)}; its nodes are "
            f"{', '.join(sorted(names)[:5])}{', …' if len(names) > 5 else ''}"
        )
    if homeless := [node.name for node in nodes if node.name not in homes]:
        raise ClusterError(f"{topology}: node {homeless[0]!r} of the cluster is on no switch{_more(homeless)}: add it")
    return [replace(node, rack=homes[node.name].rack, datacenter=homes[node.name].datacenter) for node in nodes]


def _more(names: Sequence[str]) -> str:
    return f" ({len(names)} such nodes)" if len(names) > 1 else ""


def _network(path: Path, document: Mapping[str, Any]) -> Network:
    """Bandwidths of ``[network]``, ``[[rack]]`` and ``[gpu.TYPE]``."""
    values = _table(f"{path}: [network]", document.get("network", {}), ("node", "rack", "datacenter"))
    racks: dict[str, RackNetwork] = {}
    entries = document.get("rack", [])
    if not isinstance(entries, list):
        raise ClusterError(f"{path}: rack must be [[rack]] tables")
    for number, entry in enumerate(entries, start=1):
        where = f"{path}: [[rack]] {number}"
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name in racks:
            raise ClusterError(f"{where}: name is {name!r}, must be the name of a rack, each once")
        speeds = {key: value for key, value in entry.items() if key != "name"}
        racks[name] = _made(where, RackNetwork, _table(where, speeds, ("node", "uplink")))
    gpus: dict[str, GpuLinks] = {}
    kinds = document.get("gpu", {})
    if not isinstance(kinds, dict):
        raise ClusterError(f"{path}: gpu is {kinds!r}, must be [gpu.TYPE] tables, such as [gpu.A100]")
    for kind, entry in kinds.items():
        where = f"{path}: [gpu.{kind}]"
        speeds = _table(where, entry, ("nvlink", "nvlink_link", "pcie"))
        gpus[kind] = _made(where, GpuLinks, asdict(DEFAULT_NETWORK.links_of(kind)) | speeds)
    return _made(f"{path}: [network]", Network, {**values, "racks": racks, "gpus": gpus})


def _table(where: str, value: Any, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ClusterError(f"{where}: must be a table with {', '.join(known)}")
    if unknown := set(value) - set(known):
        raise ClusterError(f"{where}: unknown key {sorted(unknown)[0]!r}; known: {', '.join(known)}")
    return value


def _made(where: str, make: Callable[..., _Made], values: Mapping[str, Any]) -> _Made:
    try:
        return make(**values)
    except ClusterError as error:
        raise ClusterError(f"{where}: {error}") from error


def _number(where: str, field: str, value: Any) -> float:
    """A number written as text or given as one; anything else is an error that names the field."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ClusterError(f"{where}: {field} is {value!r}, must be a number") from None


def _labels(where: str, value: Any) -> dict[str, str]:
    """Labels from a TOML table, or from ``name=value;name=value`` in a CSV."""
    if isinstance(value, str):
        pairs = [part.partition("=") for part in value.split(";") if part]
        if not all(sign for _, sign, _ in pairs):
            raise ClusterError(f"{where}: labels is {value!r}, must be name=value pairs joined by ';'")
        return {name.strip(): content.strip() for name, _, content in pairs}
    if not isinstance(value, dict):
        raise ClusterError(f"{where}: labels is {value!r}, must be a table of names and values")
    return value


def _taints(where: str, value: Any) -> tuple[str, ...]:
    """Taints from a TOML array, or joined by ``;`` in a CSV."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(";") if part.strip())
    if not isinstance(value, list):
        raise ClusterError(f"{where}: taints is {value!r}, must be an array of names")
    return tuple(value)


def _flag(where: str, key: str, value: Any) -> bool:
    """True or false, from TOML or as a word in a CSV."""
    words = {"true": True, "false": False}
    flag = words.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(flag, bool):
        raise ClusterError(f"{where}: {key} is {value!r}, must be true or false")
    return flag


def _whole(where: str, field: str, value: Any) -> int:
    """The same for a whole number: 2.5 GPUs are an error, not 2."""
    number = _number(where, field, value)
    if not math.isfinite(number) or number != round(number):
        raise ClusterError(f"{where}: {field} is {value!r}, must be a whole number")
    return int(number)
