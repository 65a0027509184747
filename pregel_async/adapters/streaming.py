"""`stream_message`: read a model's stream in a node, show its tokens to the run's readers, and return the message.

A message without an id from the provider gets one that is made of the task's id and of the place of the call in the
node's code, not a random one: it is the same on every attempt and replay. A retry therefore streams chunks under the
same id as the attempt before.
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
from .usage import read_usage, report_usage

__all__ = ["stream_message", "stream_message_sync"]

READING: Final[ContextVar[bool]] = ContextVar("pregel_async.adapters.reading", default=False)
"""True while `stream_message` advances a stream: callback handlers must not write the same chunks a second time."""


async def stream_message(
    source: Any,
    *,
    id: str | None = None,
    name: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
    writer: MessageWriter | None = None,
) -> Any:
    """Read a message from a model's stream, and show each chunk on the `messages` stream as it arrives.

    Return the message from the node under a `messages` key: it has the id of its chunks, so it is not shown a second
    time.

    The source is recognised by its shape, and closed however reading ends. Sync sources are read in worker threads. The
    source may be a stream of

    - OpenAI's chat completions (`create(stream=True)` or `.stream()`), or those of a compatible server,
    - OpenAI's responses,
    - Anthropic's messages,
    - chunks of langchain-core's messages (`model.astream(...)`),
    - strings, each a token.

    It may also be an awaitable or a context manager that gives such a stream: pass `client.messages.stream(...)` as it
    is, and the call of an async client without awaiting it.

    Args:
        source: the stream, as above. A stream of several choices (`n > 1`) is refused.
        id: the message's id; by default the provider's, or one made of the task's id if the provider gives none. Pass
            one for messages without provider ids that several tasks of one node stream at the same time: made ids are
            numbered in the order in which those tasks begin.
        name: the speaker, in chunks and message; None for none.
        metadata: added to the runtime's metadata of each chunk. `ls_provider`, `ls_model_name` and `ls_model_type` are
            set as far as they are known; values in `metadata` take precedence.
        tags: added under `tags` to the metadata. With "nostream", nothing is shown, and the message is only returned.
        writer: where to write; by default the running node's writer.

    Returns:
        A `Message`; for langchain-core's chunks, the whole message of langchain-core.

    Raises:
        InvalidSourceError: the source is not such a stream.
        StreamFailedError: the provider reported an error, or the stream ended before the message was complete. Errors
            that an SDK raises itself are passed through.
        OutsideRunError: called outside of a run without a writer, or without an id where the provider gives none.
    """
    reading = _StreamedMessage(id, name, metadata, tags)
    write = _writer(writer)
    try:
        with _mark_reading():
            async with open_source(source) as items:
                async for item in items:
                    for chunk, about in reading.read(item):
                        await write.message(chunk, about)
        for chunk, about in reading.end():
            await write.message(chunk, about)
        return reading.message()
    finally:
        reading.report_usage()


def stream_message_sync(
    source: Any,
    *,
    id: str | None = None,
    name: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
    writer: MessageWriter | None = None,
) -> Any:
    """Read a message like `stream_message`, in a plain function. The call waits in its worker thread for slow readers.

    Args:
        source: a stream as for `stream_message`, or a context manager that gives one. It must not be async.
        id: the message's id; see `stream_message`.
        name: the speaker; see `stream_message`.
        metadata: added to the runtime's metadata of each chunk; see `stream_message`.
        tags: added under `tags` to the metadata; see `stream_message`.
        writer: where to write; by default the running node's writer.

    Returns:
        A `Message`; for langchain-core's chunks, the whole message of langchain-core.

    Raises:
        InvalidSourceError: the source is not such a stream, or is an async one.
        StreamFailedError: the provider reported an error, or the stream ended before the message was complete.
        OutsideRunError: called outside of a run without a writer, or without an id where the provider gives none.
    """
    reading = _StreamedMessage(id, name, metadata, tags)
    write = _writer(writer)
    try:
        with _mark_reading():
            with open_source_sync(source) as items:
                for item in items:
                    for chunk, about in reading.read(item):
                        write.message(chunk, about)
        for chunk, about in reading.end():
            write.message(chunk, about)
        return reading.message()
    finally:
        reading.report_usage()


def _writer(writer: MessageWriter | None) -> MessageWriter:
    if writer is not None:
        return writer
    return cast("MessageWriter", get_stream_writer())


@contextmanager
def _mark_reading() -> Generator[None]:
    """Set `READING` for the body."""
    token = READING.set(True)
    try:
        yield
    finally:
        READING.reset(token)


class _StreamedMessage:
    """Turn the items of one stream into chunks with metadata, and into a message.

    It never waits, so that `stream_message` and `stream_message_sync` share it.
    """

    def __init__(
        self, id: str | None, name: str | None, metadata: Mapping[str, Any] | None, tags: Sequence[str]
    ) -> None:
        self._id = id
        self._name = name
        self._metadata = dict(metadata or {})
        if tags:
            self._metadata["tags"] = [*self._metadata.get("tags", ()), *tags]
        # Made now, because calls are numbered in the order of the node's code. Tokens arrive in the network's order.
        self._generated_id = None if id is not None else _fallback_id()
        self._reader: MessageReader | None = None

    def read(self, item: Any) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        if self._reader is None:
            self._reader = find_reader(item)(self._id, self._name, self._make_id)
        return self._about(self._reader, self._reader.read(item))

    def end(self) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        if self._reader is None:
            # An empty stream has no item to recognise a provider by: return a message without text.
            self._reader = StringReader(self._id, self._name, self._make_id)
        return self._about(self._reader, self._reader.end())

    def message(self) -> Any:
        assert self._reader is not None, "the message is asked for before its end"
        return self._reader.message()

    def report_usage(self) -> None:
        """Report the tokens that the provider has counted so far, whether or not the stream has failed."""
        reader = self._reader
        if reader is not None:
            report_usage(read_usage(reader.usage()), reader.model, reader.provider)

    def _about(self, reader: MessageReader, chunks: Iterable[Any]) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        """Add the metadata to each chunk."""
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
    """Return an id that is the same whenever the node's code reaches this place; None outside of a run."""
    attempt = CURRENT.get()
    # Questions, calls, nested runs and streams share one counter, which advances in the order of the node's code.
    return None if attempt is None else f"msg-{attempt.task.id}-{attempt.next_position()}"
