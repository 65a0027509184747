"""How type checkers see the schemas of state, context, input and output. Read by mypy and pyright (test_typing.py), and
never run."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Mapping
from typing import Any, Literal, TypedDict, assert_type

import msgspec
from pydantic import BaseModel

from checkpoint_savers import InMemorySaver
from pregel_async import (
    END,
    START,
    Command,
    CompiledStateGraph,
    GraphOutput,
    PregelProtocol,
    RunnableConfig,
    Runtime,
    Send,
    StateGraph,
    StateSnapshot,
    StreamWriter,
    entrypoint,
    get_runtime,
)
from pregel_async.functional import CompiledEntrypoint


class State(TypedDict):
    count: int
    log: list[str]


class Question(TypedDict):
    question: str


class Patch(TypedDict, total=False):
    count: int


@dataclasses.dataclass
class Context:
    user: str = ""


class Settings(TypedDict):
    user: str


@dataclasses.dataclass
class Data:
    count: int = 0


class Record(msgspec.Struct):
    count: int = 0


class Model(BaseModel):
    count: int = 0


# The type parameters are state, context, input and output, with defaults.

plain: StateGraph[State] = StateGraph(State)
assert_type(plain, StateGraph[State, Any, State, State])
assert_type(StateGraph(State, Context), StateGraph[State, Context, State, State])
assert_type(StateGraph(State, context_schema=Context), StateGraph[State, Context])
assert_type(StateGraph[State, Context](State, Context), StateGraph[State, Context])
assert_type(
    StateGraph(State, Context, input_schema=Question, output_schema=Patch), StateGraph[State, Context, Question, Patch]
)
builder: StateGraph[State, Context] = StateGraph(State, Context)
StateGraph[State, Settings](State, Context)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose
StateGraph(State, 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose

graph = builder.compile(InMemorySaver())
assert_type(graph, CompiledStateGraph[State, Context, State, State])
short: CompiledStateGraph[State, Context] = graph
shorter: CompiledStateGraph[State] = graph
shortest: CompiledStateGraph = graph
protocol: PregelProtocol[State, Context] = graph
other: CompiledStateGraph[Question] = graph  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # wrong on purpose

# What a run returns and a thread holds: the schema, if that is a TypedDict, a mapping or a bare value; else its fields.

assert_type(StateGraph(Data).compile(), CompiledStateGraph[dict[str, Any], Any, Data, dict[str, Any]])
assert_type(StateGraph(Record).compile(), CompiledStateGraph[dict[str, Any], Any, Record, dict[str, Any]])
assert_type(StateGraph(Model).compile(), CompiledStateGraph[dict[str, Any], Any, Model, dict[str, Any]])
assert_type(StateGraph(int).compile(), CompiledStateGraph[int, Any, int, int])
assert_type(StateGraph(list[str]).compile(), CompiledStateGraph[list[str], Any, list[str], list[str]])
assert_type(StateGraph(Data, output_schema=Patch).compile(), CompiledStateGraph[dict[str, Any], Any, Data, Patch])
assert_type(StateGraph(State, output_schema=Model).compile(), CompiledStateGraph[State, Any, State, dict[str, Any]])


async def states() -> None:
    snapshot = await graph.aget_state("t")
    assert_type(snapshot, StateSnapshot[State])
    assert_type(snapshot.values, State)
    assert_type(snapshot.values["count"], int)
    snapshot.values["cuont"]  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues]  # wrong on purpose
    async for earlier in graph.aget_state_history("t"):
        assert_type(earlier.values["log"], list[str])
    assert_type(graph.get_state("t").values, State)
    for earlier in graph.get_state_history("t"):
        assert_type(earlier, StateSnapshot[State])
    assert_type((await protocol.aget_state("t")).values, State)
    assert_type((await StateGraph(Data).compile().aget_state("t")).values, dict[str, Any])
    assert_type((await StateGraph(int).compile().aget_state("t")).values, int)


def reads(bare: StateSnapshot, typed: StateSnapshot[State]) -> int:
    assert_type(bare.values, Any)
    bare = typed
    return typed.values["count"]


given: State = {"count": 1, "log": []}


async def contexts() -> None:
    assert_type(await graph.ainvoke(given, "t", context=Context("me")), State)
    await graph.ainvoke(given, "t", context=None)
    await graph.ainvoke(given, "t", context="me")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    assert_type(await graph.ainvoke(given, "t", context=Context(), version="v2"), GraphOutput[State])
    graph.astream(given, "t", context=Context(), version="v2")
    graph.astream(given, "t", context="me")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    await graph.abatch([given], ["t"], context="me")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    graph.invoke(given, "t", context="me")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    graph.stream(given, "t", context="me")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    graph.batch([given], ["t"], context="me")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    settings = StateGraph(State, Settings).compile()
    await settings.ainvoke(given, context={"user": "me"})
    await settings.ainvoke(given, context={"usr": "me"})  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    await plain.compile().ainvoke(given, context="without a schema, nodes get any context as it is")


# Nodes return a part of the state.


async def total(state: State) -> State:
    return {"count": 1, "log": []}


async def partial(state: State) -> Patch:
    return {"count": state["count"] + 1}


def literal(state: State) -> dict[str, int]:
    return {"count": 1}


def opaque(state: State) -> Mapping[str, object]:
    return {"count": 1}


def perhaps(state: State) -> Patch | None:
    return None


def several(state: State) -> list[Patch | Command]:
    return [{"count": 1}, Command(goto="literal")]


async def decides(state: State, runtime: Runtime[Context]) -> Command[Literal["partial", "literal"]]:
    return Command(update={"count": len(runtime.context.user)}, goto="partial")


async def injected(
    state: State, runtime: Runtime[Context], config: RunnableConfig, *, writer: StreamWriter
) -> Patch | Command[Literal["partial"]]:
    return {"count": 1}


class WithCall:
    async def __call__(self, state: State) -> Patch:
        return {}


assert_type(builder.add_node(total), StateGraph[State, Context, State, State])
builder.add_node(partial).add_node("literal", literal).add_node(opaque).add_node(perhaps).add_node("several", several)
builder.add_node(decides).add_node("injected", injected).add_node("object", WithCall()).add_node("graph", shorter)
builder.add_node("lambda", lambda state: {"count": state["count"]})
builder.add_node("wrong", lambda state: {"count": state["cuont"]})  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues, reportUnknownLambdaType]  # wrong on purpose
builder.add_sequence([partial, decides, ("s", injected), ("l", lambda state: {"count": state["count"]})])
builder.add_sequence([5])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # wrong on purpose


# Routers return nodes; what else they return, a mapping maps to nodes.


def by_name(state: State) -> Literal["partial", "literal"]:
    return "partial"


async def by_sends(state: State, runtime: Runtime[Context]) -> list[Send]:
    return [Send("partial", state)]


def by_bool(state: State) -> bool:
    return state["count"] > 1


async def by_number(state: State, config: RunnableConfig) -> int:
    return state["count"]


builder.add_conditional_edges("total", by_name).add_conditional_edges("total", by_sends, ["partial"])
builder.add_conditional_edges("total", by_bool, {True: "partial", False: END})
builder.add_conditional_edges("total", by_number, {1: "partial", 2: END})
builder.add_conditional_edges(START, lambda state: "partial" if state["count"] else END)
builder.add_conditional_edges(START, lambda state: state["count"] > 1, {True: "partial", False: END})
builder.set_conditional_entry_point(by_name).set_conditional_entry_point(by_bool, {True: "partial", False: END})
builder.add_conditional_edges("total", by_bool)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]  # wrong on purpose
builder.add_conditional_edges("total", by_number, ["a"])  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]  # wrong on purpose
builder.add_conditional_edges("total", by_bool, {True: 1})  # type: ignore[dict-item]  # pyright: ignore[reportCallIssue, reportArgumentType]  # wrong on purpose


# The input of an entrypoint is that of its function.


@entrypoint(InMemorySaver(), context_schema=Context)
async def flow(order: State, *, previous: int | None = None, runtime: Runtime[Context]) -> int:
    return order["count"] + (previous or 0)


@entrypoint()
def sync_flow(text: str, config: RunnableConfig) -> list[str]:
    return [text]


@entrypoint()
async def saves(text: str) -> entrypoint.final[bytes, int]:
    return entrypoint.final(value=b"", save=1)


@entrypoint()  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType, reportUntypedFunctionDecorator]  # wrong on purpose
def takes_nothing() -> int:
    return 1


assert_type(flow, CompiledEntrypoint[State, int, Context])
assert_type(saves, CompiledEntrypoint[str, bytes, Any])


async def entrypoints() -> None:
    assert_type(await flow.ainvoke(given, "t", context=Context()), int)
    assert_type((await flow.aget_state("t")).values, int | None)
    assert_type(await flow.ainvoke(None, "t"), int)
    assert_type(await flow.ainvoke(Command(resume=1), "t"), int)
    assert_type(await flow.abatch([given]), list[int])
    assert_type(sync_flow.invoke("a"), list[str])
    assert_type(await saves.ainvoke("a"), bytes)
    await flow.ainvoke({"count": 1}, "t")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    await flow.ainvoke("1", "t")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    await flow.ainvoke(given, "t", context="me")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    sync_flow.invoke(1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose


def in_node(state: State) -> Awaitable[None] | None:
    assert_type(get_runtime(Context), Runtime[Context])
    assert_type(get_runtime(Context).context.user, str)
    assert_type(get_runtime(), Runtime[Any])
    return None
