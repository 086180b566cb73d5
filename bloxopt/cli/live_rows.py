"""Jobs and nodes of a running scheduler as lines of tables."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bloxopt.cli import console

# On a narrow terminal the last ones are left out.
JOB_COLUMNS = ["job_id", "status", "gpus", "user", "name", "waited_or_ran", "reason", "steps", "on"]
NODE_COLUMNS = ["name", "state", "gpus", "in_use", "gpu_types", "utilisation", "last_heartbeat", "message"]
_FEWEST_COLUMNS = 2


def job_row(job: dict[str, Any]) -> dict[str, Any]:
    spec = job["spec"]
    since = job["started_at"] if job["started_at"] is not None else job["submitted_at"]
    until = job["finished_at"] if job["finished_at"] is not None else time.time()
    held = sum(map(len, job["gpus"].values()))
    return {
        "job_id": job["job_id"],
        "user": job["user"],
        "name": spec["name"],
        "gpus": held or spec["num_gpus"],
        "status": job["status"],
        "reason": job["reason"],
        "waited_or_ran": length(until - since),
        "steps": f"{job['steps']:,.0f}" if job["steps"] else "",
        "on": ", ".join(job["gpus"]),
    }


def node_row(node: dict[str, Any]) -> dict[str, Any]:
    used = [gpu["utilisation"] for gpu in node["gpus"] if gpu["utilisation"] is not None]
    types: dict[str, int] = {}
    for gpu in node["gpus"]:
        types[gpu["gpu_type"]] = types.get(gpu["gpu_type"], 0) + 1
    seen = node["last_heartbeat"]
    return {
        "name": node["name"],
        "state": node["state"],
        "gpus": len(node["gpus"]),
        "in_use": node["gpus_in_use"],
        "gpu_types": ", ".join(f"{count}x{kind}" for kind, count in types.items()),
        "utilisation": f"{sum(used) / len(used):.0%}" if used else None,
        "last_heartbeat": None if seen is None else f"{length(time.time() - seen)} ago",
        "message": node["message"],
    }


def show(
    views: list[dict[str, Any]],
    json: bool,
    row: Callable[[dict[str, Any]], dict[str, Any]],
    columns: list[str],
    numeric: list[str],
    nothing: str,
) -> None:
    """Print what the scheduler answered as JSON, or a table with a ``row`` for each; ``nothing`` where it is empty."""
    if json:
        console.print_json(views)
    elif views:
        console.print_table([row(view) for view in views], columns=columns, numeric=numeric, at_least=_FEWEST_COLUMNS)
    else:
        console.note(nothing)


def length(seconds: float) -> str:
    """A length of time (s) for people."""
    seconds = max(seconds, 0.0)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
