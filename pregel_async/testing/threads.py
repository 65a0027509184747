"""Worker threads of a simulation, run in lockstep with its event loop: only one of them executes at any time.

A thread runs when the loop's seed draws its turn. The loop blocks until the thread ends or calls into the loop through
`anyio.from_thread`, as it does to call a task, write to a stream or invoke a graph. Then the loop continues, and the
thread waits for its next turn. A thread that waits for anything else (a lock of another thread, a queue) would wait
forever, because the other thread gets no turn: the simulation raises an error after `PATIENCE` seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Protocol

from anyio._core import _eventloop as anyio_loops

PATIENCE = 20.0
"""Real seconds that a plain function may run in one turn."""


class SteppedLoop(Protocol):
    """An event loop that schedules the turns of worker threads.

    Attributes:
        turns: the threads that have started and not ended.
    """

    turns: set[Turn]

    def next_number(self) -> int:
        """Return a number for a task or thread that starts, one more than the last."""
        ...

    def take_turn(self, turn: Turn, *, now: bool = False) -> None:
        """Schedule the next turn of a thread.

        Args:
            turn: the thread's.
            now: True runs the thread in the very next step; False when the seed draws it.
        """
        ...


class Turn:
    """One call of a plain function in a worker thread.

    Args:
        loop: the event loop in lockstep with which the thread runs.

    Attributes:
        number: the thread's number among the tasks and threads of the loop, in the order in which they started.
    """

    _local = threading.local()

    def __init__(self, loop: SteppedLoop) -> None:
        self.number = loop.next_number()
        self._loop = loop
        self._turn_granted = threading.Semaphore(0)
        self._turn_returned = threading.Semaphore(0)
        self._returns_turn_on_post = False  # the next callback that the thread posts to the loop ends its turn
        self._loop_ended = False

    def take(self) -> None:
        """Let the thread run until it waits for the loop or ends. Called on the loop, which blocks meanwhile.

        Raises:
            RuntimeError: the turn takes more than `PATIENCE` seconds.
        """
        self._turn_granted.release()
        if not self._turn_returned.acquire(timeout=PATIENCE):
            raise RuntimeError(
                f"a plain function ran for more than {PATIENCE:g} seconds in one turn, and a simulation runs nothing "
                "else meanwhile. It may be waiting for another thread: make it async, or leave it out"
            )

    def end(self) -> None:
        """Let the thread end, as the loop has ended and draws no more turns. Its next call into the loop raises."""
        self._loop_ended = True
        self._turn_granted.release()

    def run(self, call: Callable[..., Any], args: tuple[Any, ...], backend: type[Any]) -> Any:
        """Run the function in the thread, from its first turn to its last.

        Args:
            call: the function.
            args: its positional arguments.
            backend: anyio's backend of the loop.

        Returns:
            What the function returns.
        """
        self._turn_granted.acquire()
        self._loop.turns.add(self)
        known = vars(anyio_loops.threadlocals)
        before = dict(known)
        Turn._local.turn = self
        try:
            with anyio_loops.claim_worker_thread(backend, self._loop):
                known.update({name: value for name, value in before.items() if name not in known})
                return call(*args)
        finally:
            known.update(before)
            del Turn._local.turn
            self._loop.turns.discard(self)
            self._returns_turn_on_post = True
            Turn._local.last = self

    def ask(self, call: Callable[[Callable[..., Any]], Any], asked: Callable[..., Any], *, waits: bool) -> Any:
        """Run a function on the loop for the thread, and give up the thread's turn until it is done.

        Args:
            call: posts a function to the loop and blocks until it has run, as anyio's backend does.
            asked: the function.
            waits: True if it is a coroutine function, False if it is a plain one.

        Returns:
            What `asked` returns.

        Raises:
            RuntimeError: the loop ended meanwhile.
        """

        async def wait(*args: Any) -> Any:
            task = asyncio.current_task()
            assert task is not None
            # anyio has already added a callback to this task, which passes the result to the thread. Callbacks run in
            # order, so ours schedules the thread's turn when the result is there.
            task.add_done_callback(lambda _: self._loop.take_turn(self))
            return await asked(*args)

        def at_once(*args: Any) -> Any:
            try:
                return asked(*args)
            finally:
                self._loop.take_turn(self)

        self._returns_turn_on_post = True
        Turn._local.last = self
        try:
            return call(wait if waits else at_once)
        finally:
            self._turn_granted.acquire()
            if self._loop_ended:
                raise RuntimeError("the simulation has ended, and this thread was still running")

    @classmethod
    def current(cls) -> Turn | None:
        """Return the turn of the calling thread; None outside of simulated threads."""
        return getattr(cls._local, "turn", None)

    @classmethod
    def posted(cls) -> None:
        """Note that the calling thread has posted a callback to the loop, which ends a turn that waits for this.

        The turn ends here, and not before the post: the loop must find the callback when it continues.
        """
        last: Turn | None = getattr(cls._local, "last", None)
        if last is not None and last._returns_turn_on_post:
            last._returns_turn_on_post = False
            cls._local.last = None
            last._turn_returned.release()


_BACKEND_NAME = "asyncio"
_users: list[SteppedLoop] = []
_users_lock = threading.Lock()


@contextlib.contextmanager
def lockstep(loop: SteppedLoop) -> Generator[None]:
    """Run the worker threads of `loop` in lockstep with it while the context is open.

    anyio looks its asyncio backend up by name, for each thread. This replaces the entry by a subclass, which behaves as
    the original on all other event loops.

    Args:
        loop: the simulated event loop.

    Yields:
        None.
    """
    with _users_lock:
        original = anyio_loops.get_async_backend(_BACKEND_NAME)
        if not issubclass(original, _SteppedBackend):
            anyio_loops.loaded_backends[_BACKEND_NAME] = _stepped_backend(original)
        _users.append(loop)
    try:
        yield
    finally:
        with _users_lock:
            for turn in list(loop.turns):
                turn.end()
            _users.remove(loop)
            backend = anyio_loops.loaded_backends[_BACKEND_NAME]
            if not _users and issubclass(backend, _SteppedBackend):
                anyio_loops.loaded_backends[_BACKEND_NAME] = backend.original


class _TurnAfterLimiter:
    """A limiter that schedules the thread's first turn as soon as a slot is acquired.

    anyio passes the call to a thread in the step in which it enters the limiter. A turn that was scheduled earlier
    would block the loop before the thread has its call.
    """

    def __init__(self, limiter: Any, turn: Turn, loop: SteppedLoop) -> None:
        self._limiter = limiter
        self._turn = turn
        self._loop = loop

    async def __aenter__(self) -> None:
        await self._limiter.__aenter__()
        self._loop.take_turn(self._turn, now=True)

    async def __aexit__(self, *error: object) -> Any:
        return await self._limiter.__aexit__(*error)


class _SteppedBackend:
    original: type[Any]


def _stepped_backend(original: type[Any]) -> type[Any]:
    """Make a subclass of anyio's asyncio backend that runs the threads of simulated loops in lockstep."""

    class Simulated(_SteppedBackend, original):  # type: ignore[misc]  # anyio's class is not known before it runs
        @classmethod
        async def run_sync_in_worker_thread(
            cls, func: Any, args: Any, abandon_on_cancel: bool = False, limiter: Any = None
        ) -> Any:
            running: object = asyncio.get_running_loop()
            loop = next((each for each in _users if each is running), None)
            if loop is not None:
                turn = Turn(loop)
                func, args = partial(turn.run, func, args, cls), ()
                limiter = _TurnAfterLimiter(limiter or cls.current_default_thread_limiter(), turn, loop)
            return await original.run_sync_in_worker_thread(func, args, abandon_on_cancel, limiter)

        @classmethod
        def run_async_from_thread(cls, func: Any, args: Any, token: Any) -> Any:
            turn = Turn.current()
            if turn is None:
                return original.run_async_from_thread(func, args, token)
            return turn.ask(lambda asked: original.run_async_from_thread(asked, args, token), func, waits=True)

        @classmethod
        def run_sync_from_thread(cls, func: Any, args: Any, token: Any) -> Any:
            turn = Turn.current()
            if turn is None:
                return original.run_sync_from_thread(func, args, token)
            return turn.ask(lambda asked: original.run_sync_from_thread(asked, args, token), func, waits=False)

    Simulated.original = original
    return Simulated


__all__ = ["PATIENCE", "Turn", "lockstep"]
