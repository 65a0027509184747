"""Read one namespace of a leased thread: its loaded checkpoint, and the records of its open superstep."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final

import msgspec

from checkpoint_savers.codec import Codec
from checkpoint_savers.records import VERSION, CheckpointId, EventRow, TaskId

from ..._core import superstep
from ..._core.board import Board
from ..._core.program import Program, Write
from ..._core.task import Recorded, Task
from ...types import Interrupt, Mismatch
from .commit_writers import CommitWriter
from .digests import Digests, fleeting_keys
from .encoder import Encoder
from .mismatches import require_fit
from .namespaces import CallSite, ids_in
from .records import MIGRATED
from .spending import Amounts
from .spending_counter import SpendingCounter
from .task_records import Answered, TaskRecords

NO_CHECKPOINT: Final = CheckpointId("")
"""The value of `LoadedNamespace.loaded_at` if no checkpoint was loaded."""


class LoadedNamespace:
    """One namespace of a leased thread. It is empty until a function of `loading.py` loads a checkpoint into it.

    Args:
        writer: queues and sends the namespace's transactions.
        codec: encodes the graph's values.
        program: the graph; an attribute, too, which the load extends if the stored state needs that.
        site: where the graph is called from.
        metadata: added to the metadata of each checkpoint.
        outer: the outer graph's namespace, as a tuple of one; empty for the root graph.

    Attributes:
        lease: the thread's lease.
        ns: the namespace; empty for the root graph.
        encoder: encodes writes and changed channels.
        task_records: the records of the open superstep's tasks.
        counter: counts the amounts that the tasks spend.
        board: the loaded board; None if nothing was stored.
        loaded_at: the loaded checkpoint; empty if nothing was stored.
        continues: an earlier attempt at the same call made this state, so its input is on the board already.
        ran_instead: the name of the graph that the earlier attempt ran, if the graph or its input differs; else None.
        step: the superstep of the tip; -1 if there is none.
        scope: the thread id in the ids of the open superstep's tasks: this thread's, or that of the thread from which
            the superstep was copied.
        branches: the next write starts a new branch.
        loaded_version: the entry for the version of the graph that made the loaded checkpoint, in its metadata.
        mismatches: what of the loaded state does not fit the graph.
    """

    def __init__(
        self,
        writer: CommitWriter,
        codec: Codec,
        program: Program,
        site: CallSite,
        metadata: dict[str, Any],
        outer: tuple[LoadedNamespace, ...] = (),
    ) -> None:
        self.lease = lease = writer.lease
        self.writer = writer
        self.ns = writer.ns
        self.program = program
        self.site = site
        self.metadata = metadata
        self.outer = outer
        self.encoder = Encoder(program, codec)
        self.task_records = TaskRecords(program, self.encoder, writer)
        outer_counters = tuple([each.counter for each in outer])
        self.counter: SpendingCounter = SpendingCounter(
            self.task_records, self.ns, lease.spent_in_subgraphs, outer_counters, site.task
        )
        self.board: Board | None = None
        self.loaded_at = NO_CHECKPOINT
        self.continues = False
        self.ran_instead: str | None = None
        self.step = -1
        self.scope = lease.scope
        self.branches = False
        self.loaded_version: dict[str, int] = {}
        self.mismatches: tuple[Mismatch, ...] = ()
        self._first_codec = codec

    is_stored = True

    @property
    def parents(self) -> dict[str, str]:
        """The checkpoint of each outer graph on which the call was made, by namespace."""
        return self.site.parents

    @property
    def caller(self) -> TaskId:
        """The task that runs the graph if the graph keeps its state from call to call; else empty."""
        return self.site.caller

    def continue_call(self, earlier: CallSite) -> None:
        """Note that an earlier attempt at the same call made this state.

        Args:
            earlier: the call site of that attempt.
        """
        self.continues = True
        if earlier.identity.is_other(self.site.identity):
            self.ran_instead = earlier.identity.graph
        self.site = msgspec.structs.replace(self.site, identity=self.site.identity.or_else(earlier.identity))

    @property
    def own_version(self) -> dict[str, int]:
        """The entry for the graph's version in the metadata of new checkpoints; empty without `version=`."""
        return {VERSION: self.program.version} if self.program.version else {}

    @property
    def has_other_version(self) -> bool:
        """Whether another version of the graph, or of an outer graph, planned the open superstep."""
        # Outer graphs count: a subgraph without a version of its own is a part of their code.
        loaded, version = self.loaded_version.get(VERSION, 1), self.program.version or 1
        is_loaded = self.tip is not None and self.tip == self.loaded_at
        return (is_loaded and loaded != version) or any(outer.has_other_version for outer in self.outer)

    @property
    def is_new(self) -> bool:
        """Whether nothing was stored in the namespace when it was loaded."""
        return self.board is None

    @property
    def start(self) -> Board:
        """The board to run from: the loaded one, or an empty one."""
        return Board(self.program) if self.board is None else self.board

    @property
    def kept_scalars(self) -> frozenset[type]:
        """Subclasses of plain scalars that the codec stores as they are."""
        return self.codec.kept_scalars

    def spent_by(self, task: TaskId) -> Amounts:
        """Return the amounts that a task has spent. The caller adds to them."""
        return self.counter.unrecorded_of(task)

    def hand_over_spent(self) -> None:
        """Add the amounts that this namespace has not recorded to the calling task's, at the end of the graph's run."""
        self.counter.hand_over()

    @property
    def codec(self) -> Codec:
        """The codec that encodes the namespace's values."""
        return self.encoder.codec

    @property
    def thread_id(self) -> str:
        return self.lease.thread_id

    @property
    def events(self) -> list[EventRow]:
        """The event rows of the next transaction, and of the one in progress."""
        return self.writer.events

    @property
    def tip(self) -> CheckpointId | None:
        """The checkpoint on which the open superstep was planned; None before the first checkpoint."""
        return self.writer.chain.tip

    @property
    def stored(self) -> CheckpointId | None:
        """The newest stored checkpoint of this run's branch; None if there is none."""
        return self.writer.stored

    @property
    def is_needed(self) -> bool:
        """Whether a resume of the thread would continue this call."""
        # A kept state is continued by later calls. Another call is continued only while its task has no result, on the
        # same checkpoint of the outer graph, and as long as that graph is continued itself.
        if self.caller:
            return True
        return all(
            not outer.task_records.has_result(self.site.task)
            and outer.tip == self.parents[outer.ns]
            and outer.is_needed
            for outer in self.outer
        )

    def add_types(self, *hints: Any) -> None:
        """Let the codec encode the types that these annotations name."""
        self.encoder.codec = self.codec.with_annotations(*hints)

    @cached_property
    def digests(self) -> Digests:
        """The digests by which repeated questions, calls and subgraph runs are recognised."""
        # Of the codec without the types that `add_types` adds: they come in the order of the calls, which may differ
        # in another attempt, and a digest must not.
        return Digests(self._first_codec, fleeting_keys(self.program))

    def recorded(self, task: Task, run: Answered) -> Recorded:
        """Return a task's recorded result (or its error handler's), its unanswered questions, or where it starts."""
        return self.task_records.recorded(task, run)

    def recorded_instead(self, task: Task) -> str | None:
        """Return the name of the task that is recorded in a call's position if it is another call; else None.

        Args:
            task: the called task, with its digest.
        """
        return self.task_records.recorded_instead(task)

    @property
    def fold_failed(self) -> bool:
        """Whether the open superstep could not be closed with the results that its tasks have."""
        return self.task_records.fold_failed

    @property
    def has_records(self) -> bool:
        """Whether the open superstep has records, except that of a migration, which any checkpoint can follow."""
        return any(task_id != MIGRATED for task_id in self.task_records.results)

    def adopt(self, program: Program) -> None:
        """Use a program that was extended for the loaded state; see `Restored`."""
        if program is not self.program:
            self.program = program
            self.encoder.use(program)
            self.task_records.use(program)

    def require_fit(self, writes: Iterable[Write] = (), *, discards: bool = False) -> None:
        """Raise `GraphChangedError` if the loaded state does not fit the graph.

        Args:
            writes: the writes of the call's input or update, which may replace values that do not fit.
            discards: the call discards pending tasks.
        """
        if self.mismatches:
            require_fit(self.thread_id, self.program, self.mismatches, writes, discards=discards)

    def is_untouched(self) -> bool:
        """Return True if tasks are pending, and none of the open superstep has failed or was answered.

        A failure that is left to an error handler does not count.
        """
        results = self.task_records.results.values()
        # On a new branch the superstep runs again. An answer there would be meant for a question of the old branch.
        if self.branches or any((each.error and not each.handled) or each.answers for each in results):
            return False
        return bool(superstep.plan(self.program, self.start, (self.scope, ids_in(self.ns, self.caller))))

    def questions(self) -> list[Interrupt]:
        """Return the open questions of the open superstep's tasks, in plan order."""
        return self.task_records.questions()

    def answers(self) -> dict[str, Any]:
        """Return all answers of the open superstep, by question id."""
        return self.task_records.answers()

    def answered_questions(self) -> dict[str, Any]:
        """Return the values of the answered questions of the open superstep, by question id."""
        return self.task_records.answered_questions()

    def is_same(self, one: Any, other: Any) -> bool:
        """Return True if two values are equal, types included, as the graph's codec stores them."""
        return self.task_records.is_same(one, other)
