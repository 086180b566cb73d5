"""The process of one what-if: reads a copy of the scheduler and the alternative, writes the comparison.

Run as ``python -m bloxopt.runtime.service.whatif_worker`` by :mod:`bloxopt.runtime.service.whatif`, never by hand. The
kernel ends it when it has used up its processor time; it gives way to all else on the machine.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import resource
import sys

_STARTING = 5.0
"""Seconds of processor time for imports and the last round that is looked at."""


def main() -> None:
    """One question on stdin, its answer on stdout."""
    with contextlib.suppress(OSError):
        os.nice(10)
    copied, alternative, horizon, budget = pickle.load(sys.stdin.buffer)
    most = math.ceil(1.5 * budget + _STARTING)
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    from bloxopt.errors import BloxoptError
    from bloxopt.runtime.service.copies import opened
    from bloxopt.simulation.whatif import what_if

    try:
        answer = what_if(*opened(copied), alternative, horizon=horizon, budget=budget).to_dict()
    except BloxoptError as error:
        answer = {"error": str(error)}
    pickle.dump(answer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
