"""Edit a thread by hand: write what a node would have written, without running the node.

An edit uses the machinery of a run: it acquires the thread's lease, turns updates into writes, folds the writes with
`superstep.update`, and stores the checkpoints of one call in one transaction. Three values of `as_node` name no node:
END counts all pending tasks as done, INPUT makes a new input, COPY copies a checkpoint.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec import structs

from checkpoint_savers.deltas import read_record, write_record
from checkpoint_savers.records import CheckpointId, TaskRecord

from .._core import superstep
from .._core.board import Board
from .._core.ownership import REGISTERED, own
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


def check_updates(supersteps: Sequence[Sequence[StateUpdate]]) -> list[list[StateUpdate]]:
    """Check the updates of a call, and return them as lists, by superstep.

    Raises:
        ConfigError: there are no updates.
        InvalidUpdateError: one of several updates in a superstep has no `as_node`, or one that names no node.
    """
    listed = [list(updates) for updates in supersteps]
    if not listed or not all(listed):
        raise ConfigError("there is nothing to update: pass at least one superstep, each with at least one update")
    for updates in listed:
        for update in updates:
            if len(updates) > 1 and (update.as_node is None or update.as_node in SPECIAL):
                made = "without as_node" if update.as_node is None else f"as {update.as_node!r}"
                raise InvalidUpdateError(
                    f"an update {made} must be the only one in its superstep: name the node of each of several updates"
                )
    return listed


class Editor:
    """Applies updates to one namespace of a thread whose lease is held."""

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
        self._board.remaining = limit  # routers read managed values as in the first superstep of a run
        self._fresh = thread.tip is None  # True while nothing has been stored or made
        self._around = GraphContext(
            run=run_context,
            program=self._program,
            ns=thread.ns,
            persistence=thread,
            config=config,
            options=options,
            call=_refuse_calls,
        )

    @property
    def _scope(self) -> tuple[str, str]:
        return self._thread.scope, ids_in(self._thread.ns, self._thread.caller or "")

    async def apply(
        self, supersteps: Sequence[Sequence[StateUpdate]], then: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Apply all updates, and store them in one transaction.

        Args:
            supersteps: the checked updates, by superstep.
            then: further storing that belongs to the edit. It runs directly after the transaction: a cancellation
                cannot come between the two.

        Raises:
            InvalidUpdateError: an update does not fit, its node is ambiguous, or there is no such node. Nothing was
                stored.
            Exception: the exception of a router or reducer. Nothing was stored.
        """
        self._require_fit(supersteps[0])
        for updates in supersteps:
            first = updates[0]
            if self._fresh and first.as_node != INPUT:
                self._board.step = -1  # as after an input, so that the first update is superstep 0
            if first.as_node == COPY:
                await self._copy_checkpoint(first)
            elif first.as_node == END:
                await self._finish_pending(first)
            elif first.as_node == INPUT:
                await self._apply_input(first)
            else:
                await self._update(updates)
            self._fresh = False
        await self._thread.commit_edit()
        if then is not None:
            await then()

    def _require_fit(self, updates: Sequence[StateUpdate]) -> None:
        """Raise `GraphChangedError` if something of the thread does not fit the graph and is in the way."""
        writes: list[Write] = []
        for update in updates if self._thread.mismatches else ():
            if update.as_node == INPUT:
                writes += self._program.read_input(update.values)
            elif isinstance(update.values, Mapping):
                writes += update.values.items()
        self._thread.require_fit(writes, discards=updates[0].as_node in (END, INPUT))

    def _recorded(self, task: Task) -> Recorded:
        return self._thread.recorded(task, NOTHING_ANSWERED)

    async def _update(self, updates: Sequence[StateUpdate]) -> None:
        pending = superstep.plan(self._program, self._board, self._scope)
        made: list[tuple[Task, list[Write]]] = []
        # True if an update is made as a node without a pending task. It then gets a checkpoint of its own, even while
        # other tasks are pending.
        forces_checkpoint = any(_is_empty(update) for update in updates)
        for update, node, task in self._matched(updates, pending):
            if task is None:
                forces_checkpoint = True
                task = Task(node, self._board.step + 1, -1, self._scope)
            made.append((task, await self._writes(task, update.values)))
        for task, writes in made:
            if task.index >= 0:
                self._thread.branch_off(self._board)
                self._thread.stage(task, writes)
        recorded = [(task, self._recorded(task)) for task in pending]
        left = [task for task, result in recorded if not isinstance(result, Finished)]
        ends_graph = any(isinstance(result, Finished) and result.ends_graph for _, result in recorded)
        if ends_graph and forces_checkpoint:
            raise InvalidUpdateError(
                "the open superstep has a command for the graph around this one, with which this one ends when it goes "
                "on: an update can be made as a node whose task is pending, or as END, which drops the command"
            )
        if not forces_checkpoint and (left or ends_graph):
            return  # the other tasks stay pending on the state that they were planned on
        done = [(task, result) for task, result in recorded if isinstance(result, Finished)]
        others = [(task, Finished(writes, own=len(writes))) for task, writes in made if task.index < 0]
        if done and self._thread.ns == "":
            await self._thread.find_moved_tips()
        await self._fold(done, others, left)

    def _node(self, name: str | None) -> Node:
        """Return the node as which an update is made; infer it if only one is possible."""
        former, ran = self._program.upgrades.nodes, set(self._board.ran)
        nodes = {key: node for key, node in self._program.nodes.items() if key not in former}
        if name is None:
            if len(nodes) == 1:  # not for a StateGraph, which has START as a second node
                return next(iter(nodes.values()))
            if START in nodes and (self._fresh or self._board.step < 0):  # the thread holds at most an input
                return nodes[START]
            if len(ran) == 1:
                name = next(iter(ran))
            else:
                by = ", ".join(repr(each) for each in sorted(ran)) or "no node"
                raise InvalidUpdateError(
                    f"the node of this update is ambiguous: the last superstep was made by {by}. Pass as_node="
                )
        if name not in nodes:
            there = ", ".join(sorted(key for key, node in nodes.items() if not node.hidden))
            raise InvalidUpdateError(f"there is no node {name!r} to update as; there are {there}", node=name)
        return nodes[name]

    def _matched(
        self, updates: Sequence[StateUpdate], pending: Sequence[Task]
    ) -> list[tuple[StateUpdate, Node, Task | None]]:
        """Return each update with its node, and with the pending task whose result it becomes.

        The task is None if the node has no pending task. Updates as one node without task ids become the results of the
        node's pending tasks, in plan order, if there are as many updates as tasks that no other update names.
        """
        named = [(update, self._node(update.as_node)) for update in updates if not _is_empty(update)]
        # By position, because a caller may pass one update object several times.
        chosen: dict[int, Task] = {}
        for at, (update, node) in enumerate(named):
            if update.task_id is not None:
                task = self._task_named(pending, node, update)
                if any(task is other for other in chosen.values()):
                    raise _two_results(node, task)
                chosen[at] = task
        taken = {task.id for task in chosen.values()}
        for node in {node.name: node for _, node in named}.values():
            mine = [at for at, (update, other) in enumerate(named) if other is node and update.task_id is None]
            there = self._open_tasks(pending, node)
            rest = [task for task in there if task.id not in taken]
            if len(mine) == len(rest):
                chosen.update(zip(mine, rest, strict=True))
            elif mine and len(rest) > 1:
                raise InvalidUpdateError(
                    f"it is ambiguous which task of node {node.name!r} this update replaces the result of: "
                    f"{len(rest)} are pending. Pass task_id=, one of {', '.join(task.id for task in rest)}; or pass "
                    f"{len(rest)} updates in one superstep of abulk_update_state, which become their results in "
                    "this order",
                    node=node.name,
                )
            elif mine and there:
                raise _two_results(node, (rest or there)[0])
        return [(update, node, chosen.get(at)) for at, (update, node) in enumerate(named)]

    def _open_tasks(self, pending: Sequence[Task], node: Node) -> list[Task]:
        return [
            task
            for task in pending
            if task.node.name == node.name
            and (self._thread.fold_failed or not isinstance(self._recorded(task), Finished))
        ]

    def _task_named(self, pending: Sequence[Task], node: Node, update: StateUpdate) -> Task:
        mine = self._open_tasks(pending, node)
        for task in mine:
            if task.id == update.task_id:
                return task
        raise InvalidUpdateError(
            f"no task {update.task_id!r} of node {node.name!r} is pending; pending are: "
            f"{', '.join(task.id for task in mine) or 'none'}",
            node=node.name,
        )

    async def _writes(self, task: Task, values: Any) -> list[Write]:
        """Return the writes that the node would have made: its update, its edges, and its routers' destinations."""
        node = task.node
        checked_writes = self._validated(self._program.check_update(node.writes(values)))
        writes = [(name, own(value, name)) for name, value in checked_writes]
        if any(name == PARENT for name, _ in writes):
            raise InvalidUpdateError(
                "an update cannot send a command to the enclosing graph: update that graph's state", node=node.name
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
            record=_skip_record,
        )
        if isinstance(outcome, Failed):
            raise outcome.error
        if not isinstance(outcome, Finished):
            raise InvalidUpdateError(
                f"a router of node {node.name!r} called interrupt(), and an update cannot answer its question",
                node=node.name,
            )
        return outcome.writes

    def _validated(self, writes: list[Write]) -> list[Write]:
        validate = self._program.validate
        return writes if validate is None or not writes else validate(self._board.values, writes)

    async def _finish_pending(self, update: StateUpdate) -> None:
        """Close the superstep: tasks with a result keep it, and the others count as finished without writes."""
        if update.values is not None:
            raise InvalidUpdateError("an update as END has no values: all pending tasks count as done")
        tasks = superstep.plan(self._program, self._board, self._scope)
        results = [self._recorded(task) for task in tasks]
        outcomes: list[Outcome] = [each if isinstance(each, Finished) else Finished([]) for each in results]
        if self._thread.ns == "":
            await self._thread.find_moved_tips()
        writes = [outcome.writes for outcome in outcomes if isinstance(outcome, Finished)]
        quiet = [[write for write in each if write[0] in self._program.keys] for each in writes]
        superstep.update(self._program, self._board, tasks, quiet, scope=self._scope)
        changed = set(self._board.changed)
        # Deferred nodes become due now, and count as done too.
        while left := superstep.plan(self._program, self._board, self._scope):
            superstep.update(self._program, self._board, left, [], step=self._board.step, scope=self._scope)
            tasks += left
            outcomes += [Finished([])] * len(left)
            changed |= set(self._board.changed)
        self._board.changed = tuple(sorted(changed))
        await self._thread.commit(self._board, tasks, outcomes, [], source="update", waits=True)

    async def _apply_input(self, update: StateUpdate) -> None:
        """Fold a new input, which discards pending tasks."""
        writes = [(name, own(value)) for name, value in self._validated(self._program.read_input(update.values))]
        discarded = superstep.plan(self._program, self._board, self._scope)
        none: list[list[Write]] = [[] for _ in discarded]
        superstep.update(self._program, self._board, discarded, [*none, writes], scope=self._scope)
        self._board.ran = ()
        nothing: list[Outcome] = [Cancelled() for _ in discarded]
        await self._thread.commit(self._board, discarded, nothing, [], source="input", waits=True)

    async def _copy_checkpoint(self, update: StateUpdate) -> None:
        """Copy the checkpoint, and apply the listed updates to the copy."""
        if self._thread.board is None:
            raise InvalidUpdateError("there is no checkpoint to copy: nothing is stored of the thread")
        self._thread.copy_as_sibling(self._board)
        values: Any = () if update.values is None else update.values
        if not isinstance(values, (list, tuple)):
            raise _invalid_copy_values(values)
        updates: list[Any] = [
            StateUpdate(*each) if isinstance(each, (list, tuple)) and 2 <= len(each) <= 3 else each for each in values
        ]
        for each in updates:
            if not isinstance(each, StateUpdate):
                raise _invalid_copy_values(each)
        if updates:
            (checked,) = check_updates([updates])
            await self._update(checked)

    async def _fold(
        self, done: list[tuple[Task, Finished]], others: list[tuple[Task, Finished]], left: list[Task]
    ) -> None:
        """Make one checkpoint of the results of pending tasks, and of updates as other nodes.

        The updates are folded after the results and may overwrite them: folded together, both would be concurrent
        writes to a key without a reducer, which is an error.
        """
        board, program, before, step = self._board, self._program, self._board.ran, self._board.step + 1
        changed: set[str] = set()
        if done and others:
            unfinished = structs.replace(program, finishing=())  # deferred nodes still have to wait for `others`
            superstep.update(unfinished, board, *_split(done), left=left, scope=self._scope)
            changed, left = set(board.changed), superstep.plan(program, board, self._scope)
        superstep.update(program, board, *_split(others or done), step=step, left=left, scope=self._scope)
        board.changed = tuple(sorted(changed.union(board.changed)))
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


def _invalid_copy_values(given: object) -> InvalidUpdateError:
    return InvalidUpdateError(
        f"an update as {COPY!r} has no values, or a list of updates for the copy, each (values, as_node), "
        f"not a {type(given).__name__}"
    )


def _is_empty(update: StateUpdate) -> bool:
    """Return True if an update only makes a checkpoint: it names no node, and has no values."""
    return update.as_node is None and update.values is None


def _two_results(node: Node, task: Task) -> InvalidUpdateError:
    return InvalidUpdateError(
        f"two updates of one superstep are for task {task.id} of node {node.name!r}, which has one result: make one "
        "update of them, or put them into two supersteps",
        node=node.name,
    )


def _split(ran: Sequence[tuple[Task, Finished]]) -> tuple[list[Task], list[list[Write]]]:
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
        thread: the loaded namespace.
        updates: the checked updates, by superstep.
        run_id: the id under which the edit is stored.
        config: the config that routers get.
        options: the options that routers get.
        limit: the recursion limit of the config, for managed values that routers read.
        then: see `Editor.apply`.
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


async def edit_subgraph(
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
    """Apply updates to the state of a subgraph. Questions that the edit removes are closed in the enclosing graphs too.

    Args:
        thread: the loaded namespace of the subgraph.
        root: the root graph's namespace, at its head.
        updates, run_id, config, options, limit: see `edit`.
        is_past: True if the config names a checkpoint of the subgraph that is not its current one at the root's head.

    Raises:
        InvalidUpdateError: the root's open superstep has results, which a new root checkpoint would discard; or the
            task that runs the subgraph has its result already, so that no run would continue from the edit.
    """
    # The state of a subgraph that keeps its state between calls, and is not part of the root's open superstep, is found
    # through the root's checkpoints, which hold its tip. So the root gets a checkpoint that holds the new tip. In the
    # middle of a superstep the root can get none. An edit of the past needs none then: it starts a branch at the root
    # checkpoint that the config names, and the root's head is not involved.
    under_way = root.tip is not None and thread.parents.get("") == root.tip
    keeps_state = ":" not in thread.ns
    needs_root_checkpoint = keeps_state and not under_way and not (is_past and root.has_records)
    if needs_root_checkpoint and root.has_records:
        raise InvalidUpdateError(
            f"the state of {thread.ns!r} is not part of the enclosing graph's open superstep, and cannot be updated "
            "before that superstep has finished: finish it first, or pass the config of an older snapshot of that "
            "state, which starts a branch there"
        )

    if not keeps_state:
        await _check_not_finished(thread)
    asked = {question.id for question in thread.questions()}

    async def update_enclosing_graphs() -> None:
        gone = asked - {question.id for question in thread.questions()}
        if gone:
            await _withdraw_questions(thread, gone)
        if needs_root_checkpoint and root.board is not None and thread.tip is not None:
            root.lease.moved_tips[thread.ns] = thread.tip
            await edit(root, [[StateUpdate(None)]], run_id, config, options, limit=limit)

    await edit(thread, updates, run_id, config, options, limit=limit, then=update_enclosing_graphs)


async def _check_not_finished(inside: NamespaceWriter) -> None:
    """Raise `InvalidUpdateError` if the task that runs a subgraph has its result already, in an open superstep."""
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


async def _withdraw_questions(inside: NamespaceWriter, ids: Collection[str]) -> None:
    """Remove questions that a subgraph no longer asks from the records of the enclosing tasks."""
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


async def _skip_record(around: GraphContext, task: Task, writes: list[Write]) -> None:
    """Record nothing: an update is stored as a whole, after its routers have run."""


async def _refuse_calls(caller: AttemptContext, task: Task) -> Outcome:
    raise InvalidUpdateError(
        "a router called a task while a state was updated by hand: routers may not call tasks then", node=task.node.name
    )
