"""How type checkers see the sync verbs. Read by mypy and pyright (test_typing.py), and never run."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Annotated, Any, Required, TypedDict, assert_type

from checkpoint_savers import SqliteSaver
from pregel_async import CompiledStateGraph, PregelProtocol, RunnableConfig, StateGraph, StateSnapshot
from pregel_async._api.sync_verbs import SyncStream, open_sync
from pregel_async.types import StateUpdate


class State(TypedDict, total=False):
    messages: Annotated[list[str], operator.add]
    count: Required[int]


class Question(TypedDict):
    question: str


class Answer(TypedDict):
    answer: str


def node(state: State) -> State:
    return {"count": state["count"] + 1}


with open_sync(SqliteSaver.from_conn_string("runs.db")) as saver:
    assert_type(saver, SqliteSaver)
    graph = StateGraph(State).add_node("node", node).compile(saver)

protocol: PregelProtocol[State] = graph
assert_type(graph, CompiledStateGraph[State, Any, State, State])
result = graph.invoke({"count": 1}, "t", stream_mode="values", on_conflict="wait")
assert_type(result, State)
assert_type(result["count"], int)
assert_type(graph.invoke(None, "t"), State)
assert_type(graph.batch([{"count": 1}, {"count": 2}], ["t", "u"]), list[State])
assert_type(graph.get_state("t"), StateSnapshot[State])
assert_type(graph.update_state("t", {"count": 1}, "node"), RunnableConfig)
assert_type(graph.bulk_update_state("t", [[StateUpdate({"count": 1})]]), RunnableConfig)
for snapshot in graph.get_state_history("t", limit=3):
    assert_type(snapshot, StateSnapshot[State])
with graph.stream({"count": 1}, stream_mode=["values", "updates"]) as chunks:
    assert_type(chunks, SyncStream[Any])
    for _ in chunks:
        pass
iterator: Iterator[Any] = graph.stream({"count": 1})
graph.invoke({"count": "1"})  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
graph.invoke({"count": 1}, 5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
graph.invoke({"count": 1}, on_conflict="shrug")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
graph.stream({"count": 1}, stream_mode="everything")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
graph.bulk_update_state("t", [StateUpdate({})])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # wrong on purpose

narrow = StateGraph(State, input_schema=Question, output_schema=Answer).add_node(node).compile()
asks: PregelProtocol[State, Any, Question, Answer] = narrow
assert_type(narrow.invoke({"question": "why"}), Answer)
assert_type(protocol.invoke({"count": 1}), State)
narrow.invoke({"answer": "x"})  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
