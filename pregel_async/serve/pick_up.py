"""Resuming what was cut off: when the application last ended, or another process of it since."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeAlias

import anyio
from anyio.abc import TaskGroup

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.children import start_soon
from checkpoint_savers.errors import StorageError, ThreadBusyError
from checkpoint_savers.lease import LEASE_SECONDS
from checkpoint_savers.owner import is_live
from checkpoint_savers.records import CheckpointId, Header

from .._api.compiled import Graph
from .._runtime.streaming.parts import END, Cursor
from .._runtime.streaming.stored_events import StoredRun
from ..errors import GraphDrained, RecordedFailureError, RunCancelledError
from .failures import log
from .known import AFTER, BEFORE, Known, modes_of
from .service import Service

Again: TypeAlias = Callable[[str], Awaitable[Mapping[str, Any] | None] | Mapping[str, Any] | None]
"""What a thread's run needs again; None leaves it alone."""

AT_ONCE = 8
"""Threads that are picked up at the same time."""


LOOK_SECONDS = LEASE_SECONDS / 3
"""Time between two looks. A run whose process has died on another host waits for its lease to lapse, and then for the
next look."""


async def pick_up_all(service: Service, again: Again | None) -> None:
    """Resume the threads of a service that were cut off: now, and those that a later look finds, until it drains.

    Other processes that serve the same threads come and go. One that dies leaves leases that lapse, and one that shuts
    down releases its own. Failures are logged, as no caller waits for them.
    """
    slots = anyio.Semaphore(AT_ONCE)
    savers = {id(each.checkpointer): each.checkpointer for each in service.graphs}.values()
    looks = [_Look(service, saver, again, slots) for saver in savers if isinstance(saver, BaseCheckpointSaver)]
    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as looking:
            start_soon(group, _cancel_when_draining, service, looking)
            while looks:
                for look in looks:
                    await look.start_what_it_finds(group)
                await service.graphs[0].environment.sleep(LOOK_SECONDS)


async def _cancel_when_draining(service: Service, looking: anyio.CancelScope) -> None:
    await service.draining.wait()
    looking.cancel()


class _Look:
    """Looks for threads of one saver that were cut off, again and again; each costs what has changed since the last.

    Args:
        slots: for runs that are resumed at the same time.
    """

    def __init__(
        self, service: Service, saver: BaseCheckpointSaver, again: Again | None, slots: anyio.Semaphore
    ) -> None:
        self._service = service
        self._saver = saver
        self._again = again
        self._slots = slots
        self._graphs = {graph.name: graph for graph in service.graphs if graph.checkpointer is saver}
        self._seen: dict[str, tuple[int, CheckpointId | None]] = {}
        self._again_later: set[str] = set()  # threads that storage kept from being resumed

    async def start_what_it_finds(self, group: TaskGroup) -> None:
        """Look once. A failure is logged: it must not take the application with it, and another look follows."""
        found: dict[str, tuple[int, CheckpointId | None]] = {}
        now = self._service.graphs[0].environment.now()
        try:
            async with aclosing(self._saver.alist_threads()) as threads:
                async for thread in threads:
                    if thread.owner is not None and is_live(thread.owner, thread.expires_at, now=now):
                        continue  # it runs, here or elsewhere. If it is cut off, a later look finds it changed
                    found[thread.thread_id] = state = thread.epoch, thread.newest
                    if self._seen.get(thread.thread_id) != state or thread.thread_id in self._again_later:
                        self._again_later.discard(thread.thread_id)
                        await self._start(group, thread.thread_id)
        except Exception:
            log.exception("the threads cannot be listed, so that none more is picked up before the next look")
        else:
            self._seen = found

    async def _start(self, group: TaskGroup, thread_id: str) -> None:
        for newest in await self._saver.scan(thread_id, "", limit=1):
            graph = self._graphs.get(Known.of(newest.metadata).graph)
            if graph is not None and not self._service.control.drain_requested:
                await self._slots.acquire()
                start_soon(group, _pick_up, self._service, graph, newest, self._again, self._slots, self._again_later)


async def _was_dismissed(graph: Graph[Any, Any], thread_id: str, at: CheckpointId) -> bool:
    """Whether the last that was kept of a thread is that its run was cancelled because nobody wanted it any more."""
    saver, status = graph.checkpointer, None
    if isinstance(saver, BaseCheckpointSaver):
        run = StoredRun(saver, thread_id, Cursor(at, 0, 0), graph.events_codec())
        await run.look()
        async with aclosing(run.parts()) as parts:
            async for part in parts:
                status = part.data["status"] if part.mode == END else None
    return status == "cancelled"


async def _pick_up(
    service: Service,
    graph: Graph[Any, Any],
    header: Header,
    again: Again | None,
    slots: anyio.Semaphore,
    again_later: set[str],
) -> None:
    """Resume one thread.

    Args:
        slots: one of them is released at the end.
        again_later: gets the thread's id if storage has failed, which leaves the thread as it was found.
    """
    thread_id = header.thread_id
    try:
        answer: Any = {} if again is None else again(thread_id)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is None:
            return
        more: dict[str, Any] = dict(answer)
        run = Known.of(header.metadata)
        if run.context and "context" not in more:
            log.warning(
                "thread %r was cut off and is left alone: its nodes have a context, which is not stored. Let pick_up= "
                "be a function that gives it again, or its client come back",
                thread_id,
            )
            return
        run.attempt += 1
        config: dict[str, Any] = {**more.get("config", {}), "run_id": run.run_id}
        config["metadata"] = {**config.get("metadata", {}), **run.metadata(graph.name)}
        config["configurable"] = {**config.get("configurable", {}), "thread_id": thread_id}
        arguments = {key: value for key, value in more.items() if key != "config"}
        if await _was_dismissed(graph, thread_id, header.checkpoint_id):
            return
        # Who comes back to the newest checkpoint learns how its run has ended; if it has not, it is run on with.
        stops: dict[str, Any] = {BEFORE: run.interrupt_before, AFTER: run.interrupt_after}
        stream = graph.astream(
            None,
            config,
            stream_mode=modes_of(run.modes) or ["values"],
            subgraphs=run.subgraphs,
            after=str(Cursor(header.checkpoint_id, 0, 0)),
            control=service.control,
            version="v2",
            **{**stops, **arguments},
        )
        await stream.finish()
    except (ThreadBusyError, GraphDrained, RecordedFailureError, RunCancelledError):
        pass  # it goes on elsewhere; it is to stop; it had failed before
    except Exception as error:
        if isinstance(error, StorageError):
            again_later.add(thread_id)
        log.exception("thread %r was picked up, and its run has failed", thread_id)
    finally:
        slots.release()
