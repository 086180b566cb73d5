"""Topologies from nvidia-smi, Slurm and cluster files; what is not a tree is refused with its place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloxopt.cli import run
from bloxopt.cluster import BUILT_IN_LABELS, Cluster, Node, load_cluster
from bloxopt.errors import ClusterError
from bloxopt.network import DEFAULT_NETWORK, GpuLinks, Network, RackNetwork
from bloxopt.placement.rules import labels_of
from bloxopt.placement.topology import Level, Topology
from bloxopt.topology_sources.hostlist import expand_hostlist
from bloxopt.topology_sources.nvidia_smi import read_nvidia_smi
from bloxopt.topology_sources.slurm import read_slurm

SAMPLES = Path(__file__).parent / "topologies"


def links(name: str, gpu_type: str) -> np.ndarray:
    matrix = read_nvidia_smi((SAMPLES / name).read_text())
    return np.array(matrix.links(DEFAULT_NETWORK.links_of(gpu_type)))


def test_dgx_a100_has_one_speed_between_all_gpus() -> None:
    speeds = links("dgx-a100.txt", "A100")
    assert speeds.shape == (8, 8)
    assert set(speeds[~np.eye(8, dtype=bool)]) == {300.0}
    assert read_nvidia_smi((SAMPLES / "dgx-a100.txt").read_text()).island_gpus == 8


def test_dgx1_is_a_mesh_of_single_and_double_links() -> None:
    speeds = links("dgx1-v100.txt", "V100")
    assert (speeds[0, 3], speeds[0, 1], speeds[0, 5]) == (50.0, 25.0, 15.75 * 0.5)
    nvlink = np.where(np.isfinite(speeds) & (speeds > 20), speeds, 0)
    assert nvlink.sum(axis=1).tolist() == [150.0] * 8, "six links a GPU"


def test_pcie_paths_keep_the_order_of_the_legend() -> None:
    speeds = links("pcie-two-sockets.txt", "T4")
    pix, pxb, node, system = speeds[0, 1], speeds[0, 2], speeds[4, 6], speeds[0, 4]
    assert 15.75 == pix > pxb > node > system > 0
    assert read_nvidia_smi((SAMPLES / "pcie-two-sockets.txt").read_text()).island_gpus is None


def test_network_cards_and_affinity_are_no_gpus() -> None:
    matrix = read_nvidia_smi((SAMPLES / "a40-pairs.txt").read_text())
    assert matrix.names == ("GPU0", "GPU1", "GPU2", "GPU3")
    assert matrix.island_gpus == 2
    assert links("a40-pairs.txt", "A40")[0, 1] == 56.25


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("GPU", "CPU", "no line has the columns GPU0"),
        ("GPU0", "CPU0", ":1: the column of GPU0 is missing"),
        ("GPU2\tSYS", "NIC9\tSYS", "the row of GPU2 is missing"),
        ("GPU2\tSYS", "GPU9\tSYS", ":4: GPU9 has a row but no column"),
        ("GPU2\tSYS", "GPU1\tSYS", ":4: the row of GPU1 is given twice, first in line 3"),
        ("GPU1\tNV4", "GPU1\tNV0", r":3: GPU1 reaches GPU0 by 'NV0', must be NV1 to NV99, PIX"),
        ("GPU1\tNV4", "GPU1\tNV100", r":3: GPU1 reaches GPU0 by 'NV100', must be NV1 to NV99"),
        ("NV4", "NV" + "9" * 5000, r":2: GPU0 reaches GPU1 by 'NV9{18}…', must be NV1 to NV99"),
        ("\tGPU1\tGPU2", "\tCPU Affinity\tGPU1\tGPU2", ":1: column 'CPU' is before GPU3"),
        ("GPU1\tNV4\t X ", "GPU1\tNV4\t X \n", r":3: GPU1 has 2 entries for 4 devices"),
        ("GPU1\tNV4", "GPU1\tFAST", r":3: GPU1 reaches GPU0 by 'FAST', must be NV1 to NV99, PIX"),
        ("GPU1\tNV4", "GPU1\tNV2", "GPU0 reaches GPU1 by NV4, but GPU1 GPU0 by NV2"),
        ("GPU1\tNV4\t X ", "GPU1\tNV4\tPIX", "GPU1 reaches GPU1 by 'PIX', must be X"),
        ("\tGPU1\tGPU2", "\tGPU1\tGPU1", ":1: GPU1 has two columns: GPUs must be GPU0, GPU1, …, each once"),
    ],
)
def test_a_text_that_is_no_matrix_is_refused(old: str, new: str, message: str) -> None:
    text = (SAMPLES / "a40-pairs.txt").read_text()
    assert old in text
    with pytest.raises(ClusterError, match=message):
        read_nvidia_smi(text.replace(old, new), "topo.txt")


def test_columns_and_rows_are_read_by_their_names() -> None:
    """The same machine, whether its network card comes first or GPU1 before GPU0."""
    text = "GPU1 NIC0 GPU0 GPU2 CPU Affinity\nNIC0 SYS X PHB PIX\nGPU1 X SYS NV2 SYS 0-7\nGPU0 NV2 PHB X PXB 0-7\n"
    matrix = read_nvidia_smi(text + "GPU2 SYS PIX PXB X 8-15\n")
    assert matrix.names == ("GPU0", "GPU1", "GPU2")
    assert matrix.paths == (("X", "NV2", "PXB"), ("NV2", "X", "SYS"), ("PXB", "SYS", "X"))


@given(st.text(st.sampled_from("GPU01 XNVSY\t\n4"), max_size=80))
def test_any_text_gives_a_matrix_or_a_cluster_error(text: str) -> None:
    try:
        matrix = read_nvidia_smi(text)
    except ClusterError:
        return
    assert len(matrix.paths) == len(matrix.names)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ["node1"]),
        ("node[08-11,20]", ["node08", "node09", "node10", "node11", "node20"]),
        ("a[1-2],b3", ["a1", "a2", "b3"]),
        ("r[1-2]n[01-02]x", ["r1n01x", "r1n02x", "r2n01x", "r2n02x"]),
    ],
)
def test_hostlists_stand_for_names(text: str, names: list[str]) -> None:
    assert expand_hostlist(text, "here") == names


@pytest.mark.parametrize(
    "text", ["", "a,", ",a", "a[1-", "a[2-1]", "a[x]", "a[]", "a]1[", "a[1-9999999]", "a[1-2000]b[1-2000]", "a[[1]]"]
)
def test_a_hostlist_that_stands_for_nothing_is_refused(text: str) -> None:
    with pytest.raises(ClusterError, match="here: "):
        expand_hostlist(text, "here")


CONF = """# Two leaves under one spine
SwitchName=leaf1 Nodes=node[01-02] LinkSpeed=100
switchname=leaf2 \\
  nodes=node03   # a comment
SwitchName=aggregation Switches=leaf[1-2]
SwitchName=spine Switches=aggregation
"""


def slurm(tmp_path: Path, text: str, name: str = "topology.conf") -> dict:
    (tmp_path / name).write_text(text)
    return read_slurm(tmp_path / name)


def test_leaf_switches_are_racks_and_the_top_is_the_data_centre(tmp_path: Path) -> None:
    homes = slurm(tmp_path, CONF)
    assert slurm(tmp_path, "\ufeff" + CONF) == homes, "editors of Windows write a mark first"
    assert homes == {"node01": ("leaf1", "spine"), "node02": ("leaf1", "spine"), "node03": ("leaf2", "spine")}


YAML = """
- topology: first
  block: {block_sizes: [2], blocks: [{block: b1, nodes: "n[1-2]"}]}
- topology: main
  cluster_default: true
  tree:
    switches:
      - {switch: spine, children: "s[1-2]"}
      - switch: s1
        nodes: n[1-2]
      - switch: s2
        nodes: n3
- topology: flat
  flat: true
"""


def test_yaml_gives_the_default_topology(tmp_path: Path) -> None:
    assert slurm(tmp_path, YAML, "topology.yaml") == {
        "n1": ("s1", "spine"),
        "n2": ("s1", "spine"),
        "n3": ("s2", "spine"),
    }


def test_blocks_are_racks_of_one_data_centre(tmp_path: Path) -> None:
    without_default = YAML.replace("cluster_default: true", "cluster_default: false")
    homes = slurm(tmp_path, without_default, "topology.yaml")
    assert homes == {"n1": ("b1", "datacenter-0"), "n2": ("b1", "datacenter-0")}
    assert slurm(tmp_path, "BlockName=b1 Nodes=n[1-2]\nBlockSizes=2,4\n") == homes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "SwitchName=a Switches=b\nSwitchName=b Switches=a\n",
            r"topology.conf:\d: the switches are in a cycle, (a → b → a|b → a → b), and no switch is at the top",
        ),
        ("SwitchName=l Nodes=n1\nSwitchName=a Switches=a\n", "in a cycle, a → a"),
        (
            "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n[1-2]\n",
            "node 'n1' is on 'a' and on switch 'b': a node is in one",
        ),
        ("SwitchName=a Nodes=n1,n1\n", "node 'n1' is twice on switch 'a'"),
        (
            "SwitchName=l Nodes=n1\nSwitchName=a Switches=l\nSwitchName=b Switches=l\n",
            "topology.conf:3: switch 'l' is below both 'a' and 'b'",
        ),
        ("SwitchName=a Switches=z\n", "'a' is above 'z', which is not described"),
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n", "switch 'a' is described twice, first at .*:1"),
        ("SwitchName=a\n", "'a' has nothing below it"),
        ("SwitchName=a Nodes=n Switches=b\nSwitchName=b Nodes=m\n", "'a' has both nodes and switches below it"),
        ("Nodes=n1\n", "SwitchName .* is missing"),
        ("SwitchName=a Nods=n1\n", "topology.conf:1: unknown key 'Nods': did you mean 'Nodes'"),
        (
            "SwitchName=s1 Nodes=n[1-4] Nodes=n[1-2]\n",
            r"topology.conf:1: Nodes is given twice: 'n\[1-4\]' and 'n\[1-2\]'",
        ),
        ("SwitchName=s1 switchname=s2 Nodes=n1\n", "topology.conf:1: SwitchName is given twice"),
        ("# a\nSwitchName=s Nodes=n1 BlockName=b\n", "topology.conf:2: BlockName cannot be in a line with SwitchName"),
        ("BlockName=b1 Nodes=n1\nBlockName=b2 Switches=b1\n", ":2: Switches cannot be in a line with BlockName"),
        ("BlockName=b1 Nodes=n1 BlockSizes=2\n", ":1: BlockSizes cannot be in a line with BlockName"),
        ("SwitchName=s[1-2] Nodes=n[1-2]\n", r"topology.conf:1: 's\[1-2\]' is a hostlist, must be the name of one"),
        ("LinkSpeed=100\n", "topology.conf:1: SwitchName .* is missing"),
        ("SwitchName=a Nodes=n1 oops\n", "cannot read"),
        ("SwitchName=a Nodes=n[1-\n", "topology.conf:1: cannot read hostlist"),
        ("# nothing\n", "describes no switch"),
        ("SwitchName=a Nodes=n1\nBlockName=b Nodes=n2\n", "both switches and blocks"),
    ],
)
def test_what_is_not_a_tree_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=message):
        slurm(tmp_path, text)


def test_yaml_takes_nodes_as_a_list_of_hostlists(tmp_path: Path) -> None:
    homes = slurm(tmp_path, SWITCH.format('switch: s, nodes: [n1, "n[2-3]"]'), "topology.yaml")
    assert list(homes) == ["n1", "n2", "n3"]


SWITCH = "- topology: t\n  tree: {{switches: [{{{}}}]}}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not valid YAML"),
        ("just text", "expected a list of entries"),
        ("- topology: t\n  flat: true\n", "no entry has a tree or blocks"),
        ("- topology: t\n  tree: {}\n", "topology 't': expected a list of switches"),
        ("- topology: t\n  tree: {switches: [{nodes: n1}]}\n", "switch 1: switch is missing"),
        (SWITCH.format("switch: s, nods: 3"), "topology 't': switch 1: unknown key 'nods': did you mean 'nodes'"),
        (SWITCH.format("switch: [1], nodes: n1"), r"topology 't': switch 1: switch is \[1\], must be a name"),
        (SWITCH.format("switch: 1, nodes: n1"), "switch 1: switch is 1, must be a name .in quotes"),
        (SWITCH.format("switch: &a [*a], nodes: n1"), r"switch 1: switch is \[\[.*\.\.\..*\]\], must be a name"),
        (SWITCH.format("switch: s, nodes: &a [*a]"), r"switch 1: nodes is \[\[.*\.\.\..*\]\], must be a hostlist"),
        (SWITCH.format("switch: s, nodes: 7"), "switch 1: nodes is 7, must be a hostlist such as"),
        (SWITCH.format("switch: s, nodes: []"), r"switch 1: nodes is \[\], must be a hostlist such as"),
        (SWITCH.format("switch: s, nodes: {a: b}"), "switch 1: nodes is {'a': 'b'}, must be a hostlist"),
        (SWITCH.format('switch: "s[1-2]", nodes: n1'), "is a hostlist, must be the name of one"),
        (SWITCH.format("switch: s, nodes: n1, nodes: n2"), "topology.yaml:2: nodes is given twice"),
        ("- topology: t\n  tree: {switches: [], extra: 1}\n", "topology 't': tree: unknown key 'extra'"),
        ("- topology: t\n  tres: 1\n  tree: {switches: []}\n", "topology 't': unknown key 'tres': did you mean 'tree'"),
        ("- topology: t\n  tree: {switches: []}\n  block: {blocks: []}\n", "has both a tree and blocks"),
        ("- topology: t\n  block: {blocks: [{block: b, children: c}]}\n", "block 1: unknown key 'children'"),
        ("- topology: 2024-99-99\n", "not valid YAML"),
        ("[" * 5000, "not valid YAML"),
    ],
)
def test_yaml_that_is_no_topology_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=message):
        slurm(tmp_path, text, "topology.yaml")


TOML = """
topology = "topology.conf"
[network]
node = 25.0
[[rack]]
name = "leaf2"
node = 50.0
uplink = 3.0
[gpu.V100]
pcie = 10.0
[[node]]
name = "node[01-02]"
gpu_type = "V100"
num_gpus = 8
links = "topo.txt"
[[node]]
name = "node03"
gpu_type = "V100"
num_gpus = 2
links = [[0, 7.5], [7.5, 0]]
"""


def cluster_file(tmp_path: Path, text: str) -> Path:
    (tmp_path / "topology.conf").write_text(CONF)
    (tmp_path / "topo.txt").write_text((SAMPLES / "dgx1-v100.txt").read_text())
    (tmp_path / "cluster.toml").write_text(text)
    return tmp_path / "cluster.toml"


def test_a_cluster_file_brings_all_sources_together(tmp_path: Path) -> None:
    topology = Topology.of(load_cluster(cluster_file(tmp_path, TOML)))
    assert topology.node_names == ("node01", "node02", "node03")
    assert topology.rack_names == ("leaf1", "leaf2")
    assert topology.datacenter_names == ("spine",)
    assert topology.links(1)[0, 3] == 50.0
    assert topology.links(1)[0, 5] == 5.0, "half of the file's own PCIe speed"
    assert topology.links(2)[0, 1] == 7.5
    assert topology.bandwidth([0, 8]) == 25.0
    assert topology.bandwidth([0, 16]) == 3.0
    assert topology.span([0, 16]) == Level.DATACENTER
    assert topology.bandwidth([16, 17]) == 7.5


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"node03"', '"node04"', r"topology.conf: node 'node03' is not in the cluster"),
        ('"node[01-02]"', '"node[01-02,04]"', r"topology.conf: node 'node04' of the cluster is on no switch"),
        ('"node[01-02]"', '"node[01-"', "node 1: cannot read hostlist"),
        ('"node[01-02]"', '"node[01-02]"\ncount = 3', "count is 3, but 'node.01-02.' stands for 2 nodes"),
        ('"node03"', '"node03"\nrack = "x"', "node 2: rack is given here and by topology"),
        (
            'name = "leaf2"',
            'name = "leaf3"',
            r"cluster.toml: network: rack 'leaf3': no node is in it; racks: leaf1, leaf2",
        ),
        ('name = "leaf2"', "name = 2", r"\[\[rack\]\] 1: name is 2"),
        ("uplink = 3.0", "uplink = 0", r"\[\[rack\]\] 1: rack network: uplink is 0"),
        ("uplink = 3.0", "up = 3.0", r"\[\[rack\]\] 1: unknown key 'up'"),
        ("node = 25.0", "node = -1", r"\[network\]: network: node is -1"),
        ("node = 25.0", "speed = 1", r"\[network\]: unknown key 'speed'"),
        ("pcie = 10.0", "pcie = 'fast'", r"\[gpu.V100\]: GPU links: pcie is 'fast'"),
        ('"topo.txt"', '"none.txt"', "node 1: links: .*none.txt: cannot be read: No such file"),
        ('"topo.txt"', '"topology.conf"', "no line has the columns GPU0"),
        ('"topo.txt"', "5", "links must be a file"),
        ("num_gpus = 8", "num_gpus = 4", "node 1: .*topo.txt has links of 8 GPUs, but the node has 4"),
        ("[7.5, 0]", "[7.0, 0]", "links are 7.5 GB/s from GPU 0 to GPU 1, but 7.0 from GPU 1 to GPU 0"),
        ("[[0, 7.5], [7.5, 0]]", "[[0, inf], [inf, 0]]", "links between two GPUs must be finite numbers"),
        ("[gpu.V100]", "[gpu.Z100]", "cluster.toml: network: gpu 'Z100': no node has GPUs of this type; types: V100"),
        ("[gpu.V100]\npcie = 10.0", "[gpu]\nV100 = 5", r"\[gpu.V100\]: must be a table with nvlink"),
        ('name = "node03"', "name = 5", "node 2: name is 5, must be text"),
        ('name = "node03"', "name = true", "node 2: name is True, must be text"),
        ('name = "node03"', 'name = ""', "node 2: name is '', must be text"),
        (
            '"node03"',
            '"node03"\nlabels = {rack = "x"}',
            "label 'rack' is reserved: every node has the labels node, rack",
        ),
        ("[0, 7.5]", "[0, 'x']", "node 2: links is 'x', must be a number"),
        ("[0, 7.5]", "[0, 0]", "links must be 2 rows of 2 GB/s > 0"),
        ('"topology.conf"', "1", "topology is 1, must be the name"),
        ('"topology.conf"', '"none.conf"', "none.conf: cannot be read"),
    ],
)
def test_a_cluster_file_that_does_not_fit_together_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in TOML
    with pytest.raises(ClusterError, match=message):
        load_cluster(cluster_file(tmp_path, TOML.replace(old, new, 1)))


def test_gpu_must_be_tables(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('gpu = 5\n[[node]]\ngpu_type = "V100"\nnum_gpus = 1\n')
    with pytest.raises(ClusterError, match=r"c.toml: gpu is 5, must be \[gpu.TYPE\] tables"):
        load_cluster(tmp_path / "c.toml")


@pytest.mark.parametrize("key", ["A100", "A100-80GB"])
def test_links_of_a_gpu_type_may_be_given_with_or_without_its_memory(key: str) -> None:
    network = Network(gpus={key: GpuLinks(nvlink=700.0)})
    assert Cluster((Node(name="n", gpu_type="A100-80GB", num_gpus=2),), network).topology.links(0)[0, 1] == 700.0


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Network(racks={"nope": RackNetwork(node=1.0)}), "network: rack 'nope': no node is in it; racks: rack-0"),
        (Network(gpus={"Z100": GpuLinks()}), "network: gpu 'Z100': no node has GPUs of this type; types: A100-80GB"),
        (Network(gpus={"a100": GpuLinks()}), "network: gpu 'a100': no node has GPUs of this type"),
    ],
)
def test_a_network_of_racks_and_gpus_that_no_node_has_is_refused(network: Network, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        Cluster((Node(name="n", gpu_type="A100-80GB", num_gpus=2),), network)


def test_labels_that_every_node_has_are_reserved() -> None:
    assert tuple(labels_of(Node(name="n", gpu_type="V100", num_gpus=1))) == BUILT_IN_LABELS
    for name in BUILT_IN_LABELS:
        with pytest.raises(ClusterError, match=f"node 'n': label '{name}' is reserved"):
            Node(name="n", gpu_type="V100", num_gpus=1, labels={name: "x"})


def test_a_topology_is_shown_as_slurm_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.conf").write_text("SwitchName=leaf7 Nodes=node-[0-1]\n")
    assert run(["topology", "2x4xV100", "--slurm", str(tmp_path / "t.conf")]) == 0
    assert "leaf7" in capsys.readouterr().out


def test_slurm_over_a_cluster_that_has_a_topology_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = cluster_file(tmp_path, TOML)
    assert run(["topology", str(file), "--slurm", str(tmp_path / "topology.conf")]) == 2
    shown = capsys.readouterr()
    assert "the cluster has a topology already, such as rack 'leaf1'" in " ".join(shown.err.split())
    assert not shown.out


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_tree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["topology", "4xV100", "--plot", str(tmp_path / "o.txt")]) == 2
    shown = capsys.readouterr()
    assert "end the name in .png, .svg or .pdf" in " ".join(shown.err.split())
    assert not shown.out


def test_a_matrix_no_machine_has_is_one_line_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = cluster_file(tmp_path, TOML)
    (tmp_path / "topo.txt").write_text((SAMPLES / "dgx1-v100.txt").read_text().replace("NV2", "NV" + "2" * 5000))
    assert run(["topology", str(file)]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "topo.txt:" in shown
    assert "must be NV1 to NV99" in shown
    assert len(shown) < 500
