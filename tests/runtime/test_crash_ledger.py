"""That a ledger with something wrong in it is found out: the tests of crashes rest on that."""

from __future__ import annotations

import pytest

from tests.runtime.crash_ledger import Entry, faults

FIRST, SECOND = 11, 22
"""Process ids of two attempts."""


def told(text: str, pid: int = FIRST, attempt: int = 1, at: float = 0.0) -> list[Entry]:
    """Entries from words such as ``begins 0, step 0``, a second apart."""
    parts = [part.strip().rsplit(" ", 1) for part in text.split(",")]
    return [Entry(what, int(number), 0, attempt, "n", pid, at + k) for k, (what, number) in enumerate(parts)]


def test_a_training_that_is_moved_and_one_that_is_killed_before_its_checkpoint_are_right() -> None:
    moved = told("begins 0, step 0, step 1, is saving 2, leaves 2") + told("begins 2, step 2", SECOND, 2, 9.0)
    assert faults(moved) == []
    killed = told("begins 0, step 0, is saving 1, step 1, step 2") + told("begins 1, step 1", SECOND, 2, 9.0)
    assert faults(killed, killed=[FIRST]) == []
    assert faults(killed, guardless=[(1, "n")]) == []
    # The kill may have come before or after the new checkpoint was there.
    for resumed in (0, 1):
        saving = told("begins 0, step 0, is saving 1") + told(f"begins {resumed}, step {resumed}", SECOND, 2, 9.0)
        assert faults(saving, killed=[FIRST]) == []


@pytest.mark.parametrize(
    ("former", "later", "at", "fault"),
    [
        ("begins 0, step 0, step 1", "begins 0, step 0", 9.0, "nobody had killed process 11"),
        ("begins 0, step 0, is saving 1, leaves 1", "begins 0, step 0", 9.0, "the last checkpoint was 1"),
        ("begins 0, step 0, is saving 1, leaves 1", "begins 1, step 2", 9.0, "step 1 was next"),
        ("begins 0, step 0, step 0, is saving 1, leaves 1", "begins 1", 9.0, "step 1 was next"),
        ("begins 0, step 0, is saving 1, leaves 1", "begins 1", 2.0, "before the end of attempt 1"),
        ("begins 0, is saving 0, leaves 0", "meets a former attempt 1, begins 0", 9.0, "meets a former attempt: 1"),
        ("begins 0, is saving 0, leaves 0", "finds its GPU in use 3, begins 0", 9.0, "finds its GPU in use: 3"),
    ],
)
def test_what_is_wrong_is_named(former: str, later: str, at: float, fault: str) -> None:
    found = faults(told(former) + told(later, SECOND, 2, at))
    assert len(found) == 1
    assert fault in found[0]


def test_a_process_that_was_killed_does_not_excuse_another() -> None:
    entries = told("begins 0, step 0") + told("begins 0, step 0", SECOND, 2, 9.0) + told("begins 0", 33, 3, 20.0)
    assert len(faults(entries, killed=[FIRST])) == 1
