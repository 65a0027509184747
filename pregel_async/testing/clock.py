"""`VirtualClock`: time that advances by hand, or by itself when every task of the event loop is waiting."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import threading
from collections.abc import Callable
from heapq import heappop, heappush

import anyio.lowlevel

from checkpoint_savers.durations import read_seconds

from .._runtime.platform.event_loops import WaitableEvent, loop, on_asyncio

START = 1_900_000_000.0
"""Unix seconds at which a virtual clock starts by default."""

IDLE_TURNS = 3
"""Consecutive turns with all tasks waiting after which an asyncio loop counts as idle.

One turn is too few: a callback that runs in one turn makes a task ready that runs only in the next.
"""


class VirtualClock:
    """Clock, ids and randomness for graphs under test: `compile(environment=VirtualClock())`.

    The runtime sleeps on this clock for retry backoffs, timeouts, heartbeats and busy threads. Sleepers wake in the
    order of their due times, and those due at the same time in the order in which they began to sleep. The clock works
    on asyncio and on trio. Ids and random numbers derive from the seed, so two tests with equal seeds get equal ones.

    Other sleeps (`anyio.sleep` in a node) take real time, except in `simulate`, whose whole event loop runs on virtual
    time.

    Args:
        start: the initial time, in unix seconds.
        seed: determines ids and random numbers.
        autojump: how many seconds of real time all tasks must have been waiting before the clock jumps to the next due
            time. 0 jumps as soon as all tasks wait, which is right if everything is in memory. The event loop cannot
            see worker threads and databases at work: with these, pass an upper bound of how long they take (0.1, for
            example). None never jumps; only `advance` moves the time then.

    Raises:
        ValueError: `autojump` is negative.
        TypeError: `autojump` is neither a number nor a timedelta.
    """

    def __init__(self, *, start: float = START, seed: int = 0, autojump: float | None = 0.0) -> None:
        self.autojump = None if autojump is None else read_seconds("autojump", autojump, zero=True)
        self._start = start
        self._passed = 0.0
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._sleepers: list[tuple[float, int, _PendingSleep]] = []
        self._count = 0
        self._watched: set[object] = set()

    def now(self) -> float:
        """Return the virtual time in unix seconds."""
        return self._start + self._passed

    def monotonic(self) -> float:
        """Return the virtual seconds since the clock was made."""
        return self._passed

    async def sleep(self, seconds: float) -> None:
        """Sleep until the virtual time has advanced far enough.

        Args:
            seconds: virtual seconds. 0 and less only yields to the event loop.
        """
        if seconds <= 0:
            await anyio.lowlevel.checkpoint()
            return
        backend = loop()
        running = asyncio.get_running_loop() if backend.is_asyncio else None
        if getattr(running, "clock", None) is self:
            # A SimulatedLoop reads its time from this clock, so its own timer wakes the task. An entry in `_sleepers`
            # would be a second source of wake-ups, outside of the order that the seed determines.
            await asyncio.sleep(seconds)
            return
        sleeper = _PendingSleep(backend.event(), backend.threadsafe_caller())
        with self._lock:
            self._count += 1
            heappush(self._sleepers, (self._passed + seconds, self._count, sleeper))
        if self.autojump is not None:
            self._watch_loop(running)
        try:
            await sleeper.event.wait()
        finally:
            sleeper.awake = True

    def new_id(self) -> str:
        """Return the next run id that derives from the seed."""
        return f"run-{self._random.getrandbits(64):016x}"

    def entropy(self) -> int:
        """Return the next 62 random bits that derive from the seed."""
        return self._random.getrandbits(62)

    def jitter(self) -> float:
        """Return the next random number from the seed, at least 0 and below 1."""
        return self._random.random()

    @property
    def sleepers(self) -> int:
        """The number of tasks that are sleeping on this clock."""
        with self._lock:
            return sum(not sleeper.awake for _, _, sleeper in self._sleepers)

    def advance(self, seconds: float) -> None:
        """Move the time forward and wake the sleepers that become due. They run when the caller next awaits.

        Args:
            seconds: virtual seconds to add.

        Raises:
            ValueError: `seconds` is negative or not a finite number.
            TypeError: `seconds` is neither a number nor a timedelta.
        """
        self._advance_to(self._passed + read_seconds("time goes forward: what advance() takes", seconds, zero=True))

    def _advance_to(self, moment: float) -> None:
        with self._lock:
            due: list[_PendingSleep] = []
            while self._sleepers and self._sleepers[0][0] <= moment:
                due.append(heappop(self._sleepers)[2])
            self._passed = max(self._passed, moment)
        # After the lock is released: it is never held while calling into an event loop, which has locks of its own.
        for sleeper in due:
            sleeper.wake()

    def _next_due(self) -> float | None:
        """Return when the next sleeper is due, in seconds of `monotonic`; None if none sleeps."""
        with self._lock:
            # Cancelled sleepers stay in the heap, as removing one costs a search. They must not make the clock jump.
            while self._sleepers and self._sleepers[0][2].awake:
                heappop(self._sleepers)
            return self._sleepers[0][0] if self._sleepers else None

    def _jump_to_next(self) -> bool:
        """Advance to the next due time. Return False if nothing sleeps."""
        moment = self._next_due()
        if moment is not None:
            self._advance_to(moment)
        return moment is not None

    def _watch_loop(self, running: asyncio.AbstractEventLoop | None) -> None:
        """Start an idle watcher for the running loop, unless it has one."""
        if running is not None:
            if running not in self._watched:
                self._watched.add(running)
                running.call_soon(_IdleWatcher(self, running).check)
            return
        import trio

        run = trio.lowlevel.current_root_task()
        if run not in self._watched:
            self._watched.add(run)
            trio.lowlevel.spawn_system_task(self._jump_on_trio, run, name="virtual clock")

    async def _jump_on_trio(self, run: object) -> None:
        import trio.testing

        try:
            while self._next_due() is not None:
                await trio.testing.wait_all_tasks_blocked(self.autojump or 0.0)
                self._jump_to_next()
        finally:
            self._watched.discard(run)


class _PendingSleep:
    """One sleeping task, which can be woken from any thread."""

    __slots__ = ("_call", "_thread", "awake", "event")

    def __init__(self, event: WaitableEvent, call: Callable[[Callable[[], object]], object]) -> None:
        self.event = event
        self.awake = False
        self._call = call
        self._thread = threading.get_ident()

    def wake(self) -> None:
        if self.awake:
            return
        self.awake = True
        if threading.get_ident() == self._thread and (on_asyncio() or _in_trio()):
            self.event.set()
            return
        # Another thread advances the clock: events belong to their event loop and must be set there. A closed loop
        # raises a RuntimeError; its sleeper has ended with it.
        with contextlib.suppress(RuntimeError):
            self._call(self.event.set)


def _in_trio() -> bool:
    trio = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_run()


class _IdleWatcher:
    """Checks once per turn of an asyncio loop whether it is idle, and makes the clock jump then.

    asyncio does not report idleness. The loop counts as idle after several turns in which each task waits for the same
    pending future as before: then only the clock or something outside of the loop can make progress.

    The watcher is a callback and not a task, so that `asyncio.all_tasks()` has no extra entry in tests that look there.
    """

    def __init__(self, clock: VirtualClock, running: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = running
        self._quiet_turns = 0
        self._quiet_since = 0.0
        self._waited_for: set[object] = set()

    def check(self) -> None:
        clock, running = self._clock, self._loop
        if clock._next_due() is None:
            clock._watched.discard(running)
            return
        waited_for = {_waits_for(task) for task in asyncio.all_tasks(running)}
        same, self._waited_for = waited_for == self._waited_for, waited_for
        self._quiet_turns = self._quiet_turns + 1 if same and None not in waited_for else 0
        if self._quiet_turns <= IDLE_TURNS:
            self._quiet_since = running.time()
        elif running.time() - self._quiet_since >= (clock.autojump or 0.0):
            self._quiet_turns = 0
            clock._jump_to_next()
        else:
            running.call_later((clock.autojump or 0.0) / 8, self.check)
            return
        running.call_soon(self.check)


def _waits_for(task: asyncio.Task[object]) -> object:
    """Return the pending future that a task waits for; None if the task can run."""
    # asyncio has no public name for this. C and Python tasks both have the attribute.
    waiter = getattr(task, "_fut_waiter", None)
    return None if waiter is None or waiter.done() else waiter
