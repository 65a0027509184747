"""The lifespan of an application that serves graphs: open the saver, resume cut off runs, drain at shutdown."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import anyio

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.children import start_soon

from .._api.compiled import Graph
from .._runtime.platform.event_loops import task_group
from ..errors import ConfigError
from .pick_up import ResumeArguments, pick_up_all
from .service import STATE_KEY, Service, check_grace
from .signals import on_exit_signal

Lifespan = Callable[[Any], AbstractAsyncContextManager[dict[str, Any]]]


def graph_lifespan(
    *graphs: Graph[Any, Any], saver: Any = None, pick_up: bool | ResumeArguments = False, grace: float = 30.0
) -> Lifespan:
    """Make the lifespan of an application that serves graphs.

        app = FastAPI(lifespan=graph_lifespan(graph, saver=lambda: SqliteSaver.from_conn_string("chats.db")))

    or, inside a lifespan of your own:

        async with graph_lifespan(graph, saver=...)(app) as state:
            yield state

    When the server is asked to stop (SIGTERM, SIGINT), runs stop at their next barrier, where they can be resumed.
    Their clients get the event `end {"status": "drained"}`, and new requests are answered with 503.

    Args:
        graphs: the graphs that the application serves. Their endpoints store threads with the saver.
        saver: a saver, or a function that makes one; use a function if the application starts more than once in a
            process. It is opened when the application starts and closed when the application has ended. None if the
            graphs were compiled with savers.
        pick_up: True resumes, in the background, threads whose last run was cut off by a crash or a shutdown of this or
            another process. A function does so too: it gets a thread's id and returns the arguments that the run needs
            again, such as `{"context": ...}`, or None to leave the thread alone; it may be async. The application looks
            for such threads when it starts and every 10 seconds, and when a process of this host has ended. Only runs
            that endpoints started are resumed.
        grace: seconds that runs have to reach their next barrier at shutdown. Then they are cancelled, and tasks that
            had not finished run again after a resume. Let the server wait longer (`uvicorn
            --timeout-graceful-shutdown`).

    Returns:
        A function that makes the lifespan's async context manager: pass it as the application's `lifespan=`.

    Raises:
        ConfigError: `grace` is not a number of seconds, 0 or more; or `pick_up` is set, and several graphs have one
            name, so that a stored thread could belong to either, or a graph has no saver. The lifespan itself raises it
            when the application starts, if `saver` is neither a saver nor makes one.
    """
    grace = check_grace(grace)
    # A stored run names its graph by this name alone: `pick_up` must find one graph by it.
    names = [graph.name for graph in graphs]
    if pick_up and len(set(names)) < len(names):
        raise ConfigError("pick_up= finds a thread's graph by its name: give each graph its own, by compile(name=...)")
    if pick_up and saver is None and not all(isinstance(graph.checkpointer, BaseCheckpointSaver) for graph in graphs):
        raise ConfigError("pick_up= resumes stored threads: give saver=, or compile each graph with a saver")

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncGenerator[dict[str, Any], None]:
        async with AsyncExitStack() as stack:
            opened = await _open_saver(saver, stack)
            service = Service(graphs, opened, grace=grace)
            stack.enter_context(on_exit_signal(service))
            state = getattr(app, "state", None)
            if state is not None:
                setattr(state, STATE_KEY, service)
            # Resumed runs log their failures and raise none, so the group can only hold what interrupted this task.
            async with task_group() as group:
                if pick_up:
                    start_soon(group, pick_up_all, service, None if pick_up is True else pick_up)
                try:
                    yield {STATE_KEY: service}
                finally:
                    # The server may have stopped without a signal that `on_exit_signal` saw: draining again is
                    # harmless. The deadline bounds how long resumed runs, which no request waits for, hold up the
                    # shutdown; the saver is closed after them.
                    service.drain()
                    group.cancel_scope.deadline = anyio.current_time() + grace

    return lifespan


async def _open_saver(saver: Any, stack: AsyncExitStack) -> BaseCheckpointSaver | None:
    """Open the application's saver, to be closed with the stack; call it first if it is a function."""
    source: Any = saver() if callable(saver) and not isinstance(saver, BaseCheckpointSaver) else saver
    opened: object = await stack.enter_async_context(source) if hasattr(source, "__aenter__") else source
    if opened is not None and not isinstance(opened, BaseCheckpointSaver):
        raise ConfigError(f"saver= must be a saver, or a function that makes one, not a {type(opened).__name__}")
    return opened
