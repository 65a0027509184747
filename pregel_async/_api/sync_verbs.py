"""The sync methods of a graph, for Flask, Django and scripts without an event loop, and for notebooks, which run one.

Each sync method runs the async method of the same name and waits for it, so there is one implementation. The coroutine
runs on the process's background loop, which the first call starts. Called in a worker thread of an event loop (a node
that is a plain function invokes another graph), the coroutine runs on that loop instead. See
`_runtime/sync/background_portal.py`, and `_runtime/sync/blocked_loop.py` for threads that run a loop themselves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import GenericAlias, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeAlias, Unpack, overload

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.errors import annotate

from .._checks.options import (
    BatchOptions,
    CheckOptions,
    Configs,
    InvokeOptions,
    MigrateOptions,
    OutputParts,
    OutputRecord,
    PlainOutput,
    StreamedParts,
    StreamOptions,
    UpdateOptions,
    checked_options,
    takes,
)
from .._runtime.observing.error_text import shorten_traceback, with_notes
from .._runtime.streaming.stream import GraphStream
from .._runtime.tasks.context import CURRENT, counting_in_code_order
from ..parts import GraphOutput, StreamPart
from ..types import Command, Config, RunnableConfig, RunStatus, StateSnapshot, StateUpdate, ThreadCheck, ThreadMigration

if TYPE_CHECKING:
    from .._runtime.platform.environment import Environment
    from .._runtime.sync.background_portal import Portal, WorkerLoop  # a program with an event loop needs no other
    from .._runtime.sync.blocked_loop import WaitingThread

# The type parameters of compiled graphs, in LangGraph's order. Only type checkers see the defaults, with which
# `CompiledStateGraph[State]` takes and returns a `State`: a `TypeVar` of Python 3.11 takes no default, and its backport
# would be a dependency of every program. So the variables have no defaults at run time, and the generic classes define
# `__class_getitem__`, which takes any number of arguments, like `list`.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    StateT = TypeVar("StateT", covariant=True, default=Any)
    ContextT = TypeVar("ContextT", contravariant=True, default=Any)
    InputT = TypeVar("InputT", contravariant=True, default=StateT)
    OutputT = TypeVar("OutputT", covariant=True, default=StateT)
else:
    from typing import TypeVar

    StateT = TypeVar("StateT")
    ContextT = TypeVar("ContextT")
    InputT = TypeVar("InputT")
    OutputT = TypeVar("OutputT")

__all__ = ["SyncStream", "SyncVerbs", "open_sync"]

T = TypeVar("T")
U = TypeVar("U")
T_co = TypeVar("T_co", covariant=True)


Saver: TypeAlias = BaseCheckpointSaver | None
"""The saver of the threads to look at; None for the graph's own."""


class SyncVerbs(Generic[StateT, ContextT, InputT, OutputT]):
    """The sync methods of a graph: each async method by its name without the leading `a`.

    Arguments, results and exceptions are those of the async method. On Ctrl-C, the run is cancelled and has ended
    before `KeyboardInterrupt` is raised. Any number of threads may call at the same time.

    In a thread with a running event loop, a sync method blocks that loop until it returns, and warns with
    `BlockingCallWarning`, except in a notebook. If the run itself needs the blocked loop (the code of an async node
    calls a graph), the method raises `SyncCallError`, and nothing runs.
    """

    if not TYPE_CHECKING:
        __class_getitem__ = classmethod(GenericAlias)  # see the type parameters

    if TYPE_CHECKING:

        @property
        def environment(self) -> Environment: ...

        # `Graph` implements these. Their signatures are loose here: a test checks that each sync method passes on every
        # argument of its async method.
        async def ainvoke(self, *args: Any, **kwargs: Any) -> Any: ...
        def astream(self, *args: Any, **kwargs: Any) -> GraphStream[Any]: ...
        async def abatch(self, *args: Any, **kwargs: Any) -> list[OutputT]: ...
        def abatch_as_completed(self, *args: Any, **kwargs: Any) -> GraphStream[Any]: ...
        async def aget_state(self, *args: Any, **kwargs: Any) -> StateSnapshot[StateT]: ...
        def aget_state_history(self, *args: Any, **kwargs: Any) -> AsyncIterator[StateSnapshot[StateT]]: ...
        async def aupdate_state(self, *args: Any, **kwargs: Any) -> RunnableConfig: ...
        async def abulk_update_state(self, *args: Any, **kwargs: Any) -> RunnableConfig: ...
        def acheck_threads(self, *args: Any, **kwargs: Any) -> AsyncIterator[ThreadCheck]: ...
        def amigrate_threads(self, *args: Any, **kwargs: Any) -> AsyncIterator[ThreadMigration]: ...
        async def aclear_cache(self, *args: Any, **kwargs: Any) -> None: ...

    @overload
    def invoke(
        self, input: InputT | Command | None, config: Config | None = None, **options: Unpack[OutputRecord[ContextT]]
    ) -> GraphOutput[OutputT]: ...
    @overload
    def invoke(
        self, input: InputT | Command | None, config: Config | None = None, **options: Unpack[OutputParts[ContextT]]
    ) -> list[StreamPart]: ...
    @overload
    def invoke(
        self, input: InputT | Command | None, config: Config | None = None, **options: Unpack[PlainOutput[ContextT]]
    ) -> OutputT: ...
    @takes(InvokeOptions)
    def invoke(self, input: Any, config: Config | None = None, **options: Any) -> Any:
        """Run the graph until it ends or pauses, and return its output: `ainvoke` for code without an event loop.

        Args:
            input: as in `ainvoke`.
            config: as in `ainvoke`.
            **options: every option of `ainvoke`.

        Returns:
            As `ainvoke`, by `stream_mode` and `version`: the output, a `GraphOutput` or a list of chunks.

        Raises:
            SyncCallError: called where the run needs the event loop that the call would block.
            Exception: as `ainvoke`.
        """
        checked = checked_options("invoke", InvokeOptions, options)
        return _run_verb(self.environment, self.ainvoke, input, config, **checked)

    @overload
    def stream(
        self, input: InputT | Command | None, config: Config | None = None, **options: Unpack[StreamedParts[ContextT]]
    ) -> SyncStream[StreamPart]: ...
    @overload
    def stream(
        self, input: InputT | Command | None, config: Config | None = None, **options: Unpack[StreamOptions[ContextT]]
    ) -> SyncStream[Any]: ...
    @takes(StreamOptions)
    def stream(self, input: Any, config: Config | None = None, **options: Any) -> SyncStream[Any]:
        """Run the graph, and stream events of the run while it goes on: `astream` for code without an event loop.

            with graph.stream(input) as chunks:
                for chunk in chunks:
                    ...

        Args:
            input: as in `astream`.
            config: as in `astream`.
            **options: every option of `astream`. A table there shows the shape of the chunks.

        Returns:
            An iterator of chunks, to be used as a context manager too. The run starts with the first read.

        Raises:
            SyncCallError: called where the run needs the event loop that a read would block.
            ConfigError: the config or an option is wrong.
            InvalidCursorError: `after` is no cursor.

        Reading raises what `astream` raises while reading.
        """
        checked = checked_options("stream", StreamOptions, options)
        return _stream_verb(self.environment, _ASTREAM, self.astream, input, config, **checked)

    @takes(BatchOptions)
    def batch(
        self, inputs: Sequence[InputT], config: Configs | None = None, **options: Unpack[BatchOptions[ContextT]]
    ) -> list[OutputT]:
        """Run the graph once per input, concurrently: `abatch` for code without an event loop.

        Args:
            inputs: as in `abatch`.
            config: as in `abatch`.
            **options: every option of `abatch`.

        Returns:
            The outputs, in the order of the inputs.

        Raises:
            SyncCallError: called where the runs need the event loop that the call would block.
            Exception: as `abatch`.
        """
        checked = checked_options("batch", BatchOptions, options)
        return _run_verb(self.environment, self.abatch, inputs, config, **checked)

    @takes(BatchOptions)
    def batch_as_completed(
        self, inputs: Sequence[InputT], config: Configs | None = None, **options: Unpack[BatchOptions[ContextT]]
    ) -> SyncStream[tuple[int, OutputT]]:
        """Run the graph once per input, and yield each output: `abatch_as_completed` for code without an event loop.

        Args:
            inputs: as in `abatch`.
            config: as in `abatch`.
            **options: every option of `abatch`.

        Returns:
            An iterator of pairs, to be used as a context manager too. The runs start with the first read.

        Raises:
            SyncCallError: called where the runs need the event loop that a read would block.
            ConfigError: the number of configs is not the number of inputs.

        Reading raises what `abatch_as_completed` raises while reading.
        """
        checked = checked_options("batch_as_completed", BatchOptions, options)
        return _stream_verb(self.environment, _ABATCH, self.abatch_as_completed, inputs, config, **checked)

    def get_state(self, config: Config, *, subgraphs: bool = False) -> StateSnapshot[StateT]:
        """Read the state of a thread: `aget_state` for code without an event loop.

        Args:
            config: as in `aget_state`.
            subgraphs: as in `aget_state`.

        Returns:
            The snapshot.

        Raises:
            SyncCallError: called on the event loop of a run.
            PregelError: as `aget_state`.
        """
        return _run_verb(self.environment, self.aget_state, config, subgraphs=subgraphs)

    def get_state_history(
        self,
        config: Config,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> SyncStream[StateSnapshot[StateT]]:
        """Read the states of a thread, newest first: `aget_state_history` for code without an event loop.

        Args:
            config: as in `aget_state_history`.
            filter: as in `aget_state_history`.
            before: as in `aget_state_history`.
            limit: the greatest number of snapshots to yield; None for no limit.

        Returns:
            An iterator of snapshots, which reads storage as it advances. Use it as a context manager, or close it.

        Raises:
            SyncCallError: called on the event loop of a run.
            PregelError: while reading, as `aget_state_history`.
        """
        given: dict[str, Any] = {"filter": filter, "before": before, "limit": limit}
        return _stream_verb(self.environment, _AHISTORY, self.aget_state_history, config, **given)

    @takes(UpdateOptions)
    def update_state(
        self,
        config: Config,
        values: Any,
        as_node: str | None = None,
        task_id: str | None = None,
        **options: Unpack[UpdateOptions],
    ) -> RunnableConfig:
        """Change a thread's state as if a node had returned `values`: `aupdate_state` for code without an event loop.

        Args:
            config: as in `aupdate_state`.
            values: as in `aupdate_state`.
            as_node: as in `aupdate_state`.
            task_id: as in `aupdate_state`.
            **options: every option of `aupdate_state`.

        Returns:
            The config of the checkpoint that the update made.

        Raises:
            SyncCallError: called on the event loop of a run.
            Exception: as `aupdate_state`.
        """
        checked_options("update_state", UpdateOptions, options)
        return _run_verb(self.environment, self.aupdate_state, config, values, as_node, task_id, **options)

    @takes(UpdateOptions)
    def bulk_update_state(
        self, config: Config, supersteps: Sequence[Sequence[StateUpdate]], **options: Unpack[UpdateOptions]
    ) -> RunnableConfig:
        """Apply several updates in one transaction: `abulk_update_state` for code without an event loop.

        Args:
            config: as in `abulk_update_state`.
            supersteps: as in `abulk_update_state`.
            **options: every option of `abulk_update_state`.

        Returns:
            The config of the last checkpoint that the updates made.

        Raises:
            SyncCallError: called on the event loop of a run.
            Exception: as `abulk_update_state`.
        """
        checked_options("bulk_update_state", UpdateOptions, options)
        return _run_verb(self.environment, self.abulk_update_state, config, supersteps, **options)

    @takes(CheckOptions)
    def check_threads(self, saver: Saver = None, **options: Unpack[CheckOptions]) -> SyncStream[ThreadCheck]:
        """Check stored threads against the graph's code: `acheck_threads` for code without an event loop.

        Args:
            saver: as in `acheck_threads`.
            **options: every option of `acheck_threads`.

        Returns:
            An iterator of the checks, which reads storage as it advances. Use it as a context manager, or close it.

        Raises:
            SyncCallError: called on the event loop of a run.
            PregelError: while reading, as `acheck_threads`.
        """
        return _stream_verb(self.environment, _ACHECK, self.acheck_threads, saver, **options)

    @takes(MigrateOptions)
    def migrate_threads(self, saver: Saver = None, **options: Unpack[MigrateOptions]) -> SyncStream[ThreadMigration]:
        """Store what the declared rules make of threads: `amigrate_threads` for code without an event loop.

        Args:
            saver: as in `amigrate_threads`.
            **options: every option of `amigrate_threads`.

        Returns:
            An iterator of what was done with each thread. Use it as a context manager, or close it.

        Raises:
            SyncCallError: called on the event loop of a run.
            PregelError: while reading, as `amigrate_threads`.
        """
        return _stream_verb(self.environment, _AMIGRATE, self.amigrate_threads, saver, **options)

    def clear_cache(self, nodes: Sequence[str] | None = None) -> None:
        """Remove the cached results of nodes: `aclear_cache` for code without an event loop.

        Args:
            nodes: names of nodes of this graph; None for all of them.

        Raises:
            SyncCallError: called on the event loop of a run.
            ConfigError: the graph was compiled without a cache, or has no such node.
            StorageError: the cache failed.
        """
        return _run_verb(self.environment, self.aclear_cache, nodes)


_ASTREAM = "stream()", "async with graph.astream(...) as chunks"
_ABATCH = "batch_as_completed()", "async with graph.abatch_as_completed(...) as outputs"
_ACHECK = "check_threads()", "async for check in graph.acheck_threads(...)"
_AMIGRATE = "migrate_threads()", "async for migration in graph.amigrate_threads(...)"
_AHISTORY = "get_state_history()", "async for snapshot in graph.aget_state_history(...)"


def _run_verb(environment: Environment, verb: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
    """Run an async method of a graph where the calling thread's coroutines run, and wait for it."""
    return run_blocking("graph", environment, verb, *args, **kwargs)


def _stream_verb(
    environment: Environment, names: tuple[str, str], verb: Callable[..., Any], *args: Any, **kwargs: Any
) -> SyncStream[Any]:
    """Call a method of a graph that returns an async iterator, and return a sync one.

    Args:
        environment: the graph's environment.
        names: the sync method, and what async code writes instead, for messages.
        verb: the async method.
        *args, **kwargs: its arguments.
    """
    from .._runtime.sync.background_portal import check_thread

    check_thread(*names)
    return SyncStream(verb(*args, **kwargs), *names, environment)


def run_blocking(
    owner: str, environment: Environment, verb: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any
) -> T:
    """Run an async method where the calling thread's coroutines run, and wait for it.

    Args:
        owner: the expression of the object that has the method, for error messages: "graph".
        environment: the environment of the object, whose clock measures how long the call blocks an event loop.
        verb: the async method. Its name without the leading `a` is the name of the sync method.
    """
    name = verb.__name__
    from .._runtime.sync.background_portal import portal_for_thread
    from .._runtime.sync.blocked_loop import blocked_loop, watched_loop_factory

    called, instead = f"{name[1:]}()", f"await {owner}.{name}(...)"
    where = portal_for_thread(called, instead)
    blocked = blocked_loop(called, instead, loop=watched_loop_factory(environment))
    try:
        with counting_in_code_order(CURRENT.get()):
            return where.call(partial(verb, *args, **kwargs), blocked=blocked)
    except Exception as error:
        shorten_traceback(error)
        raise


class AsyncSource(Protocol[T_co]):
    """The async stream that a `SyncStream` reads: a `GraphStream` or an async generator."""

    def __anext__(self) -> Coroutine[Any, Any, T_co]: ...

    def aclose(self) -> Coroutine[Any, Any, None]: ...


class SyncStream(Iterator[T]):
    """A sync iterator over an async stream, best used as a context manager.

    Nothing runs before the first read, and a slow reader slows the run. When the run fails, its exception follows the
    last chunk. `close()`, the end of `with`, and Ctrl-C while reading cancel the run, which has ended and cleaned up
    before control returns. If the stream is dropped without being closed, its run is cancelled a little later, with a
    `ResourceWarning`.

    Any thread may read, one at a time. The run's context variables are those of the first read.
    """

    def __init__(self, source: AsyncSource[T], called: str, instead: str, environment: Environment) -> None:
        self._source: AsyncSource[T] | None = source
        self._portal: Portal | WorkerLoop | None = None
        self._called = called
        self._instead = instead
        self._environment = environment
        self._blocked: WaitingThread | None = None
        self._stream = source if isinstance(source, GraphStream) else None

    @property
    def cursor(self) -> str | None:
        """The cursor of the last chunk that was read, as `GraphStream.cursor`; None for other streams."""
        return None if self._stream is None else self._stream.cursor

    @property
    def status(self) -> RunStatus | None:
        """How the run has ended, as `GraphStream.status`; None while it goes on, and for other streams."""
        return None if self._stream is None else self._stream.status

    def _repr_html_(self) -> str:
        """Return the stream for a notebook, as the stream that it reads."""
        from checkpoint_savers.notebook import details_table

        return details_table(type(self).__name__, []) if self._stream is None else self._stream._repr_html_()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        source = self._source
        if source is None:
            raise StopIteration
        try:
            home, blocked = self._resolve_loop()
            return home.call(source.__anext__, blocked=blocked)
        except StopAsyncIteration:
            self._source = None
        except Exception as error:
            shorten_traceback(error)
            raise
        except BaseException as error:
            # Cancelled, or Ctrl-C: `__anext__` may not have begun, and only that would have cancelled the run.
            self.__exit__(type(error), error, None)
            raise
        raise StopIteration

    def close(self) -> None:
        """Cancel the run if it still goes on, and wait until it has ended. Unread chunks are dropped.

        Raises:
            Exception: the run's failure, if it failed and no read has raised it.
        """
        source = self._source
        if source is None:
            return
        at = None if self._portal is None else self._resolve_loop(closes=True)
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

    def _resolve_loop(self, *, closes: bool = False) -> tuple[Portal | WorkerLoop, WaitingThread]:
        """Return the portal that runs the source, which the first read decides, and the loop that this read blocks.

        The first read of a stream that blocks a loop warns. A close does not warn: where warnings are errors, the
        warning would be raised in place of closing, and the run would go on.
        """
        from .._runtime.sync.background_portal import WRONG_LOOP_MESSAGE, WorkerLoop, portal_for_thread
        from .._runtime.sync.blocked_loop import BlockedLoop, blocked_loop, watched_loop_factory

        now, home = portal_for_thread(self._called, self._instead), self._portal
        # Watch a blocked loop only if the first read blocks one: a later read cannot know when the nodes that are
        # already running have begun.
        loop = watched_loop_factory(self._environment) if home is None else BlockedLoop
        blocked = blocked_loop(self._called, self._instead, loop=loop, warns=not closes and self._blocked is None)
        if blocked.blocks:
            blocked = self._blocked = self._blocked or blocked
        if home is None:
            self._portal = home = now
            running = CURRENT.get()
            if running is not None and self._source is not None:
                running.fence.register_stream(self._source)
        elif isinstance(home, WorkerLoop):
            if not isinstance(now, WorkerLoop):
                raise RuntimeError(WRONG_LOOP_MESSAGE)
            return home.rebound(now), blocked
        return home, blocked


class open_sync(Generic[T]):  # noqa: N801  # reads as a verb: `with open_sync(...)`
    """Open a saver without an event loop, as a context manager.

        with open_sync(SqliteSaver.from_conn_string("runs.db")) as saver:
            graph = builder.compile(saver)
            graph.invoke(...)

    An open saver serves all threads and event loops. A program without an enclosing block (a web application, the
    interactive prompt) enters once: `saver = open_sync(...).__enter__()`. Stored data is safe however the process ends;
    to close the saver in order, keep an `ExitStack` that is closed at exit. A program that forks opens its saver in
    each child.

    In a thread with a running event loop, entering and leaving block that loop, as the sync methods of a graph do.

    Args:
        manager: a saver, or any other async context manager whose `__aenter__` and `__aexit__` may run in different
            tasks. Whether `__aexit__` suppresses an exception is ignored: none is suppressed.

    Raises:
        SyncCallError: entered or left by the code of a node, on the event loop of its run.
    """

    # A class instead of a generator: if the `with` block is never left, the interpreter would close a suspended
    # generator at shutdown, and the generator would wait there for an event loop that no longer runs.

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
