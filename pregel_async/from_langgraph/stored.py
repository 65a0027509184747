"""What LangGraph's databases hold of a thread, as it is stored: rows with encoded values.

`sources` reads them, and `decoding` decodes their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from ..errors import PregelError


class EncodedValue(NamedTuple):
    """A value as LangGraph's serializer has written it.

    Attributes:
        type: how it is encoded, such as "msgpack" or "null".
        data: the bytes.
    """

    type: str
    data: bytes


class StoredWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A write of a task, which LangGraph stores as the task finishes.

    Attributes:
        task_id: LangGraph's id of the task.
        path: the position of the task, as text; "" in databases of older versions.
        channel: the channel that is written, or a name of LangGraph's own, such as "__interrupt__".
        value: the value.
    """

    task_id: str
    path: str
    channel: str
    value: EncodedValue


class LangGraphCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of a graph.

    Attributes:
        checkpoint_id: LangGraph's id.
        body: the checkpoint, encoded as a whole; None if its parts are stored separately.
        document: the checkpoint's fields in JSON, if its parts are stored separately; else empty.
        blobs: the values of channels that are not in the document, by channel.
        metadata: the metadata.
        writes: the writes of the tasks of the superstep that follows the checkpoint, in order.
    """

    checkpoint_id: str
    body: EncodedValue | None = None
    document: Mapping[str, Any] = {}
    blobs: Mapping[str, EncodedValue] = {}
    metadata: Mapping[str, Any]
    writes: Sequence[StoredWrite]


class StoredThread(msgspec.Struct, frozen=True, kw_only=True):
    """A thread.

    Attributes:
        thread_id: the thread's id.
        checkpoints: the newest checkpoint of the root graph, last, and those before it on its branch if they were
            asked for.
        others: the number of the root graph's checkpoints on other branches.
        namespaces: the number of checkpoints of each subgraph's namespace.
        kept: the newest state of each subgraph that keeps its state from call to call, by its namespace, as of the
            beginning of the open superstep.
    """

    thread_id: str
    checkpoints: Sequence[LangGraphCheckpoint]
    others: int
    namespaces: Mapping[str, int]
    kept: Mapping[str, LangGraphCheckpoint] = {}


class ThreadSource(Protocol):
    """A database of LangGraph's, open for reading."""

    def thread_ids(self) -> list[str]:
        """Return the ids of all threads, sorted."""
        ...

    def thread(self, thread_id: str, *, history: bool) -> StoredThread | None:
        """Read a thread as of one moment; None if nothing is stored of its root graph.

        Args:
            thread_id: the thread.
            history: True for the whole branch of the newest checkpoint, False for that checkpoint alone.
        """
        ...

    def close(self) -> None:
        """Close the database."""
        ...


class NotLangGraphError(PregelError, ValueError):
    """A file or database is none that LangGraph's savers have written, or it cannot be read.

    Attributes:
        source: the file or URL.
    """

    def __init__(self, source: str, reason: str) -> None:
        self.source = source
        super().__init__(
            f"{source} cannot be imported: {reason}. Name a database of langgraph-checkpoint-sqlite (a file) or "
            "langgraph-checkpoint-postgres (postgresql://...)"
        )


class LangGraphNotInstalledError(PregelError, ImportError):
    """The values of LangGraph's databases are decoded by LangGraph itself, which is not installed in this process."""

    def __init__(self, missing: str) -> None:
        super().__init__(
            f"values of LangGraph's databases are decoded by LangGraph, and {missing!r} is not installed here: "
            "pip install langgraph, in the environment that also has the application whose types the threads hold",
            name=missing,
        )


class UndecodableThreadError(PregelError, ValueError):
    """A thread cannot be imported. The message says why; nothing of the thread is stored."""
