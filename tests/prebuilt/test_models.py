"""Any model: functions, and clients of OpenAI's and Anthropic's SDKs."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pregel_async import START, MessagesState, StateGraph
from pregel_async.prebuilt import (
    ChatModel,
    InvalidModelError,
    ModelCall,
    anthropic_messages,
    as_model,
    as_tool,
    openai_chat,
    openai_responses,
)

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


def find(q: str) -> str:
    """Find."""
    return q


TOOL = as_tool(find)
COMPLETION = {"id": "chatcmpl-1", "choices": [{"index": 0, "message": {"role": "assistant", "content": "well"}}]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}


async def answered(model: ChatModel, call: ModelCall) -> tuple[Any, str]:
    """Call a model in a node. Return its message, and the text that its chunks add up to."""

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.answer(call)]}

    graph = StateGraph(MessagesState).add_node(ask).add_edge(START, "ask").compile()
    shown, done = "", None
    async for mode, chunk in graph.astream({"messages": []}, stream_mode=["messages", "values"]):
        if mode == "messages":
            shown += chunk[0]["content"]
        else:
            done = chunk
    assert done is not None
    return done["messages"][-1], shown


async def test_functions() -> None:
    """A function of messages and tools; it may name the options that it wants."""
    seen: list[Any] = []

    async def plain(messages: list[Any], tools: list[Any]) -> Any:
        seen.append((messages, tools))
        return "hi"

    async def full(messages: list[Any], tools: list[Any], *, tool_choice: Any, response_schema: Any) -> Any:
        seen.append((tool_choice, response_schema))
        return {"role": "assistant", "content": "", "tool_calls": []}

    def sync(messages: list[Any], tools: list[Any], **options: Any) -> Any:
        seen.append(sorted(options))
        return COMPLETION

    async def tokens(messages: list[Any], tools: list[Any]) -> AsyncIterator[str]:
        for token in ("a", "b"):
            yield token

    call = ModelCall(messages=["hello"], tools=[TOOL, {"type": "web_search"}], tool_choice="any")
    assert await as_model(plain).answer(call) == {"role": "assistant", "content": "hi"}
    assert seen.pop() == (["hello"], [TOOL.definition(), {"type": "web_search"}])
    assert (await as_model(full).answer(call))["content"] == ""
    assert seen.pop() == ("any", None)
    assert [model.follows_schemas for model in map(as_model, (plain, full))] == [False, True]
    assert (await as_model(sync).answer(call))["id"] == "chatcmpl-1"
    assert seen.pop() == ["config", "parallel_tool_calls", "response_schema", "settings", "tool_choice"]
    assert (await answered(as_model(tokens), call))[1] == "ab"


def one(messages: list[Any]) -> str:
    return ""


def more(messages: list[Any], tools: list[Any], third: int) -> str:
    return ""


CHAT_CLIENT = SimpleNamespace(chat=SimpleNamespace(completions=object()))
MESSAGES_CLIENT = SimpleNamespace(messages=SimpleNamespace(create=object()))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (one, "takes \\(messages, tools\\)"),
        (more, "takes \\(messages, tools\\)"),
        (3, "a model is a chat model"),
        ("gpt-5", "name the provider"),
        (CHAT_CLIENT, "pass openai_chat\\(client"),
        (MESSAGES_CLIENT, "pass anthropic_messages\\(client"),
    ],
)
def test_what_cannot_be_a_model(given: Any, why: str) -> None:
    """It is refused when the agent is made."""
    with pytest.raises(InvalidModelError, match=why):
        as_model(given)


async def test_a_function_that_returns_no_message() -> None:
    with pytest.raises(InvalidModelError, match="it returned int"):
        await as_model(lambda messages, tools: 3).answer(ModelCall(messages=[]))


CHAT_CHUNKS = [
    {"id": "m1", "model": "m", "choices": [{"index": 0, "delta": {"content": "he"}}]},
    {"id": "m1", "model": "m", "choices": [{"index": 0, "delta": {"content": "y"}, "finish_reason": "stop"}]},
    {"id": "m1", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}},
]
RESPONSE_EVENTS = [
    {"type": "response.created", "response": {"id": "m1", "model": "m"}},
    {"type": "response.output_text.delta", "delta": "hey", "output_index": 0},
    {
        "type": "response.completed",
        "response": {"status": "completed", "usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}},
    },
]
ANTHROPIC_EVENTS = [
    {"type": "message_start", "message": {"id": "m1", "model": "m", "usage": {"input_tokens": 1, "output_tokens": 0}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hey"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
]


class Client:
    """Stands for a client of either SDK; records the arguments of each call and the thread that made it."""

    def __init__(self, events: list[dict[str, Any]], *, is_async: bool) -> None:
        self.given: list[dict[str, Any]] = []
        self.threads: set[int] = set()

        async def create(**given: Any) -> AsyncIterator[Any]:
            self.given.append(given)

            async def stream() -> AsyncIterator[Any]:
                for event in events:
                    yield event

            return stream()

        def create_sync(**given: Any) -> Iterator[Any]:
            self.given.append(given)
            self.threads.add(threading.get_ident())
            return iter(events)

        end = SimpleNamespace(create=create if is_async else create_sync)
        self.responses = self.messages = end
        self.chat = SimpleNamespace(completions=end)


PROVIDERS: list[Any] = [
    pytest.param(openai_chat, CHAT_CHUNKS, id="chat"),
    pytest.param(openai_responses, RESPONSE_EVENTS, id="responses"),
    pytest.param(anthropic_messages, ANTHROPIC_EVENTS, id="anthropic"),
]


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(("make", "events"), PROVIDERS)
async def test_clients(make: Callable[..., ChatModel], events: list[dict[str, Any]], is_async: bool) -> None:
    """Tokens are streamed, and the message has its usage. A plain client is called in a worker thread."""
    client = Client(events, is_async=is_async)
    model = make(client, "big", temperature=1)
    call = ModelCall(messages=[{"role": "system", "content": "s"}, "hi"], tools=[TOOL], settings={"temperature": 0})
    message, shown = await answered(model, call)
    assert (message["id"], message["content"], shown) == ("m1", "hey", "hey")
    assert message["usage"] == {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    (given,) = client.given
    assert (given["model"], given["temperature"], given["stream"]) == ("big", 0, True)
    assert threading.get_ident() not in client.threads
    assert isinstance(as_model(model), ChatModel)


async def test_the_forms_of_tools_and_options() -> None:
    """Each provider gets tools, the choice of a tool and a schema in its own form."""
    definition = TOOL.definition()
    call = ModelCall(messages=["hi"], tools=[TOOL, {"type": "own"}], tool_choice="find", response_schema=SCHEMA)
    chat, responses, anthropic = (Client(events.values[1], is_async=True) for events in PROVIDERS)
    await answered(openai_chat(chat, "m"), call)
    await answered(openai_responses(responses, "m"), call)
    await answered(anthropic_messages(anthropic, "m"), ModelCall(messages=["hi"], tools=[TOOL], tool_choice="find"))
    given = chat.given[0]
    assert given["tools"] == [{"type": "function", "function": definition}, {"type": "own"}]
    assert given["tool_choice"] == {"type": "function", "function": {"name": "find"}}
    assert given["response_format"]["json_schema"] == {"name": "response", "schema": SCHEMA, "strict": True}
    assert given["stream_options"] == {"include_usage": True}
    given = responses.given[0]
    assert given["tools"] == [{"type": "function", **definition, "strict": False}, {"type": "own"}]
    assert given["tool_choice"] == {"type": "function", "name": "find"}
    assert given["text"] == {"format": {"type": "json_schema", "name": "response", "schema": SCHEMA, "strict": True}}
    given = anthropic.given[0]
    assert given["tools"] == [{"name": "find", "description": "Find.", "input_schema": TOOL.args_schema}]
    assert given["tool_choice"] == {"type": "tool", "name": "find"}
    assert given["max_tokens"] == 4096


@pytest.mark.parametrize(
    ("choice", "of_openai", "of_anthropic"),
    [("any", "required", {"type": "any"}), ("auto", "auto", {"type": "auto"}), ({"x": 1}, {"x": 1}, {"x": 1})],
)
async def test_choices_of_tools(choice: Any, of_openai: Any, of_anthropic: Any) -> None:
    chat, anthropic = Client(CHAT_CHUNKS, is_async=True), Client(ANTHROPIC_EVENTS, is_async=True)
    call = ModelCall(messages=["hi"], tools=[TOOL], tool_choice=choice)
    await answered(openai_chat(chat, "m"), call)
    await answered(anthropic_messages(anthropic, "m"), call)
    assert chat.given[0]["tool_choice"] == of_openai
    assert anthropic.given[0]["tool_choice"] == of_anthropic


@pytest.mark.parametrize("parallel", [True, False])
async def test_calls_at_once(parallel: bool) -> None:
    """Each provider gets the setting in its own form, and only with tools: without, providers refuse it."""
    chat, responses, anthropic = (Client(events.values[1], is_async=True) for events in PROVIDERS)
    for tools, choice in (([TOOL], None), ([], None), ([TOOL], "none")):
        call = ModelCall(messages=["hi"], tools=tools, tool_choice=choice, parallel_tool_calls=parallel)
        for model in (openai_chat(chat, "m"), openai_responses(responses, "m"), anthropic_messages(anthropic, "m")):
            await answered(model, call)
    for client in (chat, responses):
        assert [given.get("parallel_tool_calls") for given in client.given] == [parallel, None, parallel]
    auto = {"type": "auto", "disable_parallel_tool_use": not parallel}
    assert [given.get("tool_choice") for given in anthropic.given] == [auto, None, {"type": "none"}]


async def test_a_schema_that_cannot_be_enforced_is_not_strict() -> None:
    client = Client(CHAT_CHUNKS, is_async=True)
    await answered(openai_chat(client, "m"), ModelCall(messages=["hi"], response_schema={**SCHEMA, "required": []}))
    assert client.given[0]["response_format"]["json_schema"]["strict"] is False


needs_sdks = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("openai", "anthropic")),
    reason="openai and anthropic are not installed here: nox -s adapters installs them",
)


@needs_sdks
def test_the_methods_of_the_real_sdks_are_recognised() -> None:
    """The SDKs wrap their coroutine functions in plain ones: calls of async clients must not go to a thread."""
    import anthropic
    import openai

    for make, client, is_async in (
        (openai_chat, openai.AsyncOpenAI(api_key="k"), True),
        (openai_chat, openai.OpenAI(api_key="k"), False),
        (openai_responses, openai.AsyncOpenAI(api_key="k"), True),
        (anthropic_messages, anthropic.AsyncAnthropic(api_key="k"), True),
        (anthropic_messages, anthropic.Anthropic(api_key="k"), False),
    ):
        assert vars(make(client, "m"))["_is_async"] is is_async


@needs_sdks
def test_a_model_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert [as_model(name).name for name in ("openai:gpt-5", "anthropic:claude")] == ["gpt-5", "claude"]
