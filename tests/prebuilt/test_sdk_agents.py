"""Agents on the real SDKs of OpenAI, Anthropic and langchain, which talk to a local server by HTTP."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal
from typing import Any

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async.prebuilt import (
    ModelRetryMiddleware,
    Price,
    anthropic_messages,
    create_agent,
    create_react_agent,
    openai_chat,
    openai_responses,
)
from tests.prebuilt.provider_server import ANSWER, CACHED, INPUT, OUTPUT, ProviderServer, serve_provider
from tests.prebuilt.recording import ModelCalls

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop,
    # A stream that breaks leaves generators inside of the SDK and of its HTTP client to the garbage collector.
    pytest.mark.filterwarnings("ignore:Async generator .*:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"),
]

HI = {"messages": [{"role": "user", "content": "How is the weather in Oslo?"}]}
PRICES = {"gpt-x-2026": Price(1, 10, cache_read=0.5), "claude-x": Price(1, 10, cache_read=0.5)}
COST = (Decimal(INPUT - CACHED) + Decimal(CACHED) / 2 + 10 * Decimal(OUTPUT)) / 1_000_000


async def weather(city: str) -> str:
    """Look up the weather."""
    return f"{city} is sunny"


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with serve_provider() as made:
        yield made


def _needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(
        bool(missing), reason=f"{', '.join(missing)} not installed here: nox -s adapters installs the SDKs"
    )


KINDS: list[Any] = [
    pytest.param("openai_chat", marks=_needs("openai")),
    pytest.param("openai_chat sync", marks=_needs("openai")),
    pytest.param("openai_responses", marks=_needs("openai")),
    pytest.param("anthropic", marks=_needs("anthropic")),
    pytest.param("anthropic sync", marks=_needs("anthropic")),
    pytest.param("langchain openai", marks=_needs("langchain_openai")),
    pytest.param("langchain responses", marks=_needs("langchain_openai")),
    pytest.param("langchain anthropic", marks=_needs("langchain_anthropic")),
]


@asynccontextmanager
async def model_of(kind: str, url: str) -> AsyncIterator[Any]:
    """Make a model of a kind whose client talks to the server."""
    async with AsyncExitStack() as stack:
        if kind.startswith("openai"):
            import openai

            given: dict[str, Any] = {"api_key": "k", "base_url": f"{url}/v1", "max_retries": 0}
            client: Any
            if kind.endswith("sync"):
                client = stack.enter_context(openai.OpenAI(**given))
            else:
                client = await stack.enter_async_context(openai.AsyncOpenAI(**given))
            yield (openai_responses if "responses" in kind else openai_chat)(client, "gpt-x")
        elif kind.startswith("anthropic"):
            import anthropic

            given = {"api_key": "k", "base_url": url, "max_retries": 0}
            if kind.endswith("sync"):
                client = stack.enter_context(anthropic.Anthropic(**given))
            else:
                client = await stack.enter_async_context(anthropic.AsyncAnthropic(**given))
            yield anthropic_messages(client, "claude-x")
        elif kind == "langchain anthropic":
            from langchain_anthropic import ChatAnthropic

            yield ChatAnthropic(model="claude-x", api_key="k", base_url=url, max_retries=0)
        else:
            from langchain_openai import ChatOpenAI

            uses_responses = kind.endswith("responses")
            yield ChatOpenAI(
                model="gpt-x", api_key="k", base_url=f"{url}/v1", max_retries=0, use_responses_api=uses_responses
            )


def content_of(message: Any) -> Any:
    """The text of a message of any kind."""
    content = message["content"] if isinstance(message, dict) else message.content
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


@pytest.mark.parametrize("make", [create_agent, create_react_agent])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_turn_with_a_tool(kind: str, make: Any, server: ProviderServer) -> None:
    """The tool is called, its result is sent back in the provider's form, the answer is streamed, and tokens are counted."""
    calls, shown = ModelCalls(), list[str]()
    async with model_of(kind, server.url) as model:
        agent = make(model, [weather], prices=PRICES, checkpointer=InMemorySaver())
        async for chunk, _ in agent.astream(HI, "t", stream_mode="messages", observer=calls):
            if (chunk.get("type") if isinstance(chunk, dict) else chunk.type) == "AIMessageChunk":
                shown.append(content_of(chunk))
    state = await agent.aget_state("t")
    assert [content_of(message) for message in state.values["messages"]] == [
        HI["messages"][0]["content"],
        "",
        "Oslo is sunny",
        ANSWER,
    ]
    assert "".join(shown) == ANSWER and len([piece for piece in shown if piece]) > 1
    (path, first), (_, second) = server.requests
    name = first["tools"][0].get("name") or first["tools"][0]["function"]["name"]
    assert (name, first["model"]) == ("weather", "claude-x" if path == "/messages" else "gpt-x")
    assert "Oslo is sunny" in str(second)
    assert [(each.input_tokens, each.output_tokens, each.cache_read_tokens) for each in calls.seen] == [
        (INPUT, OUTPUT, CACHED)
    ] * 2
    assert {each.response_model for each in calls.seen} == {f"{first['model']}-2026"}
    assert {each.provider for each in calls.seen} == {"anthropic" if path == "/messages" else "openai"}
    assert state.spent == {"input_tokens": 2 * INPUT, "output_tokens": 2 * OUTPUT, "cost_usd": 2 * COST}


@pytest.mark.parametrize("kind", KINDS)
async def test_without_a_reader(kind: str, server: ProviderServer) -> None:
    """Without a reader, langchain's models do not stream; the counts are the same."""
    calls = ModelCalls()
    async with model_of(kind, server.url) as model:
        done = await create_agent(model, [weather], prices=PRICES).ainvoke(HI, observer=calls)
    assert content_of(done["messages"][-1]) == ANSWER
    assert [(each.input_tokens, each.output_tokens, each.cost_usd) for each in calls.seen] == [
        (INPUT, OUTPUT, COST)
    ] * 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("failure", ["error", "break"])
async def test_a_failed_call_is_retried(kind: str, failure: Any, server: ProviderServer) -> None:
    """An error of the server, and a stream that breaks: the SDK's error repeats the call."""
    calls = ModelCalls()
    async with model_of(kind, server.url) as model:
        again = ModelRetryMiddleware(max_retries=1, initial_delay=0, jitter=False)
        agent = create_agent(model, [weather], middleware=[again], checkpointer=InMemorySaver())
        server.next = failure
        async for _ in agent.astream(HI, "t", stream_mode="messages", observer=calls):
            pass
    assert content_of((await agent.aget_state("t")).values["messages"][-1]) == ANSWER
    broken, *others = calls.seen
    assert broken.error is not None and [each.error for each in others] == [None, None]
    # Of the streams that broke, those of Anthropic begin with the tokens of the input; langchain waits for the end.
    reports = failure == "break" and kind.startswith("anthropic")
    assert broken.input_tokens == (INPUT if reports else None)
    if not kind.startswith("langchain"):  # whose models name their provider in the answer alone
        assert broken.provider == ("anthropic" if kind.startswith("anthropic") else "openai")
