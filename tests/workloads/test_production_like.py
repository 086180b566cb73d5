"""The production-like cluster and tasks have the published marginals, and show what fragmentation costs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from bloxopt.errors import TraceError
from bloxopt.workloads.production_like import GPU_CLASSES, production_like_cluster, production_like_trace


def test_the_cluster_is_the_published_one() -> None:
    cluster = production_like_cluster()
    assert len(cluster.nodes) == 1213
    assert cluster.num_gpus == 6212
    assert cluster.node_cpus.sum() == 107_018
    published = {"G2": 4392, "G3": 312, "T4": 842, "P100": 265, "V100M32": 204, "V100M16": 195, "A10": 2}
    assert dict(zip(cluster.gpu_types, cluster.capacity.tolist(), strict=True)) == published


def test_one_type_keeps_the_models_as_labels() -> None:
    cluster = production_like_cluster(by_model=False)
    assert cluster.gpu_types == ("GPU",)
    assert ("model", "T4") in cluster.nodes[600].labels


def test_tasks_have_the_published_classes() -> None:
    jobs = production_like_trace(200_000, seed=3).jobs
    total = sum(GPU_CLASSES.values())
    assert (jobs.gpu_share < 1).mean() == pytest.approx(GPU_CLASSES["share"] / total, abs=0.01)
    for gpus in (2, 4, 8):
        assert (jobs.num_gpus == gpus).mean() == pytest.approx(GPU_CLASSES[str(gpus)] / total, rel=0.2)
    assert {need.max_nodes for need in jobs.need_kinds} == {1}


def test_a_seed_gives_the_same_tasks_again() -> None:
    one, again, other = (production_like_trace(500, seed) for seed in (1, 1, 2))
    assert one.to_pandas().equals(again.to_pandas())
    assert not one.to_pandas().equals(other.to_pandas())


@pytest.mark.parametrize(("count", "seed"), [(0, 0), (1.5, 0), (True, 0), (10, -1), (10, "a")])
def test_what_is_no_number_is_refused(count: object, seed: object) -> None:
    with pytest.raises(TraceError, match="must be a whole number"):
        production_like_trace(count, seed)  # type: ignore[arg-type]


def inflation() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "inflation.py"
    spec = importlib.util.spec_from_file_location("inflation_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_gradient_allocates_more_before_the_first_failure_and_in_the_end() -> None:
    cluster, inflate = production_like_cluster(by_model=False), inflation().inflate
    ours, rivals = inflate("fragmentation_gradient", cluster, 5), ("best_fit", "dot_product")
    for name in rivals:
        arrived, allocated, before_failure = inflate(name, cluster, 5)
        assert ours[2] >= before_failure
        assert ours[1][-1] >= allocated[-1]
        assert np.all(allocated <= np.minimum(arrived + 1e-6, cluster.num_gpus))
