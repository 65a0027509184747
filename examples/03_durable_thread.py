"""Continue a failed run: the second process runs only the node that failed in the first.

Recorded work never runs again, so the card is charged once.

python examples/03_durable_thread.py
"""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio

from checkpoint_savers import SqliteSaver
from pregel_async import START, StateGraph


class Order(TypedDict):
    item: str


class State(Order):
    log: Annotated[list[str], operator.add]


def charge(order: State) -> dict[str, Any]:
    print("    charging the card (this must happen once)")
    return {"log": ["charged"]}


def ship(order: State, *, open_today: bool) -> dict[str, Any]:
    if not open_today:
        raise ConnectionError("the warehouse does not answer")
    print(f"    shipping {order['item']}")
    return {"log": ["shipped"]}


def build(shipping: Callable[[State], object]) -> StateGraph[State, Any, Order, State]:
    builder = StateGraph(State, input_schema=Order).add_node("charge", charge).add_node("ship", shipping)
    return builder.add_edge(START, "charge").add_edge("charge", "ship")


async def first_process(db: Path) -> None:
    async with SqliteSaver.from_conn_string(db) as saver:
        graph = build(lambda order: ship(order, open_today=False)).compile(saver)
        try:
            await graph.ainvoke({"item": "a kettle"}, "order-17")
        except ConnectionError as error:
            print(f"    failed: {error}")
            print(f"    {error.__notes__[0]}")


async def second_process(db: Path) -> None:
    async with SqliteSaver.from_conn_string(db) as saver:
        graph = build(lambda order: ship(order, open_today=True)).compile(saver)
        before = await graph.aget_state("order-17")
        print(f"    stored: {before.values['log']}, next: {before.next[0]}, because of {before.tasks[0].error}")
        result = await graph.ainvoke(None, "order-17")  # no input: continue the thread
        print(f"    result: {result['log']}")
        print("    history, newest first:")
        async for state in graph.aget_state_history("order-17"):
            print(f"        {state.values['log']}, then {', '.join(state.next) or 'nothing'}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder, "orders.db")
        print("first process:")
        await first_process(db)
        print("second process:")
        await second_process(db)


if __name__ == "__main__":
    anyio.run(main)
