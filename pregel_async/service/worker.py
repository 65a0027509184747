"""Work on queued threads, as many at once as there are slots, until the service drains."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from functools import partial

import anyio
from anyio.abc import TaskGroup

from checkpoint_savers.bridge import current_loop
from checkpoint_savers.children import start_soon
from checkpoint_savers.durations import read_seconds
from checkpoint_savers.errors import StorageError
from checkpoint_savers.runs.rows import RunRow, RunThreadRow

from .._runtime.platform.event_loops import task_group
from ..errors import ConfigError
from .acceptance import Acceptance
from .activation import Activation, Tools, log
from .dispatch.port import Dispatcher
from .errors import ServiceDrainingError
from .keeper import Keeper
from .routes import routes_of

LOOK_EVERY = 1.0
"""Seconds after which a worker looks for runs that are to be cancelled or are followed, without an announcement."""

RETRY_AFTER = 0.25
"""Seconds after which a worker tries a queued thread again whose lease another owner has."""

CANCEL_PAUSE = 0.005
"""Seconds between two looks for requests of other processes to cancel or to follow a run."""

QUARANTINE = 2
"""Number of times in a row that a run was taken without committing a superstep, from which on it is executed alone: it
may be what ended its workers."""


class Worker:
    """The settings of a worker.

    Args:
        slots: the number of runs that it executes at the same time.
        grace: seconds that runs have at a shutdown to reach their next barrier. Then they are cancelled, and another
            worker runs the tasks again that had not finished.
        tracebacks: store the tracebacks of failures with their runs. They have lines of source code.

    Raises:
        ConfigError: `slots` is no positive number, or `grace` no number of seconds, 0 or more.
    """

    def __init__(self, *, slots: int = 20, grace: float = 30.0, tracebacks: bool = True) -> None:
        if type(slots) is not int or slots < 1:
            raise ConfigError(f"slots is a number of runs, 1 or more, not {slots!r}")
        self.slots = slots
        self.tracebacks = tracebacks
        try:
            self.grace = read_seconds("grace", grace, zero=True, endless=True)
        except (TypeError, ValueError) as error:
            raise ConfigError(str(error)) from error


class WorkLoop:
    """A worker at work: the slots that a dispatcher fills.

    Args:
        tools: what its activations share.
        settings: its settings.
        dispatcher: brings queued threads.

    Attributes:
        look: set it to look at once for runs that are to be cancelled or are followed.
        runs, environment, routes, slots: see `Crew`.
        worker_id: the worker's id.
    """

    def __init__(self, tools: Tools, settings: Worker, dispatcher: Dispatcher) -> None:
        self.look = anyio.Event()
        self.runs = tools.runs
        self.environment = tools.environment
        self.worker_id = tools.worker_id
        self.routes = tuple(route for name, graph in tools.graphs.items() for route in routes_of(name, graph))
        self.slots = settings.slots
        self._tools = tools
        self._grace = settings.grace
        self._dispatcher = dispatcher
        self._keeper = Keeper(tools.saver, tools.runs, tools.environment, dispatcher, tools.graphs)
        self._active: dict[str, Activation] = {}  # by thread
        self._refused: set[str] = set()  # threads to try later
        self._spare = 0  # free slots that were left when all queued threads had been started
        self._freed = anyio.Event()
        self._alone = False  # a run in quarantine is executed: no other one is taken
        self._clears_until = 0.0  # until then (monotonic) only runs in quarantine are taken, which wait for idleness
        self._draining = anyio.Event()
        self._background: TaskGroup
        self._group: TaskGroup
        self._context: Context | None = None  # the context of `work`; None while no threads are taken
        self._loop: object = None  # the event loop of `work`

    @property
    def is_draining(self) -> bool:
        """True once `drain` was called."""
        return self._draining.is_set()

    @property
    def free(self) -> int:
        """The number of free slots."""
        return 0 if self._alone else self.slots - len(self._active)

    def drain(self, reason: str) -> None:
        """Take no more threads, and stop all runs at their next barrier.

        Args:
            reason: why.
        """
        self._tools.control.request_drain(reason)
        self._draining.set()
        self._context = None

    async def work(self) -> None:
        """Work until the service drains, and then until all runs were given back or have ended."""
        async with task_group() as self._background:
            start_soon(self._background, self._keeper.keep)
            start_soon(self._background, self._watch_requests)
            async with task_group() as self._group:
                with anyio.CancelScope() as taking:
                    start_soon(self._background, self._end_when_draining, taking)
                    self._context, self._loop = copy_context(), current_loop()
                    try:
                        await self._dispatcher.work(self)
                    finally:  # also if the dispatcher has failed: the task group takes no more tasks then
                        self._context = None
            self._background.cancel_scope.cancel()

    async def _end_when_draining(self, taking: anyio.CancelScope) -> None:
        await self._draining.wait()
        taking.cancel()
        self._group.cancel_scope.deadline = anyio.current_time() + self._grace

    def fill(self, queued: Sequence[RunThreadRow]) -> None:
        """Start to work on queued threads. See `Crew.fill`.

        Args:
            queued: the threads.
        """
        if self.is_draining:
            return
        waiting = False
        for thread in queued:
            if thread.thread_id in self._refused or thread.thread_id in self._active:
                continue
            if self._can_start(thread):
                self._start(thread)
            else:
                waiting = True
        self._spare = 0 if waiting else self.free

    def _can_start(self, thread: RunThreadRow) -> bool:
        if not self.free or thread.thread_id in self._active:
            return False
        if thread.stalls < QUARANTINE:
            return self.environment.monotonic() >= self._clears_until
        if not self._active:
            return True
        seconds = self._tools.saver.lease_seconds
        if self._tools.saver.clock() - thread.activation_at > seconds:
            # It has waited long for a worker without other runs. This one stops to take others, to become one.
            self._clears_until = self.environment.monotonic() + seconds
        return False

    def _start(self, thread: RunThreadRow) -> anyio.Event:
        """Start to work on a thread. Return an event that is set at the end."""
        ended = anyio.Event()
        self._alone = thread.stalls >= QUARANTINE
        if self._alone:
            self._clears_until = 0.0
        activation = Activation(self._tools)
        self._active[thread.thread_id] = activation
        start_soon(self._group, self._work_on, thread.thread_id, activation, partial(activation.work, thread), ended)
        return ended

    async def accept(self, acceptance: Acceptance) -> RunRow:
        """Store a run. If a slot is free that no queued run needs, this worker takes the run in the same transaction.

        Args:
            acceptance: the run.

        Returns:
            The stored row.

        Raises:
            ServiceDrainingError: this process shuts down. The run is not stored.
            Exception: as for `RunStore.start`.
        """
        # A caller on another event loop cannot start a task of this one.
        context = self._context if current_loop() == self._loop else None
        thread_id = acceptance.thread_id
        if context is None or not self._has_slot_for(thread_id, acceptance.route):
            return await acceptance.store(self.runs)
        self._spare -= 1
        activation = Activation(self._tools)
        self._active[thread_id] = activation

        async def store_and_work() -> None:
            try:
                await activation.start(acceptance)
            finally:  # if the task was cancelled before the run was stored
                acceptance.refuse(ServiceDrainingError())

        # In the worker's context and not the caller's: if a node of another run starts this run, it is no part of that.
        context.run(start_soon, self._group, self._work_on, thread_id, activation, store_and_work, anyio.Event())
        return await acceptance.wait()

    def _has_slot_for(self, thread_id: str, route: str) -> bool:
        # `_spare` excludes slots that became free later: queued runs get these first.
        is_known = thread_id in self._active or thread_id in self._refused
        return self._spare > 0 and route in self.routes and not is_known

    async def work_on(self, thread_id: str, activation_no: int) -> None:
        """Work on a thread, and return when that has ended. See `Crew.work_on`.

        Args:
            thread_id: the thread.
            activation_no: the number with which it was queued.
        """
        while not self.is_draining:
            thread = await self.runs.get_thread(thread_id)
            if thread is None or (thread.activation, thread.activation_no) != ("queued", activation_no):
                return
            if self._can_start(thread):
                await self._start(thread).wait()
                if thread_id not in self._refused:
                    return
                await self.environment.sleep(RETRY_AFTER)
            else:
                with anyio.move_on_after(LOOK_EVERY):
                    await self._freed.wait()

    async def _work_on(
        self, thread_id: str, activation: Activation, work: Callable[[], Awaitable[None]], ended: anyio.Event
    ) -> None:
        try:
            await work()
        except Exception:
            # A defect of ours or of a saver's. The worker and its other runs continue; the keeper queues the thread.
            log.exception("the work on thread %r has failed", thread_id)
        finally:
            del self._active[thread_id]
            self._alone = False
            if activation.was_refused:
                self._refused.add(thread_id)
                start_soon(self._background, self._try_later, thread_id)
            ended.set()
            self._freed.set()
            self._freed = anyio.Event()
        if not activation.was_refused:
            self.runs.changes.notify(("queue",))  # a slot is free

    async def _try_later(self, thread_id: str) -> None:
        """Try a thread again after a while whose lease another owner has: a direct call of the graph, say."""
        await self.environment.sleep(RETRY_AFTER)
        self._refused.discard(thread_id)
        self.runs.changes.notify(("queue",))

    async def _watch_requests(self) -> None:
        """Stop runs that are to be cancelled, and store parts of followed runs early, also for other processes."""
        seen = 0
        while True:
            running = {each.run_id: each for each in self._active.values() if each.execution is not None}
            try:
                for row in await self.runs.get_runs(tuple(running)) if running else ():
                    execution = running[row.run_id].execution
                    if execution is None or row.worker != self.worker_id:
                        continue
                    if row.cancel is not None:
                        execution.cancel()
                    elif execution.early is not None and execution.early.extend(row.followed_until):
                        start_soon(self._background, execution.early.store)
            except StorageError:
                log.exception("requests to cancel or to follow runs cannot be read: trying again")
            with anyio.move_on_after(CANCEL_PAUSE):
                await self.look.wait()
            if self.look.is_set():
                self.look = anyio.Event()
                continue
            with anyio.move_on_after(LOOK_EVERY):
                seen = await self.runs.wait_for_change(seen, "cancel")
