"""Walk threads of version 1 through versions 2 and 3: `python -m examples.upgrades`.

In a project, the versions are commits of one file, and each of these steps is another process.
"""

from __future__ import annotations

import operator
import tempfile
import warnings
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio

from checkpoint_savers import SqliteSaver
from checkpoint_savers.abc import BaseCheckpointSaver
from pregel_async import START, Command, CompiledStateGraph, StateGraph
from pregel_async.errors import GraphChangedError, GraphVersionError, UnknownStoredKeyWarning

from . import v1, v2, v3


def order(item: str, customer: str) -> dict[str, Any]:
    return {"item": item, "name": customer, "cents": 1250, "coupon": "SPRING", "log": []}


async def run_version_1(saver: BaseCheckpointSaver) -> None:
    """Leave an idle thread, one that asks, and one that has failed."""
    graph = v1.build(saver)
    await graph.ainvoke(order("a kettle", "Ada"), "order-1")
    done = await graph.ainvoke(Command(resume="yes"), "order-1")
    print(f"    order-1 is idle: {done['log']}")
    await graph.ainvoke(order("a lamp", "Bob"), "order-2")
    state = await graph.aget_state("order-2")
    print(f"    order-2 asks: {state.interrupts[0].value}")
    await graph.ainvoke(order("a ladder", "Eve"), "order-3")
    try:
        await graph.ainvoke(Command(resume="yes"), "order-3")
    except ValueError as error:
        print(f"    order-3 has failed: {error}")


async def print_check(graph: CompiledStateGraph[Any]) -> None:
    """Print what `pregel-async threads check` would find."""
    async for check in graph.acheck_threads():
        print(f"    {check.thread_id} {'loads' if check.loads else 'does not load'}{', converted' * check.migrated}")
        for each in check.mismatches:
            print(f"        {each.reason}")
            print(f"            {each.advice}")


class Draft(TypedDict):
    """The state of version 2, as it would be without declarations."""

    item: str
    customer: str
    cents: int
    log: Annotated[list[str], operator.add]


def without_rules(saver: BaseCheckpointSaver) -> CompiledStateGraph[Any]:
    builder = StateGraph(Draft)
    for node in (v2.sign_off, v2.pack, v2.ship):
        builder.add_node(node, input_schema=Draft)
    builder.add_edge(START, "sign_off").add_edge("sign_off", "pack").add_edge("pack", "ship")
    return builder.compile(saver, name="orders", version=2)


async def try_without_rules(saver: BaseCheckpointSaver) -> None:
    graph = without_rules(saver)
    await print_check(graph)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            await graph.ainvoke(Command(resume="yes"), "order-2")
        except GraphChangedError as error:
            print(f"    refused: {error}")
        print(f"    warned: {caught[0].message}")


async def run_version_2(saver: BaseCheckpointSaver) -> None:
    graph = v2.build(saver)
    await print_check(graph)
    await graph.ainvoke({"item": "a cup"}, "order-1")  # an idle thread takes a new input
    done = await graph.ainvoke(Command(resume="yes"), "order-1")
    print(f"    order-1: {done['customer']} gets {done['item']}; the coupon is {done.get('coupon', 'gone')}")


async def run_version_3(saver: BaseCheckpointSaver) -> None:
    graph = v3.build(saver)
    await print_check(graph)
    before = await graph.aget_state("order-2")
    print(f"    order-2 still asks: {before.interrupts[0].value}")
    for thread_id, given in (("order-2", Command(resume="yes")), ("order-3", None)):
        done = await graph.ainvoke(given, thread_id)
        print(f"    {thread_id}: {done['log']}")
    await graph.ainvoke({"item": "a chair", "customer": "Kim", "price": "80.00 EUR", "log": []}, "order-4")
    print("    history of order-1, newest first:")
    async for state in graph.aget_state_history("order-1"):
        if not state.next:
            print(f"        {state.values['item']} for {state.values['price']}")


async def roll_back(saver: BaseCheckpointSaver) -> None:
    graph = v1.build(saver)
    try:
        await graph.ainvoke({"item": "a spoon"}, "order-4")
    except GraphVersionError as error:
        print(f"    refused: {error}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownStoredKeyWarning)
        state = await graph.aget_state("order-4")
    print(f"    but it can be read: {state.values['item']}, and unknown are {sorted(state.unknown)}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with SqliteSaver.from_conn_string(Path(folder, "orders.db")) as saver:
            for title, step in (
                ("version 1:", run_version_1),
                ("version 2, if its author forgot the declarations:", try_without_rules),
                ("version 2:", run_version_2),
                ("version 3:", run_version_3),
                ("version 1 again:", roll_back),
            ):
                print(title)
                await step(saver)


if __name__ == "__main__":
    anyio.run(main)
