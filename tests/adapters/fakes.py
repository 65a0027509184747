"""Shared by the adapters' tests: a writer that records chunks, and servers that answer with recorded bytes."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Awaitable, Generator, Iterator, Mapping
from typing import Any

import anyio


class FakeWriter:
    """A stand-in for a node's writer: a call writes a chunk, and awaiting it waits for capacity.

    Attributes:
        chunks, metadata: what was written, in order.
        waited: the number of awaits.
        threads: the threads that wrote.
        fail_at: from which chunk on waiting fails, as a reader's end or a cancellation would make it.
    """

    def __init__(self, fail_at: int | None = None) -> None:
        self.chunks: list[Any] = []
        self.metadata: list[Mapping[str, Any]] = []
        self.waited = 0
        self.threads: set[int] = set()
        self.fail_at = fail_at

    def message(self, chunk: Any, metadata: Mapping[str, Any] | None = None) -> Awaitable[None]:
        self.chunks.append(chunk)
        self.metadata.append(metadata or {})
        self.threads.add(threading.get_ident())
        return _Room(self)

    @property
    def content(self) -> str:
        return "".join(c["content"] if isinstance(c, dict) else c.content for c in self.chunks)

    @property
    def ids(self) -> set[Any]:
        return {c["id"] if isinstance(c, dict) else c.id for c in self.chunks}

    @property
    def all_metadata(self) -> Mapping[str, Any]:
        """The metadata of all chunks, which is the same."""
        assert all(one == self.metadata[0] for one in self.metadata)
        return self.metadata[0]


class EnoughError(Exception):
    """Raised by a writer."""


class _Room:
    def __init__(self, written: FakeWriter) -> None:
        self.written = written

    def __await__(self) -> Generator[Any, Any, None]:
        self.written.waited += 1
        if self.written.fail_at is not None and len(self.written.chunks) >= self.written.fail_at:
            raise EnoughError
        yield from anyio.lowlevel.checkpoint().__await__()


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that the chunks add up to, as a reader of the stream would join them."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        message["id"] = chunk["id"]
        for key in ("content", "reasoning", "refusal"):
            if key in chunk:
                message[key] = message.get(key, "") + chunk[key]
        for piece in chunk.get("tool_call_chunks", ()):
            call = calls.setdefault(piece["index"], {"type": "tool_call", "args": ""})
            call["args"] += piece["args"]
            call.update({key: piece[key] for key in ("id", "name") if key in piece})
        message.update({key: chunk[key] for key in ("name", "finish_reason", "usage") if key in chunk})
    if calls:
        message["tool_calls"] = [{**call, "args": json.loads(call["args"] or "{}")} for call in calls.values()]
    return message


def events(*data: dict[str, Any], named: bool = False, done: bool = False) -> bytes:
    """Return server-sent events, as they come over the wire.

    Args:
        named: with the type of each as its name.
        done: with OpenAI's last line.
    """
    lines = [(f"event: {one['type']}\n" if named else "") + f"data: {json.dumps(one)}\n\n" for one in data]
    return ("".join(lines) + ("data: [DONE]\n\n" if done else "")).encode()


def wire(http: Any, body: bytes) -> Any:
    """The body of a response, for async and sync clients, line by line. It records whether it was closed."""

    class Wire(http.AsyncByteStream, http.SyncByteStream):
        closed = False

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for line in body.splitlines(keepends=True):
                await anyio.lowlevel.checkpoint()
                yield line

        def __iter__(self) -> Iterator[bytes]:
            yield from body.splitlines(keepends=True)

        async def aclose(self) -> None:
            self.closed = True

        def close(self) -> None:
            self.closed = True

    return Wire()


def server(http: Any, body: Any) -> Any:
    """Return a transport that answers every request with a body."""
    return http.MockTransport(
        lambda request: http.Response(200, headers={"content-type": "text/event-stream"}, stream=body)
    )
