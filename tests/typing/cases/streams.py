"""How type checkers see streams: parts are narrowed by their type. Read by mypy and pyright (test_typing.py), and never
run."""

from __future__ import annotations

from typing import Any, TypedDict, assert_type

from pregel_async import GraphOutput, Interrupt, RunControl, Runtime, StateGraph, StreamPart, StreamWriter
from pregel_async.parts import (
    CheckpointPayload,
    DebugPayload,
    ErrorPayload,
    RestartedPayload,
    TaskPayload,
    TaskResultPayload,
)


class State(TypedDict):
    count: int


graph = StateGraph(State).compile()


async def narrows() -> None:
    async with graph.astream({"count": 1}, stream_mode=["values", "updates"], version="v2") as parts:
        async for part in parts:
            assert_type(part["ns"], tuple[str, ...])
            assert_type(part["seq"], int)
            assert_type(part["step"], int)
            assert_type(part["committed"], int | None)
            assert_type(part["cursor"], str | None)
            if part["type"] == "values":
                assert_type(part["interrupts"], tuple[Interrupt, ...])
                assert_type(part["data"], Any)
            elif part["type"] == "updates":
                assert_type(part["data"], dict[str, Any])
                part["interrupts"]  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues]  # wrong on purpose
            elif part["type"] == "messages":
                assert_type(part["data"], tuple[Any, dict[str, Any]])
            elif part["type"] == "custom":
                assert_type(part["data"], Any)
            elif part["type"] == "tasks":
                assert_type(part["data"], TaskPayload | TaskResultPayload)
            elif part["type"] == "checkpoints":
                assert_type(part["data"], CheckpointPayload)
                assert_type(part["data"]["next"], list[str])
            elif part["type"] == "debug":
                assert_type(part["data"], DebugPayload)
                assert_type(part["data"]["step"], int)
            elif part["type"] == "error":
                assert_type(part["data"], ErrorPayload)
            else:
                assert_type(part["data"], RestartedPayload)


async def matches() -> str:
    async for part in graph.astream({"count": 1}, version="v2"):
        match part["type"]:
            case "error":
                return "failed"
            case "nope":  # pyright: ignore[reportUnnecessaryComparison]  # wrong on purpose
                return "never"
            case _:
                continue
    return ""


async def first(parts: list[StreamPart]) -> None:
    for part in parts:
        if part["type"] == "nope":  # type: ignore[comparison-overlap]  # pyright: ignore[reportUnnecessaryComparison]  # wrong on purpose
            pass


async def outputs() -> None:
    output = await graph.ainvoke({"count": 1}, version="v2")
    assert_type(output, GraphOutput[State])
    assert_type(output.value, State)
    assert_type(output.value["count"], int)
    assert_type(output.interrupts, tuple[Interrupt, ...])
    output.values  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue,reportUnknownMemberType]  # wrong on purpose
    assert_type(await graph.ainvoke({"count": 1}), State)
    assert_type(await graph.ainvoke({"count": 1}, version="v1"), State)
    assert_type(await graph.ainvoke({"count": 1}, stream_mode="updates", version="v2"), list[StreamPart])
    assert_type(await graph.ainvoke({"count": 1}, stream_mode=["values", "tasks"], version="v2"), list[StreamPart])
    assert_type(graph.invoke({"count": 1}, version="v2"), GraphOutput[State])
    for part in graph.stream({"count": 1}, version="v2"):
        if part["type"] == "error":
            assert_type(part["data"]["message"], str)
    await graph.ainvoke({"count": 1}, version="v3")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType,reportCallIssue]  # wrong on purpose


control = RunControl()
graph.astream(
    {"count": 1}, stream_mode=("values", "debug"), overflow={"values": "coalesce"}, capacity=8, control=control
)
graph.astream({"count": 1}, overflow="drop_oldest", subgraphs=True)
graph.astream({"count": 1}, overflow="drop")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
graph.astream({"count": 1}, overflow={"nope": "block"})  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
graph.astream({"count": 1}, stream_mode=["nope"])  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose


async def node(state: State, writer: StreamWriter, runtime: Runtime[None]) -> State:
    writer({"x": 1})
    await writer(1)
    writer.message("chunk")
    await writer.message("chunk", {"tags": ["a"]})
    assert_type(runtime.control, RunControl | None)
    writer()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # wrong on purpose
    return state
