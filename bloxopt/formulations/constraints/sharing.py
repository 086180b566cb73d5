"""Space sharing: a job can share GPUs only with one that shares them with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.checks import checked_amount, checked_flag
from bloxopt.formulations.constraints.base import Constraint
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.sums import sum_by
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class PairedShares(Constraint):
    """Time beside a partner is equal on both sides: pairs of jobs on the same GPUs (Gavel's space sharing).

    With ``x_iBj`` the time share of job i beside a job of kind B on GPU type j (see :mod:`bloxopt.pairing`), for kinds
    A ≠ B

        Σ_{i in A} x_iBj = Σ_{k in B} x_kAj

    and within a kind ``2 x_iAj ≤ Σ_{k in A} x_kAj``, since no job is its own partner. These are exactly the shares
    that can be divided among pairs of jobs (a transportation problem; a graph without loops that has these
    degrees), so the program has the same optimum as one with a column for each pair of jobs, and far fewer columns.

    ``threshold`` says which pairs are considered: those whose normalised throughputs add up to more. 1 loses nothing.
    With ``whole`` a kind's jobs pair up within a round: for policies with OneConfiguration, whose shares are 0 or 1.
    Source: Narayanan et al., OSDI 2020, §3.1, where pairs are columns of their own.
    """

    threshold: float = 1.0
    whole: bool = False
    name: str | None = field(default=None, kw_only=True)
    progress_dependent = False
    physical = True

    def __post_init__(self) -> None:
        checked_amount("PairedShares", "threshold", self.threshold)
        checked_flag("PairedShares", "whole", self.whole)

    @property
    def pair_threshold(self) -> float | None:  # type: ignore[override]
        return self.threshold

    def build(self, space: AllocationSpace, program: Program) -> None:
        groups = _Groups.of(space)
        program.deferred = (space.partner >= 0).nonzero()[0]
        balance = groups.between(space)
        program.add_rows(balance, lower=0.0, upper=0.0, labels=lambda: groups.labels(space, groups.different))
        column = groups.within
        if not len(column):
            return
        # One more column a group for its total keeps the rows short: jobs of a kind may be many.
        group, count = np.unique(groups.of_column[column], return_inverse=True, return_counts=True)[1:]
        upper = count.astype(np.float64) if not self.whole else np.floor(count / 2)
        total = program.add_columns(len(count), 0.0, upper, integer=self.whole)
        per_total = 2.0 if self.whole else 1.0
        rows = Affine(
            np.concatenate([group, np.arange(len(count))]),
            np.concatenate([column, total]),
            np.concatenate([np.ones(len(column)), np.full(len(count), -per_total)]),
            np.zeros(len(count)),
        )
        program.add_rows(rows, 0.0, 0.0, labels=lambda: groups.labels(space, groups.same))
        if self.whole:
            return
        each = np.arange(len(column))
        at_most = Affine(
            np.concatenate([each, each]),
            np.concatenate([column, total[group]]),
            np.concatenate([np.full(len(column), 2.0), np.full(len(column), -1.0)]),
            np.zeros(len(column)),
        )
        program.add_rows(at_most, upper=0.0, labels=lambda: [str(name) for name in space.job_ids[space.job[column]]])

    def violations(self, space: AllocationSpace, x: FloatArray) -> FloatArray:
        groups = _Groups.of(space)
        apart = np.abs(groups.between(space).at(x))
        own = groups.within
        total = sum_by(groups.of_column[own], x[own], groups.number)
        alone = np.maximum(2.0 * x[own] - total[groups.of_column[own]], 0.0)
        parts = [apart, alone]
        if self.whole:
            count = total[groups.same]
            parts.append(np.abs(count - 2.0 * np.round(count / 2.0)))
        return np.concatenate(parts)

    def labels(self, space: AllocationSpace) -> Sequence[str]:
        groups = _Groups.of(space)
        names = groups.labels(space, groups.different)
        names += [str(name) for name in space.job_ids[space.job[groups.within]]]
        return names + (groups.labels(space, groups.same) if self.whole else [])


@dataclass(frozen=True, eq=False)
class _Groups:
    """Columns by unordered pair of kinds and GPU type.

    ``of_column`` (num_columns,) is -1 for columns without a partner, ``sign`` tells the two sides apart, ``key``
    (groups, 3) has the kinds and the GPU type.
    """

    of_column: IntArray
    sign: FloatArray
    key: IntArray

    @classmethod
    def of(cls, space: AllocationSpace) -> _Groups:
        pairing = space.catalog.pairing
        if pairing is None:
            raise FormulationError(
                "PairedShares: the space has no columns for jobs that share GPUs: make it with "
                "AllocationSpace.from_jobs(..., pair_threshold=policy.pair_threshold)"
            )
        column = (space.partner >= 0).nonzero()[0]
        own, partner = pairing.kind[space.index[space.job[column]]], space.partner[column]
        types, kinds = len(space.gpu_types), len(pairing.names)
        code = (np.minimum(own, partner) * kinds + np.maximum(own, partner)) * types + space.gpu_type[column]
        codes, group = np.unique(code, return_inverse=True)
        of_column = np.full(space.num_columns, -1)
        of_column[column] = group
        sign = np.zeros(space.num_columns)
        sign[column] = np.sign(partner - own)
        pair, kind = np.divmod(codes, types)
        return cls(of_column, sign, np.column_stack([*np.divmod(pair, kinds), kind]))

    @property
    def number(self) -> int:
        return len(self.key)

    @property
    def _is_same(self) -> BoolArray:
        return np.asarray(np.equal(self.key[:, 0], self.key[:, 1]))

    @property
    def same(self) -> IntArray:
        """Groups of one kind."""
        return self._is_same.nonzero()[0]

    @property
    def different(self) -> IntArray:
        """Groups of two kinds."""
        return (~self._is_same).nonzero()[0]

    @property
    def within(self) -> IntArray:
        """Columns of jobs beside another of their own kind."""
        within: IntArray = ((self.of_column >= 0) & (self.sign == 0)).nonzero()[0]
        return within

    def between(self, space: AllocationSpace) -> Affine:
        """A row for each group of two kinds: the time of the one kind beside the other less that of the other."""
        number = np.cumsum(~self._is_same) - 1
        column = (self.sign != 0).nonzero()[0]
        return Affine(number[self.of_column[column]], column, self.sign[column], np.zeros(len(self.different)))

    def labels(self, space: AllocationSpace, group: IntArray) -> list[str]:
        pairing = space.catalog.pairing
        assert pairing is not None
        return [
            f"{pairing.names[a]} beside {pairing.names[b]} on {pairing.num_gpus[a]} x {space.gpu_types[j]}"
            for a, b, j in self.key[group].tolist()
        ]
