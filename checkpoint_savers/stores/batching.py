"""`BatchCollector`: operations of one turn of an event loop go to the backend as one batch.

The first operation of a turn schedules `_start` for the next turn; later ones join the batch until then. A callback
starts the batch and a thread of the backend ends it, so no task is needed and none can be cancelled. Callers wait in
`bridge.wait_until_woken`, which returns only when the batch has ended. So a cancelled caller takes nothing from the
others, and nothing is written after its cancellation has been raised.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import msgspec

from ..bridge import Waiter, call_soon, current_loop, wake
from ..errors import PregelError
from .port import Outcome, Read, Write


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One operation, checked and captured.

    Attributes:
        read: what to read, or None.
        write: what to write, or None. One of the two is set.
        identity: equal for equal reads, which a batch executes once.
        answer: makes the caller's result of the read's answer. Called once per caller, so that each has a copy of its
            own.
    """

    read: Read | None = None
    write: Write | None = None
    identity: Hashable = None
    answer: Callable[[Any], Any]


class PendingBatch:
    """Operations of one batch, and their outcome.

    Attributes:
        reads: reads by identity.
        writes: the last write of each row, by namespace and key.
        sweeps: number of expired rows to remove, at most.
        waiters: callers to wake when the batch has ended.
        outcome: the outcome or the failure; None until the batch has ended.
    """

    __slots__ = ("_end", "outcome", "reads", "sweeps", "waiters", "writes")

    def __init__(self, sweeps: int = 0) -> None:
        self.reads: dict[Hashable, Read] = {}
        self.writes: dict[tuple[bytes, bytes], Write] = {}
        self.sweeps = sweeps
        self.waiters: list[Waiter] = []
        self.outcome: Outcome | BaseException | None = None
        # Acquired once and never released: an atomic test-and-set for the first call, from whichever thread.
        self._end = threading.Lock()

    def add(self, requests: Sequence[Request]) -> None:
        """Add requests; a later write of a row replaces an earlier one.

        Args:
            requests: what to add.
        """
        for request in requests:
            if request.read is not None:
                self.reads.setdefault(request.identity, request.read)
            if request.write is not None:
                self.writes[request.write.namespace, request.write.key] = request.write

    def finish(self, outcome: Outcome | BaseException) -> None:
        """Set the outcome and wake the callers. Only the first call has an effect, from any thread.

        Args:
            outcome: the outcome, or the reason why nothing was stored.
        """
        if self._end.acquire(blocking=False):  # never released
            self.outcome = outcome
            wake(self.waiters)

    def result(self) -> Outcome:
        """Return the outcome, or raise the failure: a copy of it for each caller.

        Returns:
            The outcome.
        """
        outcome = self.outcome
        assert outcome is not None  # callers are woken by `finish` only
        if isinstance(outcome, BaseException):
            raise _copy_for_caller(outcome)
        return outcome

    def answers(self, requests: Sequence[Request]) -> list[Any]:
        """Return the results of a caller's requests.

        Args:
            requests: the requests, which are part of the batch.

        Returns:
            One result for each request, in their order.
        """
        outcome = self.result()
        by_read = dict(zip(self.reads, outcome.answers, strict=True))
        return [request.answer(None if request.read is None else by_read[request.identity]) for request in requests]


class BatchCollector:
    """The batches that still take operations, one for each event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[object, PendingBatch] = {}

    def join(self, requests: Sequence[Request], waiter: Waiter, begin: Callable[[PendingBatch], None]) -> PendingBatch:
        """Join the batch of this turn of the running loop.

        Args:
            requests: what to add.
            waiter: woken when the batch has ended.
            begin: hands a batch to the backend. Passed with each call: a stored bound method would be a reference cycle
                with the store, which could then not be freed at once.

        Returns:
            The batch.
        """
        loop = current_loop()
        # A lock, though each batch belongs to one loop: the dict is shared by the loops of all threads.
        with self._lock:
            pending = self._open.get(loop)
            is_first = pending is None
            if pending is None:
                pending = self._open[loop] = PendingBatch()
            pending.add(requests)
            pending.waiters.append(waiter)
        if is_first:
            call_soon(partial(self._start, loop, begin))
        return pending

    def _start(self, loop: object, begin: Callable[[PendingBatch], None]) -> None:
        with self._lock:
            # From here on the loop's next operation opens a new batch: this one is not changed any more.
            pending = self._open.pop(loop)
        begin(pending)


def _copy_for_caller(error: BaseException) -> BaseException:
    """Return a copy of one of our errors, which each caller may annotate. Return other exceptions as they are."""
    if not isinstance(error, PregelError):
        return error
    # Several callers raise the same failure at the same time. One object would collect the notes, contexts and
    # tracebacks of all of them.
    mine = copy.copy(error)
    mine.__cause__ = error.__cause__
    return mine.with_traceback(error.__traceback__)
