"""Version 2: names have changed, and coupons are gone.

sign_off --> pack --> ship
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from checkpoint_savers.abc import BaseCheckpointSaver
from pregel_async import START, CompiledStateGraph, StateGraph, interrupt, task
from pregel_async.types import Renamed


class Order(TypedDict):
    item: str
    customer: Annotated[str, Renamed("name")]
    cents: int
    log: Annotated[list[str], operator.add]


@task
async def reserve(item: str) -> None:
    print(f"    reserving {item} (once)")


async def sign_off(order: Order) -> dict[str, Any]:
    await reserve(order["item"])
    answer = interrupt(f"Ship {order['item']}?")
    return {"log": [f"approved: {answer}"]}


async def pack(order: Order) -> dict[str, Any]:
    if order["item"] == "a ladder":
        raise ValueError("no box is large enough for a ladder")
    return {"log": ["packed"]}


async def ship(order: Order) -> dict[str, Any]:
    return {"log": [f"shipped to {order['customer']} for {order['cents']} cents"]}


def build(saver: BaseCheckpointSaver) -> CompiledStateGraph[Any]:
    builder = StateGraph(Order).add_node("sign_off", sign_off, was="approve").add_sequence([pack, ship])
    builder.add_edge(START, "sign_off").add_edge("sign_off", "pack")
    return builder.compile(saver, name="orders", version=2, removed=["coupon"])
