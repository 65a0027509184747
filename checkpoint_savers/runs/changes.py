"""Wait for changes of accepted runs and of single threads, from any event loop of the process."""

from __future__ import annotations

import threading

import anyio

from ..bridge import Waiter, loop_scheduler, wake


class ChangeSignal:
    """A number that grows with each change, and the tasks that wait until it does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 1
        self._waiting: set[Waiter] = set()

    @property
    def number(self) -> int:
        """The present number. It begins with 1."""
        return self._number

    def notify(self) -> None:
        """Count a change, and wake all tasks that wait. May be called in any thread."""
        with self._lock:
            self._number += 1
            woken, self._waiting = self._waiting, set()
        wake(tuple(woken))

    async def wait(self, seen: int, timeout: float) -> int:
        """Wait until the number differs from one that was seen.

        Args:
            seen: the number.
            timeout: seconds to wait at most; infinite for no limit.

        Returns:
            The present number, which is `seen` if the time has passed.
        """
        event = anyio.Event()
        waiter = Waiter(loop_scheduler(), event.set)
        with self._lock:
            # Compared and registered in one step: a change in between would be missed.
            if self._number != seen:
                return self._number
            self._waiting.add(waiter)
        try:
            with anyio.move_on_after(timeout):
                await event.wait()
        finally:
            with self._lock:
                self._waiting.discard(waiter)
        return self._number


class ThreadSignals:
    """The signals of threads that are watched."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._signals: dict[str, list[ChangeSignal]] = {}

    def add(self, thread_id: str) -> ChangeSignal:
        """Watch a thread.

        Args:
            thread_id: the thread.

        Returns:
            A signal that counts the thread's changes from now on.
        """
        signal = ChangeSignal()
        with self._lock:
            self._signals.setdefault(thread_id, []).append(signal)
        return signal

    def remove(self, thread_id: str, signal: ChangeSignal) -> None:
        """Stop to watch a thread.

        Args:
            thread_id: the thread.
            signal: what `add` returned.
        """
        with self._lock:
            signals = self._signals[thread_id]
            signals.remove(signal)
            if not signals:
                del self._signals[thread_id]

    def notify(self, thread_id: str | None = None) -> None:
        """Count a change of a thread. May be called in any thread.

        Args:
            thread_id: the thread; None for all that are watched.
        """
        with self._lock:
            if thread_id is None:
                found = [each for signals in self._signals.values() for each in signals]
            else:
                found = list(self._signals.get(thread_id, ()))
        for signal in found:
            signal.notify()
