"""Who shares a cluster with whom: tenants as the leaves of a tree of weighted entities, given as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.checks import checked_amount, shown
from bloxopt.jobs import FloatArray, IntArray

_KEYS = ("weight", "policy", "parent", "children", "tenants")
_POLICIES = ("fairness", "fifo")


@dataclass(frozen=True, eq=False)
class EntityTree:
    """Entities as arrays: ``parent`` (entities,) positions, -1 at the top; ``weight`` > 0; ``fifo`` leaves.

    ``leaf_of`` maps each tenant named in the tree to the position of its leaf. ``default`` is the leaf of all other
    tenants, -1 if there is none.
    """

    names: tuple[str, ...]
    parent: IntArray
    weight: FloatArray
    fifo: tuple[bool, ...]
    leaf_of: Mapping[str, int]
    default: int = -1

    @classmethod
    def from_data(cls, entities: Mapping[str, Any], user: str, default: str | None = None) -> EntityTree:
        """A tree from ``{name: weight}`` or ``{name: {...}}`` with these keys, all optional:

        ``weight`` (1), ``policy`` of a leaf among its jobs (``"fairness"`` or ``"fifo"``), ``children`` (a table like
        this one) or ``parent`` (the name of another entity), and ``tenants`` of a leaf (default: the one of its name).
        Raises :class:`FormulationError` naming the entity that repeats, has an unknown parent or key, a weight that
        is not a finite number > 0, or is its own ancestor.
        """
        found: dict[str, dict[str, Any]] = {}
        _collect(user, entities, None, (), found)
        if not found:
            raise FormulationError(f"{user}: no entities given; leave them out to make each tenant one")
        names = tuple(found)
        position = {name: number for number, name in enumerate(names)}
        parent = np.full(len(names), -1, dtype=np.int64)
        for name, entry in found.items():
            above = entry.get("parent")
            if above is not None and above not in position:
                raise FormulationError(
                    f"{user}: entity {name!r} has the parent {above!r}, which is not an entity; there are "
                    f"{', '.join(names)}"
                )
            parent[position[name]] = -1 if above is None else position[above]
        _refuse_cycles(user, names, parent)
        inner = set(parent.tolist())
        leaf_of: dict[str, int] = {}
        for number, (name, entry) in enumerate(found.items()):
            if number in inner:
                for key in ("tenants", "policy"):
                    if entry.get(key, "fairness") != "fairness":
                        raise FormulationError(
                            f"{user}: entity {name!r} has entities below it: only leaves have {key!r}, here "
                            f"{shown(entry[key])}"
                        )
                continue
            for tenant in _tenants(user, name, entry):
                if tenant in leaf_of:
                    other = names[leaf_of[tenant]]
                    raise FormulationError(f"{user}: tenant {tenant!r} is in two entities, {other!r} and {name!r}")
                leaf_of[tenant] = number
        if default is not None and (default not in position or position[default] in inner):
            leaves = ", ".join(name for number, name in enumerate(names) if number not in inner)
            raise FormulationError(f"{user}: the default entity {shown(default)} is not a leaf; leaves are {leaves}")
        return cls(
            names,
            parent,
            np.array([entry["weight"] for entry in found.values()], dtype=np.float64),
            tuple(entry["policy"] == "fifo" for entry in found.values()),
            leaf_of,
            -1 if default is None else position[default],
        )

    @classmethod
    def flat(cls, tenants: Sequence[str]) -> EntityTree:
        """Each tenant an entity of weight 1, all on one level."""
        count = len(tenants)
        leaves = {tenant: number for number, tenant in enumerate(tenants)}
        return cls(tuple(tenants), np.full(count, -1, dtype=np.int64), np.ones(count), (False,) * count, leaves)

    @property
    def unserved(self) -> str:
        """Whose jobs have no place in the tree, and the option that gives them one; empty if all have one."""
        if self.default >= 0:
            return ""
        inner = set(self.parent.tolist())
        leaf = next(name for number, name in enumerate(self.names) if number not in inner)
        named = ", ".join(map(repr, self.leaf_of)) or "none"
        return f"jobs of tenants that its tree does not name (it names {named}): give default, such as {leaf!r}"

    def leaves(self, tenants: Sequence[str], used: IntArray, user: str) -> IntArray:
        """The leaf of each tenant (tenants,), -1 for one that has none and owns none of the jobs (``used`` codes).

        Raises :class:`FormulationError` naming a tenant with jobs that is in no leaf where there is no default.
        """
        leaf = np.array([self.leaf_of.get(tenant, self.default) for tenant in tenants], dtype=np.int64)
        homeless = used[leaf[used] < 0]
        if len(homeless):
            name = tenants[int(homeless[0])]
            inner = name in self.names
            raise FormulationError(
                f"{user}: tenant {name!r} has jobs but {'is not a leaf' if inner else 'is in no entity'}: add it to "
                "the tree, or name the entity for such tenants by default=..."
            )
        return leaf


def _collect(
    user: str, entities: object, parent: str | None, above: tuple[str, ...], found: dict[str, dict[str, Any]]
) -> None:
    """Put the entities of a nested or flat table into ``found``, each with its keys checked and its parent's name."""
    if not isinstance(entities, Mapping):
        raise FormulationError(f"{user}: entities is {shown(entities)}, must be a table of entities by name")
    for name, given in entities.items():
        if not isinstance(name, str) or not name:
            raise FormulationError(f"{user}: an entity is named {shown(name)}, must be text")
        if name in above:
            raise FormulationError(f"{user}: entity {name!r} is below itself: {' > '.join((*above, name))}")
        if name in found:
            raise FormulationError(f"{user}: entity {name!r} appears twice")
        entry = dict(given) if isinstance(given, Mapping) else {"weight": given}
        unknown = [key for key in entry if key not in _KEYS]
        if unknown:
            raise FormulationError(
                f"{user}: entity {name!r} has the unknown key {shown(unknown[0])}; known are {', '.join(_KEYS)}"
            )
        entry["weight"] = checked_amount(user, f"weight of entity {name!r}", entry.get("weight", 1.0))
        if entry["weight"] <= 0:
            raise FormulationError(f"{user}: weight of entity {name!r} is {shown(entry['weight'])}, must be > 0")
        entry["policy"] = entry.get("policy", "fairness")
        if entry["policy"] not in _POLICIES:
            raise FormulationError(
                f"{user}: policy of entity {name!r} is {shown(entry['policy'])}, must be one of {', '.join(_POLICIES)}"
            )
        if parent is not None and entry.setdefault("parent", parent) != parent:
            raise FormulationError(
                f"{user}: entity {name!r} is a child of {parent!r} and has the parent {shown(entry['parent'])}"
            )
        children = entry.pop("children", None)
        found[name] = entry
        if children is not None:
            _collect(user, children, name, (*above, name), found)


def _refuse_cycles(user: str, names: Sequence[str], parent: IntArray) -> None:
    for start in range(len(names)):
        path = [start]
        while parent[path[-1]] >= 0:
            path.append(int(parent[path[-1]]))
            if path[-1] in path[:-1]:
                first = path.index(path[-1])
                circle = " > ".join(names[number] for number in reversed(path[first:]))
                raise FormulationError(f"{user}: entity {names[path[-1]]!r} is its own ancestor: {circle}")


def _tenants(user: str, name: str, entry: Mapping[str, Any]) -> list[str]:
    given = entry.get("tenants", [name])
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(one, str) for one in given):
        raise FormulationError(f"{user}: tenants of entity {name!r} is {shown(given)}, must be a list of tenants")
    return list(given)
