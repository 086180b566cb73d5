"""Tiresias' rule: only models with a skewed distribution of tensor sizes need their GPUs close together."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase

from bloxopt.errors import InputError
from bloxopt.jobs import JobTable
from bloxopt.placement.consolidated import consolidated
from bloxopt.placement.first_fit import first_fit
from bloxopt.placement.strategy import Found, Offer

SKEWED_MODELS = ("vgg*", "alexnet*")
"""Families whose speed depends on placement in Tiresias' measurements (NSDI 2019, figure 4): a few tensors hold most
of the parameters. ResNet, Inception and GoogLeNet are not skewed."""


class TiresiasSkew:
    """Consolidate jobs whose model is skewed; the others take any free GPUs.

    ``skewed``: patterns of job types (``*`` and ``?``, case does not matter) that are put on as few nodes as are
    possible at the time; all other jobs fill free GPUs node by node. Tiresias measures the skew of each
    model at run time; without its profiler the families it published are the default. Source: Gu et al.,
    "Tiresias", NSDI 2019, section 3.3. Raises :class:`~bloxopt.errors.InputError` for a pattern that is no string.
    """

    def __init__(self, skewed: Collection[str] = SKEWED_MODELS) -> None:
        listed = isinstance(skewed, Collection) and not isinstance(skewed, str)
        if not listed or not all(isinstance(pattern, str) and pattern for pattern in skewed):
            raise InputError(f"tiresias_skew: skewed is {skewed!r}, must be a list of job type patterns such as 'vgg*'")
        self.skewed = tuple(pattern.lower() for pattern in skewed)
        self._table: JobTable | None = None
        self._is_skewed: list[bool] = []

    def __call__(self, offer: Offer, need: int) -> Found | None:
        jobs = offer.workspace.jobs
        if jobs is not self._table:
            self._table = jobs
            self._is_skewed = [
                any(fnmatchcase(name.lower(), pattern) for pattern in self.skewed) for name in jobs.job_types
            ]
        close = self._is_skewed[jobs.job_type[offer.row]]
        return consolidated(offer, need) if close else first_fit(offer, need)
