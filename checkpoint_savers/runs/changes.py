"""Wait for changes of accepted runs and of single threads, from any event loop of the process."""

from __future__ import annotations

import threading
from typing import Final, Literal, TypeAlias, get_args

import anyio

from ..bridge import Waiter, loop_scheduler, wake

Topic: TypeAlias = Literal["queue", "cancel", "run", "other"]
"""What may have changed: a thread is queued; a run is to be cancelled, was cancelled, or is followed; a run has begun
or ended; anything else, such as a run that was taken and has stored nothing yet. A task that waits for one of these
need not look after changes of the others."""

TOPICS: Final[tuple[Topic, ...]] = get_args(Topic)


class ChangeSignal:
    """Numbers that grow with each change, one for each topic, and the tasks that wait until they do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[Topic | None, int] = dict.fromkeys((None, *TOPICS), 1)
        self._waiting: dict[Topic | None, set[Waiter]] = {topic: set() for topic in self._numbers}

    @property
    def number(self) -> int:
        """The present number of all topics together. It begins with 1."""
        return self._numbers[None]

    def notify(self, topics: tuple[Topic, ...] = TOPICS) -> None:
        """Count a change, and wake the tasks that wait for it. May be called in any thread.

        Args:
            topics: what has changed; all by default.
        """
        woken: list[Waiter] = []
        with self._lock:
            for topic in (None, *topics) if topics else ():
                self._numbers[topic] += 1
                woken += self._waiting[topic]
                self._waiting[topic] = set()
        wake(tuple(woken))

    async def wait(self, seen: int, timeout: float, topic: Topic | None = None) -> int:
        """Wait until the number of a topic differs from one that was seen.

        Args:
            seen: the number.
            timeout: seconds to wait at most; infinite for no limit.
            topic: the topic; None for all.

        Returns:
            The present number, which is `seen` if the time has passed. It begins with 1.
        """
        event = anyio.Event()
        waiter = Waiter(loop_scheduler(), event.set)
        with self._lock:
            # Compared and registered in one step: a change in between would be missed.
            if self._numbers[topic] != seen:
                return self._numbers[topic]
            self._waiting[topic].add(waiter)
        try:
            with anyio.move_on_after(timeout):
                await event.wait()
        finally:
            with self._lock:
                self._waiting[topic].discard(waiter)
        return self._numbers[topic]


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
