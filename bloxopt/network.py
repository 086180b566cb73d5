"""How fast GPUs talk to each other: links inside a node by GPU type, and the network above it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from bloxopt.errors import ClusterError


def _check(entry: object, what: str, zero: str = "") -> None:
    for name in entry.__slots__:  # type: ignore[attr-defined]
        value = getattr(entry, name)
        if (value is None and isinstance(entry, RackNetwork)) or name in ("racks", "gpus"):
            continue
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not good or value < 0 or (value == 0 and name != zero):
            raise ClusterError(f"{what}: {name} is {value!r}, must be a finite number of GB/s > 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLinks:
    """GB/s in one direction: ``nvlink`` of a GPU to its island (all its links), ``pcie`` of its slot.

    ``nvlink_link`` is one link, for ``NV#`` entries of nvidia-smi. ``nvlink`` is 0 for GPUs without it.
    """

    nvlink: float = 0.0
    nvlink_link: float = 25.0
    pcie: float = 15.75

    def __post_init__(self) -> None:
        _check(self, "GPU links", zero="nvlink")


GPU_LINKS: Mapping[str, GpuLinks] = {
    "K80": GpuLinks(),
    "P100": GpuLinks(nvlink=80.0, nvlink_link=20.0),
    "V100": GpuLinks(nvlink=150.0),
    "T4": GpuLinks(),
    "A10": GpuLinks(pcie=31.5),
    "A30": GpuLinks(nvlink=100.0, pcie=31.5),
    "A40": GpuLinks(nvlink=56.25, nvlink_link=14.0625, pcie=31.5),
    "A100": GpuLinks(nvlink=300.0, pcie=31.5),
    "A800": GpuLinks(nvlink=200.0, pcie=31.5),
    "L4": GpuLinks(pcie=15.75),
    "L40": GpuLinks(pcie=31.5),
    "L40S": GpuLinks(pcie=31.5),
    "H100": GpuLinks(nvlink=450.0, pcie=63.0),
    "H800": GpuLinks(nvlink=200.0, pcie=63.0),
    "H200": GpuLinks(nvlink=450.0, pcie=63.0),
    "B200": GpuLinks(nvlink=900.0, nvlink_link=50.0, pcie=63.0),
}
"""Vendor data sheets: NVLink 1 has 20, NVLink 2 to 4 25, NVLink 5 50 GB/s a link and direction; ×16 PCIe 3 15.75."""

UNKNOWN_GPU = GpuLinks(nvlink=150.0)
"""For GPU types that no one has described: NVLink 2 over PCIe 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RackNetwork:
    """GB/s of one rack that differ from the cluster's: between two of its ``node`` s, and ``uplink`` to other racks."""

    node: float | None = None
    uplink: float | None = None

    def __post_init__(self) -> None:
        _check(self, "rack network")


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """GB/s in one direction that a node gets to nodes of its rack, of other racks and of other data centres.

    The defaults are 100 Gb/s interfaces, racks oversubscribed 2 : 1 and 10 Gb/s between data centres.
    ``racks`` holds what single racks do differently, ``gpus`` the links of GPU types.
    Raises :class:`ClusterError` for a bandwidth that is not a finite number > 0.
    """

    node: float = 12.5
    rack: float = 6.25
    datacenter: float = 1.25
    racks: Mapping[str, RackNetwork] = field(default_factory=dict)
    gpus: Mapping[str, GpuLinks] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self, "network")
        for field_name, kind in (("racks", RackNetwork), ("gpus", GpuLinks)):
            table = getattr(self, field_name)
            if not isinstance(table, Mapping) or not all(isinstance(entry, kind) for entry in table.values()):
                raise ClusterError(f"network: {field_name} is {table!r}, must map names to {kind.__name__} objects")

    def links_of(self, gpu_type: str) -> GpuLinks:
        """Links of a GPU type: as given here, else the data sheet's; the case and suffixes (``A100-80GB``) of names do
        not matter.
        """
        for table in (self.gpus, GPU_LINKS):
            for key in link_keys(gpu_type):
                if key in table:
                    return table[key]
        return UNKNOWN_GPU

    def within_rack(self, rack: str) -> float:
        """GB/s between two nodes of a rack."""
        own = self.racks.get(rack)
        return self.node if own is None or own.node is None else own.node

    def uplink(self, rack: str) -> float:
        """GB/s that a node of a rack gets to another rack."""
        own = self.racks.get(rack)
        return self.rack if own is None or own.uplink is None else own.uplink


def link_keys(gpu_type: str) -> tuple[str, str]:
    """Names under which the links of a GPU type may stand: its own, and without memory size or case (``A100``)."""
    return gpu_type, gpu_type.upper().replace("_", "-").partition("-")[0]


DEFAULT_NETWORK = Network()
