"""Jobs that share GPUs: how far each gets in a round in which its partner may finish, and what is no restart."""

from __future__ import annotations

import numpy as np

from bloxopt.jobs import FloatArray, IntArray
from bloxopt.runtime.resources import Grant


def stays(before: Grant | None, after: Grant | None) -> bool:
    """Whether a job goes on with the same GPUs and only gets, changes or loses a partner: no preemption, no restart."""
    return (
        before is not None
        and after is not None
        and before.gpus == after.gpus
        and (before.partner, before.milli) != (after.partner, after.milli)
    )


def until_partners_leave(
    rate: FloatArray,
    alone: FloatArray,
    remaining: FloatArray,
    stall: FloatArray,
    running: FloatArray | float,
    partner: IntArray,
) -> tuple[FloatArray, FloatArray]:
    """Steps made in a round, and the seconds of work they take, where a job is faster once its partner has finished.

    Per running job: ``rate`` beside its partner and ``alone`` (steps/s), ``remaining`` steps, seconds of ``stall``
    before it moves, ``running`` seconds in the round; ``partner`` is its position here, -1 for none. Until the partner
    has finished, if it does, both run at the shared rate, also while one of them is stalled.
    """
    span = np.broadcast_to(np.asarray(running, dtype=np.float64), rate.shape)
    finish = stall + remaining / rate
    leaves = np.where(partner >= 0, finish[partner], np.inf)
    leaves = np.where((leaves < finish) & (leaves < span), leaves, np.inf)
    shared = np.maximum(np.minimum(leaves, span) - stall, 0.0)
    after = np.maximum(span - np.maximum(leaves, stall), 0.0)
    steps = np.minimum(rate * shared + alone * after, remaining)
    first = np.minimum(steps, rate * shared)
    return steps, first / rate + (steps - first) / alone
