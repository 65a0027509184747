"""Running on with what was cut off when the application last ended."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeAlias

import anyio

from checkpoint_savers.abc import PAGE, BaseCheckpointSaver
from checkpoint_savers.errors import ThreadBusyError
from checkpoint_savers.records import CheckpointId, Header

from .._runtime.kept import read_kept
from .._runtime.part import END, Cursor
from ..compiled import Graph
from ..errors import GraphDrained, RecordedFailureError, RunCancelledError
from .failures import log
from .known import AFTER, BEFORE, GRAPH, Known, modes_of
from .service import Service

Again: TypeAlias = Callable[[str], Awaitable[Mapping[str, Any] | None] | Mapping[str, Any] | None]
"""What a thread's run needs again; None leaves it alone."""

AT_ONCE = 8
"""Threads that are picked up at the same time."""


async def pick_up_all(service: Service, again: Again | None) -> None:
    """Run on with all threads of a service that were cut off. Failures are logged: nobody waits for them."""
    places = anyio.Semaphore(AT_ONCE)
    try:
        async with anyio.create_task_group() as group:
            for saver in {id(each.checkpointer): each.checkpointer for each in service.graphs}.values():
                if not isinstance(saver, BaseCheckpointSaver):
                    continue
                graphs = {graph.name: graph for graph in service.graphs if graph.checkpointer is saver}
                async for header in _newest(saver):
                    graph = graphs.get(header.metadata.get(GRAPH, ""))
                    if graph is None or service.control.drain_requested:
                        continue
                    await places.acquire()
                    group.start_soon(_pick_up, service, graph, header, again, places)
    except Exception:  # it must not take the application with it
        log.exception("the threads cannot be listed, so that none more is picked up")


async def _newest(saver: BaseCheckpointSaver) -> AsyncGenerator[Header, None]:
    """The newest checkpoint of each thread's own graph."""
    known: set[str] = set()
    before: CheckpointId | None = None
    size = PAGE
    while True:
        page = await saver.scan(None, "", before=before, limit=size)
        for header in page:
            if header.thread_id not in known:
                known.add(header.thread_id)
                yield header
        if len(page) < size:
            return
        before = CheckpointId(page[-1].checkpoint_id + "\x01")  # again: copies of a thread have the same ids
        size = PAGE + sum([header.checkpoint_id < before for header in page])


async def _was_dismissed(graph: Graph[Any, Any], thread_id: str, at: CheckpointId) -> bool:
    """Whether the last that was kept of a thread is that its run was cancelled because nobody wanted it any more."""
    saver, status = graph.checkpointer, None
    if isinstance(saver, BaseCheckpointSaver):
        async with aclosing(read_kept(saver, thread_id, Cursor(at, 0, 0), graph.events_codec())) as parts:
            async for part in parts:
                status = part.data["status"] if part.mode == END else None
    return status == "cancelled"


async def _pick_up(
    service: Service, graph: Graph[Any, Any], header: Header, again: Again | None, places: anyio.Semaphore
) -> None:
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
    except Exception:
        log.exception("thread %r was picked up, and its run has failed", thread_id)
    finally:
        places.release()
