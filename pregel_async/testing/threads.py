"""Worker threads in a simulation: they run in lockstep with the event loop, so that only one of them runs at a time.

A thread gets its turn when the loop's seed draws it. The loop stands still until the thread has ended, or has asked
something of the loop (`anyio.from_thread`, which is what calling a task, writing to a stream or invoking a graph come
to). Then the loop goes on, and the thread waits for its next turn. What a thread waits for otherwise (a lock that
another thread holds, a queue) would be waited for for ever: after `PATIENCE` the simulation says so.
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
"""Real seconds that a plain function may take in one go."""


class SteppedLoop(Protocol):
    """A loop that gives worker threads their turns.

    Attributes:
        turns: of threads that have not ended.
    """

    turns: set[Turn]

    def next_number(self) -> int:
        """Count a task or thread that begins."""
        ...

    def take_turn(self, turn: Turn, *, now: bool = False) -> None:
        """Let a thread run when the seed draws it, or now."""
        ...


class Turn:
    """One call of a plain function in a worker thread.

    Args:
        loop: that it runs beside.

    Attributes:
        number: how many tasks and threads began before it.
    """

    _local = threading.local()

    def __init__(self, loop: SteppedLoop) -> None:
        self.number = loop.next_number()
        self._loop = loop
        self._turn_granted = threading.Semaphore(0)
        self._turn_returned = threading.Semaphore(0)
        self._returns_turn_on_post = False  # with what is posted next
        self._loop_ended = False

    def take(self) -> None:
        """On the loop: let the thread run until it waits for the loop, or has ended."""
        self._turn_granted.release()
        if not self._turn_returned.acquire(timeout=PATIENCE):
            raise RuntimeError(
                f"a plain function ran for more than {PATIENCE:g} seconds in one go, and in a simulation all else "
                "waits for it: it waits itself for another thread, perhaps. Make it async, or leave it out"
            )

    def end(self) -> None:
        """The loop has ended, and the thread gets no more turns: it is to end too."""
        self._loop_ended = True
        self._turn_granted.release()

    # ---- in the thread ---------------------------------------------------------------------------------------------

    def run(self, call: Callable[..., Any], args: tuple[Any, ...], backend: type[Any]) -> Any:
        """The function, from its first turn to its last."""
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
        """Have something done on the loop. `call` posts it and waits until it is done."""

        async def wait(*args: Any) -> Any:
            task = asyncio.current_task()
            assert task is not None
            # The thread is told of the result by a callback of this task's that is there already. Ours comes after it.
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
                raise RuntimeError("the simulation has ended, and left this thread behind")

    @classmethod
    def current(cls) -> Turn | None:
        """That of the running thread."""
        return getattr(cls._local, "turn", None)

    @classmethod
    def posted(cls) -> None:
        """In any thread: something was given to the loop. A thread that was to wait after it waits now."""
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
    """While this is open, plain functions that `loop` has run in worker threads run in lockstep with it.

    anyio is asked by name for what runs threads on asyncio, and is given this in its place, which does as the original
    on all other loops.
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
    """A limiter of which the turn comes next: what holds its place gives the call to a thread in the same step."""

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
    """anyio's own way, but for simulated loops."""

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
