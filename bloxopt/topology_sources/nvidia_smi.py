"""The links between the GPUs of a node, from the text of ``nvidia-smi topo -m``."""

from __future__ import annotations

import re
from typing import NamedTuple

from bloxopt.errors import ClusterError
from bloxopt.network import GpuLinks

_STYLE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU(?:0|[1-9][0-9]{0,3})$")
_DEVICE = re.compile(r"\w*[0-9]\w*$")
_NVLINK = re.compile(r"NV([1-9][0-9]?)$")

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
    """The GPU part of the matrix, in the order GPU0, GPU1, …, whatever the order of its columns and rows.

    Columns of network cards, CPU and NUMA affinity are passed over. Raises :class:`ClusterError` naming ``where`` and
    the line for a text without a matrix, a row that is missing, too short or given twice, a path that is not in the
    legend, and a matrix that is not symmetric.
    """
    lines = _STYLE.sub("", text).splitlines()
    # Every row has an X, for the device itself; the header has none.
    header = next((n for n, line in enumerate(lines) if _gpus(line.split()) and "X" not in line.split()), None)
    if header is None:
        raise ClusterError(f"{where}: no line has the columns GPU0, …: expected the output of `nvidia-smi topo -m`")
    column = _columns(f"{where}:{header + 1}", lines[header].split())
    rows: dict[str, tuple[int, list[str]]] = {}
    for number, line in enumerate(lines[header + 1 :], start=header + 2):
        name, *cells = line.split() or [""]
        if not _GPU.match(name):
            continue
        if name not in column:
            raise ClusterError(f"{where}:{number}: {name} has a row but no column")
        if name in rows:
            raise ClusterError(f"{where}:{number}: the row of {name} is given twice, first in line {rows[name][0]}")
        rows[name] = number, cells
    for name in column:
        if name not in rows:
            raise ClusterError(f"{where}: the row of {name} is missing")
        _check_row(f"{where}:{rows[name][0]}", name, column, rows[name][1])
    names = tuple(column)
    paths = tuple(tuple(rows[name][1][column[other]] for other in names) for name in names)
    for i, row in enumerate(paths):
        for j, path in enumerate(row):
            if path != paths[j][i]:
                raise ClusterError(
                    f"{where}: {names[i]} reaches {names[j]} by {path}, but {names[j]} {names[i]} by {paths[j][i]}"
                )
    return GpuMatrix(names, paths)


def _gpus(words: list[str]) -> list[str]:
    return sorted((word for word in words if _GPU.match(word)), key=lambda name: int(name[3:]))


def _columns(where: str, header: list[str]) -> dict[str, int]:
    """The column of each GPU, in the order of their numbers."""
    names = _gpus(header)
    for number, name in enumerate(names):
        if name != f"GPU{number}":
            fault = f"{name} has two columns" if name in names[:number] else f"the column of GPU{number} is missing"
            raise ClusterError(f"{where}: {fault}: GPUs must be GPU0, GPU1, …, each once")
    last = max(header.index(name) for name in names)
    for word in header[:last]:
        # Titles such as "CPU Affinity" are of several words, so that what is behind them cannot be counted.
        if not _DEVICE.match(word):
            raise ClusterError(f"{where}: column {word!r} is before {header[last]}: columns of devices must come first")
    return {name: header.index(name) for name in names}


def _check_row(where: str, name: str, column: dict[str, int], cells: list[str]) -> None:
    wanted = max(column.values()) + 1
    if len(cells) < wanted:
        raise ClusterError(f"{where}: {name} has {len(cells)} entries for {wanted} devices")
    for other, index in column.items():
        path = cells[index]
        known = path == "X" if other == name else path in PCIE_PART or _NVLINK.match(path)
        if not known:
            legend = "X" if other == name else f"NV1 to NV99, {', '.join(PCIE_PART)}"
            shown = path if len(path) <= 20 else f"{path[:20]}…"
            raise ClusterError(f"{where}: {name} reaches {other} by {shown!r}, must be {legend}")


def _speed(path: str, speeds: GpuLinks) -> float:
    if path == "X":
        return float("inf")
    bonded = _NVLINK.match(path)
    return int(bonded[1]) * speeds.nvlink_link if bonded else PCIE_PART[path] * speeds.pcie
