"""``bloxopt explain``: why a job waits, what it would take to run now, and when it is expected to start."""

from __future__ import annotations

from bloxopt.explanations.explain import explain
from bloxopt.explanations.reasons import Explanation, Reason, Remedy
from bloxopt.explanations.sensitivity import sensitivity

__all__ = ["Explanation", "Reason", "Remedy", "explain", "sensitivity"]
