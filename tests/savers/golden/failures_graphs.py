"""Threads of runs with failures (handled, collected, recorded) and exhausted budgets, stored with each durability."""

from __future__ import annotations

import asyncio
import contextlib
import operator
import uuid
from decimal import Decimal
from typing import Annotated, Any, TypedDict

from checkpoint_savers import Codec
from pregel_async import (
    START,
    Budget,
    Collect,
    Command,
    NodeError,
    RetryPolicy,
    Send,
    StateGraph,
    interrupt,
    spend,
    task,
)
from pregel_async.errors import BudgetExceededError

later = False
"""Set while the threads are being finished: failing nodes succeed then, and results are marked as later."""


def codec() -> Codec:
    return Codec()


def token(name: str) -> str:
    """A result that differs each time a node runs, so that a stored result can be recognised."""
    return f"{name} later" if later else f"{name} {uuid.uuid4().hex[:8]}"


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    errors: Annotated[list[Any], operator.add]


def spending(saver: Any) -> Any:
    """Spends in a node, in a subgraph and in attempts that fail, until the thread's budget is exhausted."""

    async def pay(state: State) -> dict[str, Any]:
        spend("usd", Decimal("0.40"))
        spend("calls", 3)
        return {"log": [token("pay")]}

    async def fails(state: State) -> dict[str, Any]:
        spend("calls", 1)
        if not later:
            raise RuntimeError("not yet")
        return {"log": [token("fails")]}

    inner = StateGraph(State).add_node("pay", pay).add_edge(START, "pay").compile()
    graph = StateGraph(State).add_node("pay", pay).add_node("inside", inner).add_node("fails", fails)
    graph.add_edge(START, "pay").add_edge("pay", "inside").add_edge("inside", "fails")
    return graph.compile(saver, budgets={"usd": Budget(thread=Decimal("2.00")), "calls": Budget()})


def stopped(saver: Any) -> Any:
    """Stops at a barrier when its budget is exhausted."""

    async def pay(state: State) -> dict[str, Any]:
        spend("usd", Decimal("0.75"))
        return {"log": [token("pay")]}

    graph = StateGraph(State)
    for name in ("one", "two", "three"):
        graph.add_node(name, pay)
    graph.add_edge(START, "one").add_edge("one", "two").add_edge("two", "three")
    return graph.compile(saver, budgets={"usd": Budget(run=Decimal("1.00"))})


def handled(saver: Any) -> Any:
    """A failure whose handler asks a question, in one superstep with a node that finishes."""

    async def fails(state: State) -> dict[str, Any]:
        raise KeyError("what failed")

    async def handler(state: State, error: NodeError) -> dict[str, Any]:
        return {"log": [f"handled: {interrupt(f'what of {error.node}?')}"]}

    async def beside(state: State) -> dict[str, Any]:
        return {"log": [token("beside")]}

    graph = StateGraph(State).add_node("fails", fails, error_handler=handler).add_node("beside", beside)
    return graph.add_edge(START, "fails").add_edge(START, "beside").compile(saver)


def collected(saver: Any) -> Any:
    """Failures that are values in the state."""

    async def work(given: Any) -> dict[str, Any]:
        if given["i"] % 2:
            raise ValueError(f"odd {given['i']}")
        return {"log": [token(f"even {given['i']}")]}

    async def join(state: State) -> dict[str, Any]:
        return {"log": [f"{one.node} {one.error}" for one in state["errors"]] + [token("join")]}

    graph = StateGraph(State).add_node("work", work).add_node("join", join).add_edge("work", "join")
    graph.add_conditional_edges(START, lambda state: [Send("work", {"i": i}) for i in range(4)], ["work"])
    return graph.compile(saver, on_failure=Collect("errors"))


def several(saver: Any) -> Any:
    """Two failures in one superstep after all siblings have finished; one node had three attempts."""
    policy = RetryPolicy(initial_interval=0.001, max_attempts=3, retry_on=RuntimeError)

    def node(name: str) -> Any:
        async def work(state: State) -> dict[str, Any]:
            if name != "well" and not later:
                raise RuntimeError(f"{name} failed")
            return {"log": [token(name)]}

        return work

    graph = StateGraph(State).add_node("one", node("one"), retry_policy=policy).add_node("two", node("two"))
    graph.add_node("well", node("well"))
    for name in ("one", "two", "well"):
        graph.add_edge(START, name)
    return graph.compile(saver, on_failure="finish")


@task
async def step(name: str) -> str:
    return token(f"task {name}")


def modes(saver: Any) -> Any:
    """Calls tasks, runs a subgraph that keeps its state, and fails at the end."""

    async def calls(state: State) -> dict[str, Any]:
        return {"log": [await step("one"), await step("two")]}

    async def count(state: State) -> dict[str, Any]:
        return {"log": [f"inside {len(state.get('log', []))}"]}

    kept = StateGraph(State).add_node("count", count).add_edge(START, "count").compile(checkpointer=True)

    async def last(state: State) -> dict[str, Any]:
        done = await step("last")
        if not later:
            raise RuntimeError("not yet")
        return {"log": [done, token("last")]}

    graph = StateGraph(State).add_node("calls", calls).add_node("kept", kept).add_node("last", last)
    return graph.add_edge(START, "calls").add_edge("calls", "kept").add_edge("kept", "last").compile(saver)


def graphs(saver: Any) -> dict[str, Any]:
    """Return the graph of each thread."""
    return {
        "spending": spending(saver),
        "stopped": stopped(saver),
        "handled": handled(saver),
        "collected": collected(saver),
        "several": several(saver),
        **{f"mode {mode}": modes(saver) for mode in ("sync", "async", "exit")},
        "cancelled": modes(saver),
    }


async def fill(saver: Any) -> None:
    for thread, graph in graphs(saver).items():
        settings: Any = {"durability": thread.removeprefix("mode ")} if thread.startswith("mode ") else {}
        with contextlib.suppress(RuntimeError, BudgetExceededError, ExceptionGroup):
            if thread == "cancelled":
                run = asyncio.ensure_future(graph.ainvoke({"log": ["in"]}, thread))
                while len([one async for one in graph.aget_state_history(thread)]) < 3:
                    await asyncio.sleep(0)
                run.cancel()
                await asyncio.wait([run])
            else:
                await graph.ainvoke({"log": ["in"]}, thread, **settings)


async def finish(saver: Any) -> dict[str, Any]:
    """Resume the open threads."""
    global later
    later = True
    made = graphs(saver)
    more = {"usd": Budget(run=Decimal("3.00"))}
    found = {
        "stopped": await made["stopped"].ainvoke(None, "stopped", budgets=more),
        "handled": await made["handled"].ainvoke(Command(resume="mended"), "handled"),
        "several": await made["several"].ainvoke(None, "several"),
        **{f"mode {one}": await made[f"mode {one}"].ainvoke(None, f"mode {one}") for one in ("sync", "async", "exit")},
        "spending": await made["spending"].ainvoke(None, "spending"),
    }
    # The budget counts earlier spending: two more rounds of 0.80 fit into it, and the third does not.
    await made["spending"].ainvoke({"log": ["second"]}, "spending")
    try:
        await made["spending"].ainvoke({"log": ["third"]}, "spending")
    except BudgetExceededError as error:
        found["spent"] = str(error)
    return found
