"""One task, from its input to its outcome: call the node, read its result, ask its routers."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from inspect import isawaitable
from typing import Any, TypeVar

import anyio

from .._core.board import Board
from .._core.copying import ATOMS
from .._core.isolation import isolate, own
from .._core.program import Node, Program, Write
from .._core.task import Failed, Finished, Task
from ..errors import NodeCancelledError, UnstorableValueError
from .inplace import watch
from .loops import on_asyncio
from .worker import in_thread

_T = TypeVar("_T")

Recorder = Callable[[Task, list[Write]], Awaitable[None]]
"""Stores a node's own writes before its routers run."""


async def attempt(
    program: Program,
    board: Board,
    task: Task,
    given: list[Write] | None,
    record: Recorder | None,
    *,
    natively_cancelled: Callable[[], bool] | None,
    contained: bool,
    debug: bool,
) -> Finished | Failed:
    """Run a task. Its own failures become an outcome; a cancellation from outside goes through.

    Args:
        given: the node's own writes, when they were recorded by an earlier run whose router failed: only routers run.
        record: stores the node's writes before an async router is asked. It may take long, and what the node did must
            not be done again if the process dies meanwhile. A sync router answers at once, and needs no transaction of
            its own.
        natively_cancelled: whether the running task was cancelled without a scope since the run began; None when the
            running task is not the run's, but this task's own.
        contained: the running task ends with this one, so that its context is as good as the node's own. (A node with
            routers gets one of its own all the same: they do not see what it sets.)
        debug: warn when the node changes its input in place.
    """
    node = task.node
    writes = given
    recording = False
    try:
        if writes is None:
            value = board.input_of(node) if task.send < 0 else isolate(task.arg)
            compare = watch(task, value) if debug else None
            result = await _call(node, value, contained=contained and not node.routers)
            if compare is not None:
                compare()
            writes = [(name, item if type(item) in ATOMS else own(item, name)) for name, item in node.writes(result)]
        everything = [*writes, *node.edges]
        for router in node.routers:
            answer = router.call(board.view_of(router, program, writes))
            if isawaitable(answer):
                if record is not None and given is None:
                    given = writes
                    recording = True
                    try:
                        await record(task, writes)
                    except BaseException:
                        if isinstance(answer, types.CoroutineType):
                            answer.close()  # it was never started, and never will be
                        raise
                    recording = False
                answer = await answer
            everything.extend([(name, own(item, name)) for name, item in router.route(answer)])
        return Finished(everything, own=len(writes))
    except GeneratorExit:
        raise
    except anyio.get_cancelled_exc_class() as error:
        if _cancelled_from_outside(natively_cancelled):
            raise
        failure = NodeCancelledError(node.name)
        failure.__cause__ = error
        return Failed(_placed(failure, task), writes)
    except BaseException as error:
        if recording and not isinstance(error, UnstorableValueError):  # storage's failure, not the node's
            raise
        return Failed(_placed(error, task), writes)


async def _call(node: Node, value: Any, *, contained: bool) -> Any:
    if node.flavour == "async":
        return await (node.call(value) if contained else in_own_context(node.call(value)))
    if node.flavour == "inline":
        result = copy_context().run(node.call, value)
    else:
        # Cancelling waits for the thread: nothing that the graph started outlives the run.
        result = await in_thread(node.call, value)
    return await in_own_context(result) if isawaitable(result) else result


def in_own_context(awaitable: Awaitable[_T]) -> Awaitable[_T]:
    """Await in place, with a copy of the context: what the node sets in context variables stays there.

    This is what a task of its own would give, without the task.
    """
    coroutine = awaitable if isinstance(awaitable, types.CoroutineType) else _as_coroutine(awaitable)
    return _drive(coroutine, copy_context())


@types.coroutine
def _drive(coroutine: Coroutine[Any, Any, _T], context: Context) -> Generator[Any, Any, _T]:
    """Send into the coroutine what the event loop sends here, each time inside the context."""
    step: Callable[..., Any] = coroutine.send
    sent: Any = None
    while True:
        try:
            wish = context.run(step, sent)
        except StopIteration as stop:
            result: _T = stop.value
            return result
        try:
            sent = yield wish
            step = coroutine.send
        except GeneratorExit:
            context.run(coroutine.close)
            raise
        except BaseException as error:
            sent, step = error, coroutine.throw


async def _as_coroutine(awaitable: Awaitable[_T]) -> _T:
    return await awaitable


def _cancelled_from_outside(natively_cancelled: Callable[[], bool] | None) -> bool:
    """Whether the cancellation that has just been caught is the run's, or the node's own affair.

    The run's comes from a cancel scope; to a task that runs in place it may come natively too. On trio nobody can make
    one up. (A node that runs in place and cancels the current task cancels its caller, and that is what happens.)
    """
    if anyio.current_effective_deadline() == float("-inf") or not on_asyncio():
        return True
    return natively_cancelled is not None and natively_cancelled()


def _placed(error: BaseException, task: Task) -> BaseException:
    with contextlib.suppress(Exception):  # an exception of the user's may refuse attributes; it is raised as it is then
        error.add_note(f"in node {task.node.name!r}, superstep {task.step}, task {task.id}")
    return error
