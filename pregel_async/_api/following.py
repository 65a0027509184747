"""Follow the stored events of a thread whose runs a service executes, without running code of the graph."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from checkpoint_savers.codec import Codec

from .._checks.options import names_of_modes
from .._runtime.streaming.buffer import CAPACITY, Buffer
from .._runtime.streaming.modes.mode import Coerce
from .._runtime.streaming.parts import Cursor, RawPart, log_entry, shape_of
from .._runtime.streaming.stream import GraphStream
from .._runtime.streaming.subscription import Subscription
from ..parts import StreamPart, ThreadPart
from ..types import StreamMode
from .calls import coercion_of
from .definition import Definition

if TYPE_CHECKING:
    from .._runtime.streaming.thread_log import ThreadRuns


def follow(
    graph: Definition,
    thread_id: str,
    after: Cursor,
    wait: Callable[[], Awaitable[Cursor | None]],
    *,
    run_id: str,
    modes: StreamMode | Sequence[StreamMode],
    subgraphs: bool,
) -> GraphStream[StreamPart]:
    """Return the stream of a thread's parts after a cursor.

    Args:
        graph: the graph of the thread's runs, bound to their saver.
        thread_id: the thread.
        after: the cursor of the last part that the reader has.
        wait: see `replay.follow`.
        run_id: the run that is followed.
        modes: the modes to show.
        subgraphs: parts of subgraphs are shown, too.

    Raises:
        ConfigError: a mode is unknown.
    """
    names = names_of_modes(modes)
    saver = graph.saver
    assert saver is not None  # a service binds its graphs to its saver
    buffer = Buffer(CAPACITY)
    subscription = Subscription(
        names, buffer, subgraphs=subgraphs, reports_errors=True, has_own_task=True, reconnects=True, number=after.seq
    )

    async def work(buffer: Buffer) -> None:
        from .._runtime.streaming import replay  # imported here: most programs never follow a run

        await replay.follow(
            buffer,
            subscription,
            after,
            saver,
            thread_id,
            graph.events_codec(),
            graph.live,
            wait,
            run_id=run_id,
            coerce=partial(coercion_of, graph),
        )

    shape = shape_of("v2", labelled=not isinstance(modes, str), subgraphs=subgraphs)
    return GraphStream(work, buffer, shape, subscription, cursor=str(after))


def follow_thread(
    graph: Definition,
    thread_id: str,
    after: Cursor,
    runs: ThreadRuns,
    *,
    modes: StreamMode | Sequence[StreamMode],
    subgraphs: bool,
) -> GraphStream[ThreadPart]:
    """Return the stream of a thread's log after a cursor.

    Args:
        graph: a graph that is bound to the thread's saver.
        thread_id: the thread.
        after: the cursor of the last part that the reader has.
        runs: the thread's runs.
        modes, subgraphs: as for `follow`.

    Raises:
        ConfigError: a mode is unknown.
    """
    saver = graph.saver
    assert saver is not None  # a service binds its graphs to its saver
    buffer = Buffer(CAPACITY)
    subscription = Subscription(
        names_of_modes(modes), buffer, subgraphs=subgraphs, reports_errors=True, has_own_task=True, reconnects=True
    )

    async def work(buffer: Buffer) -> None:
        from .._runtime.streaming import thread_log  # imported here: most programs never follow a thread

        await thread_log.follow_thread(buffer, subscription, after, saver, thread_id, runs, graph.events_codec())

    return GraphStream(work, buffer, log_entry, subscription, cursor=str(after))


def decoding_of(graph: Definition) -> tuple[Codec, Callable[[RawPart], Coerce | None]]:
    """Return what decodes the events of a graph's runs, and converts their states."""
    return graph.events_codec(), partial(coercion_of, graph)
