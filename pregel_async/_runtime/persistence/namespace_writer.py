"""Load one namespace of a leased thread, commit its supersteps, and record the outcomes of its tasks.

One superstep is one transaction. Every write compares the lease's epoch and the expected head with the database, so
that a run whose lease was taken over changes nothing and raises `ThreadBusyError(lost=True)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Literal

import anyio
import msgspec

from checkpoint_savers.codec import Codec
from checkpoint_savers.deltas import Delta, TaskResult
from checkpoint_savers.errors import CheckpointError, UnstorableValueError, annotate
from checkpoint_savers.records import MADE_IN, CheckpointId, CheckpointRow, EventRow, TaskId

from ..._core.amending import amend
from ..._core.board import Board
from ..._core.program import Program, Write
from ..._core.task import Failed, Outcome, Paused, Task
from ...errors import CheckpointNotFoundError
from ..observing.error_text import with_notes
from .at_exit import InnerGraphs
from .commit_writers import CommitWriter
from .lease import ThreadLease
from .loaded_namespace import LoadedNamespace
from .loading import begin_writing, find_moved_tips, load_checkpoint, load_latest, load_unstored, read_chain
from .namespaces import NO_TASK, CallIdentity, CallSite, child_of, ids_in, parents_of
from .outcome_records import OutcomeRecords
from .records import AMENDED, BETWEEN, NOT_RECORDED, OF_STATE
from .task_records import NOTHING_ANSWERED

__all__ = ["NOTHING_ANSWERED", "NamespaceWriter", "Source"]

Source = Literal["input", "loop", "update", "fork"]


class NamespaceWriter(LoadedNamespace):
    """Writes one namespace of a leased thread.

    Args:
        graphs: the run's subgraph calls, as a tuple of one, with durability "exit"; empty with others.
    """

    def __init__(
        self,
        writer: CommitWriter,
        codec: Codec,
        program: Program,
        site: CallSite,
        metadata: dict[str, Any],
        outer: tuple[NamespaceWriter, ...] = (),
        *,
        graphs: tuple[InnerGraphs, ...],
    ) -> None:
        super().__init__(writer, codec, program, site, metadata, outer)
        self.graphs = graphs

    @classmethod
    async def open(
        cls,
        lease: ThreadLease,
        codec: Codec,
        program: Program,
        *,
        ns: str = "",
        at: CheckpointId | None = None,
        fork: bool = False,
        metadata: dict[str, Any],
    ) -> NamespaceWriter:
        """Load a namespace.

        Args:
            lease: the thread's lease.
            codec: encodes the graph's values.
            program: the graph.
            ns: the namespace; empty for the root graph.
            at: the checkpoint to continue from; None for the head.
            fork: continue on a new branch, even if `at` is a tip.
            metadata: added to the metadata of each checkpoint.

        Raises:
            CheckpointNotFoundError: there is no checkpoint `at`.
            GraphVersionError: a greater version of the graph has stored the checkpoint.
            CorruptCheckpointError: a stored value cannot be decoded.
            StorageError: reading failed.
        """
        writer, graphs = begin_writing(lease, ns)
        namespace = cls(writer, codec, program, CallSite(), metadata, graphs=graphs)
        # A run that was cancelled before this point stores nothing. The read below would not always raise the
        # cancellation: a fresh thread is not read, and some savers never wait.
        await anyio.lowlevel.checkpoint_if_cancelled()
        if not lease.fresh:
            for chain in await read_chain(namespace, at):
                namespace.site = CallSite.of(chain.rows[-1])
                await load_checkpoint(namespace, chain, fork=fork)
        if at and not namespace.loaded_at:
            raise CheckpointNotFoundError(lease.thread_id, at)
        namespace.counter.load()
        if not ns:
            lease.tips = {name: CheckpointId(tip) for name, tip in namespace.writer.chain.state.tips.items()}
        return namespace

    @classmethod
    async def nested(
        cls,
        outer: NamespaceWriter,
        codec: Codec,
        program: Program,
        *,
        ns: str,
        task: TaskId,
        caller: TaskId | None,
        at: CheckpointId | None = None,
        identity: tuple[str, str] | None = None,
        former: Sequence[str] = (),
    ) -> NamespaceWriter:
        """Load the namespace of a subgraph. Raises as `open` does.

        Args:
            outer: the outer graph's namespace.
            codec: encodes the subgraph's values.
            program: the subgraph.
            ns: the subgraph's namespace.
            task: the task that runs the subgraph.
            caller: the same task if the subgraph keeps its state from call to call; else None.
            at: continue from this checkpoint (time travel); on a new branch if the outer graph is on a new branch.
            identity: the graph's name and the digest of its input; None if they are not compared.
            former: the namespaces that a kept state had under former names of nodes, newest first.
        """
        lease = outer.lease
        site = CallSite(
            parents={**outer.parents, outer.ns: outer.writer.tip},
            task=task,
            caller=caller or NO_TASK,
            identity=CallIdentity(*identity or ("", "")),
        )
        # With "exit" an earlier call of this run is not stored yet, so that reading would not find its state.
        earlier = [] if at else [call for graphs in outer.graphs for call in graphs.earlier(ns)]
        writer = earlier[0].writer if earlier else outer.writer.nested(ns, keeps_state=site.caller != NO_TASK)
        namespace = cls(writer, codec, program, site, outer.metadata, (outer,), graphs=outer.graphs)
        if earlier:
            load_unstored(namespace, earlier[0])
        else:
            if at:
                for chain in await read_chain(namespace, at):
                    await load_checkpoint(namespace, chain, fork=outer.tip != outer.loaded_at)
                if not namespace.loaded_at:
                    raise CheckpointNotFoundError(lease.thread_id, at)
                if site.caller:
                    lease.move_tip(ns, at)
                namespace.continues = True
            else:
                await load_latest(namespace, outer, former)
            namespace.counter.load()
        for graphs in namespace.graphs:
            graphs.add(namespace)
        return namespace

    async def find_moved_tips(self) -> None:
        """Find the tips of kept states that earlier attempts at the open superstep have moved."""
        at = self.loaded_at
        if at and not self.branches and at == self.tip and self.lease.token.newest != at:
            await find_moved_tips(self.lease, at)

    @cached_property
    def _origin(self) -> dict[str, Any]:
        """Metadata of each checkpoint: of the call site, the graph's version, and the node that began the thread."""
        lease = self.lease
        made_in = {} if lease.scope == lease.token.thread_id else {MADE_IN: lease.scope}
        return {**self.site.metadata, **self.own_version, **made_in}

    @cached_property
    def _outcomes(self) -> OutcomeRecords:
        """Makes the records of outcomes. Created on first use: most runs write no task record."""
        return OutcomeRecords(self.task_records, self.encoder, self.counter, self.lease.environment)

    def branch_off(self, board: Board) -> None:
        """Start the new branch with a copy of the loaded checkpoint, if this run is on a new branch.

        Args:
            board: the loaded board.
        """
        # Task records are keyed by checkpoint and task, and both branches plan the same task ids. Without a checkpoint
        # of its own, the new branch would overwrite the records of the old one.
        if self.branches:
            self.branches = False
            delta = Delta(
                keyframe=False,
                ts=self.lease.environment.now(),
                clock=board.clock,
                values={},
                emptied=(),
                kinds={},
                versions={},
                seen={},
                ran=self.writer.chain.state.ran,
                results={},
            )
            metadata = {
                **self.metadata,
                "source": "fork",
                "step": board.step,
                **self.site.metadata,
                **self.loaded_version,
            }
            if self.scope != self.thread_id:  # the copied superstep keeps the task ids of the original thread
                metadata[MADE_IN] = self.scope
            self.step = board.step
            self.writer.add(delta, board.step, metadata)
            for task_id in filter(self.task_records.results.__contains__, OF_STATE):
                self._stage(task_id, -1, self.task_records.results[task_id])

    async def resume(self, board: Board, answers: Mapping[str, Any], edits: list[Write]) -> None:
        """Record answers and an update for the open superstep, in one transaction and before anything runs.

        Args:
            board: the loaded board; the update is folded into it.
            answers: the answers by question id.
            edits: the writes of the update; empty for none.

        Raises:
            UnstorableValueError: an answer or a write cannot be encoded; nothing was stored.
            Exception: a channel or a reducer refused the update; nothing was stored.
        """
        records = self.task_records
        results = {task_id: (0, result) for task_id, result in records.with_answers(answers).items()}
        if edits:
            before = records.results.get(AMENDED, NOT_RECORDED)
            earlier = () if before is NOT_RECORDED else (*before.writes, (BETWEEN, b""))
            data = self.encoder.writes(edits)
            self.branch_off(board)
            number = sum(channel == BETWEEN for channel, _ in earlier)
            scope = self.scope, ids_in(self.ns, self.caller)  # the scope of the ids of messages in the update
            amend(self.program, board, edits, scope=scope, number=number)
            unfit = (*before.unfit, *self.encoder.unfit(edits))
            results[AMENDED] = (-1, records.marked(TaskResult(name="", writes=(*earlier, *data), unfit=unfit)))
        if results:
            rows = [records.row(task_id, index, result) for task_id, (index, result) in results.items()]
            # Shielded: a cancellation after the transaction would leave `records.results` without the stored answers.
            with anyio.CancelScope(shield=True):
                await self.writer.record_answers(rows)
            records.results.update({task_id: result for task_id, (_, result) in results.items()})

    async def commit(
        self,
        board: Board,
        ran: Sequence[Task],
        outcomes: Sequence[Outcome],
        upcoming: Sequence[Task],
        *,
        source: Source = "loop",
        waits: bool = False,
        closes: bool = False,
        on_row: Callable[[CheckpointRow], None] | None = None,
    ) -> bool:
        """Store a finished superstep in one transaction. If nothing is left to run, it releases the lease, too.

        Args:
            board: the board after the superstep.
            ran: the superstep's tasks. With `source="input"` these are the pending tasks that the input discards;
                their recorded failures stay in history.
            outcomes: the tasks' outcomes, in the same order.
            upcoming: the tasks of the next superstep; empty if nothing is left to run.
            source: the `source` in the checkpoint's metadata.
            waits: only queue the superstep, for the next transaction.
            closes: an update closes the superstep with a result for each task: remove its recorded failures.
            on_row: called with the new checkpoint's row, before the row is stored.

        Returns:
            True if the superstep is stored, False if it is queued.

        Raises:
            ThreadBusyError: the lease was lost (`lost=True`).
            UnstorableValueError: a value cannot be encoded. A note names the tasks that wrote it, and they are
                recorded as failed.
            StorageError: the transaction was rolled back.
        """
        records, writer, lease, step = self.task_records, self.writer, self.lease, board.step
        state, now = writer.chain.state, lease.environment.now()
        try:
            delta = self.encoder.delta(board, state, ran, outcomes, records.results, now)
        except UnstorableValueError as error:
            if source == "input":  # no task wrote it: raise for the input's key instead
                self.encoder.locate(board)
            elif source == "loop":
                await self.fail(ran, self._outcomes.refused(ran, outcomes, error), error)
            raise
        if lease.moved_tips and not self.outer:
            delta.tips.update(lease.moved_tips)
            lease.moved_tips = {}
        # Few supersteps have records or amounts spent, so one condition skips the work of both.
        if records.results or self.counter.unrecorded or state.spent or lease.spent_in_subgraphs:
            delta.spent.update(self.counter.close_superstep(anew=source == "input" and bool(self.outer)))
            if records.results:
                if self.program.warned:
                    records.keep_unknown(ran, outcomes, delta)
                if source == "loop" or closes:
                    over, asked = records.failures(ran, outcomes)
                    writer.clear(over)
                    for record in asked:
                        writer.stage(record)
                records.close()
        self.branches, self.scope, self.step = False, lease.scope, step
        metadata = {**self.metadata, "source": source, "step": step, **self._origin}
        row = writer.add(delta, step, metadata)
        if on_row is not None:
            on_row(row)
        # The hidden start follows the input and runs no user code, so one transaction can store both. It is alone in
        # its superstep.
        if waits or (upcoming and upcoming[0].node.hidden):
            return False
        await writer.commit(ends=not upcoming)
        return True

    async def record(
        self, task: Task, writes: list[Write], *, routed: bool, events: Callable[[], Sequence[EventRow]]
    ) -> None:
        """Store a task's writes. Tasks that finish during a transaction share the next one.

        Args:
            task: the task.
            writes: its writes.
            routed: False if these are the node's own writes only, and its routers have still to run.
            events: makes the rows of the task's events. Called after the writes were encoded without an error.

        Raises:
            UnstorableValueError: a write cannot be encoded.
        """
        await self._record(task, self._outcomes.result(task, writes, routed=routed), events)

    async def record_failure(self, task: Task, error: Exception, events: Callable[[], Sequence[EventRow]]) -> None:
        """Store that a task has failed and that its error handler runs next."""
        await self._record(task, self._outcomes.handled_failure(task, error), events)

    async def _record(self, task: Task, result: TaskResult, events: Callable[[], Sequence[EventRow]]) -> None:
        records = self.task_records
        if task.digest:
            result = msgspec.structs.replace(result, call=task.digest)
            records.names |= {result.name}
        result = records.marked(self.counter.with_spent(task.id, result))
        on_stored = partial(records.results.__setitem__, task.id, result)
        row = records.row(task.id, task.index, result)
        await self.writer.record(row, on_stored, events())

    def decide_patch(self, task: Task, name: str) -> bool:
        """Return the decision of `patched(name)` for a planned task: the recorded one, or a new one.

        A new decision is stored with the next transaction of the namespace: all records that depend on it are made
        later, so that none is stored without it.
        """
        records = self.task_records
        for decision in records.patch(task, name):
            return decision
        is_new = not records.earlier.has(task) and not self._has_run_graph(task)
        self._stage(task.id_of_patch(name), task.index, records.marked(records.new_patch(name, is_new=is_new)))
        return is_new

    def _has_run_graph(self, task: Task) -> bool:
        """Return True if an earlier attempt at a planned task, or a task that it called, ran a graph that is stored.

        A process that dies in the subgraph leaves no other record of the task.
        """
        for header in self.lease.earlier_graphs.values():
            if parents_of(header).get(self.ns) == self.tip:
                name, ran_by = child_of(self.ns, header)
                if ran_by == task.written_as() or task.has_called(name, (ran_by,)):
                    return True
        return False

    def _stage(self, task_id: TaskId, index: int, result: TaskResult) -> None:
        self.task_records.results[task_id] = result
        self.writer.stage(self.task_records.row(task_id, index, result))

    def check(self, task: Task, asked: Paused) -> None:
        """Check that a task's questions can be stored, and the node's writes if a router asks.

        Raises:
            UnstorableValueError: they cannot; a note names the task.
        """
        self._outcomes.check(task, asked)

    async def pause(self, tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> None:
        """Record a superstep that stays open: results that are not recorded yet, and open questions.

        Raises:
            ThreadBusyError: the lease was lost (`lost=True`).
            StorageError: the transaction was rolled back.
        """
        await self.writer.record_outcomes(self._outcomes.open_superstep(tasks, outcomes))

    async def fail(self, tasks: Sequence[Task], outcomes: Sequence[Outcome], error: BaseException) -> bool:
        """Record a failed superstep in one transaction: results that are not recorded yet, and failures.

        Args:
            tasks: the superstep's tasks.
            outcomes: their outcomes, in the same order.
            error: the superstep's error.

        Returns:
            True if the records are stored. If storing fails, its error becomes a note of `error`.
        """
        rows = self._outcomes.open_superstep(tasks, outcomes)
        if not any(isinstance(outcome, Failed) for outcome in outcomes):
            # All tasks finished, and a reducer or a channel refused their writes.
            rows.append(self._outcomes.superstep_failure(error))
        try:
            await self.writer.record_outcomes(rows)
        except CheckpointError as second:
            if second is not error:  # a failed transaction of a subgraph is raised by each later one, too
                annotate(error, f"and the failure could not be recorded: {with_notes(second)}")
            return False
        return True

    def discard(self) -> None:
        """Drop everything queued and write nothing more: the thread stays as the run found it."""
        self.writer.discard()

    async def flush_events(self) -> None:
        """Store queued events, because they have grown too many."""
        await self.writer.flush_events()

    async def flush(self) -> None:
        """Store what is still queued, because the run stops before its end."""
        await self.writer.flush()

    async def close(self) -> None:
        """Return when everything that earlier calls handed over is stored, at the end of this graph's run."""
        await self.writer.close()

    def acknowledge(self, stored: Callable[[int], None]) -> None:
        """Call `stored` with each superstep's number once that superstep and all earlier ones are stored."""
        self.writer.listeners = (stored,)

    def stage(self, task: Task, writes: list[Write]) -> None:
        """Queue writes as the result of a task of the open superstep.

        Raises:
            UnstorableValueError: a write cannot be encoded.
        """
        result = self.task_records.marked(self._outcomes.by_hand(task, writes))
        self._stage(task.id, task.index, self.counter.with_spent(task.id, result))

    def copy_as_sibling(self, board: Board) -> None:
        """Continue from a copy of the loaded checkpoint, which gets the same parent.

        The open superstep's records stay with the original. Only updates of the open superstep, by calls or by a
        migration, are copied, because they are part of the state.
        """
        records, writer = self.task_records, self.writer
        if self.tip != self.loaded_at:  # made by this edit, with the present version
            self.loaded_version = self.own_version
        writer.chain = writer.chain.sibling()
        amended = {task_id: result for task_id, result in records.results.items() if task_id in OF_STATE}
        records.close()
        records.results = amended
        self.branches = True
        self.branch_off(board)

    async def commit_edit(self) -> None:
        """Store everything queued in one transaction, which releases the root graph's lease."""
        await self.writer.commit_edit()
