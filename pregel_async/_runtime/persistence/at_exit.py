"""Write namespaces with durability "exit": store everything when the run ends, also if it fails.

The graphs of a run refer to each other's checkpoints. So one object, `InnerGraphs`, holds the writers of all subgraphs
and stores them in an order in which no stored checkpoint refers to a missing one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from checkpoint_savers.deltas import Delta
from checkpoint_savers.errors import CheckpointError
from checkpoint_savers.records import CheckpointId, CheckpointRow, Commit, EventRow, TaskRecord

from .commit_writers import CommitWriter
from .lease import ThreadLease
from .loaded_namespace import LoadedNamespace


class InnerGraphs:
    """The unstored subgraph calls of one run: the last call of each namespace."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[LoadedNamespace, AtExitWriter]] = {}

    def add(self, call: LoadedNamespace) -> None:
        """Add a call. It replaces an earlier call in the same namespace."""
        writer = call.writer
        assert isinstance(writer, AtExitWriter)  # `nested` makes writers of the outer writer's class
        self._calls[call.ns] = call, writer

    def earlier(self, ns: str) -> Sequence[LoadedNamespace]:
        """Return the earlier call in a namespace, as a sequence of one; empty if none has made a checkpoint."""
        return [call for call, writer in self._calls.values() if call.ns == ns and writer.chain.tip]

    def drop_closed(self, outer: AtExitWriter) -> None:
        """Drop the subgraph calls of a superstep that has closed, except those of graphs that keep their state.

        Args:
            outer: the writer of the graph whose superstep has closed.
        """
        # A resume never returns to a closed superstep, so these states need not be stored at all. Calls are ordered
        # from the outermost in, so that a call's own subgraphs are dropped with it.
        ended: list[CommitWriter] = [outer]
        for call, writer in self._ordered():
            if not call.caller and any(each.writer in ended for each in call.outer):
                ended.append(writer)
                del self._calls[writer.ns]

    async def store(self, root: AtExitWriter, *, releases: bool) -> None:
        """Store the checkpoints that a resume or a later call can reach, before those that refer to them.

        Args:
            root: the root graph's writer.
            releases: nothing is left to run, and the last transaction releases the lease.
        """
        # 1. Kept states before the root's checkpoint, whose tips refer to them. 2. The root's checkpoint. 3. States of
        # interrupted subgraphs after it, as their metadata refer to it. When nothing is left to run, 3 is empty.
        calls = self._ordered()
        for call, writer in calls:
            if call.caller and releases:
                await writer.store()
            elif call.caller:
                await writer.store_closed(root.tip)
        left = [writer for call, writer in calls if call.is_needed and not releases]
        for writer in reversed(left):
            writer.mark_outer_due()
        await root.store(releases=releases)
        for writer in left:
            await writer.store()

    def _ordered(self) -> list[tuple[LoadedNamespace, AtExitWriter]]:
        """Return the calls, the outermost first."""
        return sorted(self._calls.values(), key=lambda each: len(each[0].parents))


class AtExitWriter(CommitWriter):
    """Write one namespace with durability "exit": one merged checkpoint when the run ends.

    Each new checkpoint is merged with the earlier ones, so that memory does not grow with their number. Only a fork's
    checkpoint stays separate: its task records refer to it.

    Attributes:
        due: the queue holds more than deferred rows, so the namespace has to be stored at the end.
        graphs: the run's subgraph calls; one object for all writers of a run.
    """

    def __init__(
        self,
        lease: ThreadLease,
        ns: str,
        outer: tuple[AtExitWriter, ...] = (),
        *,
        keeps_state: bool = False,
    ) -> None:
        super().__init__(lease, ns, outer)
        self.due = False
        self.graphs = InnerGraphs()
        self._keeps_state = keeps_state  # `commit` notes the tip in the lease, long before it is stored
        self._outer = outer
        for each in outer:
            self.graphs = each.graphs

    def add(self, delta: Delta, step: int, metadata: dict[str, Any]) -> CheckpointRow:
        if metadata["source"] == "fork":
            return super().add(delta, step, metadata)
        made = self.lease.ids.next(delta.ts)
        self.chain.defer(delta, checkpoint_id=made, step=step, metadata=metadata)
        self._drop_unreachable()
        # The row as it would be stored if the run ended now, without a frame: encoding one per superstep would cost
        # what "exit" saves. Its parent is not the previous checkpoint, which is merged into this one and never stored.
        parent = self.chain.deferred_parent
        return CheckpointRow(
            ns=self.ns, checkpoint_id=made, parent_id=parent, base_id=made, step=step, metadata=metadata, frame=b""
        )

    def _drop_unreachable(self) -> None:
        """Drop queued task records that refer to merged checkpoints, which are never stored."""
        reachable = {*self.chain.stored_checkpoints, *[row.parent_id for row in self._rows]}
        self._staged = {key: record for key, record in self._staged.items() if key[1] in reachable}
        self._clears = tuple([key for key in self._clears if key[1] in reachable])

    @property
    def has_queued(self) -> bool:
        return self.due or bool(self._staged or self.events)

    async def commit(self, now: float, *, ends: bool) -> None:
        self.due = True
        self.graphs.drop_closed(self)
        if self._keeps_state:
            self.lease.move_tip(self.ns, self.tip)
        if ends:
            await self._end(releases=True)

    async def record(self, record: TaskRecord, on_stored: Callable[[], None], events: Sequence[EventRow] = ()) -> None:
        assert not events  # with "exit", the event recorder makes the rows when the run ends
        self.stage(record)
        on_stored()

    async def record_outcomes(self, records: Sequence[TaskRecord]) -> None:
        await self.record_answers(records)
        await self._end(releases=False)

    async def record_answers(self, records: Sequence[TaskRecord]) -> None:
        for record in records:
            self.stage(record)

    async def flush_checkpoints(self) -> None:
        """Do nothing: `InnerGraphs.store` stores all namespaces in order when the run ends."""

    async def flush_events(self) -> None:
        """Store queued events by themselves. Readers ignore them until a later row closes their unit."""
        await self.lease.start(self._flush_events).wait_out()

    async def _flush_events(self) -> None:
        commit = Commit(rows=(), expected_head=None, expires_at=self.lease.expiry(), events=tuple(self.events))
        await self.lease.commit(commit, self._mark_events_stored)

    async def flush(self) -> None:
        await self._end(releases=False)

    async def close(self) -> None:
        await self._end(releases=False)

    async def _end(self, *, releases: bool) -> None:
        """Store everything of the run, if this is the root graph's writer.

        Args:
            releases: the last transaction releases the lease.
        """
        # A subgraph's end stores nothing: whether its state is needed at all is known when the root graph ends.
        if self._outer or self.discarded or self.lease.released:
            return
        self.lease.require_storage()
        await self.lease.start(partial(self.graphs.store, self, releases=releases)).wait_out()

    def mark_outer_due(self) -> None:
        """Make the outer graph's writer store its queue, too, if something is queued here.

        The checkpoints queued here refer to the outer graph's, which may be no more than the copy that began a fork.
        """
        if self.has_queued:
            for outer in self._outer:
                outer.due = True

    async def store_closed(self, root: CheckpointId) -> None:
        """Store the checkpoints made on earlier checkpoints of the root graph, before the root's own.

        The root's checkpoint carries the tips of kept states, which may refer to these.

        Args:
            root: the root graph's current checkpoint.
        """
        deferred = self.chain.deferred
        if deferred and deferred[0].root != root:
            stays_open = deferred[-1].root == root
            self._rows += self.chain.take_deferred(all_closed=not stays_open)
            if stays_open:
                closed = self._rows[:-1]
                commit = Commit(rows=closed, expected_head=self.head, expires_at=self.lease.expiry())
                await self._send(commit, self._mark_stored)
            else:
                await self.store()

    async def store(self, *, releases: bool = False) -> None:
        """Store everything queued, in one transaction."""
        if self.has_queued:
            self._rows += self.chain.take_deferred()
            await self._send(self._build_commit(releases=releases), self._mark_all_stored)

    def _mark_all_stored(self, commit: Commit) -> None:
        self._mark_stored(commit)
        self.due = False

    async def _send(self, commit: Commit, stored: Callable[[Commit], None]) -> None:
        try:
            await self.lease.commit(commit, stored)
        except CheckpointError as error:
            self._explain(error, commit)
            raise
