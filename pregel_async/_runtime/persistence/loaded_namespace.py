"""One namespace of a leased thread, as its run knows it: what was loaded, and is recorded of the open superstep."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from checkpoint_savers.codec import Codec
from checkpoint_savers.records import CheckpointId, EventRow, TaskId

from ..._core.board import Board
from ..._core.program import Program
from ..._core.task import Recorded, Task
from ...types import Interrupt
from .digests import Digests, fleeting_keys
from .lease import ThreadLease
from .loading import find_moved
from .spending import Amounts
from .spending_counter import SpendingCounter
from .start_point import StartPoint
from .task_records import Answered


class LoadedNamespace:
    """One namespace of a leased thread, as a run knows it.

    Args:
        around: the graph with the node that runs this one; empty for the outermost graph of a run.

    Attributes:
        ns: the namespace, "" for the root graph's.
        parents: namespace -> checkpoint, of the graphs around this one.
        board: what was loaded; None when it held nothing.
        caller: the task that runs the graph, when its state is kept from call to call; else empty.
        continues: an earlier attempt at the same call has got this far: its input is on the board already.
        ran_instead: the name of the graph that this earlier attempt ran, if that or its input differs; else None.
        loaded_at: the checkpoint that was loaded; empty when it held nothing.
        task_records: of the open superstep's tasks.
        counter: of what its tasks spend.
        out: what it has to store.
    """

    def __init__(
        self,
        lease: ThreadLease,
        codec: Codec,
        program: Program,
        start: StartPoint,
        metadata: dict[str, Any],
        outer: tuple[LoadedNamespace, ...] = (),
    ) -> None:
        site = start.site
        self.lease = lease
        self.program = program
        self.ns = start.writer.ns
        self.metadata = metadata
        self.parents = site.parents
        self.caller = site.caller
        self.board = start.board
        self.continues = start.continues
        self.ran_instead = start.ran_instead or None
        self.loaded_at = start.at
        self.outer = outer
        self.writer = start.writer
        self.task_records = start.records
        outer_counters = tuple([each.counter for each in outer])
        self.counter: SpendingCounter = SpendingCounter(
            self.task_records, self.ns, lease.spent_inside, outer_counters, site.task
        )
        self._first_codec = codec
        self._encoder = start.encoder
        self._site = site
        self._origin = site.metadata
        self._scope = start.scope
        self._branches = start.branches  # a resume starts a branch here
        self._step = start.step

    is_stored = True

    @property
    def is_new(self) -> bool:
        """Whether the namespace held nothing when it was loaded."""
        return self.board is None

    @property
    def start(self) -> Board:
        """The board to run from: what was loaded, or an empty one."""
        return Board(self.program) if self.board is None else self.board

    @property
    def kept_scalars(self) -> frozenset[type]:
        """Subclasses of plain scalars that stay as they are."""
        return self.codec.kept_scalars

    def spent_by(self, task: TaskId) -> Amounts:
        """What a task spends, to be added to."""
        return self.counter.by(task)

    def hand_over_spent(self) -> None:
        """The run of this graph is over: what is not recorded here is spent by the task that ran it."""
        self.counter.hand_over()

    @property
    def codec(self) -> Codec:
        """What its values are stored with."""
        return self._encoder.codec

    @property
    def thread_id(self) -> str:
        return self.lease.thread_id

    @property
    def scope(self) -> str:
        """What the ids of the open superstep's tasks are made of: the thread's id, or that of the thread in which the
        superstep was planned, when it was copied from there."""
        return self._scope

    @property
    def events(self) -> list[EventRow]:
        """Rows of events that are to go with the next transaction, or do with the one that is under way."""
        return self.writer.events

    @property
    def tip(self) -> CheckpointId | None:
        """The checkpoint on which the open superstep was planned; None before the first."""
        return self.writer.chain.tip

    @property
    def stored(self) -> CheckpointId | None:
        """The last checkpoint on the way to the tip that is stored; None when none is."""
        return self.writer.stored

    def start_point(self) -> StartPoint:
        """Where it has got to: for a later call in its place, when nothing of this one is stored."""
        return StartPoint(
            site=self._site,
            writer=self.writer,
            encoder=self._encoder,
            records=self.task_records,
            scope=self._scope,
            at=self.loaded_at,
            step=self._step,
            branches=self._branches,
            continues=self.continues,
        )

    @property
    def is_needed(self) -> bool:
        """Whether a resume would come here: the task that runs this graph has no result."""
        if self.caller:
            return True
        return all(
            not outer.task_records.has_result(self._site.task)
            and outer.tip == self.parents[outer.ns]
            and outer.is_needed
            for outer in self.outer
        )

    async def find_kept(self) -> None:
        """Find the newest checkpoints of kept states that earlier attempts at the open superstep have moved."""
        at = self.loaded_at
        if at and not self._branches and at == self.tip and self.lease.token.newest != at:
            await find_moved(self.lease, at)

    def add_types(self, *hints: Any) -> None:
        """Make the codec take the types that these annotations name."""
        self._encoder.codec = self.codec.with_annotations(*hints)

    @cached_property
    def digests(self) -> Digests:
        """What its nodes ask, call and run is recognised by."""
        return Digests(self._first_codec, fleeting_keys(self.program))

    def recorded(self, task: Task, run: Answered) -> Recorded:
        """Return what is recorded of a task: its result or its error handler's, questions that this call leaves
        unanswered, or the point from which it has to run."""
        return self.task_records.recorded(task, run)

    def recorded_instead(self, task: Task) -> str | None:
        """Return the name of the task that is recorded in the place of a call if it was another call; else None.

        Args:
            task: the call's, with its digest.
        """
        return self.task_records.recorded_instead(task)

    @property
    def fold_failed(self) -> bool:
        """Whether the open superstep could not be closed with the results that its tasks have."""
        return self.task_records.fold_failed

    @property
    def has_records(self) -> bool:
        """Whether something is recorded of the open superstep."""
        return bool(self.task_records.results)

    def questions(self) -> list[Interrupt]:
        """The open questions of the open superstep's tasks, in plan order."""
        return self.task_records.questions()

    def answers(self) -> dict[str, Any]:
        """All answers that were given in the open superstep, by question id."""
        return self.task_records.answers()

    def answered_questions(self) -> dict[str, Any]:
        """The values of the questions that were answered in the open superstep, by id."""
        return self.task_records.answered_questions()

    def is_same(self, one: Any, other: Any) -> bool:
        """Return True if two values are equal, types included, as the graph's codec stores them."""
        return self.task_records.is_same(one, other)
