"""What `version="v2"` gives: labelled parts, with their number, their superstep, and what is on disk (1.12, P4)."""

# Tests do on purpose what users may do, types or not:
# mypy: disable-error-code="func-returns-value"

from __future__ import annotations

import dataclasses
import operator
from typing import Annotated, Any, TypedDict

import anyio
import msgspec
import pydantic
import pytest
from kinds import KINDS, DataState, ModelState, StructState, get

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.errors import StorageError
from pregel_async import (
    END,
    START,
    Command,
    GraphDrained,
    GraphOutput,
    Interrupt,
    RunControl,
    Send,
    StateGraph,
    StreamWriter,
    entrypoint,
    get_stream_writer,
    interrupt,
    task,
)
from pregel_async.errors import GraphRecursionError, ThreadBusyError

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    note: str


ALL: Any = ["values", "updates", "messages", "custom", "tasks", "checkpoints", "debug"]


def says(name: str) -> Any:
    async def node(state: State) -> State:
        get_stream_writer()(name)
        return {"log": [name]}

    return node


def chain(*names: str, **more: Any) -> Any:
    made = StateGraph(State).add_sequence([(name, says(name)) for name in names])
    for name, node in more.items():
        made.add_node(name, node).add_edge(names[-1], name)
    return made.add_edge(START, names[0])


async def parts(graph: Any, given: Any, config: Any = None, **arguments: Any) -> list[Any]:
    return [part async for part in graph.astream(given, config, version="v2", **arguments)]


async def until_failure(graph: Any, given: Any, config: Any = None, **arguments: Any) -> tuple[list[Any], Exception]:
    """The parts of a run that fails, and what was raised."""
    got: list[Any] = []
    with pytest.raises(Exception) as caught:
        async for part in graph.astream(given, config, version="v2", **arguments):
            got.append(part)
    return got, caught.value


# ---- failures --------------------------------------------------------------------------------------------------------


async def fails(state: State) -> None:
    raise ValueError("broken")


@pytest.mark.parametrize("modes", [*ALL, ALL])
async def test_a_failure_is_the_last_part_whatever_the_modes(modes: Any, saver: BaseCheckpointSaver) -> None:
    """Issue: failures arrive as the stream's last event, then as the exception."""
    got, raised = await until_failure(chain("a", bad=fails).compile(saver), {}, "t", stream_mode=modes)
    assert isinstance(raised, ValueError)
    last = got[-1]
    assert last == {
        "type": "error",
        "ns": (),
        "data": {"error": "ValueError", "message": "broken"},
        "seq": len(got),
        "step": 2,
        "committed": 1,
        "cursor": None,
    }
    assert [part["type"] for part in got].count("error") == 1
    if modes == ALL:
        assert [part["type"] for part in got[-3:]] == ["tasks", "debug", "error"]


async def test_failures_that_are_no_nodes() -> None:
    """Issue: the limit, a refused update, an input that fits nothing, a busy thread, a drained run: all are told."""
    got, raised = await until_failure(chain("a", "b").compile(), {}, {"recursion_limit": 1}, stream_mode="custom")
    assert isinstance(raised, GraphRecursionError)
    assert [(part["type"], part["step"]) for part in got] == [("custom", 1), ("error", 2)]

    both = StateGraph(State).add_node("a", lambda state: {"note": "x"}).add_node("b", lambda state: {"note": "y"})
    graph = both.add_edge(START, "a").add_edge(START, "b").compile(blocking=False)
    got, raised = await until_failure(graph, {}, stream_mode="custom")
    assert [part["data"]["error"] for part in got] == ["pregel_async.errors.InvalidUpdateError"]

    got, raised = await until_failure(chain("a").compile(), {"nonsense": 1}, stream_mode="custom")
    assert [part["data"]["message"] for part in got] == [str(raised)]

    control = RunControl()
    control.request_drain("deploy")
    got, raised = await until_failure(chain("a").compile(InMemorySaver()), {}, "t", control=control)
    assert isinstance(raised, GraphDrained)
    assert [part["data"]["error"] for part in got] == ["pregel_async.errors.GraphDrained"]

    hold = anyio.Event()
    free = anyio.Event()

    async def holds(state: State) -> None:
        hold.set()
        await free.wait()

    holder = StateGraph(State).add_node("holds", holds).add_edge(START, "holds").compile(InMemorySaver())
    async with anyio.create_task_group() as group:
        group.start_soon(holder.ainvoke, {}, "t")
        await hold.wait()
        got, raised = await until_failure(holder, {}, "t")
        free.set()
    assert isinstance(raised, ThreadBusyError)
    assert [part["data"]["error"] for part in got] == ["checkpoint_savers.errors.ThreadBusyError"]


async def test_several_failures_are_told_as_their_group() -> None:
    """P9: what is told is what is raised."""
    met: list[anyio.Event] = [anyio.Event(), anyio.Event()]

    def bad(number: int) -> Any:
        async def node(state: State) -> None:
            met[number].set()
            try:
                await met[1 - number].wait()
            finally:
                raise ValueError(number)

        return node

    made = StateGraph(State).add_node("a", bad(0)).add_node("b", bad(1)).add_edge(START, "a").add_edge(START, "b")
    got, raised = await until_failure(made.compile(), {}, stream_mode=["tasks"])
    assert isinstance(raised, ExceptionGroup)
    assert [part["type"] for part in got] == ["tasks"] * 4 + ["error"]
    assert [part["data"]["error"] for part in got[2:4]] == list(raised.exceptions)
    assert got[-1]["data"] == {"error": "ExceptionGroup", "message": str(raised)}


async def test_a_graph_that_a_node_reads_tells_its_failure() -> None:
    """Issue: wherever it is read: in a node too; and its parts say what of it is on disk."""
    sub = chain("a", bad=fails).compile()
    got: list[Any] = []

    async def node(state: State) -> None:
        try:
            async for part in sub.astream({}, version="v2", stream_mode=["custom", "checkpoints"]):
                got.append(part)
        except ValueError:
            got.append("raised")

    graph = StateGraph(State).add_node("node", node).add_edge(START, "node").compile(InMemorySaver())
    outer = await parts(graph, {}, "t", stream_mode=["custom", "updates"])
    assert [part["type"] for part in outer] == ["updates"]
    assert got[-1] == "raised"
    assert [part["type"] for part in got[:-1]] == ["checkpoints", "checkpoints", "custom", "checkpoints", "error"]
    assert [part["committed"] for part in got[:-1]] == [0, 0, 0, 1, 1]
    assert [part["ns"] for part in got[:-1]] == [()] * 5


async def test_v1_has_no_part_of_its_own_for_a_failure() -> None:
    """Issue: in v1, the end of the failed task among `tasks` and `debug` is the last event."""
    error = ValueError("broken")

    async def bad(state: State) -> None:
        raise error

    for modes in (["tasks"], ["debug"], ["tasks", "debug", "values", "updates", "custom", "messages"]):
        got: list[Any] = []
        with pytest.raises(ValueError):
            async for chunk in chain("a", bad=bad).compile(InMemorySaver()).astream({}, "t", stream_mode=modes):
                got.append(chunk)
        for mode, chunk in got[-len({"tasks", "debug"} & {*modes}) :]:
            ended = chunk if mode == "tasks" else chunk["payload"]
            assert ended["error"] is error
    got = []
    with pytest.raises(ValueError):
        async for chunk in chain("a", bad=bad).compile().astream({}):
            got.append(chunk)
    assert got == [{"a": {"log": ["a"]}}]


async def test_a_failure_needs_no_room() -> None:
    """P12: a run that has failed ends, and gives up its thread, though its reader is far behind: one part more fits."""

    async def bad(state: State) -> None:
        for number in range(10):
            await get_stream_writer()(number)
        raise ValueError

    graph = StateGraph(State).add_node("bad", bad).add_edge(START, "bad").compile(InMemorySaver())
    stream = graph.astream({}, "t", stream_mode="custom", version="v2", capacity=3, overflow="drop_oldest")
    async with stream:
        await anyio.wait_all_tasks_blocked()
        (failed,) = (await graph.aget_state("t")).tasks
        assert failed.error is not None
        again = graph.astream({}, "t", version="v2")  # the thread is free
        assert (await anext(again))["type"] == "error"
        with pytest.raises(ValueError):
            await anext(again)
        with pytest.raises(ValueError):
            assert [part["type"] async for part in stream] == ["custom"] * 3 + ["error"]


async def test_finished_siblings_of_a_failure_are_shown(saver: BaseCheckpointSaver) -> None:
    """P12: under "block" nothing is lost: what finished, and waits for the reader when a sibling fails, is shown."""

    async def bad(state: State) -> None:
        await anyio.wait_all_tasks_blocked()
        raise ValueError

    made = StateGraph(State).add_node("bad", bad).add_edge(START, "bad")
    for number in range(6):
        made.add_node(f"n{number}", lambda state: {"log": ["x"]}).add_edge(START, f"n{number}")
    for stored in (None, saver):
        graph = made.compile(stored, blocking=False)
        got: list[Any] = []
        async with graph.astream({}, "t", capacity=2, version="v2") as stream:
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(ValueError):
                async for part in stream:
                    got.append(part)
        assert sorted(next(iter(part["data"])) for part in got[:-1]) == [f"n{number}" for number in range(6)]
        assert [part["seq"] for part in got] == [1, 2, 3, 4, 5, 6, 7]
