"""Store a run's first and last transaction together with the rows that say so: that it has begun, and how it ended.

The last transaction is the one after which nothing is left to run, or the one with the questions for which the run
pauses. With its rows it stores the run's final status, the thread's row and next activation, and the release of the
lease. So no crash leaves a run whose work is stored and whose end is not.

A run whose end has no such transaction ends in one of its own (`Activation`): a failure, a cancellation, a breakpoint,
an exceeded limit, or a run that found nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.records import Chain, CheckpointId, CheckpointRow, Commit, Lease, TaskId, TaskRecord
from checkpoint_savers.runs.decisions import RunOutcome
from checkpoint_savers.runs.port import RunStore
from checkpoint_savers.runs.rows import RunRow, RunStatus

from .._api.attributes import stored_through
from .._api.compiled import Graph
from .._runtime.streaming.parts import Cursor
from ..types import Command
from .breakpoints import stops_after_nodes
from .call import StoredCall
from .outcomes import outcome_of
from .routes import route_of

MAX_ROWS = 32
"""Number of the root graph's rows and transactions that are kept for the end of the run, at most. Of a longer thread or
run, the rows are read again at the end: work per superstep must not grow with the thread."""


class RunMarks:
    """The rows of a run, for the transactions of one attempt at it. `held_saver` calls it for those of the root graph.

    Args:
        saver: the saver.
        runs: its run store.
        lease: the lease under which the run was taken.
        run: the run, as it was taken.
        graph: its graph, bound to the saver.
        call: its call.

    Attributes:
        ended: the run's end is stored, and the lease is released.
        has_begun: this attempt's or an earlier one's first transaction is stored.
    """

    def __init__(
        self,
        saver: BaseCheckpointSaver,
        runs: RunStore,
        lease: Lease,
        run: RunRow,
        graph: Graph[Any, Any],
        call: StoredCall,
    ) -> None:
        self.ended = False
        self.has_begun = run.begun
        self._saver = saver
        self._runs = runs
        self._lease = lease
        self._run_id = run.run_id
        self._name = run.request.assistant
        self._graph = graph
        self._tip: _Tip | None = _Tip({}, {}, None)  # None: to be read when it is needed
        self._since: list[Commit] = []  # stored after `_tip`
        self._has_stored = False  # this attempt has stored a transaction
        self._has_committed = False
        # Answers are recorded as questions are, with those that are still open: in the first transaction, if any.
        self._answers_first = isinstance(call.input, Command) and not run.begun
        self._may_finish = not stops_after_nodes(graph, call)  # after the last node, a breakpoint is no success
        self._may_pause = graph._definition.options.retention is None  # else the thread is pruned afterwards

    def note_loaded(self, chain: Chain) -> None:
        """Note rows of the root graph that were read: the run continues from the last of them.

        Args:
            chain: the rows.
        """
        if not self._has_stored and self._tip is not None:
            # The rows of earlier reads, too: of two reads, the last may have been of another branch.
            rows = {**self._tip.rows, **{row.checkpoint_id: row for row in chain.rows}}
            records = {record.task_id: record for record in chain.records}
            self._tip = _Tip(rows, records, chain.rows[-1].checkpoint_id)
            self._limit()

    def note_stored(self, commit: Commit, *, is_commit: bool = True) -> None:
        """Note a transaction of the root graph.

        Args:
            commit: the transaction.
            is_commit: False for records that were stored without a commit.
        """
        if self._tip is not None:
            self._since.append(commit)
            self._limit()
        self.has_begun = self._has_stored = True
        self._has_committed = self._has_committed or is_commit

    async def store(self, commit: Commit, *, is_commit: bool = True) -> bool:
        """Store a transaction of the root graph if it is the run's first or last one.

        Args:
            commit: the transaction. It releases the lease if nothing is left to run after it.
            is_commit: False for records that are to be stored without a commit.

        Returns:
            False if it is neither the first nor the last: it was not stored.

        Raises:
            ThreadBusyError: with `lost=True`: the lease was lost.
            StorageError: the database failed. Nothing was stored.
        """
        outcome = await self._outcome(commit, is_commit=is_commit)
        commit = unreleasing(commit)
        if outcome is not None:
            await self._runs.end(self._lease, self._run_id, outcome, commit)
            self.ended = True
        elif not self._has_stored:
            await self._runs.begin(self._lease, self._run_id, commit, first_event=self._before(commit))
        else:
            return False
        self.note_stored(commit, is_commit=is_commit)
        return True

    async def _outcome(self, commit: Commit, *, is_commit: bool) -> RunOutcome | None:
        """Return how the run ends with a transaction; None if it does not, or if its end is to be stored by itself."""
        finishes = commit.releases
        if not (self._may_finish if finishes else self._may_pause_after(commit, is_commit=is_commit)):
            return None
        try:
            tip = (await self._current_tip(commit)).after(commit)
            chain = tip.chain()
            if chain is None or not (finishes or _asks(commit, tip)):
                return None
            graph = stored_through(self._graph, cast("BaseCheckpointSaver", _TipReader(self._saver, chain)))
            state = await graph.aget_state({"configurable": {"thread_id": self._lease.thread_id}})
            asking = [task for task in state.tasks if task.interrupts]
            # Not all tasks ask if the run was drained before it had started all: such a run is given back.
            if len(state.next) != len(asking) or finishes is bool(asking):
                return None
            first_event = "" if self._has_stored else self._before(commit)
            status: RunStatus = "success" if finishes else "interrupted"
            route = await route_of(self._name, graph, self._lease.thread_id)
            return outcome_of(state, status, self._lease, first_event=first_event, route=route)
        except Exception:  # the state cannot be read: the transaction that stores the end by itself reports that
            return None

    def _limit(self) -> None:
        """Keep no rows if they have become many."""
        if self._tip is not None and len(self._tip.rows) + len(self._since) > MAX_ROWS:
            self._tip = None
            self._since.clear()

    async def _current_tip(self, commit: Commit) -> _Tip:
        """Return the checkpoint after which a transaction is to be stored."""
        if self._tip is None:
            # Before the first transaction, that may be an older one than the newest.
            at = None if self._has_stored else _parent_of(commit)
            chain = await self._saver.read(self._lease.thread_id, "", at)
            return _Tip({}, {}, None) if chain is None else _Tip.of(chain)
        for stored in self._since:
            self._tip = self._tip.after(stored)
        self._since.clear()
        return self._tip

    def _may_pause_after(self, commit: Commit, *, is_commit: bool) -> bool:
        """Return True if a transaction may be the one with the questions for which the run pauses."""
        if not self._may_pause or (self._answers_first and not self._has_stored):
            return False
        # Without a commit, the thread's metadata are still to be stored under the lease.
        if not (is_commit or self._has_committed):
            return False
        return any(each.kind == "interrupt" and not each.ns for each in commit.records)

    def _before(self, commit: Commit) -> str:
        """Return the cursor before the run's first event, given its first transaction."""
        return str(Cursor(_parent_of(commit) or "", self._lease.epoch, 0))


def _parent_of(commit: Commit) -> CheckpointId | None:
    """Return the checkpoint from which a transaction of the root graph continues; None for none."""
    if commit.rows:
        return commit.rows[0].parent_id
    return commit.records[0].checkpoint_id if commit.head is None else commit.head[1]


def _asks(commit: Commit, tip: _Tip) -> bool:
    """Return True if a transaction has questions of the newest checkpoint, which it has led to, and no failure."""
    kinds = {each.kind for each in commit.records if not each.ns and each.checkpoint_id == tip.head}
    return "interrupt" in kinds and "error" not in kinds


def unreleasing(commit: Commit) -> Commit:
    """Return a transaction that leaves the lease as it is.

    Args:
        commit: the transaction.
    """
    return replace(commit, releases=False) if commit.releases else commit


class _Tip(NamedTuple):
    """The root graph's newest checkpoint, as it is read back: computed from what was read and stored.

    Attributes:
        rows: those from which its state is read, and perhaps others.
        records: the records of its tasks.
        head: its id; None if it is not known.
    """

    rows: Mapping[CheckpointId, CheckpointRow]
    records: Mapping[TaskId, TaskRecord]
    head: CheckpointId | None

    @classmethod
    def of(cls, chain: Chain) -> _Tip:
        """Return the tip that a saver has read."""
        rows = {row.checkpoint_id: row for row in chain.rows}
        return cls(rows, {record.task_id: record for record in chain.records}, chain.rows[-1].checkpoint_id)

    def after(self, commit: Commit) -> _Tip:
        """Return the tip after a transaction."""
        rows, records, head = self
        for change in (commit, *commit.others):
            if change.rows and not change.rows[-1].ns:
                rows = {**rows, **{row.checkpoint_id: row for row in change.rows}}
                head, records = change.rows[-1].checkpoint_id, {}
                rows = {row.checkpoint_id: row for row in _needed(rows, head)}
            elif change.head is not None and not change.head[0] and change.head[1] != head:
                head = None
        if head is not None and (commit.records or commit.clears):
            cleared = {task_id for ns, at, task_id in commit.clears if (ns, at) == ("", head)}
            added = {each.task_id: each for each in commit.records if (each.ns, each.checkpoint_id) == ("", head)}
            records = {**{task_id: each for task_id, each in records.items() if task_id not in cleared}, **added}
        return _Tip(rows, records, head)

    def chain(self) -> Chain | None:
        """Return what a saver would read; None if rows are missing."""
        rows = () if self.head is None else _needed(self.rows, self.head)
        if self.head is None or not rows:
            return None
        records = sorted(self.records.values(), key=lambda record: record.index)
        return Chain(rows=rows, records=tuple(records), head=self.head)


def _needed(rows: Mapping[CheckpointId, CheckpointRow], at: CheckpointId) -> tuple[CheckpointRow, ...]:
    """Return the rows from which a checkpoint's state is read (see `Chain`); none if some are missing."""
    asked = rows.get(at)
    base = None if asked is None else rows.get(asked.base_id)
    keyframe = None if base is None else rows.get(base.base_id)
    if base is None or keyframe is None:
        return ()
    bases = (base.checkpoint_id, keyframe.checkpoint_id)
    found = [row for row in rows.values() if row.base_id in bases and row.checkpoint_id <= at]
    return tuple(sorted(found, key=lambda row: row.checkpoint_id))


class _TipReader:
    """A saver in which the root graph's newest checkpoint is one that is about to be stored."""

    def __init__(self, saver: BaseCheckpointSaver, chain: Chain) -> None:
        self._saver = saver
        self._chain = chain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._saver, name)

    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        if not ns and checkpoint_id is None:
            return self._chain
        return await self._saver.read(thread_id, ns, checkpoint_id)
