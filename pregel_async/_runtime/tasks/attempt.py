"""One task, from its input to its outcome: call the node, read its result, ask its routers."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextvars import Context, copy_context
from functools import partial
from inspect import isawaitable
from typing import Any, TypeVar

import anyio
from msgspec import structs

from checkpoint_savers.errors import annotate

from ..._core.board import Board
from ..._core.copying import ATOMS
from ..._core.isolation import isolate, own
from ..._core.naming import fold_names
from ..._core.program import PARENT, RETURN, Node, Write
from ..._core.task import Failed, Finished, NotStarted, Paused, Settled, Task
from ...errors import (
    GraphBubbleUp,
    GraphInterrupt,
    InterruptSwallowedError,
    InvalidUpdateError,
    NodeCancelledError,
    NodeError,
    ParentCommand,
    UnstorableValueError,
)
from ...types import Command
from ..platform.event_loops import NativeCancellations, broken_group, is_cancelled_error, is_native, on_asyncio
from ..streaming.publisher import Log
from .context import CURRENT, Around, Running
from .input_mutations import watch
from .retries import Tries
from .timeouts import AttemptWatch
from .worker_threads import in_abandonable_thread, in_process, in_thread

_T = TypeVar("_T")

Recorder = Callable[[Task, list[Write]], Awaitable[None]]
"""Stores a node's own writes before its routers run."""


async def attempt(
    around: Around,
    board: Board,
    task: Task,
    given: list[Write] | None,
    record: Recorder | None,
    *,
    natively_cancelled: NativeCancellations | None,
    contained: bool,
    tries: Tries | None = None,
    failure: NodeError | None = None,
) -> Settled:
    """Run a task. Its own failures and questions become an outcome; a cancellation from outside goes through.

    Args:
        given: the node's own writes, when they were recorded by an earlier run whose router failed: only routers run.
        record: stores the node's writes before an async router is asked. It may take long, and what the node did must
            not be done again if the process dies meanwhile. A sync router answers at once, and needs no transaction of
            its own.
        natively_cancelled: whether the running task was cancelled without a scope since the run began; None when the
            running task is not the run's, but this task's own.
        contained: the running task ends with this one, so that its context is as good as the node's own. (A node with
            routers gets one of its own all the same: they do not see what it sets.)
        tries: the attempts at it so far; None when there is to be one.
        failure: what it handles, when it is an error handler.
    """
    running = Running(around, board, task, CURRENT.get(), tries, failure)
    queued = False
    if running.place is not None:
        with running.waiting_for_place():
            queued = await running.place.take()
    if around.control is not None and running.is_held_back(queued=queued):
        if running.place is not None:
            running.place.leave()
        return NotStarted()
    if running.within is not None and running.within.around is not around:
        running.within.sign()  # the graph that it runs goes on
    token = CURRENT.set(running)
    progress = _Progress(given, natively_cancelled)
    if around.running is not None:
        around.running.add(running)
    try:
        if around.observed is not None and not task.node.hidden and (given is None or task.node.routers):
            running.observe(around.observed, routes=given is not None)
            return await _observed(running, record, progress, contained=contained)
        if task.timeout is None:
            try:
                return await _run(running, record, progress, contained=contained)
            except BaseException as error:
                return await _unfinished(running, error, progress)
        return await _timed(running, record, progress, contained=contained)
    finally:
        running.end()
        if around.running is not None:
            around.running.discard(running)
        CURRENT.reset(token)
        if running.place is not None:
            running.place.leave()
        if running.calls is not None:
            await running.calls.end()


async def _observed(running: Running, record: Recorder | None, progress: _Progress, *, contained: bool) -> Settled:
    """What becomes of an attempt that somebody observes; it is told to have ended when all that it called has."""
    assert running.attempt is not None
    outcome: Settled | None = None
    try:
        inside = _outcome if running.task.timeout is None else _timed
        outcome = await inside(running, record, progress, contained=contained)
        return outcome
    finally:
        running.end()
        try:
            if running.calls is not None:
                await running.calls.end()
        finally:
            running.attempt.end(outcome)


async def _timed(running: Running, record: Recorder | None, progress: _Progress, *, contained: bool) -> Settled:
    watch = running.watch = AttemptWatch(running.task, running.around.session.world, running.stop)
    outcome = await watch.over(lambda: _outcome(running, record, progress, contained=contained))
    return Failed(_placed(watch.error, running.task), progress.writes) if outcome is None else outcome


async def _outcome(running: Running, record: Recorder | None, progress: _Progress, *, contained: bool) -> Settled:
    """What becomes of an attempt within its time."""
    try:
        return await _run(running, record, progress, contained=contained)
    except BaseException as error:
        return await _unfinished(running, error, progress)


async def _unfinished(running: Running, error: BaseException, progress: _Progress) -> Settled:
    """What becomes of an attempt that has raised, in whose `except` this is called. A cancellation from outside, and a
    failure of storage, go through."""
    if isinstance(error, GeneratorExit):
        raise
    if isinstance(error, anyio.get_cancelled_exc_class()):
        if _cancelled_from_outside(progress.natively_cancelled):
            raise
        failure = NodeCancelledError(running.task.node.name)
        failure.__cause__ = error
        return Failed(_placed(failure, running.task), progress.writes)
    if progress.recording and not isinstance(error, UnstorableValueError):  # storage's failure, not the node's
        raise
    return await _stopped(running, error, progress.writes)


def start(board: Board, task: Task) -> Finished | Failed:
    """The hidden start, which has no code of the user's but its schema's: nothing to await, to ask or to cancel."""
    node = task.node
    try:
        writes = [(name, own(item, name)) for name, item in node.writes(board.input_of(node))]
    except Exception as error:
        return Failed(_placed(error, task))
    return Finished([*writes, *node.edges], own=len(writes))


class _Progress:
    """How far an attempt has got.

    Attributes:
        writes: the node's own writes, once they are known.
        recording: storage is at work, so that what fails is its failure.
        natively_cancelled: as in `attempt`.
    """

    __slots__ = ("natively_cancelled", "recording", "writes")

    def __init__(self, given: list[Write] | None, natively_cancelled: NativeCancellations | None) -> None:
        self.writes = given
        self.recording = False
        self.natively_cancelled = natively_cancelled


async def _run(running: Running, record: Recorder | None, progress: _Progress, *, contained: bool) -> Finished:
    """The node, then its routers."""
    task, board, program = running.task, running.board, running.around.program
    node, writes = task.node, progress.writes
    recorded = writes is not None
    leaves = writes is not None and any(name == PARENT for name, _ in writes)
    if writes is None:
        value = board.input_of(node) if task.send < 0 else isolate(task.arg)
        compare = watch(task, value) if running.around.debug else None
        result: Any = None
        commands: list[Command] | None = None
        try:
            call = _called if running.around.overhears is None else _overheard
            result = await call(node, value, running, progress, contained=contained and not node.routers)
        except BaseException as error:
            commands = _commands_in(error, running)
        if compare is not None:
            compare()
        if running.calls is not None:
            try:
                await running.calls.join()
            except ParentCommand as error:
                commands = commands or _commands_in(error, running)
        if running.open or running.refusal is not None:
            _check_open(running)
        written = node.writes(result) if commands is None else _written_by(commands, running)
        writes = [(name, item if type(item) in ATOMS else own(item, name)) for name, item in written]
        for name, item in writes:
            if name == PARENT and task.caller is None:
                _check_leaves(running, item)
            leaves = leaves or name == PARENT
        progress.writes = writes
    everything = [*writes, *node.edges]
    if node.routers:
        running.route()
    for router in node.routers:
        injected = running.inject(router.injects) if router.injects else {}
        names = fold_names([task], [writes], task.scope, task.step) if program.names_messages else None
        answer = router.call(board.view_of(router, program, writes, names), **injected)
        if isawaitable(answer):
            if record is not None and not recorded:
                recorded = progress.recording = True
                try:
                    await record(task, writes)
                except BaseException:
                    if isinstance(answer, types.CoroutineType):
                        answer.close()  # it was never started, and never will be
                    raise
                progress.recording = False
            answer = await answer
        everything.extend([(name, own(item, name)) for name, item in router.route(answer)])
    if node.routers and running.calls is not None:
        await running.calls.join()
    if running.open or running.refusal is not None:
        _check_open(running)
    return Finished(everything, own=len(writes), leaves=leaves)


def _check_open(running: Running) -> None:
    """Refuse the result of a node that had to stop, and has swallowed that (`gather(..., return_exceptions=True)`);
    and that of one that has swallowed a refusal."""
    if running.refusal is not None:
        raise running.refusal
    if running.open:
        if running.around.session.stopped is not None and not running.questions():
            # The run drains: the node is not at fault, and runs again when the rest of what it called has run.
            raise GraphInterrupt(())
        raise InterruptSwallowedError(running.task.node.name)


def _check_leaves(running: Running, command: Command) -> None:
    """Refuse a command for a graph around this one that there is not."""
    name, node = command.graph, running.task.node.name
    if running.around.outer is None:
        raise InvalidUpdateError(
            f"node {node!r} gave a command for {_graph(name)}, and its graph is not run by a node of another. "
            "Leave out graph= for a command to the node's own graph",
            node=node,
        )
    if name != Command.PARENT and not running.around.enclosing(str(name)):
        raise InvalidUpdateError(
            f"node {node!r} gave a command for graph {name!r}, and no graph around it, and no node that it is in, "
            "has that name",
            node=node,
        )


def _graph(name: str | None) -> str:
    return "the graph around its own" if name == Command.PARENT else f"graph {name!r}"


async def _stopped(running: Running, error: BaseException, writes: list[Write] | None) -> Settled:
    """The outcome of an attempt that raised.

    What stops a node to ask is looked for in groups too: a task group of the node's own wraps it in one. Beside a
    failure it does not count, be it one of a task that the node called and did not await; nor does it beside a
    cancellation of the run, which goes on.
    """
    task, calls = running.task, running.calls
    if running.refusal is not None:
        return Failed(_placed(running.refusal, task), writes)
    failure = _split(error)[1]
    if isinstance(failure, BaseExceptionGroup):
        cancelled, rest = failure.split(anyio.get_cancelled_exc_class())
        if cancelled is not None and rest is None and _cancelled_from_outside(None):
            raise next(_flat(cancelled))  # a group of trio's: asyncio's leave cancellations out
    failures = [] if failure is None else [failure]
    if calls is not None:
        if failure is None:
            await calls.pause()
        failures.extend(calls.failures())
    if len(failures) == 1:
        return Failed(_placed(failures[0], task), writes)
    if failures:
        message = f"node {task.node.name!r} failed, or tasks that it called and did not await: {len(failures)} failures"
        return Failed(_placed(BaseExceptionGroup(message, failures), task), writes)
    if running.held_back:
        return NotStarted()
    return Paused(running.questions(), writes)


def _split(error: BaseException) -> tuple[list[GraphBubbleUp], BaseException | None]:
    """What stops the node without being a failure, and the failure if there is one."""
    if isinstance(error, GraphBubbleUp):
        return [error], None
    if isinstance(error, BaseExceptionGroup):
        found, rest = error.split(GraphBubbleUp)
        if found is not None:
            return list(_flat(found)), rest
    return [], error


def _flat(group: BaseExceptionGroup[Any]) -> Iterator[Any]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _flat(error)
        else:
            yield error


def _commands_in(error: BaseException, running: Running) -> list[Command]:
    """The commands that a graph which the node ran gave to this one: they are the node's result.

    Raises:
        BaseException: `error` itself, when it is anything else.
    """
    bubbles, failure = _split(error)
    commands = [command for bubble in bubbles if isinstance(bubble, ParentCommand) for command in bubble.commands]
    if failure is not None or not commands or any(isinstance(bubble, GraphInterrupt) for bubble in bubbles):
        raise error
    if running.task.caller is not None:
        return commands  # a call is no level of its own: they are for whoever called it
    mine = (Command.PARENT, running.around.program.name, running.task.node.name)
    return [structs.replace(command, graph=None) if command.graph in mine else command for command in commands]


def _written_by(commands: list[Command], running: Running) -> list[Write]:
    """The writes of commands that a graph which the node ran has given."""
    node, program = running.task.node, running.around.program
    if running.task.caller is not None:
        return [(RETURN, None), *((PARENT, command) for command in commands)]
    if node.commands:
        return node.writes(commands)
    writes: list[Write] = []
    for command in commands:
        try:
            writes += [(PARENT, command)] if command.graph is not None else program.read_command(command)
        except InvalidUpdateError as error:
            error.add_note(f"the graph that node {node.name!r} of graph {program.name!r} runs gave it this command")
            raise
    return writes


async def _overheard(node: Node, value: Any, running: Running, progress: _Progress, *, contained: bool) -> Any:
    overhears = running.around.overhears
    assert overhears is not None
    with overhears(running.writer):  # in the context of which the node gets a copy
        return await _called(node, value, running, progress, contained=False)


def _called(node: Node, value: Any, running: Running, progress: _Progress, *, contained: bool) -> Awaitable[Any]:
    """Begin to call the node: what is to be awaited, at once."""
    if running.around.session.watch is not None:
        running.around.session.watch(running)
    injected = running.inject(node.injects) if node.injects else {}
    log = running.around.log
    if node.flavour == "async" and (log is None or (log.wrote or log.spoke) is None):
        awaitable = node.call(value, **injected)
        return awaitable if contained else in_own_context(awaitable, progress.natively_cancelled)
    return _called_with(injected, log, node, value, running, progress)


async def _called_with(
    injected: dict[str, Any], log: Log | None, node: Node, value: Any, running: Running, progress: _Progress
) -> Any:
    """A node that writes to streams, or is a plain function."""
    owes = running if log is not None and (log.wrote or log.spoke) is not None else None
    if log is not None and owes is not None and node.flavour != "sync":
        with running.waiting():
            await log.settle()  # it may never await what it writes, nor anything else; others after it may not either
    if node.flavour == "async":
        return await in_own_context(node.call(value, **injected), progress.natively_cancelled, owes)
    call = partial(node.call, **injected) if injected else node.call
    if node.flavour == "inline":
        result = copy_context().run(call, value)
    else:
        # A worker may have to be waited for. A drain that comes meanwhile holds the function back. After an earlier
        # one only what a node that is under way calls gets here, and it is to end.
        control = running.around.control
        stops = control is not None and not control.drain_requested
        if node.flavour == "process":
            result = await in_process(node.call, own(value), running.hold_back if stops else None)
        elif running.fence is not None:
            result = await in_abandonable_thread(partial(running.in_worker, call, stops), value, running.fence)
        else:
            # Cancelling waits for the thread: nothing that the graph started outlives the run.
            result = await in_thread(partial(running.in_worker, call, stops), value, running.stop)
    return await in_own_context(result, progress.natively_cancelled, owes) if isawaitable(result) else result


def in_own_context(
    awaitable: Awaitable[_T], cancellations: NativeCancellations | None, owes: Running | None = None
) -> Awaitable[_T]:
    """Await in place, with a copy of the context: what the node sets in context variables stays there.

    This is what a task of its own would give, without the task.

    Args:
        owes: a node that writes to a stream: having awaited something, it is held until its readers have caught up.
    """
    coroutine = awaitable if isinstance(awaitable, types.CoroutineType) else _as_coroutine(awaitable)
    return _drive(coroutine, copy_context(), cancellations, owes)


@types.coroutine
def _drive(
    coroutine: Coroutine[Any, Any, _T],
    context: Context,
    cancellations: NativeCancellations | None,
    owes: Running | None,
) -> Generator[Any, Any, _T]:
    """Send into the coroutine what the event loop sends here, each time inside the context."""
    step: Callable[..., Any] = coroutine.send
    sent: Any = None
    broken: object = None  # a task group that has cancelled the coroutine, and will not take that back
    while True:
        try:
            wish = context.run(step, sent)
        except StopIteration as stop:
            result: _T = stop.value
            return result
        finally:
            if broken is not None and cancellations is not None and broken_group(coroutine) is not broken:
                cancellations.take_back()
                broken = None
        try:
            sent = yield wish
            step = coroutine.send
            if owes is not None and owes.debts:
                yield from _held(owes).__await__()
        except GeneratorExit:
            context.run(coroutine.close)
            raise
        except BaseException as error:
            if is_cancelled_error(error):
                broken = broken or broken_group(coroutine)
            sent, step = error, coroutine.throw


@types.coroutine
def noticed(coroutine: Coroutine[Any, Any, _T], waits: Callable[[], None]) -> Generator[Any, Any, _T]:
    """Await in place, and tell when it begins to wait for something. It need not ever."""
    step: Callable[..., Any] = coroutine.send
    sent: Any = None
    told = False
    while True:
        try:
            wish = step(sent)
        except StopIteration as stop:
            result: _T = stop.value
            return result
        if not told:
            told = True
            waits()
        try:
            sent = yield wish
            step = coroutine.send
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:
            sent, step = error, coroutine.throw


async def _held(owes: Running) -> None:
    """Wait for the readers, between what the node has awaited and what it makes of it.

    A scope's cancellation that comes meanwhile is left for the node's next checkpoint, where it comes again: what the
    node has awaited has happened, and would be lost (a lock that it holds by now, what it was sent). asyncio's own
    comes once, and asyncio's primitives reckon with one that hits a task after its future is done.
    """
    try:
        await owes.settle()
    except anyio.get_cancelled_exc_class() as error:
        if is_native(error):
            raise


async def _as_coroutine(awaitable: Awaitable[_T]) -> _T:
    return await awaitable


def _cancelled_from_outside(natively_cancelled: NativeCancellations | None) -> bool:
    """Whether the cancellation that has just been caught is the run's, or the node's own affair.

    The run's comes from a cancel scope; to a task that runs in place it may come natively too. On trio nobody can make
    one up. (A node that runs in place and cancels the current task cancels its caller, and that is what happens.)
    """
    if anyio.current_effective_deadline() == float("-inf") or not on_asyncio():
        return True
    return natively_cancelled is not None and natively_cancelled()


def _placed(error: BaseException, task: Task) -> BaseException:
    annotate(error, f"in node {task.node.name!r}, superstep {task.step}, task {task.id}")
    return error
