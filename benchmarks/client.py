"""What a step costs a training loop that reports it: the client against the same loop without it.

The limit is 10 µs a step; a training step takes 1,000 µs and more."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import repeat

STEPS = 200_000
LIMIT = 10e-6


def microseconds(loop: Callable[[], None], repetitions: int = 7) -> float:
    """The best of some repetitions (µs a step), as other programs only ever add time."""
    best = float("inf")
    for _ in range(repetitions):
        begin = time.perf_counter()
        loop()
        best = min(best, time.perf_counter() - begin)
    return best / STEPS * 1e6


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BLOXOPT_RUN_DIR"] = folder
        from bloxopt.runtime import client

        def through(items: Callable[[], Iterable[None]], ask: bool) -> Callable[[], None]:
            def loop() -> None:
                for _ in items():
                    if ask:
                        client.should_checkpoint()

            return loop

        bare = microseconds(through(lambda: repeat(None, STEPS), ask=False))
        steps = microseconds(through(lambda: client.steps(repeat(None, STEPS)), ask=False))
        both = microseconds(through(lambda: client.steps(repeat(None, STEPS)), ask=True))
    print(f"bare loop                       {bare:6.3f} µs a step")
    print(f"client.steps                    {steps:6.3f} µs a step")
    print(f"client.steps, should_checkpoint {both:6.3f} µs a step")
    print(f"added                           {both - bare:6.3f} µs a step (limit {LIMIT * 1e6:.0f})")
    return 0 if (both - bare) * 1e-6 < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
