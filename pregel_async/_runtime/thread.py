"""A run's hold on its thread: claim it, load it, commit each superstep, give it up.

One superstep is one transaction. Every write compares the claim's epoch and the head in the database, so that a run
whose thread was taken over changes nothing any more and says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import anyio
import msgspec

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.codec import Codec
from checkpoint_savers.errors import CheckpointError, StorageError, ThreadBusyError, UnstorableValueError
from checkpoint_savers.ledger import Entry, Ledger, Reader, TaskEntry, read_record, write_record
from checkpoint_savers.owner import this_process
from checkpoint_savers.records import (
    CheckpointId,
    CheckpointRow,
    Claim,
    Commit,
    Owner,
    TaskId,
    TaskRecord,
)

from .._core.board import Board
from .._core.program import Program, Write
from .._core.task import Failed, Finished, Outcome, Task
from ..channels import MISSING
from ..errors import CheckpointNotFoundError, GraphChangedError
from ..types import OnConflict
from .restore import BRANCH, kind_of, restore
from .world import World, checkpoint_id

CLAIM_SECONDS = 30.0
"""How long a claim lasts after the last commit or heartbeat, when its process cannot be seen to be gone."""

SUPERSTEP = TaskId("")
"""The task id under which a failure of the superstep itself is recorded."""


class Thread:
    """One namespace of a claimed thread, as its run writes it.

    Attributes:
        thread_id: the thread.
        board: what was loaded; None when the thread held nothing.
    """

    def __init__(
        self,
        saver: BaseCheckpointSaver,
        codec: Codec,
        world: World,
        program: Program,
        claim: Claim,
        *,
        ns: str,
        metadata: dict[str, Any],
    ) -> None:
        self.thread_id = claim.thread_id
        self.board: Board | None = None
        self._saver = saver
        self._codec = codec
        self._world = world
        self._program = program
        self._claim = claim
        self._ns = ns
        self._metadata = metadata
        self._newest = claim.newest
        self._head: CheckpointId | None = None
        self._ledger = Ledger.start(ns)
        self._waiting: list[CheckpointRow] = []  # rows that go with the next transaction
        self._records: dict[TaskId, TaskEntry] = {}  # of the open superstep, as they are stored
        self._batch: _Batch | None = None
        self._held = True

    # ---- claiming and loading ------------------------------------------------------------------------------------

    @classmethod
    async def claim(
        cls,
        saver: BaseCheckpointSaver,
        codec: Codec,
        world: World,
        program: Program,
        *,
        thread_id: str,
        ns: str,
        at: CheckpointId | None,
        metadata: dict[str, Any],
        on_conflict: OnConflict,
    ) -> Thread:
        """Take a thread for one run, and load it. Use it in `async with`, which gives it up.

        Args:
            at: the checkpoint to go on from; None for the head.

        Raises:
            ThreadBusyError: another run owns it, and `on_conflict` is "reject".
            CheckpointNotFoundError, GraphChangedError, CorruptCheckpointError, StorageError: nothing was changed.
        """
        # The caller may have chosen the run's id, and may choose it twice: what tells owners apart is made here.
        claim = await _claim(saver, world, thread_id, world.new_id(), on_conflict)
        thread = cls(saver, codec, world, program, claim, ns=ns, metadata=metadata)
        try:
            await thread._load(at)
        except BaseException as error:
            await thread._release(error)
            raise
        return thread

    async def __aenter__(self) -> Thread:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        await self._release(error)

    async def _release(self, error: BaseException | None) -> None:
        """Give the thread up. What fails in that becomes a note of the error that is on its way, if there is one."""
        if not self._held:
            return
        self._held = False
        try:
            with anyio.CancelScope(shield=True):
                await self._saver.release(self._claim)
        except CheckpointError as second:
            if error is None or isinstance(error, anyio.get_cancelled_exc_class()):
                raise
            with contextlib.suppress(Exception):  # an exception that refuses attributes
                error.add_note(f"and its thread could not be given up: {type(second).__name__}: {second}")

    async def _load(self, at: CheckpointId | None) -> None:
        chain = await self._saver.read(self.thread_id, self._ns, at)
        if chain is None:
            if at is not None:
                raise CheckpointNotFoundError(self.thread_id, at)
            return
        self._head = chain.head
        row = chain.rows[-1]
        reader = Reader(self.thread_id, self._ns, chain.rows)
        self.board = restore(
            self._program, reader.state(row.checkpoint_id), row.step, self._codec, thread_id=self.thread_id
        )
        self._ledger = Ledger.resume(reader, row.checkpoint_id)
        if row.checkpoint_id == chain.head:
            # An older checkpoint is deliberately run again from there: what was recorded after it stays with its
            # branch.
            self._records = {record.task_id: self._fitting(record) for record in chain.records}

    def _fitting(self, record: TaskRecord) -> TaskEntry:
        """A record, by the graph's code as it is now: what was written to a removed key is dropped.

        Raises:
            GraphChangedError: it leads to a node that is no more.
        """
        entry = read_record(record, self.thread_id)
        known = [write for write in entry.writes if write[0] in self._program.channels]
        if len(known) < len(entry.writes):
            for channel, _ in entry.writes:
                if channel.startswith(BRANCH) and channel not in self._program.channels:
                    node = channel.removeprefix(BRANCH)
                    reason = f"node {entry.name!r} has finished and leads to node {node!r}, and there is no such node"
                    raise GraphChangedError(self.thread_id, node, reason)
            entry = msgspec.structs.replace(entry, writes=tuple(known))
        return entry

    def branch_off(self, board: Board) -> None:
        """Go on from an older checkpoint on a branch of its own, which starts with a copy of that checkpoint.

        So what is recorded from here on stands under another checkpoint than what the other branch recorded.
        """
        if self._ledger.tip != self._head:
            before = self._ledger.state
            entry = Entry(
                full=False,
                ts=self._world.now(),
                clock=board.clock,
                values={},
                emptied=(),
                kinds={},
                versions={},
                seen={},
                ran=before.ran,
                noticed=before.noticed,
                results={},
            )
            self._append(entry, board.step, "fork")

    async def keep(self) -> None:
        """Renew the claim from time to time, until cancelled, so that a long superstep does not lose it."""
        while True:
            await anyio.sleep(CLAIM_SECONDS / 3)
            try:
                await self._saver.renew(self._claim, expires_at=self._expiry())
            except ThreadBusyError:
                return  # lost: the next commit is refused, and says so
            except StorageError:
                continue  # the next commit meets it too, if it lasts

    def _expiry(self) -> float:
        return self._world.now() + CLAIM_SECONDS

    # ---- what earlier runs recorded --------------------------------------------------------------------------------

    def result_of(self, task: Task) -> Finished | None:
        """The recorded result of a task that need not run again."""
        entry = self._records.get(task.id) if self._records else None
        if entry is None or not entry.routed or entry.error is not None:
            return None
        writes = self._decoded(entry)
        return Finished(writes, replayed=True, own=len(writes))

    def writes_of(self, task: Task) -> list[Write] | None:
        """The recorded writes of a task of which only the routers are left to run."""
        entry = self._records.get(task.id) if self._records else None
        if entry is None or entry.routed:
            return None
        return self._decoded(entry)

    def _decoded(self, entry: TaskEntry) -> list[Write]:
        return [(channel, self._codec.decode(data, channel=channel)) for channel, data in entry.writes]

    # ---- writing -----------------------------------------------------------------------------------------------------

    async def commit(
        self,
        board: Board,
        ran: Sequence[Task],
        outcomes: Sequence[Outcome],
        upcoming: Sequence[Task],
        *,
        source: Literal["input", "loop"] = "loop",
    ) -> None:
        """Store a finished superstep: one transaction. The claim is given up in it when nothing is left to run.

        With `source="input"` the tasks are those that the new input discards; the failures recorded of them stay in
        history. A superstep that no code of the user's follows before the next commit (the input, before the hidden
        start) waits and is stored with that commit.

        Raises:
            ThreadBusyError: with `lost=True`.
            UnstorableValueError: with a note that names the tasks that wrote it; they are recorded as failed.
            StorageError: it was rolled back whole.
        """
        try:
            entry = self._entry(board, ran, outcomes)
        except UnstorableValueError as error:
            if source == "input":  # nothing is stored of it
                self._locate(board)
            else:
                await self._refuse(error, ran, outcomes)
            raise
        clears = [
            (self._ns, self._ledger.tip, task_id)
            for task_id, record in self._records.items()
            if source == "loop" and self._ledger.tip is not None and (record.error is not None or not record.routed)
        ]
        self._records = {}
        self._append(entry, board.step, source)
        if upcoming and all(task.node.hidden for task in upcoming):
            return
        await self._transact(clears=tuple(clears), releases=not upcoming)

    def _append(self, entry: Entry, step: int, source: Literal["input", "loop", "fork"]) -> None:
        self._newest = checkpoint_id(self._world, self._newest)
        parents: dict[str, str] = {}
        metadata = {**self._metadata, "source": source, "step": step, "parents": parents}
        row = self._ledger.append(entry, checkpoint_id=self._newest, step=step, metadata=metadata)
        self._waiting.append(row)

    def _entry(self, board: Board, ran: Sequence[Task], outcomes: Sequence[Outcome]) -> Entry:
        """What the superstep changed, encoded."""
        before, encode = self._ledger.state, self._codec.encode
        values: dict[str, bytes] = {}
        kinds: dict[str, str] = {}
        emptied: list[str] = []
        for name in board.changed:
            channel = board.channels[name]
            if not channel.tracked:
                continue
            stored = channel.checkpoint()
            if stored is not MISSING:
                values[name] = encode(stored, channel=name)
                if name not in before.kinds:
                    kinds[name] = kind_of(channel)
            elif name in before.values:
                emptied.append(name)
        seen: dict[str, dict[str, int]] = {}
        for task in ran:
            for trigger in task.triggers:
                version = board.seen.get(trigger, {}).get(task.node.name)
                if version is not None and board.channels[trigger].tracked:
                    seen.setdefault(trigger, {})[task.node.name] = version
        results: dict[str, tuple[tuple[str, bytes | None], ...]] = {
            task.id: tuple(self._shown(board, outcome.writes))
            for task, outcome in zip(ran, outcomes, strict=True)
            if isinstance(outcome, Finished) and not task.node.hidden and not self._has_result(task.id)
        }
        return Entry(
            full=False,
            ts=self._world.now(),
            clock=board.clock,
            values=values,
            emptied=tuple(emptied),
            kinds=kinds,
            versions={},
            seen=seen,
            ran=board.ran,
            noticed=board.noticed,
            results=results,
        )

    def _shown(self, board: Board, writes: list[Write]) -> Iterator[tuple[str, bytes | None]]:
        """A task's update as history shows it: None where the channel's new value is the very same object."""
        for name, value in self._tracked(writes):
            if name in self._program.keys:
                same = board.values.get(name, MISSING) is value
                yield name, None if same else self._codec.encode(value, channel=name)

    def _locate(self, board: Board) -> None:
        """Refuse an input by the key that the caller knows, where it is a mapping that one channel holds."""
        for name in board.changed:
            given = board.channels[name].checkpoint()
            if isinstance(given, dict):
                for key, value in given.items():
                    self._codec.encode(value, channel=str(key))

    async def _refuse(self, error: UnstorableValueError, ran: Sequence[Task], outcomes: Sequence[Outcome]) -> None:
        """Record the tasks that wrote a value which cannot be stored as failed; the others keep their results."""
        refused: list[Outcome] = []
        for task, outcome in zip(ran, outcomes, strict=True):
            if (
                isinstance(outcome, Finished)
                and not self._has_result(task.id)
                and self._encoded(outcome.writes) is None
            ):
                error.add_note(f"written by node {task.node.name!r}, superstep {task.step}, task {task.id}")
                refused.append(Failed(error, outcome.writes[: outcome.own]))
            else:
                refused.append(outcome)
        await self.give_up(ran, refused, error)

    async def record(self, task: Task, writes: list[Write], *, routed: bool) -> None:
        """Store what a task wrote. Tasks that finish while a transaction is under way share the next one."""
        encode = self._codec.encode
        try:
            data = tuple([(name, encode(value, channel=name)) for name, value in self._tracked(writes)])
        except UnstorableValueError as error:
            error.add_note(f"written by node {task.node.name!r}, superstep {task.step}, task {task.id}")
            raise
        entry = TaskEntry(name=task.node.name, writes=data, routed=routed)
        batch = self._batch
        if batch is not None:
            batch.entries.append((task, entry))
            await batch.wait()
            return
        batch = self._batch = _Batch()
        batch.entries.append((task, entry))
        with anyio.CancelScope(shield=True):
            while batch.entries:
                # Those that come while this one is being stored gather in the next; this task stores it for them.
                self._batch = following = _Batch()
                try:
                    await self._store(batch.entries)
                except BaseException as error:
                    self._batch = None
                    batch.done(error)
                    following.done(error)
                    raise
                batch.done(None)
                batch = following
            self._batch = None

    async def _store(self, entries: Sequence[tuple[Task, TaskEntry]]) -> None:
        records = [self._task_record(task.id, task.index, entry) for task, entry in entries]
        if self._waiting:
            await self._transact(records=tuple(records))
        else:
            await self._saver.record(self._claim, records, expires_at=self._expiry())
        for task, entry in entries:
            self._records[task.id] = entry

    async def give_up(self, tasks: Sequence[Task], outcomes: Sequence[Outcome], error: BaseException) -> bool:
        """Record a superstep that failed: what finished and is not recorded yet, and what failed, in one transaction.

        Returns:
            Whether it is stored. If storing fails too, the superstep's own error is still the one that is raised, and
            the other becomes its note.
        """
        entries: list[tuple[Task, TaskEntry]] = []
        for task, outcome in zip(tasks, outcomes, strict=True):
            if isinstance(outcome, Failed):
                writes = () if outcome.writes is None else self._encoded(outcome.writes)
                failed = self._failure(task.node.name, outcome.error, writes, routed=outcome.writes is None)
                entries.append((task, failed))
            elif isinstance(outcome, Finished) and not self._has_result(task.id):
                written = self._encoded(outcome.writes)
                if written is not None:
                    entries.append((task, TaskEntry(name=task.node.name, writes=written)))
        records = [self._task_record(task.id, task.index, entry) for task, entry in entries]
        if not any(isinstance(outcome, Failed) for outcome in outcomes):
            folding = self._failure("", error, (), routed=True)
            records.append(self._task_record(SUPERSTEP, -1, folding))
        try:
            with anyio.CancelScope(shield=True):
                if self._waiting:
                    await self._transact(records=tuple(records))
                else:
                    await self._saver.record(self._claim, records, expires_at=self._expiry())
        except CheckpointError as second:
            with contextlib.suppress(Exception):  # as above
                error.add_note(f"and the failure could not be recorded: {type(second).__name__}: {second}")
            return False
        return True

    def _tracked(self, writes: list[Write]) -> list[Write]:
        """Without what goes to channels that are never stored."""
        channels = self._program.channels
        return [write for write in writes if channels[write[0]].tracked]

    def _has_result(self, task_id: TaskId) -> bool:
        entry = self._records.get(task_id)
        return entry is not None and entry.routed and entry.error is None

    def _encoded(self, writes: list[Write]) -> tuple[tuple[str, bytes], ...] | None:
        try:
            return tuple([(name, self._codec.encode(value, channel=name)) for name, value in self._tracked(writes)])
        except UnstorableValueError:
            return None  # it would be refused by the commit too: the task runs again

    def _failure(
        self, name: str, error: BaseException, writes: tuple[tuple[str, bytes], ...] | None, *, routed: bool
    ) -> TaskEntry:
        kind = type(error)
        named = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        told = (named, _message(error), self._world.now())
        return TaskEntry(name=name, writes=writes or (), routed=routed or writes is None, error=told)

    def _task_record(self, task_id: TaskId, index: int, entry: TaskEntry) -> TaskRecord:
        at = self._ledger.tip
        assert at is not None  # a superstep always follows a checkpoint
        return TaskRecord(
            ns=self._ns,
            checkpoint_id=at,
            task_id=task_id,
            index=index,
            kind="error" if entry.error is not None else "result",
            frame=write_record(entry),
        )

    async def _transact(
        self,
        *,
        records: tuple[TaskRecord, ...] = (),
        clears: tuple[tuple[str, CheckpointId, TaskId], ...] = (),
        releases: bool = False,
    ) -> None:
        rows = tuple(self._waiting)
        commit = Commit(
            rows=rows,
            expected_head=self._head,
            records=records,
            clears=clears,
            expires_at=self._expiry(),
            releases=releases,
        )
        await self._saver.commit(self._claim, commit)
        self._waiting.clear()
        self._head = rows[-1].checkpoint_id
        if releases:
            self._held = False


def _message(error: BaseException) -> str:
    """An exception's text, whatever it takes: some cannot be printed, or hold what is no text (half of a surrogate)."""
    try:
        text = str(error)
    except Exception as second:
        text = f"(its message cannot be had: {type(second).__name__})"
    return text.encode("utf-8", "backslashreplace").decode()


class _Batch:
    """Records that are stored in one transaction, and the tasks that wait for it."""

    def __init__(self) -> None:
        self.entries: list[tuple[Task, TaskEntry]] = []
        self._event: anyio.Event | None = None
        self._error: BaseException | None = None

    async def wait(self) -> None:
        """Wait until it is durable. Raises what storing it raised."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()
        if self._error is not None:
            raise self._error

    def done(self, error: BaseException | None) -> None:
        self._error = error
        if self._event is not None:
            self._event.set()


async def _claim(
    saver: BaseCheckpointSaver, world: World, thread_id: str, owner_id: str, on_conflict: OnConflict
) -> Claim:
    owner = this_process(owner_id)
    pause = 0.02
    while True:
        try:
            return await _claim_once(saver, world, thread_id, owner)
        except ThreadBusyError:
            if on_conflict == "reject":
                raise
        await anyio.sleep(pause * (0.5 + world.jitter()))
        pause = min(pause * 1.5, 1.0)


async def _claim_once(saver: BaseCheckpointSaver, world: World, thread_id: str, owner: Owner) -> Claim:
    """Claim in a task of its own, so that a cancelled run learns whether it had the thread already, and gives it
    back."""
    claim: Claim | None = None
    failure: Exception | None = None

    async def take() -> None:
        nonlocal claim, failure
        now = world.now()
        with anyio.CancelScope(shield=True):
            try:
                claim = await saver.claim(thread_id, owner, now=now, expires_at=now + CLAIM_SECONDS)
            except Exception as error:
                failure = error

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(take)
    except BaseException:
        if claim is not None:
            with anyio.CancelScope(shield=True):
                await saver.release(claim)
        raise
    if failure is not None:
        raise failure
    assert claim is not None
    return claim
