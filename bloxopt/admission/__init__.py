"""Admission: which submitted jobs are let in, and when.

An admission is an object with one method, ``decide``, in a file of its own and one line in :data:`ADMISSIONS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bloxopt.admission.base import AcceptAll, Admission
from bloxopt.errors import InputError
from bloxopt.registry import Registry

ADMISSIONS = Registry(
    "admission",
    {
        "accept_all": "bloxopt.admission.base:AcceptAll",
        "load_threshold": "bloxopt.admission.load_threshold:LoadThreshold",
        "deadline_feasible": "bloxopt.admission.deadline_feasible:DeadlineFeasible",
        "elasticflow": "bloxopt.admission.elasticflow:ElasticFlow",
        "quota": "bloxopt.admission.quota:Quota",
    },
)


def get_admission(admission: str | Admission, /, **options: Any) -> Admission:
    """The admission of that name with the given options; an object with a method ``decide`` is returned as it is.

    Raises :class:`~bloxopt.errors.UnknownNameError` with a suggestion and :class:`~bloxopt.errors.InputError` for
    options that it does not take and for what is no admission.
    """
    if isinstance(admission, str):
        made: Admission = ADMISSIONS.make(admission, options)
        return made
    if isinstance(admission, type) or not callable(getattr(admission, "decide", None)):
        raise InputError(
            f"admission is {admission!r}: it must be a name of `bloxopt admissions` or an object with a method decide, "
            "see bloxopt.admission.Admission"
        )
    if options:
        raise InputError(f"admission is an object already: it takes no options ({', '.join(options)})")
    return admission


@dataclass(frozen=True, slots=True)
class AdmissionRow:
    """One line of ``bloxopt admissions``."""

    name: str
    description: str


def admission_table() -> list[AdmissionRow]:
    """Name and one-line description of every registered admission."""
    return [AdmissionRow(name, (ADMISSIONS.get(name).__doc__ or "").strip().splitlines()[0]) for name in ADMISSIONS]


__all__ = ["ADMISSIONS", "AcceptAll", "Admission", "AdmissionRow", "admission_table", "get_admission"]
