"""Subclasses of plain scalars without data of their own become the plain value when they are written (P11)."""

from __future__ import annotations

import importlib.util
import operator
from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum, StrEnum
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.codec import Codec
from pregel_async import START, Command, Send, StateGraph, interrupt, task
from pregel_async.errors import UnstorableValueError

pytestmark = pytest.mark.anyio


class Text(str):
    __slots__ = ()

    def __call__(self) -> str:
        return "called"

    def __str__(self) -> str:
        return "overridden"


class Count(int):
    __slots__ = ()


class Share(float):
    __slots__ = ()


class Data(bytes):
    __slots__ = ()


class Tagged(str):
    """A subclass with a `__dict__`, which may hold further data."""


class Known(str):
    __slots__ = ()


class Slotted(str):
    """A str subclass with data in slots and no `__dict__`."""

    __slots__ = ("note",)


class Level(IntEnum):
    LOW = 1


class Mood(StrEnum):
    GOOD = "good"


class State(TypedDict, total=False):
    given: Any
    value: Any
    log: Annotated[list[Any], operator.add]


GIVEN: list[Any] = [Text("a"), Count(1), Share(0.5), Data(b"b")]
PLAIN: list[Any] = ["a", 1, 0.5, b"b"]


def kinds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: kinds(item) for key, item in value.items()}
    return [kinds(item) for item in value] if isinstance(value, (list, tuple)) else (type(value), value)


@pytest.mark.parametrize("stored", [False, True])
async def test_what_is_written_becomes_plain(saver: BaseCheckpointSaver, stored: bool) -> None:
    """P11: inputs, updates at any depth, sends, task results, questions and answers become plain; a graph sees the same
    values with and without a saver."""
    seen: list[Any] = []

    @task
    def call(argument: Any) -> Any:
        seen.append(type(argument))
        return [Text("task"), argument]

    async def first(state: State) -> Any:
        seen.append(kinds(state["given"]))
        texts = await call(Text("t"))
        seen.append(kinds(texts))
        return Command(update={"value": {"in": GIVEN, "t": (Text("x"),)}}, goto=Send("second", {"sent": Text("s")}))

    def second(sent: Any) -> Any:
        seen.append(kinds(sent))
        return {"log": [Text("l")]}

    builder = StateGraph(State).add_node("first", first, destinations=("second",)).add_node("second", second)
    graph = builder.add_edge(START, "first").compile(saver if stored else None)
    result = await graph.ainvoke({"given": GIVEN}, "t")
    assert seen == [kinds(PLAIN), Text, kinds(["task", "t"]), kinds({"sent": "s"})]
    assert kinds(result) == kinds({"given": PLAIN, "value": {"in": PLAIN, "t": ["x"]}, "log": ["l"]})
    if stored:
        assert kinds((await graph.aget_state("t")).values) == kinds(result)
        await graph.aupdate_state("t", {"value": Text("edited")}, as_node="second")
        assert kinds((await graph.aget_state("t")).values["value"]) == (str, "edited")


async def test_questions_and_answers_become_plain(saver: BaseCheckpointSaver) -> None:
    """P8, P11: stored questions and answers become plain."""

    def ask(state: State) -> Any:
        return {"value": interrupt(Text("really?")), "given": {Text("key"): {Text("member")}}}

    graph = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile(saver)
    asked = await graph.ainvoke({"log": []}, "t")
    assert kinds(asked["__interrupt__"][0].value) == (str, "really?")
    result = await graph.ainvoke(Command(resume=Text("yes")), "t")
    assert kinds(result["value"]) == (str, "yes")
    assert type(next(iter(result["given"]))) is str
    assert result["given"] == (await graph.aget_state("t")).values["given"] == {"key": {"member"}}


@pytest.mark.parametrize("mapping", [dict, OrderedDict])
async def test_keys_become_plain(saver: BaseCheckpointSaver, mapping: Callable[[Any], Any]) -> None:
    """P8, P11: a repeated question matches the answered one, whatever the classes of its keys."""

    def ask(state: State) -> Any:
        answer = interrupt(mapping([(Text("sure"), [{Text("at"): Count(1)}]), (Text("twice"), 2)]))
        return {"value": mapping([(Text("answer"), answer), (Count(1), {Text("in"): 1})])}

    def change(state: State) -> Any:
        state["value"][Text("added")] = 1
        return {"given": state["value"]}

    builder = StateGraph(State).add_node("ask", ask).add_node("change", change)
    graph = builder.add_edge(START, "ask").add_edge("ask", "change").compile(saver)
    await graph.ainvoke({"log": []}, "t")
    result = await graph.ainvoke(Command(resume={Text("yes"): True}), "t")
    assert result["given"] == {"answer": {"yes": True}, 1: {"in": 1}, "added": 1}
    given = [result["given"], result["given"]["answer"], result["given"][1]]
    assert {type(key) for each in given for key in each} == {str, int}


@pytest.mark.parametrize("named", [Known, Tagged, Mood])
async def test_names_become_plain(saver: BaseCheckpointSaver, named: Any) -> None:
    """P2, P11: constants of any str subclass may name nodes and keys, stored or not, without registration, and give the
    same task ids as plain names."""

    class Update(TypedDict, total=False):
        log: Annotated[list[Any], operator.add]
        good: int

    good = named("good")

    def route(state: Update) -> Any:
        return [Send(good, {}), Send(good, {})]

    def ask(state: Update) -> Any:
        return {"log": [interrupt("?")], good: 1}

    def build(name: str) -> Any:
        builder = StateGraph(Update).add_node(name, lambda _: {"log": [1]}, metadata={"x": 1})
        builder.add_node("first", lambda _: {name: 0}, destinations=(name,)).add_node("ask", ask)
        builder.add_edge(START, "first").add_edge(START, name).add_edge([name, "first"], "ask")
        builder.add_conditional_edges("first", route, [name])
        builder.add_conditional_edges("ask", lambda _: "x", {"x": name})
        return builder.compile(saver)

    graph = build(good)
    first = await graph.ainvoke({"log": []}, "t")
    asked = await graph.aget_state("t")
    assert first["log"] == [1] and asked.next == ("ask",)
    tasks = [task.id async for each in graph.aget_state_history("t") for task in each.tasks]
    assert tasks == [task.id async for each in build("good").aget_state_history("t") for task in each.tasks]
    result = await build("good").ainvoke(Command(resume=2), "t")
    assert result == {"log": [1, 2, 1, 1, 1], "good": 1}
    assert {type(node) for node in graph.nodes} | {type(Send(good, 1).node)} == {str}


@pytest.mark.parametrize("value", [Tagged("a"), Slotted("a"), Level.LOW, Mood.GOOD])
async def test_all_else_is_refused_as_before(value: Any) -> None:
    """P11: an Enum member, or a subclass with a `__dict__` or slots, may hold further data and is refused."""
    builder = StateGraph(State).add_node("n", lambda _: {"value": [value]}).add_edge(START, "n")
    result = await builder.compile().ainvoke({"log": []})
    assert type(result["value"][0]) is type(value)
    with pytest.raises(UnstorableValueError):
        await builder.compile(InMemorySaver()).ainvoke({"log": []}, "t")


async def test_a_registered_class_stays() -> None:
    """P11: a registered class comes back equal in value and type, in inputs, updates, edits and subgraphs."""
    inner = StateGraph(State).add_node("n", lambda _: {"log": [Known("inner")]}).add_edge(START, "n")
    builder = StateGraph(State).add_node("n", lambda _: {"log": [Known("outer")]})
    builder.add_node("unstored", inner.compile(checkpointer=False)).add_node("stored", inner.compile())
    builder.add_edge(START, "n").add_edge("n", "unstored").add_edge("unstored", "stored")
    graph = builder.compile(InMemorySaver(codec=Codec().with_types(Known, tag="known")))
    result = await graph.ainvoke({"given": Known("given"), "value": Text("v")}, "t")
    await graph.aupdate_state("t", {"log": [Known("edited")]}, as_node="stored")
    values = (await graph.aget_state("t")).values
    assert type(result["given"]) is Known and type(result["value"]) is str
    assert {type(each) for each in values["log"]} == {Known} and "edited" in values["log"]


@pytest.mark.skipif(importlib.util.find_spec("langchain_core") is None, reason="langchain-core is not installed here")
async def test_the_text_of_langchains_messages(saver: BaseCheckpointSaver) -> None:
    """`StrOutputParser()` and `message.text` of langchain-core 1.x return a str subclass."""
    from langchain_core.messages import AIMessage
    from langchain_core.output_parsers import StrOutputParser

    def say(state: State) -> Any:
        message = AIMessage("hello")
        return {"value": message.text, "log": [StrOutputParser().invoke(message)]}

    graph = StateGraph(State).add_node("say", say).add_edge(START, "say").compile(saver)
    assert kinds(await graph.ainvoke({"log": []}, "t")) == kinds({"value": "hello", "log": ["hello"]})
