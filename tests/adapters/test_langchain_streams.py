"""langchain-core's models: read by `stream_message`, or called, with callbacks that write their tokens."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from tests.adapters.fakes import EnoughError, FakeWriter

pytest.importorskip("langchain_core", reason="langchain-core is not installed here: nox -s langchain installs it")

from langchain_core import messages as lc
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models.fake_chat_models import (
    FakeListChatModel,
    FakeListChatModelError,
    FakeMessagesListChatModel,
    GenericFakeChatModel,
)
from langchain_core.runnables import RunnableConfig, RunnableLambda

from pregel_async.adapters import InvalidSourceError, stream_message, stream_message_sync
from pregel_async.adapters import langchain as adapter
from pregel_async.adapters.langchain import ambient, callbacks

ROOT = Path(__file__).parents[2]


@pytest.fixture
def only_asyncio(anyio_backend: Any) -> None:
    if anyio_backend[0] != "asyncio":
        pytest.skip("langchain-core's models run on asyncio alone")


def speaker(*said: Any) -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=iter(said))


async def chunks(*made: Any) -> Any:
    for one in made:
        await anyio.lowlevel.checkpoint()
        yield one


class Tracer(BaseCallbackHandler):
    """User-defined callbacks."""

    started = 0

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        self.started += 1


@pytest.mark.anyio
async def test_chunks_are_summed() -> None:
    """Chunks are written unchanged; the message is their sum, including tool calls."""
    given = [
        lc.AIMessageChunk(content="Hel", id="m", response_metadata={"model_provider": "p", "model_name": "n"}),
        lc.AIMessageChunk(content="lo", id="m"),
        lc.AIMessageChunk(content="", id="m", tool_call_chunks=[{"name": "f", "args": '{"x"', "id": "c", "index": 0}]),
        lc.AIMessageChunk(
            content="", id="m", tool_call_chunks=[{"name": None, "args": ": 1}", "id": None, "index": 0}]
        ),
        lc.AIMessageChunk(content="", id="m", chunk_position="last"),
    ]
    written = FakeWriter()
    message = await stream_message(chunks(*given), writer=written)
    assert all(one is other for one, other in zip(written.chunks, given, strict=True))
    assert type(message) is lc.AIMessage
    assert (message.id, message.content) == ("m", "Hello")
    assert [(call["name"], call["args"]) for call in message.tool_calls] == [("f", {"x": 1})]
    assert written.all_metadata == {"ls_provider": "p", "ls_model_name": "n", "ls_model_type": "chat"}


@pytest.mark.anyio
async def test_chunks_have_one_id() -> None:
    """All chunks have the message's id: the one passed, the provider's, or langchain's own."""
    given = [lc.AIMessageChunk(content="a", id="msg_1"), lc.AIMessageChunk(content="b", id="lc_run--1")]
    written = FakeWriter()
    message = await stream_message(chunks(*given), writer=written)
    assert written.ids == {message.id} == {"msg_1"}
    written = FakeWriter()
    message = await stream_message(chunks(*given), id="mine", name="bob", writer=written)
    assert written.ids == {message.id} == {"mine"}
    assert message.name == "bob"
    written = FakeWriter()
    message = await stream_message(chunks(given[1], given[0]), writer=written)
    assert written.ids == {message.id} == {"lc_run--1"}


@pytest.mark.anyio
async def test_a_message_of_a_model_that_does_not_stream() -> None:
    """A whole message is one chunk; a second one raises an error."""
    whole, written = lc.AIMessage("Hello", id="m"), FakeWriter()
    assert await stream_message(chunks(whole), writer=written) is whole
    assert written.chunks == [whole]
    for others in ([whole, whole], [lc.AIMessageChunk("a", id="m"), whole], [lc.AIMessageChunk("a", id="m"), "b"]):
        with pytest.raises(InvalidSourceError):
            await stream_message(chunks(*others), writer=FakeWriter())


@pytest.mark.anyio
async def test_a_model_is_no_stream() -> None:
    """A model passed instead of its stream is refused, although pydantic models can be iterated over their fields."""
    for given in (speaker("a"), lc.AIMessage("a")):
        with pytest.raises(InvalidSourceError, match="astream"):
            await stream_message(given, writer=FakeWriter())


@pytest.mark.anyio
@pytest.mark.usefixtures("only_asyncio")
async def test_a_model_that_is_read_is_not_written_by_callbacks_too() -> None:
    """While `stream_message` reads a model, callbacks do not write its chunks; the node's next call is written by
    callbacks again."""
    seen = FakeWriter()
    with ambient(seen):
        message = await stream_message(speaker("Hello you").astream("x"), tags=["t"], writer=seen)
        assert seen.content == message.content == "Hello you"
        assert seen.ids == {message.id}
        assert seen.metadata[0]["tags"] == ["t"]
        assert await to_thread.run_sync(lambda: stream_message_sync(speaker("a b").stream("x"), writer=seen))
        assert seen.content == "Hello youa b"
        await speaker("c d").ainvoke("x")
    assert seen.content == "Hello youa bc d"


@pytest.mark.anyio
@pytest.mark.usefixtures("only_asyncio")
async def test_a_model_that_is_called_writes_its_tokens() -> None:
    """`ainvoke` without a config writes chunks with the id of the returned message, and waits for capacity."""
    written = FakeWriter()
    with ambient(written):
        message = await speaker("Hello you").ainvoke("x")
    assert [chunk.content for chunk in written.chunks] == ["Hello", " ", "you"]
    assert written.ids == {message.id}
    assert written.waited == 3
    assert written.metadata[0]["ls_model_type"] == "chat"
    assert written.metadata[0]["ls_provider"] == "genericfakechatmodel"


def test_a_model_that_is_called_in_a_thread_writes_its_tokens() -> None:
    """`invoke` in a plain function, without an event loop, writes its tokens."""
    written = FakeWriter()
    with ambient(written):
        message = speaker("Hello you").invoke("x")
    assert [chunk.content for chunk in written.chunks] == ["Hello", " ", "you"]
    assert written.ids == {message.id}
    assert written.threads == {threading.get_ident()}
    assert written.waited == 0


@pytest.mark.anyio
@pytest.mark.usefixtures("only_asyncio")
async def test_a_model_that_blocks_the_event_loop_writes_its_tokens() -> None:
    """`invoke` in an async node writes its tokens without waiting for capacity, as it blocks the event loop."""
    written = FakeWriter()
    with ambient(written):
        speaker("Hello you").invoke("x")
    assert written.content == "Hello you"
    assert written.waited == 0
    assert written.threads == {threading.get_ident()}


@pytest.mark.anyio
@pytest.mark.usefixtures("only_asyncio")
async def test_whatever_config_a_call_brings() -> None:
    """Tags, metadata and callbacks in a call's own config do not affect the tokens."""
    for config in (
        {"callbacks": [Tracer()]},
        {"callbacks": []},
        {"tags": ["a", "seq:step:1"], "metadata": {"k": 1}},
        {"callbacks": callbacks(FakeWriter())},
    ):
        written = FakeWriter()
        with ambient(written):
            await speaker("a b").ainvoke("x", config)
            assert speaker("c").invoke("x", config)
        assert written.content == "a bc"
        assert len(written.chunks) == 4
    written, tracer = FakeWriter(), Tracer()
    with ambient(written):
        await speaker("a").ainvoke("x", {"callbacks": [tracer], "tags": ["a", "seq:step:1"], "metadata": {"k": 1}})
    assert tracer.started == 1
    assert (written.metadata[0]["tags"], written.metadata[0]["k"]) == (["a"], 1)


@pytest.mark.anyio
@pytest.mark.usefixtures("only_asyncio")
async def test_models_deep_inside_and_side_by_side() -> None:
    """Each token is written once in chains, tasks and langchain's threads; concurrent calls are distinguished by
    ids."""
    written = FakeWriter()
    with ambient(written):
        chain = RunnableLambda(lambda x: x) | speaker("a b") | RunnableLambda(lambda m: m.content) | speaker("c d")
        await chain.ainvoke("x")
        assert written.content == "a bc d"
        first, second = await asyncio.gather(speaker("e f").ainvoke("x"), speaker("g h").ainvoke("x"))
        assert len(written.ids) == 4
        said = {
            id: "".join(chunk.content for chunk in written.chunks if chunk.id == id) for id in (first.id, second.id)
        }
        assert said == {first.id: "e f", second.id: "g h"}
        written.chunks.clear()
        speaker("i", "j").batch(["x", "y"])
        assert sorted(chunk.content for chunk in written.chunks) == ["i", "j"]


@pytest.mark.anyio
@pytest.mark.usefixtures("only_asyncio")
async def test_what_was_not_streamed_is_written_whole() -> None:
    """The message of a model that does not stream is written whole, once."""
    written = FakeWriter()
    with ambient(written):
        whole = await FakeMessagesListChatModel(responses=[lc.AIMessage("Hello you")]).ainvoke("x")
        assert (written.chunks[0].content, written.chunks[0].id, written.waited) == ("Hello you", whole.id, 1)
        await speaker("a b").bind(stream=False).ainvoke("x")
        assert [chunk.content for chunk in written.chunks[1:]] == ["a b"]


@pytest.mark.anyio
@pytest.mark.usefixtures("only_asyncio")
async def test_a_message_that_was_written_is_not_written_again() -> None:
    """A message that a cache returns a second time is not written again."""
    model = FakeListChatModel(responses=["ab"], cache=InMemoryCache())
    written = FakeWriter()
    with ambient(written):
        first = await model.ainvoke("x")
        again = await model.ainvoke("x")
    assert (again.id, again.content) == (first.id, "ab")
    assert written.content == "ab"


@pytest.mark.anyio
@pytest.mark.usefixtures("only_asyncio")
async def test_the_tag_nostream() -> None:
    """With the tag `nostream` on the model or the call, nothing is written, not even the whole message."""
    written = FakeWriter()
    with ambient(written):
        await speaker("a").with_config(tags=["nostream"]).ainvoke("x")
        await speaker("a").ainvoke("x", {"tags": ["nostream"]})
        await FakeMessagesListChatModel(responses=[lc.AIMessage("a")], tags=["nostream"]).ainvoke("x")
    assert written.chunks == []


@pytest.mark.anyio
@pytest.mark.usefixtures("only_asyncio")
async def test_errors() -> None:
    """A model's own error leaves no state behind; an error in writing reaches the node instead of only a log."""
    written = FakeWriter()
    with ambient(written):
        with pytest.raises(FakeListChatModelError):
            await FakeListChatModel(responses=["abc"], error_on_chunk_number=1).ainvoke("x")
        handler = adapter._AMBIENT.get()
        assert (handler._runs, handler._streamed) == ({}, set())
    assert written.content == "a"
    with ambient(FakeWriter(fail_at=1)):
        with pytest.raises(EnoughError):
            await speaker("a b").ainvoke("x")


@pytest.mark.anyio
@pytest.mark.usefixtures("only_asyncio")
async def test_a_node_inside_writes_with_its_own_writer() -> None:
    """A subgraph's node writes with its own writer; the handler inherited by config from the outer node writes nothing
    there."""
    outer, inner = FakeWriter(), FakeWriter()

    async def node(x: Any, config: RunnableConfig) -> Any:
        with ambient(inner):
            await speaker("a").ainvoke("x", config)
            return await speaker("b").ainvoke("x")

    with ambient(outer):
        await RunnableLambda(node).ainvoke("x")
        assert (outer.content, inner.content) == ("", "ab")
        await speaker("c").ainvoke("x")
    await speaker("d").ainvoke("x")
    assert (outer.content, inner.content) == ("c", "ab")


@pytest.mark.anyio
@pytest.mark.usefixtures("only_asyncio")
async def test_handlers_can_be_given() -> None:
    """Users who build configs themselves can pass the handler in `callbacks`."""
    written = FakeWriter()
    await speaker("a b").ainvoke("x", {"callbacks": callbacks(written)})
    assert written.content == "a b"


def test_without_the_marker_models_are_still_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without langchain-core's private marker of streaming handlers, messages are written whole."""
    monkeypatch.setitem(sys.modules, "langchain_core.tracers._streaming", None)
    kind = adapter._handler_class.__wrapped__()
    for name in ("tap_output_aiter", "tap_output_iter"):
        monkeypatch.delattr(adapter._TokenHandler, name)
    written = FakeWriter()
    message = speaker("a b").invoke("x", {"callbacks": [kind(written)]})
    assert [(chunk.content, chunk.id) for chunk in written.chunks] == [("a b", message.id)]


def test_adapters_import_no_sdk() -> None:
    """The adapters recognize SDKs and langchain-core by shape; only a node's callbacks need langchain-core."""
    code = (
        "import sys, pregel_async.adapters.langchain\n"
        "from pregel_async.adapters import stream_message_sync\n"
        "class W:\n"
        "    def message(self, chunk, metadata=None): ...\n"
        "print(stream_message_sync(['a'], id='m', writer=W())['content'])\n"
        "print([name for name in ('langchain_core', 'openai', 'anthropic', 'pydantic', 'httpx') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.split("\n")[:2] == ["a", "[]"]


def test_generators_of_the_users_own() -> None:
    """A generator that reads a model and yields its text is read as strings, and each token is written once."""

    def text() -> Iterator[str]:
        for chunk in speaker("a b").stream("x"):
            yield chunk.content

    written = FakeWriter()
    with ambient(written):
        assert stream_message_sync(text(), id="m", writer=written)["content"] == "a b"
    assert written.content == "a b"
