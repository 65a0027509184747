"""`stream_message`: read a model's stream in a node, show its tokens to the run's readers, and return the message.

Nothing is made up here. A message to which the provider gives no id gets one that is made of the task's id and of the
place in the node's code, so that it is the same on every attempt and replay. A retry therefore streams chunks under the
id of the attempt before.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, cast

from .._runtime.tasks.context import CURRENT
from ..errors import OutsideRunError
from ..runtime import get_stream_writer
from .reader import MessageReader
from .recognise import find_reader
from .shapes import MessageWriter
from .sources import open_source, open_source_sync
from .strings import StringReader

__all__ = ["stream_message", "stream_message_sync"]

READING: Final[ContextVar[bool]] = ContextVar("pregel_async.adapters.reading", default=False)
"""Whether `stream_message` is advancing a stream: what it reads is written by it, and by no callback besides."""


async def stream_message(
    source: Any,
    *,
    id: str | None = None,
    name: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
    writer: MessageWriter | None = None,
) -> Any:
    """Read a message from a model's stream, and show each chunk on the `messages` stream while it arrives.

    Return what it returns under a `messages` key: it has the id of its chunks, and so is not shown a second time.

    The source is recognised by its shape, and closed however the reading ends. What is not async in it is read in
    worker threads. It may be a stream of

    - OpenAI's chat completions (`create(stream=True)` or `.stream()`), or those of a server that speaks like it,
    - OpenAI's responses,
    - Anthropic's messages,
    - chunks of langchain-core's messages (`model.astream(...)`),
    - strings, which are tokens.

    Or an awaitable or a context manager that gives one: `client.messages.stream(...)` goes in as it is, and a call of
    an async client need not be awaited first.

    Args:
        source: see above. A stream of several choices (n > 1) is refused.
        id: the message's; by default the provider's, and where there is none one that is made of the task's id. Give
            one to messages without ids that tasks of the node's own stream at the same time: those are numbered in the
            order in which they begin.
        name: who speaks; in chunks and message.
        metadata: of each chunk, beside what the runtime says of the node. `ls_provider`, `ls_model_name` and
            `ls_model_type` are there by themselves as far as they are known; yours come first.
        tags: under `tags` in the metadata. "nostream" streams nothing, and only returns the message.
        writer: what to write with; by default the running node's.

    Returns:
        A `Message`; of langchain-core's chunks, the message that they are chunks of.

    Raises:
        InvalidSourceError: the source is no such stream.
        StreamFailedError: the provider told of an error, or the stream broke off before the message was whole. Errors
            that an SDK raises itself are let through.
        OutsideRunError: called outside of a run, without a writer, or without an id where the provider gives none.
    """
    reading = _MessageAssembler(id, name, metadata, tags)
    write = _writer(writer)
    with _mark_reading():
        async with open_source(source) as items:
            async for item in items:
                for chunk, about in reading.read(item):
                    await write.message(chunk, about)
    for chunk, about in reading.end():
        await write.message(chunk, about)
    return reading.message()


def stream_message_sync(
    source: Any,
    *,
    id: str | None = None,
    name: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
    writer: MessageWriter | None = None,
) -> Any:
    """`stream_message` for plain functions, which run in worker threads: it waits there for the readers' room.

    Args:
        source: a stream as there, or a context manager that gives one; none that is async.
        id, name, metadata, tags, writer: as there.

    Returns:
        As there.

    Raises:
        InvalidSourceError: the source is no such stream, or an async one.
        StreamFailedError, OutsideRunError: as there.
    """
    reading = _MessageAssembler(id, name, metadata, tags)
    write = _writer(writer)
    with _mark_reading():
        with open_source_sync(source) as items:
            for item in items:
                for chunk, about in reading.read(item):
                    write.message(chunk, about)
    for chunk, about in reading.end():
        write.message(chunk, about)
    return reading.message()


def _writer(writer: MessageWriter | None) -> MessageWriter:
    if writer is not None:
        return writer
    return cast("MessageWriter", get_stream_writer())


@contextmanager
def _mark_reading() -> Generator[None]:
    token = READING.set(True)
    try:
        yield
    finally:
        READING.reset(token)


class _MessageAssembler:
    """One message that is read: what to write for each item. It waits for nothing, so that both verbs share it."""

    def __init__(
        self, id: str | None, name: str | None, metadata: Mapping[str, Any] | None, tags: Sequence[str]
    ) -> None:
        self._id = id
        self._name = name
        self._metadata = dict(metadata or {})
        if tags:
            self._metadata["tags"] = [*self._metadata.get("tags", ()), *tags]
        # Taken now, in the order of the node's code, and not when the first token comes, which is the network's.
        self._generated_id = None if id is not None else _fallback_id()
        self._reader: MessageReader | None = None

    def read(self, item: Any) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        if self._reader is None:
            self._reader = find_reader(item)(self._id, self._name, self._make_id)
        return self._about(self._reader, self._reader.read(item))

    def end(self) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        if self._reader is None:
            # Nothing came, and nobody said whose nothing it is: a message without text.
            self._reader = StringReader(self._id, self._name, self._make_id)
        return self._about(self._reader, self._reader.end())

    def message(self) -> Any:
        assert self._reader is not None, "the message is asked for before its end"
        return self._reader.message()

    def _about(self, reader: MessageReader, chunks: Iterable[Any]) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        for chunk in chunks:
            known: dict[str, Any] = {"ls_model_type": "chat"} if reader.provider or reader.model else {}
            if reader.provider:
                known["ls_provider"] = reader.provider
            if reader.model:
                known["ls_model_name"] = reader.model
            yield chunk, known | self._metadata

    def _make_id(self) -> str:
        if self._generated_id is None:
            raise OutsideRunError(
                "the provider gives this message no id, and outside of a run there is no task to name it after: "
                "give stream_message() an id"
            )
        return self._generated_id


def _fallback_id() -> str | None:
    """An id that is the same whenever the running node gets here; None outside of a run."""
    running = CURRENT.get()
    # Places are counted in the order of the node's code, over all that it asks, calls, runs and streams.
    return None if running is None else f"msg-{running.task.id}-{running.next_place()}"
