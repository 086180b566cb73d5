"""How much slower a gang runs on more nodes than it needs: tables, measured profiles, or a function."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bloxopt.errors import ThroughputError, guarded
from bloxopt.jobs import FloatArray, IntArray, JobTable
from bloxopt.throughput import TableThroughput, as_oracle

UNCONSOLIDATED = "_unconsolidated"
"""What Gavel's table appends to a GPU type for gangs on more than the fewest nodes."""


class Slowdown(Protocol):
    """Anything that knows what spreading costs; implementations must be pure and vectorised over jobs."""

    def factors(
        self, jobs: JobTable, gpu_type: str, num_gpus: IntArray, nodes: IntArray, fewest: IntArray
    ) -> FloatArray:
        """Rate on ``nodes[i]`` nodes over the rate on ``fewest[i]``, in (0, 1], for each job (jobs,).

        ``fewest`` is the number of nodes that a gang of ``num_gpus[i]`` needs on empty nodes of the type.
        Raises :class:`~bloxopt.errors.ThroughputError`.
        """
        ...


class TableSlowdown:
    """From a throughput table with rows for ``<GPU type>_unconsolidated``, as Gavel's has (OSDI 2020).

    Consolidated means on the fewest nodes possible; how many more does not matter. A pair that was not measured takes
    the geometric mean of those measured on its GPU type and count. Ratios above 1, of which the published
    table has some, count as 1: spreading a gang is never a goal in itself.
    Raises :class:`ThroughputError` for a table without such rows.
    """

    def __init__(self, table: TableThroughput) -> None:
        self._ratio: dict[tuple[str, str, int], float] = {}
        measured: dict[tuple[str, int], list[float]] = defaultdict(list)
        for (job_type, gpu_type, count), rate in table.table.items():
            if not gpu_type.endswith(UNCONSOLIDATED):
                continue
            kind = gpu_type.removesuffix(UNCONSOLIDATED)
            together = table.table.get((job_type, kind, count), 0.0)
            if rate > 0 and together > 0:
                ratio = self._ratio[job_type, kind, count] = min(1.0, rate / together)
                measured[kind, count].append(ratio)
        self._gpu_types = {kind for kind, _ in measured}
        self._mean = {key: float(np.exp(np.mean(np.log(ratios)))) for key, ratios in measured.items()}
        if not self._ratio:
            raise ThroughputError(
                f"the throughput table has no rows for GPU types named <type>{UNCONSOLIDATED}, so it says nothing of "
                "placement: give slowdown= a table that has them, 'gavel', 'pollux' or a function of (nodes, GPUs)"
            )

    def factors(
        self, jobs: JobTable, gpu_type: str, num_gpus: IntArray, nodes: IntArray, fewest: IntArray
    ) -> FloatArray:
        kind = gpu_type.lower()
        if kind not in self._gpu_types:
            raise ThroughputError(
                f"the slowdown table has no rows for {kind}{UNCONSOLIDATED}; "
                f"it knows {', '.join(sorted(self._gpu_types))}"
            )
        pairs, inverse = np.unique(np.column_stack([jobs.job_type, num_gpus]), axis=0, return_inverse=True)
        apart = np.array([self._apart(jobs.job_types[int(code)], kind, int(count)) for code, count in pairs])
        return np.where(nodes > fewest, apart[inverse.ravel()], 1.0)

    def _apart(self, job_type: str, gpu_type: str, count: int) -> float:
        """Ratio of a job type on a GPU type and count; 1 where no job type was measured on that count."""
        return self._ratio.get((job_type, gpu_type, count), self._mean.get((gpu_type, count), 1.0))


class ProfileSlowdown:
    """From Pollux' measured placements (OSDI 2021): step times of a model by GPUs and nodes, T4s four to a node.

    A job type names model and batch size, as the Pollux reader writes it. Node counts that were not measured take
    the nearest measured one of that GPU count. Source: petuum/adaptdl, branch osdi21-artifact.
    """

    def __init__(self, directory: str | Path) -> None:
        from bloxopt.workloads.pollux_profiles import load_spans

        try:
            self._spans = load_spans(Path(directory))
        except OSError as error:
            raise ThroughputError(f"{directory}: cannot be read as Pollux' profiles: {error.strerror}") from error

    def factors(
        self, jobs: JobTable, gpu_type: str, num_gpus: IntArray, nodes: IntArray, fewest: IntArray
    ) -> FloatArray:
        keys, inverse = np.unique(
            np.column_stack([jobs.job_type, num_gpus, nodes, fewest]), axis=0, return_inverse=True
        )
        known = np.array([self._factor(jobs.job_types[int(code)], *(int(n) for n in rest)) for code, *rest in keys])
        return known[inverse.ravel()].astype(np.float64)

    def _factor(self, job_type: str, num_gpus: int, nodes: int, fewest: int) -> float:
        model, _, size = job_type.partition(" (batch size ")
        if model not in self._spans or not size.rstrip(")").isdigit():
            raise ThroughputError(
                f"job type {job_type!r} is not of Pollux' profiles: expected '<model> (batch size <n>)' "
                f"with a model of {', '.join(sorted(self._spans))}"
            )
        measured = self._spans[model]
        batch_size = float(size.rstrip(")"))
        rates = {span: rate for span in measured if (rate := measured[span].rate(num_gpus, batch_size)) > 0}
        if not rates:
            return 1.0
        together, apart = (rates[min(rates, key=lambda span: (abs(span - want), span))] for want in (fewest, nodes))
        return min(1.0, apart / together)


class FunctionSlowdown:
    """A user's function ``(nodes, gpus) -> factor`` in (0, 1], the same for every job, called once per pair."""

    def __init__(self, function: Callable[[int, int], float]) -> None:
        self._function = function

    def factors(
        self, jobs: JobTable, gpu_type: str, num_gpus: IntArray, nodes: IntArray, fewest: IntArray
    ) -> FloatArray:
        pairs, inverse = np.unique(np.column_stack([nodes, num_gpus]), axis=0, return_inverse=True)
        values = [self._factor(int(span), int(gpus)) for span, gpus in pairs]
        return np.array(values, dtype=np.float64)[inverse.ravel()]

    def _factor(self, nodes: int, gpus: int) -> float:
        with guarded(f"the slowdown function for {gpus} GPUs on {nodes} nodes", ThroughputError):
            value = self._function(nodes, gpus)
        try:
            factor = float(value)
        except (TypeError, ValueError, OverflowError):
            factor = math.nan
        if not 0 < factor <= 1:
            raise ThroughputError(f"the slowdown of {gpus} GPUs on {nodes} nodes is {value!r}: it must be in (0, 1]")
        return factor


def as_slowdown(source: Any) -> Slowdown:
    """A slowdown from a model, ``"gavel"``, ``"pollux"``, a function of (nodes, GPUs), a throughput table or its path.

    A folder is read as Pollux' profiles. Raises :class:`ThroughputError` for anything else.
    """
    if hasattr(source, "factors"):
        model: Slowdown = source
        return model
    if isinstance(source, (str, Path)):
        from bloxopt.workloads.shipped import data_path, shipped_throughput

        if source == "gavel":
            return TableSlowdown(shipped_throughput("gavel/simulation_throughputs.json.gz"))
        if source == "pollux":
            return ProfileSlowdown(data_path("pollux/profiles"))
        if Path(source).is_dir():
            return ProfileSlowdown(source)
        if not Path(source).exists():
            raise ThroughputError(
                f"slowdown {str(source)!r}: choose 'gavel', 'pollux', or a file or folder that exists"
            )
        source = as_oracle(source)
    elif isinstance(source, Mapping):
        source = TableThroughput(source)
    if isinstance(source, TableThroughput):
        return TableSlowdown(source)
    if callable(source):
        return FunctionSlowdown(source)
    raise ThroughputError(
        f"cannot make a slowdown of {type(source).__name__}: give 'gavel', 'pollux', a throughput table with rows for "
        f"<type>{UNCONSOLIDATED}, or a function of (nodes, GPUs)"
    )


def fewest_nodes(node_gpus: IntArray, num_gpus: IntArray) -> IntArray:
    """Nodes that gangs of ``num_gpus`` span at least on empty nodes of the given sizes."""
    total = np.sort(node_gpus)[::-1].cumsum()
    needed: IntArray = np.searchsorted(total, num_gpus) + 1
    return np.minimum(needed, max(len(node_gpus), 1))
