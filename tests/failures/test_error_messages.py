"""Error messages that name the code at fault and the remedy."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, Command, MessagesState, Send, StateGraph
from pregel_async.errors import ConcurrentUpdateError
from pregel_async.types import StateUpdate

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    x: int
    y: int


def write(_: Any) -> Any:
    return {"x": 1}


async def test_several_writes_name_their_writers() -> None:
    """ "written 2 times in one superstep" names the writers, in plan order; P9: and the remedy."""
    builder = StateGraph(State).add_node("b", write).add_node("a", write).add_node("c", lambda _: {"y": 1})
    for name in "abc":
        builder.add_edge(START, name)
    with pytest.raises(ConcurrentUpdateError, match=r"'x' was written 2 times .* by 'a' and 'b' and keeps") as caught:
        await builder.compile().ainvoke({"x": 0})
    assert (caught.value.channel, caught.value.count) == ("x", 2)
    assert caught.value.writers == {"'a'": 1, "'b'": 1}
    assert "Annotated[" in str(caught.value) and "on writes of 'a', 'b'" in caught.value.__notes__[0]


async def test_sends_and_lists_of_commands_are_counted() -> None:
    """One node may write several times: as several tasks, and by several commands."""
    builder = StateGraph(State).add_node("work", write)
    builder.add_node("many", lambda _: [Command(update={"x": 1}), Command(update={"x": 2})])
    builder.add_conditional_edges(START, lambda _: [Send("work", {}), Send("work", {}), "many"])
    with pytest.raises(ConcurrentUpdateError, match=r"4 times .* by 'many' \(2 times\) and 'work' \(2 times\) and"):
        await builder.compile().ainvoke({"x": 0})


async def test_many_writers_are_not_all_named() -> None:
    """A message stays readable by naming some writers; the attribute has all of them."""
    builder = StateGraph(State)
    for place in range(10, 30):
        builder.add_node(f"n{place}", write).add_edge(START, f"n{place}")
    with pytest.raises(ConcurrentUpdateError, match=r"'n10', .*'n17' and 12 more and keeps") as caught:
        await builder.compile().ainvoke({"x": 0})
    assert len(caught.value.writers) == 20


async def test_the_input_and_edits_are_named() -> None:
    """Values that no node has written are named as the input; edits are made as nodes."""
    graph = StateGraph(State).add_node("a", write).add_node("b", write).add_edge(START, "a").compile(InMemorySaver())
    with pytest.raises(ConcurrentUpdateError, match="by the input"):
        await graph.ainvoke(Command(update=[("y", 1), ("y", 2)], goto="a"), "t")
    with pytest.raises(ConcurrentUpdateError, match="by 'a' and 'b'"):
        await graph.abulk_update_state("t", [[StateUpdate({"x": 1}, "a"), StateUpdate({"x": 2}, "b")]])


async def test_an_attribute_of_a_message_that_is_a_dict() -> None:
    """`.content` of a dict message names the remedy. It is an AttributeError, as for any other object."""
    seen: list[Any] = []

    def look(state: MessagesState) -> Any:
        message = state["messages"][0]
        with pytest.raises(
            AttributeError, match=r"message\['content'\].*pregel_async.langchain.add_messages"
        ) as caught:
            _ = message.content
        seen.append((caught.value.name, hasattr(message, "tool_calls"), getattr(message, "text", None)))
        return {}

    graph = StateGraph(MessagesState).add_node("look", look).add_edge(START, "look").compile()
    result = await graph.ainvoke({"messages": [("user", "hi")]})
    assert seen == [("content", False, None)]
    with pytest.raises(AttributeError, match="no attribute 'content'$"):
        _ = result.content
    with pytest.raises(AttributeError, match="'content'.*write message"):
        _ = result["messages"][0].content


async def test_an_attribute_of_a_message_of_an_iterated_list() -> None:
    """The messages of an iterated list are plain dicts: there a note of the run's error names the remedy."""

    def look(state: MessagesState) -> Any:
        return {"messages": [message.content for message in state["messages"]]}

    def other(state: MessagesState) -> Any:
        untyped: Any = {"name": 1}
        return untyped.content

    for node, noted in ((look, True), (other, False)):
        graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
        with pytest.raises(AttributeError, match="no attribute 'content'") as raised:
            await graph.ainvoke({"messages": [("user", "hi")]})
        notes = "\n".join(raised.value.__notes__)
        assert ("write message['content']" in notes and "pregel_async.langchain.add_messages" in notes) is noted
