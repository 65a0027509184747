"""What one call asked to be shown of its run. A `Subscription` numbers the parts and sends them to its readers.

The reader and the run share a buffer, which may make the run wait. Other readers may join a subscription later, with
buffers of their own (see `replay`), and the first may leave it. All of them get the parts in one order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from threading import get_ident
from typing import Protocol

import msgspec
from msgspec.structs import replace

from checkpoint_savers.records import EventKey, EventRow

from ..._core.isolation import isolate, own
from ...errors import RunCancelledError, StreamFullError
from ...types import RunStatus
from ..observing.error_text import described
from ..observing.observation import NOT_OBSERVED, Observation
from .buffer import MAX_RESERVED
from .event_recorder import EventRecorder
from .parts import END, ERROR, Cursor, RawPart, approximate_size


class Sink(Protocol):
    """Where parts go."""

    def blocks(self, mode: str) -> bool:
        """Whether whoever brings a part of this mode has to wait now."""
        ...

    def is_over_capacity(self, mode: str) -> bool:
        """Return True if parts were added in spite of `blocks`, and are not read yet."""
        ...

    async def wait_for_capacity(self) -> None:
        """Wait for a sign that there is room; look again then. Each is given to one who waits: who then adds nothing
        passes it on."""
        ...

    def notify_next(self) -> None:
        """Give the sign to the next who waits, if there is room."""
        ...

    def reserve(self, mode: str, size: int) -> None:
        """Let code that does not wait add a part all the same. Raises `StreamFullError` when that goes too far."""
        ...

    def release(self, size: int) -> None:
        """The code waits after all."""
        ...

    @property
    def is_awaited(self) -> bool:
        """Whether the reader has been waiting for the one part that is there."""
        ...

    @property
    def depth(self) -> int:
        """How many parts wait to be read."""
        ...

    def add(self, part: RawPart) -> None:
        """Take a part at once."""
        ...

    def end(self, *failure: BaseException) -> None:
        """Nothing comes any more; the failure, if there is one, follows the last part."""
        ...

    def set_run_id(self, run_id: str) -> None:
        """This is the run that is shown."""
        ...

    def set_start_cursor(self, cursor: str) -> None:
        """Here its events begin, if they are kept."""
        ...

    def begin(self) -> None:
        """The run has its thread and its input."""
        ...


class Staged(msgspec.Struct):
    """Parts that are shown when their row is stored."""

    parts: Sequence[RawPart]
    is_stored: bool = False


class NotRecorded:
    """In the place of a `EventRecorder`, where events are not kept."""

    needs_flush = False
    is_over_capacity = False
    cursor = Cursor("", 0, 0)

    def add(self, part: RawPart) -> None:
        """Give the part no place."""

    async def flush(self) -> None:
        """Store nothing."""

    def unstored_rows(self) -> list[EventRow]:
        """No row is held."""
        return []

    def open_attempts(self) -> set[tuple[str, int]]:
        """No attempt is open."""
        return set()


NO_RECORDER = NotRecorded()


class Subscription:
    """What one call asked to be shown.

    Attributes:
        modes: their names.
        channels: the channels to show of the graph that was called; None for those that it shows by itself.
        subgraphs: the graphs inside are shown too.
        reports_errors: the failure of the run, and the parts that are void, are sent to readers as parts of their own.
        records_events: the events are to be kept with the run's commits.
        sinks: who reads.
        recorder: keeps the events; None when they are not kept, or the run has not begun. See `record_with`.
        is_recorded: whether there is one.
        last: the place of the last event that was shown.
        committed: the superstep of the called graph that is stored; None when there is none.
        has_own_task: the run is in a task of its own.
        reconnects: its reader has been here before, and knows the state that the run goes on from.
        number: of the last part.
        depth: how many graphs are around the one that was called.
        failed: readers have been told that the run fails.
        status: how the run has ended; None before that.
        dismissed: if the run is cancelled, that is for good: it is not to be picked up.
        run_id: of the run; "" before it has its thread.
        begun: it has its input too.
        shown_messages: the ids of the messages that were shown.
        observed: the run, as it is observed.
        resumes: an earlier attempt at the open superstep was cut off.
        shows_restart: its reader has seen something of the open superstep that runs again.
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
        self._written = tuple([mode for mode in ("custom", "messages") if mode in modes])  # by code that may not wait
        self.channels = channels
        self.subgraphs = subgraphs
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
        self._queue: deque[RawPart | Staged] = deque()  # behind events that are shown when they are stored
        self._staged: dict[EventKey, Staged] = {}

    def record_with(self, recorder: EventRecorder) -> None:
        """Keep the events from here on, and notify readers of their start."""
        self.is_recorded, self.recorder, self._active_recorder = True, recorder, recorder
        recorder.on_stored = self.send_stored
        start = str(replace(recorder.cursor, seq=self.number))
        for sink in self.sinks:
            sink.set_start_cursor(start)

    def stop_recording(self) -> None:
        """Let what is shown from here on be no event of the thread's."""
        self.is_recorded, self.recorder, self._active_recorder = False, None, NO_RECORDER

    def unstored_events(self) -> tuple[list[EventRow], set[tuple[str, int]], tuple[str, int, int]]:
        """The rows of events that only this process has, the attempts that they are of, and the place up to which they
        were shown."""
        recorder = self._active_recorder
        last = replace(recorder.cursor, position=0) if self.last is None else self.last
        return recorder.unstored_rows(), recorder.open_attempts(), last.key

    def set_run_id(self, run_id: str) -> None:
        """Tell readers which run this is."""
        self.run_id = run_id
        for sink in self.sinks:
            sink.set_run_id(run_id)

    def begin(self) -> None:
        """Tell readers that the run has begun."""
        if not self.begun:
            self.begun = True
            for sink in self.sinks:
                sink.begin()

    async def put(self, part: RawPart) -> None:
        """Show a part, once everybody who is to be waited for has room for it."""
        if part.is_repeat and self.reconnects:
            return  # it was kept: the reader has it, or gets it from storage
        modes = () if part.mode == ERROR else (part.mode,)  # there is room for the one that is the last
        while full := self._full_sinks(modes):
            try:
                await full[0].wait_for_capacity()
            except BaseException:
                self._notify_next()
                raise
        self._enqueue(part)
        if self._active_recorder.needs_flush:
            await self._active_recorder.flush()

    def put_nowait(self, part: RawPart, *, owes: bool) -> int:
        """Show a part at once: its writer may not wait.

        Args:
            owes: the writer has not waited since it last should have.

        Returns:
            What it is charged with until it waits.

        Raises:
            StreamFullError: a reader is so far behind that this would never end.
        """
        if self._active_recorder.is_over_capacity:
            raise StreamFullError(part.mode, self.number)
        size = 0
        if owes and any(sink.blocks(part.mode) for sink in self.sinks):
            size = approximate_size(part.data, MAX_RESERVED)
            for sink in self.sinks:
                sink.reserve(part.mode, size)
        self._enqueue(part)
        return size

    def put_over_capacity(self, part: RawPart) -> None:
        """Show a part at once, however far readers are behind."""
        self._enqueue(part)

    def release(self, size: int) -> None:
        """A writer waits after all."""
        for sink in self.sinks:
            sink.release(size)

    async def wait_until_drained(self) -> None:
        """Wait until nobody lags behind what was shown at once."""
        try:
            while self.is_backlogged:
                for sink in self._full_sinks(self._written):
                    await sink.wait_for_capacity()
                if self._active_recorder.needs_flush:
                    await self._active_recorder.flush()
        finally:
            self._notify_next()

    async def wait_until_within_capacity(self) -> None:
        """Wait until no reader is behind with what was shown as soon as it was stored."""
        try:
            while overfull := [sink for sink in self.sinks if any(map(sink.is_over_capacity, self.modes))]:
                await overfull[0].wait_for_capacity()
        finally:
            self._notify_next()

    @property
    def is_backlogged(self) -> bool:
        """Whether whoever has shown something at once has to wait before it goes on."""
        return self._active_recorder.needs_flush or len(self._full_sinks(self._written)) > 0

    def _full_sinks(self, modes: Iterable[str]) -> tuple[Sink, ...]:
        """Return a reader in which a part of these modes would block, if there is one."""
        for sink in self.sinks:
            for mode in modes:
                if sink.blocks(mode):
                    return (sink,)
        return ()

    def _notify_next(self) -> None:
        for sink in self.sinks:
            sink.notify_next()

    def control_part(self, mode: str, data: object, step: int) -> RawPart:
        """A part that is no view of an event of the graph's, but about the stream itself."""
        return RawPart(mode=mode, ns=(), data=data, step=step)

    def _enqueue(self, part: RawPart) -> None:
        if self.records_events and not part.is_repeat:
            self.assign_cursor(part)
        if self._queue:
            self._queue.append(part)
        else:
            self._send(part)

    def _send(self, part: RawPart) -> None:
        if part.mode == END:
            return
        self.number += 1
        part.seq = self.number
        part.committed = self.committed
        if part.cursor is not None:
            self.last = part.cursor = replace(part.cursor, seq=part.seq)
        elif self.last is not None:
            part.cursor = replace(self.last, seq=part.seq)  # it is no event: who comes back goes on after the last
        for sink in self.sinks[:1] if part.is_repeat else self.sinks:
            # Each reader has its own: it may change what it gets in place.
            sink.add(part if sink is self.sinks[0] else replace(part, data=isolate(own(part.data))))
        if self.observed.is_on:
            self.observed.part_queued(part.mode, max([sink.depth for sink in self.sinks], default=0))

    def assign_cursor(self, part: RawPart) -> None:
        """Give a part its place among the events that are kept, unless it has one."""
        if part.cursor is None:
            self._active_recorder.add(part)

    def stage(self, row: EventRow, parts: Sequence[RawPart]) -> None:
        """Show these parts, which have their places, when their row is stored. What comes later waits behind them: the
        order of places is the order in which readers see them."""
        if not parts:
            return
        staged = self._staged[row.key] = Staged(parts)
        self._queue.append(staged)

    def send_stored(self, keys: Iterable[EventKey]) -> None:
        """Show what waits for these rows."""
        for key in keys:
            if key in self._staged:
                self._staged.pop(key).is_stored = True
        self._send_stored()

    def discard_staged(self) -> None:
        """Storage has failed: what waits for it is never shown; what waits behind that is."""
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
        """Somebody reads no more."""
        if sink in self.sinks:
            self.sinks.remove(sink)

    def error_part(self, error: BaseException, step: int) -> RawPart:
        """The part that tells why the run fails."""
        kind, message = described(error)
        return self.control_part(ERROR, {"error": kind, "message": message}, step)


class LiveRuns:
    """The runs of this process that can be joined, by thread."""

    def __init__(self) -> None:
        self._subscriptions: dict[
            tuple[int, str], tuple[Subscription]
        ] = {}  # by event loop's thread, and thread; each one alone

    def add(self, thread_id: str, subscription: Subscription) -> None:
        self._subscriptions[get_ident(), thread_id] = (subscription,)

    def remove(self, thread_id: str, subscription: Subscription, *failure: BaseException) -> None:
        """End a run's feed, and the streams of the readers that have joined it.

        Args:
            failure: what the run has failed with, if it has.
        """
        key = (get_ident(), thread_id)
        if subscription in self._subscriptions.get(key, ()):
            del self._subscriptions[key]  # else the last commit released the thread, and another run has it by now
        for sink in subscription.sinks[1:]:
            sink.end(*(each if isinstance(each, Exception) else RunCancelledError(thread_id) for each in failure))

    def joinable(self, thread_id: str) -> list[Subscription]:
        """Return the subscription of a run on this event loop that keeps its events, if there is one."""
        return [
            subscription
            for subscription in self._subscriptions.get((get_ident(), thread_id), ())
            if subscription.is_recorded
        ]
