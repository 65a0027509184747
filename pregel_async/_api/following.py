"""Follow the stored events of a thread whose runs a service executes, without running code of the graph."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from .._checks.options import names_of_modes
from .._runtime.streaming.buffer import CAPACITY, Buffer
from .._runtime.streaming.parts import Cursor, shape_of
from .._runtime.streaming.stream import GraphStream
from .._runtime.streaming.subscription import Subscription
from ..parts import StreamPart
from ..types import StreamMode
from .calls import coercion_of
from .definition import Definition


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
