"""HiveD: tenants with guaranteed cells first, opportunistic jobs on the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from bloxopt.errors import FormulationError
from bloxopt.formulations.orders.order_keys import Arrival, AttainedService, OrderKey, ShortestRemaining
from bloxopt.formulations.policy import Policy
from bloxopt.formulations.systems.guaranteed_first import GuaranteedFirst

_ORDERS: Mapping[str, type[OrderKey]] = {"fifo": Arrival, "las": AttainedService, "srtf": ShortestRemaining}


def hived(
    virtual_clusters: Mapping[str, Mapping[str, int]] | str | None = None,
    order: Literal["fifo", "las", "srtf"] = "fifo",
    **options: Any,
) -> Policy:
    """Jobs within the cells that their tenant is guaranteed, in ``order``, then all others where there is room.

    Give the same ``virtual_clusters`` to the placement ``guaranteed_cells``, so that the cells are really there.
    """
    if order not in _ORDERS:
        raise FormulationError(f"hived: order is {order!r}, must be one of {', '.join(_ORDERS)}")
    return Policy(
        objective=GuaranteedFirst(virtual_clusters, _ORDERS[order]()),
        **{
            "name": "hived",
            "source": "HiveD (OSDI 2020)",
            "description": "serve jobs within their tenant's guaranteed cells first",
            **options,
        },
    )
