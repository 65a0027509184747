"""Coming back to a run: what was missed, and then what is shown live.

1. The run goes on in this process and event loop: its reader joins it. What is stored comes first, then what the run
   holds, then what it shows.
2. It goes on elsewhere: what it stores is followed as it is stored, until its thread is given up.
3. It goes on nowhere. If it came to rest (it is done, it asks, it failed) that was told among its events. If not, it
   was cut off: it is resumed, and the superstep that was cut off starts anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing
from threading import get_ident
from typing import Protocol

import anyio
import msgspec
from msgspec.structs import replace

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.codec import Codec
from checkpoint_savers.entries import read_record
from checkpoint_savers.errors import ThreadBusyError
from checkpoint_savers.records import CheckpointId

from .._core.superstep import plan
from ..errors import RecordedFailureError, RunCancelledError
from ..types import RunStatus
from .feed import Feed
from .kept import read_kept, restarted
from .modes import MODES
from .modes.mode import Coerce
from .part import END, ERROR, RESTARTED, Cursor, Part
from .pipe import CAPACITY, Pipe
from .thread import Thread

LAST = 10**8 - 1
"""Behind every position of an attempt."""

POLL = 0.25
"""Seconds between two looks at what a run elsewhere has stored."""


class Live:
    """The runs of this process that can be joined, by thread."""

    def __init__(self) -> None:
        self._feeds: dict[tuple[int, str], Feed] = {}

    def add(self, thread_id: str, feed: Feed) -> None:
        self._feeds[get_ident(), thread_id] = feed

    def remove(self, thread_id: str, feed: Feed, failure: BaseException | None) -> None:
        """The run is over: those who have joined it are told."""
        key = (get_ident(), thread_id)
        if self._feeds.get(key) is feed:
            del self._feeds[key]  # else the thread was given up with the last commit, and another run has it by now
        for sink in feed.sinks[1:]:
            told = failure if failure is None or isinstance(failure, Exception) else RunCancelledError(thread_id)
            sink.end(told)

    def find(self, thread_id: str) -> Feed | None:
        """The feed of a run on this event loop."""
        return self._feeds.get((get_ident(), thread_id))


class Resume(Protocol):
    """Goes on with a thread, if there is something to go on with."""

    def __call__(self, feed: Feed, begun: Callable[[Thread], Awaitable[bool]]) -> Awaitable[object]: ...


async def rejoin(
    sink: Pipe,
    feed: Feed,
    after: Cursor,
    saver: BaseCheckpointSaver,
    thread_id: str,
    codec: Codec,
    live: Live,
    resume: Resume,
    *,
    coerce: Callable[[Part], Coerce | None],
    waits: bool,
) -> None:
    """Show a reader all that comes after a place.

    Args:
        feed: of the reader's call; it goes to `sink`.
        coerce: what makes the schema's own object of a part that was stored.
        waits: for a run that goes on elsewhere, following it; else raise `ThreadBusyError`.
    """
    back = _Return(sink, feed, after, saver, thread_id, codec, coerce)
    while True:
        running = live.find(thread_id)
        if running is not None and running.keeper is not None:
            if await back.follow(running):
                feed.status = running.status
                return
            continue  # it was refused: its failure is its caller's affair
        await back.catch_up()
        await back.see_answers()
        if back.at_rest:
            break
        try:
            await resume(feed, back.restart)
        except ThreadBusyError as error:
            if error.lost or not waits:
                raise
        else:
            if not back.at_rest:
                return
            break  # it came to rest just before its thread was ours
        await anyio.sleep(POLL)
    sink.begin()  # it had begun, though perhaps nothing is shown but why it has failed
    feed.status = back.ended
    if back.failure is not None:
        feed.failed = True  # it was told when it happened
        raise RecordedFailureError(**back.failure)


class _Return(msgspec.Struct):
    """A reader on the way back.

    Attributes:
        at: the place that it has got to.
        ended: how the run has ended, if that was the last event; None else.
        failure: what the run has failed with.
        void: what says that the attempt is void that `at` is in.
        recalled: the last of that attempt that was shown again.
    """

    sink: Pipe
    feed: Feed
    at: Cursor
    saver: BaseCheckpointSaver
    thread_id: str
    codec: Codec
    coerce: Callable[[Part], Coerce | None]
    ended: RunStatus | None = None
    failure: dict[str, str] | None = None
    void: Part | None = None
    recalled: tuple[str, int, int] = ("", 0, 0)

    def __post_init__(self) -> None:
        self.recalled = self.at.checkpoint_id, self.at.epoch, 0  # what is shown again begins with that attempt

    async def catch_up(self, live: Collection[tuple[str, int]] = ()) -> None:
        """Show what is stored."""
        self.void = None  # an attempt that was open at the last look may be committed by now
        place = CheckpointId(self.at.checkpoint_id)
        if self.at.since is not None and await self.saver.read(self.thread_id, "", place) is None:
            if (self.at.checkpoint_id, self.at.epoch) in live:
                return  # its checkpoint is about to be stored: what comes after it is held
            self.at = Cursor(self.at.since, self.at.epoch, LAST, self.at.seq)  # it never was
        parts = read_kept(self.saver, self.thread_id, self.at, self.codec, live=live, again=self.sink.recalls)
        async with aclosing(parts):
            async for part in parts:
                await self.show(part)

    async def show(self, part: Part) -> None:
        """Show a part, unless it was shown. Its number is this reader's own: it goes on from the place's."""
        if part.cursor is not None:
            again = part.cursor.place <= self.at.place
            if again and (not self.sink.recalls or part.cursor.place <= self.recalled):
                return
            self.recalled = part.cursor.place
            if again:
                if part.mode in (*self.feed.modes, ERROR) and self._shows(part):
                    await self._put(part)  # after a failure no sum goes on
                return
            void, self.void = self.void, None
            if (part.cursor.checkpoint_id, part.cursor.epoch) == (self.at.checkpoint_id, self.at.epoch):
                self.void = void
            elif void is not None and part.mode != RESTARTED:
                await self._show_next(void)
            self.at = part.cursor
        elif part.mode == RESTARTED:
            self.void = part
            return
        if part.mode == END:
            self.ended = part.data["status"]
            if self.ended == "failed":
                self.failure = {"type": part.data["error"], "message": part.data["message"]}
            return
        self.ended = self.failure = None
        if part.mode == ERROR:
            self.feed.failed = True
        if not self._shows(part):
            return
        await self._show_next(part)

    async def _show_next(self, part: Part) -> None:
        part.seq = self.feed.number = self.feed.number + 1
        part.cursor = self.feed.last = replace(self.at, seq=part.seq)
        await self._put(part)

    def _shows(self, part: Part) -> bool:
        return (part.mode in self.feed.modes or part.mode not in MODES) and (self.feed.subgraphs or not part.ns)

    async def _put(self, part: Part) -> None:
        if part.uncoerced:
            part.coerce = self.coerce(part)
        while self.sink.blocks(part.mode):
            await self.sink.room()
        self.sink.add(part)

    async def follow(self, running: Feed) -> bool:
        """Join a run of this process, and show what it shows until it ends. Whether it has begun at all."""
        beside = Pipe(CAPACITY)
        beside.begun = running.begun
        running.sinks.append(beside)
        try:
            while not beside.shows:
                await beside.filled(or_begun=True)
            if running.keeper is None or not (beside.begun or beside.tells):
                return False
            self.sink.introduce(running.run_id, self.at)
            self.sink.begin()
            attempts, held = running.keeper.attempts(), running.keeper.held(running.last)
            await self.catch_up(attempts)
            for part in held:
                await self.show(part)
            async for part in beside:
                await self.show(part)
        finally:
            running.leave(beside)
            beside.leave()
        return True

    async def see_answers(self) -> None:
        """A run that asked has been answered since, and whoever answered was cut off: it is to be gone on with."""
        if self.ended == "interrupted":
            chain = await self.saver.read(self.thread_id)
            entries = [] if chain is None else [read_record(record, self.thread_id) for record in chain.records]
            if not any(key not in entry.answers for entry in entries for key, _ in entry.interrupts or ()):
                self.ended = None

    async def restart(self, thread: Thread) -> bool:
        """The thread is ours: show what was stored meanwhile. Whether there is something to go on with."""
        await self.catch_up()
        await self.see_answers()
        board = thread.board
        if self.at_rest or board is None or not plan(thread.program, board, ("", "")) or thread.questions():
            return False
        self.feed.committed = board.step
        if self.ended != "drained":  # else it stopped, between two supersteps
            await self.feed.put(restarted(board.step + 1, thread.tip or ""))
        return True

    @property
    def at_rest(self) -> bool:
        """Whether the run has ended, and is not to be gone on with."""
        return self.ended not in (None, "drained", "cancelled")
