"""CPUs and memory beside the GPUs: what jobs gain from them, and how they are divided in each round (Synergy)."""

from __future__ import annotations

from bloxopt.errors import ConfigError
from bloxopt.hosts.base import HostAllocation, Hosts
from bloxopt.hosts.profiles import SensitivityProfile, SensitivityProfiles, as_profiles
from bloxopt.hosts.rates import HostRates
from bloxopt.registry import Registry

HOST_ALLOCATIONS = Registry(
    "host allocation",
    {
        "proportional": "bloxopt.hosts.proportional:Proportional",
        "tuned": "bloxopt.hosts.tuned:Tuned",
        "optimal": "bloxopt.hosts.optimal:Optimal",
    },
)


def get_host_allocation(name: str, /, **options: object) -> HostAllocation:
    """The host allocation of that name with the given options.

    Raises :class:`~bloxopt.errors.UnknownNameError` for another name and :class:`~bloxopt.errors.ConfigError` for
    options that it does not take.
    """
    what = f"host_allocation_options: host allocation {name!r}"
    allocation: HostAllocation = HOST_ALLOCATIONS.make(name, options, what, ConfigError)
    return allocation


__all__ = [
    "HOST_ALLOCATIONS",
    "HostAllocation",
    "HostRates",
    "Hosts",
    "SensitivityProfile",
    "SensitivityProfiles",
    "as_profiles",
    "get_host_allocation",
]
