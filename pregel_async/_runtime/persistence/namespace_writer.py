"""One namespace of a claimed thread, as its run writes it: load it, commit each superstep, record what tasks leave.

One superstep is one transaction. Every write compares the claim's epoch and the head in the database, so that a run
whose thread was taken over changes nothing any more and says so.

Where a subgraph's state stands
    Its checkpoints say in their metadata (`parents`) on which checkpoints of the graphs around it they were made. So a
    subgraph that was interrupted in the open superstep of its parent is found again by that superstep's checkpoint,
    and a fork of the parent, which has another, does not find it: what is stored belongs to its branch. A subgraph
    that keeps its state from call to call is found by its tip besides, which the root's checkpoints carry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol, TypedDict

import anyio
import msgspec

from checkpoint_savers.codec import Codec
from checkpoint_savers.entries import Entry, TaskEntry, read_record, write_record
from checkpoint_savers.errors import CheckpointError, UnstorableValueError, annotate
from checkpoint_savers.growth import WORTH, decode, in_parts
from checkpoint_savers.ledger import Ledger, Reader
from checkpoint_savers.records import (
    CALLER,
    GIVEN,
    MADE_IN,
    Chain,
    CheckpointId,
    CheckpointRow,
    EventRow,
    TaskId,
    TaskRecord,
)
from checkpoint_savers.saver_port import PAGE
from checkpoint_savers.sharing import filled_sends

from ..._core.amending import amend
from ..._core.board import Board
from ..._core.program import BRANCH, PARENT, RETURN, SENDS, Program, Write
from ..._core.task import NEW, Failed, Finished, Outcome, Paused, Recorded, Task, Unfinished
from ...channels import LastValue
from ...errors import CheckpointNotFoundError, GraphChangedError, RecordedFailureError
from ...types import Interrupt
from ..observing.error_text import described, with_notes
from .commit_writers import Late, Outbox, outbox
from .digests import Digests, fleeting_keys, is_changed
from .encoder import Encoder
from .lease import Hold
from .namespaces import has_child, ids_in, made_on, parents_of, was_made_on
from .records import AMENDED, BETWEEN, SUPERSTEP, amend_again, handler_of, is_result, open_questions
from .restore import UNFIT, is_unknown, restore, warn_of_unknown
from .spending_counter import Counter

Source = Literal["input", "loop", "update", "fork"]


class Answered(Protocol):
    """Which answers there are; see `context.Session`."""

    @property
    def answers(self) -> Mapping[str, Any]: ...

    @property
    def given(self) -> Mapping[str, Any]: ...


class _NothingAnswered:
    """No answers: of a thread that is looked at, and not resumed."""

    answers: Mapping[str, Any] = {}
    given: Mapping[str, Any] = {}


NOTHING_ANSWERED = _NothingAnswered()

_NOTHING_RECORDED = TaskEntry(name="", routed=False)


class _Asked(TypedDict):
    """Fields of a `TaskEntry`."""

    answers: dict[str, bytes]
    askers: dict[str, tuple[str, ...]]
    asked: tuple[tuple[str, bytes], ...]


class Thread:
    """One namespace of a claimed thread.

    Attributes:
        ns: the namespace, "" for the root graph's.
        parents: namespace -> checkpoint, of the graphs around this one.
        board: what was loaded; None when it held nothing.
        caller: the task that runs the graph, when its state is kept from call to call; else None.
        continues: an earlier attempt at the same call has got this far: its input is on the board already.
        ran_instead: the name of the graph that this earlier attempt ran, if that or its input differs.
        counter: of what its tasks spend.
    """

    def __init__(
        self,
        hold: Hold,
        codec: Codec,
        program: Program,
        *,
        ns: str,
        metadata: dict[str, Any],
        parents: dict[str, str],
        outer: Thread | None = None,
        task: TaskId | None = None,
        caller: TaskId | None = None,
    ) -> None:
        self.hold = hold
        self._encoder = Encoder(program, codec)
        self.program = program
        self.ns = ns
        self.metadata = metadata
        self.parents = parents
        self.board: Board | None = None
        self.continues = False
        self.ran_instead: str | None = None
        self._given: tuple[str, str] | None = None  # the graph's name, and the digest of what it is called with
        self._outer = outer
        self.caller = caller
        self._loaded: CheckpointId | None = None
        self._made_in: str | None = None  # the thread that the open superstep was copied from
        self._first_codec = codec
        self._digests: Digests | None = None  # made for the first call
        self._recorded_names: set[str] | None = None  # of the tasks that something is or was recorded of
        self._branches = False  # a resume starts a branch here
        self._records: dict[TaskId, TaskEntry] = {}  # of the open superstep, as they are or will be stored
        self._task = task
        self.counter: Counter = Counter(self, ns, hold.spent_inside, None if outer is None else outer.counter, task)
        told = self._stands_at if outer is not None and caller is not None else None
        self._out: Outbox = outbox(hold, ns, None if outer is None else outer._out, told)
        self._step = -1
        self._inside: dict[str, Thread] = {} if outer is None else outer._inside  # with "exit": the graphs inside
        if outer is None and isinstance(self._out, Late):
            self._out.end = self._store_all

    @property
    def codec(self) -> Codec:
        """What its values are stored with."""
        return self._encoder.codec

    @property
    def thread_id(self) -> str:
        return self.hold.thread_id

    @property
    def scope(self) -> str:
        """What the ids of the open superstep's tasks are made of: the thread's id, or that of the thread in which the
        superstep was planned, when it was copied from there."""
        return self.thread_id if self._made_in is None else self._made_in

    @property
    def _amended_in(self) -> tuple[str, str]:
        """What the ids of messages are made in that calls bring to the open superstep."""
        return self.scope, ids_in(self.ns, self.caller or "")

    @property
    def _ledger(self) -> Ledger:
        return self._out.ledger

    @property
    def records(self) -> Mapping[TaskId, TaskEntry]:
        """Of the open superstep's tasks, as they are or will be stored."""
        return self._records

    @property
    def totals(self) -> Mapping[str, str]:
        """What was spent until the last superstep, as it is stored."""
        return self._ledger.state.spent

    @property
    def events(self) -> list[EventRow]:
        """Rows of events that are to go with the next transaction, or do with the one that is under way."""
        return self._out.events

    @property
    def tip(self) -> CheckpointId | None:
        """The checkpoint on which the open superstep was planned; None before the first."""
        return self._ledger.tip

    @property
    def stored(self) -> CheckpointId | None:
        """The last checkpoint on the way to the tip that is stored; None when none is."""
        return self._out.stored

    # ---- loading -------------------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        hold: Hold,
        codec: Codec,
        program: Program,
        *,
        ns: str = "",
        at: CheckpointId | None = None,
        fork: bool = False,
        metadata: dict[str, Any],
    ) -> Thread:
        """Load a namespace.

        Args:
            at: the checkpoint to go on from; None for the head.
            fork: go on from there on a branch of its own, even if it is a tip.

        Raises:
            CheckpointNotFoundError, GraphChangedError, CorruptCheckpointError, StorageError: nothing was changed.
        """
        thread = cls(hold, codec, program, ns=ns, metadata=metadata, parents={})
        chain: Chain | None = None
        if hold.fresh:
            await anyio.lowlevel.checkpoint_if_cancelled()  # as reading would notice
        else:
            chain = await hold.saver.read(hold.thread_id, ns, at)
        if chain is None and at is not None:
            raise CheckpointNotFoundError(hold.thread_id, at)
        await thread._load(chain, fork=fork)
        if not ns:
            hold.tips = {name: CheckpointId(tip) for name, tip in thread._ledger.state.tips.items()}
        return thread

    @classmethod
    async def nested(
        cls,
        outer: Thread,
        codec: Codec,
        program: Program,
        *,
        ns: str,
        task: TaskId,
        caller: TaskId | None,
        at: CheckpointId | None = None,
        given: tuple[str, str] | None = None,
    ) -> Thread:
        """Load the namespace of a graph that a node of another graph runs.

        Args:
            task: that runs it.
            caller: the task that runs the graph, when its state is kept from call to call; else None.
            at: travel in time: go on from this checkpoint; on a branch of its own, when the graph around is on one.
            given: the graph's name and the digest of its input; None if they are not compared.

        Raises: as `open`.
        """
        hold = outer.hold
        assert outer.tip is not None  # a superstep always follows a checkpoint
        parents = {**outer.parents, outer.ns: outer.tip}
        thread = cls(
            hold, codec, program, ns=ns, metadata=outer.metadata, parents=parents, outer=outer, task=task, caller=caller
        )
        thread._given = given
        if isinstance(thread._out, Late):
            before = thread._inside.get(ns)
            thread._inside[ns] = thread
            if before is not None and before.tip is not None and at is None:
                thread._go_on_from(before, before.tip)
                return thread
        if hold.fresh and ns not in hold.visited:
            return thread  # nothing of this thread is older than this run, which has not been here
        chain = await hold.saver.read(hold.thread_id, ns, at)
        if at is not None:
            if chain is None:
                raise CheckpointNotFoundError(hold.thread_id, at)
            await thread._load(chain, fork=outer.tip != outer._loaded)
            thread._stands_at(at)
            thread.continues = True
            return thread
        if chain is None:
            return thread
        thread._out.head = chain.head
        found = await thread._made_here(chain)
        if found is not None:
            await thread._load(found)
            thread._continue(_given_of(found.rows[-1]))
        elif caller is not None:
            tip = chain.head if parents_of(chain.rows[-1]).get("") == parents[""] else hold.tips.get(ns)
            if tip is not None:
                await thread._load(await hold.saver.read(hold.thread_id, ns, tip))
        return thread

    def _go_on_from(self, before: Thread, tip: CheckpointId) -> None:
        """Take over what this run has left here, of which nothing is stored: an earlier attempt at this call, or an
        earlier call of a graph that keeps its state."""
        self._out, self._loaded, self._step = before._out, before._loaded, before._step
        self._branches, self._records, self._made_in = before._branches, before._records, before._made_in
        self._recorded_names = before._recorded_names
        self.board = restore(self.program, self._ledger.state, self._step, self.codec, thread_id=self.thread_id)
        amended = self._records.get(AMENDED)
        if amended is not None:
            amend_again(self.program, self.board, amended, self.codec, self._amended_in)
        made = [put.metadata for put in self._ledger.put if put.checkpoint_id == tip]
        mine = any(each["parents"] == self.parents and each.get(CALLER) == self.caller for each in made)
        if mine or (before.continues and (before.parents, before.caller) == (self.parents, self.caller)):
            self._continue(before._given)

    def _continue(self, given: tuple[str, str] | None) -> None:
        """Note that an earlier attempt at the same call has got this far, and what that was called with."""
        self.continues = True
        if given is not None and self._given is not None:
            (name, then), (_, now) = given, self._given
            if name != self._given[0] or is_changed(bytes.fromhex(then), bytes.fromhex(now)):
                self.ran_instead = name
        self._given = self._given or given

    async def _made_here(self, chain: Chain) -> Chain | None:
        """The newest state that was made by an earlier attempt at this very call, if there is one."""
        outer, hold = self._outer, self.hold
        assert outer is not None and outer.tip is not None
        if was_made_on(chain.rows[-1], outer.ns, outer.tip, self.caller):
            return chain
        if outer.tip != outer._loaded:
            return None  # this run made that checkpoint, and on it nothing but what the head would show
        found = await made_on(hold.saver, hold.thread_id, self.ns, outer.ns, outer.tip, caller=self.caller)
        return None if found is None else await hold.saver.read(hold.thread_id, self.ns, found[0])

    async def _load(self, chain: Chain | None, *, fork: bool = False) -> None:
        if chain is None:
            return
        self._out.head = chain.head
        row = chain.rows[-1]
        at = self._loaded = row.checkpoint_id
        self._step = row.step
        self._made_in = row.metadata.get(MADE_IN)
        reader = Reader(self.thread_id, self.ns, chain.rows)
        if self._outer is None:
            self.parents = parents_of(row)
            self.caller = row.metadata.get(CALLER)
            self._given = _given_of(row)
        self.board = restore(self.program, reader.state(at), row.step, self.codec, thread_id=self.thread_id)
        self._encoder.loaded(self.board, reader.state(at))
        self._out.ledger, self._out.stored, self._out.standing = Ledger.resume(reader, at), at, row.step
        if at != chain.head and not fork:
            fork = await has_child(self.hold.saver, self.thread_id, self.ns, at)
            self._out.moves = not fork
        self._branches = fork
        # An older checkpoint is deliberately run again from there: what was recorded after it stays with its branch.
        # But an update that a call made to the state is part of the state.
        kept = [record for record in chain.records if not fork or record.task_id == AMENDED]
        self._records = {record.task_id: self._fitting(record) for record in kept}
        for record in self._records.values():
            self.hold.askers.update(record.askers)
        self._recorded_names = {entry.name for entry in self._records.values()} if self._records else None
        self.counter.loaded()
        amended = self._records.get(AMENDED)
        if amended is not None:
            amend_again(self.program, self.board, amended, self.codec, self._amended_in)

    async def find_kept(self) -> None:
        """Learn where the kept states stand that earlier attempts at the open superstep have moved.

        Whoever moved them may have its result, and not run again, so that nobody else would tell.
        """
        hold, at = self.hold, self._loaded
        if self._branches or at is None or at != self.tip or hold.claim.newest == at:
            return
        before: CheckpointId | None = None
        while True:
            page = await hold.saver.scan(self.thread_id, None, before=before, limit=PAGE)
            for header in page:
                if header.checkpoint_id <= at:
                    return
                if CALLER in header.metadata and parents_of(header).get("") == at and header.ns not in hold.moved:
                    hold.tips[header.ns] = hold.moved[header.ns] = header.checkpoint_id
            if len(page) < PAGE:
                return
            before = page[-1].checkpoint_id

    def _fitting(self, record: TaskRecord) -> TaskEntry:
        """A record, checked against the graph's code as it is now. What it wrote to a key that the graph does not have
        stays in it; see `_keep_unknown`.

        Raises:
            GraphChangedError: it leads to a node that does not exist.
        """
        entry = read_record(record, self.thread_id)
        for channel, _ in entry.writes:
            if channel.startswith(BRANCH) and channel not in self.program.channels:
                node = channel.removeprefix(BRANCH)
                reason = f"node {entry.name!r} has finished and leads to node {node!r}, and there is no such node"
                raise GraphChangedError(self.thread_id, node, reason)
            warn_of_unknown(self.program, channel, self.thread_id)
        return entry

    def branch_off(self, board: Board) -> None:
        """Go on from an older checkpoint on a branch of its own, which starts with a copy of that checkpoint.

        So what is recorded from here on stands under another checkpoint than what the other branch recorded.
        """
        if self._branches:
            self._branches = False
            entry = Entry(
                full=False,
                ts=self.hold.world.now(),
                clock=board.clock,
                values={},
                emptied=(),
                kinds={},
                versions={},
                seen={},
                ran=self._ledger.state.ran,
                results={},
            )
            self._append(entry, board.step, "fork")
            amended = self._records.get(AMENDED)
            if amended is not None:
                self._out.stage(self._task_record(AMENDED, -1, amended))

    def know(self, *hints: Any) -> None:
        """Make the codec take the types that these annotations name."""
        self._encoder.codec = self.codec.with_annotations(*hints)

    # ---- what earlier runs recorded --------------------------------------------------------------------------------

    def recorded(self, task: Task, run: Answered) -> Recorded:
        """What is recorded of a task: its result or its error handler's, questions that none of the answers of this
        call lets go on, or where it has to start."""
        entry = self._records.get(task.id) if self._records else None
        if entry is None:
            return NEW
        by = handler_of(task, entry)
        acting = entry if by is None else self._records.get(by.id, _NOTHING_RECORDED)
        if acting.finished:
            return self._finished(acting, by)
        if run.given and acting.interrupts and not any(key in run.given for key, _ in acting.interrupts):
            asked = tuple([each for each in open_questions(acting, self.codec) if each.id not in run.answers])
            if asked:
                return Paused(asked, None if acting.routed else self._decoded(acting), by)
        if by is not None:
            kind, message, _ = entry.error or ("", "", 0.0)
            return Unfinished(failures=(RecordedFailureError(kind, message),))
        return NEW if entry.routed else Unfinished(self._decoded(entry))

    def _finished(self, entry: TaskEntry, by: Task | None) -> Finished:
        writes = self._decoded(entry)
        leaves = any(name == PARENT for name, _ in writes)
        return Finished(writes, replayed=True, own=len(writes), leaves=leaves, by=by)

    @property
    def digests(self) -> Digests:
        """What its nodes ask, call and run is recognised by."""
        if self._digests is None:
            self._digests = Digests(self._first_codec, fleeting_keys(self.program))
        return self._digests

    def recorded_instead(self, task: Task) -> str | None:
        """Return the name of the task that is recorded in the place of a call if it was another call; else None.

        Args:
            task: the call's, with its digest.
        """
        if not self._records:
            return None
        entry = self._records.get(task.id)
        if entry is not None:
            return entry.name if is_changed(entry.call, task.digest) else None
        # An id is made of the task's name, too: another task's record has the id that its name gives in this place.
        names = sorted(self._recorded_names or ())
        return next((name for name in names if name != task.node.name and task.id_as(name) in self._records), None)

    async def record_failure(
        self, task: Task, error: Exception, events: Callable[[], EventRow | None] | None = None
    ) -> None:
        """Store that a task has failed, and that its error handler is to run; return when that is durable."""
        failed = self._failure(task.node.name, error, (), routed=True)
        await self._record(task, msgspec.structs.replace(failed, handled=True, **self._asked_of(task.id)), events)

    def _decoded(self, entry: TaskEntry) -> list[Write]:
        channels = self.program.channels
        known = [write for write in entry.writes if write[0] in channels or write[0] in (PARENT, RETURN)]
        writes = [(channel, self.codec.decode(data, channel=channel)) for channel, data in known]
        if not any(channel == SENDS for channel, _ in writes):
            return writes
        values = self._ledger.state.values  # the superstep was planned on it, and a recorded send may refer to it

        def value_of(channel: str) -> Any:
            return decode(values[channel], self.codec, channel=channel)

        where = f"thread {self.thread_id!r}, task {entry.name!r}"
        return [
            (channel, filled_sends([value], value_of, where)[0] if channel == SENDS else value)
            for channel, value in writes
        ]

    def _unknown_writes(self, task_id: TaskId) -> tuple[tuple[str, bytes], ...]:
        """What is recorded of a task for keys that the graph does not have."""
        entry = self._records.get(task_id)
        return () if entry is None else tuple([each for each in entry.writes if is_unknown(self.program, each[0])])

    def _keep_unknown(self, ran: Sequence[Task], outcomes: Sequence[Outcome], entry: Entry) -> None:
        """Add to a superstep's entry what finished tasks have recorded for keys that the graph does not have.

        A write takes the place of the stored value where the channel held the last value that was written. Of other
        kinds the fold is not known without the code: their updates stay in the records of the superstep.
        """
        by = [(each.by or task).id for task, each in zip(ran, outcomes, strict=True) if isinstance(each, Finished)]
        kinds = self._ledger.state.kinds
        for task_id in (AMENDED, *by):
            for name, data in self._unknown_writes(task_id):
                kind = kinds.get(name)
                if kind is None:
                    entry.kinds[name] = LastValue.kind
                if kind is None or kind.removesuffix(UNFIT) == LastValue.kind:
                    entry.values[name] = data if len(data) < WORTH else in_parts(data)

    # ---- questions and answers -------------------------------------------------------------------------------------

    def questions(self) -> list[Interrupt]:
        """The open questions of the open superstep's tasks, in plan order."""
        return [question for entry in self._records.values() for question in open_questions(entry, self.codec)]

    def answers(self) -> dict[str, Any]:
        """All answers that were given in the open superstep, by question id."""
        return {
            key: self.codec.decode(data, channel="an answer")
            for entry in self._records.values()
            for key, data in entry.answers.items()
        }

    def answered_questions(self) -> dict[str, Any]:
        """The values of the questions that were answered in the open superstep, by id."""
        return {
            key: self.codec.decode(data, channel="interrupt()")
            for entry in self._records.values()
            for key, data in entry.asked
        }

    def is_same(self, one: Any, other: Any) -> bool:
        """Return True if two values are equal, types included, as the graph's codec stores them."""
        try:
            return self.codec.canonical(one, channel="interrupt()") == self.codec.canonical(
                other, channel="interrupt()"
            )
        except UnstorableValueError:
            return False

    async def resume(self, board: Board, answers: Mapping[str, Any], edits: list[Write]) -> None:
        """Record what a call brings to the open superstep, in one transaction and before anything runs: answers to open
        questions, and an update to the state, which is made on the board.

        Raises:
            UnstorableValueError: nothing was stored.
            Exception: what a channel or a reducer makes of the update; nothing was stored.
        """
        entries = self._answered(answers)
        if edits:
            before = self._records.get(AMENDED)
            earlier = () if before is None else (*before.writes, (BETWEEN, b""))
            data = self._encoder.writes(edits)
            self.branch_off(board)
            number = 0 if before is None else 1 + sum(channel == BETWEEN for channel, _ in before.writes)
            amend(self.program, board, edits, scope=self._amended_in, number=number)
            entries[AMENDED] = (-1, TaskEntry(name="", writes=(*earlier, *data)))
        if entries:
            await self._keep(entries)

    def _answered(self, answers: Mapping[str, Any]) -> dict[TaskId, tuple[int, TaskEntry]]:
        changed: dict[TaskId, tuple[int, TaskEntry]] = {}
        for task_id, entry in self._records.items():
            asked = {key for key, _ in entry.interrupts or ()}
            given = {
                key: self.codec.encode(value, channel=f"the answer to {key}")
                for key, value in answers.items()
                if key in asked
            }
            if given:
                questions = tuple([(key, data) for key, data in entry.interrupts or () if key in given])
                entry = msgspec.structs.replace(
                    entry, answers={**entry.answers, **given}, asked=(*entry.asked, *questions)
                )
                changed[task_id] = (0, entry)
        return changed

    async def _keep(self, entries: dict[TaskId, tuple[int, TaskEntry]]) -> None:
        records = [self._task_record(task_id, index, entry) for task_id, (index, entry) in entries.items()]
        with anyio.CancelScope(shield=True):
            await self._out.answer(records)
        self._records.update({task_id: entry for task_id, (_, entry) in entries.items()})

    # ---- writing -----------------------------------------------------------------------------------------------------

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
        """Store a finished superstep: one transaction. The claim is given up in it when nothing is left to run.

        With `source="input"` the tasks are those that the new input discards; the failures recorded of them stay in
        history. A superstep that no code of the user's follows before the next commit (the input, before the hidden
        start) waits and is stored with that commit.

        Args:
            waits: store it with the next transaction, whatever follows.
            closes: an update closes the superstep, with a result of each of its tasks: its failure is over.
            made: told of the new checkpoint before it is stored.

        Returns:
            Whether it is stored; False while it waits.

        Raises:
            ThreadBusyError: with `lost=True`.
            UnstorableValueError: with a note that names the tasks that wrote it; they are recorded as failed.
            StorageError: it was rolled back whole.
        """
        try:
            entry = self._entry(board, ran, outcomes, source)
        except UnstorableValueError as error:
            if source == "input":  # nothing is stored of it
                self._encoder.locate(board)
            elif source == "loop":
                await self._refuse(error, ran, outcomes)
            raise
        if self._records:
            if source == "loop" or closes:
                self._clear_failures(ran, outcomes)
            self._records = {}
        if self._inside:
            self._drop_inside()
        row = self._append(entry, board.step, source)
        self._branches = False
        if made is not None:
            made(row)
        if waits or (upcoming and upcoming[0].node.hidden):  # the hidden start runs alone
            return False
        await self._out.commit(ends=not upcoming)
        return True

    def _clear_failures(self, ran: Sequence[Task], outcomes: Sequence[Outcome]) -> None:
        """What is recorded of the superstep is void with the next commit, but for results, and for failures that were
        handled: those are part of what happened."""
        tip = self._ledger.tip
        if tip is None:
            return
        handled = {task.id for task, outcome in zip(ran, outcomes, strict=True) if _by(outcome) is not None}
        self._out.clear(
            [
                (self.ns, tip, task_id)
                for task_id, record in self._records.items()
                if not is_result(record) and task_id not in handled
            ]
        )

    def _append(self, entry: Entry, step: int, source: Source) -> CheckpointRow:
        metadata = {**self.metadata, "source": source, "step": step, "parents": self.parents}
        if self.caller is not None:
            metadata[CALLER] = self.caller
        if self._given is not None:
            metadata[GIVEN] = list(self._given)
        if source != "fork":  # else its tasks are those that were planned on what it is a copy of
            self._made_in = None
        elif self._made_in is not None:
            metadata[MADE_IN] = self._made_in
        self._step = step
        return self._out.add(entry, step, metadata)

    # ---- graphs inside, with "exit" ----------------------------------------------------------------------------------

    def _drop_inside(self) -> None:
        """The superstep is over: so are the graphs that its nodes ran, but for those that keep their state."""
        over: list[Thread] = [self]
        for ns, thread in sorted(self._inside.items(), key=lambda item: len(item[1].parents)):
            if thread._outer in over and thread.caller is None:
                over.append(thread)
                del self._inside[ns]

    async def _store_all(self, releases: bool) -> None:
        """Store all that the run has made and is of use, in the order in which one refers to another."""
        inside = sorted(self._inside.values(), key=lambda thread: len(thread.parents))
        at = None if releases else self.tip
        late = [(thread, thread._out) for thread in inside if isinstance(thread._out, Late)]
        for thread, out in late:
            if thread.caller is not None:
                await out.store_closed(at)
        left = [(thread, out) for thread, out in late if thread._is_needed and not releases]
        for _, out in reversed(left):
            if out.waits and isinstance(out.outer, Late):
                out.outer.due = True  # it is stored first, be it no more than the fork that this was made on
        assert isinstance(self._out, Late)
        await self._out.store(releases=releases)
        for _, out in left:
            await out.store()

    @property
    def _is_needed(self) -> bool:
        """Whether a resume would come here: the task that runs this graph has no result."""
        outer = self._outer
        if outer is None or self.caller is not None:
            return True
        here = self._task is not None and not outer._has_result(self._task) and outer.tip == self.parents[outer.ns]
        return here and outer._is_needed

    def _stands_at(self, tip: CheckpointId) -> None:
        """Where the state stands now that is kept from call to call: at a checkpoint that is stored."""
        if self._outer is not None and self.caller is not None:
            self.hold.tips[self.ns] = self.hold.moved[self.ns] = tip

    def _entry(self, board: Board, ran: Sequence[Task], outcomes: Sequence[Outcome], source: Source) -> Entry:
        """What the superstep changed, encoded."""
        values, kinds, emptied = self._encoder.changed(board, self._ledger.state)
        seen: dict[str, dict[str, int]] = {}
        for task in ran:
            for trigger in task.triggers:
                version = board.seen.get(trigger, {}).get(task.node.name)
                if version is not None and board.channels[trigger].tracked:
                    seen.setdefault(trigger, {})[task.node.name] = version
        results: dict[str, tuple[tuple[str, bytes | None], ...]] = {}
        for task, outcome in zip(ran, outcomes, strict=True):
            if isinstance(outcome, Finished) and not task.node.hidden:
                by = outcome.by or task
                if not self._records or not self._has_result(by.id):
                    results[by.id] = self._encoder.shown(board, outcome.writes)
        versions = {name: version for name in values if (version := board.versions[name]) != board.clock}
        entry = Entry(
            full=False,
            ts=self.hold.world.now(),
            clock=board.clock,
            values=values,
            emptied=tuple(emptied),
            kinds=kinds,
            versions=versions,
            seen=seen,
            ran=board.ran,
            results=results,
            tips=self._moved_tips() if self.hold.moved else {},
            spent=self.counter.close(anew=source == "input" and self._outer is not None),
        )
        if self.program.warned and self._records:
            self._keep_unknown(ran, outcomes, entry)
        return entry

    def _moved_tips(self) -> dict[str, str]:
        if self._outer is not None:
            return {}
        moved, self.hold.moved = self.hold.moved, {}
        return dict(moved)

    async def _refuse(self, error: UnstorableValueError, ran: Sequence[Task], outcomes: Sequence[Outcome]) -> None:
        """Record the tasks that wrote a value which cannot be stored as failed; the others keep their results."""
        refused: list[Outcome] = []
        for task, outcome in zip(ran, outcomes, strict=True):
            if (
                isinstance(outcome, Finished)
                and not self._has_result((outcome.by or task).id)
                and self._encoder.writes_if_storable(outcome.writes) is None
            ):
                error.add_note(f"written by node {task.node.name!r}, superstep {task.step}, task {task.id}")
                refused.append(Failed(error, outcome.writes[: outcome.own]))
            else:
                refused.append(outcome)
        await self.give_up(ran, refused, error)

    async def record(
        self, task: Task, writes: list[Write], *, routed: bool, events: Callable[[], EventRow | None] | None = None
    ) -> None:
        """Store what a task wrote. Tasks that finish while a transaction is under way share the next one.

        Args:
            events: makes the row of the task's events, once it is sure that the record can be stored.
        """
        try:
            data = self._encoder.writes(writes)
        except UnstorableValueError as error:
            error.add_note(f"written by node {task.node.name!r}, superstep {task.step}, task {task.id}")
            raise
        data = (*data, *self._unknown_writes(task.id))
        asked = _Asked(answers={}, askers={}, asked=()) if routed else self._asked_of(task.id)
        await self._record(task, TaskEntry(name=task.node.name, writes=data, routed=routed, **asked), events)

    async def _record(self, task: Task, entry: TaskEntry, events: Callable[[], EventRow | None] | None = None) -> None:
        if task.digest:
            entry = msgspec.structs.replace(entry, call=task.digest)
            self._recorded_names = self._recorded_names or set()
            self._recorded_names.add(entry.name)
        entry = self.counter.with_spent(task.id, entry)
        noted = partial(self._records.__setitem__, task.id, entry)
        record = self._task_record(task.id, task.index, entry)
        await self._out.record(record, noted, None if events is None else events())

    def forget(self) -> None:
        """Drop what waits for the next transaction: the thread is as it was found, and this run writes nothing more."""
        self._out.forget()

    async def spill(self) -> None:
        """Store the events that wait, as there are too many of them."""
        await self._out.spill()

    async def rest(self) -> None:
        """The run ends here, or is cut off: store what is to be kept of it."""
        await self._out.rest()

    async def finish(self) -> None:
        """The run of this graph is over, however it ended: what was taken over is stored when this returns."""
        await self._out.finish()

    def acknowledge(self, told: Callable[[int], None]) -> None:
        """Tell, from now on, which superstep is stored with all before it."""
        self._out.acknowledged = told

    # ---- editing -----------------------------------------------------------------------------------------------------

    def stage(self, task: Task, writes: list[Write]) -> None:
        """Make these the result of a task of the open superstep; stored with the next transaction.

        Raises:
            UnstorableValueError
        """
        data = self._encoder.writes(writes)
        entry = self.counter.with_spent(task.id, TaskEntry(name=task.node.name, writes=data))
        self._records[task.id] = entry
        self._out.stage(self._task_record(task.id, task.index, entry))

    def copy_beside(self, board: Board) -> None:
        """Go on from a copy of the loaded checkpoint, with the same parent; what is recorded stays with the other.

        But an update that a call made to the state is part of the state: it is recorded of the copy too.
        """
        amended = self._records.get(AMENDED)
        self._out.ledger = self._ledger.beside()
        self._records = {}
        self._branches = True
        self.branch_off(board)
        if amended is not None:
            self._records[AMENDED] = amended
            self._out.stage(self._task_record(AMENDED, -1, amended))

    async def settle(self) -> None:
        """Store all that waits, in one transaction, and give the thread up."""
        await self._out.settle()

    @property
    def fold_failed(self) -> bool:
        """Whether the open superstep could not be closed with the results that its tasks have."""
        return SUPERSTEP in self._records

    @property
    def has_records(self) -> bool:
        """Whether something is recorded of the open superstep."""
        return bool(self._records)

    async def pause(self, tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> None:
        """Record a superstep that stays open: what finished and is not recorded yet, and what was asked.

        Raises:
            ThreadBusyError: with `lost=True`.
            StorageError
        """
        entries: list[tuple[Task, TaskEntry]] = []
        for task, outcome in zip(tasks, outcomes, strict=True):
            if isinstance(outcome, (Paused, Finished)):
                entries += self._recorded(outcome.by or task, outcome)
        self.counter.with_rest(entries)
        records = [self._task_record(task.id, task.index, entry) for task, entry in entries]
        self._records.update({task.id: entry for task, entry in entries})  # before it is asked who has a result
        self.counter.tell()
        await self._out.put(records)

    def _recorded(self, task: Task, outcome: Paused | Finished) -> Iterator[tuple[Task, TaskEntry]]:
        """The record of a task that has none as yet: of its questions, or of its result."""
        if isinstance(outcome, Paused):
            yield task, self.counter.with_spent(task.id, self._paused(task, outcome))
        elif not self._has_result(task.id):
            written = self._encoder.writes_if_storable(outcome.writes)
            if written is not None:
                yield task, self.counter.with_spent(task.id, TaskEntry(name=task.node.name, writes=written))

    def check(self, task: Task, asked: Paused) -> None:
        """Refuse questions that cannot be stored, or a node's own writes beside those of its router.

        Raises:
            UnstorableValueError: with a note that names the task.
        """
        try:
            self._encoder.writes(asked.writes or [])
            self._encoder.questions(asked.interrupts)
        except UnstorableValueError as error:
            error.add_note(f"of node {task.node.name!r}, superstep {task.step}, task {task.id}")
            raise

    def _paused(self, task: Task, outcome: Paused) -> TaskEntry:
        return TaskEntry(
            name=task.node.name,
            writes=() if outcome.writes is None else self._encoder.writes_if_storable(outcome.writes) or (),
            routed=outcome.writes is None,
            interrupts=self._encoder.questions(outcome.interrupts),
            **self._asked_of(task.id, outcome),
        )

    def _asked_of(self, task_id: TaskId, outcome: Paused | None = None) -> _Asked:
        """What a task's next record keeps of what it was answered, and who depends on the answers."""
        before = self._records.get(task_id)
        answers = {} if before is None else before.answers
        keys = [*answers, *(each.id for each in (() if outcome is None else outcome.interrupts))]
        askers = {key: self.hold.askers[key] for key in keys if key in self.hold.askers}
        return _Asked(answers=answers, askers=askers, asked=() if before is None else before.asked)

    async def give_up(self, tasks: Sequence[Task], outcomes: Sequence[Outcome], error: BaseException) -> bool:
        """Record a superstep that failed: what finished and is not recorded yet, and what failed, in one transaction.

        Returns:
            Whether it is stored. If storing fails too, the superstep's own error is still the one that is raised, and
            the other becomes its note.
        """
        entries: list[tuple[Task, TaskEntry]] = []
        for task, outcome in zip(tasks, outcomes, strict=True):
            if isinstance(outcome, Failed):
                # Once the error handler has begun, what fails is the handler. The node's own failure stays recorded, so
                # that a resume starts at the handler and does not run the node again.
                before = self._records.get(task.id)
                acting = (None if before is None else handler_of(task, before)) or task
                writes = () if outcome.writes is None else self._encoder.writes_if_storable(outcome.writes)
                failed = self._failure(acting.node.name, outcome.error, writes, routed=outcome.writes is None)
                if outcome.writes is not None:
                    failed = msgspec.structs.replace(failed, writes=(*failed.writes, *self._unknown_writes(acting.id)))
                failed = msgspec.structs.replace(failed, **self._asked_of(acting.id))
                entries.append((acting, self.counter.with_spent(acting.id, failed)))
            elif isinstance(outcome, (Paused, Finished)):
                entries += self._recorded(outcome.by or task, outcome)
        self.counter.with_rest(entries)
        records = [self._task_record(task.id, task.index, entry) for task, entry in entries]
        if not any(isinstance(outcome, Failed) for outcome in outcomes):
            folding = self._failure("", error, (), routed=True)
            records.append(self._task_record(SUPERSTEP, -1, folding))
        try:
            self._records.update({task.id: entry for task, entry in entries})
            self.counter.tell()
            await self._out.put(records)
        except CheckpointError as second:
            annotate(error, f"and the failure could not be recorded: {with_notes(second)}")
            return False
        return True

    def _has_result(self, task_id: TaskId) -> bool:
        entry = self._records.get(task_id)
        return entry is not None and entry.finished

    def _failure(
        self, name: str, error: BaseException, writes: tuple[tuple[str, bytes], ...] | None, *, routed: bool
    ) -> TaskEntry:
        told = (*described(error), self.hold.world.now())
        return TaskEntry(name=name, writes=writes or (), routed=routed or writes is None, error=told)

    def _task_record(self, task_id: TaskId, index: int, entry: TaskEntry) -> TaskRecord:
        at = self._ledger.tip
        assert at is not None  # a superstep always follows a checkpoint
        return TaskRecord(
            ns=self.ns,
            checkpoint_id=at,
            task_id=task_id,
            index=index,
            kind="result"
            if entry.finished or not entry.routed
            else "error"
            if entry.error is not None
            else "interrupt",
            frame=write_record(entry),
        )


def _given_of(row: CheckpointRow) -> tuple[str, str] | None:
    """Return the name of the graph that a node ran, and the digest of its input; None if they were not stored."""
    found = row.metadata.get(GIVEN)
    return None if found is None else (found[0], found[1])


def _by(outcome: Outcome) -> Task | None:
    return outcome.by if isinstance(outcome, Finished) else None
