"""Resume runs that were cut off when this application, or another process with the same threads, ended."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from math import inf
from typing import Any, TypeAlias

import anyio
from anyio.abc import TaskGroup
from msgspec.structs import replace

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.children import start_soon
from checkpoint_savers.errors import StorageError, ThreadBusyError
from checkpoint_savers.owner import is_gone, is_live
from checkpoint_savers.records import CheckpointId, Header, Owner
from checkpoint_savers.saver_port import LEASE_SECONDS

from .._api.compiled import Graph
from .._runtime.platform.looking import look_repeatedly
from .._runtime.streaming.event_window import EventWindow
from .._runtime.streaming.parts import END, Cursor
from .._runtime.streaming.stored_events import StoredRun
from ..errors import GraphDrained, RecordedFailureError, RunCancelledError
from .failures import log
from .run_metadata import INTERRUPT_AFTER, INTERRUPT_BEFORE, RunMetadata, runtime_modes
from .service import Service

ResumeArguments: TypeAlias = Callable[[str], Awaitable[Mapping[str, Any] | None] | Mapping[str, Any] | None]
"""Maps a thread's id to the arguments that its run needs again. None leaves the thread alone."""

MAX_CONCURRENT_RESUMES = 8
"""Number of threads that are resumed at the same time."""

SCAN_INTERVAL = LEASE_SECONDS / 3
"""Seconds between two scans of all threads, at least. A run whose process has died on another host is resumed at the
first scan after its lease has lapsed."""

LOOK_EVERY = 1.0
"""Seconds between two looks, at most, whether the processes that had threads at the last scan have ended."""


async def pick_up_all(service: Service, resume_arguments: ResumeArguments | None) -> None:
    """Resume threads that were cut off, now and whenever a later scan finds one, until the service drains.

    Other processes that serve the same threads start and end at any time. If one is killed, the leases on its threads
    lapse; if one shuts down, it releases them. Failures are logged, because no caller waits for these runs.

    Args:
        service: the service whose graphs' threads are resumed.
        resume_arguments: returns the arguments that a thread's run needs again; None if runs need none.
    """
    slots = anyio.Semaphore(MAX_CONCURRENT_RESUMES)
    savers = {id(each.checkpointer): each.checkpointer for each in service.graphs}.values()
    scanners = [
        _ThreadScanner(service, saver, resume_arguments, slots)
        for saver in savers
        if isinstance(saver, BaseCheckpointSaver)
    ]
    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scan_scope:
            start_soon(group, _cancel_when_draining, service, scan_scope)
            async with anyio.create_task_group() as looking:
                for scanner in scanners:
                    look, environment = partial(scanner.look, group), service.graphs[0].environment
                    start_soon(looking, look_repeatedly, look, environment, LOOK_EVERY, log)


async def _cancel_when_draining(service: Service, scan_scope: anyio.CancelScope) -> None:
    """Cancel the scans when the service drains."""
    await service.draining.wait()
    scan_scope.cancel()


class _ThreadScanner:
    """Finds threads of one saver that were cut off.

    Args:
        slots: limits how many runs are resumed at the same time, over all scanners.
    """

    def __init__(
        self,
        service: Service,
        saver: BaseCheckpointSaver,
        resume_arguments: ResumeArguments | None,
        slots: anyio.Semaphore,
    ) -> None:
        self._service = service
        self._saver = saver
        self._resume_arguments = resume_arguments
        self._slots = slots
        self._graphs = {graph.name: graph for graph in service.graphs if graph.checkpointer is saver}
        self._scanned: dict[str, tuple[int, CheckpointId | None]] = {}
        self._owners: set[Owner] = set()  # that had live leases at the last scan: one of each process
        self._next_scan = -inf  # by the environment's monotonic clock
        self._retry_later: set[str] = set()  # ids of threads whose resume failed in storage

    async def look(self, group: TaskGroup) -> None:
        """Scan all threads if it is time, or if a process that had one at the last scan has ended on this host."""
        now = self._service.graphs[0].environment.monotonic()
        if now >= self._next_scan or any(map(is_gone, self._owners)):
            self._next_scan = now + SCAN_INTERVAL
            await self._scan(group)

    async def _scan(self, group: TaskGroup) -> None:
        """Resume the threads that were cut off since the last scan."""
        found: dict[str, tuple[int, CheckpointId | None]] = {}
        owners: set[Owner] = set()
        now = self._saver.clock()
        async with aclosing(self._saver.alist_threads()) as threads:
            async for thread in threads:
                if thread.owner is not None and is_live(thread.owner, thread.expires_at, now=now):
                    # Some process runs the thread, perhaps this one. The thread is not in `found`, so that the first
                    # scan after its lease has ended sees it as changed.
                    owners.add(replace(thread.owner, run_id=""))
                    continue
                # Epoch and newest checkpoint change with each run. A thread that no run has touched since the last scan
                # costs no read: most threads have ended long ago.
                found[thread.thread_id] = state = thread.epoch, thread.newest
                if self._scanned.get(thread.thread_id) != state or thread.thread_id in self._retry_later:
                    self._retry_later.discard(thread.thread_id)
                    await self._start_resume(group, thread.thread_id)
        # Only after a whole scan: after a failed one, the next must not skip threads that this one did not reach.
        self._scanned, self._owners = found, owners

    async def _start_resume(self, group: TaskGroup, thread_id: str) -> None:
        """Start to resume a thread, if an endpoint of this service started its last run."""
        for newest in await self._saver.scan(thread_id, "", limit=1):
            graph = self._graphs.get(RunMetadata.from_metadata(newest.metadata).graph)
            if graph is not None and not self._service.control.drain_requested:
                # Acquire here and not in the child, so that the scan waits, instead of starting a task for each thread.
                await self._slots.acquire()
                start_soon(
                    group, _resume, self._service, graph, newest, self._resume_arguments, self._slots, self._retry_later
                )


async def _was_dismissed(graph: Graph[Any, Any], thread_id: str, at: CheckpointId) -> bool:
    """Return True if a thread's last run was cancelled for good: its client had disconnected."""
    saver, status = graph.checkpointer, None
    if isinstance(saver, BaseCheckpointSaver):
        window = EventWindow(saver, thread_id)
        await window.advance(at)
        run = StoredRun(window, Cursor(at, 0, 0), graph.events_codec())
        run.load()
        for part in run.parts():
            status = part.data["status"] if part.mode == END else None
    return status == "cancelled"


async def _resume(
    service: Service,
    graph: Graph[Any, Any],
    header: Header,
    resume_arguments: ResumeArguments | None,
    slots: anyio.Semaphore,
    retry_later: set[str],
) -> None:
    """Resume one thread.

    Args:
        slots: one of them is released at the end.
        retry_later: gets the thread's id if storage has failed. The thread is unchanged then, and the next scan must
            not skip it.
    """
    thread_id = header.thread_id
    try:
        returned: Any = {} if resume_arguments is None else resume_arguments(thread_id)
        if inspect.isawaitable(returned):
            returned = await returned
        if returned is None:
            return
        overrides: dict[str, Any] = dict(returned)
        run_metadata = RunMetadata.from_metadata(header.metadata)
        if run_metadata.has_context and "context" not in overrides:
            log.warning(
                "thread %r was cut off and is not resumed: its nodes have a context, which is not stored. Pass a "
                "function as pick_up= that returns the context, or wait for the client to reconnect",
                thread_id,
            )
            return
        run_metadata.attempt += 1
        config: dict[str, Any] = {**overrides.get("config", {}), "run_id": run_metadata.run_id}
        config["metadata"] = {**config.get("metadata", {}), **run_metadata.to_metadata(graph.name)}
        config["configurable"] = {**config.get("configurable", {}), "thread_id": thread_id}
        arguments = {key: value for key, value in overrides.items() if key != "config"}
        if await _was_dismissed(graph, thread_id, header.checkpoint_id):
            return
        # Reading on after the newest checkpoint (`after=`), instead of calling the graph with input None, makes no
        # difference to a run that was cut off: it is resumed. But a run that has ended only replays how it ended.
        breakpoints: dict[str, Any] = {
            INTERRUPT_BEFORE: run_metadata.interrupt_before,
            INTERRUPT_AFTER: run_metadata.interrupt_after,
        }
        stream = graph.astream(
            None,
            config,
            stream_mode=runtime_modes(run_metadata.modes) or ["values"],
            subgraphs=run_metadata.subgraphs,
            after=str(Cursor(header.checkpoint_id, 0, 0)),
            control=service.control,
            version="v2",
            **{**breakpoints, **arguments},
        )
        await stream.finish()
    except (ThreadBusyError, GraphDrained, RecordedFailureError, RunCancelledError):
        # Another process resumed the thread first; or this service drains; or the run had failed, or was cancelled,
        # before. None of these is a failure of the resume.
        pass
    except Exception as error:
        if isinstance(error, StorageError):
            retry_later.add(thread_id)
        log.exception("thread %r was resumed, and its run has failed", thread_id)
    finally:
        slots.release()
