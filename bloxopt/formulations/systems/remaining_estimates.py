"""How long each job would still take on each configuration, as a scheduler may estimate it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bloxopt.errors import FormulationError, guarded
from bloxopt.formulations.checks import real_numbers
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray


class RemainingEstimate:
    """Base of estimates of remaining time; a user's own overrides :meth:`seconds`."""

    def seconds(self, space: AllocationSpace) -> FloatArray:
        """Seconds that the job of each column would still take on it, (num_columns,); inf where that is not known."""
        raise FormulationError(
            f"estimate {type(self).__name__} does not say how long jobs take: override seconds(space) with one number "
            "per column of the space"
        )


@dataclass(frozen=True)
class AtPresentRate(RemainingEstimate):
    """Steps left over the rate of the phase that the job is in: exact for jobs whose rates do not change."""

    def seconds(self, space: AllocationSpace) -> FloatArray:
        left: FloatArray = space.remaining_steps[space.job] / space.rate
        return left


@dataclass(frozen=True)
class AsMeasured(RemainingEstimate):
    """What the trace's throughput oracle itself foresees: for oracles with a method ``remaining_seconds``.

    Pollux' applications foresee the iterations that were measured from the end of the present epoch on (Qiao et al.,
    OSDI 2021, its simulator's Optimus). Raises :class:`FormulationError` for an oracle that foresees nothing.
    """

    def seconds(self, space: AllocationSpace) -> FloatArray:
        oracle = space.catalog.oracle
        foresee = getattr(oracle, "remaining_seconds", None)
        if foresee is None:
            raise FormulationError(
                f"AsMeasured: the throughput oracle {type(oracle).__name__} has no remaining_seconds(jobs, gpu_types, "
                "num_gpus): use the estimate AtPresentRate, or a trace that has, such as pollux-6-elastic"
            )
        jobs = space.catalog.jobs(space.index[space.job])
        user = f"the throughput oracle {type(oracle).__name__}: remaining_seconds"
        with guarded(user, FormulationError):
            given = foresee(jobs, space.gpu_types, space.num_gpus)
        shape = (space.num_columns, len(space.gpu_types))
        seconds = real_numbers(f"{user}: what it gave", given, "seconds (jobs, GPU types)")
        if seconds.shape != shape:
            raise FormulationError(f"{user} gave shape {seconds.shape}, must be (jobs, GPU types) = {shape}")
        left: FloatArray = seconds[np.arange(space.num_columns), space.gpu_type]
        return left


def seconds_left(estimate: RemainingEstimate, space: AllocationSpace) -> FloatArray:
    """What ``estimate`` says, (num_columns,); raises :class:`FormulationError` naming one that says no such thing."""
    name = f"estimate {type(estimate).__name__}"
    with guarded(f"{name}: seconds(space)", FormulationError):
        given = estimate.seconds(space)
    wanted = f"{space.num_columns} numbers of seconds >= 0, one per column"
    numbers = real_numbers(f"{name}: what seconds(space) gave", given, wanted)
    if numbers.shape != (space.num_columns,):
        raise FormulationError(f"{name}: seconds(space) gave shape {numbers.shape}, must be {wanted}")
    bad = ~(numbers >= 0)
    if bad.any():
        column = int(np.argmax(bad))
        job, gpus = space.job_ids[space.job[column]], space.num_gpus[column]
        raise FormulationError(f"{name}: job {job!r} on {gpus} GPUs takes {numbers[column]} s, must be {wanted}")
    return numbers.astype(np.float64)


def check_estimate(estimate: object, user: str) -> RemainingEstimate:
    """``estimate`` itself, or a :class:`FormulationError` that says what it is instead."""
    if isinstance(estimate, RemainingEstimate):
        return estimate
    hint = ": add parentheses" if isinstance(estimate, type) and issubclass(estimate, RemainingEstimate) else ""
    raise FormulationError(f"{user}: estimate is {estimate!r}, must be one such as AtPresentRate(){hint}")
