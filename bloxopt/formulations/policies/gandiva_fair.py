"""Tickets for every GPU generation, and trading of generations between users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from bloxopt.formulations import GenerationTrading, Policy


def gandiva_fair(
    tickets: Mapping[str, float] | None = None,
    trade: Literal["prices", "program", "none"] = "prices",
    price: Literal["middle", "second"] = "middle",
    **options: Any,
) -> Policy:
    """Users (tenants) share each GPU type by their ``tickets`` and trade types where both gain (EuroSys 2020).

    See :class:`~bloxopt.formulations.systems.generation_trading.GenerationTrading` for ``trade`` and ``price``.
    """
    return Policy(
        objective=GenerationTrading(tickets, trade, price),
        **{
            "name": "gandiva_fair",
            "source": "Gandiva-Fair (EuroSys 2020)",
            "description": "shares of every GPU type by tickets, traded where both sides gain",
            **options,
        },
    )
