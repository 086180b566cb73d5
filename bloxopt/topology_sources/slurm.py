"""Slurm's network topologies: topology.conf and topology.yaml, of the kinds tree and block."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bloxopt.arguments import unknown_name
from bloxopt.errors import ClusterError
from bloxopt.input_files import read_input
from bloxopt.topology_sources.hostlist import expand_hostlist
from bloxopt.topology_sources.switches import Home, Switch, homes_of_nodes

_PAIR = re.compile(r"([A-Za-z]+)\s*=\s*(\S+)\s*")
_LINES = {
    "SwitchName": ("SwitchName", "Nodes", "Switches", "LinkSpeed"),
    "BlockName": ("BlockName", "Nodes"),
    "BlockSizes": ("BlockSizes",),
}
"""What a line of topology.conf may hold, by the key that says what it describes.

LinkSpeed (a relative speed that Slurm ignores too) and BlockSizes (of allocations) do not matter for the tree.
"""
_SECTIONS = {
    "tree": ("switches", "switch", ("switch", "nodes", "children")),
    "block": ("blocks", "block", ("block", "nodes")),
}
"""Sections of topology.yaml: where their list is, what names an entry, and the keys of an entry."""


def read_slurm(path: str | Path) -> dict[str, Home]:
    """Rack and data centre of every node of a ``.conf``, ``.yaml`` or ``.yml`` file.

    Leaf switches, or blocks, are racks; the switch at the top of a tree is the data centre (blocks share one, named
    ``datacenter-0``). Levels in between are merged into it. Raises :class:`ClusterError` with file, line and the fault.
    """
    path = Path(path)
    try:
        text = read_input(path, ClusterError).decode("utf-8-sig")
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
        kind, pairs = _pairs(line, where)
        if kind == "BlockSizes":
            continue
        (switches if kind == "SwitchName" else blocks).append(
            _switch(pairs[kind], pairs.get("Nodes"), pairs.get("Switches"), where)
        )
    return switches, blocks


def _pairs(line: str, where: str) -> tuple[str, dict[str, str]]:
    """What a line describes and its values by key, with the keys as Slurm's manual writes them."""
    if _PAIR.sub("", line).strip():
        raise ClusterError(f"{where}: cannot read {line!r}: write KEY=VALUE pairs, such as SwitchName=s1 Nodes=n[1-8]")
    spelled = {key.lower(): key for keys in _LINES.values() for key in keys}
    pairs: dict[str, str] = {}
    for word, value in _PAIR.findall(line):
        key = spelled.get(word.lower())
        if key is None:
            raise ClusterError(f"{where}: unknown key {word!r}: {unknown_name(word, list(spelled.values()))}")
        if key in pairs:
            raise ClusterError(f"{where}: {key} is given twice: {pairs[key]!r} and {value!r}: join them by a comma")
        pairs[key] = value
    kind = next((kind for kind in _LINES if kind in pairs), None)
    if kind is None:
        raise ClusterError(f"{where}: SwitchName (or BlockName) is missing")
    for key in pairs:
        if key not in _LINES[kind]:
            raise ClusterError(f"{where}: {key} cannot be in a line with {kind}, which takes {', '.join(_LINES[kind])}")
    return kind, pairs


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
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text)
    # A date that there is not is a ValueError to the YAML reader, and deep nesting an error of Python's.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ClusterError(f"{path}: not valid YAML: {error}") from error
    _check_unique_keys(tree, path)
    entries = document if isinstance(document, list) else [document]
    if not entries or not all(isinstance(entry, Mapping) and "topology" in entry for entry in entries):
        raise ClusterError(f"{path}: expected a list of entries with a 'topology' name")
    # Slurm takes the first default, and one topology serves the whole cluster here.
    usable = [entry for entry in entries if "tree" in entry or "block" in entry]
    chosen = next((entry for entry in usable if entry.get("cluster_default") is True), usable[0] if usable else None)
    if chosen is None:
        raise ClusterError(f"{path}: no entry has a tree or blocks")
    where = f"{path}: topology {reprlib.repr(chosen['topology'])}"
    _check_keys(chosen, ("topology", "cluster_default", "flat", *_SECTIONS), where)
    kinds = [kind for kind in _SECTIONS if kind in chosen]
    if len(kinds) > 1:
        raise ClusterError(f"{where}: has both a tree and blocks: keep one of them")
    found = _section(chosen[kinds[0]], kinds[0], where)
    return (found, []) if kinds == ["tree"] else ([], found)


def _check_unique_keys(tree: Any, path: str) -> None:
    """YAML readers keep the last of two equal keys, which would lose the nodes of the first."""
    waiting, seen = [tree], set()
    while waiting:
        part = waiting.pop()
        # An alias leads to a part that was seen, perhaps to the one that it is in.
        if part is None or id(part) in seen or isinstance(part.value, str):
            continue
        seen.add(id(part))
        if not part.tag.endswith(":map"):
            waiting.extend(part.value)
            continue
        keys: set[Any] = set()
        for key, value in part.value:
            if isinstance(key.value, str) and key.value in keys:
                raise ClusterError(f"{path}:{key.start_mark.line + 1}: {key.value} is given twice")
            keys.add(key.value if isinstance(key.value, str) else None)
            waiting.append(value)


def _section(section: Any, kind: str, where: str) -> list[Switch]:
    listed, named, keys = _SECTIONS[kind]
    rows = section.get(listed) if isinstance(section, Mapping) else None
    if not isinstance(rows, list):
        raise ClusterError(f"{where}: expected a list of {listed}")
    _check_keys(section, (listed, *(("block_sizes",) if kind == "block" else ())), f"{where}: {kind}")
    return [_entry(row, named, keys, f"{where}: {named} {number}") for number, row in enumerate(rows, 1)]


def _entry(row: Any, named: str, keys: tuple[str, ...], where: str) -> Switch:
    if not isinstance(row, Mapping) or named not in row:
        raise ClusterError(f"{where}: {named} is missing")
    _check_keys(row, keys, where)
    name = row[named]
    if not isinstance(name, str):
        raise ClusterError(f"{where}: {named} is {reprlib.repr(name)}, must be a name (in quotes where it is a number)")
    return _switch(name, _hostlist(row, "nodes", where), _hostlist(row, "children", where), where)


def _check_keys(table: Mapping[Any, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            raise ClusterError(f"{where}: unknown key {reprlib.repr(key)}: {unknown_name(str(key), known)}")


def _hostlist(row: Mapping[str, Any], key: str, where: str) -> str | None:
    """A hostlist, also where it is written as a YAML list of them."""
    value = row.get(key)
    if value is None:
        return None
    parts: list[Any] = value if isinstance(value, list) else [value]
    if not parts or not all(isinstance(part, str) and part for part in parts):
        raise ClusterError(
            f"{where}: {key} is {reprlib.repr(value)}, must be a hostlist such as 'n[1-8]', or a list of them"
        )
    return ",".join(parts)


def _switch(name: str, nodes: str | None, switches: str | None, where: str) -> Switch:
    if "," in name or "[" in name:
        raise ClusterError(f"{where}: {name!r} is a hostlist, must be the name of one: describe each by itself")
    return Switch(
        name,
        tuple(expand_hostlist(nodes, where)) if nodes else (),
        tuple(expand_hostlist(switches, where)) if switches else (),
        where,
    )
