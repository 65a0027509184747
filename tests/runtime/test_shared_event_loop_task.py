"""Tasks of one superstep that wait for nothing share a task of the event loop, without a visible difference."""

from __future__ import annotations

import asyncio
import contextlib
import operator
from contextvars import ContextVar
from typing import Annotated, Any, TypedDict

import anyio
import pytest
import sniffio

from pregel_async import START, Send, StateGraph
from pregel_async._runtime.platform.event_loops import loop
from pregel_async.errors import NodeCancelledError
from pregel_async.runtime import StreamWriter

pytestmark = pytest.mark.anyio

MANY = 50

WHERE: ContextVar[str] = ContextVar("WHERE", default="nowhere")


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


def fan(node: Any, number: int = MANY) -> Any:
    """Return a graph with the given number of tasks of one node, each with its number."""
    graph = StateGraph(State).add_node("n", node)
    graph.add_conditional_edges(START, lambda state: [Send("n", each) for each in range(number)])
    return graph.compile()


def here() -> object:
    return loop().current_task()


async def test_tasks_that_wait_for_nothing_share_one_task() -> None:
    """The cost of a task beyond its node does not depend on how many there are."""

    async def node(each: int) -> State:
        return {"log": [here()]}

    assert len(set((await fan(node).ainvoke({}))["log"])) == 1


@pytest.mark.parametrize("first", [0, 1, MANY // 2, MANY - 1])
async def test_a_waiting_task_delays_no_other(first: int) -> None:
    """P13: once a task waits, the others begin all the same, and each has an event-loop task to itself."""
    begun = 0
    all_of_them = anyio.Event()

    async def node(each: int) -> State:
        nonlocal begun
        begun += 1
        if begun == MANY:
            all_of_them.set()
        if each >= first:
            await all_of_them.wait()
        return {"log": [(each, here())]}

    with anyio.fail_after(30):
        found = (await fan(node).ainvoke({}))["log"]
    assert [each for each, _ in found] == [*range(MANY)]
    assert len({task for each, task in found if each >= first}) == MANY - first


@pytest.mark.parametrize("waits", [False, True])
async def test_context_variables_stay_in_their_task(waits: bool) -> None:
    """Each task has its own context: that of the run, whichever task ran before it."""
    WHERE.set("around")

    async def node(each: int) -> State:
        seen = WHERE.get()
        WHERE.set(f"in {each}")
        if waits and each % 7 == 3:
            await anyio.lowlevel.checkpoint()
        return {"log": [(seen, WHERE.get())]}

    found = (await fan(node).ainvoke({}))["log"]
    assert found == [("around", f"in {each}") for each in range(MANY)]
    assert WHERE.get() == "around"


async def test_tasks_are_not_nested() -> None:
    """A task that begins while another waits is not part of the waiting node's own work, and continues when that node
    has ended."""
    first_has_ended = anyio.Event()

    async def node(each: int, writer: StreamWriter) -> State:
        await anyio.lowlevel.checkpoint()
        if each:
            await first_has_ended.wait()
        writer(each)
        return {"log": [each]}

    chunks: list[int] = []
    with anyio.fail_after(30):
        async for mode, chunk in fan(node, 3).astream({}, stream_mode=["custom", "updates"]):
            if mode == "custom":
                chunks.append(chunk)
            else:
                first_has_ended.set()
    assert sorted(chunks) == [0, 1, 2]


async def test_a_node_that_cancels_its_task_affects_no_sibling() -> None:
    """P7: `Task.cancel()` of its own task, without waiting for it, affects no sibling. The superstep is not complete
    without the node."""
    if sniffio.current_async_library() == "trio":
        pytest.skip("trio has no cancellation of its own besides scopes")
    begun: list[int] = []

    async def node(each: int) -> State:
        task = asyncio.current_task()
        assert task is not None
        begun.append(task.cancelling())
        if each == 3:
            task.cancel()
        return {"log": [each]}

    with contextlib.suppress(NodeCancelledError):
        assert (await fan(node, 6).ainvoke({}))["log"] == [*range(6)]
    assert begun == [0] * 6


async def test_all_first_failures_are_raised() -> None:
    """P9: tasks of a superstep begin in plan order, whatever the outcome of the tasks before them."""

    async def node(each: int) -> State:
        if each == 2:
            await anyio.sleep_forever()
        raise ValueError(each)

    with pytest.raises(ExceptionGroup) as caught:
        await fan(node, 4).ainvoke({})
    assert [error.args for error in caught.value.exceptions] == [(0,), (1,), (3,)]
