"""What a run and one of its readers share: parts that wait to be read, boundedly many.

All of it happens on one event loop, and what is not awaited here is not interrupted.

A mode's policy says what becomes of a part that finds the buffer full:

    block        whoever brings it waits for the reader
    drop_oldest  the oldest unread part of its mode makes room
    coalesce     it takes the place of the unread one of its mode and graph, whether or not the buffer is full

The pipe holds `capacity` parts. It goes beyond that by one of each mode that is not blocking, so that the newest of a
mode is never what is dropped; by the part that tells of a failure; by one of each task that waits for room having shown
its own at once; and by what code that does not wait has brought (`reserve`): no more than `MAX_RESERVED` bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import anyio

from ...errors import StreamFullError
from ...types import OverflowPolicy
from ..platform.event_loops import Event
from .parts import ERROR, RawPart, Shape

CAPACITY = 64
"""Parts that wait for the reader, if nothing else is said."""

MAX_RESERVED = 8 * 2**20
"""Bytes, about, that code which does not wait may bring beyond the capacity."""

ALL_BLOCK: Mapping[str, OverflowPolicy] = {}
"""The overflow policies of a buffer in which every mode blocks."""


class Buffer:
    """Parts on their way to one reader.

    Attributes:
        parts: those that wait.
        ended: nothing comes any more.
        event: makes the events that its two sides wait for.
        run_id: of the run that is shown; None while that is not known.
        start: the cursor before the first part; None where no events are kept.
        begun: the run has its thread and its input.
        recalls: the reader, who comes back, wants to see again what it was shown of the superstep that its place is in.

    Args:
        policies: by mode; the others block.
    """

    def __init__(self, capacity: int = CAPACITY, policies: Mapping[str, OverflowPolicy] = ALL_BLOCK) -> None:
        self.parts: deque[RawPart] = deque()
        self.ended = False
        self.run_id: str | None = None
        self.start: str | None = None
        self.begun = False
        self.recalls = False
        self._reading_stopped = False  # the reader reads no more: what comes is dropped
        self._capacity = capacity
        self._policies = policies
        self._failures: tuple[BaseException, ...] = ()  # what ended the run, until it is raised
        self.event: Callable[[], Event] = anyio.Event
        self._reader: tuple[Event, ...] = ()  # what the reader waits for, if it waits,
        self._wakes_on_begin = False  # if only for the run to begin
        self._writers: deque[Event] = deque()  # tasks of the run that wait for room, one event each
        self._reserved = 0

    # ---- the run's side ----------------------------------------------------------------------------------------------

    def set_run_id(self, run_id: str) -> None:
        """Say which run is shown."""
        self.run_id = run_id

    def set_start_cursor(self, cursor: str) -> None:
        """Say where the run's events begin."""
        self.start = cursor

    def begin(self) -> None:
        """Say that the run has begun."""
        self.begun = True
        if self._wakes_on_begin:
            self._wake_reader()

    def blocks(self, mode: str) -> bool:
        """Whether whoever brings a part of this mode has to wait now."""
        return (
            len(self.parts) >= self._capacity
            and not self._reading_stopped
            and self._policies.get(mode, "block") == "block"
        )

    def is_over_capacity(self, mode: str) -> bool:
        """Return True if parts were added in spite of `blocks`, and are not read yet."""
        return len(self.parts) > self._capacity and self.blocks(mode)

    async def wait_for_capacity(self) -> None:
        """Wait for a sign that there is room; look again then. Who adds nothing then, passes it on."""
        sign = self.event()
        self._writers.append(sign)
        try:
            await sign.wait()
        except BaseException:
            if sign.is_set():
                self._wake_writer()  # the place that this one was given goes to another
            else:
                self._writers.remove(sign)
            raise

    @property
    def depth(self) -> int:
        """How many parts wait to be read."""
        return len(self.parts)

    @property
    def is_awaited(self) -> bool:
        """Whether the reader has been waiting for the one part that is here."""
        return self._reader != () and len(self.parts) == 1

    def notify_next(self) -> None:
        """Give the sign to the next who waits, if there is room."""
        if len(self.parts) < self._capacity:
            self._wake_writer()

    def add(self, part: RawPart) -> None:
        """Take a part at once."""
        if self._reading_stopped:
            return
        policy = self._policies.get(part.mode, "block") if self._policies else "block"
        if policy != "block":
            self._evict(part, policy)
        self.parts.append(part)
        for event in self._reader:
            event.set()

    def _evict(self, part: RawPart, policy: OverflowPolicy) -> None:
        if policy == "coalesce":
            for at, unread in enumerate(self.parts):
                if unread.mode == part.mode and unread.ns == part.ns:
                    del self.parts[at]
                    return
        if len(self.parts) >= self._capacity:
            for at, unread in enumerate(self.parts):
                if unread.mode == part.mode:
                    del self.parts[at]
                    return

    def reserve(self, mode: str, size: int) -> None:
        """Let code that does not wait add a part of so many bytes all the same.

        Raises:
            StreamFullError: the reader is so far behind that this would never end.
        """
        if self.blocks(mode):
            if self._reserved + size > MAX_RESERVED:
                raise StreamFullError(mode, len(self.parts))
            self._reserved += size

    def release(self, size: int) -> None:
        """The code waits after all."""
        self._reserved = max(0, self._reserved - size)

    def end(self, *failure: BaseException) -> None:
        """Nothing comes any more; the failure, if there is one, follows the last part."""
        self.ended = True
        self._failures = failure
        self._wake_reader()

    def _wake_reader(self) -> None:
        for event in self._reader:
            event.set()

    # ---- the reader's side -------------------------------------------------------------------------------------------

    async def wait_for_part(self, *, or_begun: bool = False) -> None:
        """Wait for a part, or for the end; perhaps only for the beginning."""
        event = self.event()
        self._reader, self._wakes_on_begin = (event,), or_begun
        try:
            await event.wait()
        finally:
            self._reader, self._wakes_on_begin = (), False

    @property
    def has_begun(self) -> bool:
        """Whether the run has begun, by its word or by what it shows; or nothing comes any more."""
        return self.begun or self.ended or self.has_output

    @property
    def has_output(self) -> bool:
        """Whether there is a part, and of more than a failure."""
        return len(self.parts) > 0 and self.parts[0].mode != ERROR

    def pop(self) -> RawPart:
        """The oldest part. There is one."""
        part = self.parts.popleft()
        if len(self.parts) < self._capacity:
            self._reserved = 0
            self._wake_writer()
        return part

    def stop_reading(self) -> None:
        """The reader reads no more: nobody waits for it."""
        self._reading_stopped = True
        self.parts.clear()
        while self._writers:
            self._wake_writer()

    def _wake_writer(self) -> None:
        if self._writers:
            self._writers.popleft().set()

    def raise_failure(self) -> None:
        """Raise what ended the run, once."""
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


class ChunkList:
    """The chunks of a call that returns them all, in place of a buffer: no reader is active during the run, so no
    part waits.

    Attributes:
        chunks: in the shape that the call asked for.
    """

    is_awaited = False
    depth = 0

    def __init__(self, shape: Shape) -> None:
        self.chunks: list[Any] = []
        self._shape = shape

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

    def add(self, part: RawPart) -> None:
        self.chunks.append(self._shape(part))

    def end(self, *failure: BaseException) -> None:
        pass

    def set_run_id(self, run_id: str) -> None:
        pass

    def set_start_cursor(self, cursor: str) -> None:
        pass

    def begin(self) -> None:
        pass
