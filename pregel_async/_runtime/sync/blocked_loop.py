"""Sync verbs in a thread whose event loop they block, as in every notebook cell.

The coroutine runs on the background loop (`background_portal.py`), so it does not need the blocked loop. Such a call
differs in three ways from one in a plain thread:

- The blocked loop serves no other task meanwhile. A warning says so, except in a notebook, where nothing else runs.
- A node may wait for work that only the blocked loop can do: then neither ends. This cannot be detected: the node
  waits for a lock, a queue or a thread. So after `PATIENCE` seconds a warning names the nodes that have run so long.
- `asyncio.Runner` handles the first Ctrl-C by cancelling the loop's main task, which has no effect on a blocked loop.
  While the loop is blocked, Ctrl-C cancels the run and raises `KeyboardInterrupt`, as in a plain thread. A second
  Ctrl-C does not wait for the end of the run.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import takewhile
from traceback import walk_stack
from typing import Any, ClassVar, TypeVar

from checkpoint_savers.bridge import running_library

from ...errors import BlockingCallWarning
from ..platform.companions import run_with_delayed_companion
from ..platform.environment import Environment
from ..platform.event_loops import on_asyncio
from ..tasks.context import ON_CODE_START, AttemptContext

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds that a node may run before a warning suspects it of waiting for the blocked loop."""

PACKAGES = ("pregel_async", "checkpoint_savers")


class WaitingThread:
    """A thread that waits for a sync verb, and runs no event loop itself."""

    blocks: ClassVar = False

    def interruptible(self) -> AbstractContextManager[None]:
        """Return a context manager that does not change the handling of Ctrl-C."""
        return nullcontext()

    def watch(self, work: Callable[[], Awaitable[T]], notify: Callable[[str], object]) -> Awaitable[T]:
        """Await work on the background loop.

        Args:
            work: the work.
            notify: not used here.
        """
        return work()

    def abandons_run(self) -> bool:
        """Return True if a second interrupt ends the wait for a run that the first one cancelled."""
        return False


NO_LOOP = WaitingThread()


class BlockedLoop(WaitingThread):
    """A thread that waits for a sync verb, and blocks its own event loop meanwhile.

    Args:
        called: the verb, for messages.
        library: the library of the blocked loop: "asyncio" or "trio".
    """

    blocks: ClassVar = True

    def __init__(self, called: str, library: str) -> None:
        self._called = called
        self._library = library

    @contextmanager
    def interruptible(self) -> Generator[None]:
        """Make Ctrl-C raise `KeyboardInterrupt` during the wait, if `asyncio.Runner` handles the signal."""
        # Other handlers stay: a program that has set one decides what Ctrl-C does.
        handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
        runner = getattr(getattr(handler, "func", None), "__self__", None)
        if not isinstance(runner, asyncio.Runner):
            yield
            return
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            yield
        finally:
            signal.signal(signal.SIGINT, handler)

    def abandons_run(self) -> bool:
        """Warn that the run is left to end by itself, and return True."""
        # A plain function cannot be cancelled. If it waits for the blocked loop, waiting for it here is a deadlock.
        warn(
            f"{self._called} was interrupted again while it waited for the end of its run, which blocks the event loop "
            f"({self._library}) of this thread: the run was cancelled, and is left to end by itself",
            ResourceWarning,
        )
        return True


class WatchedLoop(BlockedLoop):
    """A blocked loop that nodes may wait for, with a warning if they seem to.

    Args:
        called, library: as in `BlockedLoop`.
        environment: the clock that measures how long nodes have been running.
    """

    def __init__(self, called: str, library: str, environment: Environment) -> None:
        super().__init__(called, library)
        self._environment = environment
        self._warned = False
        self._at_work: dict[
            AttemptContext, float
        ] = {}  # when each last began something, by the environment's monotonic clock
        self._prune_at = 64
        self._newest = 0.0

    def watch(self, work: Callable[[], Awaitable[T]], notify: Callable[[str], object]) -> Awaitable[T]:
        """Await work on the background loop, and after `PATIENCE` seconds warn of nodes that still run.

        Args:
            work: the work.
            notify: called on the background loop with the text of a warning, which the waiting thread issues. It is
                called at most once for this object.
        """
        # A stream calls this for each chunk: one warning is enough for all of them.
        if self._warned:
            return work()
        ON_CODE_START.set(partial(self._note_start, ON_CODE_START.get()))
        return run_with_delayed_companion(
            self._environment,
            PATIENCE,
            partial(self._warn_when_stuck, self._environment.monotonic(), notify),
            work,
            is_on_asyncio=on_asyncio(),
        )

    def _note_start(self, outer: Callable[[AttemptContext], object] | None, attempt: AttemptContext) -> None:
        """Note that a node's code is about to be called.

        Args:
            outer: the callback of an outer blocking call; None if there is none.
            attempt: the attempt whose code begins.
        """
        if outer is not None:
            outer(attempt)
        now = self._newest = self._at_work[attempt] = self._environment.monotonic()
        for caller in attempt.callers:  # a node whose subgraph progresses does not wait for the loop
            self._at_work[caller] = now
        if len(self._at_work) > self._prune_at:  # amortised: one pass for each doubling
            self._prune()
            self._prune_at = 2 * len(self._at_work) + 64

    def _prune(self) -> None:
        self._at_work = {attempt: since for attempt, since in self._at_work.items() if not attempt.ended}

    async def _warn_when_stuck(self, began: float, notify: Callable[[str], object]) -> None:
        """Send a warning once a node has run for `PATIENCE` seconds of this call, or none has begun for as long."""
        environment = self._environment
        while True:
            self._prune()
            since = min(self._at_work.values(), default=self._newest)
            left = max(since, began) + PATIENCE - environment.monotonic()
            if left <= 0:
                break
            await environment.sleep(left)
        self._warned = True
        late = environment.monotonic() - PATIENCE
        notify(self._describe([attempt for attempt, since in self._at_work.items() if since <= late]))

    def _describe(self, late: list[AttemptContext]) -> str:
        callers = {caller for attempt in late for caller in attempt.callers}
        nodes = [
            f"{attempt.task.node.name!r} (superstep {attempt.task.step}, task {attempt.task.id})"
            for attempt in late
            if attempt not in callers
        ]
        names = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
        if len(nodes) > 1:
            seen = f"nodes {names} have been at work all that time"
            cause = "one of them waits for something that only the blocked loop can do"
        elif nodes:
            seen = f"node {names} has been at work all that time"
            cause = "it waits for something that only the blocked loop can do"
        else:
            seen = "no node is at work"
            cause = "the call waits for a thread, or for a result to share, that a run on the blocked loop has"
        return (
            f"{self._called} has blocked the event loop ({self._library}) of its thread for {PATIENCE:g} seconds, and "
            f"{seen}. If {cause}, neither will end: interrupt the call, and await the async verb instead."
        )


def blocked_loop(
    called: str, instead: str, *, loop: Callable[[str, str], BlockedLoop] = BlockedLoop, warns: bool = True
) -> WaitingThread:
    """Return the object for the calling thread, after a warning if an event loop runs in it.

    Args:
        called: the verb, for messages.
        instead: the async code to write instead.
        loop: makes the object for a blocked loop; see `watched_loop_factory`.
        warns: False for later reads of a stream, and for closing one, which a warning turned error must not prevent.

    Raises:
        BlockingCallWarning: warnings are errors. Nothing has run.
    """
    library = running_library()
    if library is None:
        return NO_LOOP
    if warns and not in_notebook():
        warn(
            f"{called} blocks the event loop ({library}) that runs in this thread until it returns: nothing else runs "
            f"there meanwhile. Use '{instead}' in async code, or call it in a worker thread (anyio.to_thread.run_sync)."
        )
    return loop(called, library)


def watched_loop_factory(environment: Environment) -> Callable[[str, str], WatchedLoop]:
    """Return a factory of `WatchedLoop` objects, for `blocked_loop`."""
    return lambda called, library: WatchedLoop(called, library, environment)


def warn(message: str, category: type[Warning] = BlockingCallWarning) -> None:
    """Issue a warning at the line of the user's code that called this package."""
    # A fixed stacklevel would not do: verbs reach this function by ways of different lengths.
    names = (frame.f_globals.get("__name__", "") for frame, _ in walk_stack(sys._getframe(1)))
    ours = takewhile(lambda name: name.partition(".")[0] in PACKAGES, names)
    warnings.warn(message, category, stacklevel=2 + len(list(ours)))


def in_notebook() -> bool:
    """Return True if IPython runs a shell. Its cells run in the loop's thread, and no other task is there to block."""
    # From `sys.modules`: a program in a notebook has imported IPython, and others must not import it for this.
    ipython: Any = sys.modules.get("IPython")
    get_ipython = getattr(ipython, "get_ipython", None)
    return callable(get_ipython) and bool(get_ipython())
