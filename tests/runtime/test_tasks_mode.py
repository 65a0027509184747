"""The `tasks` stream mode: its promises about order, content and cost."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import anyio.lowlevel
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, NodeBuilder, Pregel, Send, StateGraph, StreamMode
from pregel_async._api.compiled import Graph
from pregel_async.channels import LastValue

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    count: int
    squares: Annotated[list[int], operator.add]


class Item(TypedDict):
    number: int


def fan_out(state: State) -> list[Send]:
    return [Send("square", {"number": number}) for number in range(state["count"])]


def squares(square: Any) -> StateGraph[State]:
    """begin -> one `square` for each number -> finish."""

    async def begin(state: State) -> None:
        return None

    async def finish(state: State) -> None:
        return None

    builder = StateGraph(State).add_node("begin", begin).add_node("finish", finish)
    builder.add_node("square", square, input_schema=Item)
    builder.add_edge(START, "begin").add_conditional_edges("begin", fan_out, ["square"])
    return builder.add_edge("square", "finish")


async def square(item: Item) -> dict[str, Any]:
    return {"squares": [item["number"] ** 2]}


async def read(graph: Graph[Any, Any], given: Any, into: list[Any]) -> None:
    """Return the chunks of a run, also those before its failure."""
    async for chunk in graph.astream(given, stream_mode="tasks"):
        into.append(chunk)  # noqa: PERF401  # a comprehension would lose them when the run fails


async def test_all_tasks_of_a_superstep_are_streamed_before_one_ends() -> None:
    """A superstep's plan is streamed completely before any of its tasks has ended; each task that runs has exactly two
    chunks."""
    graph = squares(square).compile()
    chunks = [chunk async for chunk in graph.astream({"count": 3}, stream_mode="tasks")]
    shown = [("+" if "input" in chunk else "-") + chunk["name"] for chunk in chunks]
    assert shown == ["+begin", "-begin", *["+square"] * 3, *["-square"] * 3, "+finish", "-finish"]
    started = [chunk["id"] for chunk in chunks if "input" in chunk]
    assert len(set(started)) == 5
    assert sorted(started) == sorted(chunk["id"] for chunk in chunks if "result" in chunk)


async def test_a_start_has_the_input_and_triggers() -> None:
    """The input is the node's input, the triggers are a tuple; the hidden start is not streamed."""
    graph = squares(square).compile()
    chunks = [chunk async for chunk in graph.astream({"count": 1}, stream_mode="tasks")]
    begin, sent = chunks[0], chunks[2]
    assert begin.keys() == {"id", "name", "input", "triggers"}
    assert (begin["name"], begin["input"]) == ("begin", {"count": 1, "squares": []})
    assert begin["triggers"] == ("branch:to:begin",)
    assert (sent["name"], sent["input"], sent["triggers"]) == ("square", {"number": 0}, ("__pregel_push",))


async def test_an_end_has_the_writes_of_the_task() -> None:
    """The result is the update; a task that wrote nothing has an empty one."""
    graph = squares(square).compile()
    chunks = [chunk async for chunk in graph.astream({"count": 1}, stream_mode="tasks")]
    ended = {chunk["name"]: chunk for chunk in chunks if "result" in chunk}
    assert {name: chunk["result"] for name, chunk in ended.items()} == {
        "begin": {},
        "square": {"squares": [0]},
        "finish": {},
    }
    assert ended["square"].keys() == {"id", "name", "error", "result", "interrupts"}
    assert ended["square"]["error"] is None
    assert ended["square"]["interrupts"] == []


async def test_an_end_follows_the_update_of_the_same_task() -> None:
    """An end follows the update of the same task, in whatever order the modes were named."""
    graph = squares(square).compile()
    orders: list[list[StreamMode]] = [["updates", "tasks"], ["tasks", "updates"]]
    for modes in orders:
        chunks = [chunk async for chunk in graph.astream({"count": 1}, stream_mode=modes)]
        shown = [(mode, chunk.get("name", next(iter(chunk)))) for mode, chunk in chunks]
        assert shown[:3] == [("tasks", "begin"), ("updates", "begin"), ("tasks", "begin")]


async def test_a_failure_is_streamed_with_the_exception_before_it_is_raised() -> None:
    """`error` is the exception itself; cancelled siblings have no end; then the run raises the exception."""

    async def fails(item: Item) -> None:
        raise ValueError(f"cannot square {item['number']}")

    graph = squares(fails).compile()
    chunks: list[Any] = []
    with pytest.raises(ValueError, match="cannot square 0") as raised:
        await read(graph, {"count": 1}, chunks)
    assert chunks[-1]["error"] is raised.value
    assert chunks[-1]["result"] == {}


async def test_several_failures_are_streamed_in_plan_order() -> None:
    """Several failures are streamed in the order of the ExceptionGroup, in whatever order they happened."""

    async def fails(item: Item) -> None:
        raise ValueError(item["number"])

    graph = squares(fails).compile()
    chunks: list[Any] = []
    with pytest.raises((ExceptionGroup, ValueError)) as raised:
        await read(graph, {"count": 3}, chunks)
    error = raised.value
    ends = [chunk["error"] for chunk in chunks if chunk["name"] == "square" and "error" in chunk]
    assert ends == (list(error.exceptions) if isinstance(error, ExceptionGroup) else [error])


async def test_writes_of_a_node_with_a_failed_router_are_streamed() -> None:
    """The node's own writes were made, and are streamed as the result of the task whose router failed."""

    def lost(state: State) -> list[Send]:
        raise LookupError("no way from here")

    async def begin(state: State) -> State:
        return {"count": 7}

    graph = StateGraph(State).add_node("begin", begin).add_edge(START, "begin").add_conditional_edges("begin", lost)
    ends: list[Any] = []
    with pytest.raises(LookupError):
        await read(graph.compile(), {}, ends)
    assert ends[-1]["result"] == {"count": 7}
    assert isinstance(ends[-1]["error"], LookupError)


async def test_a_recorded_task_is_planned_and_does_not_end() -> None:
    """A task recorded by an earlier run has a start and an `updates` chunk that says so, and no end."""
    broken = True

    async def one_fails(item: Item) -> dict[str, Any]:
        if broken and item["number"] == 1:
            await recorded()
            raise ValueError("broken")
        return await square(item)

    async def recorded() -> None:
        while all(task.result is None for task in (await graph.aget_state("t")).tasks):
            await anyio.lowlevel.checkpoint()

    graph = squares(one_fails).compile(InMemorySaver())
    with pytest.raises(ValueError, match="broken"):
        await graph.ainvoke({"count": 2}, "t")
    broken = False
    chunks = [chunk async for chunk in graph.astream(None, "t", stream_mode=["updates", "tasks"])]
    starts = [chunk["input"] for mode, chunk in chunks if mode == "tasks" and "input" in chunk]
    ends = [chunk["result"] for mode, chunk in chunks if mode == "tasks" and "result" in chunk]
    cached = [chunk for mode, chunk in chunks if mode == "updates" and "__metadata__" in chunk]
    assert starts[:2] == [{"number": 0}, {"number": 1}]
    assert ends == [{"squares": [1]}, {}]
    assert cached == [{"square": {"squares": [0]}, "__metadata__": {"cached": True}}]


async def test_a_chunk_is_the_readers_to_change() -> None:
    """P1: a reader's change to an event reaches neither the node nor a channel."""
    graph = squares(square).compile()
    async for chunk in graph.astream({"count": 2}, stream_mode="tasks"):
        if "input" in chunk:
            chunk["input"].clear()
        elif chunk["result"]:
            chunk["result"]["squares"].append(99)
    assert await graph.ainvoke({"count": 2}) == {"count": 2, "squares": [0, 1]}


async def test_an_input_that_cannot_be_made_is_none() -> None:
    """The task's own failure gives the reason; the event itself does not fail."""
    graph = Pregel(
        nodes={"reads": NodeBuilder().subscribe_to("in", read=False).read_from("out").do(_explodes).write_to("out")},
        channels={"in": LastValue(int), "out": LastValue(int)},
        input_channels="in",
        output_channels="out",
    )
    chunks = [chunk async for chunk in graph.astream(1, stream_mode="tasks")]
    assert [chunk.get("input") for chunk in chunks] == [{}, None]
    assert chunks[-1]["result"] == {"out": 5}

    node = NodeBuilder().subscribe_only("in").do(_explodes).write_to("out").build()
    empty = Pregel(
        nodes={"reads": type(node)(channels="out", triggers=("in",), bound=_explodes)},
        channels={"in": LastValue(int), "out": LastValue(int)},
        input_channels="in",
        output_channels="out",
    )
    events: list[Any] = []
    with pytest.raises(Exception, match="holds nothing") as raised:
        await read(empty, 1, events)
    assert [event.get("input") for event in events] == [None, None]
    assert events[-1]["error"] is raised.value


def _explodes(given: Any) -> int:
    return 5
