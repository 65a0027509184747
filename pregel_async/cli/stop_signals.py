"""SIGINT and SIGTERM for commands that run graphs: each signal has its action, and the one after the last kills."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Generator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STDERR = 2

SignalAction = tuple[Callable[[], bytes], Callable[[], object]]
"""What a signal does: a function that returns what is written to standard error at once, and one that is called in the
event loop."""


class StopSignals:
    """Handle signals: the first ones have actions, the one after them has its default effect and kills the process.

    Attributes:
        received: the first signal; None before it.
        count: the number of signals that had an action.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.count = 0

    @contextlib.contextmanager
    def handle(self, *actions: SignalAction) -> Generator[None]:
        """Handle signals during the body, on asyncio.

        Args:
            actions: what the first signal does, the second one, and so on.

        Yields:
            None.
        """
        loop = asyncio.get_running_loop()

        def handle(number: int, frame: FrameType | None) -> None:
            if self.count == len(actions):  # it came while the last one was handled
                return
            notice, act = actions[self.count]
            self.count += 1
            if self.count == len(actions):
                # First of all, so that the next signal kills the process whatever the code below does.
                for each in SIGNALS:
                    signal.signal(each, signal.SIG_DFL)
            self.received = self.received or signal.Signals(number)
            with contextlib.suppress(OSError):
                # Not print(): the interrupted code may hold the lock of sys.stderr or of the live view.
                os.write(STDERR, notice())
            loop.call_soon_threadsafe(act)

        before = {each: signal.getsignal(each) for each in SIGNALS}
        for each in SIGNALS:
            with contextlib.suppress(NotImplementedError):  # Windows
                # Sets the wake-up descriptor, so that a signal interrupts the event loop's wait.
                loop.add_signal_handler(each, _ignore_wakeup)
            # Replaces asyncio's handler, which could run only in a turn of the event loop: this one runs even while a
            # node blocks the loop.
            signal.signal(each, handle)
        try:
            yield
        finally:
            for each, handler in before.items():
                with contextlib.suppress(NotImplementedError):
                    loop.remove_signal_handler(each)
                signal.signal(each, handler)


def _ignore_wakeup() -> None:
    """Do nothing: the handler that `signal.signal` installed does the work."""
