"""Version 3: prices are texts, stock is counted before a reservation, and nothing is packed separately.

sign_off --> ship
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from checkpoint_savers.abc import BaseCheckpointSaver
from pregel_async import START, CompiledStateGraph, StateGraph, interrupt, patched, task
from pregel_async.types import Added, Renamed, Retyped


def to_price(cents: int) -> str:
    return f"{cents / 100:.2f} EUR"


class Order(TypedDict):
    item: str
    customer: Annotated[str, Renamed("name")]
    price: Annotated[str, Retyped(to_price, was="cents")]
    carrier: Annotated[str, Added("post")]
    log: Annotated[list[str], operator.add]


@task
async def count_stock(item: str) -> None:
    print(f"    counting {item}")


@task
async def reserve(item: str) -> None:
    print(f"    reserving {item} (once)")


async def sign_off(order: Order) -> dict[str, Any]:
    if patched("count-first"):  # False in nodes that have reserved already
        await count_stock(order["item"])
    await reserve(order["item"])
    answer = interrupt(f"Ship {order['item']}?")
    return {"log": [f"approved: {answer}"]}


async def ship(order: Order) -> dict[str, Any]:
    return {"log": [f"shipped by {order['carrier']} to {order['customer']} for {order['price']}"]}


def build(saver: BaseCheckpointSaver) -> CompiledStateGraph[Any]:
    builder = StateGraph(Order).add_node("sign_off", sign_off, was="approve").add_sequence([ship])
    builder.add_edge(START, "sign_off").add_edge("sign_off", "ship")
    return builder.compile(saver, name="orders", version=3, removed=["coupon"], retired={"pack": "ship"})
