"""``bloxopt whatif``: another policy, solver or placement against the live cluster, without applying it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from bloxopt.cli import console
from bloxopt.cli import options as o
from bloxopt.cli.alternatives import SetOption, alternative
from bloxopt.cli.connection import SchedulerOption, connected
from bloxopt.errors import InputError

_MOST_JOBS = 40
"""Jobs that differ that are shown; --json has all."""


def whatif(
    policy: Annotated[str | None, typer.Option(help="Policy (see `bloxopt policies`).")] = None,
    solver: o.SolverOption = None,
    placement: o.PlacementOption = None,
    selector: o.SelectorOption = None,
    admission: o.AdmissionOption = None,
    settings: SetOption = None,
    horizon: Annotated[
        float, typer.Option(min=0.0, help="Seconds to look ahead; 0: the present round alone.")
    ] = 86_400.0,
    budget: Annotated[
        float, typer.Option(min=1.0, max=60.0, help="Seconds of processor time that it may take.")
    ] = 10.0,
    scheduler: SchedulerOption = None,
    json: o.JsonOption = False,
) -> None:
    """Show what another policy, solver or placement would do on the running cluster (admins). Nothing is applied."""
    question = alternative(policy, solver, placement, selector, admission, settings)
    if not question:
        raise InputError("nothing to try: give --policy, --solver, --placement, --selector or --admission")
    # The processes of jobs and of the scheduler itself come first on its machine.
    with connected(scheduler, timeout=30.0 + 5.0 * budget) as people:
        answer = people.post("/v1/whatif", {**question, "horizon": horizon, "budget": budget})
    if json:
        console.print_json(answer)
        return
    console.print_table(_rows(answer), numeric=["as it is", "what if"])
    jobs = answer["jobs"]
    print()
    if not jobs:
        print("every job would be where it will be anyway")
        return
    print(f"{len(jobs)} jobs differ in the present round")
    console.print_table(
        [_job_row(job) for job in jobs[:_MOST_JOBS]],
        columns=["job_id", "tenant", "gpus", "now", "as_it_is", "what_if"],
        numeric=["gpus"],
    )
    if len(jobs) > _MOST_JOBS:
        console.note(f"{len(jobs) - _MOST_JOBS} more with --json")


def _rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    sides = (answer["present"], answer["alternative"])
    decisions = [side["decision"] for side in sides]
    futures = [side["future"] or {} for side in sides]
    rows: list[tuple[str, list[Any]]] = [
        ("policy", [decision["policy"] for decision in decisions]),
        ("solver", [decision["solver"] for decision in decisions]),
        ("jobs running", [decision["running"] for decision in decisions]),
        ("… started", [decision["started"] for decision in decisions]),
        ("… stopped", [decision["stopped"] for decision in decisions]),
        ("GPUs used", [f"{decision['gpus_used']:g} of {decision['gpus_up']}" for decision in decisions]),
        (
            "objective" if answer["comparable"] else "objective (of each its own)",
            [_number(decision["objective"]) for decision in decisions],
        ),
        ("certificate", [_certificate(decision) for decision in decisions]),
        ("time to decide (s)", [f"{decision['decide_seconds']:.3f}" for decision in decisions]),
        ("… in the solver (s)", [f"{decision['solve_seconds']:.3f}" for decision in decisions]),
    ]
    if any(futures):
        rows += [
            (f"finished within {answer['horizon'] / 3600:g} h", [_finished(future) for future in futures]),
            ("average completion (h)", [_hours(future, "average_completion") for future in futures]),
            ("longest completion (h)", [_hours(future, "longest_completion") for future in futures]),
            ("all done in (h)", [_hours(future, "makespan") for future in futures]),
            ("worst finish-time ratio", [_number(future.get("worst_finish_time_ratio")) for future in futures]),
            ("preemptions", [future.get("preemptions") for future in futures]),
            ("looked ahead", [_looked(future) for future in futures]),
        ]
    return [{"": name, "as it is": cells[0], "what if": cells[1]} for name, cells in rows]


def _certificate(decision: Mapping[str, Any]) -> str | None:
    if decision["termination"] is None:
        return None
    parts = [str(decision["termination"])]
    if decision["verified"]:
        parts.append("verified")
    if decision["gap"]:
        parts.append(f"gap {decision['gap']:.2g}")
    if decision["planned_before"] > 0:
        parts.append(f"{decision['planned_before']:.0f} s old")
    return ", ".join(parts)


def _finished(future: Mapping[str, Any]) -> str | None:
    return f"{future['finished']} of {future['jobs']}" if future else None


def _looked(future: Mapping[str, Any]) -> str | None:
    if not future:
        return None
    text = f"{future['seconds'] / 3600:.2f} h, {future['rounds']} rounds"
    if future["error"]:
        return f"{text}, then: {future['error']}"
    return f"{text}, cut short" if future["cut"] else text


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def _hours(future: Mapping[str, Any], key: str) -> str | None:
    """Hours, at least: of jobs that were not done by the end of the look ahead only what is left of them is known."""
    seconds = future.get(key)
    if seconds is None:
        return None
    return f"{'' if future['finished'] == future['jobs'] else '≥ '}{seconds / 3600:.3f}"


def _job_row(job: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "job_id": job["job_id"],
        "tenant": job["tenant"],
        "gpus": job["num_gpus"],
        "now": job["now"] or "waits",
        "as_it_is": job["present"] or "waits",
        "what_if": job["alternative"] or "waits",
    }
