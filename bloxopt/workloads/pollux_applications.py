"""What Pollux' authors measured of each application: step times by placement, gradient noise by epoch.

Source: Qiao et al., OSDI 2021 (petuum/adaptdl, branch osdi21-artifact), on nodes of four T4 GPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from bloxopt.errors import ThroughputError
from bloxopt.jobs import FloatArray
from bloxopt.workloads.pollux_profiles import GPUS_PER_NODE, MAX_LOCAL_BATCH_SIZE

MOST_NODES = 16
"""Most nodes that were measured; a gang on more counts as one on this many."""

Counts = tuple[int, ...]
"""GPUs on each node of a gang, in the order of its ring: turning the ring changes nothing."""


def packed(num_gpus: int) -> Counts:
    """A gang on the fewest nodes of four: full ones and the rest."""
    full, rest = divmod(num_gpus, GPUS_PER_NODE)
    return (GPUS_PER_NODE,) * full + ((rest,) if rest else ())


@dataclass(frozen=True)
class BatchSplit:
    """How a batch is computed: ``local`` samples a GPU at once, and so again ``accumulated`` times before a step."""

    local: int
    accumulated: int
    num_gpus: int

    @property
    def batch_size(self) -> int:
        """Samples of one step on all GPUs together."""
        return self.local * (self.accumulated + 1) * self.num_gpus


@dataclass(frozen=True, eq=False)
class Application:
    """One model and data set as measured.

    Batch sizes are samples. ``initial_batch_size`` (the smallest measured), ``max_batch_size``, ``min_local`` and
    ``max_local`` (a GPU's share) bound the batches. ``progress`` (epochs,) is what is done at the end of each epoch, in
    iterations at the initial batch size. ``batch_sizes`` (sizes,) ascend; ``iterations``, ``grad_sqr`` and
    ``grad_var`` (sizes, epochs) are iterations made up to the end of, and gradient statistics during, each epoch.
    """

    name: str
    batch_sizes: FloatArray
    progress: FloatArray
    iterations: FloatArray
    grad_sqr: FloatArray
    grad_var: FloatArray
    min_local: int
    max_local: int
    _directory: Path = field(repr=False)
    _measured: dict[Counts, FloatArray] = field(repr=False)

    @property
    def initial_batch_size(self) -> int:
        return int(self.batch_sizes[0])

    @property
    def max_batch_size(self) -> int:
        return int(self.batch_sizes[-1])

    @property
    def num_epochs(self) -> int:
        return len(self.progress)

    def split(self, batch_size: float, num_gpus: int) -> BatchSplit:
        """How ``num_gpus`` GPUs share a batch: equal parts, in several passes where one would be too large.

        One GPU with more than the initial batch size makes at least two passes, to estimate the gradient noise.
        """
        share = math.ceil(batch_size / num_gpus - _EPSILON)
        passes = math.ceil(share / self.max_local - _EPSILON)
        if num_gpus == 1 and batch_size > self.initial_batch_size:
            passes = max(2, passes)
        local = math.ceil(share / passes - _EPSILON)
        return BatchSplit(min(local, self.max_batch_size // (num_gpus * passes)), passes - 1, num_gpus)

    def step_times(self, counts: Counts, local: FloatArray) -> FloatArray:
        """Seconds of a step and, of these, of its synchronisation at each ``local`` batch size, (sizes, 2).

        Linear between measured sizes; where the placement was not measured, linear between those of other numbers of
        nodes and GPUs. NaN outside what was measured.
        """
        local = np.asarray(local, dtype=np.float64)
        measured = self._measured.get(_turned(counts))
        if measured is None:
            nodes = min(len(counts), MOST_NODES)
            points = np.column_stack([np.full(len(local), nodes), np.full(len(local), sum(counts)), local])
            times: FloatArray = _interpolator(str(self._directory))(points)
            return times
        sizes = measured[:, 0]
        inside = (local >= sizes[0]) & (local <= sizes[-1])
        return np.column_stack(
            [np.where(inside, np.interp(local, sizes, measured[:, column]), np.nan) for column in (1, 2)]
        )

    def step_seconds(self, counts: Counts, split: BatchSplit) -> float:
        """Seconds of one step of a split batch on a placement, NaN where that was not measured.

        The passes before the last do not synchronise.
        """
        step, sync = self.step_times(counts, np.array([split.local]))[0].tolist()
        return float(step + (step - sync) * split.accumulated)

    def gain(self, batch_size: float) -> FloatArray:
        """Progress of one step at ``batch_size`` in each epoch, in steps at the initial batch size, (epochs,).

        ``(σ² + μ²) / (σ²/s + μ²)`` with gradient variance σ², squared norm μ² and s times the initial batch size.
        """
        sqr, var = self.between(self.grad_sqr, batch_size), self.between(self.grad_var, batch_size)
        gain: FloatArray = (var + sqr) / (var * (self.initial_batch_size / batch_size) + sqr)
        return gain

    def between(self, values: FloatArray, batch_size: float) -> FloatArray:
        """Row of ``values`` (sizes, epochs) at a batch size, linear between those measured."""
        sizes = self.batch_sizes
        if not sizes[0] <= batch_size <= sizes[-1]:
            raise ThroughputError(
                f"batch size {batch_size:g} of {self.name} was not measured: use {sizes[0]:g} to {sizes[-1]:g}"
            )
        above = int(np.searchsorted(sizes, batch_size))
        row: FloatArray = values[above]
        if sizes[above] > batch_size:
            part = (batch_size - sizes[above - 1]) / (sizes[above] - sizes[above - 1])
            row = values[above - 1] * (1 - part) + row * part
        return row


_EPSILON = 1e-8
"""Shares of a batch this little above a whole number are that number."""


@lru_cache(maxsize=4)
def load_applications(directory: Path) -> dict[str, Application]:
    """Applications by name of a directory with one folder each; read once."""
    return {folder.name: _application(folder) for folder in sorted(directory.iterdir()) if folder.is_dir()}


def _application(folder: Path) -> Application:
    import pandas as pd

    sizes = sorted(int(path.stem.removeprefix("validation-")) for path in folder.glob("validation-*.csv"))
    epochs = [pd.read_csv(folder / f"validation-{size}.csv") for size in sizes]
    count = min(map(len, epochs))

    def measured(name: str) -> FloatArray:
        return np.array([frame[name].to_numpy(dtype=np.float64)[:count] for frame in epochs])

    placements = pd.read_csv(folder / "placements.csv", dtype={"placement": str})
    digits = placements.placement.to_numpy(dtype=str)
    times = placements[["local_bsz", "step_time", "sync_time"]].to_numpy(np.float64)
    order = np.lexsort((times[:, 0], digits))
    names, first = np.unique(digits[order], return_index=True)
    parts = np.split(times[order], first[1:])
    return Application(
        name=folder.name,
        batch_sizes=np.array(sizes, dtype=np.float64),
        progress=measured("progress").min(axis=0),
        iterations=measured("iteration"),
        grad_sqr=measured("grad_sqr"),
        grad_var=measured("grad_var"),
        min_local=int(times[:, 0].min()),
        max_local=int(MAX_LOCAL_BATCH_SIZE.get(folder.name, times[:, 0].max())),
        _directory=folder,
        _measured={tuple(map(int, name)): part for name, part in zip(names.tolist(), parts, strict=True)},
    )


def _turned(counts: Counts) -> Counts:
    """The smallest of the turns of a ring, under which it was measured."""
    return min(counts[first:] + counts[:first] for first in range(len(counts)))


@lru_cache(maxsize=32)
def _interpolator(folder: str):  # type: ignore[no-untyped-def]  # scipy has no types
    """Step and synchronisation times, linear over nodes, GPUs and local batch size (Delaunay, as in Pollux)."""
    import pandas as pd
    from scipy.interpolate import LinearNDInterpolator

    at, times = ["nodes", "gpus", "local_bsz"], ["step_time", "sync_time"]
    placements = pd.read_csv(Path(folder) / "placements.csv", dtype={"placement": str})
    placements["nodes"] = placements.placement.str.len()
    placements["gpus"] = [sum(map(int, digits)) for digits in placements.placement]
    scalability = pd.read_csv(Path(folder) / "scalability.csv")
    scalability = scalability.rename(columns={"num_nodes": "nodes", "num_replicas": "gpus"})
    # The order of the points settles which of many triangulations of a grid is found.
    mean = placements.groupby(at, as_index=False)[times].mean()
    points = pd.concat([mean, scalability[at + times]], ignore_index=True)
    return LinearNDInterpolator(points[at].to_numpy(np.float64), points[times].to_numpy(np.float64))
