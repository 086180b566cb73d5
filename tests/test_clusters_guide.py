"""docs/clusters.md: its examples are read, and every key that a cluster file may have stands in it."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import bloxopt as bx
from bloxopt.errors import ClusterError
from bloxopt.network import GpuLinks, Network, RackNetwork

GUIDE = (Path(__file__).parents[1] / "docs" / "clusters.md").read_text(encoding="utf-8")


def example(language: str) -> str:
    (block,) = re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)
    return str(block)


def test_the_toml_example_is_the_cluster_it_says(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(example("toml"))
    cluster = bx.load_cluster(tmp_path / "c.toml")
    assert [node.name for node in cluster.nodes] == ["a-0", "a-1", "a-2", "a-3", "b"]
    assert (cluster.nodes[0].cpus, cluster.nodes[0].memory_gib, cluster.nodes[0].island_gpus) == (128, 1024, 4)
    assert cluster.nodes[4].reserved_for == "vision"
    assert (cluster.network.node, cluster.network.uplink("row-2"), cluster.network.uplink("row-1")) == (25, 6.25, 12.5)


def test_the_csv_example_is_the_cluster_it_says(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(example("csv"))
    first, second = bx.load_cluster(tmp_path / "c.csv").nodes
    assert dict(first.labels) == {"disk": "ssd", "zone": "x"}
    assert (second.cpus, second.taints) == (None, ("maintenance",))


def test_every_key_is_described() -> None:
    keys = [field.name for kind in (bx.Node, Network, RackNetwork, GpuLinks) for field in fields(kind)]
    for key in [*keys, "count", "topology"]:
        # [[rack]] and [gpu.TYPE] stand for what Network holds of them.
        assert f"`{key}" in GUIDE or f"[{key}" in GUIDE or key in ("racks", "gpus"), key


def test_messages_about_cluster_files_name_the_guide(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("nodes = 3\n")
    with pytest.raises(ClusterError, match=r"docs/clusters\.md"):
        bx.load_cluster(tmp_path / "c.toml")
    with pytest.raises(ClusterError, match=r"docs/clusters\.md"):
        bx.load_cluster("no cluster")
