"""Make one attempt at a task: call the node, read its result, call its routers, return an outcome."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import Any, TypeVar

import anyio

from checkpoint_savers.errors import annotate

from ..._core.board import Board
from ..._core.copying import ATOMS
from ..._core.isolation import advice_on_attribute, isolate
from ..._core.naming import fold_message_ids
from ..._core.ownership import own
from ..._core.program import PARENT, RETURN, Node, Write
from ..._core.task import Failed, Finished, NotStarted, Paused, Settled, Task, Unfinished
from ...errors import (
    GraphBubbleUp,
    GraphInterrupt,
    InterruptSwallowedError,
    InvalidUpdateError,
    NoCheckpointerError,
    NodeCancelledError,
    NodeError,
    NodeInterrupt,
    ParentCommand,
    QuestionChangedError,
    UnstorableValueError,
)
from ...types import START, Command
from ..platform.event_loops import NEVER_CANCELLED, NativeCancellations, is_native_cancellation, on_asyncio
from .async_routers import await_router
from .context import CURRENT, AttemptContext, GraphContext
from .input_mutations import watch_input
from .retries import SINGLE_ATTEMPT, AttemptHistory
from .timeouts import AttemptTimeout
from .worker_threads import AbandonFence, do_nothing, run_in_abandonable_thread, run_in_process, run_in_thread

_T = TypeVar("_T")

Recorder = Callable[[GraphContext, Task, list[Write]], Awaitable[None]]
"""Stores a node's own writes before its async routers run."""


async def run_attempt(
    graph: GraphContext,
    board: Board,
    task: Task,
    recorded: Unfinished,
    *,
    natively_cancelled: NativeCancellations,
    contained: bool,
    record: Recorder,
    attempts: AttemptHistory = SINGLE_ATTEMPT,
    failures: tuple[NodeError, ...] = (),
) -> Settled:
    """Run a task once. Failures and questions of the task become its outcome; a cancellation of the run is raised.

    Args:
        graph: the context of the graph's run.
        board: the state that the superstep reads.
        task: the task.
        recorded: the recorded part of the task: if it has the node's writes, only the routers run.
        natively_cancelled: returns True if the event loop's task was cancelled without a scope since the run began;
            `NEVER_CANCELLED` if the event loop's task runs this task only.
        contained: True if the event loop's task ends with this task. Then the node may set context variables directly.
            A node with routers gets a context of its own nevertheless: routers do not see what it sets.
        record: stores the node's writes before an async router is awaited.
        attempts: the history of attempts at the task.
        failures: the failure that the task handles, if it is an error handler.
    """
    attempt = AttemptContext(graph, board, task, attempts, failures, natively_cancelled.host)
    queued = False
    if attempt.slot.is_limited:
        with attempt.waiting_for_slot():
            queued = await attempt.slot.acquire()
    # After the wait for a slot, not before: a drain may have been requested during the wait.
    if graph.control is not None and attempt.is_held_back(queued=queued):
        attempt.slot.release()
        return NotStarted()
    if attempt.callers and attempt.callers[0].graph is not graph:
        attempt.callers[0].record_activity()  # a node that runs a subgraph is not idle while the subgraph progresses
    token = CURRENT.set(attempt)
    progress = _AttemptProgress(recorded.writes, natively_cancelled, record)
    if graph.is_timed:
        graph.open_attempts.add(attempt)
    try:
        if graph.observation.is_on and not task.node.hidden and (task.node.routers or not recorded.has_run):
            attempt.observe(routes=recorded.has_run)
            return await _observed(attempt, progress, contained=contained)
        if task.timeout is not None:
            return await _timed(attempt, progress, contained=contained)
        try:
            run = _run if graph.tracer is None else _run_traced
            return await run(attempt, progress, contained=contained)
        except BaseException as error:
            return await _outcome_after_raise(attempt, error, progress)
    finally:
        # Detached first: leaked tasks of the node must not write or call during the awaits below.
        attempt.end()
        if graph.is_timed:
            graph.open_attempts.discard(attempt)
        CURRENT.reset(token)
        if attempt.slot.is_limited:
            attempt.slot.release()
        # After a failure, called tasks may still run: no task of an attempt outlives the attempt.
        if attempt.calls.any:
            await attempt.calls.end()


async def _observed(attempt: AttemptContext, progress: _AttemptProgress, *, contained: bool) -> Settled:
    """Return the outcome of an observed attempt, after all called tasks have ended."""
    # The end of a caller is observed after the ends of its calls, so that spans nest.
    outcome: Settled | None = None
    try:
        run = _outcome if attempt.task.timeout is None else _timed
        outcome = await run(attempt, progress, contained=contained)
        return outcome
    finally:
        attempt.end()
        try:
            await attempt.calls.end()
        finally:
            attempt.observed.end(outcome)


async def _timed(attempt: AttemptContext, progress: _AttemptProgress, *, contained: bool) -> Settled:
    timeout = AttemptTimeout(attempt.task, attempt.graph.run.environment, attempt.stop)
    attempt.timeouts = (timeout,)
    outcome = await timeout.run(lambda: _outcome(attempt, progress, contained=contained))
    return Failed(_locate(timeout.error, attempt.task), progress.writes) if outcome is None else outcome


async def _outcome(attempt: AttemptContext, progress: _AttemptProgress, *, contained: bool) -> Settled:
    """Return the outcome of an attempt, leaving timeouts aside."""
    try:
        run = _run if attempt.graph.tracer is None else _run_traced
        return await run(attempt, progress, contained=contained)
    except BaseException as error:
        return await _outcome_after_raise(attempt, error, progress)


async def _outcome_after_raise(attempt: AttemptContext, error: BaseException, progress: _AttemptProgress) -> Settled:
    """Return the outcome of an attempt that has raised; call it in the `except` block.

    A cancellation of the run, and a failure of storage, are raised again.
    """
    if isinstance(error, GeneratorExit):
        raise
    if isinstance(error, anyio.get_cancelled_exc_class()):
        if _is_run_cancelled(progress.natively_cancelled):
            raise
        # The node raised a cancellation of its own, of a task that it awaited for example. Passed on, it would look
        # like a cancellation of the run, which has not been cancelled.
        failure = NodeCancelledError(attempt.task.node.name)
        failure.__cause__ = error
        return Failed(_locate(failure, attempt.task), progress.writes)
    # Storage failed, and not the node: retries and handlers must not see it. A value that cannot be stored is
    # nevertheless a failure of the node.
    if progress.recording and not isinstance(error, UnstorableValueError):
        raise
    return await _outcome_of_error(attempt, error, progress.writes)


def run_hidden_start(board: Board, task: Task) -> Finished | Failed:
    """Run the hidden start node, and return its outcome."""
    # Without an `AttemptContext`: the only user code is the schema's, which cannot await, ask or be cancelled.
    node = task.node
    try:
        given = board.channels[START].get()
        if type(given) is dict:
            # Fast path: no user code gets a dict's items here, so that they need no isolated copies. The board owns the
            # items already, and `own` would return them unchanged.
            writes = node.writes(given)
        else:
            writes = [(name, own(item, name)) for name, item in node.writes(board.input_of(node))]
    except Exception as error:
        return Failed(_locate(error, task))
    return Finished([*writes, *node.edges], own=len(writes))


class _AttemptProgress:
    """The progress of an attempt.

    Attributes:
        writes: the node's own writes, once they are known.
        recording: True while the writes are being stored, so that an error is a failure of storage.
        natively_cancelled, record: as in `run_attempt`.
    """

    __slots__ = ("natively_cancelled", "record", "recording", "writes")

    def __init__(self, writes: list[Write] | None, natively_cancelled: NativeCancellations, record: Recorder) -> None:
        self.writes = writes
        self.recording = False
        self.natively_cancelled = natively_cancelled
        self.record = record


async def _run_traced(attempt: AttemptContext, progress: _AttemptProgress, *, contained: bool) -> Finished:
    """Run the node and its routers, as a run of the callbacks of langchain-core."""
    tracer = attempt.graph.tracer
    assert tracer is not None
    runs_nothing = progress.writes is not None and not attempt.task.node.routers  # its result is cached or recorded
    if not tracer.has_handlers or runs_nothing:
        # As without a tracer: no copies of the context and the input, which only a report needs.
        with tracer.ambient(attempt):
            return await _run(attempt, progress, contained=contained)
    value = _traced_input(attempt.board, attempt.task)
    # Not contained: the tracer sets variables here, and the node must get a copy of that context.
    return await tracer.attempt(attempt, value, partial(_run, attempt, progress, contained=False))


def _traced_input(board: Board, task: Task) -> Any:
    """Return the node's input for callbacks; None if making it fails, because the node then fails with the reason."""
    # Apart from the node's own input: a handler may keep it, or change it.
    if task.send >= 0:
        return isolate(task.arg)
    try:
        return board.input_of(task.node)
    except Exception:
        return None


async def _run(attempt: AttemptContext, progress: _AttemptProgress, *, contained: bool) -> Finished:
    """Run the node, then its routers."""
    task, board, program = attempt.task, attempt.board, attempt.graph.program
    node, writes, tracer = task.node, progress.writes, attempt.graph.tracer
    recorded, ends_graph = writes is not None, False
    if writes is None:
        writes, ends_graph = await _node_writes(attempt, progress, contained=contained)
        progress.writes = writes
    else:
        ends_graph = any(name == PARENT for name, _ in writes)
    everything = [*writes, *node.edges]
    if node.routers:
        attempt.start_routing()
    for router in node.routers:
        injected = attempt.inject(router.injects) if router.injects else {}
        message_ids = fold_message_ids([task], [writes], task.scope, task.step) if program.assigns_message_ids else None
        view = board.view_of(router, program, writes, message_ids)
        traced = None if tracer is None or not tracer.has_handlers else await tracer.router(attempt, router.name, view)
        try:
            answer = router.call(view, **injected)
            if isawaitable(answer):
                if recorded:
                    answer = await answer
                else:
                    record = partial(progress.record, attempt.graph, task, writes)
                    answer, recorded = await await_router(answer, attempt, record, progress)
        except BaseException as error:
            if traced is not None:
                await traced.fail(error)
            raise
        if traced is not None:
            await traced.end(answer)
        everything.extend([(name, own(item, name)) for name, item in router.route(answer)])
    if node.routers and attempt.calls.any:
        await attempt.calls.join()
    if attempt.open_questions or attempt.refusals:
        _check_swallowed(attempt)
    return Finished(everything, own=len(writes), ends_graph=ends_graph)


async def _node_writes(
    attempt: AttemptContext, progress: _AttemptProgress, *, contained: bool
) -> tuple[list[Write], bool]:
    """Call the node, and wait for all tasks that it calls.

    Returns:
        The node's own writes, and True if commands for an outer graph are among them.
    """
    task, node = attempt.task, attempt.task.node
    source = attempt.board.source_of(node) if task.send < 0 else isolate(task.arg, {})
    value = source if node.shape is None or task.send >= 0 else node.shape(source)
    checks: tuple[Callable[[], None], ...] = ()
    if attempt.graph.options.debug:
        checks = (watch_input(task, value),)
    result: Any = None
    commands: list[Command] = []
    try:
        call = _call if attempt.graph.token_listener is None else _call_streaming_models
        result = await call(node, value, attempt, progress, contained=contained and not node.routers)
        tracer = attempt.graph.tracer
        if tracer is not None and tracer.has_handlers:
            tracer.returned(attempt, result)
    except BaseException as error:
        commands = _commands_of(error, attempt)
    for check in checks:
        check()
    if attempt.calls.any:
        try:
            await attempt.calls.join()
        except ParentCommand as error:
            commands = commands or _commands_of(error, attempt)
    if attempt.open_questions or attempt.refusals:
        _check_swallowed(attempt)
    written = _writes_of(commands, attempt) if commands else node.writes(result)
    writes = [*attempt.pushed]
    for name, item in written:  # no comprehension: before Python 3.12, its cell would be an object of each waiting run
        writes.append((name, item if type(item) in ATOMS else own(item, name, source)))
    ends_graph = False
    for name, item in writes:
        if name == PARENT:
            ends_graph = True
            if task.is_planned:
                _check_outer_command(attempt, item)
    return writes, ends_graph


def _check_swallowed(attempt: AttemptContext) -> None:
    """Refuse the result of a node that swallowed an interrupt or a refusal, and returned."""
    # `gather(..., return_exceptions=True)` does that. The result would be made without the answer.
    if attempt.refusals:
        raise attempt.refusals[-1]
    if attempt.open_questions:
        if attempt.graph.run.stop.errors and not attempt.questions():
            # A called task did not begin because of a drain. The node is not at fault, and runs again on resume.
            raise GraphInterrupt(())
        raise InterruptSwallowedError(attempt.task.node.name)


def _check_outer_command(attempt: AttemptContext, command: Command) -> None:
    """Refuse a command for an outer graph that does not exist."""
    name, node = command.graph, attempt.task.node.name
    if not attempt.graph.outer:
        raise InvalidUpdateError(
            f"node {node!r} returned a command for {_graph(name)}, but its graph is not run by a node of another one. "
            "Leave out graph= for a command to the node's own graph",
            node=node,
        )
    if name != Command.PARENT and not attempt.graph.has_enclosing(str(name)):
        raise InvalidUpdateError(
            f"node {node!r} returned a command for graph {name!r}, but no outer graph, and no node that runs this "
            "one, has that name",
            node=node,
        )


def _graph(name: str | None) -> str:
    return "the outer graph" if name == Command.PARENT else f"graph {name!r}"


async def _outcome_of_error(attempt: AttemptContext, error: BaseException, writes: list[Write] | None) -> Settled:
    """Return the outcome of an attempt that raised: failed, paused or not started."""
    # Interrupts are looked for in exception groups, too: a task group of the node wraps them. A failure takes
    # precedence over a question, also one of a called task that was not awaited: pausing would hide it.
    task, calls = attempt.task, attempt.calls
    bubbles, failures = _split(error)
    for bubble in bubbles:
        if isinstance(bubble, NodeInterrupt):
            _ask(attempt, bubble)
    if attempt.refusals:
        return Failed(_locate(attempt.refusals[-1], task), writes)
    for failure in failures:
        _raise_if_cancelled(failure)
    if not failures:
        await calls.wait_all()
    failures = [*failures, *calls.take_failures()]
    if len(failures) == 1:
        return Failed(_locate(failures[0], task), writes)
    if failures:
        message = f"node {task.node.name!r} failed, or tasks that it called and did not await: {len(failures)} failures"
        return Failed(_locate(BaseExceptionGroup(message, failures), task), writes)
    if attempt.held_back:
        return NotStarted()
    return Paused(attempt.questions(), writes)


def _ask(attempt: AttemptContext, raised: NodeInterrupt) -> None:
    """Ask the question of a `NodeInterrupt`, after those that were answered: the node still asks."""
    # `ask` records a refusal with the attempt, which then fails with it.
    with suppress(GraphInterrupt, NoCheckpointerError, QuestionChangedError):
        while not attempt.ended:
            attempt.ask(raised.interrupts[0].value)


def _raise_if_cancelled(failure: BaseException) -> None:
    """Raise a cancellation of the run that is wrapped in an exception group with nothing else in it."""
    # Only trio's nurseries wrap cancellations. asyncio's task groups leave them out.
    if isinstance(failure, BaseExceptionGroup) and _is_run_cancelled(NEVER_CANCELLED):
        leaves = list(_flatten(failure))
        if all(isinstance(leaf, anyio.get_cancelled_exc_class()) for leaf in leaves):
            raise leaves[0]


def _split(error: BaseException) -> tuple[list[GraphBubbleUp], list[BaseException]]:
    """Split an error into interrupts or commands, and the failure if there is one."""
    if isinstance(error, GraphBubbleUp):
        return [error], []
    if isinstance(error, BaseExceptionGroup):
        found, rest = error.split(GraphBubbleUp)
        if found is not None:
            return list(_flatten(found)), [] if rest is None else [rest]
    return [], [error]


def _flatten(group: BaseExceptionGroup[Any]) -> Iterator[Any]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _flatten(error)
        else:
            yield error


def _commands_of(error: BaseException, attempt: AttemptContext) -> list[Command]:
    """Return the commands for this graph that a subgraph of the node raised: they are the node's result.

    Raises:
        BaseException: `error` itself, if it is anything else.
    """
    bubbles, failures = _split(error)
    commands = [command for bubble in bubbles if isinstance(bubble, ParentCommand) for command in bubble.commands]
    if failures or not commands or any(isinstance(bubble, GraphInterrupt) for bubble in bubbles):
        raise error
    if not attempt.task.is_planned:
        return commands  # a called task is no level of its own: its caller's graph receives the commands
    mine = (Command.PARENT, attempt.graph.program.name, attempt.task.node.name)
    return [replace(command, graph=None) if command.graph in mine else command for command in commands]


def _writes_of(commands: list[Command], attempt: AttemptContext) -> list[Write]:
    """Return the writes of commands that a subgraph of the node raised."""
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
            error.add_note(f"the graph that node {node.name!r} of graph {program.name!r} runs returned this command")
            raise
    return writes


async def _call_streaming_models(
    node: Node, value: Any, attempt: AttemptContext, progress: _AttemptProgress, *, contained: bool
) -> Any:
    token_listener = attempt.graph.token_listener
    assert token_listener is not None
    # Not contained: the context manager sets variables here, and the node must get a copy of that context.
    with token_listener(attempt.writer):
        return await _call(node, value, attempt, progress, contained=False)


def _call(
    node: Node, value: Any, attempt: AttemptContext, progress: _AttemptProgress, *, contained: bool
) -> Awaitable[Any]:
    """Call the node, and return an awaitable that must be awaited at once."""
    # A plain function: as a coroutine, it would add a frame to each waiting run, which the garbage collector traverses
    # again and again.
    if attempt.graph.run.on_code_start is not None:
        attempt.graph.run.on_code_start(attempt)
    injected = attempt.inject(node.injects) if node.injects else {}
    if node.flavour == "async" and not attempt.graph.events.publisher.shows_writes:
        awaitable = node.call(value, **injected)
        return awaitable if contained else in_own_context(awaitable, progress.natively_cancelled)
    return _call_with_streams(injected, node, value, attempt, progress)


async def _call_with_streams(
    injected: dict[str, Any], node: Node, value: Any, attempt: AttemptContext, progress: _AttemptProgress
) -> Any:
    """Call a node that may write to streams, or is a plain function."""
    writers = (attempt,) if attempt.publisher.shows_writes else ()
    if writers and node.flavour != "sync":
        with attempt.waiting():
            # Back-pressure before the start: a node that never awaits cannot be held up later, and a chain of such
            # nodes would fill the buffers without limit.
            await attempt.publisher.wait_until_drained()
    if node.flavour == "async":
        return await in_own_context(node.call(value, **injected), progress.natively_cancelled, writers)
    call = partial(node.call, **injected) if injected else node.call
    if node.flavour == "inline":
        result = copy_context().run(call, value)
    else:
        # A drain during the wait for a worker holds the function back. If one was requested before, this is a task that
        # a running node calls: it has begun, and is to finish.
        control = attempt.graph.control
        stops = control is not None and not control.drain_requested
        if node.flavour == "process":
            result = await run_in_process(node.call, own(value), attempt.hold_back if stops else do_nothing)
        elif isinstance(attempt.fence, AbandonFence):
            result = await run_in_abandonable_thread(partial(attempt.in_worker, call, stops), value, attempt.fence)
        else:
            # A cancelled run waits for the thread: nothing that a graph started outlives its run.
            result = await run_in_thread(partial(attempt.in_worker, call, stops), value, attempt.stop)
    return await in_own_context(result, progress.natively_cancelled, writers) if isawaitable(result) else result


def in_own_context(
    awaitable: Awaitable[_T], cancellations: NativeCancellations, writers: Sequence[AttemptContext] = ()
) -> Awaitable[_T]:
    """Await in place, in a copy of the context, so that context variables set by the node do not leak out of it.

    Args:
        awaitable: the node's call.
        cancellations: counts native cancellations of the event loop's task.
        writers: the attempt, if it writes to a stream: after each await it waits until its readers have caught up.
    """
    # A task of the event loop would have a context of its own, too, at the cost of a task.
    coroutine = awaitable if isinstance(awaitable, types.CoroutineType) else _as_coroutine(awaitable)
    return _drive(coroutine, copy_context(), cancellations, writers)


@types.coroutine
def _drive(
    coroutine: Coroutine[Any, Any, _T],
    context: Context,
    cancellations: NativeCancellations,
    writers: Sequence[AttemptContext],
) -> Generator[Any, Any, _T]:
    """Drive the coroutine by hand, entering the context for each step."""
    # A context cannot be held across a suspension: the event loop runs other tasks in this thread meanwhile.
    step: Callable[..., Any] = coroutine.send
    sent: Any = None
    thrown: tuple[BaseException, ...] = ()  # native cancellations
    try:
        while True:
            try:
                yielded = context.run(step, sent)
            except StopIteration as stop:
                result: _T = stop.value
                return result
            del step  # a bound method, which would be one more object of a waiting run for Python's collector to visit
            try:
                sent = yield yielded
                step = coroutine.send
                # The node does not await its writes, so it can only be delayed here, between two of its steps.
                for writer in writers:
                    if writer.owed:
                        yield from _wait_for_readers(writer).__await__()
            except GeneratorExit:
                context.run(coroutine.close)
                raise
            except BaseException as error:
                if is_native_cancellation(error):
                    thrown = (*thrown, error)
                sent, step = error, coroutine.throw
    finally:
        # Only at the end is it known which cancellations ended in a task group of the node; see `NativeCancellations`.
        if thrown:
            cancellations.discount_group_cancellations(thrown)


async def _wait_for_readers(writer: AttemptContext) -> None:
    """Wait until the readers have caught up, after an await of the node and before the node sees its result."""
    # A scope's cancellation is swallowed here, and raised again at the node's next checkpoint. Raised here, it would
    # lose the result of the await, such as an acquired lock or a received item. asyncio's own cancellation comes once,
    # so it must be passed on; asyncio's primitives handle one that arrives after their future is done.
    try:
        await writer.wait_for_readers()
    except anyio.get_cancelled_exc_class() as error:
        if is_native_cancellation(error):
            raise


async def _as_coroutine(awaitable: Awaitable[_T]) -> _T:
    return await awaitable


def _is_run_cancelled(natively_cancelled: NativeCancellations) -> bool:
    """Return True if the cancellation that has just been caught is the run's, and not made by the node's code."""
    # The run is cancelled by a scope, or natively if the task runs in the run's own task. Trio's exception cannot be
    # made by user code, so there it is always the run's. A node that runs in place and cancels the current task does
    # cancel the run.
    if anyio.current_effective_deadline() == float("-inf") or not on_asyncio():
        return True
    return natively_cancelled()


def _locate(error: BaseException, task: Task) -> BaseException:
    """Add a note that names the node, superstep and task to an error, and return the error."""
    annotate(error, f"in node {task.node.name!r}, superstep {task.step}, task {task.id}")
    # A message that the node got by iterating a list is a plain dict, whose own error does not say what to write.
    if isinstance(error, AttributeError) and type(error.obj) is dict and error.name is not None:
        advice = advice_on_attribute(error.obj, error.name)
        if advice:
            annotate(error, f"this message is a dict: {advice}")
    return error
