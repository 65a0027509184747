"""With durability "exit": everything that a run has made is stored when the run ends, however it ends.

The graphs of a run refer to each other's checkpoints, so that one object knows all of them, and stores them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from checkpoint_savers.deltas import Delta
from checkpoint_savers.errors import CheckpointError
from checkpoint_savers.records import CheckpointId, CheckpointRow, Commit, EventRow, TaskId, TaskRecord

from .commit_writers import CommitWriter
from .lease import ThreadLease
from .start import Start


class InnerGraph(Protocol):
    """One call of a graph that a node runs."""

    @property
    def parents(self) -> Mapping[str, str]:
        """Namespace -> checkpoint, of the graphs around it."""
        ...

    @property
    def caller(self) -> TaskId:
        """The task that runs it, if its state is kept from call to call; else empty."""
        ...

    @property
    def around(self) -> Sequence[object]:
        """The call of the graph around it."""
        ...

    @property
    def is_needed(self) -> bool:
        """Whether a resume would come here."""
        ...

    def so_far(self) -> Start:
        """Where it has got to."""
        ...


class InnerGraphs:
    """The graphs that nodes of a run have run, of which nothing is stored yet, by namespace: of each the last call."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[InnerGraph, AtExitWriter]] = {}

    def add(self, ns: str, call: InnerGraph, out: AtExitWriter) -> None:
        """Note a call, in the place of an earlier one in this namespace."""
        self._calls[ns] = call, out

    def earlier(self, ns: str) -> Sequence[Start]:
        """Where an earlier call in a namespace has got to; empty if none has made a checkpoint."""
        return [call.so_far() for call, out in self._calls.values() if out.ns == ns and out.chain.tip]

    def drop_closed(self, outer: object) -> None:
        """A superstep of a graph is over: so are the graphs that its nodes ran, but for those that keep their state."""
        over = [outer]
        for call, out in self._ordered():
            if not call.caller and any(each in over for each in call.around):
                over.append(call)
                del self._calls[out.ns]

    async def store(self, root: AtExitWriter, *, releases: bool) -> None:
        """Store all that the run has made and is of use, in the order in which one refers to another."""
        calls = self._ordered()
        for call, out in calls:
            if call.caller and releases:
                await out.store()
            elif call.caller:
                await out.store_closed(root.tip)
        left = [out for call, out in calls if call.is_needed and not releases]
        for out in reversed(left):
            out.call_up()
        await root.store(releases=releases)
        for out in left:
            await out.store()

    def _ordered(self) -> list[tuple[InnerGraph, AtExitWriter]]:
        """From the outside to the inside."""
        return sorted(self._calls.values(), key=lambda each: len(each[0].parents))


class AtExitWriter(CommitWriter):
    """What one namespace has to store at the end of the run.

    Checkpoints are merged as they come, so that memory does not grow with their number. A fork's is kept: its records
    are found by it.

    Attributes:
        due: not only checkpoints that wait for another.
        graphs: of the run, inside nodes.
    """

    def __init__(
        self,
        lease: ThreadLease,
        ns: str,
        around: tuple[AtExitWriter, ...] = (),
        *,
        keeps: bool = False,
    ) -> None:
        super().__init__(lease, ns, around)
        self.due = False
        self.graphs = InnerGraphs()
        self._keeps = keeps  # the lease learns of each superstep before that is stored
        self._around = around
        for outer in around:
            self.graphs = outer.graphs

    def add(self, entry: Delta, step: int, metadata: dict[str, Any]) -> CheckpointRow:
        if metadata["source"] == "fork":
            return super().add(entry, step, metadata)
        made = self.lease.ids.next(entry.ts)
        self.chain.defer(entry, checkpoint_id=made, step=step, metadata=metadata)
        self._drop_void()
        # As it would be stored if the run ended here, but for what it holds: that is made when it is. Those that were
        # put off before it are merged with it and never exist, so that none of them is its parent.
        parent = self.chain.deferred_parent
        return CheckpointRow(
            ns=self.ns, checkpoint_id=made, parent_id=parent, base_id=made, step=step, metadata=metadata, frame=b""
        )

    def _drop_void(self) -> None:
        """Drop what is recorded on checkpoints that are never stored."""
        stands = {*self.chain.stored_checkpoints, *[row.parent_id for row in self._rows]}
        self._staged = {key: record for key, record in self._staged.items() if key[1] in stands}
        self._clears = [key for key in self._clears if key[1] in stands]

    @property
    def waits(self) -> bool:
        return self.due or bool(self._staged or self.events)

    async def commit(self, *, ends: bool) -> None:
        self.due = True
        if self._keeps:
            self.lease.move_tip(self.ns, self.tip)
        if ends:
            await self._end(releases=True)

    async def record(self, record: TaskRecord, noted: Callable[[], None], events: Sequence[EventRow] = ()) -> None:
        assert not events  # rows of events are made at the end
        self.stage(record)
        noted()

    async def put(self, records: Sequence[TaskRecord]) -> None:
        await self.answer(records)
        await self._end(releases=False)

    async def answer(self, records: Sequence[TaskRecord]) -> None:
        for record in records:
            self.stage(record)

    async def flush(self) -> None:
        """Nothing is stored before the run ends, and then in order."""

    async def spill(self) -> None:
        """Events that are too many to be held are stored by themselves, where they are void until the run ends."""
        await self.lease.start(self._spill).wait_out()

    async def _spill(self) -> None:
        commit = Commit(rows=(), expected_head=None, expires_at=self.lease.expiry(), events=tuple(self.events))
        await self.lease.commit(commit, self._note_events)

    async def rest(self) -> None:
        await self._end(releases=False)

    async def finish(self) -> None:
        await self._end(releases=False)

    async def _end(self, *, releases: bool) -> None:
        """Store what the whole run has to store, if this is the outermost graph's."""
        if self._around or self.forgotten or self.lease.released:
            return
        self.lease.require_storage()
        await self.lease.start(partial(self.graphs.store, self, releases=releases)).wait_out()

    def call_up(self) -> None:
        """If something is to be stored here, the graph around is to be stored first, be it no more than the fork that
        this was made on."""
        if self.waits:
            for outer in self._around:
                outer.due = True

    async def store_closed(self, root: CheckpointId) -> None:
        """Store what was made on earlier checkpoints of the root graph, before the root's own: its state may refer to
        this one's.

        Args:
            root: its current checkpoint.
        """
        put = self.chain.deferred
        if put and put[0].root != root:
            stays_open = put[-1].root == root
            self._rows += self.chain.take_deferred(all_closed=not stays_open)
            if stays_open:
                closed = tuple(self._rows[:-1])
                commit = Commit(rows=closed, expected_head=self.head, expires_at=self.lease.expiry())
                await self._send(commit, self._note)
            else:
                await self.store()

    async def store(self, *, releases: bool = False) -> None:
        """Store all that waits, in one transaction."""
        if self.waits:
            self._rows += self.chain.take_deferred()
            await self._send(self._gathered(releases=releases), self._note_all)

    def _note_all(self, commit: Commit) -> None:
        self._note(commit)
        self.due = False

    async def _send(self, commit: Commit, stored: Callable[[Commit], None]) -> None:
        try:
            await self.lease.commit(commit, stored)
        except CheckpointError as error:
            self._explain(error, commit)
            raise
