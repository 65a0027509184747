"""The verbs without `async`: for Flask, Django and scripts, which have no event loop, and for notebooks, which run one.

Each verb runs its async twin and waits for it, so the two are one implementation. It runs on the process's background
loop, which the first call starts; in a worker thread of an event loop (a plain function as a node that invokes another
graph), on that loop. See `_runtime/sync/background_portal.py`, and `_runtime/sync/blocked_loop.py` for threads that run
a loop themselves.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, Unpack, overload

from checkpoint_savers.errors import annotate

from .._checks.options import (
    BatchOptions,
    InvokeOptions,
    OutputParts,
    OutputRecord,
    PlainOutput,
    StreamedParts,
    StreamOptions,
    UpdateOptions,
    given_to,
    takes,
)
from .._runtime.observing.error_text import with_notes
from .._runtime.streaming.stream import GraphStream
from .._runtime.tasks.context import CURRENT, counting_in_code_order
from ..parts import GraphOutput, StreamPart
from ..types import Command, Config, RunnableConfig, RunStatus, StateSnapshot, StateUpdate

if TYPE_CHECKING:
    from .._runtime.platform.environment import Environment
    from .._runtime.sync.background_portal import Portal, WorkerLoop  # a program with an event loop needs no other
    from .._runtime.sync.blocked_loop import WaitingThread

__all__ = ["SyncFace", "SyncStream", "open_sync"]

InputT = TypeVar("InputT", contravariant=True)
OutputT = TypeVar("OutputT", covariant=True)
T = TypeVar("T")
U = TypeVar("U")
T_co = TypeVar("T_co", covariant=True)


class SyncFace(Generic[InputT, OutputT]):
    """What a graph can do for callers that do not await: the async verbs, each by its name without the `a`.

    Arguments, results and exceptions are those of the async verb. On Ctrl-C, the run is cancelled and has ended before
    `KeyboardInterrupt` is raised. Any number of threads may call at the same time.

    In a thread in which an event loop is running, a verb blocks that loop until it returns, and a `BlockingCallWarning`
    says so, but in a notebook. Where the run itself needs the loop (an async node's code, for the graph that its run is
    on), the verb raises `SyncCallError`, and nothing runs.
    """

    if TYPE_CHECKING:

        @property
        def environment(self) -> Environment: ...

        # The twins, which the graph brings. That each verb hands on every argument is held by a test.
        async def ainvoke(self, *args: Any, **kwargs: Any) -> Any: ...
        def astream(self, *args: Any, **kwargs: Any) -> GraphStream[Any]: ...
        async def abatch(self, *args: Any, **kwargs: Any) -> list[OutputT]: ...
        async def aget_state(self, *args: Any, **kwargs: Any) -> StateSnapshot: ...
        def aget_state_history(self, *args: Any, **kwargs: Any) -> AsyncIterator[StateSnapshot]: ...
        async def aupdate_state(self, *args: Any, **kwargs: Any) -> RunnableConfig: ...
        async def abulk_update_state(self, *args: Any, **kwargs: Any) -> RunnableConfig: ...
        async def aclear_cache(self, *args: Any, **kwargs: Any) -> None: ...

    @overload
    def invoke(
        self, input: InputT | Command | None, config: Config | None = None, **options: Unpack[OutputRecord]
    ) -> GraphOutput[OutputT]: ...
    @overload
    def invoke(
        self, input: InputT | Command | None, config: Config | None = None, **options: Unpack[OutputParts]
    ) -> list[StreamPart]: ...
    @overload
    def invoke(
        self, input: InputT | Command | None, config: Config | None = None, **options: Unpack[PlainOutput]
    ) -> OutputT: ...
    @takes(InvokeOptions)
    def invoke(self, input: Any, config: Config | None = None, **options: Any) -> Any:
        """Run to the end, or to where the run pauses, and return the output: `ainvoke`, waited for."""
        return _wait(self.environment, self.ainvoke, input, config, **given_to("invoke", InvokeOptions, options))

    @overload
    def stream(
        self, input: InputT | Command | None, config: Config | None = None, **options: Unpack[StreamedParts]
    ) -> SyncStream[StreamPart]: ...
    @overload
    def stream(
        self, input: InputT | Command | None, config: Config | None = None, **options: Unpack[StreamOptions]
    ) -> SyncStream[Any]: ...
    @takes(StreamOptions)
    def stream(self, input: Any, config: Config | None = None, **options: Any) -> SyncStream[Any]:
        """Run, and show what happens while it does: `astream`, chunk by chunk.

        with graph.stream(input) as chunks:
            for chunk in chunks:
                ...

        The run starts with the first chunk that is asked for. A bad config raises here, all else while reading.
        """
        from .._runtime.sync.background_portal import check_thread

        check_thread("stream()", _ASTREAM)
        source: GraphStream[Any] = self.astream(input, config, **given_to("stream", StreamOptions, options))
        return SyncStream(source, "stream()", _ASTREAM, self.environment)

    @takes(BatchOptions)
    def batch(
        self, inputs: Sequence[InputT], config: Config | Sequence[Config] | None = None, **options: Unpack[BatchOptions]
    ) -> list[OutputT]:
        """Run once per input, concurrently: `abatch`, waited for."""
        return _wait(self.environment, self.abatch, inputs, config, **given_to("batch", BatchOptions, options))

    def get_state(self, config: Config, *, subgraphs: bool = False) -> StateSnapshot:
        """The state of a thread: `aget_state`, waited for."""
        return _wait(self.environment, self.aget_state, config, subgraphs=subgraphs)

    def get_state_history(
        self,
        config: Config,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> SyncStream[StateSnapshot]:
        """All states of a thread, newest first: `aget_state_history`, read as they are asked for."""
        from .._runtime.sync.background_portal import check_thread

        check_thread("get_state_history()", _AHISTORY)
        source = self.aget_state_history(config, filter=filter, before=before, limit=limit)
        assert isinstance(source, AsyncGenerator)
        return SyncStream(source, "get_state_history()", _AHISTORY, self.environment)

    @takes(UpdateOptions)
    def update_state(
        self,
        config: Config,
        values: Any,
        as_node: str | None = None,
        task_id: str | None = None,
        **options: Unpack[UpdateOptions],
    ) -> RunnableConfig:
        """Write to a thread's state: `aupdate_state`, waited for."""
        given_to("update_state", UpdateOptions, options)
        return _wait(self.environment, self.aupdate_state, config, values, as_node, task_id, **options)

    @takes(UpdateOptions)
    def bulk_update_state(
        self, config: Config, supersteps: Sequence[Sequence[StateUpdate]], **options: Unpack[UpdateOptions]
    ) -> RunnableConfig:
        """Write several supersteps to a thread's state: `abulk_update_state`, waited for."""
        given_to("bulk_update_state", UpdateOptions, options)
        return _wait(self.environment, self.abulk_update_state, config, supersteps, **options)

    def clear_cache(self, nodes: Sequence[str] | None = None) -> None:
        """Forget kept results of nodes: `aclear_cache`, waited for."""
        return _wait(self.environment, self.aclear_cache, nodes)


_ASTREAM = "async with graph.astream(...) as chunks"
_AHISTORY = "async for snapshot in graph.aget_state_history(...)"


def _wait(environment: Environment, twin: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
    """Run a graph's async verb where the calling thread's coroutines run, and wait for it."""
    return wait_for_twin("graph", environment, twin, *args, **kwargs)


def wait_for_twin(
    whose: str, environment: Environment, twin: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any
) -> T:
    """Run an async verb where the calling thread's coroutines run, and wait for it.

    Args:
        whose: the object that has the verb, as a reader of an error would write it.
    """
    name = twin.__name__
    from .._runtime.sync.background_portal import portal_for_thread
    from .._runtime.sync.blocked_loop import blocked_loop, watched_loop_factory

    called, instead = f"{name[1:]}()", f"await {whose}.{name}(...)"
    where = portal_for_thread(called, instead)
    blocked = blocked_loop(called, instead, loop=watched_loop_factory(environment))
    with counting_in_code_order(CURRENT.get()):
        return where.call(partial(twin, *args, **kwargs), blocked=blocked)


class Source(Protocol[T_co]):
    """What is read: a `GraphStream` or an async generator."""

    def __anext__(self) -> Coroutine[Any, Any, T_co]: ...

    def aclose(self) -> Coroutine[Any, Any, None]: ...


class SyncStream(Iterator[T]):
    """What an async stream gives, for a plain thread to read: an iterator, best used as a context manager too.

    Nothing runs before the first chunk is asked for, and a slow reader slows the run. When the run fails, its exception
    follows the last chunk. `close()`, the end of `with`, or Ctrl-C while reading end the run, which has ended and
    cleaned up before control returns. A stream that is only dropped is cancelled too, but ends a little later, and
    warns.

    Any thread may read, one at a time. The run's context variables are those of the first read.

    Attributes:
        cursor, status: of a graph's stream: as those of `GraphStream`. None for other streams.
    """

    def __init__(self, source: Source[T], called: str, instead: str, environment: Environment) -> None:
        self._source: Source[T] | None = source
        self._home: Portal | WorkerLoop | None = None
        self._called = called
        self._instead = instead
        self._environment = environment
        self._blocked: WaitingThread | None = None
        self._stream = source if isinstance(source, GraphStream) else None

    @property
    def cursor(self) -> str | None:
        return None if self._stream is None else self._stream.cursor

    @property
    def status(self) -> RunStatus | None:
        return None if self._stream is None else self._stream.status

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        source = self._source
        if source is None:
            raise StopIteration
        try:
            home, blocked = self._at()
            return home.call(source.__anext__, blocked=blocked)
        except StopAsyncIteration:
            self._source = None
        except Exception:
            raise
        except BaseException as error:  # cancelled, or Ctrl-C: perhaps before the read that would have ended the run
            self.__exit__(type(error), error, None)
            raise
        raise StopIteration

    def close(self) -> None:
        """Cancel the run if it still goes on, and wait until it has ended. Chunks left unread are dropped.

        Raises:
            Exception: the run's failure, if it failed and nobody has been told.
        """
        source = self._source
        if source is None:
            return
        at = None if self._home is None else self._at(closes=True)
        self._source = None
        if at is not None:
            home, blocked = at
            home.call(source.aclose, closes=True, blocked=blocked)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            annotate(error, f"and the stream's run had failed: {with_notes(failure)}")

    def __del__(self) -> None:
        source = getattr(self, "_source", None)
        if isinstance(source, GraphStream):
            source.drop("Use 'with graph.stream(...) as chunks', or call close().")

    def _at(self, *, closes: bool = False) -> tuple[Portal | WorkerLoop, WaitingThread]:
        """Return where the source lives, which the first read decides, and the loop that this read blocks, if any.

        Of one stream, the first read that blocks a loop warns of it. A close does not: where warnings are errors, the
        run would go on.
        """
        from .._runtime.sync.background_portal import WRONG_LOOP_MESSAGE, WorkerLoop, portal_for_thread
        from .._runtime.sync.blocked_loop import BlockedLoop, blocked_loop, watched_loop_factory

        now, home = portal_for_thread(self._called, self._instead), self._home
        # Nodes that are at work already were not seen to begin: then a blocked loop is not watched.
        loop = watched_loop_factory(self._environment) if home is None else BlockedLoop
        blocked = blocked_loop(self._called, self._instead, loop=loop, warns=not closes and self._blocked is None)
        if blocked.blocks:
            blocked = self._blocked = self._blocked or blocked
        if home is None:
            self._home = home = now
            attempt = CURRENT.get()
            if attempt is not None and self._source is not None:
                attempt.fence.register_stream(self._source)
        elif isinstance(home, WorkerLoop):
            if not isinstance(now, WorkerLoop):
                raise RuntimeError(WRONG_LOOP_MESSAGE)
            return home.rebound(now), blocked
        return home, blocked


class open_sync(Generic[T]):  # noqa: N801  # a verb, which is entered
    """Open a saver without an event loop.

        with open_sync(SqliteSaver.from_conn_string("runs.db")) as saver:
            graph = builder.compile(saver)
            graph.invoke(...)

    An open saver serves all threads and event loops. A program that has no block to put around its life (a web
    application, the interactive prompt) enters it once: `saver = open_sync(...).__enter__()`. What is stored is safe
    however the process ends; to close in order, keep an `ExitStack` that is closed at exit. A program that forks opens
    its saver in each child.

    Args:
        manager: a saver, or any other async context manager whose two ends need not run in the same task. It suppresses
            no exception.

    Where an event loop is running, both ends block it, as the verbs of a graph do.

    Raises:
        SyncCallError: entered or left in the code of a node, on the event loop of its run.
    """

    # A class and no generator: one that is never left would be closed by the interpreter at its end, and wait there
    # for a loop that runs no more.

    def __init__(self, manager: AbstractAsyncContextManager[T]) -> None:
        self._manager = manager

    def __enter__(self) -> T:
        return self._call(self._manager.__aenter__)

    def __exit__(self, *error: Any) -> None:
        self._call(partial(self._manager.__aexit__, *error), closes=True)

    def _call(self, end: Callable[[], Awaitable[U]], *, closes: bool = False) -> U:
        from .._runtime.sync.background_portal import portal_for_thread
        from .._runtime.sync.blocked_loop import blocked_loop

        where = portal_for_thread("open_sync()", "async with")
        blocked = blocked_loop("open_sync()", "async with", warns=not closes)
        return where.call(end, closes=closes, blocked=blocked)
