"""An application's lifespan: open the saver, pick up what was cut off, and drain at the end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import anyio

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.children import start_soon

from .._api.compiled import Graph
from .._runtime.platform.event_loops import alone
from ..errors import ConfigError
from .pick_up import ResumeArguments, pick_up_all
from .service import STATE_KEY, Service, check_grace
from .signals import on_exit_signal

Lifespan = Callable[[Any], AbstractAsyncContextManager[dict[str, Any]]]


def graph_lifespan(
    *graphs: Graph[Any, Any], saver: Any = None, pick_up: bool | ResumeArguments = False, grace: float = 30.0
) -> Lifespan:
    """The lifespan of an application that serves graphs.

        app = FastAPI(lifespan=graph_lifespan(graph, saver=lambda: SqliteSaver.from_conn_string("chats.db")))

    or, inside a lifespan of your own:

        async with graph_lifespan(graph, saver=...)(app) as state:
            yield state

    When the server is told to stop (SIGTERM, SIGINT), runs stop at their next barrier, where they can be gone on with;
    their clients are told `end {"status": "drained"}`, and new requests are refused with 503.

    Args:
        graphs: those that are served. Endpoints of them store their threads with the saver.
        saver: opened when the application starts and closed when it has ended: a saver, or what makes one, where the
            application is started more than once in a process. None where the graphs have savers of their own.
        pick_up: resume threads whose last run was cut off by a crash or a shutdown, of this process or of another, in
            the background: True; or a function that gives, for a thread's id, arguments that the run needs again, such
            as `{"context": ...}`, or None to leave it alone. Looks for them on start, and every 10 seconds. Only runs
            that endpoints have started are picked up.
        grace: seconds that runs have to get to their next barrier; then they are cancelled, and what their tasks had
            not finished runs again. Let the server wait longer (`uvicorn --timeout-graceful-shutdown`).

    Raises:
        ConfigError: `grace` is no number of seconds, 0 or more; or several graphs have one name, so that it cannot be
            told whose thread is to be picked up; or a graph whose threads are to be has no saver; or, when the
            application starts, `saver` is none.
    """
    grace = check_grace(grace)
    names = [graph.name for graph in graphs]
    if pick_up and len(set(names)) < len(names):
        raise ConfigError("graphs whose threads are picked up have names of their own: compile(name=...)")
    if pick_up and saver is None and not all(isinstance(graph.checkpointer, BaseCheckpointSaver) for graph in graphs):
        raise ConfigError("pick_up= goes on with stored threads: give saver=, or graphs with savers of their own")

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncGenerator[dict[str, Any], None]:
        async with AsyncExitStack() as stack:
            opened = await _open_saver(saver, stack)
            service = Service(graphs, opened, grace=grace)
            stack.enter_context(on_exit_signal(service))
            state = getattr(app, "state", None)
            if state is not None:
                setattr(state, STATE_KEY, service)
            try:
                async with anyio.create_task_group() as group:
                    if pick_up:
                        start_soon(group, pick_up_all, service, None if pick_up is True else pick_up)
                    try:
                        yield {STATE_KEY: service}
                    finally:
                        service.drain()
                        group.cancel_scope.deadline = anyio.current_time() + grace
            except BaseExceptionGroup as group_error:
                raise alone(group_error) from None

    return lifespan


async def _open_saver(saver: Any, stack: AsyncExitStack) -> BaseCheckpointSaver | None:
    source: Any = saver() if callable(saver) and not isinstance(saver, BaseCheckpointSaver) else saver
    opened: object = await stack.enter_async_context(source) if hasattr(source, "__aenter__") else source
    if opened is not None and not isinstance(opened, BaseCheckpointSaver):
        raise ConfigError(f"saver= is a saver, or what makes one, not a {type(opened).__name__}")
    return opened
