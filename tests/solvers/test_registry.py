"""Solvers by name: the table, the errors, the options and the choices of ``auto``."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from canonical_programs import program

from bloxopt.errors import InputError, SolverError, SolverNotInstalledError, UnknownNameError
from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.jobs import FloatArray
from bloxopt.solvers import (
    SOLVERS,
    TOLERANCES,
    Capabilities,
    SolverOptions,
    SolverResult,
    Termination,
    automatic,
    get_solver,
    solve,
    solver_table,
)

NAMES = {
    "ortools:glop", "ortools:pdlp", "ortools:cp-sat", "ortools:scip", "ortools:highs", "cvxpy:clarabel", "cvxpy:scs",
    "cvxpy:highs", "pulp:cbc", "pulp:highs", "highs", "prices", "auto",
}  # fmt: skip
LINEAR = program([-3, -5], [[1, 0], [0, 2], [3, 2]], row_upper=[4, 12, 18])
INTEGER = program([-3, -5], [[1, 0], [0, 2], [3, 2]], row_upper=[4, 12, 18], integer=True)


def test_the_promised_solvers_are_registered_under_their_own_names() -> None:
    assert set(SOLVERS) == NAMES == set(TOLERANCES)
    assert {get_solver(name).name for name in SOLVERS} == NAMES


def test_the_table_has_a_line_a_solver_with_classes_and_version() -> None:
    rows = {row.name: row for row in solver_table()}
    assert set(rows) == NAMES
    assert rows["ortools:glop"].classes == "LP"
    assert rows["ortools:cp-sat"].classes == "MIP"
    assert rows["highs"].classes == "LP, MIP"
    assert all(row.installed and row.version[0].isdigit() for row in rows.values() if row.version)
    assert all(0 < row.tolerance <= 1e-4 for row in rows.values())


@pytest.mark.parametrize(
    ("wrong", "right"), [("ortools:glob", "ortools:glop"), ("HIGHS", "highs"), ("cbc", "pulp:cbc")]
)
def test_an_unknown_name_is_answered_with_a_suggestion(wrong: str, right: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown solver '{wrong}': did you mean '{right}'"):
        get_solver(wrong)


@pytest.mark.parametrize("name", [n for n in sorted(NAMES) if not get_solver(n).capabilities.mip])
def test_a_solver_without_integers_names_those_with(name: str) -> None:
    with pytest.raises(SolverError, match=f"{name} solves linear programs only.*highs.*ortools:scip"):
        solve(INTEGER, name)


def test_a_solver_without_continuous_columns_names_those_with() -> None:
    with pytest.raises(SolverError, match=r"ortools:cp-sat solves integer programs only.*ortools:glop"):
        solve(LINEAR, "ortools:cp-sat")


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("highs", "highspy", "highspy"),
        ("ortools:glop", "ortools", "ortools"),
        ("cvxpy:clarabel", "clarabel", "clarabel"),
        ("cvxpy:scs", "cvxpy", "cvxpy"),
        ("pulp:cbc", "pulp", "pulp"),
        ("pulp:highs", "highspy", "highspy"),
        ("cvxpy:highs", "highspy", "highspy"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    name: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SolverNotInstalledError, match=f"solver {name} needs .*pip install .*{package}"):
        solve(LINEAR, name)


def test_the_table_shows_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pulp", None)
    rows = {row.name: row for row in solver_table()}
    assert not rows["pulp:cbc"].installed
    assert rows["highs"].installed


def test_listing_solvers_imports_none_of_them() -> None:
    code = (
        "import sys, bloxopt.solvers as s; s.solver_table();"
        "print(sorted({'ortools', 'cvxpy', 'pulp', 'highspy', 'clarabel', 'scs'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


NOT_NUMBERS: list[object] = ["x", "1", True, 1j, [1], {}, np.nan, np.inf, -1, -1.5]
OUT_OF_RANGE = {
    "time_limit": [*NOT_NUMBERS, 1e300, 10**400],
    "mip_gap": NOT_NUMBERS,
    "threads": [*NOT_NUMBERS, 0, 1.5, 2.0, 2**31],
    "seed": [*NOT_NUMBERS, 1.5, 2.0, 2**31],
}


@pytest.mark.parametrize(("option", "value"), [(name, value) for name, bad in OUT_OF_RANGE.items() for value in bad])
def test_an_option_out_of_range_is_named_where_it_is_given(option: str, value: object) -> None:
    with pytest.raises(InputError, match=f"solver option {option} is .*it must be"):
        SolverOptions(**{option: value})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"solver option {option} is"):
        solve(LINEAR, **{option: value})  # type: ignore[arg-type]


def test_options_may_be_numpy_numbers_or_zero() -> None:
    options = SolverOptions(np.float32(0.0), np.int64(0), np.int32(1), np.uint8(0))  # type: ignore[arg-type]
    assert (options.time_limit, options.mip_gap, options.threads, options.seed) == (0, 0, 1, 0)


@pytest.mark.parametrize("name", [name for name in SOLVERS if get_solver(name).capabilities.threads])
def test_more_threads_than_processors_are_as_many_as_there_are(name: str) -> None:
    assert SolverOptions(threads=10**6).threads == os.cpu_count()
    # A process of its own: HiGHS has aborted, and hung, when it started a million threads.
    code = (
        "import numpy as np; from scipy.sparse import csc_array; from bloxopt.solvers import solve;"
        "from bloxopt.formulations.solving.standard_form import StandardForm; one = np.ones(2);"
        "form = StandardForm(-one, csc_array(one[None]), -np.inf * one[:1], one[:1], 0 * one, one,"
        f"                   np.full(2, {not get_solver(name).capabilities.lp}));"
        f"print(round(solve(form, {name!r}, threads=10**6).objective, 4))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "-1.0"


@pytest.mark.parametrize("solver", [3, None, object(), ["highs"], SolverOptions])
def test_what_is_no_solver_is_refused(solver: object) -> None:
    with pytest.raises(InputError, match=r"solver is .* name of `bloxopt solvers` or an object with solve"):
        get_solver(solver)  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [np.zeros(3), np.array([np.nan, 0])])
def test_a_warm_start_of_the_wrong_kind_is_refused(start: FloatArray) -> None:
    with pytest.raises(InputError, match="warm_start must be 2 finite numbers"):
        solve(LINEAR, "highs", warm_start=start)


@pytest.mark.parametrize("field", ["cost", "row_lower", "row_upper", "lower", "upper"])
def test_a_nan_in_the_program_is_named(field: str) -> None:
    values = {"cost": [1.0, 1.0], "row_lower": [0.0], "row_upper": [1.0], "lower": [0.0, 0.0], "upper": [1.0, 1.0]}
    values[field][-1] = np.nan
    form = program(values.pop("cost"), [[1, 1]], **values)  # type: ignore[arg-type]
    with pytest.raises(SolverError, match=rf"the program's {field}\[\d\] is nan"):
        solve(form, "highs")


# --- auto ------------------------------------------------------------------------------------------


class Scripted:
    """A solver that gives one prepared ending."""

    capabilities = Capabilities(mip=True)

    def __init__(self, name: str, termination: Termination, objective: float | None = None) -> None:
        self.name = name
        x = None if objective is None else np.zeros(2)
        self.result = SolverResult(termination, x, objective, solver=name, message=f"{name} said {termination}")
        self.asked: list[SolverOptions] = []

    def solve(
        self, form: StandardForm, options: SolverOptions = SolverOptions(), warm_start: FloatArray | None = None
    ) -> SolverResult:
        self.asked.append(options)
        return self.result


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> list[Scripted]:
    """Solvers that ``auto`` will ask in order, to be filled by the test."""
    solvers: list[Scripted] = []
    monkeypatch.setattr(automatic, "candidates", lambda form: tuple(solver.name for solver in solvers))
    monkeypatch.setattr("bloxopt.solvers.registry.get_solver", lambda name: next(s for s in solvers if s.name == name))
    return solvers


def test_auto_says_who_answered() -> None:
    result = solve(LINEAR)
    assert result.solver in NAMES - {"auto"}
    assert result.objective == pytest.approx(-36)


def test_auto_asks_the_next_solver_after_an_error(scripted: list[Scripted]) -> None:
    scripted += [
        Scripted("a", Termination.ERROR),
        Scripted("b", Termination.OPTIMAL, 1.0),
        Scripted("c", Termination.ERROR),
    ]
    result = automatic.AUTO.solve(LINEAR)
    assert (result.solver, result.termination) == ("b", Termination.OPTIMAL)
    assert not scripted[2].asked


def test_auto_asks_the_next_solver_after_an_answer_without_proof(scripted: list[Scripted]) -> None:
    scripted += [Scripted("a", Termination.FEASIBLE, 2.0), Scripted("b", Termination.LIMIT_NO_SOLUTION)]
    result = automatic.AUTO.solve(LINEAR)
    assert (result.solver, result.objective) == ("a", 2.0)


def test_auto_stops_at_the_time_limit_with_what_it_has(scripted: list[Scripted]) -> None:
    scripted += [Scripted("a", Termination.LIMIT_NO_SOLUTION), Scripted("b", Termination.OPTIMAL, 1.0)]
    result = automatic.AUTO.solve(LINEAR, SolverOptions(time_limit=0.0))
    assert result.solver == "a"
    assert not scripted[1].asked


def test_auto_reports_every_failure(scripted: list[Scripted]) -> None:
    scripted += [Scripted("a", Termination.ERROR), Scripted("b", Termination.ERROR)]
    result = automatic.AUTO.solve(LINEAR)
    assert result.termination is Termination.ERROR
    assert "a said error" in result.message
    assert "b said error" in result.message


def test_auto_does_without_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = automatic.candidates(LINEAR)[:2]
    monkeypatch.setitem(sys.modules, {"highs": "highspy", "cvxpy:clarabel": "clarabel"}[first], None)
    assert solve(LINEAR).solver == second


def test_auto_without_any_solver_names_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("highspy", "clarabel", "ortools"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        SolverNotInstalledError, match=r"pip install highspy.*pip install ortools.*pip install clarabel"
    ):
        solve(LINEAR)
