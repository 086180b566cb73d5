"""Placement needs as columns of our own trace format, both ways."""

from __future__ import annotations

from typing import Any

import numpy as np

from bloxopt.errors import TraceError
from bloxopt.jobs import JobTable
from bloxopt.needs import NO_NEEDS, PlacementNeeds
from bloxopt.workloads.table import Table

COLUMNS = ("same_rack", "max_nodes", "exclusive_node", "anti_affinity", "node_selector", "tolerations")


def needs_from_table(table: Table) -> list[PlacementNeeds] | None:
    """The needs of every row, equal ones shared; None for a table without any of the columns."""
    given = [name for name in COLUMNS if name in table.columns]
    if not given:
        return None
    known: dict[tuple[Any, ...], PlacementNeeds] = {}
    needs: list[PlacementNeeds] = []
    empty = {name: table.missing(name) for name in given}
    for row in range(len(table)):
        cells = tuple(None if empty[name][row] else table.columns[name][row] for name in given)
        found = known.get(cells)
        if found is None:
            found = known[cells] = _needs(table, row, dict(zip(given, cells, strict=True)))
        needs.append(found)
    return needs


def needs_to_columns(jobs: JobTable) -> dict[str, Any]:
    """The columns in which some job differs from a job without needs."""
    import pandas as pd

    needs = np.array(jobs.need_kinds, dtype=object)[jobs.needs]
    columns = {
        "same_rack": [need.same_rack for need in needs],
        "max_nodes": pd.array([need.max_nodes for need in needs], dtype="Int64"),
        "exclusive_node": [need.exclusive_node for need in needs],
        "anti_affinity": [need.anti_affinity for need in needs],
        "node_selector": [";".join(f"{name}={value}" for name, value in need.node_selector) or None for need in needs],
        "tolerations": [";".join(need.tolerations) or None for need in needs],
    }
    used = set(needs.tolist())
    return {
        name: values
        for name, values in columns.items()
        if any(getattr(need, name) != getattr(NO_NEEDS, name) for need in used)
    }


def _needs(table: Table, row: int, cells: dict[str, Any]) -> PlacementNeeds:
    values = {name: cell for name, cell in cells.items() if cell is not None}
    try:
        if "max_nodes" in values:
            values["max_nodes"] = _whole(values["max_nodes"])
        if "exclusive_node" in values:
            values["exclusive_node"] = _flag(values["exclusive_node"])
        for name in ("node_selector", "tolerations"):
            parts = [part.strip() for part in str(values.get(name, "")).split(";") if part.strip()]
            values[name] = tuple(_pair(part) for part in parts) if name == "node_selector" else tuple(parts)
        return PlacementNeeds(**values)
    except TraceError as error:
        raise TraceError(f"{table.where(row)}: {error}") from error


def _whole(cell: Any) -> Any:
    try:
        number = float(cell)
    except (TypeError, ValueError):
        return cell
    return int(number) if number.is_integer() else cell


def _flag(cell: Any) -> Any:
    return {"true": True, "false": False}.get(str(cell).strip().lower(), cell)


def _pair(part: str) -> tuple[str, str]:
    name, equals, value = part.partition("=")
    if not equals:
        raise TraceError(f"node_selector has {part!r}, must be name=value pairs joined by ';'")
    return name.strip(), value.strip()
