"""Reading a thread's state: from what is stored to the snapshots that users get."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol, cast

from msgspec import structs

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.codec import Codec
from checkpoint_savers.entries import TaskEntry, read_record, timestamp
from checkpoint_savers.growth import data_of
from checkpoint_savers.history import walk
from checkpoint_savers.ledger import Reader, State
from checkpoint_savers.metadata import metadata_matches
from checkpoint_savers.records import (
    CALLER,
    CLOSED,
    FOLLOWED,
    MADE_IN,
    CheckpointId,
    CheckpointMetadata,
    CheckpointRow,
    TaskId,
    TaskRecord,
)

from .._core import superstep
from .._core.program import Program, Write
from .._core.task import PUSH, Task
from .._runtime.persistence.namespaces import NO_TASK, config_of, ids_in, made_on, namespace_of, parents_of
from .._runtime.persistence.records import AMENDED, SUPERSTEP, amend_again, handler_of, open_questions
from .._runtime.persistence.restore import is_unknown, restore, unknown_values
from .._runtime.persistence.spending import Amounts, of_text, total_of
from .._runtime.persistence.spending_counter import inside_of
from .._runtime.streaming.modes.updates import as_update
from ..errors import CheckpointNotFoundError
from ..types import PregelTask, RunnableConfig, StateSnapshot, StateView, TaskFailure

StoredCheckpoint = tuple[Reader, CheckpointRow]
"""A stored checkpoint, and what can restore its state."""


class Subgraph(Protocol):
    """A graph that a node runs."""

    @property
    def keeps(self) -> bool:
        """Whether its state is kept from call to call."""
        ...

    def reader(self, saver: BaseCheckpointSaver, codec: Codec) -> StateReader:
        """What reads its state; `codec` is that of the graph around it."""
        ...


class StateReader:
    """Reads threads as one graph understands them.

    Args:
        inner: the graphs that its nodes run, by node.
        complete: adds what the state's class knows of it (defaults, types); None leaves the state as it is stored.
    """

    def __init__(
        self,
        program: Program,
        saver: BaseCheckpointSaver,
        codec: Codec,
        inner: Mapping[str, Subgraph],
        *,
        complete: Callable[[Any], Any] | None = None,
    ) -> None:
        self._complete = complete
        self._program = program
        self._saver = saver
        self._codec = codec
        self._inner = inner

    async def latest(
        self, thread_id: str, ns: str, at: CheckpointId | None, *, subgraphs: bool = False
    ) -> StateSnapshot:
        """The state at a checkpoint, or at the head; an empty snapshot for a thread with nothing stored.

        Args:
            subgraphs: with the states of the graphs that pending tasks run, at any depth.

        Raises:
            CheckpointNotFoundError: there is no such checkpoint.
        """
        chain = await self._saver.read(thread_id, ns, at)
        if chain is None:
            if at is not None:
                raise CheckpointNotFoundError(thread_id, at)
            nothing: Any = {} if not isinstance(self._program.shown, str) else None
            return StateSnapshot(values=nothing, next=(), config=config_of(thread_id, ns, None))
        row = chain.rows[-1]
        children = [] if row.checkpoint_id == chain.head else await self._children_of(thread_id, ns, row.checkpoint_id)
        return await self._snapshot((Reader(thread_id, ns, chain.rows), row), chain.records, children, subgraphs)

    async def require(self, thread_id: str, ns: str, at: CheckpointId) -> None:
        """Raises `CheckpointNotFoundError` when there is no such checkpoint."""
        if await self._saver.read(thread_id, ns, at) is None:
            raise CheckpointNotFoundError(thread_id, at)

    async def history(
        self,
        thread_id: str,
        ns: str,
        at: CheckpointId | None,
        *,
        filter: Mapping[str, Any] | None,
        before: CheckpointId | None,
        limit: int | None,
    ) -> AsyncGenerator[StateSnapshot, None]:
        """Snapshots, newest first."""
        known: dict[CheckpointId, list[StoredCheckpoint]] = {}  # the children of each that close its superstep
        left = limit
        # Filtered here and not by the saver: a checkpoint is told with what its child says of its tasks, shown or not.
        async with aclosing(walk(self._saver, thread_id, ns, before=before)) as rows:
            async for header, reader, records in rows:
                row = reader.rows[header.checkpoint_id]
                if row.parent_id is not None and _closes(row):
                    known.setdefault(row.parent_id, []).append((reader, row))
                children = known.pop(row.checkpoint_id, [])
                if left == 0:
                    return
                if (at is None or at == row.checkpoint_id) and metadata_matches(row.metadata, filter):
                    if not children and before is not None:
                        children = await self._children_of(thread_id, ns, row.checkpoint_id)
                    left = None if left is None else left - 1
                    stored = (reader, row)
                    if self._inner:  # where these stand is asked of storage
                        yield await self._snapshot(stored, records, children, False)
                    else:
                        yield self._to_snapshot(stored, partial(self._decode_view, stored, records, children))

    async def _children_of(self, thread_id: str, ns: str, at: CheckpointId) -> list[StoredCheckpoint]:
        """The checkpoints that close the superstep after this one, one for each branch from here, newest first."""
        found: list[StoredCheckpoint] = []
        async with aclosing(walk(self._saver, thread_id, ns)) as rows:
            async for header, reader, _ in rows:
                if header.parent_id == at and _closes(reader.rows[header.checkpoint_id]):
                    found.append((reader, reader.rows[header.checkpoint_id]))
                if header.checkpoint_id <= at:
                    break
        return found

    async def _snapshot(
        self,
        stored: StoredCheckpoint,
        records: Sequence[TaskRecord],
        children: Sequence[StoredCheckpoint],
        subgraphs: bool,
    ) -> StateSnapshot:
        """One that is decoded, with where the graphs inside stand."""
        view, planned = self._view_with_tasks(stored, records, children)
        if self._inner:
            inside = [
                structs.replace(
                    shown,
                    state=await self._state_inside(
                        stored, task, whole=subgraphs and not finished and shown.result is None
                    ),
                )
                if task.node.name in self._inner
                else shown
                for task, shown, finished in planned
            ]
            view = structs.replace(view, tasks=_sends_first(inside))
        return self._to_snapshot(stored, view)

    def _to_snapshot(self, stored: StoredCheckpoint, view: StateView | Callable[[], StateView]) -> StateSnapshot:
        reader, row = stored
        thread_id, around = reader.thread_id, parents_of(row)
        before = row.parent_id
        return StateSnapshot.of(
            view,
            config=config_of(thread_id, row.ns, row.checkpoint_id, around),
            metadata=cast("CheckpointMetadata", row.metadata),
            parent_config=None if before is None else config_of(thread_id, row.ns, before, around),
        )

    def _decode_view(
        self, stored: StoredCheckpoint, records: Sequence[TaskRecord], children: Sequence[StoredCheckpoint]
    ) -> StateView:
        return self._view_with_tasks(stored, records, children)[0]

    def _view_with_tasks(
        self, stored: StoredCheckpoint, records: Sequence[TaskRecord], children: Sequence[StoredCheckpoint]
    ) -> tuple[StateView, list[tuple[Task, PregelTask, bool]]]:
        """What a checkpoint says; and each task that is planned there, as it is shown, and whether it has finished.

        Args:
            children: the checkpoints that close the superstep after it.
        """
        reader, row = stored
        program, thread_id = self._program, reader.thread_id
        state = reader.state(row.checkpoint_id)
        board = restore(program, state, row.step, self._codec, thread_id=thread_id)
        entries = {record.task_id: read_record(record, thread_id) for record in records}
        scope = row.metadata.get(MADE_IN, thread_id), ids_in(row.ns, row.metadata.get(CALLER, ""))
        amended = entries.get(AMENDED)
        if amended is not None:
            amend_again(program, board, amended, self._codec, scope)
        planned: list[tuple[Task, PregelTask, bool]] = []
        for task in superstep.plan(program, board, scope):
            by, entry = _entry_of(task, entries)
            # Not by the result that is shown: a task that wrote nothing shows None where one channel is the output.
            finished = entry is not None and entry.finished
            planned.append((task, self._task(task, by, entry, entries, children), finished))
        # A superstep that has been closed shows all its tasks; one that is open, those that have yet to run; and one
        # that is to be closed with the results that all of them have, all: the thread has not finished.
        followed = bool(children) or row.metadata.get(FOLLOWED) == CLOSED
        closed = followed or all(finished for _, _, finished in planned)
        failed = entries.get(SUPERSTEP)
        tasks = _sends_first([shown for _, shown, _ in planned])
        values = board.show(program.shown)
        if self._complete is not None and not any(task.node.hidden for task, _, _ in planned):  # else it is only begun
            values = self._complete(values)
        view = StateView(
            values=values,
            next=superstep.names_of([task for task, _, finished in planned if closed or not finished]),
            created_at=timestamp(state.ts),
            tasks=tasks,
            interrupts=tuple([question for shown in tasks for question in shown.interrupts]),
            error=None if failed is None or failed.error is None else TaskFailure(*failed.error),
            spent=of_text(state.spent) if followed else _spent_so_far(state, entries),
            unknown=unknown_values(program, state, self._codec),
        )
        return view, planned

    def _task(
        self,
        task: Task,
        by: Task,
        entry: TaskEntry | None,
        entries: Mapping[TaskId, TaskEntry],
        children: Sequence[StoredCheckpoint],
    ) -> PregelTask:
        """A planned task, with what is recorded of it: by itself, or by a checkpoint that closed its superstep. (That
        of another branch may know nothing of it: a new input discards what is pending, an update puts it off.)

        Of a task whose failure was handled, both are shown: the failure, and what its handler gave. If the handler has
        failed, its failure is shown: that is what ended the run.

        Args:
            by, entry: who has its outcome, and that; see `_entry_of`.
        """
        own = entries.get(task.id)
        failed = entry if entry is not None and entry.error is not None else own
        error = None if failed is None or failed.error is None else TaskFailure(*failed.error)
        writes: list[Write] | None = None
        if entry is not None and entry.finished:
            writes = self._decoded(entry.writes)
        elif entry is None:
            closed = (self._closed_writes(by, child) for child in children)
            writes = next((found for found in closed if found is not None), None)
        result = None
        if writes is not None:
            update = as_update(writes, self._program.shown)
            result = {} if update is None and not isinstance(self._program.shown, str) else update
        asked = () if entry is None else tuple(open_questions(entry, self._codec))
        return PregelTask(id=task.id, name=task.node.name, path=task.path, error=error, interrupts=asked, result=result)

    async def _state_inside(
        self, stored: StoredCheckpoint, task: Task, *, whole: bool
    ) -> RunnableConfig | StateSnapshot | None:
        """Where the state of the graph stands that a task runs, or that state; None when the task has not run it."""
        reader, row = stored
        inner = self._inner[task.node.name]
        ns = namespace_of(row.ns, task, keeps=inner.keeps)
        found = await made_on(
            self._saver, reader.thread_id, ns, row.ns, row.checkpoint_id, caller=task.id if inner.keeps else NO_TASK
        )
        if found is None:
            return None
        at, is_head = found
        if whole:
            return await inner.reader(self._saver, self._codec).latest(reader.thread_id, ns, at, subgraphs=True)
        return config_of(reader.thread_id, ns, None if is_head else at, {**parents_of(row), row.ns: row.checkpoint_id})

    def _decoded(self, written: Iterable[tuple[str, bytes]]) -> list[Write]:
        """Writes, without those to keys that the graph does not have: their classes may be gone too."""
        known = [write for write in written if not is_unknown(self._program, write[0])]
        return [(name, self._codec.decode(data, channel=name)) for name, data in known]

    def _closed_writes(self, task: Task, child: StoredCheckpoint) -> list[Write] | None:
        reader, row = child
        written = reader.result(row.checkpoint_id, task.id)
        if written is None:
            return None
        values = reader.state(row.checkpoint_id).values
        return self._decoded((name, data_of(values[name]) if data is None else data) for name, data in written)


def _entry_of(task: Task, entries: Mapping[TaskId, TaskEntry]) -> tuple[Task, TaskEntry | None]:
    """The task's record, or that of the error handler that runs in its place; and whose it is."""
    entry = entries.get(task.id)
    by = None if entry is None else handler_of(task, entry)
    return (task, entry) if by is None else (by, entries.get(by.id))


def _spent_so_far(state: State, entries: Mapping[TaskId, TaskEntry]) -> Amounts:
    """What a branch has spent, with what the tasks of the superstep that is open have."""
    amounts = [state.spent, *[entry.spent for entry in entries.values()], *[each[2] for each in inside_of(entries)]]
    return total_of(map(of_text, amounts))


def _closes(row: CheckpointRow) -> bool:
    """Whether a checkpoint was made by the superstep that follows its parent. A fork is a copy of its parent."""
    return row.parent_id is not None and row.metadata.get("source") != "fork"


def _sends_first(tasks: Sequence[PregelTask]) -> tuple[PregelTask, ...]:
    return tuple(sorted(tasks, key=lambda shown: shown.path[0] != PUSH))
