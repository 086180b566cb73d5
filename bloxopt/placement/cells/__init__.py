"""Guaranteed cells: tenants share a cluster and lose nothing that a private one would have given them (HiveD)."""

from __future__ import annotations

from bloxopt.placement.cells.buddy import BuddyAllocator
from bloxopt.placement.cells.guaranteed import GuaranteedCells
from bloxopt.placement.cells.hierarchy import CellHierarchy, CellKind
from bloxopt.placement.cells.tenants import Gang, TenantCells
from bloxopt.placement.cells.virtual_clusters import VirtualClusters

__all__ = ["BuddyAllocator", "CellHierarchy", "CellKind", "Gang", "GuaranteedCells", "TenantCells", "VirtualClusters"]
