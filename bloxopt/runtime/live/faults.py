"""What can be wrong with a request to the live system, for the answer's status code to follow."""

from __future__ import annotations

from bloxopt.errors import InputError


class UnknownError(InputError):
    """A job, node or token that does not exist, or not for whoever asks."""


class ConflictError(InputError):
    """Something that cannot be done in the present state of a job or node."""


class StaleAgentError(ConflictError):
    """A heartbeat of an agent that another one has taken over from."""
