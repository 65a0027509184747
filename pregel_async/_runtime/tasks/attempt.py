"""One task, from its input to its outcome: call the node, read its result, ask its routers."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
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
from ..._core.task import Failed, Finished, NotStarted, Paused, Settled, Task, Unfinished
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
from ..platform.event_loops import NEVER_CANCELLED, NativeCancellations, is_native, on_asyncio
from .context import CURRENT, AttemptContext, GraphContext
from .input_mutations import watch
from .retries import SINGLE_ATTEMPT, Attempts
from .timeouts import AttemptWatch
from .worker_threads import AbandonFence, in_abandonable_thread, in_process, in_thread, nothing

_T = TypeVar("_T")

Recorder = Callable[[GraphContext, Task, list[Write]], Awaitable[None]]
"""Stores a node's own writes before its routers run."""


async def run_attempt(
    graph: GraphContext,
    board: Board,
    task: Task,
    recorded: Unfinished,
    *,
    natively_cancelled: NativeCancellations,
    contained: bool,
    record: Recorder,
    attempts: Attempts = SINGLE_ATTEMPT,
    failures: tuple[NodeError, ...] = (),
) -> Settled:
    """Run a task. Its own failures and questions become an outcome; a cancellation from outside goes through.

    Args:
        recorded: where the task has to start: with its node, or with its routers.
        natively_cancelled: whether the running task was cancelled without a scope since the run began;
            `NEVER_CANCELLED` when the running task is not the run's, but this task's own.
        contained: the running task ends with this one, so that its context is as good as the node's own. (A node with
            routers gets one of its own all the same: they do not see what it sets.)
        record: stores the node's writes before an async router is awaited. It may take long, and what the node did must
            not be done again if the process dies meanwhile. A sync router answers at once, and needs no transaction of
            its own.
        attempts: the attempts at it so far.
        failures: what it handles, if it is an error handler.
    """
    attempt = AttemptContext(graph, board, task, attempts, failures)
    queued = False
    if attempt.slot.is_limited:
        with attempt.waiting_for_slot():
            queued = await attempt.slot.acquire()
    if graph.control is not None and attempt.is_held_back(queued=queued):
        attempt.slot.release()
        return NotStarted()
    if attempt.callers and attempt.callers[0].graph is not graph:
        attempt.callers[0].sign()  # the graph that it runs makes progress
    token = CURRENT.set(attempt)
    progress = _Progress(recorded.writes, natively_cancelled, record)
    if graph.is_timed:
        graph.open_attempts.add(attempt)
    try:
        if graph.observation.is_on and not task.node.hidden and (task.node.routers or not recorded.has_run):
            attempt.observe(routes=recorded.has_run)
            return await _observed(attempt, progress, contained=contained)
        if task.timeout is not None:
            return await _timed(attempt, progress, contained=contained)
        try:
            return await _run(attempt, progress, contained=contained)
        except BaseException as error:
            return await _unfinished(attempt, error, progress)
    finally:
        attempt.end()
        if graph.is_timed:
            graph.open_attempts.discard(attempt)
        CURRENT.reset(token)
        if attempt.slot.is_limited:
            attempt.slot.release()
        if attempt.calls.any:
            await attempt.calls.end()


async def _observed(attempt: AttemptContext, progress: _Progress, *, contained: bool) -> Settled:
    """Return the outcome of an observed attempt, after all that it called has ended."""
    outcome: Settled | None = None
    try:
        inside = _outcome if attempt.task.timeout is None else _timed
        outcome = await inside(attempt, progress, contained=contained)
        return outcome
    finally:
        attempt.end()
        try:
            await attempt.calls.end()
        finally:
            attempt.observed.end(outcome)


async def _timed(attempt: AttemptContext, progress: _Progress, *, contained: bool) -> Settled:
    watch = AttemptWatch(attempt.task, attempt.graph.run.environment, attempt.stop)
    attempt.watches = (watch,)
    outcome = await watch.over(lambda: _outcome(attempt, progress, contained=contained))
    return Failed(_placed(watch.error, attempt.task), progress.writes) if outcome is None else outcome


async def _outcome(attempt: AttemptContext, progress: _Progress, *, contained: bool) -> Settled:
    """What becomes of an attempt within its time."""
    try:
        return await _run(attempt, progress, contained=contained)
    except BaseException as error:
        return await _unfinished(attempt, error, progress)


async def _unfinished(attempt: AttemptContext, error: BaseException, progress: _Progress) -> Settled:
    """What becomes of an attempt that has raised, in whose `except` this is called. A cancellation from outside, and a
    failure of storage, go through."""
    if isinstance(error, GeneratorExit):
        raise
    if isinstance(error, anyio.get_cancelled_exc_class()):
        if _cancelled_from_outside(progress.natively_cancelled):
            raise
        failure = NodeCancelledError(attempt.task.node.name)
        failure.__cause__ = error
        return Failed(_placed(failure, attempt.task), progress.writes)
    if progress.recording and not isinstance(error, UnstorableValueError):  # storage's failure, not the node's
        raise
    return await _stopped(attempt, error, progress.writes)


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
        natively_cancelled, record: as in `run_attempt`.
    """

    __slots__ = ("natively_cancelled", "record", "recording", "writes")

    def __init__(self, writes: list[Write] | None, natively_cancelled: NativeCancellations, record: Recorder) -> None:
        self.writes = writes
        self.recording = False
        self.natively_cancelled = natively_cancelled
        self.record = record


async def _run(attempt: AttemptContext, progress: _Progress, *, contained: bool) -> Finished:
    """The node, then its routers."""
    task, board, program = attempt.task, attempt.board, attempt.graph.program
    node, writes = task.node, progress.writes
    recorded, leaves = writes is not None, False
    if writes is None:
        writes, leaves = await _node_writes(attempt, progress, contained=contained)
        progress.writes = writes
    else:
        leaves = any(name == PARENT for name, _ in writes)
    everything = [*writes, *node.edges]
    if node.routers:
        attempt.route()
    for router in node.routers:
        injected = attempt.inject(router.injects) if router.injects else {}
        names = fold_names([task], [writes], task.scope, task.step) if program.names_messages else None
        answer = router.call(board.view_of(router, program, writes, names), **injected)
        if isawaitable(answer):
            if not recorded:
                recorded = progress.recording = True
                try:
                    await progress.record(attempt.graph, task, writes)
                except BaseException:
                    if isinstance(answer, types.CoroutineType):
                        answer.close()  # it was never started, and never will be
                    raise
                progress.recording = False
            answer = await answer
        everything.extend([(name, own(item, name)) for name, item in router.route(answer)])
    if node.routers and attempt.calls.any:
        await attempt.calls.join()
    if attempt.open or attempt.refusals:
        _check_open(attempt)
    return Finished(everything, own=len(writes), leaves=leaves)


async def _node_writes(attempt: AttemptContext, progress: _Progress, *, contained: bool) -> tuple[list[Write], bool]:
    """Call the node, and wait for all that it calls. Return its own writes, and whether there are commands for a graph
    around this one among them."""
    task, node = attempt.task, attempt.task.node
    value = attempt.board.input_of(node) if task.send < 0 else isolate(task.arg)
    checks: tuple[Callable[[], None], ...] = ()
    if attempt.graph.options.debug:
        checks = (watch(task, value),)
    result: Any = None
    commands: list[Command] = []
    try:
        call = _called if attempt.graph.overhears is None else _overheard
        result = await call(node, value, attempt, progress, contained=contained and not node.routers)
    except BaseException as error:
        commands = _commands_in(error, attempt)
    for check in checks:
        check()
    if attempt.calls.any:
        try:
            await attempt.calls.join()
        except ParentCommand as error:
            commands = commands or _commands_in(error, attempt)
    if attempt.open or attempt.refusals:
        _check_open(attempt)
    written = _written_by(commands, attempt) if commands else node.writes(result)
    writes = [(name, item if type(item) in ATOMS else own(item, name)) for name, item in written]
    leaves = False
    for name, item in writes:
        if name == PARENT:
            leaves = True
            if task.is_planned:
                _check_leaves(attempt, item)
    return writes, leaves


def _check_open(attempt: AttemptContext) -> None:
    """Refuse the result of a node that had to stop, and has swallowed that (`gather(..., return_exceptions=True)`);
    and that of one that has swallowed a refusal."""
    if attempt.refusals:
        raise attempt.refusals[-1]
    if attempt.open:
        if attempt.graph.run.stop.errors and not attempt.questions():
            # The run drains: the node is not at fault, and runs again when the rest of what it called has run.
            raise GraphInterrupt(())
        raise InterruptSwallowedError(attempt.task.node.name)


def _check_leaves(attempt: AttemptContext, command: Command) -> None:
    """Refuse a command for a graph around this one that there is not."""
    name, node = command.graph, attempt.task.node.name
    if not attempt.graph.outer:
        raise InvalidUpdateError(
            f"node {node!r} gave a command for {_graph(name)}, and its graph is not run by a node of another. "
            "Leave out graph= for a command to the node's own graph",
            node=node,
        )
    if name != Command.PARENT and not attempt.graph.enclosing(str(name)):
        raise InvalidUpdateError(
            f"node {node!r} gave a command for graph {name!r}, and no graph around it, and no node that it is in, "
            "has that name",
            node=node,
        )


def _graph(name: str | None) -> str:
    return "the graph around its own" if name == Command.PARENT else f"graph {name!r}"


async def _stopped(attempt: AttemptContext, error: BaseException, writes: list[Write] | None) -> Settled:
    """The outcome of an attempt that raised.

    What stops a node to ask is looked for in groups too: a task group of the node's own wraps it in one. Beside a
    failure it does not count, be it one of a task that the node called and did not await; nor does it beside a
    cancellation of the run, which goes on.
    """
    task, calls = attempt.task, attempt.calls
    if attempt.refusals:
        return Failed(_placed(attempt.refusals[-1], task), writes)
    _, failures = _split(error)
    for failure in failures:
        _raise_if_cancelled(failure)
    if not failures:
        await calls.pause()
    failures = [*failures, *calls.failures()]
    if len(failures) == 1:
        return Failed(_placed(failures[0], task), writes)
    if failures:
        message = f"node {task.node.name!r} failed, or tasks that it called and did not await: {len(failures)} failures"
        return Failed(_placed(BaseExceptionGroup(message, failures), task), writes)
    if attempt.held_back:
        return NotStarted()
    return Paused(attempt.questions(), writes)


def _raise_if_cancelled(failure: BaseException) -> None:
    """Raise the cancellation out of a group of trio's that holds nothing else: asyncio's leave cancellations out."""
    if isinstance(failure, BaseExceptionGroup) and _cancelled_from_outside(NEVER_CANCELLED):
        leaves = list(_flat(failure))
        if all(isinstance(leaf, anyio.get_cancelled_exc_class()) for leaf in leaves):
            raise leaves[0]


def _split(error: BaseException) -> tuple[list[GraphBubbleUp], list[BaseException]]:
    """What stops the node without being a failure, and the failure if there is one."""
    if isinstance(error, GraphBubbleUp):
        return [error], []
    if isinstance(error, BaseExceptionGroup):
        found, rest = error.split(GraphBubbleUp)
        if found is not None:
            return list(_flat(found)), [] if rest is None else [rest]
    return [], [error]


def _flat(group: BaseExceptionGroup[Any]) -> Iterator[Any]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _flat(error)
        else:
            yield error


def _commands_in(error: BaseException, attempt: AttemptContext) -> list[Command]:
    """The commands that a graph which the node ran gave to this one: they are the node's result.

    Raises:
        BaseException: `error` itself, when it is anything else.
    """
    bubbles, failures = _split(error)
    commands = [command for bubble in bubbles if isinstance(bubble, ParentCommand) for command in bubble.commands]
    if failures or not commands or any(isinstance(bubble, GraphInterrupt) for bubble in bubbles):
        raise error
    if not attempt.task.is_planned:
        return commands  # a call is no level of its own: they are for whoever called it
    mine = (Command.PARENT, attempt.graph.program.name, attempt.task.node.name)
    return [structs.replace(command, graph=None) if command.graph in mine else command for command in commands]


def _written_by(commands: list[Command], attempt: AttemptContext) -> list[Write]:
    """The writes of commands that a graph which the node ran has given."""
    node, program = attempt.task.node, attempt.graph.program
    if not attempt.task.is_planned:
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


async def _overheard(node: Node, value: Any, attempt: AttemptContext, progress: _Progress, *, contained: bool) -> Any:
    overhears = attempt.graph.overhears
    assert overhears is not None
    with overhears(attempt.writer):  # in the context of which the node gets a copy
        return await _called(node, value, attempt, progress, contained=False)


def _called(node: Node, value: Any, attempt: AttemptContext, progress: _Progress, *, contained: bool) -> Awaitable[Any]:
    """Begin to call the node: what is to be awaited, at once."""
    if attempt.graph.run.watch is not None:
        attempt.graph.run.watch(attempt)
    injected = attempt.inject(node.injects) if node.injects else {}
    if node.flavour == "async" and not attempt.graph.events.publisher.shows_writes:
        awaitable = node.call(value, **injected)
        return awaitable if contained else in_own_context(awaitable, progress.natively_cancelled)
    return _called_with(injected, node, value, attempt, progress)


async def _called_with(
    injected: dict[str, Any], node: Node, value: Any, attempt: AttemptContext, progress: _Progress
) -> Any:
    """A node that writes to streams, or is a plain function."""
    owes = (attempt,) if attempt.publisher.shows_writes else ()
    if owes and node.flavour != "sync":
        with attempt.waiting():
            await (
                attempt.publisher.wait_until_drained()
            )  # it may never await what it writes, nor anything else; others after it may not either
    if node.flavour == "async":
        return await in_own_context(node.call(value, **injected), progress.natively_cancelled, owes)
    call = partial(node.call, **injected) if injected else node.call
    if node.flavour == "inline":
        result = copy_context().run(call, value)
    else:
        # A worker may have to be waited for. A drain that comes meanwhile holds the function back. After an earlier
        # one only what a node that is under way calls gets here, and it is to end.
        control = attempt.graph.control
        stops = control is not None and not control.drain_requested
        if node.flavour == "process":
            result = await in_process(node.call, own(value), attempt.hold_back if stops else nothing)
        elif isinstance(attempt.fence, AbandonFence):
            result = await in_abandonable_thread(partial(attempt.in_worker, call, stops), value, attempt.fence)
        else:
            # Cancelling waits for the thread: nothing that the graph started outlives the run.
            result = await in_thread(partial(attempt.in_worker, call, stops), value, attempt.stop)
    return await in_own_context(result, progress.natively_cancelled, owes) if isawaitable(result) else result


def in_own_context(
    awaitable: Awaitable[_T], cancellations: NativeCancellations, owes: Sequence[AttemptContext] = ()
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
    cancellations: NativeCancellations,
    owes: Sequence[AttemptContext],
) -> Generator[Any, Any, _T]:
    """Send into the coroutine what the event loop sends here, each time inside the context."""
    step: Callable[..., Any] = coroutine.send
    sent: Any = None
    thrown: tuple[BaseException, ...] = ()  # native cancellations
    try:
        while True:
            try:
                wish = context.run(step, sent)
            except StopIteration as stop:
                result: _T = stop.value
                return result
            try:
                sent = yield wish
                step = coroutine.send
                for writer in owes:
                    if writer.owed:
                        yield from _held(writer).__await__()
            except GeneratorExit:
                context.run(coroutine.close)
                raise
            except BaseException as error:
                if is_native(error):
                    thrown = (*thrown, error)
                sent, step = error, coroutine.throw
    finally:
        if thrown:
            cancellations.take_back(thrown)


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


async def _held(owes: AttemptContext) -> None:
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


def _cancelled_from_outside(natively_cancelled: NativeCancellations) -> bool:
    """Whether the cancellation that has just been caught is the run's, or the node's own affair.

    The run's comes from a cancel scope; to a task that runs in place it may come natively too. On trio nobody can make
    one up. (A node that runs in place and cancels the current task cancels its caller, and that is what happens.)
    """
    if anyio.current_effective_deadline() == float("-inf") or not on_asyncio():
        return True
    return natively_cancelled()


def _placed(error: BaseException, task: Task) -> BaseException:
    annotate(error, f"in node {task.node.name!r}, superstep {task.step}, task {task.id}")
    return error
