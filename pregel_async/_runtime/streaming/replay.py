"""Coming back to a run: what was missed, and then what is shown live.

1. The run goes on in this process and event loop: its reader joins it. What is stored comes first, then what the run
   holds, then what it shows.
2. It goes on elsewhere: what it stores is followed as it is stored, until its thread is given up.
3. It goes on nowhere. If it came to rest (it is done, it asks, it failed) that was told among its events. If not, it
   was cut off: it is resumed, and the superstep that was cut off starts anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
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
from .modes import MODES
from .modes.mode import Coerce
from .parts import END, ERROR, RESTARTED, Cursor, RawPart
from .stored_events import AFTER_ALL, StoredRun, restarted
from .subscription import LiveRuns, Subscription

POLL = 0.25
"""Seconds between two looks at what a run elsewhere has stored."""


class Resume(Protocol):
    """Goes on with a thread, if there is something to go on with."""

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
    """Show a reader all that comes after a place.

    Args:
        subscription: of the reader's call; it goes to `sink`.
        coerce: what makes the schema's own object of a part that was stored.
        waits: for a run that goes on elsewhere, following it; else raise `ThreadBusyError`.
    """
    reader = _ReconnectingReader(sink, subscription, after, saver, thread_id, codec, coerce)
    while True:
        if running := live.joinable(thread_id):
            if await reader.follow(running[0]):
                subscription.status = running[0].status
                return
            continue  # it was refused: its failure is its caller's affair
        await reader.show_stored()
        await reader.check_answers()
        if reader.has_ended:
            break
        try:
            await resume(subscription, reader.prepare_resume)
        except ThreadBusyError as error:
            if error.lost or not waits:
                raise
        else:
            if not reader.has_ended:
                return
            break  # it came to rest just before its thread was ours
        await anyio.sleep(POLL)
    sink.begin()  # it had begun, though perhaps nothing is shown but why it has failed
    subscription.status = reader.ended
    if reader.failure:
        subscription.failed = True  # it was told when it happened
        raise RecordedFailureError(**reader.failure)


class _ReconnectingReader(msgspec.Struct):
    """A reader on the way back.

    Attributes:
        cursor: the place that it has got to.
        cut_off: the checkpoint on which the reader was shown something that is void now; None for none.
        ended: how the run has ended, if that was the last event; None else.
        failure: what the run has failed with, if it has: "type" and "message".
        recalled: the last of the place's attempt that was shown again.
    """

    sink: Buffer
    subscription: Subscription
    cursor: Cursor
    saver: BaseCheckpointSaver
    thread_id: str
    codec: Codec
    coerce: Callable[[RawPart], Coerce | None]
    cut_off: str | None = None
    ended: RunStatus | None = None
    failure: dict[str, str] = {}
    recalled: tuple[str, int, int] = ("", 0, 0)

    def __post_init__(self) -> None:
        self.recalled = self.cursor.checkpoint_id, 0, 0  # what is shown again begins with that superstep

    async def show_stored(
        self,
        held: Sequence[EventRow] = (),
        live: Collection[tuple[str, int]] = (),
        upto: tuple[str, int, int] = AFTER_ALL,
        *,
        over: bool = False,
    ) -> None:
        """Show what is stored, and what a run of this process holds.

        Args:
            held, live, upto, over: as for a `StoredRun`.
        """
        cursor = self.cursor
        if await self._was_ahead(live):
            self.cursor = Cursor(cursor.since or "", cursor.epoch, 0, cursor.seq)
        while True:
            run = StoredRun(
                self.saver, self.thread_id, self.cursor, self.codec, held=held, live=live, upto=upto, over=over
            )
            await run.load()
            if not run.is_lost:
                break
            self.cursor = replace(self.cursor, position=0)
        if self.cursor is not cursor:
            self.ended, self.failure = None, {}
            await self._show_next(restarted(self.cursor, run.step))
        elif run.has_void:
            self.cut_off = self.cursor.checkpoint_id
        async with aclosing(run.parts(repeat_superstep=self.sink.recalls)) as parts:
            async for part in parts:
                await self.show(part)

    async def _was_ahead(self, live: Collection[tuple[str, int]]) -> bool:
        """Return True if the checkpoint of the place was never stored."""
        cursor = self.cursor
        if cursor.since in (None, cursor.checkpoint_id) or cursor.attempt in live:
            return False
        return await self.saver.read(self.thread_id, "", CheckpointId(cursor.checkpoint_id)) is None

    async def show(self, part: RawPart) -> None:
        """Show a part, unless it was shown. Its number is this reader's own: it goes on from the place's."""
        if part.cursor is not None:
            is_repeat = part.cursor.key <= self.cursor.key
            if is_repeat and (not self.sink.recalls or part.cursor.key <= self.recalled):
                return
            self.recalled = part.cursor.key
            if is_repeat:
                if part.mode in (*self.subscription.modes, ERROR) and self._shows(part):
                    await self._put(part)  # after a failure no sum goes on
                return
            self.cursor = part.cursor
        if part.mode == END:
            self.ended = part.data["status"]
            if self.ended == "failed":
                self.failure = {"type": part.data["error"], "message": part.data["message"]}
            return
        self.ended, self.failure = None, {}
        if part.mode == RESTARTED:
            cut_off, self.cut_off = self.cut_off, None
            if cut_off != self.cursor.checkpoint_id:
                return  # the reader was not there
        if part.mode == ERROR:
            self.subscription.failed = True
        if not self._shows(part):
            return
        await self._show_next(part)

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

    async def follow(self, running: Subscription) -> bool:
        """Join a run of this process, and show what it shows until it ends. Whether it has begun at all."""
        joined = Buffer(CAPACITY)
        joined.begun = running.begun
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
            async for part in joined:
                await self.show(part)
        finally:
            running.remove_sink(joined)
            joined.stop_reading()
        return True

    async def check_answers(self) -> None:
        """A run that asked has been answered since, and whoever answered was cut off: it is to be gone on with."""
        if self.ended == "interrupted":
            chain = await self.saver.read(self.thread_id)
            entries = [] if chain is None else [read_record(record, self.thread_id) for record in chain.records]
            if not any(key not in entry.answers for entry in entries for key, _ in entry.interrupts or ()):
                self.ended = None

    async def prepare_resume(self, writer: NamespaceWriter) -> bool:
        """The thread is ours: show what was stored meanwhile. Whether there is something to go on with."""
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
        """Whether the run has ended, and is not to be gone on with."""
        return self.ended not in (None, "drained", "cancelled")
