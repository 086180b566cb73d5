"""Emptiest first: whole nodes, the one with the most free GPUs first, as Pollux' simulator packs its baselines."""

from __future__ import annotations

import numpy as np

from bloxopt.placement.passes import keep_and_start
from bloxopt.placement.strategy import Changes, Found, Offer, Requests, WholeRound
from bloxopt.placement.workspace import Workspace
from bloxopt.runtime.assignment import Assignment


class EmptiestFirst(WholeRound):
    """Take all of the emptiest node, then of the next (the first of equal ones), until the gang has its GPUs.

    Gangs are placed in the order in which the policy serves jobs; where it has none, the smallest first (of
    equal ones that admitted first). Source: Qiao et al., OSDI 2021, the Tiresias and Optimus of its simulator.
    """

    def __call__(self, offer: Offer, need: int) -> Found | None:
        available = offer.available
        nodes = np.argsort(-available, kind="stable")
        total = available[nodes].cumsum()
        last = int(np.searchsorted(total, need))
        if last == len(total):
            return None
        counts = available[nodes[: last + 1]]
        counts[-1] -= int(total[last]) - need
        return Found(tuple(nodes[: last + 1].tolist()), tuple(counts.tolist()))

    def place_round(self, requests: Requests, assignment: Assignment, workspace: Workspace) -> Changes:
        key = requests.num_gpus if requests.rank is None else requests.rank
        place = dict(zip(requests.row.tolist(), key.tolist(), strict=True))
        return keep_and_start(requests, lambda row: (place[row], row), assignment, workspace)
