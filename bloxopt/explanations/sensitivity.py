"""What one unit more would be worth: a GPU of each type, a unit of each quota; by the duals, and by solving again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from bloxopt.errors import BloxoptError
from bloxopt.formulations.constraints.base import Constraint, excess, name_blocks
from bloxopt.formulations.policy import Policy
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.session import built_program
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray
from bloxopt.solvers.base import Solver

_MOST_ROWS = 50
"""Rows of a block that are looked at, the dearest first: per-job rows are many, and most cost nothing."""


def sensitivity(
    policy: Policy,
    space: AllocationSpace,
    solver: str | Solver | None = None,
    amount: float = 1.0,
    confirm: bool = True,
) -> pd.DataFrame:
    """What ``amount`` units more room in each row of each block would change of the objective, in its natural sense.

    One row per row of a block with upper limits (GPUs of a type, a tenant's quota, a budget …), dearest first:
    ``block``, ``row``, ``unit``, ``price`` (of a unit, from the duals; NaN without) and, with ``confirm``, ``worth``:
    the change of the objective when it is solved again with that much more room (NaN where that has no solution). By
    concavity of linear programs ``worth`` is at most ``price`` times ``amount`` for what is maximised.
    Raises what :meth:`Policy.allocate` raises.
    """
    before = policy.allocate(space, solver)
    duals = before.duals or {}
    sign = -1.0 if policy.objective.minimised else 1.0
    rows = []
    for name, block in name_blocks(policy.blocks).items():
        program = built_program(space, {name: block})
        upper = program.compile_rows().row_upper
        labels = [label for family in program.families for label in family.row_labels()]
        price = duals[name].to_numpy() if name in duals else np.full(len(upper), np.nan)
        order = np.argsort(-np.nan_to_num(np.abs(price)), kind="stable")
        for row in [int(r) for r in order if np.isfinite(upper[r])][:_MOST_ROWS]:
            entry = {"block": name, "row": labels[row], "unit": block.unit, "price": sign * float(price[row]) + 0.0}
            if confirm:
                entry["worth"] = _worth(policy, space, solver, name, row, amount, before.objective)
            rows.append(entry)
    columns = ["block", "row", "unit", "price", *(["worth"] if confirm else [])]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.sort_values("price", key=np.abs, ascending=False, kind="stable", ignore_index=True)


def _worth(
    policy: Policy, space: AllocationSpace, solver: str | Solver | None, name: str, row: int, amount: float, now: float
) -> float:
    """The change of the objective with more room in one row."""
    blocks = name_blocks(policy.blocks)
    blocks[name] = _MoreRoom(blocks[name], name, row, amount)
    try:
        return replace(policy, constraints=list(blocks.values())).allocate(space, solver).objective - now
    except BloxoptError:
        return float("nan")


class _MoreRoom(Constraint):
    """Another block with its ``row``-th row's upper limit raised."""

    progress_dependent = False

    def __init__(self, block: Constraint, name: str, row: int, amount: float) -> None:
        self.block, self.name, self.row, self.amount = block, name, row, amount
        self.exclusive_time = block.exclusive_time

    def build(self, space: AllocationSpace, program: Program) -> None:
        first = program.num_rows
        self.block.build(space, program)
        program.raise_upper(first + self.row, self.amount)

    def violations(self, space: AllocationSpace, x: FloatArray) -> FloatArray:
        program = Program(space)
        self.build(space, program)
        form = program.compile_rows()
        own = np.zeros(form.num_columns)
        own[: len(x)] = x
        foreign = np.bincount(form.matrix.indices[form.matrix.indptr[len(x)] :], minlength=form.num_rows) > 0
        return np.where(foreign, 0.0, excess(form.matrix @ own, form.row_lower, form.row_upper))

    def labels(self, space: AllocationSpace) -> Sequence[str]:
        program = Program(space)
        self.build(space, program)
        return [label for family in program.families for label in family.row_labels()]
