"""The algorithm: plan, execute, update, checkpoint.

A graph runs in supersteps, after Pregel's bulk-synchronous model. Each superstep has four phases:

    plan         select the nodes whose trigger channels have new versions, and the nodes that were sent something
    execute      run all of them concurrently, each on the same board
    update       fold their writes into the channels, which makes the next board
    checkpoint   make the next board durable

Supersteps follow until nothing is left to run. The rules:

1. Writes of a superstep are invisible before the next one.
2. Only `update` changes a board: it makes the next board, and may reuse the object. All other code only reads.
3. Channels are folded in channel-name order, and a channel's writes in plan order, never in completion order.
4. A superstep is all or nothing.
5. A recorded task never runs again.
6. The next superstep starts only when this one is as durable as the run promised.
7. Every task ends in exactly one outcome: finished, failed, paused, cancelled or not started.

This module uses no event loop, clock or database: `run` awaits one small port, and the rest are plain functions.

Source: G. Malewicz et al., "Pregel: a system for large-scale graph processing", SIGMOD 2010; L. Valiant, "A bridging
model for parallel computation", CACM 33(8), 1990.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

from ..channels import MISSING, Topic
from ..channels.abc import AnyChannel
from ..errors import GraphRecursionError, InvalidUpdateError, NodeCancelledError, ParentCommand
from ..types import Command, Send
from .board import NOTHING_AMENDED, Board
from .fold_errors import annotate_fold_error
from .isolation import drop_if_replaced
from .naming import fold_message_ids
from .ownership import own
from .program import PARENT, SENDS, Program, Write
from .stop import Breakpoints
from .task import Cancelled, Failed, Finished, NotStarted, Outcome, Paused, Task

Scope = tuple[str, str]
"""The scope of task ids: the thread's id (the run's if there is no thread), and the namespace."""


class Port(Protocol):
    """The input and output of the algorithm."""

    def execute(self, board: Board, tasks: Sequence[Task]) -> Awaitable[Sequence[Outcome]]:
        """Run the tasks on the board and return their outcomes, in the order of the tasks, when all have ended.

        A task with a recorded result is not run (rule 5). When one task fails, the others are cancelled and awaited, or
        finish first: the run's failure policy decides. When the run is drained, tasks that have begun finish, and the
        others do not start.
        """
        ...

    async def checkpoint(
        self, board: Board, ran: Sequence[Task], outcomes: Sequence[Outcome], upcoming: Sequence[Task]
    ) -> None:
        """Make a finished superstep durable. Return when the next one may start (rule 6)."""
        ...

    async def pause(self, board: Board, tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> None:
        """Record the results and questions of a superstep that stays open. The run ends after this."""
        ...

    async def fail(self, tasks: Sequence[Task], outcomes: Sequence[Outcome], error: BaseException) -> None:
        """Record a failed superstep. Its board is not used any more."""
        ...


async def run(
    program: Program,
    board: Board,
    port: Port,
    *,
    scope: Scope,
    limit: int,
    tasks: Sequence[Task] | None = None,
    breakpoints: Breakpoints | None = None,
    resumed: bool = False,
    barrier: Callable[[Board, Sequence[Task]], bool] | None = None,
) -> bool:
    """Run supersteps until nothing is left to run.

    Args:
        program: the graph.
        board: the first board; each superstep updates it.
        port: executes, stores and records.
        scope: the scope of task ids.
        limit: the greatest number of supersteps; hidden ones do not count.
        tasks: the tasks of the first superstep, if they are planned already.
        breakpoints: where to stop.
        resumed: the run resumes an earlier one, so it does not stop again at a breakpoint before its first superstep.
        barrier: called with the board and the tasks before each superstep. Returns True to stop; may raise.

    Returns:
        True if nothing is left to run. False if the run has paused: at questions or with tasks that were not started
        (`Port.pause` was called), at a breakpoint, or because the barrier returned True.

    Raises:
        GraphRecursionError: tasks were left after `limit` supersteps. All supersteps are stored.
        ParentCommand: a task returned a command for an outer graph.
        BaseException: the error of a node, a router or a reducer; an `ExceptionGroup` in plan order if several nodes
            failed.
    """
    left = limit
    if tasks is None:
        tasks = plan(program, board, scope)
    if breakpoints is not None and not resumed and breakpoints.between((), tasks):
        return False
    while tasks:
        if barrier is not None and not tasks[0].node.hidden and barrier(board, tasks):
            return False
        board.remaining = left
        if not tasks[0].node.hidden:
            if left == 0:
                raise GraphRecursionError(limit, board.step, names_of(tasks))
            left -= 1
        outcomes = await port.execute(board, tasks)
        if stays_open(outcomes):
            await port.pause(board, tasks, outcomes)
            if commands := commands_of(outcomes):
                raise ParentCommand(commands)
            return False
        try:
            update(program, board, tasks, collect(tasks, outcomes), scope=scope)
        except BaseException as error:
            await port.fail(tasks, outcomes, error)
            raise
        # Planned before the checkpoint: the commit of a superstep after which nothing is left releases the lease.
        upcoming = plan(program, board, scope)
        await port.checkpoint(board, tasks, outcomes, upcoming)
        if breakpoints is not None and breakpoints.between(tasks, upcoming, outcomes):
            return False
        tasks = upcoming
        # Freed before the next superstep waits: Python's collector traverses every object of a waiting run again and
        # again, which took half the time with thousands of concurrent runs.
        del outcomes
    return True


def plan(program: Program, board: Board, scope: Scope) -> list[Task]:
    """Return the tasks of the next superstep in *plan order*: triggered nodes by name, then sends by index.

    A channel triggers a node if it is available and its version is newer than the one at the node's last run.
    """
    # Only channels that the last superstep changed are visited: planning costs in proportion to what was written, not
    # to the size of the graph.
    names: set[str] = set()
    # Here and in `update`, `in` and `[]` replace `get` and `pop`, because these are calls.
    triggered, seen = program.triggered, board.seen
    for channel in board.updated:
        if channel in triggered:
            version, seen_by = board.versions[channel], seen[channel] if channel in seen else _NOTHING_SEEN
            for name in triggered[channel]:
                if version > (seen_by[name] if name in seen_by else 0):
                    names.add(name)
    if program.upgrades.aliases and len(names) > 1:
        names = _once(program, names)
    step = board.step + 1
    tasks = [Task(program.nodes[name], step, index, scope) for index, name in enumerate(sorted(names))]
    if SENDS in board.channels and (sends := board.channels[SENDS]).is_available():
        first = len(tasks)
        tasks.extend(
            Task(program.nodes[send.node], step, first + index, scope, index, send.arg, timeout=send.limits)
            for index, send in enumerate(sends.get())
        )
    return tasks


_NOTHING_SEEN: dict[str, int] = {}


def _once(program: Program, names: set[str]) -> set[str]:
    """Return the names of triggered nodes with one name, the oldest, for each node that was renamed."""
    # The former name is that of the pending task, whose id and records have to stay. Its run consumes all triggers.
    others: set[str] = set()
    for name in names:
        node = program.nodes[name]
        if name in node.was:
            others.update((node.name, *node.was[: node.was.index(name)]))
    return names - others


def names_of(tasks: Iterable[Task]) -> tuple[str, ...]:
    """Return the names of a plan's nodes in the order that users see: sends by index, then triggered nodes by name."""
    listed = list(tasks)
    return tuple(
        [task.node.name for task in listed if task.send >= 0] + [task.node.name for task in listed if task.send < 0]
    )


def stays_open(outcomes: Sequence[Outcome]) -> bool:
    """Return True if a task asks, has a command for an outer graph or was not started, unless one failed."""
    waits = False
    for outcome in outcomes:
        if isinstance(outcome, Finished):
            waits = waits or outcome.ends_graph
        elif isinstance(outcome, (Paused, NotStarted)):
            waits = True
        else:
            return False  # a failure or a cancellation takes precedence: it ends the superstep
    return waits


def commands_of(outcomes: Sequence[Outcome]) -> tuple[Command, ...]:
    """Return the commands for outer graphs, in plan order; empty while a question is open or a task was not started."""
    if any(isinstance(outcome, (Paused, NotStarted)) for outcome in outcomes):
        return ()
    return tuple(
        value
        for outcome in outcomes
        if isinstance(outcome, Finished) and outcome.ends_graph
        for name, value in outcome.writes
        if name == PARENT
    )


def collect(tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> list[list[Write]]:
    """Return every task's writes, in plan order, or raise the superstep's failure.

    Raises:
        NodeCancelledError: a task was cancelled, and none has failed.
        BaseException: the error of the only failed task, as it is; an `ExceptionGroup` in plan order if several failed.
            `KeyboardInterrupt` and `SystemExit` go before all other errors.
    """
    writes: list[list[Write]] = []
    errors: list[BaseException] = []
    for outcome in outcomes:
        if isinstance(outcome, Finished):
            writes.append(outcome.writes)
        elif isinstance(outcome, Failed) and not any(outcome.error is error for error in errors):
            errors.append(outcome.error)  # each error once: a superstep's timeout is one error for all of its tasks
    if not errors:
        for task, outcome in zip(tasks, outcomes, strict=True):
            if isinstance(outcome, Cancelled):  # rule 4: a superstep without this task's writes is incomplete
                raise NodeCancelledError(task.node.name)
        return writes
    for error in errors:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error
    if len(errors) == 1:
        raise errors[0]
    message = f"{len(errors)} of {len(tasks)} tasks of superstep {tasks[0].step} failed"
    raise BaseExceptionGroup(message, errors)


def update(
    program: Program,
    board: Board,
    tasks: Sequence[Task],
    writes: Sequence[Sequence[Write]],
    *,
    step: int | None = None,
    left: Sequence[Task] = (),
    scope: Scope = ("", ""),
    edit: int = 0,
) -> None:
    """Fold the tasks' writes into the board, which makes the next board.

    Without tasks, the writes come from outside, such as a graph's input. No superstep has passed then, so channels that
    expire retain their values.

    Args:
        program: the graph.
        board: the board; changed in place.
        tasks: the tasks that ran, in plan order.
        writes: their writes, in the same order. Writes from outside follow them.
        step: the number of the superstep; by default the board's plus one.
        left: planned tasks that do not run in this superstep and stay pending for the next.
        scope, edit: as in `ids.outside_id`, for messages that no task has written.

    Raises:
        InvalidUpdateError: a channel refused its writes, for example two for a `LastValue`.
        Exception: a reducer raised; a note names the place. The board must not be used any more.
    """
    before, clock = board.clock, board.clock + 1
    channels, versions, seen = board.channels, board.versions, board.seen
    board.step = step = board.step + 1 if step is None else step
    board.ran = tuple([task.node.name for task in tasks])
    touched: set[str] = set()
    # The tasks in `left` keep their trigger channels with the old versions. With new versions the channels would also
    # trigger nodes that have seen them and run.
    retained: set[str] = set()
    sends: list[Send] = []
    if left:
        retained = {
            name for task in left for name in task.triggers if name in channels and channels[name].is_available()
        }
        sends = [Send(task.node.name, task.arg, timeout=task.own_timeout) for task in left if task.send >= 0]

    # 1. Mark the triggers of the nodes that ran as seen, and empty the channels that a run consumes. Before the writes,
    #    so that a barrier which this superstep completes again starts empty.
    for task in tasks:
        name = task.node.identity
        for trigger in task.node.triggers if task.send < 0 else ():  # `task.triggers`, without a call
            if trigger in versions:
                if trigger in seen:
                    seen[trigger][name] = versions[trigger]
                else:
                    seen[trigger] = {name: versions[trigger]}
                channel = channels[trigger]
                if channel.consumes and trigger not in retained and channel.consume():
                    touched.add(trigger)

    # 2. The writes: by channel, and within a channel in plan order.
    by_channel: dict[str, list[Any]] = {}
    for written in writes:
        for name, value in written:
            if name in by_channel:
                by_channel[name].append(value)
            else:
                by_channel[name] = [value]
    if sends:
        by_channel[SENDS] = [*sends, *by_channel.get(SENDS, ())]
    for name in retained:
        channel = channels[name]
        if name in by_channel and channel.expires and isinstance(channel, Topic):
            by_channel[name].insert(0, list(channel.get()))  # tasks in `left` have not seen the old values yet
    message_ids = fold_message_ids(tasks, writes, scope, step, edit) if program.assigns_message_ids else None
    for name in sorted(by_channel):
        try:
            channel = channels[name] if name in channels else _create_channel(program, board, name)
            values = by_channel[name]
            if channel.update(values) if message_ids is None else message_ids.fold(channel, values):
                touched.add(name)
        except Exception as error:
            annotate_fold_error(error, name, tasks, writes, step)
            raise

    # 3. A superstep has passed: channels without a write in it may lose their values.
    if tasks and board.fleeting:
        for name in sorted(board.fleeting):
            if name not in by_channel and name not in retained and channels[name].update(()):
                touched.add(name)

    # 4. New versions. An emptied channel has none, so that the board stays as small as what it holds.
    board.clock = clock if touched else before
    changed = sorted(touched)
    updated = [name for name in changed if _stamp(program, board, name, clock)]
    if retained:
        updated = sorted({*updated, *(name for name in retained if channels[name].is_available())})

    # 5. If nothing is left to run, channels that were deferred until then become available.
    if tasks and program.finishing and not any(name in program.triggered or name == SENDS for name in updated):
        for name in program.finishing:
            waiting = channels.get(name)
            if waiting is not None and waiting.finish():
                board.clock = clock
                changed = sorted({*changed, name})
                if _stamp(program, board, name, clock):
                    updated.append(name)

    board.updated = tuple(updated)
    if board.amended:
        changed = sorted({*changed, *board.amended})
        board.amended = NOTHING_AMENDED
    board.changed = tuple(changed)


def _create_channel(program: Program, board: Board, name: str) -> AnyChannel:
    """Create a channel on its first write, and return it."""
    if name not in program.channels:
        raise InvalidUpdateError(f"there is no channel {name!r} in graph {program.name!r}", channel=name)
    channel = board.channels[name] = program.channels[name].fresh()
    return channel


def _stamp(program: Program, board: Board, name: str, clock: int) -> bool:
    """Give a changed channel its new version, or remove its version. Return True if the channel is available."""
    channel = board.channels[name]
    if channel.is_available():
        board.versions[name] = clock
        if name in program.keys:
            value = channel.get()
            # A channel of the user's own class may change its value in place later, which would change this board.
            board.values[name] = own(value) if name in program.foreign else value
            if name in board.copiers:
                drop_if_replaced(board.copiers, name, value)
        if channel.expires:
            board.fleeting.add(name)
        return True
    if name in board.values and name in program.keys:
        del board.values[name]
    if channel.checkpoint() is not MISSING:  # a barrier that waits for more names
        board.versions[name] = clock
        return False
    if name in board.versions:
        del board.versions[name]
    if name in board.seen:
        del board.seen[name]
    if name in board.fleeting:
        board.fleeting.discard(name)
    return False
