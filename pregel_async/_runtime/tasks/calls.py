"""Tasks that a node calls: they run beside it, and are recorded as they finish.

A call gives a future at once. Its result is stored before anybody sees it, under an id made of the caller's and of the
call's place in it, so that it is never computed again: not after a crash, a question, a failure, or a retry of the
caller. They end before their caller does: it waits for them, and cancels them when it fails or is cancelled.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import anyio
import anyio.lowlevel

from ..._core.isolation import isolate, own_as_it_is
from ..._core.program import PARENT, Node
from ..._core.task import Cancelled, Failed, Finished, NotStarted, Outcome, Paused, Task
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
from .context import CURRENT, ROUTER_BASE, AttemptContext, Calls, counting_in_code_order
from .slots import Unlimited
from .worker_threads import NO_FENCE

T = TypeVar("T")


class TaskFuture(Generic[T]):
    """The result of a task, once it is there. Await it, as often as you like, in any task of the node.

    A waiter that is cancelled cancels the task, as is usual on asyncio; shield it where that is not meant.
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

    def done(self) -> bool:
        """Whether the task has ended, in whatever way."""
        return self._outcome is not None

    def cancelled(self) -> bool:
        """Whether the task was cancelled before it finished."""
        return isinstance(self._outcome, Cancelled)

    def cancel(self) -> bool:
        """Cancel the task, if it has not ended. It runs again when the thread is resumed and calls it again.

        Returns:
            Whether it was still under way.

        Raises:
            OutsideRunError: called in a thread that the run did not start.
        """
        if self.done():
            return False
        if threading.get_ident() == self._loop_thread:
            self._scope.cancel()
        else:
            from anyio import from_thread

            try:
                from_thread.run_sync(self._scope.cancel)
            except RuntimeError as error:
                raise self._unreachable_error("cancelled") from error
        self._is_retrieved = True  # whoever cancels it knows
        return True

    def result(self, timeout: float | None = None) -> T:
        """The result; in a worker thread (a plain function's), wait for it.

        Args:
            timeout: seconds to wait; None for ever.

        Raises:
            TimeoutError: it is not there yet.
            OutsideRunError: called before the task has ended on the event loop's thread, where the future is awaited,
                or in a thread that the run did not start.
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
        except RuntimeError as error:  # anyio's: what the task raised is not raised in there
            raise self._unreachable_error("waited for") from error
        return self._retrieve()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the task raised; None when it finished. Waits as `result` does."""
        try:
            self.result(timeout)
        except TimeoutError:
            if not self.done():
                raise
        except BaseException:
            if not self.done():
                raise
        self._is_retrieved = True
        return _error_of(self._outcome, self._task)

    async def _wait_from_thread(self, timeout: float | None) -> None:
        if on_asyncio() and anyio.current_effective_deadline() == float("-inf"):
            # anyio tells a call from a thread of a cancellation that comes while it waits, and not of one before.
            raise anyio.get_cancelled_exc_class()
        # The thread that waits is lent to the others: that of the task is to come out of the same number of threads.
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
        """Wait until the task has ended, in whatever way.

        Args:
            cancels: when the wait is cancelled, so is the task.
        """
        if self._outcome is not None:
            return
        lent = list(_slots_of(CURRENT.get() or self._caller))  # who waits for a task lends it its place
        for slot in lent:
            slot.lend()
        try:
            await self._ended.wait()
        except BaseException:
            # A caller with open questions is on its way to ask, and the task may finish beside it.
            if cancels and not self._caller.open_questions:
                self.cancel()
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
            # The task may have ended with the run that is being cancelled: then so does the thread, and does not fail.
            with contextlib.suppress(RuntimeError):  # a thread of the node's own
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
        """Start the task beside its caller, who ends after it: cancels it if need be, and waits."""
        self._host_task = self._caller.graph.run.loop.start(
            self._run, f"task {self._task.node.name}", self._on_host_end
        )

    async def _run(self) -> None:
        graph = self._caller.graph
        outcome: Outcome = Cancelled()
        try:
            with self._scope:
                await anyio.lowlevel.checkpoint_if_cancelled()  # it never begins when it was cancelled before
                outcome = await graph.call(self._caller, self._task)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # nothing else may leave: no task group is there to take it
            outcome = Failed(error)
        finally:
            if isinstance(outcome, (Paused, NotStarted)):  # its caller stops too, and runs again with it
                self._caller.open_questions[self.position] = outcome.interrupts if isinstance(outcome, Paused) else ()
            self._outcome = outcome
            self._ended.set()

    def _on_host_end(self, _: object) -> None:
        if not self._ended.is_set():  # cancelled before it began
            self._outcome = Cancelled()
            self._ended.set()

    async def wait_out(self) -> None:
        """Wait until the task has ended, come what may."""
        await wait_out(self._ended)

    def unretrieved_error(self) -> BaseException | None:
        """What the task raised, if nobody has been told, and nobody waits to be told."""
        return None if self._is_retrieved or self._waiters else _error_of(self._outcome, self._task)

    def mark_retrieved(self) -> None:
        """Somebody is told now."""
        self._is_retrieved = True


def _slots_of(attempt: AttemptContext) -> Iterator[Unlimited]:
    """The places that are free while code of a node waits: the node's, and of the nodes that its graph runs in."""
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
    if isinstance(outcome, Finished) and outcome.leaves:
        return ParentCommand(tuple([command for name, command in outcome.writes if name == PARENT]))
    return None


class CalledTasks(Calls):
    """The tasks that one attempt of a node has called."""

    any = True

    def __init__(self) -> None:
        self._futures: list[TaskFuture[Any]] = []

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
        """Start a task; on the event loop's thread. See `call_task`."""
        arg = args, kwargs = own_as_it_is((args, kwargs))
        if key is None:
            number = caller.number_of_call(node, hints, args, kwargs)
        else:
            number = caller.number_of_name(node.name, key)
        task = _task_of(caller, node, number, arg, hints)
        recorded = caller.recorded_instead(task)
        if recorded is not None:
            if on_change == "error":
                which = key or number % ROUTER_BASE + 1
                where = caller.task
                raise caller.refuse(CallsChangedError(where.node.name, where.step, which, recorded, node.name))
            task = caller.task.call(node, caller.number_of_replacement(number, task.digest), task.arg, task.digest)
        future: TaskFuture[Any] = TaskFuture(caller, task)
        self._futures.append(future)
        future.start()
        return future

    async def join(self) -> None:
        """Wait until all have ended.

        Raises:
            BaseException: what one of them raised and nobody was told; an `ExceptionGroup` in the order of the calls
                when there are several; `GraphInterrupt` when one has asked; else `ParentCommand` when graphs that
                they ran have given commands.
        """
        for future in self._futures:
            await future.wait_until_ended()
        failures = self.take_failures()
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise BaseExceptionGroup(f"{len(failures)} called tasks failed and were not awaited", failures)
        errors = [error for future in self._futures if (error := future.unretrieved_error()) is not None]
        for error in errors:
            if isinstance(error, GraphInterrupt):
                raise error
        commands = [command for error in errors if isinstance(error, ParentCommand) for command in error.commands]
        if commands:
            raise ParentCommand(tuple(commands))

    def take_failures(self) -> list[BaseException]:
        """What tasks raised that have ended and nobody was told, in the order of the calls. Now somebody is."""
        failed: list[BaseException] = []
        for future in sorted(self._futures, key=lambda future: future.position):
            error = future.unretrieved_error()
            if error is not None and not isinstance(error, (GraphBubbleUp, TaskCancelledError)):
                future.mark_retrieved()
                failed.append(error)
        return failed

    async def wait_all(self) -> None:
        """Wait until all have ended, as their caller stops to ask: what they do is not done again."""
        for future in self._futures:
            await future.wait_until_ended()

    def cancel_all(self) -> None:
        """Cancel those that go on."""
        for future in self._futures:
            future.cancel()

    async def end(self) -> None:
        """Cancel those that go on, and wait until they have ended."""
        self.cancel_all()
        for future in self._futures:
            if not future.done():
                await future.wait_out()


def _task_of(caller: AttemptContext, node: Node, number: int, arg: tuple[Any, Any], hints: Sequence[Any]) -> Task:
    """Return the task of a call, with the digest of its arguments where its result is recorded or kept."""
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
    """Call a task from wherever the node's code runs: on the event loop, or in a worker thread.

    Args:
        hints: annotations that name the types of its arguments and of what it gives.
        key: identifies the call among those of the node, instead of its position.
        on_change: what to do if another call is recorded in its place.

    Raises:
        CallsChangedError: another call is recorded in its place, or was in that of an earlier call.
        InvalidUpdateError: the node has made a call with this key.
        OutsideRunError: the node has ended, or runs code in a thread that anyio does not know.
    """

    what = f"task {node.name!r}"

    def start() -> TaskFuture[Any]:
        caller.check(what)
        caller.check_refusal()
        calls = caller.calls if isinstance(caller.calls, CalledTasks) else CalledTasks()
        caller.calls = calls
        caller.graph.persistence.know(*hints)
        caller.record_activity()
        return calls.start(caller, node, args, kwargs, hints, key, on_change)

    caller.check(what)
    if caller.graph.run.loop_thread == threading.get_ident():
        return start()
    try:
        with counting_in_code_order(caller):
            from anyio import from_thread

            return from_thread.run_sync(start)
    except OutsideRunError:
        raise
    except RuntimeError as error:
        raise OutsideRunError(
            f"{what} was called in a thread of the node's own: call it in the node's function"
        ) from error
