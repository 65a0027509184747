"""`SimulatedLoop`: an asyncio event loop with virtual time and a schedule that derives from a seed.

asyncio's own loop runs callbacks in the order in which they became ready. That is one of many possible orders: in
production the order depends on the network and the disk. This loop draws each step at random from the tasks and worker
threads (`threads.py`) that are ready. It keeps the two guarantees of asyncio on which code may rely: callbacks given to
`call_soon` run in their order, and so do the steps of one task.

When nothing is ready, the time jumps to the next timer. The loop has no selector: network and files do not exist.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from contextvars import Context
from heapq import heappop
from typing import Any, TypeVarTuple, Unpack

from .clock import VirtualClock
from .threads import Turn, lockstep

Ts = TypeVarTuple("Ts")

MAX_STEPS = 1_000_000
"""Steps after which a run counts as one that never ends."""


class StuckError(RuntimeError):
    """A deadlock (all tasks wait and no timer is pending), or a run that exceeds its number of steps."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop for one simulation: `run` a coroutine on it, then `close` it.

    Args:
        clock: the time of the loop.
        luck: the random generator that draws each step.
        limit: the maximum number of steps.

    Attributes:
        steps: the number of steps so far.
        errors: messages of errors that an ordinary loop would log: exceptions of callbacks, and of tasks whose
            exception is never retrieved.
        turns: the worker threads that have started and not ended.
        before_step: called before each step with its number, counted from 1.
    """

    _ready: Any  # a list in place of asyncio's deque, because the next handle is taken from any position
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, clock: VirtualClock, luck: random.Random, *, limit: int = MAX_STEPS) -> None:
        super().__init__()
        self.clock = clock
        self.steps = 0
        self.errors: list[str] = []
        self.before_step: Callable[[int], object] | None = None
        self.turns: set[Turn] = set()
        self._next_turn: Turn | None = None
        self._count = 0
        self.set_task_factory(_NumberedTask.create)
        self._draw = luck.random
        self._max_steps = limit
        self._ready = []
        self._thread = threading.get_ident()
        self.set_exception_handler(self._record_error)

    def run(self, work: Any) -> Any:
        """Run a coroutine to its end.

        If it raises, all remaining tasks are cancelled, and run until they have cleaned up.

        Args:
            work: the coroutine.

        Returns:
            What the coroutine returns.

        Raises:
            StuckError: nothing can wake the tasks that wait, or the number of steps exceeds the limit.
            BaseException: what the coroutine raises.
        """
        with lockstep(self):
            try:
                result = self.run_until_complete(work)
            except BaseException:
                self._cancel_remaining()
                raise
            self.run_until_complete(self.shutdown_asyncgens())
            return result

    def _cancel_remaining(self) -> None:
        """Cancel the remaining tasks and run them until they have cleaned up, or are stuck."""
        # A budget of its own, as the limit may be used up; and no more faults, which would hit the clean-up.
        self._max_steps, self.before_step = self.steps + 10_000, None
        left = asyncio.all_tasks(self)
        while left:
            for task in sorted(left, key=_number):  # a set's order would differ from run to run
                task.cancel()
            try:
                self.run_until_complete(_wait_for_all(left))
            except StuckError:
                return  # a task that suppresses its cancellation cannot be ended
            # Tasks that clean up may have started others.
            left = asyncio.all_tasks(self)

    def time(self) -> float:
        return self.clock.monotonic()

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        # The only way into the loop from a thread: a simulated thread that is about to wait for the loop ends its turn
        # here, when the callback is in the loop.
        handle = super().call_soon_threadsafe(callback, *args, context=context)
        Turn.posted()
        return handle

    def take_turn(self, turn: Turn, *, now: bool = False) -> None:
        """Schedule the next turn of a worker thread.

        Args:
            turn: the thread's.
            now: True runs the thread in the very next step; False when the seed draws it.
        """
        # A new call starts its thread at once: its awaiting task might be cancelled before a drawn step, and whether
        # the thread had started by then would depend on the operating system, not on the seed.
        if now:
            self._next_turn = turn
        else:
            self.call_soon(turn.take)

    def _run_once(self) -> None:
        """Run one step. asyncio's base class calls this in a loop, and the private methods below."""
        ready, scheduled, clock = self._ready, self._scheduled, self.clock
        if self._next_turn is not None:
            turn, self._next_turn = self._next_turn, None
            turn.take()
        while True:
            while scheduled and (scheduled[0]._cancelled or scheduled[0]._when <= clock._passed):  # type: ignore[attr-defined]  # asyncio's own fields, which typeshed leaves out
                timer = heappop(scheduled)
                timer._scheduled = False  # type: ignore[attr-defined]  # asyncio's own, left out of typeshed
                if not timer.cancelled():
                    ready.append(timer)
            if ready:
                break
            if not scheduled:
                raise StuckError(self._describe_stuck("everything waits, and nothing can wake it"))
            clock._advance_to(scheduled[0].when())
        handle = ready.pop(self._draw_ready_index() if len(ready) > 1 else 0)
        if handle._cancelled:
            return
        self.steps = steps = self.steps + 1
        if steps > self._max_steps:
            raise StuckError(self._describe_stuck(f"{steps} steps, and no end"))
        if self.before_step is not None:
            self.before_step(steps)
        handle._run()

    def _draw_ready_index(self) -> int:
        """Draw the position in `_ready` of the handle to run next.

        The candidates are the tasks and threads, and of the plain callbacks only the first, as these keep their order.
        """
        # Candidates are sorted by the number of their task or thread before the draw. The order in which they became
        # ready is not reproducible: tasks that are cancelled together become ready in the order of a set.
        numbered: list[tuple[int, int]] = []
        first = True
        for place, handle in enumerate(self._ready):
            owner = getattr(handle._callback, "__self__", None)
            if isinstance(owner, (_NumberedTask, Turn)):
                numbered.append((owner.number, place))
            elif first:
                first = False
                numbered.append((0, place))
        numbered.sort()
        return numbered[int(self._draw() * len(numbered))][1]

    def next_number(self) -> int:
        """Return a number for a task or thread that starts, one more than the last."""
        self._count += 1
        return self._count

    def _process_events(self, event_list: object) -> None:
        """Do nothing: this loop has no selector, so it has no I/O events."""

    def _write_to_self(self) -> None:
        """Do nothing: no selector waits that would have to be woken."""

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: `_run_once` drops cancelled timers when they are due."""

    def _record_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(
            f"{context.get('message')}" + ("" if error is None else f": {type(error).__name__}: {error}")
        )

    def _describe_stuck(self, why: str) -> str:
        tasks = [
            getattr(task.get_coro(), "__qualname__", "a task") for task in sorted(asyncio.all_tasks(self), key=_number)
        ]
        return f"{why}; tasks that have not ended: {', '.join(tasks) or 'none'}"


class _NumberedTask(asyncio.Task[Any]):
    """A task with the number of tasks and threads that started before it, which orders it among them."""

    number: int

    @classmethod
    def create(cls, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> _NumberedTask:
        assert isinstance(loop, SimulatedLoop)
        made = cls(work, loop=loop, **options)
        made.number = loop.next_number()
        return made


async def _wait_for_all(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks)


def _number(task: asyncio.Task[Any]) -> int:
    return task.number if isinstance(task, _NumberedTask) else 0
