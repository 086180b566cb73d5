"""The small protocol between the round loop and whatever runs the jobs: simulated nodes or real ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bloxopt.formulations.space import ConfigurationCatalog
from bloxopt.jobs import BoolArray, FloatArray, IntArray
from bloxopt.runtime.assignment import Assignment
from bloxopt.state import JobLedger


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What a backend sees at the start of a round.

    ``now`` seconds · ``submitted`` rows of jobs that ask for admission, in order of arrival ·
    ``assignment`` what runs now (finished jobs are gone) · ``node_up`` (nodes,) · ``nodes_changed``
    True if nodes failed or came back since the last round · ``rows`` where the backend has another table (catalog and
    ledger) than in the round before: the row that each of its jobs had, -1 for new ones; None where it has not. GPU
    types keep their codes.
    """

    now: float
    submitted: IntArray
    assignment: Assignment
    node_up: BoolArray
    nodes_changed: bool
    rows: IntArray | None = None


class Ran(NamedTuple):
    """Jobs that ran in a round: ``row``, the ``gpu_type`` and ``num_gpus`` they ran on, for how many ``seconds``.

    ``partner`` is the kind of the job they shared these GPUs with, -1 for none; None if no job did.
    """

    row: IntArray
    gpu_type: IntArray
    num_gpus: IntArray
    seconds: FloatArray
    partner: IntArray | None = None


class Backend(Protocol):
    """Observes the cluster, applies assignments and lets a round pass. Knows nothing of policies."""

    @property
    def catalog(self) -> ConfigurationCatalog: ...

    @property
    def ledger(self) -> JobLedger: ...

    @property
    def round_seconds(self) -> float: ...

    def observe(self) -> ClusterState: ...

    def apply(self, assignment: Assignment) -> None:
        """Make ``assignment`` what runs: stop, move and start jobs."""
        ...

    def wait(self, order_changes: float = math.inf) -> Ran:
        """Let one round pass, bring the ledger up to date and tell what ran.

        At the time ``order_changes`` (s) the policy would decide anew although no job came or ended; a backend that
        ends its rounds at events ends this one there.
        """
        ...
