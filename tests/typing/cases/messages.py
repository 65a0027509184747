"""How type checkers see lists of messages. Read by mypy and pyright, and never run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, TypedDict, assert_type

from pregel_async import START, StateGraph
from pregel_async.messages import (
    REMOVE_ALL_MESSAGES,
    MessageNotFoundError,
    MessagesState,
    RemoveMessage,
    add_messages,
)


class Chat(MessagesState, total=False):
    topic: str


@dataclasses.dataclass
class Message:
    text: str
    role: str = "user"
    id: str | None = None


class Own(TypedDict):
    messages: Annotated[list[Message], add_messages]
    others: Annotated[list[Message], add_messages(format=None)]


def answer(state: Chat) -> dict[str, Any]:
    assert_type(state["messages"], list[Any])
    state["message"]  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues]  # wrong on purpose
    return {"messages": [("assistant", state.get("topic", ""))]}


def own(state: Own) -> dict[str, Any]:
    assert_type(state["messages"], list[Message])
    return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES)]}


StateGraph(Chat).add_node("answer", answer).add_edge(START, "answer")
StateGraph(Own).add_node("own", own).add_edge(START, "own")
chat: Chat = {"messages": [{"role": "user", "content": "hi"}]}
wrong: Chat = {"topic": "no messages"}  # type: ignore[typeddict-item]  # pyright: ignore[reportAssignmentType]  # wrong on purpose

assert_type(add_messages([], "hi"), list[Any])
assert_type(add_messages(), Callable[[Any, Any], list[Any]])
assert_type(RemoveMessage("1"), dict[str, Any])
assert_type(MessageNotFoundError("1").id, object)
add_messages([])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # wrong on purpose
add_messages(format="langchain-openai")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
RemoveMessage()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # wrong on purpose
