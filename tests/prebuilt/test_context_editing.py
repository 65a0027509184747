"""`ContextEditingMiddleware`: the model gets a long conversation without old tool results."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from checkpoint_savers import BaseCheckpointSaver
from pregel_async.errors import GraphValidationError
from pregel_async.prebuilt import (
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    InvalidModelError,
    ModelRetryMiddleware,
    create_agent,
)
from tests.prebuilt.calls import asking, call, contents
from tests.prebuilt.scripted import Script

pytestmark = pytest.mark.anyio


def by_words(messages: Any) -> int:
    return sum(len(str(message["content"]).split()) for message in messages)


def chat(*texts: str) -> list[Any]:
    """A conversation with a tool result for each text."""
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    for at, text in enumerate(texts):
        messages += [
            asking(call("find" if at % 2 else "look", str(at), q=text)),
            {"role": "tool", "tool_call_id": str(at), "content": text, "artifact": "large"},
        ]
    return messages


def edited(edit: ClearToolUsesEdit, messages: list[Any]) -> list[Any]:
    copied = list(messages)
    edit.apply(copied, count_tokens=by_words)
    return [message["content"] for message in copied if message["role"] == "tool"]


async def test_the_model_gets_less_and_the_state_keeps_all(saver: BaseCheckpointSaver) -> None:
    """Results are cleared in each call of the model, also in a later process."""

    async def find(q: str) -> str:
        return f"a long result about {q}"

    answers = [*(asking(call("find", str(at), q="abcd"[at])) for at in range(4)), "done"]
    model = Script(*answers)
    middleware = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=10, keep=1)], token_counter=by_words)
    agent = create_agent(model, [find], middleware=[middleware], checkpointer=saver)
    done = await agent.ainvoke({"messages": ["hi"]}, "t")
    results = [f"a long result about {name}" for name in "abcd"]
    assert [message["content"] for message in done["messages"] if message["role"] == "tool"] == results
    seen = [[message["content"] for message in messages if message["role"] == "tool"] for messages in model.seen]
    assert seen[2:] == [["[cleared]", results[1]], ["[cleared]"] * 2 + results[2:3], ["[cleared]"] * 3 + results[3:]]
    again = create_agent(model, [find], middleware=[middleware], checkpointer=saver)
    await again.ainvoke({"messages": ["more"]}, "t")
    assert contents({"messages": model.seen[-1]}).count("[cleared]") == 3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"trigger": 13}, ["1 2 3", "4 5 6", "7 8 9", "10 11 12"]),
        ({}, ["[cleared]", "4 5 6", "7 8 9", "10 11 12"]),
        ({"keep": 0}, ["[cleared]"] * 4),
        ({"keep": 9}, ["1 2 3", "4 5 6", "7 8 9", "10 11 12"]),
        ({"keep": 1, "clear_at_least": 3}, ["[cleared]", "[cleared]", "7 8 9", "10 11 12"]),
        ({"keep": 0, "exclude_tools": ["look"]}, ["1 2 3", "[cleared]", "7 8 9", "[cleared]"]),
        ({"keep": 2, "placeholder": "gone"}, ["gone", "gone", "7 8 9", "10 11 12"]),
    ],
    ids=str,
)
def test_what_is_cleared(options: Any, expected: list[str]) -> None:
    messages = chat("1 2 3", "4 5 6", "7 8 9", "10 11 12")
    assert edited(ClearToolUsesEdit(**{"trigger": 12, **options}), messages) == expected


def test_calls_and_artifacts() -> None:
    """Inputs are cleared where asked; in both forms of calls. What is cleared is a copy."""
    messages = chat("1 2", "3 4")
    function = {"id": "1", "type": "function", "function": {"name": "find", "arguments": '{"q": "3 4"}'}}
    messages[3] = {"role": "assistant", "content": "", "tool_calls": [function, call("look", "9", q="x")]}
    copied = list(messages)
    ClearToolUsesEdit(trigger=0, keep=0, clear_tool_inputs=True).apply(copied, count_tokens=by_words)
    assert copied[1]["tool_calls"][0]["args"] == {}
    assert copied[3]["tool_calls"] == [
        {"id": "1", "type": "function", "function": {"name": "find", "arguments": "{}"}},
        call("look", "9", q="x"),
    ]
    assert "artifact" not in copied[2]
    assert messages[1]["tool_calls"][0]["args"] == {"q": "1 2"}
    assert messages[2] == {"role": "tool", "tool_call_id": "0", "content": "1 2", "artifact": "large"}


def test_results_without_a_call_stay() -> None:
    messages = [{"role": "tool", "tool_call_id": "9", "content": "1 2"}]
    assert edited(ClearToolUsesEdit(trigger=0, keep=0), messages) == ["1 2"]


class Shout:
    def apply(self, messages: list[Any], *, count_tokens: Any) -> None:
        for message in messages:
            message["content"] = f"{message['content']} {count_tokens(messages)}!"


class Drop:
    def apply(self, messages: list[Any], *, count_tokens: Any) -> None:
        del messages[0]


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("edit", "expected"),
    [(Shout(), ["hi 10!", "more 11!"]), (Drop(), ["more"]), (ClearToolUsesEdit(), ["hi", "more"])],
    ids=["changes", "removes", "own"],
)
async def test_a_call_that_is_repeated_is_edited_once(edit: Any, expected: list[str]) -> None:
    """A wrapper outside calls again with the messages as they were."""
    seen: list[Any] = []

    async def model(messages: list[Any], tools: list[Any]) -> Any:
        seen.append(contents({"messages": messages}))
        if len(seen) < 3:
            raise ConnectionError("no line")
        return "done"

    retry = ModelRetryMiddleware(initial_delay=0)
    agent = create_agent(model, middleware=[retry, ContextEditingMiddleware(edits=[edit])])
    done = await agent.ainvoke({"messages": ["hi", "more"]})
    assert seen == [expected] * 3
    assert contents(done) == ["hi", "more", "done"]


@pytest.mark.one_loop
async def test_edits_of_users() -> None:
    """An edit may change messages: they are copies."""
    model = Script("done")
    done = await create_agent(model, middleware=[ContextEditingMiddleware(edits=[Shout()])]).ainvoke(
        {"messages": ["hi"]}
    )
    assert contents(done) == ["hi", "done"]
    assert contents({"messages": model.seen[0]}) == ["hi 5!"]
    for wrong in ({"edits": [3]}, {"token_count_method": "exact"}):
        with pytest.raises(GraphValidationError):
            ContextEditingMiddleware(**wrong)
    with pytest.raises(GraphValidationError, match="keep of ClearToolUsesEdit"):
        ClearToolUsesEdit(keep=-1)


class Counting(Script):
    """A model that counts each message, the system message and the tools as one token."""

    def get_num_tokens_from_messages(self, messages: list[Any], tools: Any = None) -> int:
        return len(messages) + len(tools or ())


@pytest.mark.one_loop
async def test_the_model_counts() -> None:
    async def look(q: str) -> str:
        return q

    given = {"messages": chat("1 2")}
    for trigger, shown in ((4, "[cleared]"), (5, "1 2")):
        middleware = ContextEditingMiddleware(
            edits=[ClearToolUsesEdit(trigger=trigger, keep=0)], token_count_method="model"
        )
        model = Counting("done")
        seen: list[Any] = []

        class Own:
            name, follows_schemas = "own", False
            get_num_tokens_from_messages = model.get_num_tokens_from_messages

            async def answer(self, call: Any) -> Any:
                seen.extend(call.messages)
                return {"role": "assistant", "content": "done"}

        await create_agent(Own(), [look], system_prompt="s", middleware=[middleware]).ainvoke(given)
        assert seen[-1]["content"] == shown
    with pytest.raises(InvalidModelError, match="token_counter"):
        await create_agent(Script("done"), middleware=[middleware]).ainvoke(given)


@pytest.mark.one_loop
@pytest.mark.skipif(importlib.util.find_spec("langchain_core") is None, reason="needs langchain-core")
async def test_messages_of_langchain() -> None:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

    class Model(BaseChatModel):
        seen: list[Any] = []

        @property
        def _llm_type(self) -> str:
            return "scripted"

        def get_num_tokens_from_messages(self, messages: Any, tools: Any = None) -> int:
            return len(messages)

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            self.seen.append(messages)
            return ChatResult(generations=[ChatGeneration(message=AIMessage("done"))])

    calls: Any = [call("find", "1", q="a")]
    messages = [HumanMessage("hi"), AIMessage("", tool_calls=calls), ToolMessage("r", tool_call_id="1", artifact=3)]
    middleware = ContextEditingMiddleware(
        edits=[ClearToolUsesEdit(trigger=2, keep=0, clear_tool_inputs=True)], token_count_method="model"
    )
    model = Model()
    done = await create_agent(model, middleware=[middleware]).ainvoke({"messages": messages})
    _, asked, result = model.seen[0]
    assert (result.content, result.artifact, asked.tool_calls[0]["args"]) == ("[cleared]", None, {})
    assert result.response_metadata["context_editing"]["cleared"] is True
    assert done["messages"][2].content == "r"
