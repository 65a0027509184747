"""OpenAI's SDK reads bytes as its servers send them, and `stream_message` reads the SDK's stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.adapters.fakes import EnoughError, FakeWriter, events, joined, server, wire

openai = pytest.importorskip("openai", reason="the OpenAI SDK is not installed here")
http = pytest.importorskip("httpx2", reason="this OpenAI SDK is older than the one that these tests are for")

from pregel_async.adapters import InvalidSourceError, StreamFailedError, stream_message, stream_message_sync  # noqa: E402  # after the skip

pytestmark = [
    pytest.mark.anyio,
    # A stream that is left early leaves generators inside of the SDK and of httpx to the garbage collector, where trio
    # complains. The connection is closed by then, as the tests see.
    pytest.mark.filterwarnings("ignore:Async generator '(openai|httpx2|fakes):ResourceWarning"),
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <async_generator object:pytest.PytestUnraisableExceptionWarning"
    ),
]


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    return {
        "id": "chatcmpl-9",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "gpt-4o-mini-2024-07-18",
        "service_tier": "default",
        "system_fingerprint": "fp_1",
        "choices": choices,
        "usage": None,
        **more,
    }


COMPLETION = events(
    chunk({"role": "assistant", "content": "", "refusal": None}),
    chunk({"content": "Hel"}),
    chunk({"content": "lo"}),
    chunk({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "find", "arguments": ""}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"q":'}}]}),
    chunk({"tool_calls": [{"index": 1, "id": "call_2", "type": "function", "function": {"name": "now", "arguments": "{}"}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": ' "é"}'}}]}),
    chunk({}, "tool_calls"),
    chunk(usage={"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11, "prompt_tokens_details": {"cached_tokens": 0}}),
    done=True,
)  # fmt: skip

COMPLETED = {
    "role": "assistant",
    "id": "chatcmpl-9",
    "content": "Hello",
    "tool_calls": [
        {"type": "tool_call", "id": "call_1", "name": "find", "args": {"q": "é"}},
        {"type": "tool_call", "id": "call_2", "name": "now", "args": {}},
    ],
    "finish_reason": "tool_calls",
    "usage": {
        "input_tokens": 9,
        "output_tokens": 2,
        "total_tokens": 11,
        "details": {"prompt_tokens_details": {"cached_tokens": 0}},
    },
}

REFUSAL = events(
    chunk({"role": "assistant", "refusal": "I "}), chunk({"refusal": "won't"}), chunk({}, "stop"), done=True
)


def response(status: str, **more: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1700000000,
        "status": status,
        "model": "gpt-5",
        "output": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None,
        **more,
    }


def numbered(*items: dict[str, Any]) -> bytes:
    return events(*({**one, "sequence_number": number} for number, one in enumerate(items)), named=True)


THOUGHT = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "A"}, {"type": "summary_text", "text": "B"}]}  # fmt: skip
SAID = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "Hello", "annotations": []}]}  # fmt: skip
CALLED = {"id": "fc_1", "type": "function_call", "status": "completed", "call_id": "call_1", "name": "find", "arguments": '{"q":1}'}  # fmt: skip
USED = {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}, "output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 12}  # fmt: skip


def response_events(*, thought: bool) -> bytes:
    at = 1 if thought else 0
    output = [*([THOUGHT] if thought else []), SAID, CALLED]
    part = {"item_id": "rs_1", "output_index": 0}
    text = {"item_id": "msg_1", "output_index": at, "content_index": 0}
    thoughts = [
        {"type": "response.output_item.added", "output_index": 0, "item": {**THOUGHT, "summary": []}},
        {"type": "response.reasoning_summary_text.delta", **part, "summary_index": 0, "delta": "A"},
        {"type": "response.reasoning_summary_text.done", **part, "summary_index": 0, "text": "A"},
        {"type": "response.reasoning_summary_text.delta", **part, "summary_index": 1, "delta": "B"},
        {"type": "response.output_item.done", "output_index": 0, "item": THOUGHT},
    ]
    return numbered(
        {"type": "response.created", "response": response("in_progress")},
        {"type": "response.in_progress", "response": response("in_progress")},
        *(thoughts if thought else []),
        {"type": "response.output_item.added", "output_index": at, "item": {**SAID, "status": "in_progress", "content": []}},
        {"type": "response.content_part.added", **text, "part": {"type": "output_text", "text": "", "annotations": []}},
        {"type": "response.output_text.delta", **text, "delta": "Hel", "logprobs": []},
        {"type": "response.output_text.delta", **text, "delta": "lo", "logprobs": []},
        {"type": "response.output_text.done", **text, "text": "Hello", "logprobs": []},
        {"type": "response.content_part.done", **text, "part": SAID["content"][0]},
        {"type": "response.output_item.done", "output_index": at, "item": SAID},
        {"type": "response.output_item.added", "output_index": at + 1, "item": {**CALLED, "status": "in_progress", "arguments": ""}},
        {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": at + 1, "delta": '{"q"'},
        {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": at + 1, "delta": ":1}"},
        {"type": "response.function_call_arguments.done", "item_id": "fc_1", "output_index": at + 1, "name": "find", "arguments": '{"q":1}'},
        {"type": "response.output_item.done", "output_index": at + 1, "item": CALLED},
        {"type": "response.completed", "response": response("completed", output=output, usage=USED)},
    )  # fmt: skip


RESPONDED = {
    "role": "assistant",
    "id": "resp_1",
    "content": "Hello",
    "tool_calls": [{"type": "tool_call", "id": "call_1", "name": "find", "args": {"q": 1}}],
    "finish_reason": "completed",
    "usage": {
        "input_tokens": 5,
        "output_tokens": 7,
        "total_tokens": 12,
        "details": {
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 3},
        },
    },
}


@asynccontextmanager
async def client(body: Any) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(
        api_key="k",
        base_url="http://there/v1",
        max_retries=0,
        http_client=http.AsyncClient(transport=server(http, body)),
    ) as made:
        yield made


def sync_client(body: Any) -> Any:
    return openai.OpenAI(
        api_key="k", base_url="http://there/v1", max_retries=0, http_client=http.Client(transport=server(http, body))
    )


WAYS: list[Any] = [
    pytest.param(lambda made: made.chat.completions.create(model="m", messages=[], stream=True), id="create"),
    pytest.param(lambda made: made.chat.completions.stream(model="m", messages=[]), id="stream"),
]


@pytest.mark.parametrize("ask", WAYS)
async def test_a_completion(ask: Callable[[Any], Any]) -> None:
    """`stream_message` accepts the SDK's call unawaited, or as a context manager."""
    body, written = wire(http, COMPLETION), FakeWriter()
    async with client(body) as made:
        message = await stream_message(ask(made), writer=written)
    assert message == COMPLETED
    assert joined(written.chunks) == COMPLETED
    assert written.content == "Hello"
    assert written.all_metadata == {
        "ls_provider": "openai",
        "ls_model_name": "gpt-4o-mini-2024-07-18",
        "ls_model_type": "chat",
    }
    assert body.closed


async def test_a_completion_of_the_sync_client() -> None:
    """In an async node the sync client's stream is read in threads."""
    written = FakeWriter()
    with sync_client(wire(http, COMPLETION)) as made:
        stream = made.chat.completions.create(model="m", messages=[], stream=True)
        assert await stream_message(stream, writer=written) == COMPLETED
    assert written.content == "Hello"


@pytest.mark.parametrize("ask", WAYS)
def test_a_completion_in_a_thread(ask: Callable[[Any], Any]) -> None:
    """The sync client and the sync verb stream the same message."""
    body, written = wire(http, COMPLETION), FakeWriter()
    with sync_client(body) as made:
        assert stream_message_sync(ask(made), writer=written) == COMPLETED
    assert joined(written.chunks) == COMPLETED
    assert body.closed


async def test_a_refusal() -> None:
    """A refusal does not count as content."""
    async with client(wire(http, REFUSAL)) as made:
        message = await stream_message(
            made.chat.completions.create(model="m", messages=[], stream=True), writer=FakeWriter()
        )
    assert message == {
        "role": "assistant",
        "id": "chatcmpl-9",
        "content": "",
        "refusal": "I won't",
        "finish_reason": "stop",
    }


@pytest.mark.parametrize("ask", WAYS)
async def test_a_completion_that_is_left_early_is_closed(ask: Callable[[Any], Any]) -> None:
    """The connection is released at once."""
    body = wire(http, COMPLETION)
    async with client(body) as made:
        with pytest.raises(EnoughError):
            await stream_message(ask(made), writer=FakeWriter(fail_at=1))
        assert body.closed


async def test_a_whole_completion_is_refused() -> None:
    """A whole completion raises an error that mentions the missing `stream=True`."""
    whole = {**chunk(), "object": "chat.completion", "choices": []}
    transport = http.MockTransport(lambda request: http.Response(200, json=whole))
    async with openai.AsyncOpenAI(
        api_key="k", base_url="http://there/v1", http_client=http.AsyncClient(transport=transport)
    ) as made:
        with pytest.raises(InvalidSourceError, match="ChatCompletion is a whole object and no stream.*stream=True"):
            await stream_message(made.chat.completions.create(model="m", messages=[]), writer=FakeWriter())


RESPONSE_WAYS: list[Any] = [
    pytest.param(lambda made: made.responses.create(model="m", input="x", stream=True), id="create"),
    pytest.param(lambda made: made.responses.stream(model="m", input="x"), id="stream"),
]


@pytest.mark.parametrize("ask", RESPONSE_WAYS)
async def test_a_response(ask: Callable[[Any], Any]) -> None:
    """The message has the response's id."""
    body, written = wire(http, response_events(thought=False)), FakeWriter()
    async with client(body) as made:
        message = await stream_message(ask(made), writer=written)
    assert message == RESPONDED
    assert joined(written.chunks) == RESPONDED
    assert written.all_metadata == {"ls_provider": "openai", "ls_model_name": "gpt-5", "ls_model_type": "chat"}
    assert body.closed


async def test_a_response_with_reasoning() -> None:
    """Reasoning items that the next request needs are in `blocks`, unchanged."""
    written = FakeWriter()
    async with client(wire(http, response_events(thought=True))) as made:
        message = await stream_message(made.responses.create(model="m", input="x", stream=True), writer=written)
    blocks = message.pop("blocks")
    assert message == {**RESPONDED, "reasoning": "A\n\nB"}
    assert joined(written.chunks) == message
    assert [block["type"] for block in blocks] == ["reasoning", "message", "function_call"]
    assert blocks[0] == THOUGHT


async def test_a_response_that_fails() -> None:
    """A failure in an event of the response, or of the stream, raises an error that names it."""
    failed = response("failed", error={"code": "server_error", "message": "no luck"})
    for last in (
        {"type": "response.failed", "response": failed},
        {"type": "error", "code": "server_error", "message": "no luck", "param": None},
    ):
        body = wire(http, numbered({"type": "response.created", "response": response("in_progress")}, last))
        async with client(body) as made:
            with pytest.raises(StreamFailedError, match="no luck") as raised:
                await stream_message(made.responses.create(model="m", input="x", stream=True), writer=FakeWriter())
        assert (raised.value.provider, raised.value.code) == ("openai", "server_error")
        assert body.closed
