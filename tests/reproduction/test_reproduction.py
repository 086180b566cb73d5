"""Published figures are reproduced, and one that is not is said so."""

from __future__ import annotations

import json

import pytest

from bloxopt.cli import run as run_cli
from bloxopt.errors import InputError, UnknownNameError
from bloxopt.reproduction import SYSTEMS, Figure, Run, reproduce
from bloxopt.reproduction.base import as_rows, compare

FAST = ("gavel", "blox", "tiresias")


def _run(value: float, **figure: object) -> Run:
    return Run(
        trace="t",
        policy="p",
        source="s",
        measure=lambda: {"average_jct": value},
        figures=(Figure(metric="average_jct", reference=100.0, **figure),),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("name", FAST)
def test_every_published_figure_is_reproduced(name: str) -> None:
    lines = reproduce([name])
    assert lines
    assert [line for line in lines if line.verdict != "reproduced"] == []


@pytest.mark.parametrize(
    ("value", "figure", "verdict"),
    [
        (101.9, {}, "reproduced"),
        (98.1, {}, "reproduced"),
        (102.1, {}, "differs"),
        (97.9, {}, "differs"),
        (104.0, {"tolerance": 0.05}, "reproduced"),
        (50.0, {"goal": "at_most"}, "reproduced"),
        (100.0, {"goal": "at_most"}, "reproduced"),
        (100.1, {"goal": "at_most"}, "differs"),
        (120.0, {"explanation": "another tie-break"}, "explained"),
        (101.0, {"explanation": "another tie-break"}, "reproduced"),
    ],
)
def test_a_figure_counts_as_reproduced_within_its_tolerance(value: float, figure: dict, verdict: str) -> None:
    [line] = compare("system", _run(value, **figure), {"average_jct": value})
    assert line.verdict == verdict
    assert line.difference == pytest.approx(value / 100 - 1)


def test_the_table_says_which_figures_may_be_anything_up_to_the_reference() -> None:
    rows = as_rows(compare("system", _run(50.0, goal="at_most"), {"average_jct": 50.0}))
    rows += as_rows(compare("system", _run(99.999), {"average_jct": 99.999}))
    assert [row["reference"] for row in rows] == ["≤ 100", "100"]
    assert [row["difference"] for row in rows] == ["-50.00 %", "+0.00 %"]


def test_a_metric_that_was_not_measured_is_an_error_that_names_it() -> None:
    with pytest.raises(InputError, match="average_jct"):
        compare("system", _run(1.0), {"makespan": 1.0})


def test_an_unknown_system_is_refused_by_name() -> None:
    with pytest.raises(UnknownNameError, match="gavel"):
        reproduce(["gavle"])
    assert run_cli(["reproduce", "gavle"]) == 2


def test_the_command_prints_the_table_as_json_and_writes_it_as_csv(tmp_path, capsys) -> None:
    SYSTEMS.register("wrong", (_run(150.0),))
    try:
        assert run_cli(["reproduce", "wrong", "--json", "--csv", str(tmp_path / "table.csv")]) == 1
    finally:
        SYSTEMS._entries.pop("wrong")
    [line] = json.loads(capsys.readouterr().out)
    assert (line["verdict"], line["reference"], line["measured"]) == ("differs", 100.0, 150.0)
    assert "differs" in (tmp_path / "table.csv").read_text()
