"""Options by which a command is told of another way to decide, and what they say as plain data."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bloxopt.errors import InputError

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="An option of one of these, such as placement.time_limit=1; repeatable.",
        metavar="PART.KEY=VALUE",
    ),
]

PARTS = ("policy", "admission", "placement", "selector")


def alternative(
    policy: str | None,
    solver: str | None,
    placement: str | None,
    selector: str | None,
    admission: str | None,
    settings: list[str] | None,
) -> dict[str, Any]:
    """The parts that are to be others, each ``{"name": …, "options": {…}}``, and the solver; {} for none.

    Raises :class:`~bloxopt.errors.InputError` for a setting that is not of the form, or of a part without a name.
    """
    from bloxopt.experiments.reading import parse_value

    names = {"policy": policy, "placement": placement, "selector": selector, "admission": admission}
    parts: dict[str, Any] = {part: {"name": name, "options": {}} for part, name in names.items() if name is not None}
    for setting in settings or []:
        key, equals, text = setting.partition("=")
        part, dot, option = key.strip().partition(".")
        if not equals or not dot or not option or part not in PARTS:
            raise InputError(f"--set {setting}: write PART.KEY=VALUE, where PART is one of {', '.join(PARTS)}")
        if part not in parts:
            raise InputError(f"--set {setting}: give --{part} too, whose option it is")
        parts[part]["options"][option] = parse_value(text.strip())
    return parts if solver is None else parts | {"solver": solver}
