"""Import threads one by one: read, convert, store each in one transaction, and report."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from functools import partial
from typing import Any, Literal

import anyio
import anyio.to_thread
import msgspec
import msgspec.structs

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.errors import ThreadExistsError, UnstorableValueError
from checkpoint_savers.upkeep.threads import load_thread

from .._api.compiled import Graph
from .._api.plugins import plugin
from ..errors import ConfigError, InvalidUpdateError
from .decoding import Decoder
from .mapping import ImportedQuestion, MappedThread, map_thread
from .sources import open_source
from .stored import StoredThread, ThreadSource, UndecodableThreadError

ImportStatus = Literal["imported", "replaced", "would be imported", "would be replaced", "exists", "refused"]
"""What has become of a thread."""


class ThreadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was, or would be, imported of a thread.

    Attributes:
        thread_id: the thread's id, which it keeps.
        status: "imported" or "replaced"; "would be ..." in a dry run; "exists" if the target has a thread of this id,
            which was left alone; "refused" if it cannot be imported.
        reason: why it was refused; else "".
        step: the number of the last superstep; None if the thread was not read.
        checkpoints: the number of checkpoints that are kept.
        keys: the state keys that hold a value.
        messages: the number of messages in the state.
        next: the nodes that run next.
        questions: the pending questions that are kept, with their ids here and in LangGraph.
        lost: what cannot be kept, and why.
    """

    thread_id: str
    status: ImportStatus
    reason: str = ""
    step: int | None = None
    checkpoints: int = 0
    keys: tuple[str, ...] = ()
    messages: int = 0
    next: tuple[str, ...] = ()
    questions: tuple[ImportedQuestion, ...] = ()
    lost: tuple[str, ...] = ()


async def import_threads(
    graph: Graph[Any, Any],
    source: str,
    *,
    thread_ids: Iterable[str] | None = None,
    history: bool = False,
    replace: bool = False,
    dry_run: bool = False,
) -> AsyncGenerator[ThreadReport, None]:
    """Import threads of LangGraph's into the saver that a graph was compiled with.

    LangGraph has to be installed, and the classes of the application's values to be importable. LangGraph's serializer
    imports the classes that the data names, so import only databases that you trust. The source is only read. A thread
    is stored in one transaction, so that an import that is killed leaves each thread whole or not at all, and may be
    repeated: threads that the saver has are left alone.

    Args:
        graph: the graph that will continue the threads. Its nodes and keys should be those of the LangGraph program.
        source: the path of a file of langgraph-checkpoint-sqlite, or the URL of a database of
            langgraph-checkpoint-postgres.
        thread_ids: the threads; None for all.
        history: True to import the checkpoints before the newest one too, False for the newest alone.
        replace: True to replace a thread that the saver has, in the transaction that stores it.
        dry_run: True to store nothing.

    Yields:
        A report of each thread, after it was stored, in the order of the ids.

    Raises:
        ConfigError: the graph has no checkpointer.
        NotLangGraphError: the source is no database of LangGraph's.
        LangGraphNotInstalledError: LangGraph is not installed.
        ThreadBusyError: a run holds the thread in the saver. The threads before it are stored.
        StorageError: storing failed. The threads before it are stored.
    """
    saver = graph.checkpointer
    if not isinstance(saver, BaseCheckpointSaver):
        raise ConfigError("the graph has no checkpointer to import threads into: compile it with one")
    importer = _Importer(graph, saver, Decoder(), history=history, replace=replace, dry_run=dry_run)
    opened = await anyio.to_thread.run_sync(open_source, source)
    try:
        stored = await anyio.to_thread.run_sync(opened.thread_ids)
        known = set(stored)
        for thread_id in stored if thread_ids is None else dict.fromkeys(thread_ids):
            if thread_id in known:
                yield await importer.thread(opened, thread_id)
            else:
                yield ThreadReport(thread_id=thread_id, status="refused", reason="the database has no such thread")
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(opened.close)


class _Importer:
    """Imports threads into one saver."""

    def __init__(
        self,
        graph: Graph[Any, Any],
        saver: BaseCheckpointSaver,
        decoder: Decoder,
        *,
        history: bool,
        replace: bool,
        dry_run: bool,
    ) -> None:
        self._definition = graph._definition
        self._environment = graph.environment
        self._saver = saver
        self._decoder = decoder
        self._history = history
        self._replace = replace
        self._dry_run = dry_run
        assert self._definition.codec is not None
        # LangGraph's threads hold messages of langchain-core, whether or not a schema of the graph names their classes.
        self._codec = plugin("message types").with_messages(self._definition.codec)

    async def thread(self, source: ThreadSource, thread_id: str) -> ThreadReport:
        """Import one thread."""
        exists = bool(await self._saver.scan(thread_id, None, limit=1))
        if exists and not self._replace:
            return ThreadReport(thread_id=thread_id, status="exists")
        try:
            stored = await anyio.to_thread.run_sync(partial(source.thread, thread_id, history=self._history))
            if stored is None:
                raise UndecodableThreadError("the database holds states of subgraphs of it only")
            mapped = await anyio.to_thread.run_sync(self._map, stored)
        except (UndecodableThreadError, UnstorableValueError, InvalidUpdateError) as error:
            return ThreadReport(thread_id=thread_id, status="refused", reason=str(error))
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # a field is missing, or of another type
            reason = f"it is damaged, or of a format that is not known here ({type(error).__name__}: {error})"
            return ThreadReport(thread_id=thread_id, status="refused", reason=reason)
        if self._dry_run:
            return _report(mapped, thread_id, "would be replaced" if exists else "would be imported")
        try:
            await load_thread(self._saver, thread_id, msgspec.structs.replace(mapped.dump, replaces=exists))
        except ThreadExistsError:  # a run has begun it meanwhile
            return ThreadReport(thread_id=thread_id, status="exists")
        return _report(mapped, thread_id, "replaced" if exists else "imported")

    def _map(self, stored: StoredThread) -> MappedThread:
        return map_thread(stored, self._definition, self._codec, self._decoder, self._environment)


def _report(mapped: MappedThread, thread_id: str, status: ImportStatus) -> ThreadReport:
    return ThreadReport(
        thread_id=thread_id,
        status=status,
        step=mapped.step,
        checkpoints=len(mapped.dump.rows),
        keys=mapped.keys,
        messages=mapped.messages,
        next=mapped.next,
        questions=mapped.questions,
        lost=mapped.lost,
    )
