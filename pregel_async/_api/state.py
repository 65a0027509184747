"""Read a thread's state: make the snapshots that users get from stored rows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, Protocol, cast

from msgspec import structs

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.chain import ChainReader, EncodedState
from checkpoint_savers.codec import Codec
from checkpoint_savers.deltas import TaskResult, read_record, timestamp
from checkpoint_savers.errors import CorruptCheckpointError
from checkpoint_savers.history import walk
from checkpoint_savers.metadata import metadata_matches
from checkpoint_savers.patches import data_of
from checkpoint_savers.records import (
    CALLER,
    CLOSED,
    FOLLOWED,
    MADE_IN,
    VERSION,
    CheckpointId,
    CheckpointMetadata,
    CheckpointRow,
    TaskId,
    TaskRecord,
)

from .._core import superstep
from .._core.board import Board
from .._core.program import NO_UPGRADES, Program, Upgrades, Write, no_writes
from .._core.task import PUSH, Task
from .._runtime.persistence.mismatches import (
    earlier_writes,
    is_unknown,
    keys_of_update,
    of_input,
    of_records,
    of_rule,
    of_version,
    version_in,
    without_keys,
)
from .._runtime.persistence.namespaces import NO_TASK, config_of, ids_in, made_on, namespace_of, parents_of
from .._runtime.persistence.records import (
    AMENDED,
    OF_STATE,
    SUPERSTEP,
    all_questions,
    amend_again,
    handler_of,
    open_questions,
)
from .._runtime.persistence.restore import restore, unknown_values
from .._runtime.persistence.spending import Amounts, read_amounts, total_of
from .._runtime.persistence.spending_counter import inside_of
from .._runtime.streaming.modes.updates import as_update
from ..errors import CheckpointNotFoundError, MigrationError
from ..types import PregelTask, RunnableConfig, StateSnapshot, StateView, TaskFailure

AS_STORED: Final = Upgrades(unknown_stored="ignore")
"""No rules, and no warnings of unknown keys."""

StoredCheckpoint = tuple[ChainReader, CheckpointRow]
"""A stored checkpoint: the reader that can restore its state, and its row."""


class Subgraph(Protocol):
    """A graph that a node runs."""

    @property
    def keeps_state(self) -> bool:
        """True if the graph keeps its state from call to call."""
        ...

    def reader(self, saver: BaseCheckpointSaver, codec: Codec) -> StateReader:
        """Return the reader of the graph's state. `codec` is the codec of the enclosing graph."""
        ...


class StateReader:
    """Reads the states of threads for one graph.

    Args:
        program: the graph's program.
        saver: the saver that stores the threads.
        codec: the codec of the graph's values.
        inner: the subgraphs, by node.
        complete: adds defaults and types of the state's class to a state; None shows the state as it is stored.
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
        """Return the state at a checkpoint, or at the head; an empty snapshot if nothing is stored of the thread.

        Args:
            thread_id: the thread's id.
            ns: the checkpoint namespace of the graph.
            at: the id of the checkpoint; None for the head.
            subgraphs: True to include the states of the subgraphs of pending tasks, at any depth.

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
        return await self._snapshot((ChainReader(thread_id, ns, chain.rows), row), chain.records, children, subgraphs)

    async def require(self, thread_id: str, ns: str, at: CheckpointId) -> None:
        """Raise `CheckpointNotFoundError` if there is no such checkpoint."""
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
        """Yield snapshots, newest first. `Graph.aget_state_history` describes the arguments."""
        known: dict[CheckpointId, list[StoredCheckpoint]] = {}  # by parent, its children that close its superstep
        left = limit
        # Filter here and not in the saver: the results of a checkpoint's tasks are in its child, which must be read
        # even if the filter drops it.
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
                    if self._inner:  # the places of subgraphs' states have to be read from storage now
                        yield await self._snapshot(stored, records, children, False)
                    else:
                        yield self._to_snapshot(stored, partial(self._decode_view, stored, records, children))

    async def _children_of(self, thread_id: str, ns: str, at: CheckpointId) -> list[StoredCheckpoint]:
        """Return the checkpoints that close the superstep after this one: one for each branch, newest first."""
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
        """Make a decoded snapshot, with the states of subgraphs or the configs that address them."""
        view, planned = self.view_with_tasks(stored, records, children)
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
            parent_values=partial(self._parent_values, stored),
        )

    def _parent_values(self, stored: StoredCheckpoint) -> Any:
        """Return the state at a checkpoint's parent; None if the rows from which it is read are not loaded."""
        reader, row = stored
        parent = None if row.parent_id is None else reader.rows.get(row.parent_id)
        if parent is None:
            return None
        try:
            state = reader.state(parent.checkpoint_id)
        except CorruptCheckpointError:  # a snapshot is read without all of the rows before it
            return None
        version, read = parent.metadata.get(VERSION, 1), partial(restore, thread_id=reader.thread_id)
        try:
            board = read(self._program, state, parent.step, self._codec, version=version).board
        except MigrationError:
            board = read(self._without_rules()._program, state, parent.step, self._codec).board
        values = board.show(self._program.shown)
        return self._complete(values) if self._complete is not None and values else values

    def _decode_view(
        self, stored: StoredCheckpoint, records: Sequence[TaskRecord], children: Sequence[StoredCheckpoint]
    ) -> StateView:
        return self.view_with_tasks(stored, records, children)[0]

    def view_with_tasks(
        self, stored: StoredCheckpoint, records: Sequence[TaskRecord], children: Sequence[StoredCheckpoint]
    ) -> tuple[StateView, list[tuple[Task, PregelTask, bool]]]:
        """Decode a checkpoint.

        Args:
            stored: the checkpoint.
            records: the records of the tasks of the superstep after it.
            children: the checkpoints that close this superstep.

        Returns:
            The view; and each planned task, as shown to users, with True if it has finished. If a declared rule raises
            an exception, the view is that of the state as it is stored, with the failure in `changed`.
        """
        try:
            return self._view_with_tasks(stored, records, children)
        except MigrationError as error:
            view, planned = self._without_rules()._view_with_tasks(stored, records, children)
            return structs.replace(view, changed=(of_rule(error, stored[1].ns), *view.changed)), planned

    def _without_rules(self) -> StateReader:
        """Return a reader that shows states as they are stored. It does not warn of keys."""
        program = structs.replace(self._program, upgrades=AS_STORED)
        return StateReader(program, self._saver, self._codec, self._inner)

    def _view_with_tasks(
        self, stored: StoredCheckpoint, records: Sequence[TaskRecord], children: Sequence[StoredCheckpoint]
    ) -> tuple[StateView, list[tuple[Task, PregelTask, bool]]]:
        reader, row = stored
        thread_id, state = reader.thread_id, reader.state(row.checkpoint_id)
        entries = {record.task_id: read_record(record, thread_id) for record in records}
        if self._program.upgrades is not NO_UPGRADES:
            entries = {id: self._renamed(each, stored) for id, each in entries.items()}
        followed = bool(children) or row.metadata.get(FOLLOWED) == CLOSED
        # A call from a checkpoint whose superstep is closed runs it again, and takes no results.
        taken = [each for id, each in entries.items() if id in OF_STATE or not followed]
        restored = restore(
            self._program,
            state,
            row.step,
            self._codec,
            thread_id=thread_id,
            ns=row.ns,
            at=row.checkpoint_id,
            version=row.metadata.get(VERSION, 1),
            results=entries,
            recorded=earlier_writes(self._program, taken),
        )
        program, board, changed = restored.program, restored.board, restored.mismatches
        scope = row.metadata.get(MADE_IN, thread_id), ids_in(row.ns, row.metadata.get(CALLER, ""))
        amended = entries.get(AMENDED)
        if amended is not None:
            changed = without_keys(changed, keys_of_update(program, amended))
            amend_again(program, board, amended, self._codec, scope)
        if taken:
            changed += of_records(self._program, taken, restored.state, self._codec, row.ns, restored.migrated)
        planned: list[tuple[Task, PregelTask, bool]] = []
        for task in superstep.plan(program, board, scope):
            by, entry = _entry_of(task, entries)
            # The shown result cannot decide this: with a single stream channel, a finished task that wrote nothing
            # shows None.
            finished = entry is not None and entry.finished
            shown = self._task(task, by, entry, entries, children)
            if not followed and not finished:
                changed += of_input(board, task, row.ns)
            if followed:
                shown = structs.replace(shown, **self._closed(task, by, entries, board))
            planned.append((task, shown, finished))
        # `next` has all tasks of a closed superstep, and the unfinished tasks of an open one. If all tasks of an open
        # superstep have finished, `next` has all of them: empty, it would say that the thread has finished, although
        # the superstep is still to be folded.
        closed = followed or all(finished for _, _, finished in planned)
        failed = entries.get(SUPERSTEP)
        tasks = _sends_first([shown for _, shown, _ in planned])
        values = board.show(program.shown)
        # A planned hidden start means that the input is not yet written to the state: there is nothing to complete.
        if self._complete is not None and not any(task.node.hidden for task, _, _ in planned):
            values = self._complete(values)
        view = StateView(
            values=values,
            next=superstep.names_of([task for task, _, finished in planned if closed or not finished]),
            created_at=timestamp(state.ts),
            tasks=tasks,
            interrupts=tuple([question for shown in tasks for question in shown.interrupts]),
            error=None if failed is None or failed.error is None else TaskFailure(*failed.error),
            spent=read_amounts(state.spent) if followed else _spent_so_far(state, entries),
            unknown=unknown_values(program, restored.state, self._codec, restored.converted),
            changed=(*of_version(self._program, version_in(row.metadata, taken), row.ns), *changed),
        )
        return view, planned

    def _task(
        self,
        task: Task,
        by: Task,
        entry: TaskResult | None,
        entries: Mapping[TaskId, TaskResult],
        children: Sequence[StoredCheckpoint],
    ) -> PregelTask:
        """Return a planned task with its outcome: from its own record, or from a child that closed its superstep.

        Args:
            task: the planned task.
            by: the task that has the outcome: the task itself, or its error handler; see `_entry_of`.
            entry: the record of `by`; None if there is none.
            entries: all records of the superstep.
            children: the checkpoints that close the superstep. On another branch, a child may have no result of the
                task: a new input discards pending tasks, and an update by hand postpones them.
        """
        # A handled failure is shown together with the handler's result. If the handler failed, its failure is shown
        # instead, because that failure ended the run.
        own = entries.get(task.id)
        failed = entry if entry is not None and entry.error is not None else own
        error = None if failed is None or failed.error is None else TaskFailure(*failed.error)
        writes: list[Write] | None = None
        if entry is not None and entry.finished:
            writes = self._decoded(entry.writes)
        else:  # the record of a closed superstep may hold the task's questions alone
            closed = (self._closed_writes(by, child) for child in children)
            writes = next((found for found in closed if found is not None), None)
        result = None if writes is None else self._as_result(writes)
        asked = () if entry is None else tuple(open_questions(entry, self._codec))
        return PregelTask(id=task.id, name=task.node.name, path=task.path, error=error, interrupts=asked, result=result)

    def _closed(self, task: Task, by: Task, entries: Mapping[TaskId, TaskResult], board: Board) -> dict[str, Any]:
        """Return the fields of a task that differ once its superstep is closed: its questions, and the input's update.

        Args:
            task, by, entries: as in `_task`.
            board: the checkpoint's state.
        """
        if task.node.hidden:  # it copies the input to the state, so that its result need not be stored
            return {"result": self._as_result(task.node.writes(board.input_of(task.node)))}
        mine = [entries[each] for each in dict.fromkeys((task.id, by.id)) if each in entries]
        return {"interrupts": tuple([asked for entry in mine for asked in all_questions(entry, self._codec)])}

    def _as_result(self, writes: list[Write]) -> Any:
        update = as_update(writes, self._program.shown)
        return {} if update is None and not isinstance(self._program.shown, str) else update

    async def _state_inside(
        self, stored: StoredCheckpoint, task: Task, *, whole: bool
    ) -> RunnableConfig | StateSnapshot | None:
        """Return the config of a subgraph's state, or with `whole` the state; None if the task has not run it."""
        reader, row = stored
        inner = self._inner[task.node.name]
        ns = namespace_of(row.ns, task, keeps_state=inner.keeps_state)
        found = await made_on(
            self._saver,
            reader.thread_id,
            ns,
            row.ns,
            row.checkpoint_id,
            caller=task.id if inner.keeps_state else NO_TASK,
        )
        if found is None:
            return None
        at, is_head = found
        if whole:
            return await inner.reader(self._saver, self._codec).latest(reader.thread_id, ns, at, subgraphs=True)
        return config_of(reader.thread_id, ns, None if is_head else at, {**parents_of(row), row.ns: row.checkpoint_id})

    def _decoded(self, written: Iterable[tuple[str, bytes]]) -> list[Write]:
        """Decode writes, except those to keys that the graph does not have: their classes may be gone too."""
        known = [write for write in written if not is_unknown(self._program, write[0])]
        return [(name, self._codec.decode(data, channel=name)) for name, data in known]

    def _closed_writes(self, task: Task, child: StoredCheckpoint) -> list[Write] | None:
        reader, row = child
        written = reader.result(row.checkpoint_id, task.id)
        if written is None:
            return None
        values = reader.state(row.checkpoint_id).values
        whole = tuple([(name, data_of(values[name]) if data is None else data) for name, data in written])
        if self._program.upgrades is not NO_UPGRADES:
            whole = self._renamed(TaskResult(name=task.node.name, writes=whole), child).writes
        return self._decoded(whole)

    def _renamed(self, entry: TaskResult, stored: StoredCheckpoint) -> TaskResult:
        """Return a task's record, or a result, in terms of the graph's current code. Raises `MigrationError`."""
        from .._runtime.persistence.upgrading import Place, renamed_record  # imported lazily: few graphs declare rules

        reader, row = stored
        return renamed_record(Place(self._program, reader.thread_id, row.checkpoint_id), entry, self._codec)


def _entry_of(task: Task, entries: Mapping[TaskId, TaskResult]) -> tuple[Task, TaskResult | None]:
    """Return the task and its record; or its error handler's task and record, if the handler runs in its place."""
    entry = entries.get(task.id)
    by = None if entry is None else handler_of(task, entry)
    if by is None and entry is not None and entry.handled and task.node.call is no_writes:
        by = _handler_by_record(task, entries)
    return (task, entry) if by is None else (by, entries.get(by.id))


def _handler_by_record(task: Task, entries: Mapping[TaskId, TaskResult]) -> Task | None:
    """Return the error handler's task of a node that the code does not have; None if nothing of it is recorded."""
    # The handler's name is a part of the id, and is known from its records alone.
    handlers = (
        task.handling(structs.replace(task.node, name=name, identity=name))
        for name in {e.name for e in entries.values()}
    )
    return next((each for each in handlers if each.id in entries), None)


def _spent_so_far(state: EncodedState, entries: Mapping[TaskId, TaskResult]) -> Amounts:
    """Return what a branch has spent, including the tasks of its open superstep and their subgraphs."""
    amounts = [state.spent, *[entry.spent for entry in entries.values()], *[each[2] for each in inside_of(entries)]]
    return total_of(map(read_amounts, amounts))


def _closes(row: CheckpointRow) -> bool:
    """Return True if a checkpoint closes the superstep after its parent. A fork is a copy of its parent instead."""
    return row.parent_id is not None and row.metadata.get("source") != "fork"


def _sends_first(tasks: Sequence[PregelTask]) -> tuple[PregelTask, ...]:
    return tuple(sorted(tasks, key=lambda shown: shown.path[0] != PUSH))
