"""What a job asks of the place it runs in, beyond GPUs, CPUs and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bloxopt.errors import TraceError

SameRack = Literal["any", "preferred", "required"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementNeeds:
    """Placement constraints of a job; the defaults constrain nothing.

    - ``same_rack``: whether all its GPUs must (``required``), should (``preferred``) or need not (``any``) be
      in one rack.
    - ``max_nodes``: most nodes the gang may span (None: any number; 1: it must fit one node).
    - ``exclusive_node``: no other job on its nodes while it runs.
    - ``anti_affinity``: name of a group whose jobs never share a node (replicas of one service).
    - ``node_selector``: labels that its nodes must carry, name → value.
    - ``tolerations``: taints that its nodes may have; a node with any other taint is not used.

    Every node also has the labels ``node``, ``rack``, ``datacenter`` and ``gpu_type``.
    Hashable, so that jobs with equal needs share one entry. Raises :class:`TraceError` naming the field.
    """

    same_rack: SameRack = "any"
    max_nodes: int | None = None
    exclusive_node: bool = False
    anti_affinity: str | None = None
    node_selector: Mapping[str, str] | tuple[tuple[str, str], ...] = field(default=())
    tolerations: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.same_rack not in ("any", "preferred", "required"):
            raise TraceError(f"same_rack is {self.same_rack!r}, must be any, preferred or required")
        if self.max_nodes is not None and (
            isinstance(self.max_nodes, bool) or not isinstance(self.max_nodes, int) or self.max_nodes < 1
        ):
            raise TraceError(f"max_nodes is {self.max_nodes!r}, must be None or a whole number >= 1")
        if not isinstance(self.exclusive_node, bool):
            raise TraceError(f"exclusive_node is {self.exclusive_node!r}, must be True or False")
        if self.anti_affinity is not None and not _is_name(self.anti_affinity):
            raise TraceError(f"anti_affinity is {self.anti_affinity!r}, must be None or the name of a group")
        object.__setattr__(self, "node_selector", _pairs(self.node_selector))
        if not isinstance(self.tolerations, (tuple, list)) or not all(_is_name(taint) for taint in self.tolerations):
            raise TraceError(f"tolerations is {self.tolerations!r}, must be a tuple of taint names, without ';'")
        object.__setattr__(self, "tolerations", tuple(sorted(set(self.tolerations))))


def _pairs(selector: object) -> tuple[tuple[str, str], ...]:
    """A node selector as sorted pairs of label and value."""
    wrong = TraceError(f"node_selector is {selector!r}, must map label names to values, without ';' and '='")
    if not isinstance(selector, (Mapping, tuple, list)):
        raise wrong
    pairs = list(selector.items() if isinstance(selector, Mapping) else selector)
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(map(_is_name, pair)) or "=" in pair[0]:
            raise wrong
    if len({name for name, _ in pairs}) < len(pairs):
        raise TraceError(f"node_selector is {selector!r}: a label can have one value only")
    return tuple(sorted((name, value) for name, value in pairs))


def _is_name(text: object) -> bool:
    """Text that survives a cell of a trace file, in which lists are joined by ';'."""
    return isinstance(text, str) and text.isprintable() and text == text.strip() != "" and ";" not in text


NO_NEEDS = PlacementNeeds()
"""The needs of a job that states none."""
