"""The subscription of one call to the parts of its run. It numbers the parts and adds them to its readers' buffers.

A full buffer may make the run wait. Readers that reconnect join the subscription with buffers of their own (see
`replay`), and the first reader may stop reading. All readers receive the parts in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from threading import get_ident
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from checkpoint_savers.records import EventKey, EventRow

from ..._core.isolation import isolate
from ..._core.ownership import own
from ...errors import RunCancelledError, StreamFullError
from ...types import RunStatus
from ..observing.error_text import described
from ..observing.observation import NOT_OBSERVED, Observation
from .buffer import MAX_RESERVED
from .event_recorder import EventRecorder
from .parts import END, ERROR, Cursor, RawPart, approximate_size


class Sink(Protocol):
    """Receives the parts of a subscription: the buffer of one reader, or a list of chunks."""

    def blocks(self, mode: str) -> bool:
        """Return True if adding a part in this mode would block."""
        ...

    def is_over_capacity(self, mode: str) -> bool:
        """Return True if parts were added although `blocks` was true, and are still unread."""
        ...

    async def wait_for_capacity(self) -> None:
        """Wait until there may be capacity. Re-check after waking; call `notify_next()` if you add nothing.

        One waiting task is woken at a time, so a task that adds nothing must wake the next.
        """
        ...

    def notify_next(self) -> None:
        """Wake the next waiting task if there is capacity."""
        ...

    def reserve(self, mode: str, size: int) -> None:
        """Allow code that cannot wait to add `size` bytes to a full buffer. Raises `StreamFullError` at the limit."""
        ...

    def release(self, size: int) -> None:
        """Return reserved bytes, as the code waits now."""
        ...

    @property
    def is_awaited(self) -> bool:
        """True if a waiting reader was woken by the only unread part and has not run since."""
        ...

    @property
    def depth(self) -> int:
        """The number of unread parts."""
        ...

    def add(self, part: RawPart) -> None:
        """Append a part without waiting."""
        ...

    def end(self, *failure: BaseException) -> None:
        """Mark the end of the run. A failure is raised to the reader after the last part."""
        ...

    def set_run_id(self, run_id: str) -> None:
        """Set the id of the run."""
        ...

    def set_start_cursor(self, cursor: str) -> None:
        """Set the cursor before the run's first stored event."""
        ...

    def begin(self) -> None:
        """Mark the run as begun: it has acquired its thread and stored its input."""
        ...


class Staged(msgspec.Struct):
    """Parts that wait until the row with their events is stored."""

    parts: Sequence[RawPart]
    is_stored: bool = False


class NotRecorded:
    """Stands in for an `EventRecorder` when events are not stored: each method does nothing."""

    needs_flush = False
    is_over_capacity = False
    cursor = Cursor("", 0, 0)

    def add(self, part: RawPart) -> None:
        """Assign no cursor."""

    async def flush(self) -> None:
        """Store nothing."""

    def unstored_rows(self) -> list[EventRow]:
        """Return no rows."""
        return []

    def open_attempts(self) -> set[tuple[str, int]]:
        """Return no attempts."""
        return set()


NO_RECORDER = NotRecorded()

NOTHING_UNSHOWN = Cursor("", 0, 0)
"""Before the cursors of all events."""


class Subscription:
    """What one call requested of its run's stream, and the readers that receive it.

    Attributes:
        modes: the names of the stream modes.
        channels: the channels of the called graph to show; None for the graph's own choice.
        subgraphs: the subgraphs' parts are included.
        metadata: the metadata of the call's config, with its tags under "tags".
        reports_errors: the run's failure is published as a part of its own.
        records_events: the events are to be stored with the run's commits.
        sinks: the readers' buffers. The first belongs to the call itself.
        recorder: stores the events; None if they are not stored or the run has not begun. See `record_with`.
        is_recorded: there is a recorder.
        last: the cursor of the last published event.
        committed: the newest stored superstep of the called graph; None if there is none.
        has_own_task: the run has a task of its own.
        reconnects: the reader has reconnected (`after=`), and knows the state from which the run resumes.
        number: the number of the last published part.
        depth: the number of graphs that enclose the called graph.
        failed: the part that reports the run's failure has been published, or was published before a reconnect.
        status: how the run has ended; None before that.
        dismissed: a cancellation is final: no service may resume the run.
        run_id: the id of the run; "" before the run has acquired its thread.
        begun: the run has acquired its thread and stored its input.
        shown_messages: the ids of the messages that were published.
        observed: reports the run to its observers.
        resumes: an earlier attempt at the open superstep stored events and was cut off.
        shows_restart: the reader has received parts of the open superstep, which runs again.
    """

    def __init__(
        self,
        modes: Collection[str],
        sink: Sink,
        *,
        channels: str | tuple[str, ...] | None = None,
        subgraphs: bool = False,
        reports_errors: bool = False,
        records_events: bool = False,
        has_own_task: bool = False,
        reconnects: bool = False,
        number: int = 0,
    ) -> None:
        self.modes = modes
        self._written = tuple(
            [mode for mode in ("custom", "messages") if mode in modes]
        )  # the modes that code which cannot wait publishes in
        self.channels = channels
        self.subgraphs = subgraphs
        self.metadata: Mapping[str, Any] = {}
        self.reports_errors = reports_errors
        self.records_events = records_events
        self.has_own_task = has_own_task
        self.reconnects = reconnects
        self.sinks: list[Sink] = [sink]
        self.recorder: EventRecorder | None = None
        self.is_recorded = False
        self._active_recorder: EventRecorder | NotRecorded = NO_RECORDER
        self.last: Cursor | None = None
        self.committed: int | None = None
        self.number = number
        self.depth = 0
        self.failed = False
        self.status: RunStatus | None = None
        self.dismissed = False
        self.run_id = ""
        self.begun = False
        self.shown_messages: set[object] = set()
        self.observed: Observation = NOT_OBSERVED
        self.resumes = False
        self.shows_restart = False
        self._queue: deque[RawPart | Staged] = deque()  # parts that wait for a row, and all later ones
        self._staged: dict[EventKey, Staged] = {}
        self._unshown = NOTHING_UNSHOWN

    def record_with(self, recorder: EventRecorder) -> None:
        """Store the events from here on, and set the start cursor of the readers."""
        self.is_recorded, self.recorder, self._active_recorder = True, recorder, recorder
        recorder.on_stored = self.send_stored
        start = str(replace(recorder.cursor, seq=self.number))
        for sink in self.sinks:
            sink.set_start_cursor(start)

    def stop_recording(self) -> None:
        """Store no more events: later parts are not events of the thread."""
        self.is_recorded, self.recorder, self._active_recorder = False, None, NO_RECORDER

    def unstored_events(self) -> tuple[list[EventRow], set[tuple[str, int]], tuple[str, int, int]]:
        """Return the rows that are not stored yet, their attempts, and the key up to which a joining reader reads.

        All later events reach that reader live.
        """
        recorder = self._active_recorder
        last = replace(recorder.cursor, position=0) if self.last is None else self.last
        return recorder.unstored_rows(), recorder.open_attempts(), max(last.key, self._unshown.key)

    def set_run_id(self, run_id: str) -> None:
        """Set the id of the run, here and at the readers."""
        self.run_id = run_id
        for sink in self.sinks:
            sink.set_run_id(run_id)

    def begin(self) -> None:
        """Mark the run as begun, here and at the readers."""
        if not self.begun:
            self.begun = True
            for sink in self.sinks:
                sink.begin()

    async def put(self, part: RawPart) -> None:
        """Publish a part. Waits until no reader's buffer blocks."""
        if part.is_repeat and self.reconnects:
            return  # it is stored: the reader has received it already, or reads it from storage
        # The report of a failure is the last part. It never blocks: an idle reader must not keep the run from ending.
        modes = () if part.mode == ERROR else (part.mode,)
        # Checked again after each wait: another reader's buffer may have become full meanwhile.
        while full := self._full_sinks(modes):
            try:
                await full[0].wait_for_capacity()
            except BaseException:
                # This task may have been woken by another reader's buffer before, and adds nothing now.
                self._notify_next()
                raise
        self._enqueue(part)
        # This code may wait, so it flushes. Code that cannot wait leaves the flush to `wait_until_drained`.
        if self._active_recorder.needs_flush:
            await self._active_recorder.flush()

    def put_nowait(self, part: RawPart, *, owes: bool) -> int:
        """Publish a part of code that cannot wait.

        Args:
            part: the part.
            owes: the writer should have waited after an earlier part, and has not.

        Returns:
            The number of bytes reserved for the writer until it waits; 0 if it owes nothing.

        Raises:
            StreamFullError: a reader or the event recorder is so far behind that memory would grow without bounds.
        """
        if self._active_recorder.is_over_capacity:
            raise StreamFullError(part.mode, self.number)
        size = 0
        if owes and any(sink.blocks(part.mode) for sink in self.sinks):
            # Measured only now, as it traverses the payload.
            size = approximate_size(part.data, MAX_RESERVED)
            for sink in self.sinks:
                sink.reserve(part.mode, size)
        self._enqueue(part)
        return size

    def put_over_capacity(self, part: RawPart) -> None:
        """Publish a part without waiting, however full the buffers are."""
        self._enqueue(part)

    def release(self, size: int) -> None:
        """Return the bytes that were reserved for a writer, as it waits now."""
        for sink in self.sinks:
            sink.release(size)

    async def wait_until_drained(self) -> None:
        """Wait until the buffers and the recorder have taken all parts of code that could not wait."""
        try:
            while self.is_backlogged:
                for sink in self._full_sinks(self._written):
                    await sink.wait_for_capacity()
                if self._active_recorder.needs_flush:
                    await self._active_recorder.flush()
        finally:
            # This task adds nothing: the capacity that it was woken for belongs to the next.
            self._notify_next()

    async def wait_until_within_capacity(self) -> None:
        """Wait until no buffer exceeds its capacity because of parts that were published when they were stored."""
        try:
            while overfull := [sink for sink in self.sinks if any(map(sink.is_over_capacity, self.modes))]:
                await overfull[0].wait_for_capacity()
        finally:
            self._notify_next()

    @property
    def is_backlogged(self) -> bool:
        """True if code that has published without waiting must wait before it continues."""
        return self._active_recorder.needs_flush or len(self._full_sinks(self._written)) > 0

    def _full_sinks(self, modes: Iterable[str]) -> tuple[Sink, ...]:
        """Return the first buffer in which a part of these modes would block, or ()."""
        for sink in self.sinks:
            for mode in modes:
                if sink.blocks(mode):
                    return (sink,)
        return ()

    def _notify_next(self) -> None:
        for sink in self.sinks:
            sink.notify_next()

    def control_part(self, mode: str, data: object, step: int) -> RawPart:
        """Return a part about the run itself, such as its failure or end, which shows no event of a graph."""
        return RawPart(mode=mode, ns=(), data=data, step=step)

    def _enqueue(self, part: RawPart) -> None:
        if self.records_events and not part.is_repeat:
            self.assign_cursor(part)
        if self._queue:
            self._queue.append(part)
        else:
            self._send(part)

    def _send(self, part: RawPart) -> None:
        # This event is only stored: it reports how the run ended to a reader that reconnects. A live reader sees the
        # end of the stream instead.
        if part.mode == END:
            return
        self.number += 1
        part.seq = self.number
        part.committed = self.committed
        if part.cursor is not None:
            self.last = part.cursor = replace(part.cursor, seq=part.seq)
        elif self.last is not None:
            # The part is not an event: a reader that reconnects with its cursor continues after the last event.
            part.cursor = replace(self.last, seq=part.seq)
        # Joined readers have read the parts of earlier attempts from storage; only the call's own reader lacks them.
        for sink in self.sinks[:1] if part.is_repeat else self.sinks:
            # A copy for each further reader, because readers may change their parts in place.
            sink.add(part if sink is self.sinks[0] else replace(part, data=isolate(own(part.data))))
        if self.observed.is_on:
            self.observed.part_queued(part.mode, max([sink.depth for sink in self.sinks], default=0))

    def assign_cursor(self, part: RawPart) -> None:
        """Assign a part its cursor among the stored events, unless it has one."""
        if part.cursor is None:
            self._active_recorder.add(part)

    def record_unshown(self, part: RawPart) -> None:
        """Record a part that the present readers need not receive.

        It is never sent live, so a reader that joins must find it among the recorded events.
        """
        self.assign_cursor(part)
        self._unshown = part.cursor or NOTHING_UNSHOWN

    def stage(self, row: EventRow, parts: Sequence[RawPart]) -> None:
        """Publish parts that have cursors once their row is stored. Later parts wait behind them.

        Publishing later parts first would break the order of the cursors: a reader that reconnects with the cursor of
        such a part would miss the staged ones.
        """
        if not parts:
            return
        staged = self._staged[row.key] = Staged(parts)
        self._queue.append(staged)

    def send_stored(self, keys: Iterable[EventKey]) -> None:
        """Publish the parts that wait for these rows, and the parts behind them."""
        for key in keys:
            if key in self._staged:
                self._staged.pop(key).is_stored = True
        self._send_stored()

    def discard_staged(self) -> None:
        """Drop the parts whose row cannot be stored, and publish the parts behind them."""
        for staged in self._staged.values():
            staged.parts, staged.is_stored = (), True
        self._staged.clear()
        self._send_stored()

    def _send_stored(self) -> None:
        waiting = self._queue
        while waiting:
            first = waiting[0]
            if isinstance(first, Staged) and not first.is_stored:
                return
            waiting.popleft()
            for part in first.parts if isinstance(first, Staged) else (first,):
                self._send(part)

    def remove_sink(self, sink: Sink) -> None:
        """Remove a reader. Does nothing if it was removed before."""
        if sink in self.sinks:
            self.sinks.remove(sink)

    def error_part(self, error: BaseException, step: int) -> RawPart:
        """Return the part that reports the run's failure."""
        kind, message = described(error)
        return self.control_part(ERROR, {"error": kind, "message": message}, step)


class LiveRuns:
    """The runs of this process that readers can join, by thread."""

    def __init__(self) -> None:
        # The key starts with the operating system's thread, because a run can be joined only on its own event loop.
        self._subscriptions: dict[tuple[int, str], tuple[Subscription]] = {}

    def add(self, thread_id: str, subscription: Subscription) -> None:
        self._subscriptions[get_ident(), thread_id] = (subscription,)

    def remove(self, thread_id: str, subscription: Subscription, *failure: BaseException) -> None:
        """Remove a run, and end the streams of the readers that have joined it.

        Args:
            thread_id: the thread of the run.
            subscription: the subscription of the run's call.
            failure: the run's exception, if it failed. A reader gets `RunCancelledError` for a cancellation, which
                must not cross tasks.
        """
        key = (get_ident(), thread_id)
        if subscription in self._subscriptions.get(key, ()):
            # Otherwise the last commit released the thread, and another run has registered for it since.
            del self._subscriptions[key]
        for sink in subscription.sinks[1:]:
            sink.end(*(each if isinstance(each, Exception) else RunCancelledError(thread_id) for each in failure))

    def joinable(self, thread_id: str) -> list[Subscription]:
        """Return the subscription of the run on this event loop that stores its events, as a list of at most one."""
        return [
            subscription
            for subscription in self._subscriptions.get((get_ident(), thread_id), ())
            if subscription.is_recorded
        ]
