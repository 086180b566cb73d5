"""What-if questions about the running scheduler, worked out in a process of its own on a copy of it."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from typing import Annotated, Any

from pydantic import Field, field_validator

from bloxopt.errors import BloxoptError, InputError
from bloxopt.runtime.live.faults import ConflictError
from bloxopt.runtime.service.config import Component, Section, ServiceConfig
from bloxopt.runtime.service.copies import BusyError, Copy
from bloxopt.simulation.whatif import Alternative

MOST_SECONDS = 60.0
"""Seconds of processor time that one question may ask for."""

_FILES = (".toml", ".csv", ".json", ".py", ".gz", ".parquet")
_PATIENCE = 4.0
"""Seconds of waiting for each second of processor time: other processes use the machine too."""


class Question(Section):
    """What is to be other than it is, the ``horizon`` (s) to look ahead, and the ``budget`` (s) of processor time.

    Parts are registered names, with options as plain values: nothing is read from files.
    """

    policy: Component | None = None
    admission: Component | None = None
    placement: Component | None = None
    selector: Component | None = None
    solver: Annotated[str, Field(max_length=128)] | None = None
    horizon: Annotated[float, Field(ge=0, le=31 * 86_400, allow_inf_nan=False)] = 86_400.0
    budget: Annotated[float, Field(ge=1, le=MOST_SECONDS, allow_inf_nan=False)] = 10.0

    @field_validator("policy", "admission", "placement", "selector", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    def alternative(self, config: ServiceConfig) -> Alternative:
        """The parts themselves; raises a BloxoptError for a name or option that is not known or names a file."""
        parts = {
            name: part for name in ("policy", "admission", "placement", "selector") if (part := getattr(self, name))
        }
        if not parts and self.solver is None:
            raise InputError("nothing to try: name a policy, solver, placement, selector or admission")
        for name, part in parts.items():
            if _names_file(part.options):
                raise InputError(f"{name} {part.name!r}: an option names a file: give the values themselves")
        other = config.model_copy(update={**parts, **({} if self.solver is None else {"solver": self.solver})})
        other.check()
        return Alternative(
            policy=other.make_policy() if "policy" in parts else None,
            solver=self.solver,
            placement=other.make_placement() if "placement" in parts else None,
            selector=other.make_selector() if "selector" in parts else None,
            admission=other.make_admission() if "admission" in parts else None,
        )


def _names_file(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_names_file, value.values()))
    if isinstance(value, list):
        return any(map(_names_file, value))
    return isinstance(value, str) and ("/" in value or "\\" in value or value.lower().endswith(_FILES))


class WhatIf:
    """Answers one question at a time; the scheduler itself goes on meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def answer(self, copied: Copy, alternative: Alternative, question: Question) -> dict[str, Any]:
        """A :class:`~bloxopt.simulation.whatif.Comparison` as plain values, for a copy of the scheduler.

        Raises :class:`BusyError` while another one is worked out, :class:`~bloxopt.runtime.live.faults.ConflictError`
        for one that takes longer than it may, and what the alternative fails with.
        """
        if not self._lock.acquire(blocking=False):
            raise BusyError("another what-if is being worked out: try again when it is done")
        try:
            return _worked_out(copied, alternative, question)
        finally:
            self._lock.release()


def _worked_out(copied: Copy, alternative: Alternative, question: Question) -> dict[str, Any]:
    try:
        message = pickle.dumps((copied.message, alternative, question.horizon, question.budget))
    except Exception as error:  # whatever a part may hold
        raise ConflictError(f"the alternative cannot be copied into another process: {error}") from None
    too_long = (
        f"it took more than {question.budget:g} s of processor time: ask for a shorter horizon (0: the present round "
        f"alone), or a larger budget (up to {MOST_SECONDS:g} s)"
    )
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "bloxopt.runtime.service.whatif_worker"],
            input=message,
            capture_output=True,
            timeout=_PATIENCE * question.budget + 20.0,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConflictError(too_long) from None
    if ended.returncode:
        if ended.returncode < 0:
            raise ConflictError(too_long)
        last = ended.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise BloxoptError(f"the what-if failed: {last[0] if last else f'exit code {ended.returncode}'}")
    answer: dict[str, Any] = pickle.loads(ended.stdout)
    if "error" in answer:
        raise InputError(str(answer["error"]))
    return answer
