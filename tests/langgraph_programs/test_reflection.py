"""A writer and its critic take turns, and each sees the other's messages as those of a user."""

from __future__ import annotations

from typing import Any

import pytest

from tests.langgraph_programs.libraries import ScriptedModel, role_of, said, text_of

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


def build(library: Any) -> Any:
    writer = ScriptedModel({"bolder": "an essay with courage", "shorter": "an essay", "owls": "a long essay on owls"})
    critic = ScriptedModel({"a long essay": "make it shorter", "an essay": "make it bolder"})

    async def generation_node(state: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [{"role": "assistant", "content": await writer.ainvoke(text_of(state["messages"][-1]))}]}

    async def reflection_node(state: dict[str, Any]) -> dict[str, Any]:
        swapped = {"assistant": "user", "user": "assistant"}
        first, *others = state["messages"]
        translated = [first] + [{"role": swapped[role_of(each)], "content": text_of(each)} for each in others]
        answer = await critic.ainvoke(text_of(translated[-1]))
        # The writer takes the criticism for the wish of a user.
        return {"messages": [{"role": "user", "content": answer}]}

    def should_continue(state: dict[str, Any]) -> str:
        return library.END if len(state["messages"]) > 5 else "reflect"

    builder = library.StateGraph(library.MessagesState)
    builder.add_node("generate", generation_node)
    builder.add_node("reflect", reflection_node)
    builder.add_edge(library.START, "generate")
    builder.add_conditional_edges("generate", should_continue)
    builder.add_edge("reflect", "generate")
    return builder.compile(checkpointer=library.InMemorySaver())


CONVERSATION = [
    ("user", "write on owls"),
    ("assistant", "a long essay on owls"),
    ("user", "make it shorter"),
    ("assistant", "an essay"),
    ("user", "make it bolder"),
    ("assistant", "an essay with courage"),
]


async def test_the_conversation_ends_after_enough_turns(library: Any) -> None:
    """Messages are appended in turn, and each gets an id of its own."""
    graph, config = build(library), {"configurable": {"thread_id": "1"}}
    result = await graph.ainvoke({"messages": [{"role": "user", "content": "write on owls"}]}, config)
    assert said(result["messages"]) == CONVERSATION
    state = await graph.aget_state(config)
    assert said(state.values["messages"]) == CONVERSATION
    ids = [each["id"] if isinstance(each, dict) else each.id for each in state.values["messages"]]
    assert len(set(ids)) == 6 and None not in ids


async def test_events_show_one_message_each(library: Any) -> None:
    """A node's chunk has the messages that the node returned, and not the whole list."""
    graph, config = build(library), {"configurable": {"thread_id": "1"}}
    begun = {"messages": [{"role": "user", "content": "write on owls"}]}
    events = [event async for event in graph.astream(begun, config)]
    assert [list(event) for event in events] == [["generate"], ["reflect"], ["generate"], ["reflect"], ["generate"]]
    shown = [said(update["messages"])[0] for event in events for update in event.values()]
    assert shown == CONVERSATION[1:]
