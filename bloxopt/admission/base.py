"""What an admission is: it lets submitted jobs in, turns them away, or has them wait."""

from __future__ import annotations

from typing import Literal, Protocol, get_args

import numpy as np

from bloxopt.errors import InputError, guarded
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import IntArray
from bloxopt.wording import shown

Otherwise = Literal["wait", "reject"]
"""What becomes of a job that is not admitted: it is asked about again in every round, or turned away for good."""


class Admission(Protocol):
    """Decides on submitted jobs. Like a policy it holds no state: see :meth:`bloxopt.state.JobLedger.memory`."""

    def decide(self, submitted: IntArray, space: AllocationSpace) -> tuple[IntArray, IntArray]:
        """Rows of the job table to admit and rows to reject, both in order; what is in neither waits.

        ``submitted`` are rows in order of arrival; ``space`` holds the active jobs (with the ledger, the catalog, the
        time and the GPUs that are up), and ``space.including(rows)`` others beside them.
        ``space.ledger.explain(rows, reason)`` notes why jobs are not admitted.
        """
        ...


class AcceptAll:
    """Admit every job as soon as it is submitted."""

    def decide(self, submitted: IntArray, space: AllocationSpace) -> tuple[IntArray, IntArray]:
        return submitted, submitted[:0]


def checked_otherwise(user: str, value: object) -> Otherwise:
    """``value`` if it says what becomes of jobs that are not admitted; raises :class:`InputError` if not."""
    for choice in get_args(Otherwise):
        if value == choice:
            return choice  # type: ignore[no-any-return]
    raise InputError(f"{user}: otherwise is {value!r}, must be 'wait' or 'reject'")


def as_rows(rows: list[int]) -> IntArray:
    """Rows of the job table as an array."""
    return np.array(rows, dtype=np.int64)


def checked_decision(admission: Admission, submitted: IntArray, space: AllocationSpace) -> tuple[IntArray, IntArray]:
    """What an admission answers, checked: rows of ``submitted``, each at most once, to admit and to reject.

    Raises :class:`InputError` naming the admission for anything else. Reasons that it does not give are filled in.
    """
    name = type(admission).__name__
    with guarded(f"admission {name}: decide(submitted, space)"):
        answer: object = admission.decide(submitted, space)
    try:
        admit, reject = (np.asarray(rows) for rows in answer)  # type: ignore[attr-defined]
        both = np.concatenate([admit, reject])
        fits = admit.ndim == 1 and (both.dtype.kind in "iu" or not len(both))
        # Mostly one or two rows, for which sets are much faster than sorting.
        fits = fits and len(named := set(both.tolist())) == len(both) and named <= set(submitted.tolist())
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise InputError(
            f"admission {name}: decide(submitted, space) gave {shown(answer)}, must give two "
            "arrays: the rows of submitted that are admitted, and those that are rejected"
        )
    if len(admit) < len(submitted):
        kept_out = np.setdiff1d(submitted, admit).tolist()
        unexplained = [row for row in kept_out if row not in space.ledger.refusals]
        space.ledger.explain(unexplained, f"the admission {name} did not say why")
    return admit.astype(np.int64), reject.astype(np.int64)
