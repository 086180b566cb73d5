"""The links between the GPUs of a node, from the text of ``nvidia-smi topo -m``."""

from __future__ import annotations

import re
from typing import NamedTuple

from bloxopt.errors import ClusterError
from bloxopt.network import GpuLinks

_STYLE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU\d+$")
_NVLINK = re.compile(r"NV(\d+)$")

PCIE_PART = {"PIX": 1.0, "PXB": 0.9, "PHB": 0.8, "NODE": 0.7, "SYS": 0.5, "SOC": 0.5}
"""Part of the PCIe bandwidth that is left over each kind of path, in the legend's order from near to far.

The order is nvidia-smi's, the figures are ours: give a node's ``links`` as numbers where they were measured.
``SOC`` is what early drivers called ``SYS``.
"""


class GpuMatrix(NamedTuple):
    """``paths[i][j]``: how GPU i reaches GPU j, in nvidia-smi's words (``X`` for itself)."""

    names: tuple[str, ...]
    paths: tuple[tuple[str, ...], ...]

    def links(self, speeds: GpuLinks) -> tuple[tuple[float, ...], ...]:
        """GB/s between each two GPUs, +inf on the diagonal."""
        return tuple(tuple(_speed(path, speeds) for path in row) for row in self.paths)

    @property
    def island_gpus(self) -> int | None:
        """GPUs of each NVLink island; None without NVLink or where islands differ in size or are not consecutive."""
        count = len(self.names)
        island = list(range(count))
        for i, row in enumerate(self.paths):
            for j, path in enumerate(row):
                if _NVLINK.match(path) and island[i] != island[j]:
                    old, new = max(island[i], island[j]), min(island[i], island[j])
                    island = [new if number == old else number for number in island]
        size = island.count(island[0])
        regular = island == [index - index % size for index in range(count)]
        return size if regular and size > 1 else None


def read_nvidia_smi(text: str, where: str = "nvidia-smi topo -m") -> GpuMatrix:
    """The GPU part of the matrix; columns of network cards, CPU and NUMA affinity are passed over.

    Raises :class:`ClusterError` naming ``where`` and the line for a text without a matrix, a row that is missing
    or too short, a path that is not in the legend, and a matrix that is not symmetric.
    """
    lines = _STYLE.sub("", text).splitlines()
    header = next((number for number, line in enumerate(lines) if line.split()[:1] == ["GPU0"]), None)
    if header is None:
        raise ClusterError(f"{where}: no line starts with GPU0: expected the output of `nvidia-smi topo -m`")
    devices = lines[header].split()
    names = [name for name in devices if _GPU.match(name)]
    if devices[: len(names)] != names or len(set(names)) < len(names):
        raise ClusterError(f"{where}:{header + 1}: GPUs must be the first columns, each once")
    rows: dict[str, tuple[int, list[str]]] = {}
    for number, line in enumerate(lines[header + 1 :], start=header + 2):
        cells = line.split()
        if cells and cells[0] in names:
            rows[cells[0]] = number, cells[1 : len(names) + 1]
    for name in names:
        if name not in rows:
            raise ClusterError(f"{where}: the row of {name} is missing")
        _check_row(f"{where}:{rows[name][0]}", name, names, rows[name][1])
    paths = tuple(tuple(rows[name][1]) for name in names)
    for i, row in enumerate(paths):
        for j, path in enumerate(row):
            if path != paths[j][i]:
                raise ClusterError(
                    f"{where}: {names[i]} reaches {names[j]} by {path}, but {names[j]} {names[i]} by {paths[j][i]}"
                )
    return GpuMatrix(tuple(names), paths)


def _check_row(where: str, name: str, names: list[str], cells: list[str]) -> None:
    if len(cells) < len(names):
        raise ClusterError(f"{where}: {name} has {len(cells)} entries for {len(names)} GPUs")
    for other, path in zip(names, cells, strict=True):
        known = path == "X" if other == name else path in PCIE_PART or _NVLINK.match(path)
        if not known:
            wanted = "X" if other == name else f"NV#, {', '.join(PCIE_PART)}"
            raise ClusterError(f"{where}: {name} reaches {other} by {path!r}, must be {wanted}")


def _speed(path: str, speeds: GpuLinks) -> float:
    if path == "X":
        return float("inf")
    bonded = _NVLINK.match(path)
    return int(bonded[1]) * speeds.nvlink_link if bonded else PCIE_PART[path] * speeds.pcie
