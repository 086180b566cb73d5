"""Clusters from strings, TOML and CSV; what cannot be one is refused with its place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloxopt.cluster import Cluster, Node, load_cluster
from bloxopt.errors import ClusterError
from bloxopt.jobs import Job, JobTable


def test_a_part_without_nodes_is_one_node() -> None:
    cluster = load_cluster("8xV100+16xP100+24xK80")
    assert cluster.gpu_types == ("V100", "P100", "K80")
    assert list(cluster.capacity) == [8, 16, 24]
    assert len(cluster.nodes) == 3


def test_a_part_with_nodes_repeats_one() -> None:
    cluster = load_cluster("32x4xV100")
    assert (len(cluster.nodes), cluster.num_gpus) == (32, 128)
    assert len({node.name for node in cluster.nodes}) == 32


@given(
    st.lists(
        st.tuples(st.integers(1, 20), st.integers(1, 16), st.sampled_from(["V100", "K80", "A100-80GB"])), min_size=1
    )
)
def test_a_description_reads_back_as_the_same_cluster(parts: list[tuple[int, int, str]]) -> None:
    cluster = load_cluster("+".join(f"{nodes}x{gpus}x{kind}" for nodes, gpus, kind in parts))
    again = load_cluster(cluster.describe())
    assert again.nodes == cluster.nodes
    assert cluster.num_gpus == sum(nodes * gpus for nodes, gpus, _ in parts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"cannot read ''; write \[NODESx\]GPUSxTYPE"),
        ("V100", "cannot read 'V100'"),
        ("8xV100+", "cannot read ''"),
        ("8x", "cannot read '8x'"),
        ("-8xV100", "cannot read '-8xV100'"),
        ("1.5xV100", "cannot read '1.5xV100'"),
        ("0xV100", "'0xV100' is out of range"),
        ("0x8xV100", "'0x8xV100' is out of range"),
        ("99999999x8xV100", "out of range; use 1 to 1000000 nodes"),
        ("9" * 5000 + "xV100", "out of range"),
        ("gavel.cluster", "or name an existing .toml or .csv file"),
    ],
)
def test_a_string_that_is_no_cluster_is_refused(text: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        load_cluster(text)


TOML = """
[[node]]
name = "fast"
gpu_type = "A100"
num_gpus = 8
cpus = 96
memory_gib = 1000
rack = "r1"

[[node]]
gpu_type = "V100"
num_gpus = 4
count = 3
"""


def test_toml_gives_nodes_with_cpus_memory_and_racks(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(TOML)
    cluster = load_cluster(tmp_path / "c.toml")
    assert [node.name for node in cluster.nodes] == ["fast", "node-1", "node-2", "node-3"]
    assert cluster.nodes[0].rack == "r1"
    assert list(cluster.node_cpus) == [96, np.inf, np.inf, np.inf]
    assert list(cluster.capacity) == [8, 12]


def test_csv_gives_the_same_nodes(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(
        "name,gpu_type,num_gpus,cpus,memory_gib,rack,count\nfast,A100,8,96,1000,r1,\n,V100,4,,,,3\n"
    )
    (tmp_path / "c.toml").write_text(TOML)
    assert load_cluster(tmp_path / "c.csv").nodes == load_cluster(tmp_path / "c.toml").nodes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[node]\n", "not valid TOML"),
        ("", r"expected \[\[node\]\] tables"),
        ("node = 3\n", r"expected \[\[node\]\] tables"),
        ("node = [1]\n", r"expected \[\[node\]\] tables"),
        ("[[nodes]]\nnum_gpus=1\n", "unknown key 'nodes'"),
        ('[[node]]\ngpu_type="A"\n', "node 1: num_gpus is missing"),
        ("[[node]]\nnum_gpus=1\n", "node 1: gpu_type is missing"),
        ('[[node]]\ngpu_type="A"\nnum_gpus=1\ncpu=3\n', "node 1: unknown key 'cpu'"),
        ('[[node]]\ngpu_type="A"\nnum_gpus=2.5\n', "node 1: num_gpus is 2.5, must be a whole number"),
        ('[[node]]\ngpu_type="A"\nnum_gpus=true\n', "node 1: num_gpus is True, must be a number"),
        ('[[node]]\ngpu_type="A"\nnum_gpus=0\n', "num_gpus is 0, must be a whole number from 1"),
        ('[[node]]\ngpu_type="A"\nnum_gpus=nan\n', "num_gpus is nan, must be a whole number"),
        ("[[node]]\ngpu_type=3\nnum_gpus=1\n", "gpu_type is 3, must be a non-empty printable string"),
        ('[[node]]\ngpu_type="A"\nnum_gpus=1\ncpus=-1\n', "cpus is -1.0, must be a finite number >= 0"),
        ('[[node]]\ngpu_type="A"\nnum_gpus=1\nmemory_gib=inf\n', "memory_gib is inf"),
        ('[[node]]\ngpu_type="A"\nnum_gpus=1\ncount=0\n', "count is 0"),
        ('[[node]]\ngpu_type="A"\nnum_gpus=1\ncount=1000000000\n', "count is 1000000000, must be from 1 to 1000000"),
        ('[[node]]\nname="a"\ngpu_type="A"\nnum_gpus=1\n' * 2, "node name 'a' appears twice"),
    ],
)
def test_bad_toml_is_refused_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(ClusterError, match=rf"c\.toml: .*{message}"):
        load_cluster(tmp_path / "c.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no nodes"),
        ("gpu_type,num_gpus\n", "no nodes"),
        ("gpu_type,num_gpus\nA,x\n", "line 2: num_gpus is 'x', must be a number"),
        ("gpu_type,num_gpus\nA,1,9\n", "line 2: more fields than the header has"),
        ("gpu_type,num_gpus\nA,\n", "line 2: num_gpus is missing"),
        ("gpu_type,gpus\nA,1\n", "line 2: unknown key 'gpus'"),
        ('gpu_type,num_gpus\n"A,1\n', "not valid CSV"),
    ],
)
def test_bad_csv_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(ClusterError, match=rf"c\.csv: .*{message}"):
        load_cluster(tmp_path / "c.csv")


@pytest.mark.parametrize("name", ["none.toml", "none.csv"])
def test_a_missing_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="cannot be read: No such file"):
        load_cluster(tmp_path / name)


def test_files_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    for name in ("c.toml", "c.csv"):
        (tmp_path / name).write_bytes(b"\xff\xfe\xe9")
        with pytest.raises(ClusterError, match="not valid"):
            load_cluster(tmp_path / name)


def test_a_cluster_needs_nodes_with_their_own_names() -> None:
    with pytest.raises(ClusterError, match="at least one node"):
        Cluster(())
    node = Node(name="a", gpu_type="V100", num_gpus=1)
    with pytest.raises(ClusterError, match="'a' appears twice"):
        Cluster((node, node))
    with pytest.raises(ClusterError, match="cannot make a cluster of int"):
        load_cluster(8)  # type: ignore[arg-type]


def test_a_job_larger_than_every_pool_is_named_with_the_way_out() -> None:
    jobs = JobTable.from_jobs([Job(job_id=f"j{n}", duration=1, num_gpus=n) for n in (8, 17, 20)])
    with pytest.raises(ClusterError, match=r"job 'j17' needs 17 GPUs of one type .* 16 \(2 such jobs\).*max_gpus"):
        load_cluster("8xV100+16xP100").check_fits(jobs)
    load_cluster("8xV100+20xP100").check_fits(jobs)


def test_an_elastic_job_fits_when_its_smallest_gang_does() -> None:
    jobs = JobTable.from_jobs([Job(job_id="e", duration=1, num_gpus=20, min_gpus=4)])
    load_cluster("8xV100").check_fits(jobs)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("labels", 5, "labels is 5, must be a mapping"),
        ("labels", None, "labels is None, must be a mapping"),
        ("labels", ("ab",), "labels must be non-empty strings, not 'ab'"),
        ("labels", (5,), "labels must be non-empty strings, not 5"),
        ("labels", {"zone": 5}, "labels must be non-empty strings"),
        ("labels", (("zone", "a"), ("zone", "b")), "labels are .*, must name each label once"),
        ("taints", 5, "taints is 5, must be a list of names"),
        ("taints", None, "taints is None, must be a list of names"),
        ("taints", "spot", "taints is 'spot', must be a list of names"),
        ("taints", (5,), "taints must be non-empty strings"),
        ("links", 5, "links must be 4 rows of 4 GB/s > 0"),
        ("links", (None,) * 4, "links must be 4 rows"),
        ("links", (("1",) * 4,) * 4, "links must be 4 rows"),
        ("links", ((1.0,) * 4,) * 3, "links must be 4 rows"),
        ("links", ((1.0,), (1.0, 2.0)), "links must be 4 rows"),
        ("links", ((float("nan"),) * 4,) * 4, "links must be 4 rows"),
        ("island_gpus", 0.5, "island_gpus is 0.5, must be a whole number that divides its 4 GPUs"),
        ("island_gpus", "2", "island_gpus is '2', must be a whole number"),
    ],
)
def test_a_node_with_fields_of_another_kind_is_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(ClusterError, match=f"node 'n': {message}"):
        Node(**{"name": "n", "gpu_type": "V100", "num_gpus": 4, field: value})


def test_links_may_be_lists_or_an_array() -> None:
    rows = ((1.0, 2.0), (2.0, 1.0))
    for links in (rows, [[1.0, 2.0], [2.0, 1.0]], np.array(rows)):
        node = Node(name="n", gpu_type="V100", num_gpus=2, links=links)  # type: ignore[arg-type]
        assert node.links == rows
        assert Cluster((node,)).topology.links(0)[0, 1] == 2.0
