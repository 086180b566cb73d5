"""Solvers of several packages serve one process, in whatever order they are first asked."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bloxopt.solvers import SOLVERS, get_solver

INTEGER = [name for name in SOLVERS if get_solver(name).capabilities.mip]

ASK_ALL = """
import sys
import numpy as np
import scipy.sparse as sp
from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.solvers import get_solver

random = np.random.default_rng(0)
share = random.integers(0, 100, (4, 30)).astype(float)
side = np.floor(share.sum(axis=1) / 2)
cost = -random.integers(1, 100, 30).astype(float)
none, whole = np.full(4, -np.inf), np.ones(30, dtype=bool)
form = StandardForm(cost, sp.csc_array(share), none, side, np.zeros(30), np.ones(30), whole)
values = [get_solver(name).solve(form).objective for name in sys.argv[1:]]
assert np.allclose(values, values[0], rtol=2e-3), values
"""


@pytest.mark.parametrize("first", INTEGER)
def test_the_first_solver_of_a_process_leaves_the_others_intact(first: str) -> None:
    others = [name for name in INTEGER if name != first]
    done = subprocess.run([sys.executable, "-c", ASK_ALL, first, *others], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
