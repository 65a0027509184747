"""Where the writing of a namespace begins: what is stored of it at the right checkpoint, and which checkpoint that is.

Which checkpoint a subgraph continues from
    Its checkpoints say in their metadata (`parents`) on which checkpoints of the graphs around it they were made. So a
    subgraph that was interrupted in the open superstep of its parent is found again by that superstep's checkpoint,
    and a fork of the parent, which has another, does not find it: what is stored belongs to its branch. A subgraph
    that keeps its state from call to call is found by its tip besides, which the root's checkpoints carry.
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
from .start import Start
from .task_records import TaskRecords


class Loader:
    """Loads a namespace for one graph."""

    def __init__(self, out: CommitWriter, codec: Codec, program: Program) -> None:
        self._out = out
        self._lease: ThreadLease = out.lease
        self._codec = codec
        self._program = program

    async def read(self, at: CheckpointId | None = None) -> Sequence[Chain]:
        """What is stored of the namespace at a checkpoint, or at its head; empty when nothing is."""
        chain = await self._lease.saver.read(self._lease.thread_id, self._out.ns, at)
        return () if chain is None else (chain,)

    def nothing(self, site: CallSite) -> Start:
        """Begin with nothing."""
        encoder = Encoder(self._program, self._codec)
        records = TaskRecords(self._program, encoder, self._out)
        return Start(site=site, out=self._out, encoder=encoder, records=records, scope=self._lease.thread_id)

    async def load(self, chain: Chain, site: CallSite, *, fork: bool = False) -> Start:
        """Begin at a stored checkpoint.

        Args:
            fork: continue from there on a branch of its own, even if it is a tip.
        """
        out, lease, program, row = self._out, self._lease, self._program, chain.rows[-1]
        at, thread_id, start = row.checkpoint_id, lease.thread_id, self.nothing(site)
        out.head = chain.head
        reader = ChainReader(thread_id, out.ns, chain.rows)
        state = reader.state(at)
        board = restore(program, state, row.step, self._codec, thread_id=thread_id)
        start.encoder.loaded(board, state)
        out.chain, out.stored, out.standing = ChainWriter.resume(reader, at), at, row.step
        if at != chain.head and not fork:
            fork = await has_child(lease.saver, thread_id, out.ns, at)
            out.moves = not fork
        # An older checkpoint is deliberately run again from there: what was recorded after it stays with its branch.
        # But an update that a call made to the state is part of the state.
        start.records.load([record for record in chain.records if not fork or record.task_id == AMENDED])
        start.at, start.step, start.board, start.branches = at, row.step, board, fork
        start.scope = row.metadata.get(MADE_IN, thread_id)
        self._amend(start, board)
        return start

    def again(self, before: Start, site: CallSite) -> Start:
        """Begin where an earlier call of this run has got to, of which nothing is stored."""
        start = self.nothing(site)
        start.at, start.step, start.branches, start.scope = before.at, before.step, before.branches, before.scope
        start.records.entries, start.records.names = before.records.entries, before.records.names
        state = self._out.chain.state
        board = restore(self._program, state, start.step, self._codec, thread_id=self._lease.thread_id)
        start.board = board
        self._amend(start, board)
        made = [put.metadata for put in self._out.chain.deferred if put.checkpoint_id == self._out.tip]
        mine = any(site.made(metadata) for metadata in made)
        if mine or (before.continues and before.site.is_same(site)):
            start.continue_call(before.site)
        return start

    def _amend(self, start: Start, board: Board) -> None:
        if AMENDED in start.records.entries:
            scope = start.scope, ids_in(self._out.ns, start.site.caller)
            amend_again(self._program, board, start.records.entries[AMENDED], self._codec, scope)

    async def find(self, site: CallSite, outer: CommitWriter, outer_at: CheckpointId) -> Start:
        """Begin at the last checkpoint of an earlier attempt at this call, or at the tip of the state that is kept from
        call to call.

        Args:
            outer: of the graph around.
            outer_at: the checkpoint at which that was loaded.
        """
        lease = self._lease
        if lease.fresh and self._out.ns not in lease.visited:
            return self.nothing(site)  # nothing of this thread is older than this run, which has not been here
        for chain in await self.read():
            self._out.head = chain.head
            for found in await self._made_here(chain, site, outer, outer_at):
                start = await self.load(found, site)
                start.continue_call(CallSite.of(found.rows[-1]))
                return start
            for tip in self._tips(chain, site):
                for found in await self.read(tip):
                    return await self.load(found, site)
        return self.nothing(site)

    async def _made_here(
        self, chain: Chain, site: CallSite, outer: CommitWriter, outer_at: CheckpointId
    ) -> Sequence[Chain]:
        """The newest state that was made by an earlier attempt at this very call, if there is one."""
        lease, tip = self._lease, outer.tip
        if was_made_on(chain.rows[-1], outer.ns, tip, site.caller):
            return (chain,)
        if tip != outer_at:
            return ()  # this run made that checkpoint, and on it nothing but what the head would show
        found = await made_on(lease.saver, lease.thread_id, self._out.ns, outer.ns, tip, caller=site.caller)
        return () if found is None else await self.read(found[0])

    def _tips(self, chain: Chain, site: CallSite) -> Sequence[CheckpointId]:
        """Return the tip, on this branch of the root, of a state that is kept from call to call."""
        if not site.caller:
            return ()
        if parents_of(chain.rows[-1]).get("") == site.parents[""]:
            return (chain.head,)
        tips, ns = self._lease.tips, self._out.ns
        return (tips[ns],) if ns in tips else ()


def commit_writer(lease: ThreadLease, ns: str) -> CommitWriter:
    """Return the writer of the outermost graph for the run's durability."""
    kinds = {"sync": CommitWriter, "async": OverlappedWriter, "exit": AtExitWriter}
    return kinds[lease.durability](lease, ns)


async def find_moved(lease: ThreadLease, at: CheckpointId) -> None:
    """Find the newest checkpoints of kept states that earlier attempts at an open superstep have moved.

    The task that moved one may have its result, and not run again, so that nothing else would say so.

    Args:
        at: the root's checkpoint on which the superstep is open.
    """
    before: CheckpointId | None = None
    while True:
        page = await lease.saver.scan(lease.thread_id, None, before=before, limit=PAGE)
        for header in page:
            if header.checkpoint_id <= at:
                return
            if CALLER in header.metadata and parents_of(header).get("") == at and header.ns not in lease.moved:
                lease.move_tip(header.ns, header.checkpoint_id)
        if len(page) < PAGE:
            return
        before = page[-1].checkpoint_id
