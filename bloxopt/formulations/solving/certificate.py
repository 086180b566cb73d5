"""How good an allocation is proven to be: worked out again from the program and its row prices alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.jobs import FloatArray
from bloxopt.solvers.check import dual_bound, relative_row_violation

VERIFIED_WITHIN = 1e-5
"""Relative gap between a point and the bound that its prices prove, up to which it counts as optimal."""


@dataclass(frozen=True, eq=False)
class Proof:
    """The program that gave an allocation: its neutral ``form``, the solution ``x`` (n,) and row prices (m,) if any.

    Where the objective is not the form's, ``sensitivity`` is by what part of itself the objective changes when the
    form's value changes by a part of itself.
    """

    form: StandardForm
    x: FloatArray
    row_duals: FloatArray | None
    sensitivity: float = 1.0


@dataclass(frozen=True)
class Verification:
    """What the prices of a linear program prove about a point.

    ``primal_residual``: how far it leaves rows or bounds, relative. ``duality_gap``: distance of its value from the
    bound that the prices prove, relative to the terms of the objective; inf without prices. ``verified``: both are
    within tolerance, so the point is optimal, whatever the solver said. For an objective that is solved by level
    programs, the program is that of its levels: no point raises all of them together.
    """

    primal_residual: float
    duality_gap: float
    verified: bool


@dataclass(frozen=True)
class Certificate:
    """What is proven of an allocation, in its objective's natural sense.

    ``status`` how the solve ended · ``objective``, ``bound``, ``gap`` (relative; None: no bound) · ``binding`` the
    constraint blocks that cost utility, with the summed size of their rows' prices; where there are no prices (a MIP),
    those with a row without room, with how many · ``verification`` of a linear program, None for others.
    """

    status: str
    objective: float
    bound: float | None
    gap: float | None
    binding: Mapping[str, float]
    verification: Verification | None


def verify(proof: Proof, feasibility: float = 1e-6, optimality: float = VERIFIED_WITHIN) -> Verification:
    """Check a point of a linear program against its rows, and its value against what the row prices prove.

    Weak duality: whatever the prices are, ``Σ_i y_i b_i + Σ_j d_j l_j or u_j`` with ``d = c − Aᵀy`` is at most the
    minimum. So a small gap proves that the point is optimal, and nothing needs to be believed.
    """
    form, x = proof.form, proof.x
    outside = np.maximum(form.lower - x, x - form.upper) / np.maximum(1.0, np.abs(x))
    residual = max(
        float(relative_row_violation(form, x).max(initial=0.0)), float(np.maximum(outside, 0.0).max(initial=0.0))
    )
    if proof.row_duals is None or not np.all(np.isfinite(proof.row_duals)):
        return Verification(residual, float("inf"), False)
    value = float(form.cost @ x)
    bound = dual_bound(form, proof.row_duals, x)
    size = max(float(np.abs(form.cost) @ np.abs(x)), abs(bound.bound), 1e-12)
    gap = proof.sensitivity * abs(value - bound.bound) / size if np.isfinite(bound.bound) else float("inf")
    return Verification(residual, gap, residual <= feasibility and gap <= optimality)
