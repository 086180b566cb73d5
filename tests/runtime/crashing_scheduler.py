"""A scheduler process that kills itself, as kill -9 does, at the n-th commit: before or after it is stored.

Arguments: the configuration, the port, the number of the commit, ``before`` or ``after``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from bloxopt.runtime.service.command import configured, serve
from bloxopt.runtime.store import Change, Store


def main() -> None:
    config, port, number, when = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    real = Store.commit
    count = 0

    def commit(store: Store, change: Change) -> None:
        nonlocal count
        count += bool(change)
        if change and count == number and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        real(store, change)
        if change and count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    Store.commit = commit  # type: ignore[method-assign]
    serve(configured(Path(config), None, port, None, None))


if __name__ == "__main__":
    main()
