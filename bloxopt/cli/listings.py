"""The listings: what a trace, policy, solver, placement, selector or preset option can name."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from bloxopt.cli import console
from bloxopt.cli.options import JsonOption


def traces(json: JsonOption = False) -> None:
    """List the traces that ship with bloxopt, with source and licence."""
    from bloxopt.workloads import list_traces

    _print(list_traces(), ["name", "jobs", "cluster", "description", "source", "licence"], json, numeric=["jobs"])


def policies(json: JsonOption = False) -> None:
    """List the policies."""
    from bloxopt.formulations.policies import policy_table

    rows = [_as_row(row) for row in policy_table()]
    _print(rows, list(rows[0]), json)


def admissions(json: JsonOption = False) -> None:
    """List the admissions: which jobs are let in."""
    from bloxopt.admission import admission_table

    _print([_as_row(row) for row in admission_table()], ["name", "description"], json)


def solvers(json: JsonOption = False) -> None:
    """List the solvers: what each can do, and the version installed."""
    from bloxopt.solvers import solver_table

    rows = []
    for entry in solver_table():
        can = asdict(entry.capabilities)
        rows.append(
            {
                "name": entry.name,
                "classes": entry.classes,
                "version": entry.version,
                "installed": entry.installed,
                "tolerance": entry.tolerance,
                **{name: able for name, able in can.items() if name not in ("lp", "mip", "conic")},
            }
        )
    _print(rows, [name for name in rows[0] if name != "installed"], json)


def placements(json: JsonOption = False) -> None:
    """List the placements: how a gang gets its nodes."""
    from bloxopt.placement import placement_table

    _print(placement_table(), ["name", "description"], json)


def selectors(json: JsonOption = False) -> None:
    """List the round selectors: how a plan becomes a round."""
    from bloxopt.selection import SELECTORS

    rows = [{"name": name, "description": _first_line(SELECTORS.get(name))} for name in SELECTORS]
    _print(rows, ["name", "description"], json)


def host_allocations(json: JsonOption = False) -> None:
    """List the host allocations: how CPUs and memory are divided between the jobs of a round."""
    from bloxopt.hosts import HOST_ALLOCATIONS

    rows = [{"name": name, "description": _first_line(HOST_ALLOCATIONS.get(name))} for name in HOST_ALLOCATIONS]
    _print(rows, ["name", "description"], json)


def presets(json: JsonOption = False) -> None:
    """List the simulation presets and the options they set."""
    from bloxopt.simulation import preset_table

    rows = preset_table()
    _print(rows, list(rows[0]), json)


def _print(rows: list[Any], columns: list[str], json: bool, numeric: list[str] | None = None) -> None:
    if json:
        console.print_json(rows)
    else:
        console.print_table(rows, columns=columns, numeric=numeric or ())


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().partition("\n")[0]


def _as_row(entry: Any) -> dict[str, Any]:
    return dict(entry) if isinstance(entry, dict) else asdict(entry)
