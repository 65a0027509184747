"""The bounded buffer between a run and one of its readers.

The overflow policy of a mode decides what happens to a part that arrives while the buffer is full:

    block        the writer waits for the reader
    drop_oldest  the oldest unread part of the mode is dropped
    coalesce     the part replaces the unread part of its mode and graph, even if the buffer is not full

A buffer holds `capacity` parts. It may exceed that by

- one part of each mode that does not block, so that the newest part of a mode is never dropped,
- the part that reports the run's failure,
- one part of each task that published without waiting and waits afterwards,
- parts of code that cannot wait (`reserve`): at most `MAX_RESERVED` bytes.
"""

# No locks: both sides run on one event loop, and code between two awaits is not interrupted.

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import anyio

from ...errors import StreamFullError
from ...types import OverflowPolicy
from ..platform.event_loops import WaitableEvent
from .parts import ERROR, RawPart

CAPACITY = 64
"""The default capacity, in parts."""

MAX_RESERVED = 8 * 2**20
"""Approximate number of bytes that code which cannot wait may add beyond the capacity."""

ALL_BLOCK: Mapping[str, OverflowPolicy] = {}
"""The overflow policies of a buffer in which each mode blocks."""


class Buffer:
    """The parts that one reader has not read yet.

    Attributes:
        parts: the unread parts, oldest first.
        ended: the run adds no more parts.
        event: makes the events that reader and writers wait for.
        run_id: the id of the run; None while it is not known.
        start: the cursor before the first part; None if events are not stored.
        begun: the run has acquired its thread and stored its input.
        recalls: a reader that reconnects gets the parts of its cursor's superstep again.

    Args:
        capacity: the number of parts that it holds before writers wait.
        policies: the overflow policy of each mode; modes without one block.
    """

    def __init__(self, capacity: int = CAPACITY, policies: Mapping[str, OverflowPolicy] = ALL_BLOCK) -> None:
        self.parts: deque[RawPart] = deque()
        self.ended = False
        self.run_id: str | None = None
        self.start: str | None = None
        self.begun = False
        self.recalls = False
        self._reading_stopped = False  # parts that are added later are dropped
        self._capacity = capacity
        self._policies = policies
        self._failures: tuple[BaseException, ...] = ()  # the run's failure, until it is raised: a reader gets it once
        self.event: Callable[[], WaitableEvent] = anyio.Event
        self._reader: tuple[
            WaitableEvent, ...
        ] = ()  # the event that the reader waits for; empty while it does not wait
        self._wakes_on_begin = False  # the reader's event is also set when the run begins
        self._writers: deque[WaitableEvent] = deque()  # one event for each waiting writer, first come first served
        self._reserved = 0

    def set_run_id(self, run_id: str) -> None:
        """Set the id of the run."""
        self.run_id = run_id

    def set_start_cursor(self, cursor: str) -> None:
        """Set the cursor before the run's first event."""
        self.start = cursor

    def begin(self) -> None:
        """Mark the run as begun, and wake a reader that waits for that."""
        self.begun = True
        if self._wakes_on_begin:
            self._wake_reader()

    def blocks(self, mode: str) -> bool:
        """Return True if adding a part in this mode would block."""
        # Nothing blocks after `stop_reading`: a run whose reader has gone would wait forever.
        return (
            len(self.parts) >= self._capacity
            and not self._reading_stopped
            and self._policies.get(mode, "block") == "block"
        )

    def is_over_capacity(self, mode: str) -> bool:
        """Return True if parts were added although `blocks` was true, and are still unread."""
        return len(self.parts) > self._capacity and self.blocks(mode)

    async def wait_for_capacity(self) -> None:
        """Wait until there may be capacity. Re-check after waking; call `notify_next()` if you add nothing."""
        event = self.event()
        self._writers.append(event)
        try:
            await event.wait()
        except BaseException:
            if event.is_set():
                # Woken and cancelled at the same time: without this, the capacity that this writer was woken for
                # would stay unused while others wait.
                self._wake_writer()
            else:
                self._writers.remove(event)
            raise

    @property
    def depth(self) -> int:
        """The number of unread parts."""
        return len(self.parts)

    @property
    def is_awaited(self) -> bool:
        """True if a waiting reader was woken by the only unread part and has not run since."""
        return self._reader != () and len(self.parts) == 1

    def notify_next(self) -> None:
        """Wake the next waiting writer if there is capacity."""
        if len(self.parts) < self._capacity:
            self._wake_writer()

    def add(self, part: RawPart) -> None:
        """Append a part without waiting. Does nothing after `stop_reading()`."""
        if self._reading_stopped:
            return
        policy = self._policies.get(part.mode, "block") if self._policies else "block"
        if policy != "block":
            self._evict(part, policy)
        self.parts.append(part)
        for event in self._reader:
            event.set()

    def _evict(self, part: RawPart, policy: OverflowPolicy) -> None:
        """Drop the unread part that a new part of a mode which does not block replaces, if there is one."""
        if policy == "coalesce":
            for at, unread in enumerate(self.parts):
                if unread.mode == part.mode and unread.ns == part.ns:
                    del self.parts[at]
                    return
        # Only parts of the same mode are dropped: a mode that blocks must lose nothing because of another.
        if len(self.parts) >= self._capacity:
            for at, unread in enumerate(self.parts):
                if unread.mode == part.mode:
                    del self.parts[at]
                    return

    def reserve(self, mode: str, size: int) -> None:
        """Allow code that cannot wait to add a part to a full buffer.

        Args:
            mode: the mode of the part.
            size: the approximate size of the part, in bytes.

        Raises:
            StreamFullError: more than `MAX_RESERVED` bytes would be reserved, so that memory would grow without bounds.
        """
        if self.blocks(mode):
            if self._reserved + size > MAX_RESERVED:
                raise StreamFullError(mode, len(self.parts))
            self._reserved += size

    def release(self, size: int) -> None:
        """Return reserved bytes, as the code waits now."""
        # `pop` may have reset the reservation meanwhile, so that these bytes are gone already.
        self._reserved = max(0, self._reserved - size)

    def end(self, *failure: BaseException) -> None:
        """Mark the end of the run. A failure is raised to the reader after the last part."""
        self.ended = True
        self._failures = failure
        self._wake_reader()

    def _wake_reader(self) -> None:
        for event in self._reader:
            event.set()

    async def wait_for_part(self, *, or_begun: bool = False) -> None:
        """Wait until a part is added, the run ends or, if `or_begun`, the run begins."""
        event = self.event()
        self._reader, self._wakes_on_begin = (event,), or_begun
        try:
            await event.wait()
        finally:
            # Also when cancelled: `is_awaited` must not report a reader that waits no more.
            self._reader, self._wakes_on_begin = (), False

    @property
    def has_begun(self) -> bool:
        """True if the run has begun, has published a part other than its failure, or has ended."""
        return self.begun or self.ended or self.has_output

    @property
    def has_output(self) -> bool:
        """True if the oldest unread part is not the report of a failure."""
        return len(self.parts) > 0 and self.parts[0].mode != ERROR

    def pop(self) -> RawPart:
        """Remove and return the oldest part. The buffer must not be empty."""
        part = self.parts.popleft()
        if len(self.parts) < self._capacity:
            # Below its capacity the buffer holds nothing beyond it, so that nothing remains reserved.
            self._reserved = 0
            self._wake_writer()
        return part

    def stop_reading(self) -> None:
        """Drop all parts, now and later, and wake all writers: they no longer wait for this reader."""
        self._reading_stopped = True
        self.parts.clear()
        while self._writers:
            self._wake_writer()

    def _wake_writer(self) -> None:
        # One at a time: there is capacity for one part, and the others would wake only to wait again.
        if self._writers:
            self._writers.popleft().set()

    def raise_failure(self) -> None:
        """Raise the run's failure, if it has one and it was not raised before."""
        failures, self._failures = self._failures, ()
        for failure in failures:
            raise failure

    async def __anext__(self) -> RawPart:
        while not self.parts:
            if self.ended:
                self.raise_failure()
                raise StopAsyncIteration
            await self.wait_for_part()
        return self.pop()

    def __aiter__(self) -> Any:
        return self


class Unbounded:
    """A sink that passes each part to a function, and never blocks.

    Args:
        add: takes the part.
    """

    is_awaited = False
    depth = 0

    def __init__(self, add: Callable[[RawPart], object]) -> None:
        self._add = add

    def add(self, part: RawPart) -> None:
        self._add(part)

    def blocks(self, mode: str) -> bool:
        return False

    def is_over_capacity(self, mode: str) -> bool:
        return False

    async def wait_for_capacity(self) -> None:
        pass

    def notify_next(self) -> None:
        pass

    def reserve(self, mode: str, size: int) -> None:
        pass

    def release(self, size: int) -> None:
        pass

    def end(self, *failure: BaseException) -> None:
        pass

    def set_run_id(self, run_id: str) -> None:
        pass

    def set_start_cursor(self, cursor: str) -> None:
        pass

    def begin(self) -> None:
        pass
