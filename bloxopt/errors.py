"""Typed exceptions: one clear message each, naming the place and the way out.

The command line prints the message of any :class:`BloxoptError` and exits with code 2.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bloxopt.formulations.solving.diagnosis import Diagnosis


class BloxoptError(Exception):
    """Base of every error that a user of bloxopt can act on; ``option`` is the single option it is about, if any."""

    option: str | None = None


class InputError(BloxoptError, ValueError):
    """Input that cannot be used: the message names the file, line or argument."""


class TraceError(InputError):
    """A trace file or a job that cannot be read or scheduled."""


class ClusterError(InputError):
    """A cluster description that cannot be read."""


class ThroughputError(InputError):
    """Throughputs that are missing, negative or not a number."""


class ConfigError(InputError):
    """An experiment file with an unknown key or a value of the wrong kind."""


class UnknownNameError(InputError):
    """A policy, solver, preset, trace or placement that is not registered."""

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        names = sorted(known)
        self.kind = kind
        self.name = name
        if not isinstance(name, str):
            super().__init__(f"{kind} must be a name, not {name!r}: choose one of {', '.join(names)}")
            return
        import difflib

        lowered = {candidate.lower(): candidate for candidate in names}
        close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
        hint = f"did you mean {lowered[close[0]]!r}? " if close else ""
        super().__init__(f"unknown {kind} {name!r}: {hint}choose one of {', '.join(names)}")


class FormulationError(BloxoptError, ValueError):
    """Blocks that cannot be composed, such as a maximum of a concave term."""


class SolverError(BloxoptError, RuntimeError):
    """A solver that failed or returned something that is not a solution."""


class SolverNotInstalledError(SolverError):
    """A solver back end whose package cannot be imported."""


class InfeasibleError(BloxoptError, RuntimeError):
    """A program without a solution; the message names the constraint blocks.

    ``diagnosis`` works out which of their rows conflict, with a few more solves when it is first asked for.
    """

    def __init__(self, message: str, diagnose: Callable[[], Diagnosis | None] | None = None) -> None:
        super().__init__(message)
        self._diagnose = diagnose

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """The conflict and its smallest relaxation; None where it was told by something else than a solver."""
        return None if self._diagnose is None else self._diagnose()


class UnboundedError(BloxoptError, RuntimeError):
    """A program whose objective can grow without limit."""


class CheckError(BloxoptError, RuntimeError):
    """An allocation or assignment that breaks a constraint and was not applied."""


class ResultError(BloxoptError, OSError):
    """Results that cannot be written or read."""


class StoreError(BloxoptError, RuntimeError):
    """A database that cannot be opened, read or written."""


class AgentError(BloxoptError, RuntimeError):
    """An agent that cannot work on its node: its state folder cannot be used, or another agent uses it."""


@contextmanager
def guarded(what: str, error: type[BloxoptError] = InputError) -> Iterator[None]:
    """Around code of the user: whatever it raises becomes ``error``, which names it and the place in its file.

    Errors of bloxopt itself and Ctrl-C pass; ``sys.exit`` in such code does not end the program.
    """
    try:
        yield
    except BloxoptError:
        raise
    except (Exception, SystemExit) as cause:
        text = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
        raise error(f"{what} raised {text}{_place(cause)}") from cause


def _place(cause: BaseException) -> str:
    """Where the user's file raised, or called what did: the last line in the first file outside bloxopt."""
    package = os.path.dirname(os.path.abspath(__file__)) + os.sep
    frames = [
        frame
        for frame in traceback.extract_tb(cause.__traceback__)
        if not frame.filename.startswith((package, "<")) and os.path.basename(frame.filename) != "contextlib.py"
    ]
    if not frames:
        return ""
    last = [frame for frame in frames if frame.filename == frames[0].filename][-1]
    return f" ({last.filename}, line {last.lineno})"
