"""Replay a run to a reader that reconnects: first the parts that the reader missed, then live parts.

1. The run is in this process and event loop: the reader joins it. Stored events come first, then events that the run
   holds in memory, then live parts.
2. The run is elsewhere: its events are polled as they are stored, until its thread is released.
3. There is no run. If it ended (it finished, asked a question or failed), the stored events say so. If not, it was cut
   off, and is resumed: the superstep that was cut off starts anew.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from typing import Protocol

import anyio
import msgspec
from msgspec.structs import replace

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.codec import Codec
from checkpoint_savers.deltas import read_record
from checkpoint_savers.errors import ThreadBusyError
from checkpoint_savers.records import CheckpointId, EventRow

from ..._core.superstep import plan
from ...errors import RecordedFailureError
from ...types import RunStatus
from ..persistence.namespace_writer import NamespaceWriter
from .buffer import CAPACITY, Buffer
from .event_window import EventWindow
from .modes import MODES
from .modes.mode import Coerce
from .parts import END, ERROR, RESTARTED, RUN, Cursor, RawPart
from .stored_events import AFTER_ALL, StoredRun, restarted
from .subscription import LiveRuns, Subscription

POLL = 0.25
"""Seconds between two polls of the events of a run elsewhere."""


class Resume(Protocol):
    """Resumes the run of a thread. `begun` is called with the acquired thread, and returns False to stop there."""

    def __call__(
        self, subscription: Subscription, begun: Callable[[NamespaceWriter], Awaitable[bool]]
    ) -> Awaitable[object]: ...


async def rejoin(
    sink: Buffer,
    subscription: Subscription,
    after: Cursor,
    saver: BaseCheckpointSaver,
    thread_id: str,
    codec: Codec,
    live: LiveRuns,
    resume: Resume,
    *,
    coerce: Callable[[RawPart], Coerce | None],
    waits: bool,
) -> None:
    """Publish all parts after a cursor to a reader that reconnects, until the run ends.

    Args:
        sink: the reader's buffer.
        subscription: the subscription of the reader's call, which publishes to `sink`.
        after: the cursor of the last part that the reader received.
        saver: where the thread is stored.
        thread_id: the thread.
        codec: decodes the events.
        live: the runs of this process.
        resume: resumes the thread's run.
        coerce: returns the function that converts the state in a stored part to the schema's class.
        waits: poll the events of a run elsewhere until it ends.

    Raises:
        ThreadBusyError: a run elsewhere has the thread, and `waits` is False.
        InvalidCursorError: the cursor is not on the branch of the thread's newest checkpoint.
        RecordedFailureError: the run has failed earlier.
    """
    reader = ReconnectingReader(
        sink, subscription, after, saver, thread_id, codec, coerce, EventWindow(saver, thread_id)
    )
    while True:
        # First, because a run of this process has events that are not stored yet, and publishes without polling.
        if running := live.joinable(thread_id):
            if await reader.follow(running[0]):
                subscription.status = running[0].status
                return
            continue  # the run never began. Its caller gets the failure; it says nothing about the run before
        await reader.show_stored()
        await reader.check_answers()
        if reader.has_ended:
            break
        try:
            await resume(subscription, reader.prepare_resume)
        # The thread's lease is the only sign of a run elsewhere: a busy thread means that its events still come.
        except ThreadBusyError as error:
            if error.lost or not waits:
                raise
        else:
            if not reader.has_ended:
                return
            break  # the run ended after `show_stored` and before this call acquired the thread
        await anyio.sleep(POLL)
    sink.begin()  # so that `GraphStream.begin` does not take the recorded failure for a call that never began
    subscription.status = reader.ended
    if reader.failure:
        subscription.failed = True  # the failure was published when it happened
        raise RecordedFailureError(**reader.failure)


async def follow(
    sink: Buffer,
    subscription: Subscription,
    after: Cursor,
    saver: BaseCheckpointSaver,
    thread_id: str,
    codec: Codec,
    live: LiveRuns,
    wait: Callable[[], Awaitable[Cursor | None]],
    *,
    run_id: str,
    coerce: Callable[[RawPart], Coerce | None],
) -> None:
    """Publish all parts after a cursor, and those to come. This never runs code of the graph and takes no lease.

    Args:
        sink, subscription, after, saver, thread_id, codec, live, coerce: as for `rejoin`.
        wait: returns when there may be more parts: None if more may follow after these; the cursor after the last one
            once the run has ended.
        run_id: the run that is followed.

    Raises:
        InvalidCursorError: the cursor is not on the branch of the thread's newest checkpoint.
    """
    reader = ReconnectingReader(
        sink, subscription, after, saver, thread_id, codec, coerce, EventWindow(saver, thread_id), early=True
    )
    sink.set_start_cursor(str(after))
    sink.begin()
    while (last := await wait()) is None:
        # What a run holds whose storage has failed is never stored.
        running = [each for each in live.joinable(thread_id) if each.run_id == run_id and not each.failed]
        if running:
            await reader.follow(running[0], until_failure=True)
        else:
            await reader.show_stored()
    await reader.show_stored(up_to=last.key, over=True)
    subscription.status = reader.ended


async def _without_failure(parts: Buffer) -> AsyncGenerator[RawPart, None]:
    """Yield the parts of a run until it ends in any way, without the report of its failure."""
    # The report is shown once it is stored. A run that drains, or whose storage fails, stores none: it continues.
    while True:
        try:
            part = await anext(parts)
        except Exception:  # StopAsyncIteration, or the failure of the run: not one of the reader or of its storage
            return
        if part.mode != ERROR:
            yield part


class ReconnectingReader(msgspec.Struct):
    """A reader that reconnects.

    Attributes:
        cursor: the cursor of the last event that it has received.
        window: the stored events from this cursor's checkpoint on.
        early: it receives stored events before they are final.
        cut_off: the checkpoint at which it received parts that are void now; None for none.
        ended: how the run has ended, if the last event says so; otherwise None.
        failure: the "type" and "message" of the run's failure; empty for none.
        recalled: the key of the last event that was repeated to it (`GraphStream.recall`).
        looked: the cursor after the last look at storage; None if there is more to show at it.
    """

    sink: Buffer
    subscription: Subscription
    cursor: Cursor
    saver: BaseCheckpointSaver
    thread_id: str
    codec: Codec
    coerce: Callable[[RawPart], Coerce | None]
    window: EventWindow
    early: bool = False
    cut_off: str | None = None
    ended: RunStatus | None = None
    failure: dict[str, str] = {}
    recalled: tuple[str, int, int] = ("", 0, 0)
    looked: Cursor | None = None

    def __post_init__(self) -> None:
        self.recalled = self.cursor.checkpoint_id, 0, 0  # repeated events begin with this superstep's first

    async def show_stored(
        self,
        held: Sequence[EventRow] = (),
        live: Collection[tuple[str, int]] = (),
        up_to: tuple[str, int, int] = AFTER_ALL,
        *,
        over: bool = False,
    ) -> None:
        """Publish the stored events, and those that a run of this process holds.

        Args:
            held, live, up_to, over: as for a `StoredRun`.
        """
        cursor = self.cursor
        if await self._was_ahead(live):
            self.cursor = Cursor(cursor.since or "", cursor.epoch, 0, cursor.seq)
        has_more = True
        while has_more:
            has_new = await self.window.advance(self.cursor.checkpoint_id, over=over)
            if not (has_new or held or live or over or self.cursor != self.looked):
                return
            run = self._stored_run(held, live, up_to, over=over)
            if run.is_lost:
                self.cursor = replace(self.cursor, position=0)
                run = self._stored_run(held, live, up_to, over=over)
            if self.cursor is not cursor:
                self.ended, self.failure = None, {}
                await self._show_next(restarted(self.cursor, run.step))
            elif run.has_void:
                self.cut_off = self.cursor.checkpoint_id
            begins = False
            for part in run.parts(repeat_superstep=self.sink.recalls):
                begins = await self.show(part)
                if begins:
                    break
            has_more = begins or (run.is_exhausted and not self.window.is_complete)
            if has_more and not begins:
                self.window.drop_read(self.cursor.checkpoint_id)
            has_more = has_more or not self.window.is_current
            cursor = self.cursor
            self.looked = None if has_more else cursor

    def _stored_run(
        self,
        held: Sequence[EventRow],
        live: Collection[tuple[str, int]],
        up_to: tuple[str, int, int],
        *,
        over: bool,
    ) -> StoredRun:
        run = StoredRun(
            self.window, self.cursor, self.codec, held=held, live=live, up_to=up_to, over=over, early=self.early
        )
        run.load()
        return run

    async def _was_ahead(self, live: Collection[tuple[str, int]]) -> bool:
        """Return True if the checkpoint of the cursor was published before it was stored, and never was stored."""
        cursor = self.cursor
        if cursor.since in (None, cursor.checkpoint_id) or cursor.attempt in live:
            return False
        return await self.saver.read(self.thread_id, "", CheckpointId(cursor.checkpoint_id)) is None

    async def show(self, part: RawPart) -> bool:
        """Publish a part, unless the reader has received it. Its number continues from the reader's cursor.

        Returns:
            True if another run begins with it, whose events may need another codec.
        """
        if part.cursor is not None:
            is_repeat = part.cursor.key <= self.cursor.key
            if is_repeat and (not self.sink.recalls or part.cursor.key <= self.recalled):
                return False
            self.recalled = part.cursor.key
            if is_repeat:
                if part.mode in (*self.subscription.modes, ERROR) and self._shows(part):
                    # With failures: a reader that accumulates chunks starts over after one.
                    await self._put(part)
                return False
            self.cursor = part.cursor
        if part.mode == RUN:
            return await self.begin_run(part)
        if part.mode == END:
            self.ended = part.data["status"]
            if self.ended == "failed":
                self.failure = {"type": part.data["error"], "message": part.data["message"]}
            return False
        self.ended, self.failure = None, {}
        if part.mode == RESTARTED:
            cut_off, self.cut_off = self.cut_off, None
            if cut_off != self.cursor.checkpoint_id:
                return False  # the reader has received no parts of the attempt that was cut off
        if part.mode == ERROR:
            self.subscription.failed = True
        if self._shows(part):
            await self._show_next(part)
        return False

    async def begin_run(self, part: RawPart) -> bool:
        """Begin with the events of a run, or of another attempt at it. Only a reader of a thread's log shows that."""
        return False

    async def _show_next(self, part: RawPart) -> None:
        part.seq = self.subscription.number = self.subscription.number + 1
        part.cursor = self.subscription.last = replace(self.cursor, seq=part.seq)
        await self._put(part)

    def _shows(self, part: RawPart) -> bool:
        return (part.mode in self.subscription.modes or part.mode not in MODES) and (
            self.subscription.subgraphs or not part.ns
        )

    async def _put(self, part: RawPart) -> None:
        if part.needs_coerce:
            part.coerce = self.coerce(part)
        while self.sink.blocks(part.mode):
            await self.sink.wait_for_capacity()
        self.sink.add(part)

    async def follow(self, running: Subscription, *, until_failure: bool = False) -> bool:
        """Join a run of this process until it ends. Returns False if the run ended before it began.

        Args:
            running: the run.
            until_failure: return if the run fails, is cancelled or drained, in place of raising that.
        """
        joined = Buffer(CAPACITY)
        joined.begun = running.begun
        # Joined before storage is read: otherwise parts that are published in between would be missed. Parts that come
        # both ways are recognised by their cursors.
        running.sinks.append(joined)
        try:
            while not joined.has_begun:
                await joined.wait_for_part(or_begun=True)
            if not running.is_recorded or not (joined.begun or joined.has_output):
                return False
            self.sink.set_run_id(running.run_id)
            self.sink.set_start_cursor(str(self.cursor))
            self.sink.begin()
            await self.show_stored(*running.unstored_events())
            async for part in _without_failure(joined) if until_failure else joined:
                await self.show(part)
        finally:
            running.remove_sink(joined)
            joined.stop_reading()
        return True

    async def check_answers(self) -> None:
        """Clear the end of a run whose questions have all been answered since: the answering run was cut off."""
        if self.ended == "interrupted":
            chain = await self.saver.read(self.thread_id)
            entries = [] if chain is None else [read_record(record, self.thread_id) for record in chain.records]
            if not any(key not in entry.answers for entry in entries for key, _ in entry.interrupts or ()):
                self.ended = None

    async def prepare_resume(self, writer: NamespaceWriter) -> bool:
        """Publish what was stored until the thread was acquired. Returns True if there is work to resume."""
        await self.show_stored(over=True)
        await self.check_answers()
        board = writer.board
        if self.has_ended or board is None or not plan(writer.program, board, ("", "")) or writer.questions():
            return False
        self.subscription.committed = board.step
        self.subscription.last = self.cursor
        self.subscription.shows_restart = self.cut_off == writer.tip
        return True

    @property
    def has_ended(self) -> bool:
        """True if the run has ended and is not to be resumed. Drained and cancelled runs are resumed."""
        return self.ended not in (None, "drained", "cancelled")
