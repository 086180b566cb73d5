"""A topology as a networkx tree."""

from __future__ import annotations

from typing import Any

import networkx as nx

from bloxopt.placement.topology import Level, Topology


def build_graph(topology: Topology) -> nx.DiGraph[Any]:
    """See :attr:`Topology.graph`."""
    network, cluster = topology.network, topology.cluster
    graph: nx.DiGraph[Any] = nx.DiGraph()
    root = (Level.CLUSTER, 0)
    graph.add_node(root, level=Level.CLUSTER, name="cluster")
    for number, name in enumerate(topology.datacenter_names):
        graph.add_node((Level.DATACENTER, number), level=Level.DATACENTER, name=name)
        graph.add_edge(root, (Level.DATACENTER, number), bandwidth=network.datacenter)
    for number, name in enumerate(topology.rack_names):
        above = (Level.DATACENTER, int(topology.rack_datacenter[number]))
        graph.add_node((Level.RACK, number), level=Level.RACK, name=name)
        graph.add_edge(above, (Level.RACK, number), bandwidth=network.uplink(name))
    for number, node in enumerate(cluster.nodes):
        graph.add_node((Level.NODE, number), level=Level.NODE, name=node.name, gpu_type=node.gpu_type)
        graph.add_edge(
            (Level.RACK, int(topology.node_rack[number])),
            (Level.NODE, number),
            bandwidth=network.within_rack(node.rack),
        )
    first: dict[int, int] = {}
    for gpu, island in enumerate(topology.gpu_island.tolist()):
        host = int(topology.gpu_node[gpu])
        local = gpu - int(cluster.gpu_offset[host])
        links = topology.links(host)
        if island not in first:
            first[island] = local
            graph.add_node((Level.ISLAND, island), level=Level.ISLAND, name=f"island {island}")
            others = topology.gpu_island[int(cluster.gpu_offset[host]) : int(cluster.gpu_offset[host + 1])] != island
            across = float(links[local][others].max()) if others.any() else float("inf")
            graph.add_edge((Level.NODE, host), (Level.ISLAND, island), bandwidth=across)
        graph.add_node((Level.GPU, gpu), level=Level.GPU, name=f"{cluster.nodes[host].name}/{local}")
        siblings = topology.gpu_island[int(cluster.gpu_offset[host]) : int(cluster.gpu_offset[host + 1])] == island
        siblings[local] = False
        width = float(links[local][siblings].max()) if siblings.any() else float("inf")
        graph.add_edge((Level.ISLAND, island), (Level.GPU, gpu), bandwidth=width)
    return graph
