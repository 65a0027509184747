"""Work on one thread: acquire its lease, take a run, execute it, and store how it ended.

`Activation.work` takes a run of a queued thread. `Activation.start` accepts a run and takes it in the same transaction.

All that a worker decides about a run, it decides while it holds the thread's lease: whether the input is stored
already, whether the run was cancelled, and how it ended. Each write compares the lease's epoch. So a worker that was
stopped, and whose thread was taken over meanwhile, changes nothing when it continues.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import anyio
from msgspec.structs import replace

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.errors import StorageError, ThreadBusyError
from checkpoint_savers.lease import release, run_to_completion
from checkpoint_savers.owner import this_process
from checkpoint_savers.records import Lease
from checkpoint_savers.runs import decisions
from checkpoint_savers.runs.decisions import RunOutcome, TakenRun, WantedLease
from checkpoint_savers.runs.port import RunStore
from checkpoint_savers.runs.rows import RunError, RunRow, RunStatus, RunThreadRow, assistant_of
from checkpoint_savers.upkeep.pruning import without_runs

from .._api.attributes import stored_through
from .._api.compiled import Graph
from .._runtime.observing.error_text import described, shorten_traceback
from .._runtime.platform.environment import Environment
from .._runtime.streaming.event_rows import run_row
from .._runtime.streaming.stream import GraphStream
from ..errors import GraphDrained, InvalidAnswerError
from ..runtime import RunControl
from .acceptance import Acceptance
from .breakpoints import is_at_breakpoint
from .call import StoredCall, codec_of, read_call
from .early_parts import EarlyParts
from .held_saver import held
from .outcomes import after_all, outcome_of
from .routes import route_of, routes_of
from .run_marks import RunMarks
from .runs import Run

log = logging.getLogger("pregel_async.service")

ContextOf: TypeAlias = Callable[[Run], Awaitable[Any] | Any]
"""Makes the context of a run's nodes, on the worker, for each attempt."""

MAX_TRACEBACK = 16 * 1024
"""Bytes of a failure's traceback that a run's row holds: the end, which says where the failure was raised."""


class Tools(NamedTuple):
    """What all activations of a worker share.

    Attributes:
        saver: the saver of the service.
        runs: its run store.
        graphs: the graphs that the worker can run, by name, bound to the saver.
        context: makes the context of nodes; None to take the stored one.
        environment: the clock and ids.
        worker_id: the worker's id.
        control: drains the runs.
        tracebacks: the tracebacks of failures are stored.
    """

    saver: BaseCheckpointSaver
    runs: RunStore
    graphs: Mapping[str, Graph[Any, Any]]
    context: ContextOf | None
    environment: Environment
    worker_id: str
    control: RunControl
    tracebacks: bool = True


class Execution:
    """A run in progress, which can be stopped.

    Attributes:
        stopped_by: why it was stopped: "cancelled" or "timeout"; None if it was not.
        early: stores its parts early; None before it begins.
    """

    def __init__(self) -> None:
        self.early: EarlyParts | None = None
        self.stopped_by: Literal["cancelled", "timeout"] | None = None
        self._scope = anyio.CancelScope()
        self._stream: GraphStream[Any] | None = None

    async def finish(self, stream: GraphStream[Any], seconds: float | None) -> bool:
        """Run to the end.

        Args:
            stream: the run's stream, not read yet.
            seconds: how long it may take; None for no limit.

        Returns:
            False if it was stopped before its end.
        """
        self._stream = stream
        if seconds is not None:
            self._scope.deadline = anyio.current_time() + seconds
        with self._scope:
            await stream.finish()
        if self._scope.cancelled_caught and self.stopped_by is None:
            self.stopped_by = "timeout"
        return not self._scope.cancelled_caught

    def cancel(self) -> None:
        """Stop the run for good: no other process resumes it."""
        self.stopped_by = "cancelled"
        if self._stream is not None:
            self._stream.dismiss()
        self._scope.cancel()


class Activation:
    """The work on one thread, until one run of it has ended or was given back.

    Args:
        tools: what the worker's activations share.

    Attributes:
        run_id: the run that was taken; "" before.
        execution: its execution; None if it is not executed.
        was_refused: another owner has the thread's lease.
    """

    def __init__(self, tools: Tools) -> None:
        self.run_id = ""
        self.execution: Execution | None = None
        self.was_refused = False
        self._tools = tools
        self._marks: RunMarks | None = None

    @property
    def _has_ended(self) -> bool:
        """True if the run's end was stored with its last transaction. An exception of the call then changes nothing."""
        return self._marks is not None and self._marks.ended

    async def work(self, thread: RunThreadRow) -> None:
        """Take a run of a queued thread and execute it. Does nothing if another worker has the thread.

        Failures of the run are stored with it. Failures of storage are logged: the lease lapses, and another worker
        takes the run.

        Args:
            thread: its row, as it was found.
        """
        tools, graph = self._tools, assistant_of(thread.route)
        self.was_refused = True  # until the lease is acquired. If it is not, the worker tries the thread again later.
        if (route := await self._other_route(graph, thread.thread_id)) is not None:
            # A worker that has the version will take the thread. This worker must not try it again.
            await tools.runs.requeue(thread, route=route)
            self.was_refused = False
            return

        async def take(wants: WantedLease) -> TakenRun | None:
            number = thread.activation_no
            return await tools.runs.acquire_and_take(thread.thread_id, number, wants, worker=tools.worker_id)

        try:
            taken = await self._acquire(take)
        except ThreadBusyError:
            return  # another worker was faster, or a caller runs the thread
        self.was_refused = False
        if taken is not None:
            await self._work_on(taken, graph)

    async def start(self, acceptance: Acceptance) -> None:
        """Store a run. If its thread has no other open run, take it in the same transaction, and execute it.

        Args:
            acceptance: the run. The caller of `acceptance.wait` gets the stored row, or the error that refused it.
        """
        runs, worker = self._tools.runs, self._tools.worker_id
        try:
            taken = await self._acquire(lambda wants: acceptance.store_and_take(runs, wants, worker))
        except Exception as error:
            acceptance.refuse(error)
            return
        if taken is not None:
            await self._work_on(taken, acceptance.request.assistant)

    async def _work_on(self, taken: TakenRun, graph: str) -> None:
        """Execute a run that was taken, of the graph of this name."""
        lease, row = taken
        self.run_id = row.run_id
        try:
            if await self._other_route(graph, lease.thread_id) is not None:  # the thread was moved meanwhile
                await self._give_back(lease, row)
            else:
                await self._execute(lease, row)
        except ThreadBusyError as error:
            if not error.lost:
                raise
            log.warning("run %s of thread %r was taken over by another worker", self.run_id, lease.thread_id)
        except BaseException as error:
            # The rows stay as they are, and the keeper queues the thread again: it sees that the lease is free.
            with anyio.CancelScope(shield=True):
                await self._release(lease)
            if not isinstance(error, StorageError):
                raise
            log.exception("run %s of thread %r: storage failed; it will be taken again", self.run_id, lease.thread_id)

    async def _other_route(self, name: str, thread_id: str) -> str | None:
        """Return a thread's route if a version of the graph that this worker lacks is to continue it, else None."""
        graph = self._tools.graphs[name]
        route = await route_of(name, graph, thread_id)
        return None if route in routes_of(name, graph) else route

    async def _acquire(self, transact: Callable[[WantedLease], Awaitable[TakenRun | None]]) -> TakenRun | None:
        """Acquire a lease and take a run, by one transaction. If cancelled, complete it, and release the lease."""
        tools, taken = self._tools, None
        now = tools.saver.clock()
        wants = WantedLease(this_process(tools.environment.new_id()), now, now + tools.saver.lease_seconds)

        async def do() -> None:
            nonlocal taken
            taken = await transact(wants)

        try:
            await run_to_completion(do)
        except BaseException:
            if taken is not None:
                await self._release(taken.lease)
            raise
        return taken

    async def _release(self, lease: Lease) -> None:
        with contextlib.suppress(StorageError):  # the lease lapses
            await release(self._tools.saver, lease)

    async def _execute(self, lease: Lease, row: RunRow) -> None:
        """Execute a run that was taken, and store how it ended."""
        graph = self._tools.graphs[row.request.assistant]
        status: RunStatus | None = "cancelled"
        error: RunError | None = None
        was_refused = False
        refusal = decisions.refusal(row, self._tools.saver.clock())
        if row.cancel is None and refusal is not None:
            status, error = refusal
        elif row.cancel is None:
            try:
                status = await self._status(lease, row, graph)
            except Exception as failure:
                is_lost = isinstance(failure, StorageError) or (isinstance(failure, ThreadBusyError) and failure.lost)
                if is_lost and not self._has_ended:
                    raise
                status, error = "error", error_of(failure, tracebacks=self._tools.tracebacks)
                was_refused = isinstance(failure, InvalidAnswerError) or not self._has_begun(row)
                if self._has_ended:
                    log.exception("run %s of thread %r raised after its end was stored", row.run_id, row.thread_id)
                else:
                    failed = f"{error.type}: {error.message}"
                    log.info("run %s of thread %r has failed: %s", row.run_id, row.thread_id, failed)
            except anyio.get_cancelled_exc_class():
                # The worker is being stopped, and its grace is over.
                if not self._has_ended:
                    with anyio.CancelScope(shield=True):
                        await self._give_back(lease, row)
                raise
        if self._has_ended:
            return
        with anyio.CancelScope(shield=True):
            if status is None:
                await self._give_back(lease, row)
            else:
                await self._end(lease, row, status, error, was_refused=was_refused)

    def _has_begun(self, row: RunRow) -> bool:
        """Return True if this attempt or an earlier one has stored anything of a run in its thread."""
        return row.begun or (self._marks is not None and self._marks.has_begun)

    async def _status(self, lease: Lease, row: RunRow, graph: Graph[Any, Any]) -> RunStatus | None:
        """Run the graph. Return the run's final status; None if the worker drains and work is left.

        Raises:
            Exception: the run has failed.
        """
        tools, self.execution = self._tools, Execution()
        call = read_call(row.request.payload, codec_of(graph), f"run {row.run_id!r}")
        if row.begun and await is_at_breakpoint(tools.saver, graph, call, row.thread_id, row.run_id):
            return "interrupted"
        context = call.context
        if tools.context is not None:
            context = tools.context(Run.from_row(row))
            if inspect.isawaitable(context):
                context = await context
        self._marks = RunMarks(tools.saver, tools.runs, lease, row, graph, call)
        started = partial(run_row, epoch=lease.epoch, run_id=row.run_id, at=int(tools.environment.now() * 1000))
        stream = stored_through(graph, held(tools.saver, lease, self._marks, started)).astream(
            None if row.begun else call.input,
            _config(call, row),
            context=context,
            control=tools.control,
            **call.options,
        )
        self.execution.early = EarlyParts(stream, tools.saver.clock, tools.environment.sleep)
        limit = row.request.time_limit
        seconds = None if limit is None else limit - (tools.saver.clock() - row.started_at)
        try:
            finished = await self.execution.finish(stream, seconds)
        except GraphDrained:
            return None
        if not finished:
            return self.execution.stopped_by
        if stream.status == "done":
            return "success"
        # A question ends a drained superstep before all its tasks have begun: those are left for another worker.
        return None if tools.control.drain_requested and await self._has_unstarted(graph, row) else "interrupted"

    async def _has_unstarted(self, graph: Graph[Any, Any], row: RunRow) -> bool:
        """Return True if a thread has pending tasks that ask nothing."""
        state = await graph.aget_state({"configurable": {"thread_id": row.thread_id}})
        return len(state.next) > len([task for task in state.tasks if task.interrupts])

    async def _end(
        self, lease: Lease, row: RunRow, status: RunStatus, error: RunError | None, *, was_refused: bool
    ) -> None:
        """Store how a run ended, and release the lease."""
        tools = self._tools
        outcome = await self._outcome(lease, row, status, error, was_refused=was_refused)
        if await tools.runs.end(lease, row.run_id, outcome):
            return
        # A rollback was asked for, as the transaction has found. That request remains.
        change = await without_runs(tools.saver, row.thread_id, (row.run_id,))
        if change is not None:
            await tools.saver.rewrite(lease, change)
        outcome = await self._outcome(lease, row, status, error, was_refused=False)
        await tools.runs.end(lease, row.run_id, replace(outcome, rolled_back=True))

    async def _give_back(self, lease: Lease, row: RunRow) -> None:
        """Return the run to the queue."""
        chain = await self._tools.saver.read(row.thread_id)
        at = "" if chain is None else chain.head
        name = row.request.assistant
        route = await route_of(name, self._tools.graphs[name], row.thread_id)
        await self._tools.runs.give_back(lease, row.run_id, last_event=after_all(at, lease), route=route)

    async def _outcome(
        self, lease: Lease, row: RunRow, status: RunStatus, error: RunError | None, *, was_refused: bool
    ) -> RunOutcome:
        """Return how a run ended, and how it left its thread."""
        graph = self._tools.graphs[row.request.assistant]
        try:
            state = await graph.aget_state({"configurable": {"thread_id": row.thread_id}})
            route = await route_of(row.request.assistant, graph, row.thread_id)
            return outcome_of(state, status, lease, error, was_refused=was_refused, route=route)
        except StorageError:
            raise
        except Exception as failure:  # the stored state does not fit the graph's code
            log.exception("run %s of thread %r: its state cannot be read", row.run_id, row.thread_id)
            error = error or error_of(failure, tracebacks=self._tools.tracebacks)
            return RunOutcome(status=status, rest="error", error=error, last_event=after_all("", lease))


def error_of(failure: BaseException, *, tracebacks: bool = True) -> RunError:
    """Return an exception as it is stored.

    Args:
        failure: the exception.
        tracebacks: with its traceback.
    """
    kind, text = described(failure)
    return RunError(type=kind, message=text, traceback=_traceback_of(failure) if tracebacks else "")


def _traceback_of(failure: BaseException) -> str:
    """Return the end of a traceback, without frames of the runtime, as text that can be stored. Never raises."""
    shorten_traceback(failure)
    try:  # an exception's class may have methods that raise
        lines = traceback.format_exception(failure)
    except Exception:
        return ""
    data = "".join(lines).encode("utf-8", "backslashreplace")
    return data[-MAX_TRACEBACK:].decode(errors="ignore")  # the cut may be inside of a character


def _config(call: StoredCall, row: RunRow) -> dict[str, Any]:
    """Return the config of an attempt."""
    configurable = {**call.config.get("configurable", {}), "thread_id": row.thread_id}
    if row.begun:  # the run continues where it was, and not where it began
        for key in ("checkpoint_id", "checkpoint_ns", "checkpoint_map"):
            configurable.pop(key, None)
    return {**call.config, "configurable": configurable, "run_id": row.run_id}
