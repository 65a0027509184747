"""Find the checkpoint from which a graph's run continues, and load it.

The metadata of a subgraph's checkpoint (`parents`) names the checkpoints of the outer graphs on which it was made. So a
subgraph that was interrupted in its parent's open superstep is found by that superstep's checkpoint. A fork of the
parent has another checkpoint and does not find it: a stored state belongs to its branch. A *kept state*, of a subgraph
that keeps its state from call to call, is also found by its tip, which the root's checkpoints name.
"""

from __future__ import annotations

from collections.abc import Sequence

from checkpoint_savers.chain import ChainReader, ChainWriter
from checkpoint_savers.codec import Codec
from checkpoint_savers.records import CALLER, MADE_IN, Chain, CheckpointId
from checkpoint_savers.saver_port import PAGE

from ..._core.board import Board
from ..._core.program import Program
from .at_exit import AtExitWriter
from .call_site import CallSite
from .commit_writers import CommitWriter
from .encoder import Encoder
from .lease import ThreadLease
from .namespaces import has_child, ids_in, made_on, parents_of, was_made_on
from .overlapped import OverlappedWriter
from .records import AMENDED, amend_again
from .restore import restore
from .start_point import StartPoint
from .task_records import TaskRecords


class NamespaceLoader:
    """Loads one namespace for one graph."""

    def __init__(self, writer: CommitWriter, codec: Codec, program: Program) -> None:
        self._writer = writer
        self._lease: ThreadLease = writer.lease
        self._codec = codec
        self._program = program

    async def read(self, at: CheckpointId | None = None) -> Sequence[Chain]:
        """Return the rows up to a checkpoint, or up to the head, as a sequence of one; empty if nothing is stored."""
        chain = await self._lease.saver.read(self._lease.thread_id, self._writer.ns, at)
        return () if chain is None else (chain,)

    def begin_empty(self, site: CallSite) -> StartPoint:
        """Return the start point of an empty namespace."""
        encoder = Encoder(self._program, self._codec)
        records = TaskRecords(self._program, encoder, self._writer)
        return StartPoint(site=site, writer=self._writer, encoder=encoder, records=records, scope=self._lease.scope)

    async def load(self, chain: Chain, site: CallSite, *, fork: bool = False) -> StartPoint:
        """Return the start point at a stored checkpoint, the last one of `chain`.

        Args:
            chain: the checkpoint's rows and task records.
            site: where the graph is called from.
            fork: continue on a new branch, even if the checkpoint is a tip.
        """
        writer, lease, program, row = self._writer, self._lease, self._program, chain.rows[-1]
        at, thread_id, start = row.checkpoint_id, lease.thread_id, self.begin_empty(site)
        writer.head = chain.head
        reader = ChainReader(thread_id, writer.ns, chain.rows)
        state = reader.state(at)
        board = restore(program, state, row.step, self._codec, thread_id=thread_id)
        start.encoder.remember(board, state)
        writer.chain, writer.stored, writer.stored_step = ChainWriter.resume(reader, at), at, row.step
        # A checkpoint that has a child is run again, which needs a new branch. The tip of another branch is continued,
        # and becomes the head.
        if at != chain.head and not fork:
            fork = await has_child(lease.saver, thread_id, writer.ns, at)
            writer.moves_head = not fork
        # On a new branch the superstep runs anew, so its task records stay with the old branch. The record of updates
        # that calls made to the open superstep (`AMENDED`) is loaded: these updates are part of the state.
        start.records.load([record for record in chain.records if not fork or record.task_id == AMENDED])
        start.at, start.step, start.board, start.branches = at, row.step, board, fork
        start.scope = row.metadata.get(MADE_IN, thread_id)
        self._amend(start, board)
        return start

    def load_unstored(self, before: StartPoint, site: CallSite) -> StartPoint:
        """Return the start point of an earlier call of this run, which is not stored yet (durability "exit")."""
        start = self.begin_empty(site)
        start.at, start.step, start.branches, start.scope = before.at, before.step, before.branches, before.scope
        start.records.results, start.records.names = before.records.results, before.records.names
        state = self._writer.chain.state
        board = restore(self._program, state, start.step, self._codec, thread_id=self._lease.thread_id)
        start.board = board
        self._amend(start, board)
        pending = [each.metadata for each in self._writer.chain.deferred if each.checkpoint_id == self._writer.tip]
        is_same_call = any(site.made_checkpoint(metadata) for metadata in pending)
        if is_same_call or (before.continues and before.site.is_same(site)):
            start.continue_call(before.site)
        return start

    def _amend(self, start: StartPoint, board: Board) -> None:
        if AMENDED in start.records.results:
            scope = start.scope, ids_in(self._writer.ns, start.site.caller)
            amend_again(self._program, board, start.records.results[AMENDED], self._codec, scope)

    async def find(self, site: CallSite, outer: CommitWriter, outer_at: CheckpointId) -> StartPoint:
        """Return the start point: an earlier attempt at this call, the tip of a kept state, or an empty namespace.

        Args:
            site: where the graph is called from.
            outer: the outer graph's writer.
            outer_at: the checkpoint at which the outer graph was loaded.
        """
        lease = self._lease
        if lease.fresh and self._writer.ns not in lease.visited:
            # The thread was empty when this run acquired it, and the run has not written this namespace: save the read.
            return self.begin_empty(site)
        for chain in await self.read():
            self._writer.head = chain.head
            for found in await self._earlier_attempt(chain, site, outer, outer_at):
                start = await self.load(found, site)
                start.continue_call(CallSite.of(found.rows[-1]))
                return start
            for tip in self._tips(chain, site):
                for found in await self.read(tip):
                    return await self.load(found, site)
        return self.begin_empty(site)

    async def _earlier_attempt(
        self, chain: Chain, site: CallSite, outer: CommitWriter, outer_at: CheckpointId
    ) -> Sequence[Chain]:
        """Return the newest state of an earlier attempt at this call, as a sequence of one; empty if there is none."""
        lease, tip = self._lease, outer.tip
        if was_made_on(chain.rows[-1], outer.ns, tip, site.caller):
            return (chain,)
        if tip != outer_at:
            return ()  # this run made the outer checkpoint, so any state made on it is the head, checked above
        found = await made_on(lease.saver, lease.thread_id, self._writer.ns, outer.ns, tip, caller=site.caller)
        return () if found is None else await self.read(found[0])

    def _tips(self, chain: Chain, site: CallSite) -> Sequence[CheckpointId]:
        """Return the tip of a kept state on this branch of the root graph, as a sequence of one."""
        if not site.caller:
            return ()
        if parents_of(chain.rows[-1]).get("") == site.parents[""]:
            return (chain.head,)  # moved in the root's open superstep, so that no root checkpoint has it yet
        tips, ns = self._lease.tips, self._writer.ns
        return (tips[ns],) if ns in tips else ()


def commit_writer(lease: ThreadLease, ns: str) -> CommitWriter:
    """Return the root graph's writer for the run's durability."""
    kinds = {"sync": CommitWriter, "async": OverlappedWriter, "exit": AtExitWriter}
    return kinds[lease.durability](lease, ns)


async def find_moved_tips(lease: ThreadLease, at: CheckpointId) -> None:
    """Note in the lease the tips of kept states that earlier attempts at an open superstep have moved.

    Args:
        lease: the thread's lease.
        at: the root's checkpoint on which the superstep is open.
    """
    # The task that moved a tip may be recorded and not run again. Then no other code would note the tip, and the next
    # root checkpoint would carry the old one.
    before: CheckpointId | None = None
    while True:
        page = await lease.saver.scan(lease.thread_id, None, before=before, limit=PAGE)
        for header in page:
            if header.checkpoint_id <= at:
                return
            if CALLER in header.metadata and parents_of(header).get("") == at and header.ns not in lease.moved_tips:
                lease.move_tip(header.ns, header.checkpoint_id)
        if len(page) < PAGE:
            return
        before = page[-1].checkpoint_id
