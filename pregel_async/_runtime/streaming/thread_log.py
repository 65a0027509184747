"""The log of a thread whose runs a service executes: the parts of all its runs, in the order in which they ran.

Each run begins with a part `run_started`, made of a stored event, and ends with a part `run_ended`, made of the run's
row: the row's last change is in the transaction that ends the run. Events are read in the order of their keys. That is
the order in which they were published, as long as no run begins at an older checkpoint; then the reader continues at
the beginning of that run, which its row names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.codec import Codec

from ...errors import InvalidCursorError
from .buffer import Buffer
from .event_recorder import MAX_POSITION
from .event_window import EventWindow
from .modes.mode import Coerce
from .parts import RUN_ENDED, RUN_STARTED, Cursor, RawPart, number_of
from .replay import ReconnectingReader
from .subscription import Subscription


class LogRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a thread.

    Attributes:
        run_id: its id; "" for `NO_RUN`.
        first: the cursor before its first event.
        last: a cursor after its last event, once it is over.
        is_over: it has ended.
        is_void: it was rolled back: its checkpoints and events are deleted.
        ending: the data of `run_ended`.
        ended_at: when it ended, in milliseconds since the epoch; 0 while it is open.
    """

    run_id: str
    first: Cursor
    last: Cursor
    is_over: bool
    is_void: bool
    ending: dict[str, object]
    ended_at: int


NO_RUN = LogRun(
    run_id="", first=Cursor("", 0, 0), last=Cursor("", 0, 0), is_over=False, is_void=True, ending={}, ended_at=0
)
"""No run: between two runs of a thread, and if a run is looked for and not found."""


class ThreadRuns(Protocol):
    """The runs of a thread."""

    async def wait(self) -> None:
        """Wait until the thread may have changed. The first call returns at once."""
        ...

    async def is_idle(self) -> bool:
        """Return True if the log ends after the runs that there are: all are over, and none is awaited."""
        ...

    async def get(self, run_id: str) -> LogRun:
        """Return a run; `NO_RUN` if there is none in this thread with this id, or if it has not begun."""
        ...

    async def at(self, epoch: int) -> LogRun:
        """Return the run that had the thread under a lease; `NO_RUN` for none."""
        ...

    async def after(self, epoch: int) -> LogRun:
        """Return the run that began first after a lease; `NO_RUN` for none."""
        ...

    async def codec(self, run_id: str) -> tuple[Codec, Callable[[RawPart], Coerce | None]]:
        """Return what decodes the events of a run, and converts their states. See `replay.rejoin`."""
        ...

    def joinable(self) -> Sequence[Subscription]:
        """Return the run of the thread in this process, if there is one."""
        ...


async def follow_thread(
    sink: Buffer,
    subscription: Subscription,
    after: Cursor,
    saver: BaseCheckpointSaver,
    thread_id: str,
    runs: ThreadRuns,
    codec: Codec,
) -> None:
    """Publish the log of a thread after a cursor, and what is added to it. This runs no code of a graph.

    Args:
        sink, subscription, after, saver, thread_id: as for `replay.rejoin`.
        runs: the runs of the thread.
        codec: any graph's.
    """
    reader = _LogReader(
        sink,
        subscription,
        after,
        saver,
        thread_id,
        codec,
        lambda _: None,
        EventWindow(saver, thread_id),
        early=True,
        runs=runs,
        number=number_of(after.epoch, 0),
    )
    sink.set_start_cursor(str(after))
    sink.begin()
    if after.epoch and after.position != MAX_POSITION:
        await reader.continue_run(await runs.at(after.epoch))
    while True:
        await runs.wait()
        # Before the events are read: those of a run that has ended by now are all stored.
        is_idle = await runs.is_idle()
        while await reader.look():
            pass
        if is_idle and reader.run is NO_RUN:
            return


class _LogReader(ReconnectingReader, kw_only=True):
    """A reader of a thread's log.

    Attributes:
        runs: the runs of the thread.
        number: the number of the last event.
        run: the run whose events are read; `NO_RUN` between two runs.
    """

    runs: ThreadRuns
    number: int
    run: LogRun = NO_RUN

    async def look(self) -> bool:
        """Publish what is stored of a run, or what a run of this process publishes. Return True to look again."""
        run = await self._current()
        try:
            if run.is_over:
                if not run.is_void:
                    await self.show_stored(up_to=run.last.key, over=True)
                await self._end_run(run)
                return True
            for running in self.runs.joinable():
                if not running.failed and await self.runs.get(running.run_id) is not NO_RUN:
                    return await self.follow(running, until_failure=True)
            before = self.run
            await self.show_stored()
            return self.run is not before
        except InvalidCursorError:
            return await self._change_branch()

    async def _current(self) -> LogRun:
        """Return the run whose events are read as it is now."""
        return await self.runs.get(self.run.run_id) if self.run is not NO_RUN else NO_RUN

    async def _change_branch(self) -> bool:
        """Continue with the run after which the cursor is on no branch any more. Return False if there is none yet."""
        run = await self._current()
        if run is not NO_RUN:
            if not run.is_over:
                return False  # it is being rolled back
            await self._end_run(run)
        following = await self.runs.after(self.cursor.epoch)
        if following is NO_RUN:
            return False
        self.cursor = following.first
        await self._start_run(following)
        return True

    async def continue_run(self, run: LogRun) -> None:
        """Continue with the events of a run whose beginning the reader has received."""
        if run is not NO_RUN:
            self.codec, self.coerce = await self.runs.codec(run.run_id)
        self.run = run

    async def begin_run(self, part: RawPart) -> bool:
        run = await self.runs.get(part.data)
        if run.is_void or run.run_id == self.run.run_id:
            return False
        before, marked = await self._current(), self.cursor
        if before is not NO_RUN:
            await self._end_run(before)
            self.cursor = marked
        await self._start_run(run, part.at)
        return True

    async def _start_run(self, run: LogRun, at: int = 0) -> None:
        await self.continue_run(run)
        number = number_of(self.cursor.epoch, 0)
        await self._show_next(
            RawPart(mode=RUN_STARTED, ns=(), data={"run_id": run.run_id}, step=0, at=at, number=number)
        )

    async def _end_run(self, run: LogRun) -> None:
        last = run.last if run.is_over else self.cursor
        # The checkpoints of a run that was rolled back are gone. The place after its last event is after its first
        # checkpoint then, which is that of the run before it.
        self.cursor = Cursor(run.first.checkpoint_id, last.epoch, MAX_POSITION) if run.is_void else last
        number = number_of(last.epoch, MAX_POSITION)
        await self._show_next(RawPart(mode=RUN_ENDED, ns=(), data=run.ending, step=0, at=run.ended_at, number=number))
        self.run = NO_RUN

    async def follow(self, running: Subscription, *, until_failure: bool = False) -> bool:
        if self.run.run_id != running.run_id:
            await self.show_stored()  # with the event that says that the run has begun
        if self.run.run_id != running.run_id:
            return False
        if running not in self.runs.joinable():
            return True  # it has ended meanwhile, and ends no buffer that joins it now
        return await ReconnectingReader.follow(self, running, until_failure=until_failure)

    async def _show_next(self, part: RawPart) -> None:
        self.number = part.number = part.number or self.number
        part.run_id = self.run.run_id
        part.cursor = self.subscription.last = replace(self.cursor, seq=0, since=None)
        part.seq = 1
        await self._put(part)

    def _shows(self, part: RawPart) -> bool:
        # Between two runs, there may be events of a graph that was called directly.
        return self.run is not NO_RUN and super()._shows(part)
