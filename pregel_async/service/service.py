"""`RunService`: accepts runs, stores them, and has workers execute them, in this process or in others."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from copy import copy
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Literal, Self, cast

import anyio
import msgspec

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.children import start_soon
from checkpoint_savers.durations import read_seconds
from checkpoint_savers.errors import RunNotFoundError, ThreadNotFoundError
from checkpoint_savers.runs.queries import Page, RunQuery, ThreadQuery
from checkpoint_savers.runs.rows import CancelAction, Multitask, RunRequest, RunRow, RunStatus, ThreadStatus

from .._api.calls import check_call
from .._api.compiled import Graph
from .._checks.config import check_text
from .._runtime.platform.environment import Environment, SystemEnvironment
from .._runtime.platform.event_loops import task_group
from ..errors import ConfigError
from ..parts import StreamPart, ThreadPart
from ..runtime import RunControl
from ..types import All, Command, Config, Durability, StateSnapshot, StreamMode
from .acceptance import Acceptance
from .activation import ContextOf, Tools
from .assistants import Assistant, assistants_of
from .call import StoredCall, codec_of, digest_of, read_call, storable_config, write_call
from .dispatch import Dispatcher, RowDispatcher
from .errors import ServiceBusyError, ServiceDrainingError
from .following import follow_run, follow_thread
from .opened import OpenService
from .routes import route_of
from .runs import Run, RunResult, ThreadInfo
from .watching import RunWatcher
from .worker import Worker, WorkLoop

COUNT_EVERY = 0.5
"""Seconds for which a count of pending runs is used again."""


class RunService:
    """Accepts runs of graphs, and executes them: now or later, in this process or in another one.

        async with RunService({"agent": graph}, SqliteSaver.from_conn_string("runs.db")) as service:
            run = await service.start("agent", {"messages": [("user", "hi")]}, thread_id="t-1")
            result = await service.join(run.run_id)

    A run that `start` has returned survives the loss of every process. Some worker that has its graph and reaches the
    database executes it. If that worker is lost, another one resumes it. All processes with the same database see the
    same runs.

    Args:
        graphs: the graphs by name, or an `Assistant` for a graph with defaults. A run stores the name, so keep it over
            deployments.
        saver: an open saver, or one to open, or a function that makes one. The service opens it and closes it.
        dispatcher: how queued threads come to workers; None for `RowDispatcher`, which needs nothing but the rows.
        work: True executes runs in this process, too; False only accepts them; a `Worker` has the settings.
        context: makes the context of a run's nodes, on the worker, for each attempt: for secrets and connections,
            which cannot be stored. May be async. None takes the context that was passed to `start`.
        max_pending: `start` refuses runs while so many wait for a worker.
        environment: the clock, ids and randomness; None for the system's.

    Raises:
        ConfigError: there is no graph, or a value is invalid.
    """

    def __init__(
        self,
        graphs: Mapping[str, Graph[Any, Any] | Assistant],
        saver: BaseCheckpointSaver | Callable[[], BaseCheckpointSaver],
        *,
        dispatcher: Dispatcher | None = None,
        work: bool | Worker = True,
        context: ContextOf | None = None,
        max_pending: int = 10_000,
        environment: Environment | None = None,
    ) -> None:
        self._assistants = assistants_of(graphs)
        self._source = saver
        self._dispatcher = RowDispatcher() if dispatcher is None else dispatcher
        self._worker = Worker() if work is True else work or None
        self._context = context
        self._max_pending = max_pending
        self._environment = SystemEnvironment() if environment is None else environment
        self._stack = AsyncExitStack()
        self._opened: OpenService | None = None
        self._pending = (0.0, 0)  # when pending runs were counted (monotonic), and how many there were

    @property
    def worker(self) -> Worker | None:
        """The settings of the worker; None if this process only accepts runs."""
        return self._worker

    def with_work(self, work: bool | Worker) -> RunService:
        """Return a service with the same graphs and the same saver that works or only accepts runs.

        Args:
            work: as for `RunService`.

        Returns:
            The service, not open. Open either of the two.
        """
        service = copy(self)
        service._worker = Worker() if work is True else work or None
        service._stack = AsyncExitStack()
        service._opened = None
        return service

    async def __aenter__(self) -> Self:
        stack = AsyncExitStack()
        async with stack:
            source: Any = self._source() if callable(self._source) else self._source
            opens = hasattr(source, "__aenter__") and not getattr(source, "is_open", False)
            saver = await stack.enter_async_context(source) if opens else source
            if not isinstance(saver, BaseCheckpointSaver) or saver.runs is None:
                raise ConfigError(
                    f"a service needs a saver that stores runs, such as SqliteSaver, not a {type(saver).__name__}"
                )
            graphs = {name: each.graph.with_checkpointer(saver) for name, each in self._assistants.items()}
            opened = self._opened = OpenService(saver, saver.runs, graphs, None)
            opened.watcher = RunWatcher(saver.runs, self._environment)
            await stack.enter_async_context(_in_background(opened.watcher.watch))
            await stack.enter_async_context(self._dispatcher.announcing(saver))
            if self._worker is not None:
                opened.loop = WorkLoop(
                    Tools(
                        saver=saver,
                        runs=saver.runs,
                        graphs=graphs,
                        context=self._context,
                        environment=self._environment,
                        worker_id=self._environment.new_id(),
                        control=RunControl(),
                        tracebacks=self._worker.tracebacks,
                    ),
                    self._worker,
                    self._dispatcher,
                )
                await stack.enter_async_context(_working(opened.loop))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self.drain()
        try:
            return await self._stack.__aexit__(kind, error, traceback)
        finally:
            self._opened = None

    async def setup(self) -> None:
        """Make or upgrade what the dispatcher stores in the database, besides the saver's own tables.

        Call it once when you deploy, on an open service. With `RowDispatcher` there is nothing to make.

        Raises:
            ConfigError: the dispatcher does not fit the saver.
        """
        await self._dispatcher.setup(self._require_open().saver)

    async def start(
        self,
        graph: str,
        input: Any = None,
        config: Config | None = None,
        *,
        thread_id: str | None = None,
        context: Any = None,
        metadata: Mapping[str, Any] | None = None,
        multitask: Multitask = "enqueue",
        idempotency_key: str | None = None,
        after: datetime | timedelta | None = None,
        priority: int = 0,
        time_limit: float | timedelta | None = None,
        max_stalls: int = 5,
        interrupt_before: All | Sequence[str] | None = None,
        interrupt_after: All | Sequence[str] | None = None,
        durability: Durability | None = None,
        stream_mode: StreamMode | Sequence[StreamMode] = ("values",),
        subgraphs: bool = False,
    ) -> Run:
        """Accept a run. When this returns, the run is stored durably, and some worker will execute it.

        If the worker of this process has a slot that no queued run needs, it takes the run in the same transaction.

        Args:
            graph: the name of the graph or assistant.
            input: as for `ainvoke`: an input, None to continue, or a `Command` to answer a question.
            config: as for `ainvoke`; or a thread's id. It is stored, and so must not have callbacks.
            thread_id: the thread, which may be new; None for that of the config, or for a new one.
            context: what nodes get. It is stored with the run. A `context=` of the service is used in its place.
            metadata: JSON values by which the run can be searched. Those of `config` are the thread's: keys that the
                thread lacks are set.
            multitask: what to do if the thread has open runs. "enqueue": run after them; "reject": refuse this one;
                "interrupt": cancel them; "rollback": cancel them, and delete what they have stored.
            idempotency_key: a unique name for the request. A second request with the same key and arguments returns the
                first run, whatever has become of it.
            after: not before this time, or not before so much time has passed. The thread is busy until then.
            priority: a rank without a unit, from -100 to 100: greater ones are taken first.
            time_limit: seconds that the run may take, counted from when a worker first takes it, over all attempts.
            max_stalls: how often in a row the run may be taken by a worker without committing a superstep. Then it
                ends with the status "error": it may be what ends its workers.
            interrupt_before, interrupt_after, durability: as for `ainvoke`.
            stream_mode: the stream modes that `follow` can show; () stores no events.
            subgraphs: events of subgraphs are stored, too.

        Returns:
            The run, as it was accepted.

        Raises:
            UnknownGraphError: there is no graph of this name.
            InvalidInputError, ConfigError: the graph would refuse the call. Nothing was stored.
            EmptyInputError, InvalidResumeError: there is no input, and the thread has nothing to continue from. Nothing
                was stored.
            UnstorableValueError: the input or the context cannot be stored.
            ThreadBusyError: `multitask` is "reject", and the thread has an open run. Nothing was stored.
            IdempotencyConflictError: the key was used for another request. Nothing was stored.
            ServiceBusyError: too many runs are waiting. Nothing was stored.
            ServiceDrainingError: this process shuts down. Nothing was stored.
        """
        opened = self._require_open()
        if opened.loop is not None and opened.loop.is_draining:
            raise ServiceDrainingError
        bound, assistant = opened.graph(graph), self._assistants[graph]
        merged = assistant.merged(config)
        context = assistant.context if context is None else context
        named: str | None = thread_id or merged.get("configurable", {}).get("thread_id")
        thread = named or self._environment.new_id()
        # Without the thread, which the run's row has: a repeated request without a thread has equal arguments.
        keys = {key: value for key, value in merged.get("configurable", {}).items() if key != "thread_id"}
        call = StoredCall(
            input=input,
            config=storable_config({**merged, "configurable": keys}),
            context=context,
            interrupt_before=_names(interrupt_before),
            interrupt_after=_names(interrupt_after),
            durability=durability,
            stream_mode=(stream_mode,) if isinstance(stream_mode, str) else tuple(stream_mode),
            subgraphs=subgraphs,
        )
        options = cast("Any", {**call.options, "context": context})
        here: Config = {**call.config, "configurable": {**keys, "thread_id": thread}}
        settings = check_call(
            bound._definition,
            input,
            here,
            options,
            checks_context=self._context is None,
            continues=await opened.has_begun(thread) if input is None or isinstance(input, Command) else True,
        )
        codec = codec_of(bound)
        request = RunRequest(
            run_id=self._environment.new_id(),
            assistant=graph,
            payload=write_call(call, codec),
            metadata=_json_object("metadata", {**assistant.metadata, **(metadata or {})}),
            multitask=_one_of("multitask", multitask, ("enqueue", "reject", "interrupt", "rollback")),
            priority=_whole_number("priority", priority, -100, 100),
            due=0.0 if after is None else self._time(after),
            time_limit=_seconds_or_none("time_limit", time_limit),
            max_stalls=_whole_number("max_stalls", max_stalls, 1, 1_000_000),
            idempotency_key=_text_or_none("idempotency_key", idempotency_key),
        )
        if idempotency_key is not None:
            asked = {"graph": graph, "thread_id": named, "after": str(after), "metadata": request.metadata}
            asked |= {name: getattr(request, name) for name in ("multitask", "priority", "time_limit", "max_stalls")}
            request = msgspec.structs.replace(request, digest=digest_of(asked, call, codec))
        await self._require_room()
        route = await route_of(graph, bound, thread)
        row = await opened.accept(
            Acceptance(thread, request, route, metadata=settings.thread_metadata, is_new=named is None)
        )
        if multitask in ("interrupt", "rollback"):
            opened.look_for_cancellations()
        return Run.from_row(row)

    async def join(self, run_id: str, *, timeout: float | None = None) -> RunResult:
        """Wait until a run has ended, wherever it is executed. This neither starts nor cancels it.

        Args:
            run_id: the run.
            timeout: seconds to wait at most; None for no limit.

        Returns:
            The run's end.

        Raises:
            RunNotFoundError: there is no such run, or it was rolled back.
            TimeoutError: the time is over. The run continues.
        """
        opened = self._require_open()
        run = Run.from_row(await _ended(opened, run_id, timeout, "Join it again, or follow it."))
        graph = opened.graphs.get(run.graph)
        if graph is None:
            return RunResult(run=run, values=None, interrupts=())
        state = await _state_after(graph, run)
        if state is None:
            return RunResult(run=run, values=None, interrupts=())
        return RunResult(run=run, values=graph.output_from(state.values), interrupts=state.interrupts)

    async def cancel(
        self, run_id: str, *, action: CancelAction = "interrupt", reason: str = "user", wait: bool | float = True
    ) -> Run:
        """Cancel a run: at once if no worker has it, and else by its worker, wherever that is.

        Args:
            run_id: the run.
            action: "interrupt" cancels it; "rollback" also deletes the checkpoints that it has made, and hides the run.
            reason: who or what cancels it.
            wait: return when the run and all its tasks have ended, or after so many seconds; False returns at once.

        Returns:
            The run. If it ended by itself first, it has its own status. With `wait=False` it may be open still.

        Raises:
            RunNotFoundError: there is no such run.
            RunOverError: it had ended before.
            TimeoutError: `wait` seconds have passed. The request remains.
        """
        opened = self._require_open()
        row = await opened.runs.cancel(run_id, action=action, reason=reason)
        opened.look_for_cancellations()
        if not row.is_open or wait is False:
            return Run.from_row(row)
        try:
            row = await _ended(opened, run_id, None if wait is True else wait, "The request to cancel it remains.")
        except RunNotFoundError:  # it was rolled back, and is hidden
            row = await opened.runs.get_run(run_id) or row
        return Run.from_row(row)

    async def retry(self, run_id: str) -> Run:
        """Run the thread of an ended run again from where it is, as `ainvoke(None)` does.

        Args:
            run_id: the run, which has ended.

        Returns:
            The new run.

        Raises:
            RunNotFoundError: there is no such run.
            ConfigError: the run has not ended.
        """
        row = await self._require_open().row(run_id)
        if row.is_open:
            raise ConfigError(f"run {run_id!r} is {row.status}: only a run that has ended can be retried")
        opened = self._require_open()
        request = row.request
        codec = codec_of(opened.graph(request.assistant))
        call = msgspec.structs.replace(read_call(request.payload, codec, f"run {run_id!r}"), input=None)
        again = msgspec.structs.replace(
            request,
            run_id=self._environment.new_id(),
            payload=write_call(call, codec),
            due=0.0,
            idempotency_key=None,
            digest=b"",
            multitask="enqueue",
        )
        route = await route_of(request.assistant, opened.graph(request.assistant), row.thread_id)
        return Run.from_row(await opened.accept(Acceptance(row.thread_id, again, route)))

    async def get_run(self, run_id: str) -> Run:
        """Return a run as it is stored now.

        Args:
            run_id: the run.

        Raises:
            RunNotFoundError: there is no such run, or it was rolled back.
        """
        return Run.from_row(await self._require_open().row(run_id))

    async def search_runs(
        self,
        *,
        thread_id: str | None = None,
        graph: str | None = None,
        status: RunStatus | Sequence[RunStatus] = (),
        metadata: Mapping[str, Any] | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Page[Run]:
        """Return a page of runs, the newest first.

        Args:
            thread_id: only runs of this thread.
            graph: only runs of this graph.
            status: only runs of these statuses.
            metadata: only runs whose metadata contain these values.
            limit: maximum number of runs.
            after: `next` of the page before; None for the first page.

        Raises:
            ValueError: `after` is malformed.
        """
        query = _run_query(thread_id, graph, status, metadata)
        page = await self._require_open().runs.search_runs(query, limit=limit, after=after)
        return Page(tuple(map(Run.from_row, page.items)), page.next)

    async def count_runs(
        self,
        *,
        thread_id: str | None = None,
        graph: str | None = None,
        status: RunStatus | Sequence[RunStatus] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> int:
        """Return the number of runs that `search_runs` finds.

        Args:
            thread_id, graph, status, metadata: as for `search_runs`.
        """
        return await self._require_open().runs.count_runs(_run_query(thread_id, graph, status, metadata))

    async def get_thread(self, thread_id: str) -> ThreadInfo:
        """Return a thread as it is stored now.

        Args:
            thread_id: the thread.

        Raises:
            ThreadNotFoundError: no run of this thread was ever accepted.
        """
        row = await self._require_open().runs.get_thread(thread_id)
        if row is None:
            raise ThreadNotFoundError(thread_id)
        return ThreadInfo.from_row(row)

    async def search_threads(
        self,
        *,
        thread_ids: Sequence[str] = (),
        graph: str | None = None,
        status: ThreadStatus | Sequence[ThreadStatus] = (),
        metadata: Mapping[str, Any] | None = None,
        values: Mapping[str, Any] | None = None,
        sort_by: Literal["updated_at", "created_at"] = "updated_at",
        descending: bool = True,
        limit: int = 100,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        """Return a page of threads: with a status, an inbox.

        Args:
            thread_ids: only these threads.
            graph: only threads whose first run was of this graph.
            status: only threads of these statuses.
            metadata: only threads whose own metadata contain these values.
            values: only threads whose state contains these JSON values, as far as it is in their rows.
            sort_by: the time to sort by.
            descending: the newest first.
            limit: maximum number of threads.
            after: `next` of the page before, of the same order; None for the first page.

        Raises:
            ValueError: `after` is malformed, or of another order.
        """
        query = _thread_query(thread_ids, graph, status, metadata, values, sort_by, descending)
        page = await self._require_open().runs.search_threads(query, limit=limit, after=after)
        return Page(tuple(map(ThreadInfo.from_row, page.items)), page.next)

    async def count_threads(
        self,
        *,
        thread_ids: Sequence[str] = (),
        graph: str | None = None,
        status: ThreadStatus | Sequence[ThreadStatus] = (),
        metadata: Mapping[str, Any] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> int:
        """Return the number of threads that `search_threads` finds.

        Args:
            thread_ids, graph, status, metadata, values: as for `search_threads`.
        """
        query = _thread_query(thread_ids, graph, status, metadata, values)
        return await self._require_open().runs.count_threads(query)

    def follow(
        self,
        run_id: str,
        *,
        after: str | None = None,
        stream_mode: StreamMode | Sequence[StreamMode] = ("values",),
        subgraphs: bool = False,
    ) -> AbstractAsyncContextManager[AsyncIterator[StreamPart]]:
        """Read the parts of a run, those stored and those to come, until it has ended. It may be executed anywhere.

            async with service.follow(run.run_id, stream_mode=["updates"]) as parts:
                async for part in parts: ...

        Reading runs no code of the graph, and leaving the block does not stop the run.

        Args:
            run_id: the run.
            after: the cursor of the last part that was read; None for all parts of the run.
            stream_mode: the modes to show, of those that `start` was asked to store.
            subgraphs: parts of subgraphs are shown, too.

        Returns:
            A context manager of the parts; see `pregel_async.parts`.

        Raises:
            RunNotFoundError: (on entry) there is no such run, or it was rolled back.
            InvalidCursorError: `after` is no cursor, or one of another branch.
        """
        return follow_run(self._require_open(), run_id, after, stream_mode, subgraphs)

    def follow_thread(
        self,
        thread_id: str,
        *,
        after: str | None = None,
        until: Literal["idle", "never"] = "idle",
        stream_mode: StreamMode | Sequence[StreamMode] = ("values",),
        subgraphs: bool = False,
    ) -> AbstractAsyncContextManager[AsyncIterator[ThreadPart]]:
        """Read the log of a thread: the parts of all its runs, one after the other, those stored and those to come.

            async with service.follow_thread("t-1", stream_mode=["updates"]) as parts:
                async for part in parts:
                    print(part["seq"], part["timestamp"], part["run_id"], part["type"])

        Each run begins with a part of type `run_started` and ends with one of type `run_ended`. The `cursor` and the
        `seq` of a part are the same for all readers and at all times. Reading runs no code of a graph.

        Args:
            thread_id: the thread, which may be new.
            after: the cursor of the last part that was read; None for the beginning of the log.
            until: "idle" ends when no run of the thread is open; "never" waits for more runs.
            stream_mode: the modes to show, of those that `start` was asked to store for each run.
            subgraphs: parts of subgraphs are shown, too.

        Returns:
            A context manager of the parts; see `pregel_async.parts`.

        Raises:
            InvalidCursorError: (on entry) `after` is no cursor.
            UnknownGraphError: (while reading) this process does not have the graph of one of the runs.
        """
        ends = _one_of("until", until, ("idle", "never")) == "idle"
        return follow_thread(self._require_open(), thread_id, after, stream_mode, subgraphs, ends=ends)

    def graph(self, name: str) -> Graph[Any, Any]:
        """Return a graph of the service, bound to its saver: for `aget_state`, `aget_state_history` and so on.

        Args:
            name: the graph's name.

        Raises:
            UnknownGraphError: there is no graph of this name.
        """
        return self._require_open().graph(name)

    def drain(self, reason: str = "shutdown") -> None:
        """Stop to accept and take runs in this process, and stop its runs at their next barrier.

        They are given back, and other workers continue them. The call does not wait for them.

        Args:
            reason: why. The first call's reason counts.
        """
        if self._opened is not None and self._opened.loop is not None:
            self._opened.loop.drain(reason)

    def _require_open(self) -> OpenService:
        if self._opened is None:
            raise ConfigError("the service is not open: use it in 'async with RunService(...) as service'")
        return self._opened

    async def _require_room(self) -> None:
        """Raise `ServiceBusyError` if too many runs wait. The count may be some moments old."""
        now = self._environment.monotonic()
        counted_at, pending = self._pending
        if not counted_at or now - counted_at > COUNT_EVERY:
            pending = await self._require_open().runs.count_runs(RunQuery(status=("pending",)))
            self._pending = now, pending
        if pending >= self._max_pending:
            raise ServiceBusyError(pending, retry_after=1.0)

    def _time(self, after: datetime | timedelta) -> float:
        """Return a due time in unix seconds."""
        if isinstance(after, timedelta):
            return self._require_open().saver.clock() + after.total_seconds()
        if after.tzinfo is None:
            raise ConfigError("after= is a time without a time zone: pass one, such as datetime.now(UTC)")
        return after.astimezone(UTC).timestamp()


@asynccontextmanager
async def _in_background(work: Callable[[], Coroutine[Any, Any, object]]) -> AsyncGenerator[None, None]:
    """Run `work` in a task during a block, and cancel it at the block's end."""
    async with task_group() as group:
        start_soon(group, work)
        try:
            yield
        finally:
            group.cancel_scope.cancel()


@asynccontextmanager
async def _working(loop: WorkLoop) -> AsyncGenerator[None, None]:
    """Run a worker in a task during a block. At the block's end, drain it, and wait until no run is in progress."""
    async with task_group() as group:
        start_soon(group, loop.work)
        try:
            yield
        finally:
            loop.drain("shutdown")


async def _ended(opened: OpenService, run_id: str, seconds: float | None, hint: str) -> RunRow:
    """Return the row of a run that has ended. Raises `TimeoutError` after so many seconds."""
    with anyio.move_on_after(seconds):
        return await opened.watcher.until(run_id, lambda row: not row.is_open)
    raise TimeoutError(f"run {run_id!r} has not ended after {seconds} seconds. {hint}")


async def _state_after(graph: Graph[Any, Any], run: Run) -> StateSnapshot[Any] | None:
    """Return the newest state that a run has stored; None if the run has stored none."""
    here: Config = {"configurable": {"thread_id": run.thread_id}}
    newest = await graph.aget_state(here)
    if newest.metadata is not None and newest.metadata.get("run_id") == run.run_id:
        return newest
    # Another run has continued the thread, or this run has stored nothing. Not first, because reading the history takes
    # more round trips.
    states = graph.aget_state_history(here, filter={"run_id": run.run_id}, limit=1)
    async with aclosing(cast("Any", states)):
        async for state in states:
            return state
    return None


def _names(given: All | Sequence[str] | None) -> tuple[str, ...] | None:
    return None if given is None else (given,) if isinstance(given, str) else tuple(given)


def _one_of(name: str, value: Any, known: tuple[Any, ...]) -> Any:
    if value not in known:
        raise ConfigError(f"{name} is one of {', '.join(map(repr, known))}, not {value!r}")
    return value


def _whole_number(name: str, value: Any, least: int, greatest: int) -> int:
    if type(value) is not int or not least <= value <= greatest:
        raise ConfigError(f"{name} is a whole number from {least} to {greatest}, not {value!r}")
    return value


def _seconds_or_none(name: str, value: Any) -> float | None:
    try:
        return None if value is None else read_seconds(name, value)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error


def _text_or_none(name: str, value: Any) -> str | None:
    """Return a string that can be stored, or None. Raises `ConfigError`."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise ConfigError(f"{name} is a string, not {value!r}")
    check_text(value, name)
    return value


def _json_object(name: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a mapping as JSON values. Raises `ConfigError`."""
    try:
        return cast("dict[str, Any]", msgspec.json.decode(msgspec.json.encode(dict(value or {}))))
    except Exception as error:
        raise ConfigError(f"{name} is a mapping of JSON values: {error}") from error


def _run_query(
    thread_id: str | None,
    graph: str | None,
    status: RunStatus | Sequence[RunStatus],
    metadata: Mapping[str, Any] | None,
) -> RunQuery:
    return RunQuery(
        thread_id=thread_id,
        assistant=graph,
        status=(status,) if isinstance(status, str) else tuple(status),
        metadata=_json_object("metadata", metadata),
    )


def _thread_query(
    thread_ids: Sequence[str],
    graph: str | None,
    status: ThreadStatus | Sequence[ThreadStatus],
    metadata: Mapping[str, Any] | None,
    values: Mapping[str, Any] | None,
    sort_by: Literal["updated_at", "created_at"] = "updated_at",
    descending: bool = True,
) -> ThreadQuery:
    return ThreadQuery(
        thread_ids=tuple(thread_ids),
        status=(status,) if isinstance(status, str) else tuple(status),
        assistant=graph,
        metadata=_json_object("metadata", metadata),
        values=_json_object("values", values),
        sort_by=sort_by,
        descending=descending,
    )
