"""What people are answered beside jobs and nodes: pages, events, explanations, comparisons and tokens."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from bloxopt.runtime.messages import JobView


class JobPage(BaseModel):
    """Jobs, the latest first; ``next`` is what to pass as ``before`` for those after them, None at the end."""

    jobs: list[JobView]
    next: str | None = None


class EventView(BaseModel):
    """Something observed or decided; ``number`` counts up."""

    number: int
    time: float
    kind: str
    subject: str
    data: dict[str, Any]


class ExplanationView(BaseModel):
    """Why a job does not run: see :class:`bloxopt.explanations.reasons.Explanation`."""

    job_id: str
    time: float
    reason: str
    detail: str
    blocks: list[str] = []
    ahead: int | None = None
    prices: dict[str, float] | None = None
    remedies: list[dict[str, Any]] = []
    expected_start: float | None = None


class SideView(BaseModel):
    """See :class:`bloxopt.simulation.whatif.Decision` and :class:`bloxopt.simulation.whatif.Future`."""

    decision: dict[str, Any]
    future: dict[str, Any] | None


class JobChangeView(BaseModel):
    """A job that the two sides place differently; None: it does not run."""

    job_id: str
    tenant: str
    num_gpus: int
    now: str | None
    present: str | None
    alternative: str | None


class ComparisonView(BaseModel):
    """See :class:`bloxopt.simulation.whatif.Comparison`."""

    time: float
    horizon: float
    present: SideView
    alternative: SideView
    comparable: bool
    jobs: list[JobChangeView]


class TokenView(BaseModel):
    """What is kept of a token. Times are seconds since the epoch; ``last_used_at`` None: not yet."""

    token_id: str
    role: str
    subject: str
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    last_used_at: float | None
    valid: bool


class NewToken(TokenView):
    """A token just made: ``token`` is shown this once."""

    token: str
