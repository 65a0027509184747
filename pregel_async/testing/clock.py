"""`VirtualClock`: time that stands still until it is advanced, or until nobody has anything left to do but to sleep."""

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

from .._runtime.platform.event_loops import Event, loop, on_asyncio

START = 1_900_000_000.0
"""Unix seconds at which a virtual clock begins, if it is told nothing else."""

IDLE_TURNS = 3
"""How often an asyncio loop has to come round with everything waiting, before it counts as idle: what one turn makes
ready, the next runs."""


class VirtualClock:
    """Clock, ids and randomness for graphs under test: `compile(world=VirtualClock())`.

    What sleeps on it (backoffs of retries, timeouts, heartbeats, waiting for a busy thread) is woken in the order of
    its time, and within one moment in the order in which it went to sleep. It works on asyncio and on trio. Ids and
    randomness come from the seed, so that two tests with the same seed see the same.

    What sleeps elsewhere (`anyio.sleep` in a node) takes its own time, unless the graph runs in `simulate`, whose event
    loop is virtual as a whole.

    Args:
        start: unix seconds at the beginning.
        seed: of ids and randomness.
        autojump: seconds of real time for which nothing must have happened before the clock jumps to the next sleeper.
            0 jumps as soon as every task waits: right where all is in memory. Where worker threads or databases are at
            work, which the event loop cannot see, say how long they may take (0.1, for example). None never jumps: only
            `advance` moves the time.

    Raises:
        ValueError: `autojump` is below zero.
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
        return self._start + self._passed

    def monotonic(self) -> float:
        return self._passed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await anyio.lowlevel.checkpoint()
            return
        backend = loop()
        running = asyncio.get_running_loop() if backend.is_asyncio else None
        if getattr(running, "clock", None) is self:
            await asyncio.sleep(seconds)  # the loop's own time is this one
            return
        sleeper = _PendingSleep(backend.event(), backend.caller())
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
        return f"run-{self._random.getrandbits(64):016x}"

    def entropy(self) -> int:
        return self._random.getrandbits(62)

    def jitter(self) -> float:
        return self._random.random()

    @property
    def sleepers(self) -> int:
        """How many sleep on this clock now."""
        with self._lock:
            return sum(not sleeper.awake for _, _, sleeper in self._sleepers)

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass. Those whose time comes meanwhile are woken; they run when the caller awaits.

        Raises:
            ValueError: time does not go back.
            TypeError: `seconds` is neither a number nor a timedelta.
        """
        self._advance_to(self._passed + read_seconds("time goes forward: what advance() takes", seconds, zero=True))

    def _advance_to(self, moment: float) -> None:
        with self._lock:
            due: list[_PendingSleep] = []
            while self._sleepers and self._sleepers[0][0] <= moment:
                due.append(heappop(self._sleepers)[2])
            self._passed = max(self._passed, moment)
        for sleeper in due:
            sleeper.wake()

    def _next_due(self) -> float | None:
        """When the next that still sleeps is due."""
        with self._lock:
            while self._sleepers and self._sleepers[0][2].awake:
                heappop(self._sleepers)
            return self._sleepers[0][0] if self._sleepers else None

    def _jump_to_next(self) -> bool:
        """Go to the next sleeper's time. Whether there was one."""
        moment = self._next_due()
        if moment is not None:
            self._advance_to(moment)
        return moment is not None

    def _watch_loop(self, running: asyncio.AbstractEventLoop | None) -> None:
        """See to it that somebody looks whether the running loop is idle."""
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
    """Who sleeps, and how to wake it from any thread."""

    __slots__ = ("_call", "_thread", "awake", "event")

    def __init__(self, event: Event, call: Callable[[Callable[[], object]], object]) -> None:
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
        with contextlib.suppress(RuntimeError):  # its loop has ended, and it with it
            self._call(self.event.set)


def _in_trio() -> bool:
    trio = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_run()


class _IdleWatcher:
    """Looks, once per turn of an asyncio loop, whether all its tasks wait; then the clock jumps.

    asyncio does not tell when it is idle. A task that could go on waits for nothing, or for a future that is done; so
    while all wait for what is not done, for some turns on end, only the clock or the world outside can go on. It is a
    callback and no task, so that nobody who looks at the loop's tasks finds one more.
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
    """The future that a task waits for; None when it can go on."""
    waiter = getattr(task, "_fut_waiter", None)  # asyncio's own, of C and of Python tasks alike; it has no public name
    return None if waiter is None or waiter.done() else waiter
