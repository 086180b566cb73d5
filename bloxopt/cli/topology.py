"""``bloxopt topology``: what a cluster looks like, as a tree, JSON or a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bloxopt.cli import console
from bloxopt.cli.options import JsonOption
from bloxopt.wording import counted

if TYPE_CHECKING:
    from rich.tree import Tree

    from bloxopt.placement.topology import Topology


def topology(
    cluster: Annotated[str, typer.Argument(help="Cluster, such as 4x8xA100, or a .toml/.csv file.")],
    slurm: Annotated[
        Path | None, typer.Option(help="Slurm's topology.conf or topology.yaml, for the rack of each node.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it into a .png, .svg or .pdf file.")] = None,
    json: JsonOption = False,
) -> None:
    """Show the topology of a cluster: data centres, racks, nodes, islands, and how fast they are linked."""
    from bloxopt.cluster import Cluster, load_cluster
    from bloxopt.placement.topology import Topology

    described = load_cluster(cluster)
    if slurm is not None:
        from bloxopt.cluster_files import place_nodes

        described = Cluster(tuple(place_nodes(described.nodes, slurm)), described.network)
    shape = Topology.of(described)
    # First, so that a file that cannot be drawn is said instead of the tree, not below it.
    if plot is not None:
        from bloxopt.experiments.style import save_figure
        from bloxopt.experiments.topology_plot import draw_topology

        save_figure(draw_topology(shape), plot)
        console.note(f"drawn into {plot}")
    if json:
        from bloxopt.placement.topology_outline import outline_document

        console.print_json(outline_document(shape))
    else:
        console.print_tree(_tree(shape))


def _tree(shape: Topology) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    from bloxopt.placement.topology import Level
    from bloxopt.placement.topology_outline import group_label, outline, shown_names

    parts = shape.levels
    centers = len(shape.datacenter_names)
    far = f" · {shape.network.datacenter:g} GB/s between data centres" if centers > 1 else ""
    title = ", ".join(
        counted(parts[level], word) for level, word in ((Level.RACK, "rack"), (Level.NODE, "node"), (Level.GPU, "GPU"))
    )
    root = Tree(Text(title + far))
    for center in outline(shape):
        branch = root.add(Text(f"{shown_names(center.names)}{_times(center.count, 'data centres')}"))
        for rack in center.racks:
            up = f", {rack.uplink:g} GB/s to other racks" if len(shape.rack_names) > 1 else ""
            twig = branch.add(
                Text(f"{shown_names(rack.names)}{_times(rack.count, 'racks')} · {rack.within:g} GB/s between nodes{up}")
            )
            for group in rack.nodes:
                twig.add(Text(f"{group_label(rack, group)} · {group.description}"))
    return root


def _times(count: int, what: str) -> str:
    return "" if count == 1 else f" ({count:,} {what})"
