"""A sync verb that blocks the event loop of its own thread, as every notebook cell's does.

The coroutine runs on the background loop (`background_portal.py`), so the call returns whatever the blocked loop would
do. Three things are different from a call in a plain thread:

- The blocked loop serves no other task meanwhile. A warning says so, except in a notebook, where nothing else runs.
- A node may wait for something that only the blocked loop can do: then neither ends. Nothing can see that from outside:
  the node waits for a lock, a queue, a thread. So after `PATIENCE` seconds a warning names the nodes that have been at
  work for as long.
- `asyncio.Runner` takes the first Ctrl-C for itself, and asks the loop to cancel its main task, which a blocked loop
  does not do. While it is blocked, Ctrl-C cancels the run and raises `KeyboardInterrupt`, as in a plain thread. Pressed
  again, it does not wait for the end of the run.
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
from ..tasks.context import ON_CODE_START, AttemptContext

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds for which a node may be at work before it is suspected of waiting for the blocked loop."""

PACKAGES = ("pregel_async", "checkpoint_savers")


class WaitingThread:
    """A thread that waits for a sync verb, and runs no event loop."""

    blocks: ClassVar = False

    def interruptible(self) -> AbstractContextManager[None]:
        """Leave Ctrl-C as it is."""
        return nullcontext()

    def watch(self, work: Callable[[], Awaitable[T]], notify: Callable[[str], object]) -> Awaitable[T]:
        """Work, on the background loop."""
        return work()

    def abandons_run(self) -> bool:
        """Whether a call that is interrupted again leaves what it has cancelled, before that has ended."""
        return False


NO_LOOP = WaitingThread()


class BlockedLoop(WaitingThread):
    """The event loop of a thread that waits for a sync verb, while it does.

    Args:
        called: the verb, for messages.
        library: whose loop is blocked: "asyncio" or "trio".
    """

    blocks: ClassVar = True

    def __init__(self, called: str, library: str) -> None:
        self._called = called
        self._library = library

    @contextmanager
    def interruptible(self) -> Generator[None]:
        """Let Ctrl-C raise `KeyboardInterrupt` where `asyncio.Runner` would only ask the blocked loop for it.

        Other handlers of the signal stay: the program that set one decides what Ctrl-C does.
        """
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
        """A plain function cannot be cancelled. If it waits for the blocked loop, to wait for it is the deadlock. So it
        is left, with a warning."""
        warn(
            f"{self._called} was interrupted again while it waited for the end of its run, which blocks the event loop "
            f"({self._library}) of this thread: the run was cancelled, and is left to end by itself",
            ResourceWarning,
        )
        return True


class WatchedLoop(BlockedLoop):
    """A blocked loop that nodes may wait for.

    Args:
        environment: its clock measures how long nodes have been at work.
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
        """Work, on the background loop, and after `PATIENCE` seconds of it look for nodes that are still at work.

        Args:
            notify: called on the background loop with the text of a warning, which the waiting thread issues; once for
                all works of this object.
        """
        if self._warned:
            return work()
        ON_CODE_START.set(partial(self._note_start, ON_CODE_START.get()))
        return run_with_delayed_companion(
            self._environment, PATIENCE, partial(self._warn_when_stuck, self._environment.monotonic(), notify), work
        )

    def _note_start(self, outer: Callable[[AttemptContext], object] | None, attempt: AttemptContext) -> None:
        """Note that a node's code is about to be called.

        Args:
            outer: the same of a blocking call around this one; None if there is none.
        """
        if outer is not None:
            outer(attempt)
        now = self._newest = self._at_work[attempt] = self._environment.monotonic()
        for caller in attempt.callers:  # while a node's graph runs, the node waits for no loop
            self._at_work[caller] = now
        if len(self._at_work) > self._prune_at:  # a pass over all of them for each doubling
            self._prune()
            self._prune_at = 2 * len(self._at_work) + 64

    def _prune(self) -> None:
        self._at_work = {attempt: since for attempt, since in self._at_work.items() if not attempt.ended}

    async def _warn_when_stuck(self, began: float, notify: Callable[[str], object]) -> None:
        """Notify once a node has been at work for `PATIENCE` seconds of this call, or no node has been for as long."""
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
        around = {caller for attempt in late for caller in attempt.callers}
        nodes = [
            f"{attempt.task.node.name!r} (superstep {attempt.task.step}, task {attempt.task.id})"
            for attempt in late
            if attempt not in around
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
    """Return the loop that a sync verb is about to block in this thread, having warned of it, if one runs here.

    Args:
        loop: makes the object of it; see `watched_loop_factory`.
        warns: False where the caller knows, as of the second read of a stream, or must go on, to close one.

    Raises:
        BlockingCallWarning: where warnings are errors; nothing has run.
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
    """Return what makes the object of a loop that nodes may wait for."""
    return lambda called, library: WatchedLoop(called, library, environment)


def warn(message: str, category: type[Warning] = BlockingCallWarning) -> None:
    """Issue a warning at the place in the user's code from which this package was called."""
    names = (frame.f_globals.get("__name__", "") for frame, _ in walk_stack(sys._getframe(1)))
    ours = takewhile(lambda name: name.partition(".")[0] in PACKAGES, names)
    warnings.warn(message, category, stacklevel=2 + len(list(ours)))


def in_notebook() -> bool:
    """Return True where IPython has a shell: its cells run in a loop's thread, with nothing else in it to block."""
    ipython: Any = sys.modules.get("IPython")
    get_ipython = getattr(ipython, "get_ipython", None)
    return callable(get_ipython) and bool(get_ipython())
