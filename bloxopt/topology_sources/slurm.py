"""Slurm's network topologies: topology.conf and topology.yaml, of the kinds tree and block."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bloxopt.errors import ClusterError
from bloxopt.topology_sources.hostlist import expand_hostlist
from bloxopt.topology_sources.switches import Home, Switch, homes_of_nodes

_PAIR = re.compile(r"([A-Za-z]+)\s*=\s*(\S+)\s*")
_PASSED_OVER = {"linkspeed", "blocksizes"}
"""Keys that Slurm itself does not need for the tree: a relative speed it ignores, and sizes of allocations."""


def read_slurm(path: str | Path) -> dict[str, Home]:
    """Rack and data centre of every node of a ``.conf``, ``.yaml`` or ``.yml`` file.

    Leaf switches, or blocks, are racks; the switch at the top of a tree is the data centre (blocks share one, named
    ``datacenter-0``). Levels in between are merged into it. Raises :class:`ClusterError` with file, line and the fault.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ClusterError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ClusterError(f"{path}: not text: {error}") from error
    read = _read_yaml if path.suffix.lower() in (".yaml", ".yml") else _read_conf
    switches, blocks = read(text, str(path))
    if blocks and switches:
        raise ClusterError(f"{path}: has both switches and blocks: keep one of them")
    homes = homes_of_nodes(blocks or switches, str(path))
    return {name: Home(home.rack, "datacenter-0") for name, home in homes.items()} if blocks else homes


def _read_conf(text: str, path: str) -> tuple[list[Switch], list[Switch]]:
    switches: list[Switch] = []
    blocks: list[Switch] = []
    for number, line in _logical_lines(text):
        where = f"{path}:{number}"
        pairs = {key.lower(): value for key, value in _PAIR.findall(line)}
        if _PAIR.sub("", line).strip():
            raise ClusterError(
                f"{where}: cannot read {line!r}: write KEY=VALUE pairs, such as SwitchName=s1 Nodes=n[1-8]"
            )
        unknown = set(pairs) - {"switchname", "blockname", "nodes", "switches"} - _PASSED_OVER
        if unknown:
            raise ClusterError(
                f"{where}: unknown key {sorted(unknown)[0]!r}; known are SwitchName, Switches, Nodes, LinkSpeed, "
                "BlockName and BlockSizes"
            )
        if set(pairs) <= _PASSED_OVER:
            continue
        name = pairs.get("switchname") or pairs.get("blockname")
        if name is None:
            raise ClusterError(f"{where}: SwitchName (or BlockName) is missing")
        (switches if "switchname" in pairs else blocks).append(
            _switch(name, pairs.get("nodes"), pairs.get("switches"), where)
        )
    return switches, blocks


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Number and content of every line that has some; a backslash joins the next, ``#`` starts a comment."""
    begun, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].rstrip()
        first = first if begun else number
        if content.endswith("\\"):
            begun += content[:-1] + " "
            continue
        if (begun + content).strip():
            yield first, (begun + content).strip()
        begun = ""
    if begun.strip():
        yield first, begun.strip()


def _read_yaml(text: str, path: str) -> tuple[list[Switch], list[Switch]]:
    import yaml

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ClusterError(f"{path}: not valid YAML: {error}") from error
    entries = document if isinstance(document, list) else [document]
    if not entries or not all(isinstance(entry, Mapping) and "topology" in entry for entry in entries):
        raise ClusterError(f"{path}: expected a list of entries with a 'topology' name")
    # Slurm takes the first default, and one topology serves the whole cluster here.
    usable = [entry for entry in entries if "tree" in entry or "block" in entry]
    chosen = next((entry for entry in usable if entry.get("cluster_default") is True), usable[0] if usable else None)
    if chosen is None:
        raise ClusterError(f"{path}: no entry has a tree or blocks")
    where = f"{path}: topology {chosen['topology']!r}"
    if "tree" in chosen:
        rows = _rows(chosen["tree"], "switches", where)
        return [_entry(row, "switch", f"{where}: switch {n}") for n, row in enumerate(rows, 1)], []
    rows = _rows(chosen["block"], "blocks", where)
    return [], [_entry(row, "block", f"{where}: block {n}") for n, row in enumerate(rows, 1)]


def _rows(section: Any, key: str, where: str) -> list[Any]:
    rows = section.get(key) if isinstance(section, Mapping) else None
    if not isinstance(rows, list):
        raise ClusterError(f"{where}: expected a list of {key}")
    return rows


def _entry(row: Any, key: str, where: str) -> Switch:
    if not isinstance(row, Mapping) or key not in row:
        raise ClusterError(f"{where}: {key} is missing")
    nodes, switches = row.get("nodes"), row.get("children")
    return _switch(
        str(row[key]), None if nodes is None else str(nodes), None if switches is None else str(switches), where
    )


def _switch(name: str, nodes: str | None, switches: str | None, where: str) -> Switch:
    return Switch(
        name,
        tuple(expand_hostlist(nodes, where)) if nodes else (),
        tuple(expand_hostlist(switches, where)) if switches else (),
        where,
    )
