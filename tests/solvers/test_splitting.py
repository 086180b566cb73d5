"""Columns of very many entries, split into copies: another program with the same answers."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from scipy.sparse import csc_array

from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.solvers import get_solver, splitting
from bloxopt.solvers.base import Basis, Start, Status
from bloxopt.solvers.splitting import Split


def levels(seed: int, jobs: int = 40, kinds: int = 3) -> StandardForm:
    """A max-min program: the level, the first column, stands in the row of every job."""
    rng = np.random.default_rng(seed)
    shares = jobs * kinds
    matrix = np.zeros((2 * jobs + kinds, shares + 1))
    owner, kind = np.repeat(np.arange(jobs), kinds), np.tile(np.arange(kinds), jobs)
    column = 1 + np.arange(shares)
    matrix[owner, column] = rng.uniform(0.5, 4.0, shares)
    matrix[:jobs, 0] = -1.0
    matrix[jobs + owner, column] = 1.0
    matrix[2 * jobs + kind, column] = rng.integers(1, 5, jobs)[owner]
    return StandardForm(
        cost=np.append(-1.0, np.zeros(shares)),
        matrix=csc_array(matrix),
        row_lower=np.concatenate([np.zeros(jobs), np.full(jobs + kinds, -np.inf)]),
        row_upper=np.concatenate([np.full(jobs, np.inf), np.ones(jobs), rng.uniform(3.0, 12.0, kinds)]),
        lower=np.zeros(shares + 1),
        upper=np.append(100.0, np.ones(shares)),
        integer=np.zeros(shares + 1, dtype=bool),
    )


@pytest.fixture
def short(monkeypatch) -> None:
    monkeypatch.setattr(splitting, "LONG", 10)
    monkeypatch.setattr(splitting, "_PART", 4)


@pytest.mark.usefixtures("short")
def test_a_long_column_has_copies_and_the_others_stay() -> None:
    form = levels(0)
    split = Split.of(form)
    assert set(split.copied) == {0}
    assert len(split.copied) == 9  # 40 entries, 4 in the column itself and in each copy
    assert np.diff(split.form.matrix.indptr).max() <= 4 + 9
    x = np.random.default_rng(0).uniform(0.0, 1.0, form.num_columns)
    activity = split.form.matrix @ np.append(x, np.full(9, x[0]))
    assert activity[: form.num_rows] == pytest.approx(form.matrix @ x)
    assert activity[form.num_rows :] == pytest.approx(0.0)


@pytest.mark.usefixtures("short")
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_optimum_is_the_same(seed: int) -> None:
    form = levels(seed)
    whole, split = get_solver("highs").solve(form), get_solver("highs").solve(Split.of(form).form)
    assert split.objective == pytest.approx(whole.objective, rel=1e-9)
    assert split.x is not None
    assert form.max_violation(split.x[: form.num_columns]) < 1e-9


@pytest.mark.usefixtures("short")
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_resumed_solve_gives_answer_and_basis_of_the_program_itself(seed: int) -> None:
    form = levels(seed)
    cold = get_solver("highs").solve(form)
    none_new = np.zeros(form.num_columns, dtype=bool), np.zeros(form.num_rows, dtype=bool)
    warm = get_solver("highs").solve(form, start=Start(cold.x, cold.row_duals, *none_new, cold.basis))
    assert warm.resumed
    assert warm.x.shape == cold.x.shape
    assert warm.row_duals.shape == cold.row_duals.shape
    assert warm.objective == pytest.approx(cold.objective, rel=1e-9)
    assert warm.basis.column.shape == cold.x.shape
    assert warm.basis.row.shape == cold.row_duals.shape
    assert (warm.basis.column == Status.BASIC).sum() + (warm.basis.row == Status.BASIC).sum() == form.num_rows


def test_without_long_columns_nothing_changes() -> None:
    form = levels(1)
    split = Split.of(form)
    assert split.form is form
    basis = Basis(np.zeros(form.num_columns, np.int8), np.ones(form.num_rows, np.int8))
    assert split.basis(basis).column.tolist() == basis.column.tolist()
    assert split.own(np.arange(3.0), np.arange(2.0))[0].tolist() == [0.0, 1.0, 2.0]
