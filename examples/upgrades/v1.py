"""Version 1 of the graph: reserve an item and ask, pack it, ship it.

approve --> pack --> ship
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from checkpoint_savers.abc import BaseCheckpointSaver
from pregel_async import START, CompiledStateGraph, StateGraph, interrupt, task


class Order(TypedDict):
    item: str
    name: str
    cents: int
    coupon: str
    log: Annotated[list[str], operator.add]


@task
async def reserve(item: str) -> None:
    print(f"    reserving {item} (once)")


async def approve(order: Order) -> dict[str, Any]:
    await reserve(order["item"])
    answer = interrupt(f"Ship {order['item']}?")
    return {"log": [f"approved: {answer}"]}


async def pack(order: Order) -> dict[str, Any]:
    if order["item"] == "a ladder":
        raise ValueError("no box is large enough for a ladder")
    return {"log": ["packed"]}


async def ship(order: Order) -> dict[str, Any]:
    return {"log": [f"shipped to {order['name']} for {order['cents']} cents"]}


def build(saver: BaseCheckpointSaver) -> CompiledStateGraph[Any]:
    builder = StateGraph(Order).add_sequence([approve, pack, ship]).add_edge(START, "approve")
    return builder.compile(saver, name="orders", version=1)
