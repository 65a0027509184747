"""Anthropic's SDK reads bytes as its servers send them, and `stream_message` reads the SDK's stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.adapters.fakes import EnoughError, FakeWriter, events, joined, server, wire

anthropic = pytest.importorskip("anthropic", reason="Anthropic's SDK is not installed here")
http = pytest.importorskip("httpx2", reason="this Anthropic SDK is older than the one that these tests are for")

from pregel_async.adapters import StreamFailedError, stream_message, stream_message_sync  # noqa: E402  # after the skip

pytestmark = [
    pytest.mark.anyio,
    # A stream that is left early leaves generators inside of the SDK and of httpx to the garbage collector, where trio
    # complains. The connection is closed by then, as the tests see.
    pytest.mark.filterwarnings("ignore:Async generator '(anthropic|httpx2|fakes):ResourceWarning"),
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <async_generator object:pytest.PytestUnraisableExceptionWarning"
    ),
]


def message_start(**usage: Any) -> dict[str, Any]:
    return {
        "type": "message_start",
        "message": {
            "id": "msg_01",
            "type": "message",
            "role": "assistant",
            "model": "claude-x",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 12, "output_tokens": 1, **usage},
        },
    }


def delta(index: int, kind: str, **said: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **said}}


def start(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def end(reason: str, **usage: Any) -> list[dict[str, Any]]:
    return [
        {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]


TEXT_AND_TOOL = events(
    message_start(cache_read_input_tokens=3),
    start(0, type="text", text=""),
    {"type": "ping"},
    delta(0, "text_delta", text="Hel"),
    delta(0, "text_delta", text="lo"),
    stop(0),
    start(1, type="tool_use", id="toolu_1", name="find", input={}),
    delta(1, "input_json_delta", partial_json=""),
    delta(1, "input_json_delta", partial_json='{"q": '),
    delta(1, "input_json_delta", partial_json='"é"}'),
    stop(1),
    *end("tool_use", output_tokens=20),
    named=True,
)

SAID = {
    "role": "assistant",
    "id": "msg_01",
    "content": "Hello",
    "tool_calls": [{"type": "tool_call", "id": "toolu_1", "name": "find", "args": {"q": "é"}}],
    "finish_reason": "tool_use",
    "usage": {
        "input_tokens": 15,
        "output_tokens": 20,
        "total_tokens": 35,
        "details": {"cache_read_input_tokens": 3},
    },
}

THOUGHT = events(
    message_start(),
    start(0, type="thinking", thinking="", signature=""),
    delta(0, "thinking_delta", thinking="Let me "),
    delta(0, "thinking_delta", thinking="see"),
    delta(0, "signature_delta", signature="c2ln"),
    stop(0),
    start(1, type="redacted_thinking", data="xyz"),
    stop(1),
    start(2, type="server_tool_use", id="srv_1", name="web_search", input={}),
    delta(2, "input_json_delta", partial_json='{"query": "x"}'),
    stop(2),
    start(3, type="web_search_tool_result", tool_use_id="srv_1", content=[]),
    stop(3),
    start(4, type="text", text="", citations=[]),
    delta(4, "citations_delta", citation={"type": "char_location", "cited_text": "y", "document_index": 0, "document_title": "d", "start_char_index": 0, "end_char_index": 1, "file_id": None}),
    delta(4, "text_delta", text="It is y"),
    stop(4),
    *end("end_turn", output_tokens=8),
    named=True,
)  # fmt: skip


@asynccontextmanager
async def client(body: Any) -> AsyncIterator[Any]:
    async with anthropic.AsyncAnthropic(
        api_key="k", base_url="http://there", max_retries=0, http_client=http.AsyncClient(transport=server(http, body))
    ) as made:
        yield made


def sync_client(body: Any) -> Any:
    return anthropic.Anthropic(
        api_key="k", base_url="http://there", max_retries=0, http_client=http.Client(transport=server(http, body))
    )


WAYS: list[Any] = [
    pytest.param(lambda made: made.messages.create(model="m", max_tokens=9, messages=[], stream=True), id="create"),
    pytest.param(lambda made: made.messages.stream(model="m", max_tokens=9, messages=[]), id="stream"),
]


@pytest.mark.parametrize("ask", WAYS)
async def test_text_and_a_tool(ask: Callable[[Any], Any]) -> None:
    """Each token is streamed once, from raw events and from those of the helper, which contain it twice."""
    body, written = wire(http, TEXT_AND_TOOL), FakeWriter()
    async with client(body) as made:
        message = await stream_message(ask(made), writer=written)
    assert message == SAID
    assert joined(written.chunks) == SAID
    assert written.content == "Hello"
    assert written.all_metadata == {"ls_provider": "anthropic", "ls_model_name": "claude-x", "ls_model_type": "chat"}
    assert body.closed


@pytest.mark.parametrize("ask", WAYS)
def test_text_and_a_tool_in_a_thread(ask: Callable[[Any], Any]) -> None:
    """The sync client and the sync verb stream the same message."""
    body, written = wire(http, TEXT_AND_TOOL), FakeWriter()
    with sync_client(body) as made:
        assert stream_message_sync(ask(made), writer=written) == SAID
    assert joined(written.chunks) == SAID
    assert body.closed


async def test_the_sync_client_in_async_code() -> None:
    """The sync client sends its request in a worker thread, when its context manager is entered."""
    written = FakeWriter()
    with sync_client(wire(http, TEXT_AND_TOOL)) as made:
        stream = made.messages.stream(model="m", max_tokens=9, messages=[])
        assert await stream_message(stream, writer=written) == SAID
    assert written.content == "Hello"


async def test_the_text_alone() -> None:
    """`text_stream` is read as a stream of strings, without the message's id."""
    async with client(wire(http, TEXT_AND_TOOL)) as made:
        async with made.messages.stream(model="m", max_tokens=9, messages=[]) as stream:
            message = await stream_message(stream.text_stream, id="mine", writer=FakeWriter())
    assert message == {"role": "assistant", "id": "mine", "content": "Hello"}


@pytest.mark.parametrize("ask", WAYS)
async def test_what_a_string_cannot_hold_is_in_blocks(ask: Callable[[Any], Any]) -> None:
    """Thoughts with their signature, Anthropic's own tools and citations are in `blocks`, in the form that Anthropic
    accepts back."""
    written = FakeWriter()
    async with client(wire(http, THOUGHT)) as made:
        message = await stream_message(ask(made), writer=written)
    assert (message["content"], message["reasoning"]) == ("It is y", "Let me see")
    assert "tool_calls" not in message
    thinking, redacted, used, found, text = message["blocks"]
    assert thinking == {"type": "thinking", "thinking": "Let me see", "signature": "c2ln"}
    assert redacted == {"type": "redacted_thinking", "data": "xyz"}
    assert (used["id"], used["input"]) == ("srv_1", {"query": "x"})
    assert found["tool_use_id"] == "srv_1"
    assert (text["text"], text["citations"][0]["cited_text"]) == ("It is y", "y")
    assert joined(written.chunks) == {key: value for key, value in message.items() if key != "blocks"}


@pytest.mark.parametrize("ask", WAYS)
async def test_a_stream_that_is_left_early_is_closed(ask: Callable[[Any], Any]) -> None:
    """The connection is released at once."""
    body = wire(http, TEXT_AND_TOOL)
    async with client(body) as made:
        with pytest.raises(EnoughError):
            await stream_message(ask(made), writer=FakeWriter(fail_at=1))
        assert body.closed


@pytest.mark.parametrize("ask", WAYS)
async def test_a_message_that_breaks_off(ask: Callable[[Any], Any]) -> None:
    """A connection that ends cleanly in mid-message raises an error, and no partial message is returned."""
    half = events(message_start(), start(0, type="text", text=""), delta(0, "text_delta", text="Hel"), named=True)
    written = FakeWriter()
    async with client(wire(http, half)) as made:
        with pytest.raises(StreamFailedError, match="message_stop"):
            await stream_message(ask(made), writer=written)
    assert written.content == "Hel"


async def test_an_error_of_the_server() -> None:
    """The SDK's own exception for a server error is raised unchanged."""
    broken = events(message_start(), {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, named=True)  # fmt: skip
    async with client(wire(http, broken)) as made:
        with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
            await stream_message(
                made.messages.create(model="m", max_tokens=9, messages=[], stream=True), writer=FakeWriter()
            )
