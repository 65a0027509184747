"""How type checkers see graphs. Read by mypy and pyright (test_typing.py), and never run."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal, Required, TypedDict, assert_type

import msgspec

from checkpoint_savers import InMemorySaver, SqliteSaver
from pregel_async import (
    END,
    START,
    Command,
    CompiledStateGraph,
    NodeBuilder,
    Pregel,
    PregelNode,
    PregelProtocol,
    PregelTask,
    RunnableConfig,
    Send,
    StateGraph,
    StateSnapshot,
)
from pregel_async.channels import LastValue


class State(TypedDict, total=False):
    messages: Annotated[list[str], operator.add]
    count: Required[int]


class Question(TypedDict):
    question: str


class Answer(TypedDict):
    answer: str


@dataclasses.dataclass
class Data:
    count: int = 0


class Record(msgspec.Struct):
    count: int = 0


def node(state: State) -> State:
    return {"count": state["count"] + 1}


async def async_node(state: State) -> dict[str, Any]:
    return {"count": 1}


def nothing(state: State) -> None:
    return None


def data_node(state: Data) -> dict[str, Any]:
    return {"count": state.count + 1}


def private_node(state: Question) -> dict[str, Any]:
    return {"count": len(state["question"])}


def route(state: State) -> str | list[str | Send]:
    return [END, Send("node", {})]


async def async_route(state: State) -> str:
    return END


builder = StateGraph(State)
assert_type(builder, StateGraph[State, Any, State, State])
short: StateGraph[State] = StateGraph(State)
assert_type(short, StateGraph[State, Any, State, State])

assert_type(builder.add_node("node", node), StateGraph[State, Any, State, State])
builder.add_node(async_node).add_node("nothing", nothing).add_node("lambda", lambda state: {"count": state["count"]})
builder.add_node("private", private_node)
builder.add_node("given", lambda state: {"count": len(state["question"])}, input_schema=Question)
builder.add_node("slow", lambda state: {"count": state["count"]}, abandon_on_cancel=True)
builder.add_node(node, abandon_on_cancel=True)
builder.add_sequence([node, ("again", node), async_node])
builder.add_edge(START, "node").add_edge(["node", "again"], "nothing").add_edge("nothing", END)
builder.add_conditional_edges("node", route).add_conditional_edges("node", async_route, {"x": "node"})
builder.set_entry_point("node").set_finish_point("again")

graph = builder.compile(InMemorySaver())
assert_type(graph, CompiledStateGraph[State, Any, State, State])
protocol: PregelProtocol[State] = graph


async def runs() -> None:
    result = await graph.ainvoke({"count": 1})
    assert_type(result, State)
    assert_type(result["count"], int)
    assert_type(await graph.ainvoke(None, "thread"), State)
    assert_type(await graph.ainvoke({"count": 1}, {"configurable": {"thread_id": "t"}, "recursion_limit": 5}), State)
    assert_type(await graph.abatch([{"count": 1}, {"count": 2}], ["t1", "t2"]), list[State])
    assert_type(graph.with_config("t", recursion_limit=5), CompiledStateGraph[State, Any, State, State])
    config: RunnableConfig = {"configurable": {"thread_id": "t"}, "tags": ["a"]}
    assert_type(await graph.aget_state(config), StateSnapshot[State])
    async for snapshot in graph.aget_state_history("t"):
        assert_type(snapshot, StateSnapshot[State])
        assert_type(snapshot.next, tuple[str, ...])
        assert_type(snapshot.tasks, tuple[PregelTask, ...])
    async with graph.astream({"count": 1}, stream_mode=["values", "updates"]) as chunks:
        async for _ in chunks:
            pass
    iterator: AsyncIterator[Any] = graph.astream({"count": 1})
    await graph.ainvoke({"count": "1"})  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    await graph.ainvoke({"count": 1, "cuont": 1})  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    await graph.ainvoke(5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    await graph.ainvoke({"count": 1}, 5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    graph.astream({"count": "1"})  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    graph.astream({"count": 1}, stream_mode="everything")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    await graph.ainvoke({"count": 1}, on_conflict="shrug")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    result["cuont"]  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues]  # wrong on purpose
    del iterator


narrowed = StateGraph(State, input_schema=Question, output_schema=Answer)
assert_type(narrowed, StateGraph[State, Any, Question, Answer])
assert_type(StateGraph(State, input_schema=Question), StateGraph[State, Any, Question, State])
assert_type(StateGraph(State, output_schema=Answer), StateGraph[State, Any, State, Answer])
narrow = narrowed.add_node(node).compile()
assert_type(narrow, CompiledStateGraph[State, Any, Question, Answer])
asks: PregelProtocol[State, Any, Question, Answer] = narrow


async def narrow_runs() -> None:
    answer = await narrow.ainvoke({"question": "why"})
    assert_type(answer, Answer)
    assert_type(answer["answer"], str)
    await narrow.ainvoke({"answer": "x"})  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    await narrow.ainvoke({})  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose


data = StateGraph(Data).add_node("node", data_node).compile()
assert_type(data, CompiledStateGraph[dict[str, Any], Any, Data, dict[str, Any]])
record = StateGraph(Record).add_node("node", lambda state: {"count": state.count}).compile()
assert_type(record, CompiledStateGraph[dict[str, Any], Any, Record, dict[str, Any]])


async def data_runs() -> None:
    assert_type(await data.ainvoke(Data(count=1)), dict[str, Any])
    assert_type(await record.ainvoke(Record(count=1)), dict[str, Any])
    await data.ainvoke(Record())  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose


builder.add_node(5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
builder.add_edge(5, "node")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose
builder.add_conditional_edges("node", 5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]  # wrong on purpose
builder.compile("runs.db")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType,reportCallIssue]  # wrong on purpose
builder.compile(unknown_keys="drop")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType,reportCallIssue]  # wrong on purpose
StateGraph(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose
Send("node")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # wrong on purpose


made = NodeBuilder().subscribe_only("a").do(len).write_to("b", c=5).meta("tag").abandon_on_cancel()
assert_type(made, NodeBuilder)
assert_type(made.build(), PregelNode)
pregel = Pregel(
    nodes={"n": made, "m": made.build()},
    channels={"a": LastValue(str), "b": LastValue(int)},
    input_channels="a",
    output_channels=["b"],
)
bare: PregelProtocol = pregel


async def saved() -> None:
    async with SqliteSaver.from_conn_string("runs.db") as saver:
        assert_type(saver, SqliteSaver)
        assert_type(builder.compile(saver), CompiledStateGraph[State, Any, State, State])


def decides(state: State) -> Command[Literal["nothing", "async_node"]]:
    return Command(update={"count": 2}, goto="nothing")


def decides_later(state: State) -> Command[Literal["nothing"]]:
    decided = Command(goto=["nothing", Send("async_node", state)])
    assert decided.goto
    return decided


def decides_anything(state: State) -> Command:
    return Command(goto="nothing")


StateGraph(State).add_node(decides).add_node(decides_later).add_node(decides_anything)


async def answers(graph: CompiledStateGraph[State, Any, State, State]) -> None:
    assert_type(await graph.ainvoke(Command(resume=True), "thread-1"), State)
