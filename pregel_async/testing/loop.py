"""`SimulatedLoop`: an asyncio event loop whose time is a virtual clock's, and whose next step is chosen by a seed.

asyncio's own loop runs what is ready in the order in which it became ready. That order is one of many that a program
may meet: real ones depend on the network and the disk. Here each step is drawn. Two promises of asyncio's are kept, on
which code may rely: callbacks given to `call_soon` run in their order, and a task's steps follow each other. The tasks,
and the worker threads (`threads.py`), take turns by the seed.

When nothing is ready, time jumps to the next timer. There is no network and no disk in this world.
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
"""Steps after which a loop counts as one that never ends."""


class StuckError(RuntimeError):
    """Everything waits, and nothing can ever wake it; or it goes round without end."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop for one simulation. `run` a coroutine on it, then `close` it.

    Args:
        clock: its time.
        luck: draws each step.
        limit: how many steps it may take.

    Attributes:
        steps: how many there were.
        errors: what callbacks and abandoned tasks have raised, which an ordinary loop would log.
        turns: of the worker threads that have begun and not ended.
        before_step: called with the step's number before each.
    """

    _ready: Any  # a list in place of a deque: what is next is taken from anywhere
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
        """Run a coroutine to its end."""
        with lockstep(self):
            try:
                result = self.run_until_complete(work)
            except BaseException:
                self._cancel_remaining()
                raise
            self.run_until_complete(self.shutdown_asyncgens())
            return result

    def _cancel_remaining(self) -> None:
        """Cancel what is left, and let it clean up as far as it can."""
        self._max_steps, self.before_step = self.steps + 10_000, None
        left = asyncio.all_tasks(self)
        while left:
            for task in sorted(left, key=_number):
                task.cancel()
            try:
                self.run_until_complete(_wait_for_all(left))
            except StuckError:
                return  # it will not let itself be ended
            left = asyncio.all_tasks(self)

    def time(self) -> float:
        return self.clock.monotonic()

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = super().call_soon_threadsafe(callback, *args, context=context)
        Turn.posted()
        return handle

    def take_turn(self, turn: Turn, *, now: bool = False) -> None:
        """Let a worker thread run, at a moment that the seed chooses, or in the very next step.

        A call that was given to a thread begins at once: what it waits for might be cancelled first, and whether the
        thread has noticed it by then, no seed could tell.
        """
        if now:
            self._next_turn = turn
        else:
            self.call_soon(turn.take)

    # ---- what asyncio's base class asks of a loop ---------------------------------------------------------------

    def _run_once(self) -> None:
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
        """Where what is to run next stands.

        Drawn from the tasks and threads in the order in which they began, and the first of the callbacks. The order in
        which they became ready says nothing: those that are cancelled together are so in the order of a set.
        """
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
        """For what begins."""
        self._count += 1
        return self._count

    def _process_events(self, event_list: object) -> None:
        """There are none: no files, no sockets."""

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector who would have to be woken."""

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is dropped when it is due."""

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
    """A task that knows how many began before it."""

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
