"""Take queued threads and work on them, as many at once as there are slots, until the service drains."""

from __future__ import annotations

import random
from collections.abc import Collection

import anyio
from anyio.abc import TaskGroup

from checkpoint_savers.children import start_soon
from checkpoint_savers.durations import read_seconds
from checkpoint_savers.errors import StorageError
from checkpoint_savers.runs.rows import RunThreadRow

from ..errors import ConfigError
from .activation import Activation, Tools, log
from .keeper import Keeper

LOOK_EVERY = 1.0
"""Seconds after which a worker looks for queued threads, even if nothing announced one."""

RETRY_AFTER = 0.25
"""Seconds after which a worker tries a queued thread again whose lease another owner has."""

CANCEL_PAUSE = 0.02
"""Seconds between two looks for requests of other processes to cancel a run."""

QUARANTINE = 2
"""Number of times in a row that a run was taken without committing a superstep, from which on it is executed alone: it
may be what ended its workers."""

CHOICE = 64
"""Number of queued threads from which a worker chooses by chance, so that workers do not all try the same one."""


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
    """A worker at work.

    Args:
        tools: what its activations share.
        settings: its settings.

    Attributes:
        look: set it to look at once for runs that are to be cancelled.
    """

    def __init__(self, tools: Tools, settings: Worker) -> None:
        self.look = anyio.Event()
        self._tools = tools
        self._settings = settings
        self._keeper = Keeper(tools.saver, tools.runs, tools.environment)
        self._active: dict[str, Activation] = {}  # by thread
        self._refused: set[str] = set()  # threads to try later
        self._background: TaskGroup
        self._draining = anyio.Event()
        self._raced = False  # another worker took a thread that this one tried to take
        self._alone = False  # a run in quarantine is executed: no other one is taken

    @property
    def is_draining(self) -> bool:
        """True once `drain` was called."""
        return self._draining.is_set()

    def drain(self, reason: str) -> None:
        """Take no more threads, and stop all runs at their next barrier.

        Args:
            reason: why.
        """
        self._tools.control.request_drain(reason)
        self._draining.set()

    async def work(self) -> None:
        """Work until the service drains, and then until all runs were given back or have ended."""
        async with anyio.create_task_group() as background:
            self._background = background
            start_soon(background, self._keeper.keep)
            start_soon(background, self._watch_cancellations)
            async with anyio.create_task_group() as group:
                with anyio.CancelScope() as taking:
                    start_soon(background, _cancel_after, taking, self._draining)
                    await self._take_threads(group)
                group.cancel_scope.deadline = anyio.current_time() + self._settings.grace
            background.cancel_scope.cancel()

    async def _take_threads(self, group: TaskGroup) -> None:
        seen = 0
        while True:
            try:
                await self._fill_slots(group)
            except StorageError:
                log.exception("the queue cannot be read: trying again")
                await self._tools.environment.sleep(LOOK_EVERY)
            with anyio.move_on_after(LOOK_EVERY):
                seen = await self._tools.runs.wait_for_change(seen)

    async def _fill_slots(self, group: TaskGroup) -> None:
        """Start to work on queued threads, until all slots are in use."""
        free = self._settings.slots - len(self._active)
        if free < 1 or self._alone:
            return
        queued = await self._tools.runs.queued(routes=tuple(self._tools.graphs), limit=max(CHOICE, free))
        for thread in queued if not self._raced else _shuffled(queued):
            free = self._settings.slots - len(self._active)
            if not free:
                return
            if thread.thread_id in self._active or thread.thread_id in self._refused:
                continue
            if thread.stalls >= QUARANTINE:
                if self._active:
                    continue
                self._alone = True
            self._active[thread.thread_id] = activation = Activation(self._tools, thread)
            start_soon(group, self._work_on, thread.thread_id, activation)
            if self._alone:
                return

    async def _work_on(self, thread_id: str, activation: Activation) -> None:
        try:
            await activation.work()
        except Exception:
            # A defect of ours or of a saver's. The worker and its other runs continue; the keeper queues the thread.
            log.exception("the work on thread %r has failed", thread_id)
        finally:
            del self._active[thread_id]
            self._alone = False
        self._raced = activation.was_refused
        if activation.was_refused:
            self._refused.add(thread_id)
            start_soon(self._background, self._try_later, thread_id)
        else:
            self._tools.runs.changes.notify()  # a slot is free

    async def _try_later(self, thread_id: str) -> None:
        """Try a thread again after a while whose lease another owner has: a direct call of the graph, say."""
        await self._tools.environment.sleep(RETRY_AFTER)
        self._refused.discard(thread_id)
        self._tools.runs.changes.notify()

    async def _watch_cancellations(self) -> None:
        """Stop runs that are to be cancelled, also by requests of other processes."""
        seen = 0
        while True:
            running = {each.run_id: each for each in self._active.values() if each.execution is not None}
            try:
                for row in await self._tools.runs.get_runs(tuple(running)) if running else ():
                    execution = running[row.run_id].execution
                    if execution is not None and row.cancel is not None and row.worker == self._tools.worker_id:
                        execution.cancel()
            except StorageError:
                log.exception("requests to cancel runs cannot be read: trying again")
            with anyio.move_on_after(CANCEL_PAUSE):
                await self.look.wait()
            if self.look.is_set():
                self.look = anyio.Event()
                continue
            with anyio.move_on_after(LOOK_EVERY):
                seen = await self._tools.runs.wait_for_change(seen)


def _shuffled(queued: Collection[RunThreadRow]) -> list[RunThreadRow]:
    """Return queued threads, the most urgent ones first, and equally urgent ones in an order by chance."""
    return sorted(queued, key=lambda thread: (-thread.priority, random.random()))


async def _cancel_after(scope: anyio.CancelScope, event: anyio.Event) -> None:
    await event.wait()
    scope.cancel()
