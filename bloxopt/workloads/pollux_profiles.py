"""Pollux' measured profiles: iterations to convergence and step times (Qiao et al., OSDI 2021).

Measured by its authors on nodes of four T4 GPUs. Only measured GPU counts are used: 1 to 16 and
multiples up to 64, each packed on as few nodes as possible; a job has no throughput on others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from bloxopt.errors import TraceError
from bloxopt.jobs import FloatArray

GPU_TYPE = "T4"
GPUS_PER_NODE = 4

MAX_LOCAL_BATCH_SIZE = {"yolov3": 8.0}
"""Where Pollux' simulator lets a GPU take less than was measured; a larger share is accumulated."""

_VALIDATION = re.compile(r"validation-(\d+)\.csv")


@dataclass(frozen=True)
class Profile:
    """What was measured of one model: iterations by batch size, step times by GPU count and batch.

    ``batch_sizes`` ascend and ``iterations`` (to the last epoch) are aligned with them.
    ``step_times[n]`` holds the local batch sizes measured on n GPUs with the seconds of a step and,
    of these, of its synchronisation, shape (sizes, 3).
    """

    name: str
    batch_sizes: FloatArray
    iterations: FloatArray
    step_times: dict[int, FloatArray]

    def total_steps(self, batch_size: float) -> float:
        """Iterations to finish training at ``batch_size``, linear between measured ones."""
        low, high = self.batch_sizes[0], self.batch_sizes[-1]
        if not low <= batch_size <= high:
            raise TraceError(f"batch_size {batch_size:g} of {self.name} was not measured: use {low:g} to {high:g}")
        return float(np.interp(batch_size, self.batch_sizes, self.iterations))

    def rate(self, num_gpus: int, batch_size: float) -> float:
        """Steps/s on ``num_gpus`` packed GPUs; 0 where the count or its share of the batch was not measured.

        A share above the largest measured one is split into equal accumulation steps, which
        synchronise once (Pollux' simulator does the same).
        """
        measured = self.step_times.get(num_gpus)
        if measured is None:
            return 0.0
        sizes, step, sync = measured.T
        share = np.ceil(batch_size / num_gpus - 1e-8)
        largest = min(float(sizes[-1]), MAX_LOCAL_BATCH_SIZE.get(self.name, np.inf))
        passes = max(1.0, np.ceil(share / largest - 1e-8))
        local = np.ceil(share / passes - 1e-8)
        if local < sizes[0]:
            return 0.0
        step_time, sync_time = np.interp(local, sizes, step), np.interp(local, sizes, sync)
        return float(1.0 / (step_time + (passes - 1) * (step_time - sync_time)))


@lru_cache(maxsize=4)
def load_profiles(directory: Path) -> dict[str, Profile]:
    """Profiles by model of a directory with one folder per model."""
    return {folder.name: _profile(folder) for folder in sorted(directory.iterdir()) if folder.is_dir()}


def _profile(folder: Path) -> Profile:
    import pandas as pd

    iterations = {}
    for path in folder.iterdir():
        match = _VALIDATION.fullmatch(path.name)
        if match:
            iterations[float(match[1])] = float(pd.read_csv(path)["iteration"].iloc[-1])
    sizes = sorted(iterations)
    return Profile(
        name=folder.name,
        batch_sizes=np.array(sizes),
        iterations=np.array([iterations[size] for size in sizes]),
        step_times=_step_times(folder),
    )


def _step_times(folder: Path) -> dict[int, FloatArray]:
    """Step times of the packed placements: full nodes and one with the rest."""
    import pandas as pd

    placements = pd.read_csv(folder / "placements.csv")
    scalability = pd.read_csv(folder / "scalability.csv")
    columns = ["local_bsz", "step_time", "sync_time"]
    measured: dict[int, FloatArray] = {}
    for placement, group in placements.groupby("placement"):
        nodes = sorted(int(digit) for digit in str(placement))
        if all(gpus == GPUS_PER_NODE for gpus in nodes[1:]):
            measured[sum(nodes)] = group.sort_values("local_bsz")[columns].to_numpy(np.float64)
    packed = scalability[scalability.num_nodes * GPUS_PER_NODE == scalability.num_replicas]
    for gpus, group in packed.groupby("num_replicas"):
        measured[int(str(gpus))] = group.sort_values("local_bsz")[columns].to_numpy(np.float64)
    return measured


def load_spans(directory: Path) -> dict[str, dict[int, Profile]]:
    """Profiles by model and number of nodes: ``step_times`` of gangs on that many nodes, however they are split.

    Placements of as many GPUs on as many nodes are averaged where they were measured at the same local batch size.
    """
    return _load_spans(str(directory))


@lru_cache(maxsize=4)
def _load_spans(directory: str) -> dict[str, dict[int, Profile]]:
    import pandas as pd

    columns = ["nodes", "gpus", "local_bsz", "step_time", "sync_time"]
    models: dict[str, dict[int, Profile]] = {}
    for name, packed in load_profiles(Path(directory)).items():
        placements = pd.read_csv(Path(directory) / name / "placements.csv", dtype={"placement": str})
        placements["nodes"] = placements.placement.str.len()
        placements["gpus"] = [sum(map(int, digits)) for digits in placements.placement]
        scalability = pd.read_csv(Path(directory) / name / "scalability.csv")
        scalability = scalability.rename(columns={"num_nodes": "nodes", "num_replicas": "gpus"})
        rows = pd.concat([placements[columns], scalability[columns]])
        mean = rows.groupby(["nodes", "gpus", "local_bsz"], as_index=False)[["step_time", "sync_time"]].mean()
        models[name] = {}
        for nodes, on_nodes in mean.groupby("nodes"):
            times = {
                int(str(gpus)): group.sort_values("local_bsz")[columns[2:]].to_numpy(np.float64)
                for gpus, group in on_nodes.groupby("gpus")
            }
            models[name][int(str(nodes))] = Profile(name, packed.batch_sizes, packed.iterations, times)
    return models
