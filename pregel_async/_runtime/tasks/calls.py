"""Tasks that a node calls: they run concurrently with the node, and are recorded as they finish.

A call returns a future at once. The result is stored before any code sees it, under an id derived from the caller's
id and the call's number. So the result is never computed again: not after a crash, a question, a failure, or a retry of
the caller. Called tasks end before their caller does: the caller waits for them, and cancels them if it fails or is
cancelled.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import anyio
import anyio.lowlevel

from checkpoint_savers.records import TaskId

from ..._core.isolation import isolate
from ..._core.ownership import own_as_it_is
from ..._core.program import PARENT, Node
from ..._core.task import ROUTER_BASE, Cancelled, Failed, Finished, NotStarted, Outcome, Paused, Task
from ...errors import (
    CallsChangedError,
    GraphBubbleUp,
    GraphInterrupt,
    OutsideRunError,
    ParentCommand,
    TaskCancelledError,
)
from ...types import OnChange
from ..platform.event_loops import on_asyncio, wait_out
from .context import CURRENT, NAMED_BASE, AttemptContext, Calls, counting_in_code_order
from .slots import Unlimited
from .worker_threads import NO_FENCE

T = TypeVar("T")


class TaskFuture(Generic[T]):
    """The future result of a called task. Any task of the node may await it, any number of times.

    Cancelling a waiter cancels the task, as in asyncio; shield the wait to avoid that.
    """

    def __init__(self, caller: AttemptContext, task: Task) -> None:
        self._caller = caller
        self._task = task
        self.position = caller.next_position(task.send)
        self._ended = anyio.Event()
        self._scope = anyio.CancelScope()
        self._outcome: Outcome | None = None
        self._is_retrieved = False
        self._waiters = 0
        self._loop_thread = caller.graph.run.loop_thread

    def __repr__(self) -> str:
        state = "pending" if self._outcome is None else type(self._outcome).__name__.lower()
        return f"<TaskFuture {self._task.node.name!r} {state}>"

    def __await__(self) -> Generator[Any, Any, T]:
        return self._wait().__await__()

    @property
    def task_id(self) -> TaskId:
        """The task's id."""
        return self._task.id

    def done(self) -> bool:
        """Return True if the task has finished, failed, paused or been cancelled."""
        return self._outcome is not None

    def cancelled(self) -> bool:
        """Return True if the task was cancelled before it finished."""
        return isinstance(self._outcome, Cancelled)

    def cancel(self) -> bool:
        """Cancel the task, if it has not ended.

        Nothing is recorded of a cancelled task: a resume whose caller calls it again runs it again.

        Returns:
            True if the task was still running.

        Raises:
            OutsideRunError: called in a thread that the run did not start.
        """
        if self.done():
            return False
        # Scopes are not thread-safe: other threads have the event loop cancel it.
        if threading.get_ident() == self._loop_thread:
            self._scope.cancel()
        else:
            from anyio import from_thread

            try:
                from_thread.run_sync(self._scope.cancel)
            except RuntimeError as error:
                raise self._unreachable_error("cancelled") from error
        self._is_retrieved = True  # the canceller expects the error, so the caller's end must not raise it
        return True

    def result(self, timeout: float | None = None) -> T:
        """Return the task's result, or raise its error.

        In the worker thread of a plain function, this waits for the task. In async code, await the future instead.

        Args:
            timeout: seconds to wait; None to wait without a limit.

        Returns:
            A copy of the result, so that changes of it reach no other code.

        Raises:
            TimeoutError: the task has not ended in time.
            TaskCancelledError: the task was cancelled.
            GraphInterrupt: the task has asked a question.
            ParentCommand: a graph that the task ran gave a command for an outer graph.
            OutsideRunError: called before the task has ended on the event loop's thread, where waiting would block the
                loop; or called in a thread that the run did not start.
        """
        what = f"the result of task {self._task.node.name!r}"
        self._caller.fence.check(what)
        if self.done():
            return self._retrieve()
        if threading.get_ident() == self._loop_thread:
            raise OutsideRunError(
                f"the result of task {self._task.node.name!r} is not there yet, and waiting for it here would stop "
                "the event loop: await the future"
            )
        try:
            fence = self._caller.fence if self._caller.worker == threading.get_ident() else NO_FENCE
            fence.run(what, partial(self._wait_from_thread, timeout))
        except OutsideRunError:
            raise
        except RuntimeError as error:  # from anyio: the task's own error is raised by `_retrieve`, outside this block
            raise self._unreachable_error("waited for") from error
        return self._retrieve()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the task's error, or None if the task finished. Waits as `result` does.

        Args:
            timeout: seconds to wait; None to wait without a limit.

        Returns:
            The error that `result` would raise.

        Raises:
            TimeoutError: the task has not ended in time.
            OutsideRunError: as for `result`.
        """
        try:
            self.result(timeout)
        except TimeoutError:
            # If the task has ended, the task itself raised this `TimeoutError`, and it is the error to return.
            if not self.done():
                raise
        except BaseException:
            if not self.done():
                raise
        self._is_retrieved = True
        return _error_of(self._outcome, self._task)

    async def _wait_from_thread(self, timeout: float | None) -> None:
        if on_asyncio() and anyio.current_effective_deadline() == float("-inf"):
            # anyio delivers a cancellation to a call from a thread only if it comes during the wait, and not one from
            # before.
            raise anyio.get_cancelled_exc_class()
        # Raise the limit while this thread waits: the task may need a thread, too, and if all threads waited for tasks
        # that need one, none would continue.
        from anyio import to_thread

        threads = to_thread.current_default_thread_limiter()
        threads.total_tokens += 1
        self._waiters += 1
        try:
            with anyio.fail_after(timeout):
                await self.wait_until_ended(cancels=False)
        finally:
            self._waiters -= 1
            threads.total_tokens -= 1

    async def _wait(self) -> T:
        self._waiters += 1
        try:
            return await self._wait_here()
        finally:
            self._waiters -= 1

    async def _wait_here(self) -> T:
        if threading.get_ident() != self._loop_thread:
            raise OutsideRunError(
                f"task {self._task.node.name!r} was awaited in another event loop than its run's: wait for it there "
                "with result()"
            )
        await self.wait_until_ended()
        return self._retrieve()

    async def wait_until_ended(self, *, cancels: bool = True) -> None:
        """Wait until the task has finished, failed, paused or been cancelled.

        Args:
            cancels: cancel the task if the wait is cancelled.
        """
        if self._outcome is not None:
            return
        # The waiter lends its slots: with max_concurrency=1 the called task could not start otherwise. So do the
        # attempts of outer graphs, which do nothing but wait for this one.
        lent = list(_slots_of(CURRENT.get() or self._caller))
        for slot in lent:
            slot.lend()
        try:
            await self._ended.wait()
        except BaseException:
            # A caller with open questions is unwinding to ask them: the task may finish, so that it need not run again.
            if cancels and not self._caller.open_questions:
                self.cancel()
            # A cancelled waiter must not wait for slots: their holders may be waiting for its end.
            for slot in lent:
                slot.borrow()
            raise
        while lent:
            try:
                with self._caller.waiting():
                    await lent.pop().reacquire()
            except BaseException:
                for slot in lent:
                    slot.borrow()
                raise

    def _retrieve(self) -> T:
        if isinstance(self._outcome, Cancelled) and threading.get_ident() != self._loop_thread:
            # If the run is being cancelled, the thread ends with its cancellation, and not with the task's error.
            with contextlib.suppress(RuntimeError):  # raised in a thread that anyio did not start
                from anyio import from_thread

                from_thread.check_cancelled()
        self._is_retrieved = True
        error = _error_of(self._outcome, self._task)
        if error is not None:
            raise error
        assert isinstance(self._outcome, Finished)
        result: T = isolate(self._outcome.writes[0][1])
        return result

    def _unreachable_error(self, what: str) -> OutsideRunError:
        return OutsideRunError(
            f"task {self._task.node.name!r} was {what} in a thread of the node's own, from which the run cannot be "
            "reached: do that in the node's function"
        )

    def start(self) -> None:
        """Start the task concurrently with its caller. The caller must wait for its end; see `CalledTasks.end`."""
        # In a task of the event loop, and not in a task group: the call returns before the task ends, and a group could
        # not stay open in the node's task. The reference keeps asyncio from collecting the task.
        self._host_task = self._caller.graph.run.loop.start(
            self._run, f"task {self._task.node.name}", self._on_host_end
        )

    async def _run(self) -> None:
        graph = self._caller.graph
        outcome: Outcome = Cancelled()
        try:
            with self._scope:
                await anyio.lowlevel.checkpoint_if_cancelled()  # a task cancelled before its start runs no code
                outcome = await graph.call(self._caller, self._task)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # no task group receives it: the event loop would only log it, or stop
            outcome = Failed(error)
        finally:
            # Before the event is set: a woken caller looks at its open questions.
            if isinstance(outcome, (Paused, NotStarted)):
                self._caller.open_questions[self.position] = outcome.interrupts if isinstance(outcome, Paused) else ()
            self._outcome = outcome
            self._ended.set()

    def _on_host_end(self, _: object) -> None:
        # asyncio never runs a task that `Task.cancel()` hits before its first step, so `_run` cannot report that.
        if not self._ended.is_set():
            self._outcome = Cancelled()
            self._ended.set()

    async def wait_out(self) -> None:
        """Wait until the task has ended, even if this wait is cancelled."""
        await wait_out(self._ended)

    def unretrieved_error(self) -> BaseException | None:
        """Return the task's error, if it has not been retrieved and nothing is awaiting it."""
        return None if self._is_retrieved or self._waiters else _error_of(self._outcome, self._task)

    def mark_retrieved(self) -> None:
        """Note that the error has been reported."""
        self._is_retrieved = True


def _slots_of(attempt: AttemptContext) -> Iterator[Unlimited]:
    """Yield the slots that are unused while an attempt waits: its own, and those of the attempts that run its graph."""
    for each in (attempt, *attempt.graph.outer):
        yield each.slot


def _error_of(outcome: Outcome | None, task: Task) -> BaseException | None:
    if isinstance(outcome, Failed):
        return outcome.error
    if isinstance(outcome, Paused):
        return GraphInterrupt(outcome.interrupts)
    if isinstance(outcome, NotStarted):
        return GraphInterrupt(())
    if isinstance(outcome, Cancelled):
        return TaskCancelledError(task.node.name)
    if isinstance(outcome, Finished) and outcome.ends_graph:
        return ParentCommand(tuple([command for name, command in outcome.writes if name == PARENT]))
    return None


class CalledTasks(Calls):
    """The tasks that one attempt has called."""

    any = True

    def __init__(self) -> None:
        self._futures: list[TaskFuture[Any]] = []
        self._has_replaced = False  # a call ran in the position of another one; see `OnChange`

    def start(
        self,
        caller: AttemptContext,
        node: Node,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        hints: Sequence[Any],
        key: str | None,
        on_change: OnChange,
    ) -> TaskFuture[Any]:
        """Start a task, on the event loop's thread. See `call_task`."""
        # Copied now: the caller may change its arguments in place while the task runs.
        arg = args, kwargs = own_as_it_is((args, kwargs))
        if key is None:
            number = caller.number_of_call(node, hints, args, kwargs)
        else:
            number = caller.number_of_name(node.name, key)
        task = _task_of(caller, node, number, arg, hints)
        recorded = caller.recorded_instead(task) or ""
        if on_change == "run":
            if recorded:
                self._has_replaced = True
                task = caller.task.call(node, caller.number_of_replacement(number, task.digest), task.arg, task.digest)
        elif recorded or self._is_recorded_elsewhere(caller, task):
            where, which = caller.task, key or number % ROUTER_BASE + 1
            there = recorded or node.name
            moved = not recorded
            raise caller.refuse(CallsChangedError(where.node.name, where.step, which, there, node.name, moved=moved))
        future: TaskFuture[Any] = TaskFuture(caller, task)
        self._futures.append(future)
        future.start()
        return future

    def _is_recorded_elsewhere(self, caller: AttemptContext, task: Task) -> bool:
        """Return True if a call without a record is recorded in another position, because the code has changed.

        Running it would repeat recorded work. It is in another position if calls before it, which have no record, were
        removed or replaced, or if it is identified by a name now.
        """
        # Unchanged code makes such calls, too: of two equal calls the second may be recorded, and the first not. So
        # only calls are looked for whose position must have changed: named ones, and those of changed code.
        persistence = caller.graph.persistence
        records = persistence.task_records
        if not records.results or task.id in records.results:
            return False
        if not (task.send >= NAMED_BASE or self._has_replaced or persistence.has_other_version):
            return False
        equal = set(records.earlier.calls.get((task.node.name, task.digest), ()))
        equal -= {future.task_id for future in self._futures}
        if not equal or caller.is_handler:
            return False
        return caller.task.has_called(task.node.name, equal)

    async def join(self) -> None:
        """Wait until all tasks have ended, and raise their unretrieved errors.

        Raises:
            BaseException: the unretrieved failure of a task, or a group of several, in call order.
            GraphInterrupt: no task failed, and one asked a question.
            ParentCommand: no task failed or asked, and graphs that tasks ran gave commands for outer graphs.
        """
        for future in self._futures:
            await future.wait_until_ended()
        failures = self.take_failures()
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise BaseExceptionGroup(f"{len(failures)} tasks failed and were not awaited", failures)
        errors = [error for future in self._futures if (error := future.unretrieved_error()) is not None]
        for error in errors:
            if isinstance(error, GraphInterrupt):
                raise error
        commands = [command for error in errors if isinstance(error, ParentCommand) for command in error.commands]
        if commands:
            raise ParentCommand(tuple(commands))

    def take_failures(self) -> list[BaseException]:
        """Return unretrieved failures of ended tasks, in call order, and mark them as retrieved."""
        # In call order, and not in the order in which they ended: the error of a run is the same each time.
        failed: list[BaseException] = []
        for future in sorted(self._futures, key=lambda future: future.position):
            error = future.unretrieved_error()
            if error is not None and not isinstance(error, (GraphBubbleUp, TaskCancelledError)):
                future.mark_retrieved()
                failed.append(error)
        return failed

    async def wait_all(self) -> None:
        """Wait until all tasks have ended, because the caller stops at a question."""
        # Cancelling them would be faster, but their work would be lost, and the resume would run them again.
        for future in self._futures:
            await future.wait_until_ended()

    def cancel_all(self) -> None:
        """Cancel the tasks that still run."""
        for future in self._futures:
            future.cancel()

    async def end(self) -> None:
        """Cancel the tasks that still run, and wait until they have ended."""
        self.cancel_all()
        for future in self._futures:
            if not future.done():
                await future.wait_out()


def _task_of(caller: AttemptContext, node: Node, number: int, arg: tuple[Any, Any], hints: Sequence[Any]) -> Task:
    """Return the task of a call, with the digest of its arguments if its result is recorded or kept for a retry."""
    digest = caller.graph.persistence.digests.of_call(node, hints, *arg) if caller.is_compared else b""
    return caller.task.call(node, number, arg, digest)


def call_task(
    caller: AttemptContext,
    node: Node,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    hints: Sequence[Any],
    *,
    key: str | None = None,
    on_change: OnChange = "error",
) -> TaskFuture[Any]:
    """Call a task from a node's code, on the event loop or in a worker thread.

    Args:
        caller: the attempt that makes the call.
        node: the task's function and policies.
        args, kwargs: the arguments of the call.
        hints: annotations of the arguments and the result, so that the codec can store their types.
        key: identifies the call among those of the attempt, instead of its number.
        on_change: what to do if another call is recorded under this number.

    Raises:
        CallsChangedError: another call is recorded under this number, or an earlier call was refused for that.
        InvalidUpdateError: the attempt has already made a call with this key.
        OutsideRunError: the node has ended, or the calling thread was not started by anyio.
    """

    def start() -> TaskFuture[Any]:
        calls = caller.calls if isinstance(caller.calls, CalledTasks) else CalledTasks()
        caller.calls = calls
        caller.graph.persistence.add_types(*hints)
        caller.record_activity()
        return calls.start(caller, node, args, kwargs, hints, key, on_change)

    return call_on_loop(caller, f"task {node.name!r}", start)


def decide_patch(caller: AttemptContext, name: str) -> bool:
    """Return the decision of `patched(name)` for the planned task of which an attempt is a part.

    Args:
        caller: the attempt that asks.
        name: the name of the change.

    Raises:
        CallsChangedError: an earlier call of the attempt was refused.
        OutsideRunError: the node has ended, or the calling thread was not started by anyio.
    """
    *_, planned = caller.chain_in_graph()
    decide = partial(caller.graph.persistence.decide_patch, planned.task, name)
    return call_on_loop(caller, f"patched({name!r})", decide)


def call_on_loop(caller: AttemptContext, what: str, operation: Callable[[], T]) -> T:
    """Run an operation of a node's code on the event loop's thread, and wait for its end.

    Args:
        caller: the attempt.
        what: names the operation in messages.
        operation: the operation.

    Raises:
        CallsChangedError: an earlier call of the attempt was refused.
        OutsideRunError: the node has ended, or the calling thread was not started by anyio.
    """

    def run() -> T:
        # Checked again on the loop: the attempt may end while the thread waits for its turn.
        caller.check(what)
        caller.check_refusal()
        return operation()

    caller.check(what)
    if caller.graph.run.loop_thread == threading.get_ident():
        return run()
    try:
        with counting_in_code_order(caller):
            from anyio import from_thread

            return from_thread.run_sync(run)
    except OutsideRunError:
        raise
    except RuntimeError as error:
        raise OutsideRunError(
            f"{what} was called in a thread of the node's own: call it in the node's function"
        ) from error
