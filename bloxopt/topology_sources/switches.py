"""A tree of switches, checked, and the rack and data centre that it gives each node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bloxopt.errors import ClusterError


class Switch(NamedTuple):
    """A switch with either nodes or other switches below it; ``where`` is its place in the file."""

    name: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...]
    where: str


class Home(NamedTuple):
    """Where a node is: its leaf switch and the switch at the top."""

    rack: str
    datacenter: str


def homes_of_nodes(switches: Sequence[Switch], path: str) -> dict[str, Home]:
    """Rack and data centre of every node: its leaf switch, and the switch at the top of that one's tree.

    Switches in between only say which top a leaf belongs to. Raises :class:`ClusterError` for a switch that is
    described twice, unknown, in a cycle, below two others, or has nothing or both kinds below it; for a node
    below two switches; and for a file without a switch at the top.
    """
    by_name: dict[str, Switch] = {}
    for switch in switches:
        if switch.name in by_name:
            raise ClusterError(
                f"{switch.where}: switch {switch.name!r} is described twice, first at {by_name[switch.name].where}"
            )
        if bool(switch.nodes) == bool(switch.switches):
            both = "both nodes and switches" if switch.nodes else "nothing"
            raise ClusterError(f"{switch.where}: switch {switch.name!r} has {both} below it: give it nodes or switches")
        by_name[switch.name] = switch
    if not by_name:
        raise ClusterError(f"{path}: describes no switch")
    parent = _parents(by_name)
    tops = {name: _top(name, parent, by_name) for name in by_name}
    homes: dict[str, Home] = {}
    for switch in by_name.values():
        for node in switch.nodes:
            if node in homes:
                twice = "twice on" if homes[node].rack == switch.name else f"on {homes[node].rack!r} and on"
                raise ClusterError(
                    f"{switch.where}: node {node!r} is {twice} switch {switch.name!r}: a node is in one rack"
                )
            homes[node] = Home(switch.name, tops[switch.name])
    return homes


def _parents(by_name: dict[str, Switch]) -> dict[str, str]:
    parent: dict[str, str] = {}
    for switch in by_name.values():
        for child in switch.switches:
            if child not in by_name:
                raise ClusterError(f"{switch.where}: switch {switch.name!r} is above {child!r}, which is not described")
            if child in parent:
                raise ClusterError(
                    f"{switch.where}: switch {child!r} is below both {parent[child]!r} and {switch.name!r}: a switch "
                    "has one above it"
                )
            parent[child] = switch.name
    return parent


def _top(name: str, parent: dict[str, str], by_name: dict[str, Switch]) -> str:
    """The switch above all others of this one's tree."""
    seen = [name]
    while seen[-1] in parent:
        above = parent[seen[-1]]
        if above in seen:
            circle = " → ".join([*seen[seen.index(above) :], above])
            alone = "" if len(parent) < len(by_name) else ", and no switch is at the top"
            raise ClusterError(f"{by_name[above].where}: the switches are in a cycle, {circle}{alone}")
        seen.append(above)
    return seen[-1]
