"""AFS: elastic GPUs by marginal progress between pairs of jobs."""

from __future__ import annotations

from typing import Any, Literal

from bloxopt.formulations.policy import Policy
from bloxopt.formulations.systems.future_share import FutureShare


def afs(length: Literal["remaining", "attained"] = "remaining", **options: Any) -> Policy:
    """Each next GPU to the job of every pair where it shortens completion times more; nothing is assumed of the future.

    ``length="attained"`` does without known lengths: jobs that have had less service are taken to be shorter.
    """
    return Policy(
        objective=FutureShare(length),
        **{
            "name": "afs",
            "source": "AFS-L (Hwang et al., NSDI 2021)",
            "description": "GPUs one at a time by marginal progress of short against long jobs",
            **options,
        },
    )
