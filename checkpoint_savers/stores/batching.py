"""`BatchCollector`: what is asked in one turn of an event loop goes to the backend as one batch.

Whoever asks first in a turn has the loop call `_start` in its next one; whoever asks until then joins. It is a callback
that begins the batch, and a thread of the backend's that ends it: no task is needed, and none can be cancelled. Who
waits does so in `bridge.until`, which returns when the batch is over, cancelled or not. So a caller that is cancelled
takes nothing from the others, and nothing is written any more once it has been told.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import msgspec

from ..bridge import Waiter, loop_here, soon, tell
from ..errors import PregelError
from .port import Outcome, Read, Write


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One operation, checked, and what it gave captured.

    Attributes:
        read, write: what it does; one of the two.
        same: what a read is known by: it is done once for all that are equal.
        answer: makes of the read's answer what the user gets. Called for each who has asked, so that each has his own.
    """

    read: Read | None = None
    write: Write | None = None
    identity: Hashable = None
    answer: Callable[[Any], Any]


class PendingBatch:
    """Operations that go as one batch, and then what came of it.

    Attributes:
        reads: by what they are known by.
        writes: the last of each row's.
        sweeps: as of `Batch`.
        waiters: who is to be told when it is over.
        outcome: what came of it; None before it is over.
    """

    __slots__ = ("_end", "outcome", "reads", "sweeps", "waiters", "writes")

    def __init__(self, sweeps: int = 0) -> None:
        self.reads: dict[Hashable, Read] = {}
        self.writes: dict[tuple[bytes, bytes], Write] = {}
        self.sweeps = sweeps
        self.waiters: list[Waiter] = []
        self.outcome: Outcome | BaseException | None = None
        self._end = threading.Lock()

    def add(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.read is not None:
                self.reads.setdefault(request.identity, request.read)
            if request.write is not None:
                self.writes[request.write.namespace, request.write.key] = request.write

    def finish(self, outcome: Outcome | BaseException) -> None:
        """It is over. The first call counts, from whichever thread."""
        if self._end.acquire(blocking=False):  # for good
            self.outcome = outcome
            tell(self.waiters)

    def result(self) -> Outcome:
        """What came of it. Raises, for each who asks, an exception of his own."""
        outcome = self.outcome
        assert outcome is not None  # who waits was told
        if isinstance(outcome, BaseException):
            raise _copy_for_caller(outcome)
        return outcome

    def answers(self, requests: Sequence[Request]) -> list[Any]:
        """What those who asked get."""
        outcome = self.result()
        by_read = dict(zip(self.reads, outcome.answers, strict=True))
        return [request.answer(None if request.read is None else by_read[request.identity]) for request in requests]


class BatchCollector:
    """The batches that are gathered now, one for each event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[object, PendingBatch] = {}

    def join(self, requests: Sequence[Request], waiter: Waiter, begin: Callable[[PendingBatch], None]) -> PendingBatch:
        """Take part in the batch of this turn of the running loop.

        Args:
            begin: hands a gathering to the backend. (Passed here, since a store that it were kept with could not be
                collected at once.)
        """
        loop = loop_here()
        with self._lock:
            pending = self._open.get(loop)
            is_first = pending is None
            if pending is None:
                pending = self._open[loop] = PendingBatch()
            pending.add(requests)
            pending.waiters.append(waiter)
        if is_first:
            soon(partial(self._start, loop, begin))
        return pending

    def _start(self, loop: object, begin: Callable[[PendingBatch], None]) -> None:
        with self._lock:
            pending = self._open.pop(loop)
        begin(pending)


def _copy_for_caller(error: BaseException) -> BaseException:
    """A copy of an error of ours, which each who is told may annotate; others are what they are."""
    if not isinstance(error, PregelError):
        return error
    mine = copy.copy(error)
    mine.__cause__ = error.__cause__
    return mine.with_traceback(error.__traceback__)
