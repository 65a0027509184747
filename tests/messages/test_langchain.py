"""langchain-core's messages: recognized by shape, registered in code, and created from inputs on request."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.codec import Codec
from pregel_async import START, StateGraph
from pregel_async.errors import UnstorableValueError
from pregel_async.messages import (
    REMOVE_ALL_MESSAGES,
    InvalidMessageError,
    MessagesState,
    RemoveMessage,
    add_messages,
)

ROOT = Path(__file__).parents[2]
INSTALLED = importlib.util.find_spec("langchain_core") is not None

needs_langchain = pytest.mark.skipif(
    not INSTALLED, reason="langchain-core is not installed here: nox -s langchain installs it"
)

if INSTALLED:
    from langchain_core import messages as lc

    from pregel_async import langchain

    class Chat(TypedDict):
        messages: Annotated[list[lc.AnyMessage], add_messages]

    class Converted(TypedDict):
        messages: Annotated[list[lc.AnyMessage], langchain.add_messages]


class Mine(Enum):
    ONE = 1


def ids(messages: list[Any]) -> list[Any]:
    return [message.id for message in messages]


def test_without_langchain_core_it_says_what_to_install() -> None:
    """Without langchain-core the import raises an ImportError with the install command; the rest of the package
    works."""
    code = (
        "import sys; sys.modules['langchain_core'] = None\n"  # as if it were not installed, where it is
        "import pregel_async.messages\n"
        "try: import pregel_async.langchain\n"
        "except ImportError as error: print(error.name, '|', error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.startswith("langchain_core | ")
    assert "pip install" in ran.stdout


@needs_langchain
def test_its_messages_are_taken_as_they_are() -> None:
    """Messages keep their class, with ids, replacement, and removal by langchain-core's RemoveMessage; a message
    without an id is copied with one."""
    mine = lc.HumanMessage("hi")
    left = add_messages([], [mine, lc.AIMessage("yes", id="1")])
    assert mine.id is None and isinstance(left[0], lc.HumanMessage) and isinstance(left[0].id, str)
    assert ids(left) != ids(add_messages([], [mine, lc.AIMessage("yes", id="1")]))
    assert add_messages(left, lc.RemoveMessage(id="1")) == left[:1]
    assert add_messages(left, RemoveMessage("1")) == left[:1]
    assert add_messages(left, [lc.RemoveMessage(REMOVE_ALL_MESSAGES), lc.AIMessage("no", id="2")]) == [
        lc.AIMessage("no", id="2")
    ]
    replaced = add_messages(left, lc.AIMessage("no", id="1"))
    assert replaced == [left[0], lc.AIMessage("no", id="1")] and replaced[0] is left[0]
    assert len(set(ids(add_messages(left, lc.HumanMessage("hi"))))) == 3


@needs_langchain
def test_a_chunk_becomes_its_message() -> None:
    """A chunk becomes a message, as in LangGraph; the chunk itself is unchanged."""
    chunk = lc.AIMessageChunk("half", id="1", additional_kwargs={"a": []})
    [made] = add_messages([], chunk)
    assert type(made) is lc.AIMessage and (made.content, made.id) == ("half", "1")
    made.additional_kwargs["a"].append(1)
    assert chunk == lc.AIMessageChunk("half", id="1", additional_kwargs={"a": []})


def of_each_class() -> list[Any]:
    usage: Any = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    return [
        lc.HumanMessage([{"type": "text", "text": "x"}], name="me"),
        lc.AIMessage("", id="1", tool_calls=[{"name": "f", "args": {"a": [1]}, "id": "q"}], usage_metadata=usage),
        lc.ToolMessage("r", tool_call_id="q", artifact={"a": (1, 2)}),
        lc.SystemMessage("s"),
        lc.ChatMessage("s", role="r"),
        lc.FunctionMessage("x", name="f"),
        lc.RemoveMessage(id="1"),
        lc.AIMessageChunk("x", tool_call_chunks=[{"name": "f", "args": "{", "id": "1", "index": 0}]),
        lc.HumanMessageChunk("a", unheard_of=1),
        lc.SystemMessageChunk("s"),
        lc.ToolMessageChunk("r", tool_call_id="q"),
        lc.FunctionMessageChunk("x", name="f"),
        lc.ChatMessageChunk("s", role="r"),
    ]


@needs_langchain
def test_every_class_is_stored() -> None:
    """P11: every message class comes back equal in value and type."""
    codec = langchain.with_messages()
    for message in of_each_class():
        back = codec.decode(codec.encode(message, channel="m"), channel="m")
        assert type(back) is type(message) and back == message
    assert {type(message) for message in of_each_class()} == set(langchain.MESSAGE_TYPES)
    with pytest.raises(UnstorableValueError):
        Codec().encode(lc.HumanMessage("hi"), channel="m")


@needs_langchain
def test_it_registers_under_the_tags_that_annotations_give() -> None:
    """Registration by the function or by annotations uses the same tags, so that a thread is readable with either; the
    codec's own types stay registered."""
    named = Codec().with_annotations(lc.AnyMessage)
    for message in of_each_class():
        if not isinstance(message, lc.RemoveMessage):
            stored = named.encode(message, channel="m")
            assert langchain.with_messages().decode(stored, channel="m") == message
    assert langchain.with_messages(named).knows(lc.RemoveMessage)
    assert langchain.with_messages(Codec().with_types(Mine, tag="mine")).knows(Mine)


@needs_langchain
def test_annotations_that_name_a_message() -> None:
    """An annotation names a message if it contains the base class, a class, or an alias of them all, at any depth; a
    list of anything does not."""
    for hint in (
        lc.BaseMessage,
        list[lc.AnyMessage],
        dict[str, lc.AIMessage | None],
        Annotated[list[lc.ToolMessage], add_messages],
    ):
        assert langchain.names_messages(str, hint), hint
    assert not langchain.names_messages(list, list[dict[str, Any]], str)


@needs_langchain
@pytest.mark.anyio
async def test_a_graph_of_its_messages() -> None:
    """Messages are stored, read back and removed; a message of another thread is another message."""

    def answer(state: Any) -> dict[str, Any]:
        first = state["messages"][0]
        return {"messages": [lc.AIMessage(f"you said {first.content}"), lc.RemoveMessage(id=first.id)]}

    builder = StateGraph(Chat).add_node("answer", answer).add_edge(START, "answer")
    saver = InMemorySaver(codec=langchain.with_messages())
    graph = builder.compile(saver)
    result = await graph.ainvoke({"messages": [lc.HumanMessage("hi")]}, "t")
    assert [(type(m), m.content) for m in result["messages"]] == [(lc.AIMessage, "you said hi")]
    assert (await graph.aget_state("t")).values == result
    other = await graph.ainvoke({"messages": [lc.HumanMessage("hi")]}, "another")
    assert other["messages"][0].content == "you said hi" and ids(other["messages"]) != ids(result["messages"])


@needs_langchain
def test_all_that_comes_in_can_be_made_its_messages() -> None:
    """Strings, pairs and dicts become messages, as LangGraph's users expect; the inputs are neither changed nor
    shared."""
    given: Any = {"role": "user", "content": [{"type": "text", "text": "b", "tags": []}]}
    made = langchain.add_messages([], ["a", given, ("ai", "c"), lc.AIMessageChunk("d"), lc.SystemMessage("e", id="5")])
    assert [type(m) for m in made] == [
        lc.HumanMessage,
        lc.HumanMessage,
        lc.AIMessage,
        lc.AIMessage,
        lc.SystemMessage,
    ]
    assert made[1].content == given["content"] and made[1].content is not given["content"]
    assert made[1].content[0]["tags"] is not given["content"][0]["tags"]
    assert len(set(ids(made))) == 5 and None not in ids(made)
    assert langchain.add_messages(made, RemoveMessage("5")) == made[:4]
    assert langchain.add_messages(made, [RemoveMessage(REMOVE_ALL_MESSAGES), "z"])[0].content == "z"
    assert [type(m) for m in langchain.add_messages(["a"], "b")] == [lc.HumanMessage] * 2
    for wrong in ([{}], [7], [None], [("a", "b", "c")], [{"role": "nobody", "content": ""}], None):
        with pytest.raises(InvalidMessageError):
            langchain.add_messages([], wrong)


@needs_langchain
@pytest.mark.anyio
async def test_a_graph_that_makes_messages() -> None:
    """As a reducer in a graph, the function creates plain langchain-core messages from isolated arguments."""

    def answer(state: Any) -> dict[str, Any]:
        blocks = [{"type": "text", "text": state["messages"][-1].content}]
        return {"messages": [{"role": "assistant", "content": blocks}]}

    graph = (
        StateGraph(Converted)
        .add_node("answer", answer)
        .add_edge(START, "answer")
        .compile(InMemorySaver(codec=langchain.with_messages()))
    )
    result = await graph.ainvoke({"messages": ["hi"]}, "t")
    human, ai = result["messages"]
    assert (type(human), human.content) == (lc.HumanMessage, "hi")
    assert (type(ai), ai.content) == (lc.AIMessage, [{"type": "text", "text": "hi"}])
    assert (await graph.aget_state("t")).values == result


@needs_langchain
@pytest.mark.anyio
async def test_its_messages_on_every_saver(saver: BaseCheckpointSaver) -> None:
    """`compile` registers the classes that a schema names."""
    graph = (
        StateGraph(Chat).add_node("answer", lambda state: {"messages": lc.AIMessage("yes")}).add_edge(START, "answer")
    ).compile(saver)
    result = await graph.ainvoke({"messages": [lc.HumanMessage("hi")]}, "t")
    assert (await graph.aget_state("t")).values == result


@needs_langchain
@pytest.mark.anyio
async def test_a_messages_state_keeps_langchains_messages() -> None:
    """docs/from-langgraph.md: "Imports. The names are the same." A graph over `MessagesState`, with langchain-core's
    messages and a saver, needs nothing else."""

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [lc.AIMessage(f"you said {state['messages'][-1].content}")]}

    graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile(InMemorySaver())
    await graph.ainvoke({"messages": [lc.HumanMessage("hi")]}, "t")
    await graph.ainvoke({"messages": [lc.HumanMessage("bye")]}, "t")
    kept = (await graph.aget_state("t")).values["messages"]
    assert [(type(each), each.content) for each in kept] == [
        (lc.HumanMessage, "hi"),
        (lc.AIMessage, "you said hi"),
        (lc.HumanMessage, "bye"),
        (lc.AIMessage, "you said bye"),
    ]


@needs_langchain
@pytest.mark.anyio
async def test_a_messages_state_that_converts() -> None:
    """docs/from-langgraph.md: nodes of a program that is moved over read `.content`, whatever callers pass; a subclass has
    more keys, and all of it is stored without a codec of the program's own."""

    class Shop(langchain.MessagesState, total=False):
        cart: list[str]

    def answer(state: Any) -> dict[str, Any]:
        return {"messages": [("ai", state["messages"][-1].content.upper())], "cart": ["tea"]}

    graph = StateGraph(Shop).add_node("answer", answer).add_edge(START, "answer").compile(InMemorySaver())
    await graph.ainvoke({"messages": [("user", "hi")]}, "t")
    await graph.ainvoke({"messages": {"role": "user", "content": "bye"}}, "t")
    values = (await graph.aget_state("t")).values
    kept = [(type(each), each.content) for each in values["messages"]]
    assert kept == [(lc.HumanMessage, "hi"), (lc.AIMessage, "HI"), (lc.HumanMessage, "bye"), (lc.AIMessage, "BYE")]
    assert values["cart"] == ["tea"]
