"""Plain functions as nodes: in worker threads by default, and on the event loop when they are declared
never to block."""

from __future__ import annotations

import contextvars
import operator
import threading
from typing import Annotated, Any, TypedDict

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import END, START, NodeBuilder, Pregel, Send, StateGraph
from pregel_async.channels import LastValue

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    note: str


who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="unset")


async def test_a_plain_function_runs_in_a_thread() -> None:
    """A sync node is never on the event loop's thread."""
    seen: list[int] = []
    graph = (
        StateGraph(State).add_node("n", lambda state: seen.append(threading.get_ident())).add_edge(START, "n").compile()
    )
    await graph.ainvoke({})
    assert seen != [threading.get_ident()]


async def test_a_function_that_never_blocks_runs_in_place() -> None:
    """`blocking=False` declares that plain functions never block: they run on the event loop."""
    seen: list[int] = []
    made = StateGraph(State).add_node("n", lambda state: seen.append(threading.get_ident())).add_edge(START, "n")
    await made.compile(blocking=False).ainvoke({})
    assert seen == [threading.get_ident()]


async def test_plain_functions_run_at_the_same_time() -> None:
    """Parallelism: sync nodes of one superstep run concurrently: they can wait for each other."""
    barrier = threading.Barrier(3, timeout=60)
    made = StateGraph(State)
    for name in "abc":
        made.add_node(name, lambda state, name=name: (barrier.wait() and None) or {"log": [name]}).add_edge(START, name)
    assert await made.compile().ainvoke({}) == {"log": ["a", "b", "c"]}


async def test_the_loop_keeps_running() -> None:
    """A blocking node does not block the event loop."""
    release = threading.Event()

    def blocks(state: Any) -> dict[str, Any]:
        assert release.wait(60)
        return {"log": ["blocks"]}

    async def releases(state: Any) -> dict[str, Any]:
        release.set()
        return {"log": ["releases"]}

    made = StateGraph(State).add_node(blocks).add_node(releases).add_edge(START, "blocks").add_edge(START, "releases")
    assert await made.compile().ainvoke({}) == {"log": ["blocks", "releases"]}


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("with_sibling", [True, False])
@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_context_variables(blocking: bool, with_sibling: bool, flavour: str) -> None:
    """Runner rule 1: a node sees its caller's context variables, in a thread too; variables that it sets stay
    its own."""
    seen: dict[str, str] = {}

    def sync(name: str) -> Any:
        def call(state: Any) -> None:
            seen[name] = who.get()
            who.set(name)

        async def coroutine(state: Any) -> None:
            call(state)
            await anyio.lowlevel.checkpoint()
            seen[name + " later"] = who.get()

        return call if flavour == "sync" else coroutine

    made = StateGraph(State).add_node("a", sync("a")).add_node("z", sync("z")).add_edge(START, "a").add_edge("a", "z")
    if with_sibling:
        made.add_node("b", sync("b")).add_edge(START, "b")
    graph = made.compile(blocking=blocking)
    who.set("caller")
    await graph.ainvoke({})
    assert who.get() == "caller"
    named = ["a", "z", *("b" if with_sibling else "")]
    assert {name: seen[name] for name in named} == dict.fromkeys(named, "caller")
    if flavour == "async":
        assert {name: seen[f"{name} later"] for name in named} == {name: name for name in named}


async def test_context_variables_of_a_stream() -> None:
    """A stream's run sees the context of the code that started it."""
    seen: list[str] = []
    made = StateGraph(State).add_node("n", lambda state: seen.append(who.get())).add_edge(START, "n")
    for blocking in (True, False):
        who.set("reader")
        async with made.compile(blocking=blocking).astream({}) as chunks:
            who.set("changed")
            assert [chunk async for chunk in chunks] == [{"n": None}]
    assert seen == ["reader", "reader"]


async def test_context_variables_in_routers() -> None:
    """Routers see the caller's context variables too; those set by a node are not seen by its router, nor the other way
    round."""
    seen: list[str] = []

    def node(state: Any) -> None:
        who.set("node")

    def router(state: Any) -> str:
        seen.append(who.get())
        return END

    who.set("caller")
    made = StateGraph(State).add_node("n", node).add_edge(START, "n").add_conditional_edges("n", router)
    await made.compile(blocking=False).ainvoke({})
    assert (seen, who.get()) == (["caller"], "caller")


async def test_a_thread_may_call_back() -> None:
    """A worker thread belongs to the loop: `anyio.from_thread` works in it."""

    def node(state: Any) -> dict[str, Any]:
        return {"log": [anyio.from_thread.run(back, 1), anyio.from_thread.run_sync(threading.get_ident)]}

    async def back(value: int) -> int:
        await anyio.lowlevel.checkpoint()
        return value + 1

    graph = StateGraph(State).add_node("n", node).add_edge(START, "n").compile()
    assert (await graph.ainvoke({}))["log"] == [2, threading.get_ident()]


async def test_a_failing_thread() -> None:
    """P9: a plain function's exception is its own, with its traceback into the function."""

    def node(state: Any) -> None:
        raise ValueError("in a thread")

    graph = StateGraph(State).add_node("n", node).add_edge(START, "n").compile()
    with pytest.raises(ValueError, match="in a thread") as caught:
        await graph.ainvoke({})
    assert caught.traceback[-1].name == "node"


async def test_cancelling_waits_for_the_thread() -> None:
    """P7: when a cancelled run has ended, so have its worker threads: a node never runs after its caller got control
    back."""
    entered, leave = anyio.Event(), threading.Event()
    left: list[str] = []

    def node(state: Any) -> None:
        anyio.from_thread.run_sync(entered.set)
        assert leave.wait(60)
        left.append("node")

    graph = StateGraph(State).add_node("n", node).add_edge(START, "n").compile(InMemorySaver())
    async with anyio.create_task_group() as group:
        group.start_soon(graph.ainvoke, {}, "t")
        await entered.wait()
        group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            assert left == []
            leave.set()
    assert left == ["node"]


async def test_many_threads() -> None:
    """When there are more plain functions than worker threads, they take turns; results are in order."""
    made = StateGraph(State).add_node("w", lambda number: {"log": [number]})
    made.add_conditional_edges(START, lambda state: [Send("w", number) for number in range(100)])
    assert (await made.compile().ainvoke({}))["log"] == list(range(100))


async def test_the_low_level() -> None:
    """The same for raw Pregel."""
    seen: list[int] = []
    node = NodeBuilder().subscribe_only("a").do(lambda value: seen.append(threading.get_ident()))
    for blocking in (True, False):
        graph = Pregel(
            nodes={"n": node},
            channels={"a": LastValue(int)},
            input_channels="a",
            output_channels="a",
            blocking=blocking,
        )
        await graph.ainvoke(1)
    assert (seen[0] == threading.get_ident(), seen[1] == threading.get_ident()) == (False, True)


async def test_reducers_and_routers_run_on_the_loop() -> None:
    """A router, sync or async, runs inline; so do reducers. Neither needs a thread."""
    seen: list[int] = []

    def router(state: Any) -> str:
        seen.append(threading.get_ident())
        return END

    made = (
        StateGraph(State)
        .add_node("n", lambda state: {"log": [1]})
        .add_edge(START, "n")
        .add_conditional_edges("n", router)
    )
    await made.compile().ainvoke({})
    assert seen == [threading.get_ident()]


async def test_one_graph_on_many_threads() -> None:
    """P13: one compiled graph serves concurrent runs from any thread and any event loop of the process."""
    made = StateGraph(State).add_node("n", lambda state: {"log": [state["note"]]})

    async def again(state: Any) -> dict[str, Any]:
        await anyio.lowlevel.checkpoint()
        return {"log": [state["note"] + "!"]}

    graph = made.add_node(again).add_edge(START, "n").add_edge("n", "again").compile(InMemorySaver())
    results: dict[int, Any] = {}

    def elsewhere(number: int) -> None:
        async def main() -> Any:
            return await graph.ainvoke({"note": str(number)}, f"t{number}")

        results[number] = anyio.run(main, backend="trio" if number % 2 else "asyncio")

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(anyio.to_thread.run_sync, elsewhere, number)
    assert results == {number: {"note": str(number), "log": [f"{number}", f"{number}!"]} for number in range(8)}
