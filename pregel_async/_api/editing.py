"""Editing a thread by hand: what a node would have written, written without running it.

An edit goes through the same machinery as a run: the thread is leased, updates become writes, writes are folded by
`superstep.update`, and the checkpoints of one call are one transaction. Three names stand for something else than a
node: END takes all that is pending for done, INPUT is a new input, COPY copies a checkpoint.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from msgspec import structs

from checkpoint_savers.deltas import read_record, write_record
from checkpoint_savers.records import CheckpointId, TaskRecord

from .._core import superstep
from .._core.board import Board
from .._core.isolation import REGISTERED, own
from .._core.program import PARENT, Node, Program, Write, no_writes
from .._core.task import Cancelled, Failed, Finished, Outcome, Recorded, Task, Unfinished
from .._runtime.persistence.namespace_writer import NOTHING_ANSWERED, NamespaceWriter
from .._runtime.persistence.namespaces import ids_in
from .._runtime.persistence.spending import NO_LIMITS, Spending
from .._runtime.platform.event_loops import NEVER_CANCELLED
from .._runtime.tasks.attempt import run_attempt
from .._runtime.tasks.context import AttemptContext, GraphContext, RunContext
from .._runtime.tasks.run_options import RunOptions
from ..errors import ConfigError, InvalidUpdateError
from ..types import COPY, END, INPUT, START, RunnableConfig, StateUpdate

SPECIAL = (END, INPUT, COPY)


def checked(supersteps: Sequence[Sequence[StateUpdate]]) -> list[list[StateUpdate]]:
    """The updates of a call, by superstep.

    Raises:
        ConfigError: there are none.
        InvalidUpdateError: several in one superstep do not say as whom they are made, or stand for something else.
    """
    listed = [list(updates) for updates in supersteps]
    if not listed or not all(listed):
        raise ConfigError("there is nothing to update: pass at least one superstep, each with at least one update")
    for updates in listed:
        for update in updates:
            if len(updates) > 1 and (update.as_node is None or update.as_node in SPECIAL):
                made = "without as_node" if update.as_node is None else f"as {update.as_node!r}"
                raise InvalidUpdateError(
                    f"an update {made} is alone in its superstep: name the node of each of several updates"
                )
    return listed


class Editor:
    """Applies updates to one namespace of a leased thread."""

    def __init__(
        self,
        thread: NamespaceWriter,
        run_context: RunContext,
        config: RunnableConfig,
        options: RunOptions,
        *,
        limit: int,
    ) -> None:
        self._thread = thread
        self._program: Program = thread.program
        self._board = Board(self._program) if thread.board is None else thread.board
        self._board.remaining = limit  # what a router reads of it is that of a run's first superstep
        self._fresh = thread.tip is None  # nothing has been stored or made so far
        self._around = GraphContext(
            run=run_context,
            program=self._program,
            ns=thread.ns,
            persistence=thread,
            config=config,
            options=options,
            call=_no_calls,
        )

    @property
    def _scope(self) -> tuple[str, str]:
        return self._thread.scope, ids_in(self._thread.ns, self._thread.caller or "")

    async def apply(
        self, supersteps: Sequence[Sequence[StateUpdate]], then: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Apply all of them, and store them in one transaction.

        Args:
            then: what belongs to storing them. It follows at once: nothing in between can be cancelled.

        Raises:
            InvalidUpdateError: an update does not fit, its node is ambiguous, or there is no such node. Nothing was
                stored.
            Exception: what a router or reducer raised. Nothing was stored.
        """
        for updates in supersteps:
            first = updates[0]
            if self._fresh and first.as_node != INPUT:
                self._board.step = -1  # as if an input had been there: the start is superstep 0
            if first.as_node == COPY:
                await self._copy(first)
            elif first.as_node == END:
                await self._finish(first)
            elif first.as_node == INPUT:
                await self._enter(first)
            else:
                await self._update(updates)
            self._fresh = False
        await self._thread.commit_edit()
        if then is not None:
            await then()

    def _recorded(self, task: Task) -> Recorded:
        return self._thread.recorded(task, NOTHING_ANSWERED)

    async def _update(self, updates: Sequence[StateUpdate]) -> None:
        pending = superstep.plan(self._program, self._board, self._scope)
        made: list[tuple[Task, list[Write]]] = []
        besides = False  # somebody updates as a node that is not pending
        for update in updates:
            if update.as_node is None and update.values is None:
                besides = True
                continue
            node = self._node(update.as_node)
            task = self._pending(pending, node, update.task_id)
            if task is None:
                besides = True
                task = Task(node, self._board.step + 1, -1, self._scope)
            elif any(task is other for other, _ in made):
                raise InvalidUpdateError(
                    f"two updates of one superstep are for task {task.id} of node {node.name!r}, which has one result: "
                    "make one update of them, or put them into two supersteps",
                    node=node.name,
                )
            made.append((task, await self._writes(task, update.values)))
        for task, writes in made:
            if task.index >= 0:
                self._thread.branch_off(self._board)
                self._thread.stage(task, writes)
        recorded = [(task, self._recorded(task)) for task in pending]
        left = [task for task, result in recorded if not isinstance(result, Finished)]
        leaves = any(isinstance(result, Finished) and result.leaves for _, result in recorded)
        if leaves and besides:
            raise InvalidUpdateError(
                "the open superstep has a command for the graph around this one, with which this one ends when it goes "
                "on: an update can be made as a node whose task is pending, or as END, which drops the command"
            )
        if not besides and (left or leaves):
            return  # the others stay pending, on the state that they were planned on
        done = [(task, result) for task, result in recorded if isinstance(result, Finished)]
        others = [(task, Finished(writes, own=len(writes))) for task, writes in made if task.index < 0]
        if done and self._thread.ns == "":
            await self._thread.find_kept()
        await self._fold(done, others, left)

    def _node(self, name: str | None) -> Node:
        """The node as which an update is made; inferred where there is no doubt."""
        nodes, ran = self._program.nodes, set(self._board.ran)
        if name is None:
            if len(nodes) == 1:  # a StateGraph has its start besides
                return next(iter(nodes.values()))
            if START in nodes and (self._fresh or self._board.step < 0):  # nothing but an input
                return nodes[START]
            if len(ran) == 1:
                name = next(iter(ran))
            else:
                by = ", ".join(repr(each) for each in sorted(ran)) or "nobody"
                raise InvalidUpdateError(
                    f"it is ambiguous as whom this update is made: the last superstep was made by {by}. Pass as_node="
                )
        if name not in nodes:
            there = ", ".join(sorted(key for key, node in nodes.items() if not node.hidden))
            raise InvalidUpdateError(f"there is no node {name!r} to update as; there are {there}", node=name)
        return nodes[name]

    def _pending(self, pending: Sequence[Task], node: Node, task_id: str | None) -> Task | None:
        """The pending task that an update stands for."""
        mine = [
            task
            for task in pending
            if task.node.name == node.name
            and (self._thread.fold_failed or not isinstance(self._recorded(task), Finished))
        ]
        if task_id is not None:
            for task in mine:
                if task.id == task_id:
                    return task
            raise InvalidUpdateError(
                f"no task {task_id!r} of node {node.name!r} is pending; pending are: "
                f"{', '.join(task.id for task in mine) or 'none'}",
                node=node.name,
            )
        if len(mine) > 1:
            raise InvalidUpdateError(
                f"it is ambiguous which task of node {node.name!r} this update stands for: {len(mine)} are pending. "
                f"Pass task_id=, one of {', '.join(task.id for task in mine)}",
                node=node.name,
            )
        return mine[0] if mine else None

    async def _writes(self, task: Task, values: Any) -> list[Write]:
        """What the node would have written: its update, its edges, and what its routers say to that."""
        node = task.node
        checked_writes = self._validated(self._program.check_update(node.writes(values)))
        writes = [(name, own(value, name)) for name, value in checked_writes]
        if any(name == PARENT for name, _ in writes):
            raise InvalidUpdateError(
                "an update cannot command the graph around: update that graph's state", node=node.name
            )
        if node.writes is no_writes and values is not None and not node.edges and not node.routers:
            raise InvalidUpdateError(f"node {node.name!r} writes nothing, so that an update as it does nothing")
        outcome = await run_attempt(
            self._around,
            self._board,
            task,
            Unfinished(writes),
            natively_cancelled=NEVER_CANCELLED,
            contained=False,
            record=_records_nothing,
        )
        if isinstance(outcome, Failed):
            raise outcome.error
        if not isinstance(outcome, Finished):
            raise InvalidUpdateError(f"a router of node {node.name!r} asks: an update cannot answer", node=node.name)
        return outcome.writes

    def _validated(self, writes: list[Write]) -> list[Write]:
        validate = self._program.validate
        return writes if validate is None or not writes else validate(self._board.values, writes)

    async def _finish(self, update: StateUpdate) -> None:
        """All that is pending counts as done; what has a result keeps it."""
        if update.values is not None:
            raise InvalidUpdateError("an update as END takes all that is pending for done: it has no values")
        tasks = superstep.plan(self._program, self._board, self._scope)
        results = [self._recorded(task) for task in tasks]
        outcomes: list[Outcome] = [each if isinstance(each, Finished) else Finished([]) for each in results]
        if self._thread.ns == "":
            await self._thread.find_kept()
        writes = [outcome.writes for outcome in outcomes if isinstance(outcome, Finished)]
        quiet = [[write for write in each if write[0] in self._program.keys] for each in writes]
        superstep.update(self._program, self._board, tasks, quiet, scope=self._scope)
        changed = set(self._board.changed)
        # What was put off comes due, and is done.
        while left := superstep.plan(self._program, self._board, self._scope):
            superstep.update(self._program, self._board, left, [], step=self._board.step, scope=self._scope)
            tasks += left
            outcomes += [Finished([])] * len(left)
            changed |= set(self._board.changed)
        self._board.changed = sorted(changed)
        await self._thread.commit(self._board, tasks, outcomes, [], source="update", waits=True)

    async def _enter(self, update: StateUpdate) -> None:
        writes = [(name, own(value)) for name, value in self._validated(self._program.read_input(update.values))]
        discarded = superstep.plan(self._program, self._board, self._scope)
        none: list[list[Write]] = [[] for _ in discarded]
        superstep.update(self._program, self._board, discarded, [*none, writes], scope=self._scope)
        self._board.ran = ()
        nothing: list[Outcome] = [Cancelled() for _ in discarded]
        await self._thread.commit(self._board, discarded, nothing, [], source="input", waits=True)

    async def _copy(self, update: StateUpdate) -> None:
        if self._thread.board is None:
            raise InvalidUpdateError("there is no checkpoint to copy: nothing is stored of the thread")
        self._thread.copy_as_sibling(self._board)
        values: Any = () if update.values is None else update.values
        if not isinstance(values, (list, tuple)):
            raise _no_updates(values)
        for each in values:
            more = StateUpdate(*each) if isinstance(each, (list, tuple)) and 2 <= len(each) <= 3 else each
            if not isinstance(more, StateUpdate):
                raise _no_updates(more)
            await self._update([more])

    async def _fold(
        self, done: list[tuple[Task, Finished]], others: list[tuple[Task, Finished]], left: list[Task]
    ) -> None:
        """Make one checkpoint of the results that pending tasks have, and of what others are to have written.

        Those come after, and may correct what a result has written: both are seldom the writes of one superstep.
        """
        board, program, before, step = self._board, self._program, self._board.ran, self._board.step + 1
        changed: set[str] = set()
        if done and others:
            unfinished = structs.replace(program, finishing=())  # what was put off has yet to wait for the others
            superstep.update(unfinished, board, *_apart(done), left=left, scope=self._scope)
            changed, left = set(board.changed), superstep.plan(program, board, self._scope)
        superstep.update(program, board, *_apart(others or done), step=step, left=left, scope=self._scope)
        board.changed = sorted(changed.union(board.changed))
        ran = done + others
        board.ran = tuple(task.node.name for task, _ in ran) or before
        outcomes: list[Outcome] = [outcome for _, outcome in ran]
        await self._thread.commit(
            board,
            [task for task, _ in ran],
            outcomes,
            [],
            source="update",
            waits=True,
            closes=not others and bool(done),
        )


def _no_updates(given: object) -> InvalidUpdateError:
    return InvalidUpdateError(
        f"an update as {COPY!r} has no values, or a list of updates for the copy, each (values, as_node), "
        f"not a {type(given).__name__}"
    )


def _apart(ran: Sequence[tuple[Task, Finished]]) -> tuple[list[Task], list[list[Write]]]:
    return [task for task, _ in ran], [outcome.writes for _, outcome in ran]


async def edit(
    thread: NamespaceWriter,
    updates: Sequence[Sequence[StateUpdate]],
    run_id: str,
    config: RunnableConfig,
    options: RunOptions,
    *,
    limit: int,
    then: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Apply updates to a loaded thread; see `Editor.apply`.

    Args:
        config, options: what routers get.
        limit: how many supersteps a run may take by the config, which managed values tell routers.
    """

    run_context = RunContext(
        thread.lease.environment, run_id, thread.thread_id, thread.lease, Spending(thread.lease.environment, NO_LIMITS)
    )
    editor = Editor(thread, run_context, config, options, limit=limit)
    token = REGISTERED.set(thread.codec.kept_scalars)
    try:
        await thread.lease.keep_alive_during(lambda: editor.apply(updates, then))
    finally:
        REGISTERED.reset(token)


async def edit_inside(
    thread: NamespaceWriter,
    root: NamespaceWriter,
    updates: Sequence[Sequence[StateUpdate]],
    run_id: str,
    config: RunnableConfig,
    options: RunOptions,
    *,
    limit: int,
    is_past: bool,
) -> None:
    """Apply updates to the state of a graph inside another.

    One that keeps its state from call to call, and is not under way, is found by the root's checkpoints: the root
    gets one of its own, then, that says where the state stands now. Questions that the edit does away with are open no
    more in the graphs around either.

    While the root's head is in the middle of a superstep, it can get no such checkpoint. The past can be edited then,
    too: that starts a branch at the root checkpoint that the config names, and the head has no part in it.

    Args:
        root: the root graph's namespace, at its head.
        is_past: the config names a checkpoint, and the state does not stand there at the root's head.

    Raises:
        InvalidUpdateError: the root has results in its open superstep, which such a checkpoint would have to redo; or
            the task that runs the graph has its result already, so that nothing would go on from the edit.
    """
    under_way = root.tip is not None and thread.parents.get("") == root.tip
    kept = ":" not in thread.ns
    stands = kept and not under_way and not (is_past and root.has_records)
    if stands and root.has_records:
        raise InvalidUpdateError(
            f"the state of {thread.ns!r} is at rest, and the graph around it is in the middle of a superstep: finish "
            "that first, or pass the config of an older snapshot of that state, which starts a branch there"
        )

    if not kept:
        await _check_goes_on(thread)
    asked = {question.id for question in thread.questions()}

    async def tell_those_around() -> None:
        gone = asked - {question.id for question in thread.questions()}
        if gone:
            await _withdraw(thread, gone)
        if stands and root.board is not None and thread.tip is not None:
            root.lease.moved_tips[thread.ns] = thread.tip
            await edit(root, [[StateUpdate(None)]], run_id, config, options, limit=limit)

    await edit(thread, updates, run_id, config, options, limit=limit, then=tell_those_around)


async def _check_goes_on(inside: NamespaceWriter) -> None:
    """Refuse to edit the state of a graph whose task, in the open superstep around it, has its result already.

    Raises:
        InvalidUpdateError
    """
    lease, running = inside.lease, inside.ns.split("|")
    for ns, at in inside.parents.items():
        chain = await lease.saver.read(lease.thread_id, ns, CheckpointId(at))
        for record in () if chain is None else chain.records:
            entry = read_record(record, lease.thread_id)
            if entry.finished and f"{entry.name}:{record.task_id}" in running:
                raise InvalidUpdateError(
                    f"task {record.task_id!r} of node {entry.name!r}, which runs the graph in namespace {inside.ns!r}, "
                    "has its result already, so that nothing would go on from this update: update the graph around it",
                    node=entry.name,
                )


async def _withdraw(inside: NamespaceWriter, ids: Collection[str]) -> None:
    """Take questions that are asked no more in a graph inside off the records of the tasks around it."""
    lease = inside.lease
    for ns, at in inside.parents.items():
        chain = await lease.saver.read(lease.thread_id, ns, CheckpointId(at))
        changed: list[TaskRecord] = []
        for record in () if chain is None else chain.records:
            entry = read_record(record, lease.thread_id)
            left = tuple([(key, asked) for key, asked in entry.interrupts or () if key not in ids])
            if entry.interrupts is not None and len(left) < len(entry.interrupts):
                frame = write_record(structs.replace(entry, interrupts=left))
                changed.append(structs.replace(record, frame=frame))
        if changed:
            await lease.record(changed)


async def _records_nothing(around: GraphContext, task: Task, writes: list[Write]) -> None:
    """An update is stored whole, after its routers have answered."""


async def _no_calls(caller: AttemptContext, task: Task) -> Outcome:
    raise InvalidUpdateError(
        "a router called a task while a state was updated by hand: routers only look", node=task.node.name
    )
