"""The algorithm: plan, execute, update, checkpoint.

A graph runs in supersteps, after Pregel's bulk-synchronous model:

    plan         which nodes have something new to look at, and which were sent something
    execute      all of them at once, each on the board as it stands
    update       fold what they wrote into the channels; that is the next board
    checkpoint   make it durable

and again, until nothing is left to run. The rules:

1. What a superstep writes is invisible before the next.
2. A board is a value to all but `update`, which alone makes the next one (and may reuse the one it was given).
3. Channels are folded in channel-name order, and a channel's writes in plan order, never in completion order.
4. A superstep is all or nothing.
5. A recorded task never runs again.
6. The next superstep starts only when this one is as durable as the run promised.
7. Every task ends in exactly one outcome: finished, failed, paused, cancelled or not started.

Nothing here knows an event loop, a clock or a database: `run` awaits one small port, and the rest are functions.

Source: G. Malewicz et al., "Pregel: a system for large-scale graph processing", SIGMOD 2010; L. Valiant, "A bridging
model for parallel computation", CACM 33(8), 1990.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from ..channels import MISSING, Topic
from ..errors import GraphRecursionError, InvalidUpdateError, NodeCancelledError, ParentCommand
from ..types import Command, Send
from .board import Board, Channel
from .fold_errors import annotate_fold_error
from .isolation import own
from .naming import fold_names
from .program import PARENT, SENDS, Program, Write
from .task import Cancelled, Failed, Finished, NotStarted, Outcome, Paused, Task

Scope = tuple[str, str]
"""What task ids are made in: the thread's id (or the run's, when it has no thread), and the namespace."""


class Port(Protocol):
    """What the algorithm asks of the world."""

    def execute(self, board: Board, tasks: Sequence[Task]) -> Awaitable[Sequence[Outcome]]:
        """Run the tasks, each on the board as it is; return when all have ended, with their outcomes in the tasks'
        order.

        A task with a recorded result is not run (rule 5). When one fails, the others are cancelled and awaited, or
        finish first, as the run's failure policy says. When the run is asked to stop, tasks that have begun finish,
        and the others do not start.
        """
        ...

    async def checkpoint(
        self, board: Board, ran: Sequence[Task], outcomes: Sequence[Outcome], upcoming: Sequence[Task]
    ) -> None:
        """Make a finished superstep durable; return when the next may start (rule 6)."""
        ...

    async def pause(self, board: Board, tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> None:
        """Record what finished and what was asked in a superstep that stays open: the run ends here."""
        ...

    async def fail(self, tasks: Sequence[Task], outcomes: Sequence[Outcome], error: BaseException) -> None:
        """Record a superstep that failed. Its board was not changed, or is dropped."""
        ...


class Breakpoints(msgspec.Struct, frozen=True):
    """Where a run stops between two supersteps.

    Attributes:
        before: names of nodes that are not to run.
        after: names of nodes after which nothing is to run.
    """

    before: frozenset[str] = frozenset()
    after: frozenset[str] = frozenset()

    def between(self, ran: Sequence[Task], upcoming: Sequence[Task]) -> bool:
        """Whether to stop after these and before those."""
        return any(task.node.name in self.after for task in ran) or any(
            task.node.name in self.before for task in upcoming
        )


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
        board: where to begin; in the end, the last board.
        limit: how many supersteps may run; hidden ones do not count.
        tasks: those of the next superstep, if they have been planned already.
        resumed: the run goes on from where another stopped: it does not stop there again.
        barrier: asked before each superstep whether to stop before it. It may raise.

    Returns:
        Whether all is done. If not, the run has paused: at questions or with tasks that were not started (`Port.pause`
        was called), at a breakpoint, or because the barrier says so.

    Raises:
        GraphRecursionError: work was left after `limit` supersteps. All of them are stored.
        ParentCommand: a task gave a command for a graph around this one.
        BaseException: what a node, a router or a reducer raised; an `ExceptionGroup` in plan order when several nodes
            did.
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
        upcoming = plan(program, board, scope)
        await port.checkpoint(board, tasks, outcomes, upcoming)
        if breakpoints is not None and breakpoints.between(tasks, upcoming):
            return False
        tasks = upcoming
        del outcomes  # what a run holds while its nodes wait, Python's collector goes through again and again
    return True


def plan(program: Program, board: Board, scope: Scope) -> list[Task]:
    """The tasks of the next superstep: triggered nodes by name, then sends by index. This is *plan order*.

    A node is triggered by a channel that is available and newer than what the node saw of it when it ran last.
    """
    names: set[str] = set()
    for channel in board.updated:
        for name in program.triggered.get(channel, ()):
            if board.versions[channel] > board.seen.get(channel, _NOTHING_SEEN).get(name, 0):
                names.add(name)
    step = board.step + 1
    tasks = [Task(program.nodes[name], step, index, scope) for index, name in enumerate(sorted(names))]
    sends = board.channels.get(SENDS)
    if sends is not None and sends.is_available():
        first = len(tasks)
        tasks.extend(
            Task(program.nodes[send.node], step, first + index, scope, index, send.arg, timeout=send.limits)
            for index, send in enumerate(sends.get())
        )
    return tasks


_NOTHING_SEEN: dict[str, int] = {}


def names_of(tasks: Iterable[Task]) -> tuple[str, ...]:
    """The nodes of a plan as users see them: sends by index, then triggered nodes by name."""
    listed = list(tasks)
    return tuple(
        [task.node.name for task in listed if task.send >= 0] + [task.node.name for task in listed if task.send < 0]
    )


def stays_open(outcomes: Sequence[Outcome]) -> bool:
    """Return True if the superstep is neither whole nor failed: a task asks, commands a graph around this one, or was
    not started."""
    waits = False
    for outcome in outcomes:
        if isinstance(outcome, Finished):
            waits = waits or outcome.leaves
        elif isinstance(outcome, (Paused, NotStarted)):
            waits = True
        else:
            return False  # a failure is told before a question
    return waits


def commands_of(outcomes: Sequence[Outcome]) -> tuple[Command, ...]:
    """The commands for graphs around this one, in plan order; none while a question is open or a task is left."""
    if any(isinstance(outcome, (Paused, NotStarted)) for outcome in outcomes):
        return ()
    return tuple(
        value
        for outcome in outcomes
        if isinstance(outcome, Finished) and outcome.leaves
        for name, value in outcome.writes
        if name == PARENT
    )


def collect(tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> list[list[Write]]:
    """Every task's writes, in plan order; or the failure of the superstep, raised.

    Raises:
        BaseException: the error of the one task that failed, as it is; an `ExceptionGroup` in plan order of several.
            What ends a process (`KeyboardInterrupt`, `SystemExit`) goes before everything else.
    """
    writes: list[list[Write]] = []
    errors: list[BaseException] = []
    for outcome in outcomes:
        if isinstance(outcome, Finished):
            writes.append(outcome.writes)
        elif isinstance(outcome, Failed) and not any(outcome.error is error for error in errors):
            errors.append(outcome.error)  # once: the superstep's own timeout is that of all its tasks
    if not errors:
        for task, outcome in zip(tasks, outcomes, strict=True):
            if isinstance(outcome, Cancelled):  # rule 4: without it the superstep is not whole
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
    """Fold what the tasks wrote into the board; that is the next board.

    Without tasks the writes come from outside (a graph's input): channels that live for one superstep stay then.

    Args:
        tasks: those that ran, in plan order.
        writes: theirs, in the same order; more of them than tasks when some come from outside.
        step: the number of the superstep; the board's next by default.
        left: planned tasks that do not run in this superstep, and are pending after it as before.
        scope, edit: as in `ids.outside_id`, for what no task has written.

    Raises:
        InvalidUpdateError: a channel refused its writes (two for a `LastValue`, say).
        Exception: what a reducer raised, with a note. The board is not to be used any more then.
    """
    before, clock = board.clock, board.clock + 1
    channels, versions = board.channels, board.versions
    board.step = step = board.step + 1 if step is None else step
    board.ran = tuple([task.node.name for task in tasks])
    touched: set[str] = set()
    # What is left keeps the channels that triggered it, with their versions: written again they would trigger anew what
    # has seen them and ran.
    kept: set[str] = set()
    sends: list[Send] = []
    if left:
        kept = {name for task in left for name in task.triggers if name in channels and channels[name].is_available()}
        sends = [Send(task.node.name, task.arg, timeout=task.own_timeout) for task in left if task.send >= 0]

    # 1. What ran has seen its triggers, and used up those that are used up by it (before the writes: a barrier that
    #    this superstep completes again starts from there).
    for task in tasks:
        name = task.node.name
        for trigger in task.triggers:
            version = versions.get(trigger)
            if version is not None:
                seen = board.seen.get(trigger)
                if seen is None:
                    board.seen[trigger] = {name: version}
                else:
                    seen[name] = version
                channel = channels[trigger]
                if channel.consumes and trigger not in kept and channel.consume():
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
    for name in kept:
        channel = channels[name]
        if name in by_channel and channel.expires and isinstance(channel, Topic):
            by_channel[name].insert(0, list(channel.get()))  # what is left has yet to see the old ones
    names = fold_names(tasks, writes, scope, step, edit) if program.names_messages else None
    for name in sorted(by_channel):
        try:
            channel, given = channels[name] if name in channels else _first(program, board, name), by_channel[name]
            if channel.update(given) if names is None else names.fold(channel, given):
                touched.add(name)
        except Exception as error:
            annotate_fold_error(error, name, tasks, writes, step)
            raise

    # 3. A superstep has passed: channels that nobody wrote may lose their value by that.
    if tasks and board.fleeting:
        for name in sorted(board.fleeting):
            if name not in by_channel and name not in kept and channels[name].update(()):
                touched.add(name)

    # 4. The new versions. What was emptied has none.
    board.clock = clock if touched else before
    updated = [name for name in sorted(touched) if _stamp(program, board, name, clock)]
    if kept:
        updated = sorted({*updated, *(name for name in kept if channels[name].is_available())})

    # 5. Nothing left to run: what was put off until then is due.
    if tasks and program.finishing and not any(name in program.triggered or name == SENDS for name in updated):
        for name in program.finishing:
            waiting = channels.get(name)
            if waiting is not None and waiting.finish():
                board.clock = clock
                touched.add(name)
                if _stamp(program, board, name, clock):
                    updated.append(name)

    board.updated = updated
    if board.amended:
        touched |= board.amended
        board.amended = set()
    board.changed = sorted(touched)


def _first(program: Program, board: Board, name: str) -> Channel:
    """A channel that is written for the first time."""
    prototype = program.channels.get(name)
    if prototype is None:
        raise InvalidUpdateError(f"there is no channel {name!r} in graph {program.name!r}", channel=name)
    channel = board.channels[name] = prototype.fresh()
    return channel


def _stamp(program: Program, board: Board, name: str, clock: int) -> bool:
    """Give a changed channel its version, or take it away. Whether the channel can be read now."""
    channel = board.channels[name]
    if channel.is_available():
        board.versions[name] = clock
        if name in program.keys:
            value = channel.get()
            board.values[name] = own(value) if name in program.foreign else value
        if channel.expires:
            board.fleeting.add(name)
        return True
    if name in program.keys:
        board.values.pop(name, None)
    if channel.checkpoint() is not MISSING:  # a barrier that waits for more names
        board.versions[name] = clock
        return False
    board.versions.pop(name, None)
    board.seen.pop(name, None)
    board.fleeting.discard(name)
    return False
