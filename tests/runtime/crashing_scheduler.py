"""A scheduler process that kills itself, as kill -9 does, at a given point: wherever it stores and answers.

Arguments: the configuration, the port, and the point: its number and its kind (see :func:`arm`).
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from bloxopt.runtime.live import LiveCluster, reception
from bloxopt.runtime.live.recording import ROUND
from bloxopt.runtime.service.command import configured, serve
from bloxopt.runtime.store import Change, Store

POINTS = ("before", "after", "heartbeat", "submission", "call")


def arm(kind: str, number: int) -> None:
    """Have this process kill itself at the ``number``-th point of a kind.

    ``before`` and ``after`` a change is committed · ``heartbeat`` and ``submission``: it is stored, and not yet
    answered · ``call``: at this call of a C function, in whatever thread, so between any two things that it does ·
    ``part``: after a part of a round's decision is stored, jobs that start in it and not yet the record of the round.
    """
    if kind == "call":
        die_at_call(number)
    elif kind == "heartbeat":
        _die_at(reception, "answer_together", number)
    elif kind == "submission":
        _die_at(LiveCluster, "submit", number)
    elif kind == "part":
        _die_at(Store, "commit", number, counts=lambda store, change: _is_part_of_round(change))
    else:
        # A change that holds nothing is not stored.
        _die_at(Store, "commit", number, kind, lambda store, change: bool(change))


def _is_part_of_round(change: Change) -> bool:
    kinds = {event.kind for event in change.events}
    return "attempt.started" in kinds and ROUND not in kinds


def die_at_call(number: int) -> None:
    """Have this process kill itself at its ``number``-th call of a C function from now on."""
    count = itertools.count(1)

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and next(count) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(profile)
    sys.setprofile(profile)


def _die_at(
    owner: Any, name: str, number: int, when: str = "after", counts: Callable[..., bool] = lambda *arguments: True
) -> None:
    real, count = getattr(owner, name), itertools.count(1)

    def dying(*arguments: Any) -> Any:
        here = counts(*arguments) and next(count) == number
        if here and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = real(*arguments)
        if here:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(owner, name, dying)


def main() -> None:
    config, port, number, kind = sys.argv[1:]
    arm(kind, int(number))
    serve(configured(Path(config), None, int(port), None, None))


if __name__ == "__main__":
    main()
