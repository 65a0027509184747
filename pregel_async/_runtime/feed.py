"""A feed: what one call asked to be shown of its run. It numbers the parts and hands them to whoever reads.

Reader and run share a pipe, which may make the run wait. Others may join a feed later, with pipes of their own (see
`rejoin`), and the first may leave it. Whatever happens, all of them get the parts in one order.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from msgspec.structs import replace

from .._core.isolation import isolate, own
from ..errors import StreamFullError
from ..types import RunStatus
from .described import described
from .kept import Keeper
from .part import END, ERROR, Cursor, Part


class Sink(Protocol):
    """Where parts go."""

    def blocks(self, mode: str) -> bool:
        """Whether whoever brings a part of this mode has to wait now."""
        ...

    async def room(self) -> None:
        """Wait for a sign that there is room; look again then."""
        ...

    def charge(self, part: Part) -> None:
        """Let code that cannot wait add a part all the same. Raises `StreamFullError` when that goes too far."""
        ...

    @property
    def is_awaited(self) -> bool:
        """Whether the reader has been waiting for the one part that is there."""
        ...

    def add(self, part: Part) -> None:
        """Take a part at once."""
        ...

    def end(self, failure: BaseException | None = None) -> None:
        """Nothing comes any more."""
        ...

    def introduce(self, run_id: str, start: Cursor | None) -> None:
        """This is the run that is shown, and where its events begin."""
        ...

    def begin(self) -> None:
        """The run has its thread and its input."""
        ...


class Feed:
    """What one call asked to be shown.

    Attributes:
        modes: their names.
        channels: the channels to show of the graph that was called; None for those that it shows by itself.
        subgraphs: the graphs inside are shown too.
        tells: readers are told how the run fails, and what is void, in parts of their own.
        keeps: the events are to be kept with the run's commits.
        sinks: who reads.
        keeper: keeps the events; None when they are not kept, or the run has not begun.
        last: the place of the last event that was shown.
        committed: the superstep of the called graph that is stored; None when there is none.
        fresh: the run is in a task of its own.
        returns: its reader has been here before, and knows the state that the run goes on from.
        number: of the last part.
        depth: how many graphs are around the one that was called.
        failed: readers have been told that the run fails.
        status: how the run has ended; None before that.
        run_id: of the run; "" before it has begun.
    """

    def __init__(
        self,
        modes: Collection[str],
        sink: Sink,
        *,
        channels: str | tuple[str, ...] | None = None,
        subgraphs: bool = False,
        tells: bool = False,
        keeps: bool = False,
        fresh: bool = False,
        returns: bool = False,
        number: int = 0,
    ) -> None:
        self.modes = modes
        self.channels = channels
        self.subgraphs = subgraphs
        self.tells = tells
        self.keeps = keeps
        self.fresh = fresh
        self.returns = returns
        self.sinks: list[Sink] = [sink]
        self.keeper: Keeper | None = None
        self.last: Cursor | None = None
        self.committed: int | None = None
        self.number = number
        self.depth = 0
        self.failed = False
        self.status: RunStatus | None = None
        self.run_id = ""

    def introduce(self, run_id: str) -> None:
        """Tell readers which run this is."""
        self.run_id = run_id
        place = None if self.keeper is None else replace(self.keeper.place, seq=self.number)
        for sink in self.sinks:
            sink.introduce(run_id, place)

    def begin(self) -> None:
        """Tell readers that the run has begun."""
        for sink in self.sinks:
            sink.begin()

    async def put(self, part: Part) -> None:
        """Show a part, once everybody who is to be waited for has room for it."""
        waits = True
        while waits:
            waits = False
            for sink in self.sinks:
                if sink.blocks(part.mode):
                    waits = True
                    await sink.room()
                    break
        self._show(part)
        if self.keeper is not None and self.keeper.is_heavy:
            await self.keeper.spill()

    def burst(self, part: Part) -> bool:
        """Show a part at once: its writer cannot wait. Whether it has to before it goes on.

        Raises:
            StreamFullError: a reader is so far behind that this would never end.
        """
        if self.keeper is not None and self.keeper.is_overfull:
            raise StreamFullError(part.mode, self.number)
        for sink in self.sinks:
            sink.charge(part)
        self._show(part)
        return self._lags()

    async def settle(self) -> None:
        """Wait until nobody lags behind what was shown at once."""
        while self._lags():
            for sink in self.sinks:
                if sink.blocks("custom") or sink.blocks("messages"):
                    await sink.room()
                    break
            if self.keeper is not None and self.keeper.is_heavy:
                await self.keeper.spill()

    def _lags(self) -> bool:
        if self.keeper is not None and self.keeper.is_heavy:
            return True
        return any(sink.blocks(mode) for sink in self.sinks for mode in ("custom", "messages") if mode in self.modes)

    def tell(self, mode: str, data: object, step: int) -> Part:
        """A part that is no view of an event of the graph's, but about the stream itself."""
        return Part(mode=mode, ns=(), data=data, step=step)

    def _show(self, part: Part) -> None:
        if part.seq == 0:
            self.label(part)
        if part.mode == END:
            return
        part.committed = self.committed
        if part.cursor is not None:
            self.last = part.cursor
        elif self.last is not None:
            part.cursor = replace(self.last, seq=part.seq)  # it is no event: who comes back goes on after the last
        for sink in self.sinks:
            # Each reader has its own: it may change what it gets in place.
            sink.add(part if sink is self.sinks[0] else replace(part, data=isolate(own(part.data))))

    def label(self, part: Part) -> None:
        """Give a part its number, and its place among the events that are kept."""
        if part.mode == END:
            part.seq = -1
            self.ended = part.data["status"]
        else:
            self.number += 1
            part.seq = self.number
        if self.keeper is not None and part.cursor is None:
            self.keeper.keep(part)

    def leave(self, sink: Sink) -> None:
        """Somebody reads no more."""
        if sink in self.sinks:
            self.sinks.remove(sink)

    def fail(self, error: BaseException, step: int) -> Part:
        """The part that tells why the run fails."""
        kind, message = described(error)
        return self.tell(ERROR, {"error": kind, "message": message}, step)
