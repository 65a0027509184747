"""Write namespaces with durability "exit": store everything when the run ends, also if it fails.

The graphs of a run refer to each other's checkpoints, and task records to what their tasks did in subgraphs. So the end
of a run is one transaction: `InnerGraphs` holds the writers of all subgraphs, and the root graph's writer commits what
they have queued together with its own queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from checkpoint_savers.deltas import Delta
from checkpoint_savers.errors import CheckpointError
from checkpoint_savers.records import CheckpointId, CheckpointRow, Commit, EventRow, NamespaceChange, TaskRecord

from ...errors import ConfigError
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

    def reachable(self, *, ended: bool) -> Sequence[AtExitWriter]:
        """Return the writers of the calls that a resume or a later call can reach, the innermost first.

        Args:
            ended: nothing is left to run, so that only kept states can be reached.
        """
        return [writer for call, writer in reversed(self._ordered()) if (call.caller if ended else call.is_needed)]

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

    Raises:
        ConfigError: this is a subgraph, and the saver cannot store several namespaces in one transaction.
    """

    def __init__(
        self,
        lease: ThreadLease,
        ns: str,
        outer: tuple[AtExitWriter, ...] = (),
        *,
        keeps_state: bool = False,
    ) -> None:
        if outer and not lease.saver.commits_others:
            raise ConfigError(
                f"durability 'exit' stores all graphs of a run in one transaction, which {type(lease.saver).__name__} "
                "does not offer. Pass 'sync' or 'async' for graphs with subgraphs, or have the saver store "
                "Commit.others, and set commits_others = True"
            )
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

    async def commit(self, *, ends: bool) -> None:
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
        """Do nothing: one transaction stores all graphs' checkpoints when the run ends."""

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
        await self.lease.start(partial(self._store_all, releases=releases)).wait_out()

    async def _store_all(self, *, releases: bool) -> None:
        """Store what all graphs of the run have queued, in one transaction."""
        # If the process died between two transactions, a task's record and the kept states that the task has changed
        # would not agree: with the record alone the call is lost, as the task does not run again; with the state alone
        # the call counts twice.
        reachable = self.graphs.reachable(ended=releases)
        for writer in reachable:
            writer.mark_outer_due()
        inner = [writer for writer in reachable if writer.has_queued]
        if not inner and not self.has_queued:
            return
        root = self.chain.tip
        queued = [(writer, writer.take_queued(root)) for writer in inner]
        queued.append((self, self.take_queued(root, releases=releases)))

        def mark_stored(commit: Commit) -> None:
            for writer, part in queued:
                writer.mark_all_stored(part)

        try:
            await self.lease.commit(_joined([part for _, part in queued]), mark_stored)
        except CheckpointError as error:
            for writer, part in queued:
                writer.explain(error, part)
            raise

    def mark_outer_due(self) -> None:
        """Make the outer graph's writer store its queue, too, if something is queued here.

        The checkpoints queued here refer to the outer graph's, which may be no more than the copy that began a fork.
        """
        if self.has_queued:
            for outer in self._outer:
                outer.due = True

    def take_queued(self, root: CheckpointId | None, *, releases: bool = False) -> Commit:
        """Return a commit of everything queued. Call `mark_all_stored` with it when it is stored.

        Args:
            root: the root graph's current checkpoint.
            releases: the commit releases the lease.
        """
        deferred = self.chain.deferred
        # What a kept graph did before the root's open superstep stays a checkpoint of its own: the root's checkpoint
        # carries it as the tip, from which a fork of the open superstep continues.
        stays_open = bool(deferred) and deferred[-1].root == root
        self._rows += self.chain.take_deferred(all_closed=not stays_open)
        return self._build_commit(releases=releases)

    def mark_all_stored(self, commit: Commit) -> None:
        """Remove a stored commit's contents from the queue, and notify the listeners.

        Args:
            commit: what `take_queued` returned.
        """
        self._mark_stored(commit)
        self.due = False


def _joined(parts: Sequence[Commit]) -> Commit:
    """Return one commit of several, each of another namespace; the last is the root graph's."""
    return replace(
        parts[-1],
        others=tuple(
            [NamespaceChange(rows=each.rows, expected_head=each.expected_head, head=each.head) for each in parts[:-1]]
        ),
        records=tuple([record for each in parts for record in each.records]),
        clears=tuple([key for each in parts for key in each.clears]),
        events=tuple([event for each in parts for event in each.events]),
    )
