"""Programs as LangGraph's users write them, for both libraries: each takes the names that its imports would bring."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import operator
from collections.abc import Callable
from contextlib import contextmanager
from typing import Annotated, Any, TypedDict

import pytest

INSTALLED = importlib.util.find_spec("langgraph") is not None and all(
    importlib.util.find_spec(f"langgraph.{name}") is not None
    for name in ("graph", "checkpoint.sqlite", "checkpoint.postgres")
)

needs_langgraph = pytest.mark.skipif(
    not INSTALLED, reason="LangGraph and its savers are not installed here: nox -s langgraph installs them"
)


class Names:
    """What a program imports.

    Attributes:
        langgraph: True for LangGraph's.
    """

    def __init__(self, *, langgraph: bool) -> None:
        names = ("graph", "types", "func") if langgraph else ("", "", "")
        graph, types, func = (
            importlib.import_module(f"langgraph.{name}" if name else "pregel_async") for name in names
        )
        self.MessagesState: Any = graph.MessagesState
        self.langgraph = langgraph
        self.StateGraph: Any = graph.StateGraph
        self.START: Any = graph.START
        self.END: Any = graph.END
        self.interrupt: Any = types.interrupt
        self.Send: Any = types.Send
        self.Command: Any = types.Command
        self.entrypoint: Any = func.entrypoint
        self.task: Any = func.task


OURS = Names(langgraph=False)

Program = Callable[[Names], Any]
"""Makes a builder of one of both libraries."""

calls: list[str] = []
"""The names of the nodes that ran, in order."""


def chat(names: Names) -> Any:
    """A conversation whose answers count the messages."""

    def answer(state: Any) -> dict[str, Any]:
        calls.append("answer")
        from langchain_core.messages import AIMessage

        return {"messages": [AIMessage(f"answer {len(state['messages'])}")]}

    return names.StateGraph(names.MessagesState).add_node("answer", answer).add_edge(names.START, "answer")


class Work(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    topic: str


def _step(name: str) -> Callable[[Any], dict[str, Any]]:
    def step(state: Any) -> dict[str, Any]:
        calls.append(name)
        return {"log": [name]}

    return step


def review(names: Names) -> Any:
    """first -> ask (two questions) and beside; both -> last (a waiting edge)."""

    def ask(state: Any) -> dict[str, Any]:
        calls.append("ask")
        return {"log": [names.interrupt("one?"), names.interrupt({"then": "two?"})]}

    builder = names.StateGraph(Work)
    for name in ("first", "beside", "last"):
        builder.add_node(name, _step(name))
    builder.add_node("ask", ask)
    builder.add_edge(names.START, "first").add_edge("first", "ask").add_edge("first", "beside")
    return builder.add_edge(["ask", "beside"], "last")


def fan_out(names: Names) -> Any:
    """plan sends two pieces to work; both lead to collect, which is deferred."""

    def route(state: Any) -> Any:
        return [names.Send("work", {"topic": each}) for each in ("a", "b")]

    def work(state: Any) -> dict[str, Any]:
        calls.append(f"work {state['topic']}")
        return {"log": [state["topic"]]}

    builder = names.StateGraph(Work).add_node("plan", _step("plan")).add_node("work", work)
    builder.add_node("collect", _step("collect"), defer=True)
    builder.add_edge(names.START, "plan").add_conditional_edges("plan", route, ["work"])
    return builder.add_edge("work", "collect")


def failing(names: Names) -> Any:
    """good and bad at the same time; bad fails in LangGraph."""

    def bad(state: Any) -> dict[str, Any]:
        calls.append("bad")
        if names.langgraph:
            raise ConnectionError("the line is dead")
        return {"log": ["bad"]}

    builder = names.StateGraph(Work).add_node("good", _step("good")).add_node("bad", bad)
    return builder.add_edge(names.START, "good").add_edge(names.START, "bad")


def nested(names: Names) -> Any:
    """A node that is a graph which asks."""

    def ask(state: Any) -> dict[str, Any]:
        calls.append("ask")
        return {"log": [names.interrupt("inside?")]}

    inner = names.StateGraph(Work).add_node("ask", ask).add_edge(names.START, "ask").compile()
    return names.StateGraph(Work).add_node("outer", inner).add_edge(names.START, "outer")


def keeping(names: Names) -> Any:
    """A node that is a graph which keeps its state from call to call, and then a node that asks."""

    def count(state: Any) -> dict[str, Any]:
        return {"seen": [f"call {len(state.get('seen', []))}"], "topic": f"{len(state.get('seen', []))} before"}

    class Kept(TypedDict, total=False):
        seen: Annotated[list[str], operator.add]
        topic: str

    inner = names.StateGraph(Kept).add_node("count", count).add_edge(names.START, "count").compile(checkpointer=True)
    return names.StateGraph(Work).add_node("memory", inner).add_edge(names.START, "memory")


def workflow(names: Names, saver: Any) -> Any:
    """A functional program that adds to what it has saved."""

    @names.entrypoint(checkpointer=saver)
    def total(number: int, *, previous: Any = None) -> Any:
        return (previous or 0) + number

    return total


@dataclasses.dataclass
class Invoice:
    """A class of the application's."""

    number: int


class Billing(TypedDict, total=False):
    invoice: Invoice


def billing(names: Names) -> Any:
    """A state with an object of a class of the application's."""

    def bill(state: Any) -> dict[str, Any]:
        return {"invoice": Invoice(7)}

    return names.StateGraph(Billing).add_node("bill", bill).add_edge(names.START, "bill")


@contextmanager
def langgraph_saver(place: str) -> Any:
    """Open LangGraph's saver of a file, or of a database."""
    if place.startswith("postgresql://"):
        from langgraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(place) as saver:
            saver.setup()
            yield saver
    else:
        from langgraph.checkpoint.sqlite import SqliteSaver

        with SqliteSaver.from_conn_string(place) as saver:
            yield saver
