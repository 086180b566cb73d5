"""The tree of a cluster: numbers of its parts, where GPUs meet, how fast they talk, and how it looks."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bloxopt as bx
from bloxopt.cli import run
from bloxopt.cluster import Cluster, Node
from bloxopt.errors import ClusterError
from bloxopt.network import GpuLinks, Network, RackNetwork
from bloxopt.placement.topology import Level, Topology, widest_tree
from bloxopt.placement.topology_outline import outline

# Two data centres: west has racks a (two nodes of 4) and b (one of 8 in islands of 4), east has rack c.
CLUSTER = Cluster(
    (
        Node(name="a0", gpu_type="V100", num_gpus=4, rack="a", datacenter="west"),
        Node(name="b0", gpu_type="V100", num_gpus=8, island_gpus=4, rack="b", datacenter="west"),
        Node(name="a1", gpu_type="V100", num_gpus=4, rack="a", datacenter="west"),
        Node(name="c0", gpu_type="T4", num_gpus=2, rack="c", datacenter="east"),
    ),
    Network(node=20.0, rack=10.0, datacenter=1.0, racks={"b": RackNetwork(uplink=5.0)}),
)
TOPOLOGY = Topology.of(CLUSTER)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    count = draw(st.integers(1, 8))
    nodes = []
    for i in range(count):
        rack = draw(st.integers(0, 3))
        island = draw(st.sampled_from([1, 2, 4]))
        nodes.append(
            Node(
                name=f"n{i}",
                gpu_type=draw(st.sampled_from(["A100", "T4"])),
                num_gpus=island * draw(st.integers(1, 2)),
                island_gpus=island,
                rack=f"r{rack}",
                datacenter=f"d{rack // 2}",
            )
        )
    return Cluster(tuple(nodes))


def test_every_part_is_numbered_in_order_of_appearance() -> None:
    assert TOPOLOGY.node_names == ("a0", "b0", "a1", "c0")
    assert TOPOLOGY.rack_names == ("a", "b", "c")
    assert TOPOLOGY.datacenter_names == ("west", "east")
    assert TOPOLOGY.node_rack.tolist() == [0, 1, 0, 2]
    assert TOPOLOGY.rack_datacenter.tolist() == [0, 0, 1]
    assert TOPOLOGY.gpu_node.tolist() == [0] * 4 + [1] * 8 + [2] * 4 + [3] * 2
    assert TOPOLOGY.gpu_island.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 2
    assert TOPOLOGY.island_node.tolist() == [0, 1, 1, 2, 3]
    assert TOPOLOGY.rack_capacity.tolist() == [[8, 0], [8, 0], [0, 2]]


def test_a_cluster_has_one_topology() -> None:
    assert Topology.of(CLUSTER) is Topology.of(CLUSTER)


@pytest.mark.parametrize(
    ("gpus", "level", "bandwidth"),
    [
        ([0], Level.GPU, float("inf")),
        ([0, 1], Level.ISLAND, 150.0),
        ([4, 5, 8], Level.NODE, 15.75),
        ([0, 12], Level.RACK, 20.0),
        ([0, 1, 12], Level.RACK, 20.0),
        ([0, 4], Level.DATACENTER, 5.0),
        ([0, 16], Level.CLUSTER, 1.0),
        ([4, 8, 0], Level.DATACENTER, 5.0),
    ],
)
def test_gpus_meet_at_a_level_and_the_narrowest_link_there_counts(
    gpus: list[int], level: Level, bandwidth: float
) -> None:
    assert TOPOLOGY.span(gpus) == level
    assert TOPOLOGY.bandwidth(gpus) == bandwidth


@given(cluster=clusters(), data=st.data())
def test_the_graph_is_a_tree_and_spans_are_its_lowest_common_parts(cluster: Cluster, data: st.DataObject) -> None:
    topology = Topology.of(cluster)
    graph = topology.graph
    assert nx.is_arborescence(graph)
    assert sum(1 for vertex in graph if vertex[0] == Level.GPU) == cluster.num_gpus
    gpus = data.draw(
        st.sets(st.integers(0, cluster.num_gpus - 1), min_size=2, max_size=6) if cluster.num_gpus > 1 else st.just({0})
    )
    above = [{(Level.GPU, gpu)} | nx.ancestors(graph, (Level.GPU, gpu)) for gpu in gpus]
    assert topology.span(sorted(gpus)) == min(level for level, _ in set.intersection(*above))
    nodes = sorted({int(cluster.gpu_node[gpu]) for gpu in gpus})
    assert topology.node_span(nodes) == max(topology.span(sorted(gpus)), Level.NODE)


@given(
    st.integers(2, 6).flatmap(
        lambda count: st.lists(st.integers(1, 9), min_size=count * count, max_size=count * count).map(
            lambda cells: np.array(cells, dtype=float).reshape(count, count)
        )
    )
)
def test_the_widest_tree_keeps_the_gpus_connected_and_nothing_wider_does(links: np.ndarray) -> None:
    links = np.minimum(links, links.T)
    narrowest = widest_tree(links, np.arange(len(links)))
    assert nx.is_connected(nx.from_numpy_array(links >= narrowest))
    assert not nx.is_connected(nx.from_numpy_array(links > narrowest))


def test_links_come_from_the_gpu_type_unless_measured() -> None:
    assert Topology.of(bx.load_cluster("4xA100-80GB")).links(0)[0, 1] == 300.0
    assert Topology.of(bx.load_cluster("4xT4")).links(0)[0, 1] == 15.75
    own = Cluster(CLUSTER.nodes, Network(gpus={"V100": GpuLinks(nvlink=50.0, pcie=10.0)}))
    assert Topology.of(own).links(1)[0].tolist() == [np.inf, 50, 50, 50, 10, 10, 10, 10]
    measured = Node(name="n", gpu_type="A100", num_gpus=2, links=((0.5, 42.0), (42.0, 0.5)))
    links = Topology.of(Cluster((measured,))).links(0)
    assert links.tolist() == [[np.inf, 42.0], [42.0, np.inf]]
    with pytest.raises(ValueError, match="read-only"):
        links[0, 1] = 1.0


def test_a_rack_in_two_data_centres_is_refused() -> None:
    with pytest.raises(ClusterError, match="rack 'a' is in two data centres, 'west' and 'east'"):
        Cluster((CLUSTER.nodes[0], Node(name="x", gpu_type="V100", num_gpus=1, rack="a", datacenter="east")))


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf"), True, "fast"])
def test_a_bandwidth_must_be_a_positive_number(speed: object) -> None:
    with pytest.raises(ClusterError, match=r"network: rack is .*, must be a finite number of GB/s > 0"):
        Network(rack=speed)  # type: ignore[arg-type]


def test_links_must_fit_the_gpus() -> None:
    with pytest.raises(ClusterError, match="links must be 2 rows of 2 GB/s"):
        Node(name="n", gpu_type="A100", num_gpus=2, links=((1.0,),))


def test_ten_thousand_nodes_take_at_most_300_mb() -> None:
    tracemalloc.start()
    try:
        cluster = bx.load_cluster("10000x8xH100")
        topology = Topology.of(cluster)
        assert topology.links(9999)[0, 1] == 450.0
        assert topology.span([0, 79_999]) == Level.RACK
        assert topology.bandwidth(range(80)) == 12.5
        assert topology.rack_capacity.tolist() == [[80_000]]
        assert tracemalloc.get_traced_memory()[1] < 300e6, "bytes at the peak, cluster and topology"
    finally:
        tracemalloc.stop()


def test_equal_nodes_and_racks_are_shown_once() -> None:
    nodes = tuple(Node(name=f"n{i}", gpu_type="A100", num_gpus=8, rack=f"r{i // 10}") for i in range(100))
    (center,) = outline(Topology.of(Cluster(nodes)))
    (rack,) = center.racks
    assert (rack.count, rack.nodes[0].count) == (10, 10)
    (center,) = outline(Topology.of(Cluster((*nodes, Node(name="x", gpu_type="T4", num_gpus=1, rack="r0")))))
    assert [rack.count for rack in center.racks] == [1, 9]
    (center,) = outline(
        Topology.of(Cluster((*nodes[:99], Node(name="x", gpu_type="A100", num_gpus=8, rack="r9", drained=True))))
    )
    assert [rack.count for rack in center.racks] == [9, 1]


def test_the_command_prints_the_tree_and_draws_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for ending in ("png", "svg"):
        assert run(["topology", "2x4xV100+8xA100", "--plot", str(tmp_path / f"t.{ending}")]) == 0
        assert (tmp_path / f"t.{ending}").stat().st_size > 1000
    assert "node-0, node-1 (2 nodes) · 4 × V100 · 150 GB/s" in capsys.readouterr().out
    svg = (tmp_path / "t.svg").read_text()
    for text in ("node-0, node-1 (2 nodes)", "8 × A100 · 300 GB/s", "1 rack, 3 nodes, 16 GPUs"):
        assert text in svg


def test_the_command_writes_json_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topology", "2x4xV100", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["parts"] == {"datacenter": 1, "rack": 1, "node": 2, "island": 2, "gpu": 8}
    assert document["datacenters"][0]["racks"][0]["nodes"][0]["names"] == ["node-0", "node-1"]


def test_the_command_takes_racks_from_slurm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "topology.conf").write_text(
        "SwitchName=s1 Nodes=node-0\nSwitchName=s2 Nodes=node-[1-2]\nSwitchName=top Switches=s[1-2]\n"
    )
    assert run(["topology", "3x4xV100", "--slurm", str(tmp_path / "topology.conf")]) == 0
    out = capsys.readouterr().out
    assert "2 racks, 3 nodes" in out
    assert "s2 · 12.5 GB/s" in out
    assert run(["topology", "2x4xV100", "--slurm", str(tmp_path / "topology.conf")]) == 2
    assert "node 'node-2' is not in the cluster" in capsys.readouterr().err


def test_another_ending_of_the_picture_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topology", "4xV100", "--plot", str(tmp_path / "t.gif")]) == 2
    assert "end the name in .png, .svg or .pdf" in capsys.readouterr().err


@pytest.mark.parametrize(
    "gpus", [[0, 99], "ab", [-1, 0], [0.5, 1.0], [True], [[0], [1]], None, 3, ["0"], [[0], [1, 2]]]
)
def test_gpus_and_nodes_that_the_cluster_does_not_have_are_refused(gpus: Any) -> None:
    topology = Topology.of(bx.load_cluster("2x4xV100"))
    for ask, what in ((topology.span, "GPU"), (topology.bandwidth, "GPU"), (topology.node_span, "node")):
        with pytest.raises(ClusterError, match=f"{what} numbers are .*, must be whole numbers from 0 to"):
            ask(gpus)


@pytest.mark.parametrize("node", [7, -1, 0.5, "0", None, [0]])
def test_links_of_a_node_that_the_cluster_does_not_have_are_refused(node: Any) -> None:
    with pytest.raises(ClusterError, match=r"node number is .*, must be a whole number from 0 to 1"):
        Topology.of(bx.load_cluster("2x4xV100")).links(node)


def test_a_topology_is_of_a_cluster() -> None:
    with pytest.raises(ClusterError, match="cluster is '4xV100', must be a Cluster"):
        Topology.of("4xV100")  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"racks": 5}, {"racks": {"rack-0": 5}}, {"gpus": {"V100": 5}}, {"gpus": None}])
def test_a_network_of_other_entries_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ClusterError, match=r"network: .* must map names to"):
        Network(**options)
    with pytest.raises(ClusterError, match="nvlink is None"):
        GpuLinks(nvlink=None)  # type: ignore[arg-type]
