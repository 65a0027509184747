"""One namespace of a leased thread, as its run writes it: load it, commit each superstep, record what tasks leave.

One superstep is one transaction. Every write compares the lease's epoch and the head in the database, so that a run
whose thread was taken over changes nothing any more and says so.
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
from .at_exit import AtExitWriter
from .call_site import CallIdentity, CallSite
from .lease import ThreadLease
from .loaded_namespace import LoadedNamespace
from .loading import Loader, commit_writer
from .namespaces import NO_TASK, ids_in
from .outcome_records import OutcomeRecords
from .records import AMENDED, BETWEEN, NOT_RECORDED
from .task_records import NOTHING_ANSWERED

__all__ = ["NOTHING_ANSWERED", "NamespaceWriter", "Source"]

Source = Literal["input", "loop", "update", "fork"]


class NamespaceWriter(LoadedNamespace):
    """One namespace of a leased thread, as its run writes it."""

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
            at: the checkpoint to go on from; None for the head.
            fork: go on from there on a branch of its own, even if it is a tip.

        Raises:
            CheckpointNotFoundError, GraphChangedError, CorruptCheckpointError, StorageError: nothing was changed.
        """
        loader = Loader(commit_writer(lease, ns), codec, program)
        start = loader.nothing(CallSite())
        if lease.fresh:
            await anyio.lowlevel.checkpoint_if_cancelled()  # as reading would notice
        else:
            for chain in await loader.read(at):
                start = await loader.load(chain, CallSite.of(chain.rows[-1]), fork=fork)
        if at and not start.at:
            raise CheckpointNotFoundError(lease.thread_id, at)
        thread = cls(lease, codec, program, start, metadata)
        thread.counter.loaded()
        if not ns:
            lease.tips = {name: CheckpointId(tip) for name, tip in thread.out.chain.state.tips.items()}
        return thread

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
        given: tuple[str, str] | None = None,
    ) -> NamespaceWriter:
        """Load the namespace of a graph that a node of another graph runs.

        Args:
            task: that runs it.
            caller: the task that runs the graph, when its state is kept from call to call; else None.
            at: travel in time: go on from this checkpoint; on a branch of its own, when the graph around is on one.
            given: the graph's name and the digest of its input; None if they are not compared.

        Raises: as `open`.
        """
        lease = outer.lease
        site = CallSite(
            parents={**outer.parents, outer.ns: outer.out.tip},
            task=task,
            caller=caller or NO_TASK,
            identity=CallIdentity(*given or ("", "")),
        )
        out = outer.out.inside(ns, keeps=site.caller != NO_TASK)
        loader = Loader(out, codec, program)
        earlier = out.graphs.earlier(ns) if isinstance(out, AtExitWriter) and not at else ()
        if at:
            start = loader.nothing(site)
            for chain in await loader.read(at):
                start = await loader.load(chain, site, fork=outer.tip != outer.loaded_at)
            if not start.at:
                raise CheckpointNotFoundError(lease.thread_id, at)
            if site.caller:
                lease.move_tip(ns, at)
            start.continues = True
        elif earlier:
            start = Loader(earlier[0].out, codec, program).again(earlier[0], site)
        else:
            start = await loader.find(site, outer.out, outer.loaded_at)
        thread = cls(lease, codec, program, start, outer.metadata, (outer,))
        if not earlier:
            thread.counter.loaded()
        if isinstance(thread.out, AtExitWriter):
            thread.out.graphs.add(ns, thread, thread.out)
        return thread

    @cached_property
    def _outcomes(self) -> OutcomeRecords:
        """Made when it is needed: most supersteps are committed, and leave no record."""
        return OutcomeRecords(self.task_records, self._encoder, self.counter, self.lease.environment)

    def branch_off(self, board: Board) -> None:
        """Go on from an older checkpoint on a branch of its own, which starts with a copy of that checkpoint.

        So what is recorded from here on stands under another checkpoint than what the other branch recorded.
        """
        if self._branches:
            self._branches = False
            entry = Delta(
                keyframe=False,
                ts=self.lease.environment.now(),
                clock=board.clock,
                values={},
                emptied=(),
                kinds={},
                versions={},
                seen={},
                ran=self.out.chain.state.ran,
                results={},
            )
            metadata = {**self.metadata, "source": "fork", "step": board.step, **self._origin}
            if self._scope != self.thread_id:  # its tasks are those that were planned on what it is a copy of
                metadata[MADE_IN] = self._scope
            self._step = board.step
            self.out.add(entry, board.step, metadata)
            if AMENDED in self.task_records.entries:
                self._stage(AMENDED, -1, self.task_records.entries[AMENDED])

    async def resume(self, board: Board, answers: Mapping[str, Any], edits: list[Write]) -> None:
        """Record what a call brings to the open superstep, in one transaction and before anything runs: answers to open
        questions, and an update to the state, which is made on the board.

        Raises:
            UnstorableValueError: nothing was stored.
            Exception: what a channel or a reducer makes of the update; nothing was stored.
        """
        records = self.task_records
        entries = {task_id: (0, entry) for task_id, entry in records.answered(answers).items()}
        if edits:
            before = records.entries.get(AMENDED, NOT_RECORDED)
            earlier = () if before is NOT_RECORDED else (*before.writes, (BETWEEN, b""))
            data = self._encoder.writes(edits)
            self.branch_off(board)
            number = sum(channel == BETWEEN for channel, _ in earlier)
            scope = self._scope, ids_in(self.ns, self.caller)  # what the ids of messages are made in
            amend(self.program, board, edits, scope=scope, number=number)
            entries[AMENDED] = (-1, TaskResult(name="", writes=(*earlier, *data)))
        if entries:
            rows = [records.row(task_id, index, entry) for task_id, (index, entry) in entries.items()]
            with anyio.CancelScope(shield=True):
                await self.out.answer(rows)
            records.entries.update({task_id: entry for task_id, (_, entry) in entries.items()})

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
        made: Callable[[CheckpointRow], None] | None = None,
    ) -> bool:
        """Store a finished superstep: one transaction. The lease is given up in it when nothing is left to run.

        With `source="input"` the tasks are those that the new input discards; the failures recorded of them stay in
        history. A superstep that no code of the user's follows before the next commit (the input, before the hidden
        start) waits and is stored with that commit.

        Args:
            waits: store it with the next transaction, whatever follows.
            closes: an update closes the superstep, with a result of each of its tasks: its failure is over.
            made: called with the new checkpoint before it is stored.

        Returns:
            Whether it is stored; False while it waits.

        Raises:
            ThreadBusyError: with `lost=True`.
            UnstorableValueError: with a note that names the tasks that wrote it; they are recorded as failed.
            StorageError: it was rolled back whole.
        """
        records, out, lease, step = self.task_records, self.out, self.lease, board.step
        state = out.chain.state
        try:
            entry = self._encoder.entry(board, state, ran, outcomes, records.entries, lease.environment.now())
        except UnstorableValueError as error:
            if source == "input":  # nothing is stored of it
                self._encoder.locate(board)
            elif source == "loop":
                await self.give_up(ran, self._outcomes.refused(ran, outcomes, error), error)
            raise
        if lease.moved and not self.around:
            entry.tips.update(lease.moved)
            lease.moved = {}
        if self.counter.now or state.spent or lease.spent_inside or records.entries:
            entry.spent.update(self.counter.close(anew=source == "input" and bool(self.around)))
        if records.entries:
            if self.program.warned:
                records.keep_unknown(ran, outcomes, entry)
            if source == "loop" or closes:
                out.clear(records.failures(ran, outcomes))
            records.entries = {}
        if isinstance(out, AtExitWriter):
            out.graphs.drop_closed(self)
        self._branches, self._scope, self._step = False, lease.token.thread_id, step
        row = out.add(entry, step, {**self.metadata, "source": source, "step": step, **self._origin})
        if made is not None:
            made(row)
        if waits or (upcoming and upcoming[0].node.hidden):  # the hidden start runs alone
            return False
        await out.commit(ends=not upcoming)
        return True

    async def record(
        self, task: Task, writes: list[Write], *, routed: bool, events: Callable[[], Sequence[EventRow]]
    ) -> None:
        """Store what a task wrote. Tasks that finish while a transaction is under way share the next one.

        Args:
            events: makes the rows of the task's events, once it is sure that the record can be stored.
        """
        await self._record(task, self._outcomes.result(task, writes, routed=routed), events)

    async def record_failure(self, task: Task, error: Exception, events: Callable[[], Sequence[EventRow]]) -> None:
        """Store that a task has failed, and that its error handler is to run; return when that is durable."""
        await self._record(task, self._outcomes.handled_failure(task, error), events)

    async def _record(self, task: Task, entry: TaskResult, events: Callable[[], Sequence[EventRow]]) -> None:
        records = self.task_records
        if task.digest:
            entry = msgspec.structs.replace(entry, call=task.digest)
            records.names |= {entry.name}
        entry = self.counter.with_spent(task.id, entry)
        noted = partial(records.entries.__setitem__, task.id, entry)
        row = records.row(task.id, task.index, entry)
        await self.out.record(row, noted, events())

    def _stage(self, task_id: TaskId, index: int, entry: TaskResult) -> None:
        self.task_records.entries[task_id] = entry
        self.out.stage(self.task_records.row(task_id, index, entry))

    def check(self, task: Task, asked: Paused) -> None:
        """Refuse questions, and writes of a node whose router asks them, that cannot be stored.

        Raises:
            UnstorableValueError: with a note that names the task.
        """
        self._outcomes.check(task, asked)

    async def pause(self, tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> None:
        """Record a superstep that stays open: what finished and is not recorded yet, and what was asked.

        Raises:
            ThreadBusyError: with `lost=True`.
            StorageError
        """
        await self.out.put(self._outcomes.at_rest(tasks, outcomes))

    async def give_up(self, tasks: Sequence[Task], outcomes: Sequence[Outcome], error: BaseException) -> bool:
        """Record a superstep that failed: what finished and is not recorded yet, and what failed, in one transaction.

        Returns:
            Whether it is stored. If storing fails too, the superstep's own error is still the one that is raised, and
            the other becomes its note.
        """
        rows = self._outcomes.at_rest(tasks, outcomes)
        if not any(isinstance(outcome, Failed) for outcome in outcomes):
            rows.append(self._outcomes.superstep_failure(error))
        try:
            await self.out.put(rows)
        except CheckpointError as second:
            annotate(error, f"and the failure could not be recorded: {with_notes(second)}")
            return False
        return True

    def forget(self) -> None:
        """Drop what waits for the next transaction: the thread is as it was found, and this run writes nothing more."""
        self.out.forget()

    async def spill(self) -> None:
        """Store the events that wait, as there are too many of them."""
        await self.out.spill()

    async def rest(self) -> None:
        """The run ends here, or is cut off: store what is to be kept of it."""
        await self.out.rest()

    async def finish(self) -> None:
        """The run of this graph is over, however it ended: what was taken over is stored when this returns."""
        await self.out.finish()

    def acknowledge(self, told: Callable[[int], None]) -> None:
        """Tell, from now on, which superstep is stored with all before it."""
        self.out.listeners = (told,)

    def stage(self, task: Task, writes: list[Write]) -> None:
        """Make these the result of a task of the open superstep; stored with the next transaction.

        Raises:
            UnstorableValueError
        """
        entry = TaskResult(name=task.node.name, writes=self._encoder.writes(writes))
        self._stage(task.id, task.index, self.counter.with_spent(task.id, entry))

    def copy_beside(self, board: Board) -> None:
        """Go on from a copy of the loaded checkpoint, with the same parent; what is recorded stays with the other.

        But an update that a call made to the state is part of the state: it is recorded of the copy too.
        """
        records, out = self.task_records, self.out
        out.chain = out.chain.sibling()
        records.entries = {task_id: entry for task_id, entry in records.entries.items() if task_id == AMENDED}
        self._branches = True
        self.branch_off(board)

    async def settle(self) -> None:
        """Store all that waits, in one transaction, and give the thread up."""
        await self.out.settle()
