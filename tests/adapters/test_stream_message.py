"""`stream_message` on streams of the right shape, without an SDK: what it accepts, writes, returns, refuses and
closes."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace as Obj
from typing import Any

import anyio
import pytest
from anyio import to_thread

from checkpoint_savers import InMemorySaver
from checkpoint_savers.codec import Codec
from pregel_async import START, StateGraph
from pregel_async.adapters import InvalidSourceError, StreamFailedError, stream_message, stream_message_sync
from pregel_async.errors import OutsideRunError
from pregel_async.messages import MessagesState, add_messages
from tests.adapters.fakes import EnoughError, FakeWriter, joined

pytestmark = pytest.mark.anyio


class FakeStream:
    """The parts of an SDK's stream that are used. It counts the items read, and the calls of close."""

    def __init__(self, *items: Any) -> None:
        self.items = iter(items)
        self.read = 0
        self.closed = 0


class Stream(FakeStream):
    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        item = next(self.items)
        self.read += 1
        return item

    def close(self) -> Any:
        self.closed += 1


class AsyncStream(FakeStream):
    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        await anyio.lowlevel.checkpoint()
        for item in self.items:
            self.read += 1
            return item
        raise StopAsyncIteration

    async def __aenter__(self) -> Any:
        raise AssertionError("a stream that can be closed is not entered as well")

    async def __aexit__(self, *error: Any) -> None: ...

    async def close(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.closed += 1


async def tokens(*parts: str) -> AsyncIterator[str]:
    for part in parts:
        await anyio.lowlevel.checkpoint()
        yield part


async def of(value: Any) -> Any:
    await anyio.lowlevel.checkpoint()
    return value


def completion(
    delta: Any = None, *, id: str = "chatcmpl-1", index: int = 0, finish: str | None = None, **more: Any
) -> Any:
    choices = [] if delta is None else [Obj(index=index, delta=Obj(**delta), finish_reason=finish)]
    return Obj(id=id, model="gpt-x", choices=choices, object="chat.completion.chunk", **more)


def piece(index: int | None, id: str | None = None, name: str | None = None, args: str = "") -> Any:
    return Obj(index=index, id=id, function=Obj(name=name, arguments=args))


async def test_strings_are_tokens() -> None:
    """Each string is a chunk with the message's id, and the message is their sum."""
    written = FakeWriter()
    message = await stream_message(tokens("Hel", "", "lo"), id="m", writer=written)
    assert message == {"role": "assistant", "id": "m", "content": "Hello"}
    assert written.chunks == [
        {"role": "assistant", "type": "AIMessageChunk", "id": "m", "content": "Hel"},
        {"role": "assistant", "type": "AIMessageChunk", "id": "m", "content": "lo"},
    ]
    assert written.waited == 2
    assert written.all_metadata == {}


async def test_all_ways_to_hand_over_a_stream() -> None:
    """A stream may be an iterable, an async iterable, an awaitable, a context manager, or a nesting of these."""

    @asynccontextmanager
    async def around(source: Any) -> AsyncIterator[Any]:
        left.append("entered")
        yield source
        left.append("left")

    @contextmanager
    def around_sync(source: Any) -> Iterator[Any]:
        left.append("entered")
        yield source
        left.append("left")

    parts = ["a", "b"]
    for source in (
        parts,
        tuple(parts),
        iter(parts),
        (part for part in parts),
        tokens(*parts),
        AsyncStream(*parts),
        Stream(*parts),
        of(tokens(*parts)),
        of(of(parts)),
    ):
        assert (await stream_message(source, id="m", writer=FakeWriter()))["content"] == "ab"
    for source in (
        around(tokens(*parts)),
        around_sync(parts),
        of(around(of(tokens(*parts)))),
        around(around_sync(iter(parts))),
    ):
        left: list[str] = []
        assert (await stream_message(source, id="m", writer=FakeWriter()))["content"] == "ab"
        assert left and left.count("left") == left.count("entered")


async def test_what_is_not_async_is_read_in_threads() -> None:
    """A blocking stream is read and written in a thread, so that it does not block the event loop."""
    here, readers = threading.get_ident(), set()

    def blocking() -> Iterator[str]:
        for part in ("a", "b"):
            readers.add(threading.get_ident())
            yield part

    written = FakeWriter()
    await stream_message(blocking(), id="m", writer=written)
    assert here not in readers
    assert written.threads == {here}


async def test_nothing_is_a_message_too() -> None:
    """An empty stream of any kind gives a message without text."""
    assert await stream_message([], id="m", writer=FakeWriter()) == {"role": "assistant", "id": "m", "content": ""}


async def test_a_completion_with_tools_as_objects_and_as_dicts() -> None:
    """Tool calls are merged by index; finish reason and usage are in one last chunk. Dicts have the same shape."""
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    chunks = [
        completion({"role": "assistant", "content": "", "tool_calls": None, "refusal": None}),
        completion({"content": "Look", "reasoning_content": "hm"}),
        completion({"content": None, "tool_calls": [piece(0, "c1", "find", ""), piece(1, "c2", "now", "")]}),
        completion({"tool_calls": [piece(0, args='{"q": '), piece(1, args="")]}),
        completion({"tool_calls": [piece(0, args='"x"}')]}),
        completion({}, finish="tool_calls"),
        completion(usage=usage),
    ]
    as_dicts = [json.loads(json.dumps(chunk, default=vars)) for chunk in chunks]
    for given in (chunks, as_dicts):
        written = FakeWriter()
        message = await stream_message(AsyncStream(*given), writer=written, name="bob")
        assert message == {
            "role": "assistant",
            "id": "chatcmpl-1",
            "name": "bob",
            "content": "Look",
            "reasoning": "hm",
            "tool_calls": [
                {"type": "tool_call", "id": "c1", "name": "find", "args": {"q": "x"}},
                {"type": "tool_call", "id": "c2", "name": "now", "args": {}},
            ],
            "finish_reason": "tool_calls",
            "usage": {
                "input_tokens": 3,
                "output_tokens": 4,
                "total_tokens": 7,
                "details": {"prompt_tokens_details": {"cached_tokens": 2}},
            },
        }
        assert joined(written.chunks) == message
        assert [sorted(chunk.keys() - {"role", "type", "id", "content", "name"}) for chunk in written.chunks] == [
            ["reasoning"],
            ["tool_call_chunks"],
            ["tool_call_chunks"],
            ["tool_call_chunks"],
            ["finish_reason", "usage"],
        ]
        assert written.all_metadata == {"ls_provider": "openai", "ls_model_name": "gpt-x", "ls_model_type": "chat"}


async def test_calls_of_servers_that_do_not_count() -> None:
    """If all tool calls have index 0 or none, a new id begins a new call."""
    for index in (0, None):
        chunks = [completion({"tool_calls": [piece(index, f"c{n}", "f", "{}")]}) for n in range(2)]
        message = await stream_message(chunks, writer=FakeWriter())
        assert [call["id"] for call in message["tool_calls"]] == ["c0", "c1"]


async def test_arguments_that_are_no_json() -> None:
    """The message is returned, and marks the call whose arguments are invalid."""
    chunk = completion(
        {"tool_calls": [piece(0, "a", "f", '{"x": '), piece(1, "b", "f", "[1]"), piece(2, "c", "f", "{}")]}
    )
    message = await stream_message([chunk], writer=FakeWriter())
    assert [call["id"] for call in message["tool_calls"]] == ["c"]
    first, second = message["invalid_tool_calls"]
    assert (first["id"], first["args"]) == ("a", '{"x": ') and "no JSON" in first["error"]
    assert second["id"] == "b" and "no JSON object" in second["error"]


async def test_the_first_chunk_of_azure() -> None:
    """The first chunk has no choice, id or model; the message has those of the next chunk."""
    written = FakeWriter()
    message = await stream_message([Obj(id="", model="", choices=[]), completion({"content": "a"})], writer=written)
    assert message["id"] == "chatcmpl-1"
    assert written.metadata[0]["ls_model_name"] == "gpt-x"


async def test_several_choices_are_refused() -> None:
    """Several choices are refused, as they are several messages."""
    stream = AsyncStream(completion({"content": "a"}), completion({"content": "b"}, index=1))
    with pytest.raises(InvalidSourceError, match="n=1"):
        await stream_message(stream, writer=FakeWriter())
    assert stream.closed


async def test_a_message_of_anthropic_in_events_of_both_kinds() -> None:
    """Events that the helper derives add nothing twice. Content that a string cannot hold is kept in blocks."""
    items = [
        {"type": "ping"},
        {"type": "message_start", "message": {"id": "msg_1", "model": "claude", "usage": {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "so"}},
        {"type": "thinking", "thinking": "so", "snapshot": "so"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "sig"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "text", "text": "Hi", "snapshot": "Hi"},
        {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "t1", "name": "find", "input": {}}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": ""}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"q": 1'}},
        {"type": "input_json", "partial_json": '{"q": 1', "snapshot": {}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "}"}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]  # fmt: skip
    written = FakeWriter()
    message = await stream_message(items, writer=written)
    assert message == {
        "role": "assistant",
        "id": "msg_1",
        "content": "Hi",
        "reasoning": "so",
        "tool_calls": [{"type": "tool_call", "id": "t1", "name": "find", "args": {"q": 1}}],
        "finish_reason": "tool_use",
        "usage": {
            "input_tokens": 7,
            "output_tokens": 9,
            "total_tokens": 16,
            "details": {"cache_read_input_tokens": 2},
        },
        "blocks": [
            {"type": "thinking", "thinking": "so", "signature": "sig"},
            {"type": "text", "text": "Hi"},
            {"type": "tool_use", "id": "t1", "name": "find", "input": {"q": 1}},
        ],
    }
    assert joined(written.chunks) == {key: value for key, value in message.items() if key != "blocks"}
    assert written.all_metadata == {"ls_provider": "anthropic", "ls_model_name": "claude", "ls_model_type": "chat"}


async def test_a_response_with_a_custom_tool() -> None:
    """The text input of a custom tool becomes arguments when it is complete."""
    items = [
        {"type": "response.created", "response": {"id": "resp_1", "model": "gpt-x"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "custom_tool_call", "call_id": "c", "name": "run", "input": ""}},
        {"type": "response.custom_tool_call_input.delta", "output_index": 0, "delta": "ls"},
        {"type": "response.output_item.done", "output_index": 0, "item": {"type": "custom_tool_call", "call_id": "c", "name": "run", "input": "ls"}},
        {"type": "response.incomplete", "response": {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": []}},
    ]  # fmt: skip
    written = FakeWriter()
    message = await stream_message(items, writer=written)
    assert message["tool_calls"] == [{"type": "tool_call", "id": "c", "name": "run", "args": {"input": "ls"}}]
    assert message["finish_reason"] == "max_output_tokens"
    assert joined(written.chunks) == message


@pytest.mark.parametrize(
    ("items", "provider", "code"),
    [
        ([{"type": "error", "error": {"type": "overloaded_error", "message": "too much"}}], "anthropic", "overloaded_error"),
        ([{"type": "message_start", "message": {"id": "m", "usage": None}}], "anthropic", None),
        ([{"type": "error", "code": "c", "message": "too much"}], "openai", "c"),
        ([{"type": "response.failed", "response": {"error": {"code": "c", "message": "too much"}}}], "openai", "c"),
        ([{"type": "response.created", "response": {"id": "r"}}], "openai", None),
        ([completion({"content": "a"}, error={"code": 502, "message": "too much"})], "openai", "502"),
    ],
)  # fmt: skip
async def test_a_message_that_is_not_whole_is_an_error(items: list[Any], provider: str, code: str | None) -> None:
    """An incomplete message raises, whether the provider reports it or the stream ends before its final event."""
    stream = AsyncStream(*items)
    with pytest.raises(StreamFailedError, match="too much" if code else "ended before") as raised:
        await stream_message(stream, writer=FakeWriter())
    assert (raised.value.provider, raised.value.code) == (provider, code)
    assert stream.closed


async def test_what_is_no_stream_is_refused_before_anything_is_read() -> None:
    """An object that is no stream raises an error with its type, before anything is read."""
    for given, said in (("text", "str"), ({"content": "x"}, "dict"), (None, "NoneType"), (b"", "bytes"), (3, "int")):
        with pytest.raises(InvalidSourceError, match=f"^{said} ") as raised:
            await stream_message(given, writer=FakeWriter())
        assert raised.value.given == said
        with pytest.raises(InvalidSourceError, match=f"^{said} "):
            stream_message_sync(given, writer=FakeWriter())


async def test_a_context_manager_of_nothing_is_left_again() -> None:
    """A context manager whose value is no stream is exited again."""

    class Scope:
        left = 0

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: Any) -> None:
            self.left += 1

    scope = Scope()
    with pytest.raises(InvalidSourceError, match="Scope was entered"):
        await stream_message(scope, id="m", writer=FakeWriter())
    with pytest.raises(InvalidSourceError, match="Scope was entered"):
        stream_message_sync(scope, id="m", writer=FakeWriter())
    assert scope.left == 2


async def test_a_stream_of_something_else_is_refused_and_closed() -> None:
    """The first item determines the kind of stream; an unknown kind, or a later item of another kind, is refused and
    the stream closed."""
    for items in ([3], ["a", 3], [Obj(type="weather")], [{"choices": [{"message": {}}]}], [[1]]):
        stream = AsyncStream(*items)
        with pytest.raises(InvalidSourceError):
            await stream_message(stream, id="m", writer=FakeWriter())
        assert (stream.read, stream.closed) == (len(items), 1)


async def test_an_async_stream_in_a_thread_is_refused() -> None:
    """An async stream in a thread is refused unread, with the alternative in the message."""
    stream = AsyncStream("a")
    with pytest.raises(InvalidSourceError, match="await stream_message"):
        await to_thread.run_sync(lambda: stream_message_sync(stream, writer=FakeWriter()))
    assert stream.read == 0


async def test_a_message_without_id_outside_of_a_run() -> None:
    """Outside a run an id is required, as there is no task to derive one from."""
    with pytest.raises(OutsideRunError, match="id"):
        await stream_message(["a"], writer=FakeWriter())
    with pytest.raises(OutsideRunError, match="get_stream_writer"):
        await stream_message(["a"])


async def test_a_stream_is_closed_when_its_reading_fails() -> None:
    """After an error in writing or in the stream itself the stream is closed, and this error is raised."""
    for make in (AsyncStream, Stream):
        stream = make("a", "b", "c")
        with pytest.raises(EnoughError):
            await stream_message(stream, id="m", writer=FakeWriter(fail_at=1))
        assert (stream.read, stream.closed) == (1, 1)

    async def failing() -> AsyncIterator[str]:
        try:
            yield "a"
            raise ConnectionError("gone")
        finally:
            closed.append(1)

    closed: list[int] = []
    with pytest.raises(ConnectionError, match="gone"):
        await stream_message(failing(), id="m", writer=FakeWriter())
    assert closed


async def test_a_stream_is_closed_when_its_reading_is_cancelled() -> None:
    """A cancellation while waiting for a token or for capacity closes the stream; its clean-up may wait and is not
    interrupted."""

    class Endless(AsyncStream):
        async def __anext__(self) -> str:
            if self.read:
                waiting.set()
                await anyio.sleep_forever()
            self.read += 1
            return "a"

    class Full(FakeWriter):
        def message(self, chunk: Any, metadata: Any = None) -> Any:
            waiting.set()
            return anyio.sleep_forever()

    for written in (FakeWriter(), Full()):
        stream, waiting = Endless(), anyio.Event()
        async with anyio.create_task_group() as group:

            async def read() -> None:
                await stream_message(stream, id="m", writer=written)

            group.start_soon(read)
            await waiting.wait()
            group.cancel_scope.cancel()
        assert stream.closed == 1


async def test_a_generator_cleans_up_before_the_error_goes_on() -> None:
    """A generator is closed before the error is raised, and not by the garbage collector."""

    async def generator() -> AsyncIterator[str]:
        try:
            yield "a"
            yield "b"
        finally:
            await anyio.lowlevel.checkpoint()
            closed.append(1)

    closed: list[int] = []
    with pytest.raises(EnoughError):
        await stream_message(generator(), id="m", writer=FakeWriter(fail_at=1))
    assert closed == [1]


async def test_a_context_manager_cannot_swallow_the_end_of_half_a_message() -> None:
    """A context manager gets the error but cannot suppress it; it may contain a task group."""

    @asynccontextmanager
    async def swallowing() -> AsyncIterator[Any]:
        async with anyio.create_task_group():
            try:
                yield ["a", "b"]
            except EnoughError as error:
                errors.append(error)

    errors: list[Any] = []
    with pytest.raises(EnoughError):
        await stream_message(swallowing(), id="m", writer=FakeWriter(fail_at=1))
    assert len(errors) == 1


async def test_all_is_closed_when_the_first_clean_up_is_cancelled() -> None:
    """If a context manager's clean-up is cancelled, which is not shielded, the outer ones are exited nevertheless, and
    no cancellation is lost."""

    @asynccontextmanager
    async def slow() -> AsyncIterator[Any]:
        try:
            yield ["a"]
        finally:
            left.append("inner")
            await anyio.sleep_forever()

    @asynccontextmanager
    async def around() -> AsyncIterator[Any]:
        try:
            yield slow()
        finally:
            left.append("outer")

    left: list[str] = []
    with anyio.move_on_after(0.05) as scope:
        await stream_message(around(), id="m", writer=FakeWriter(fail_at=1))
    assert scope.cancelled_caught
    assert left == ["inner", "outer"]


async def test_a_stream_that_cannot_be_closed() -> None:
    """An error in closing is a note on the earlier error, and is raised if there is none."""

    class Stuck(AsyncStream):
        async def close(self) -> None:
            raise OSError("stuck")

    with pytest.raises(EnoughError) as raised:
        await stream_message(Stuck("a"), id="m", writer=FakeWriter(fail_at=1))
    assert "stuck" in raised.value.__notes__[0]
    with pytest.raises(OSError, match="stuck"):
        await stream_message(Stuck("a"), id="m", writer=FakeWriter())


async def test_ids_names_metadata_and_tags() -> None:
    """Passed values override derived ones, and tags are added."""
    written = FakeWriter()
    message = await stream_message(
        [completion({"content": "a"})],
        id="mine",
        name="bob",
        metadata={"ls_provider": "azure", "k": 1, "tags": ["x"]},
        tags=["nostream"],
        writer=written,
    )
    assert message == {"role": "assistant", "id": "mine", "name": "bob", "content": "a"}
    assert (written.chunks[0]["id"], written.chunks[0]["name"]) == ("mine", "bob")
    assert written.all_metadata == {
        "ls_provider": "azure",
        "ls_model_name": "gpt-x",
        "ls_model_type": "chat",
        "k": 1,
        "tags": ["x", "nostream"],
    }


async def test_a_message_is_stored_and_sent() -> None:
    """A message is JSON, is stored without registration, and is merged into a list of messages by its id."""
    chunks = [completion({"content": "a", "tool_calls": [piece(0, "c", "f", "{}")]}), completion({}, finish="stop")]
    message = await stream_message(chunks, writer=FakeWriter())
    assert json.loads(json.dumps(message)) == message
    codec = Codec()
    assert codec.decode(codec.encode(message, channel="messages"), channel="messages") == message
    assert add_messages([], [message]) == [message]


async def test_in_a_node_ids_are_made_of_the_task() -> None:
    """In a node an id is the same on every attempt, replay and resume, and differs for each message of the node."""
    seen: list[str] = []

    async def speak(state: MessagesState) -> dict[str, Any]:
        first = await stream_message(["a"], writer=FakeWriter())
        second = await to_thread.run_sync(lambda: stream_message_sync(["a"], writer=FakeWriter()))
        seen.extend((first["id"], second["id"]))
        return {"messages": [first, second]}

    builder = StateGraph(MessagesState).add_node("speak", speak).add_edge(START, "speak")
    for _ in range(2):
        result = await builder.compile(InMemorySaver()).ainvoke({"messages": []}, "thread")
        assert [message["id"] for message in result["messages"]] == seen[-2:]
    assert seen[:2] == seen[2:]
    assert seen[0] != seen[1]


def test_in_threads_it_is_the_same() -> None:
    """In a thread the sync sources give the same message, and nothing is awaited."""

    @contextmanager
    def around(source: Any) -> Iterator[Any]:
        yield source
        left.append(1)

    left: list[int] = []
    for source in (["a", "b"], Stream("a", "b"), around(["a", "b"]), (part for part in "ab")):
        written = FakeWriter()
        assert stream_message_sync(source, id="m", writer=written)["content"] == written.content == "ab"
        assert written.waited == 0
    assert left == [1]
    message = stream_message_sync([completion({"content": "a"}), completion({}, finish="stop")], writer=FakeWriter())
    assert message == {"role": "assistant", "id": "chatcmpl-1", "content": "a", "finish_reason": "stop"}


def test_in_threads_it_is_closed_as_well() -> None:
    """In a thread the stream is closed after its own error, and after one of its context manager."""

    class Failing(Stream):
        def __next__(self) -> Any:
            raise ConnectionError("gone")

    stream = Failing()
    with pytest.raises(ConnectionError):
        stream_message_sync(stream, id="m", writer=FakeWriter())
    assert stream.closed == 1

    class Stuck(Stream):
        def close(self) -> Any:
            raise OSError("stuck")

    with pytest.raises(OSError, match="stuck"):
        stream_message_sync(Stuck("a"), id="m", writer=FakeWriter())
