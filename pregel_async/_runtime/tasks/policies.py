"""A task that may fail: tried again, then handled, then collected, as its node and its graph say.

    kept        what an earlier run made of an equal input, if it is kept (`kept_results`)
    attempts    by the node's retry policies (`retries`), each within its timeout (`timeouts`)
    handler     the node's error handler runs in the task's place, in the same superstep, on the same input
    collected   the failure itself is the task's update

A handled failure is recorded before its handler starts, so that a crash in the handler leads back to the handler and
not to the node. Whatever storage has failed with is nobody's to try again or to handle.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from checkpoint_savers.errors import annotate
from checkpoint_savers.records import EventRow

from ..._core.program import Write
from ..._core.task import Failed, NotStarted, Settled, Task, Unfinished
from ...errors import NodeError, RecordedFailureError
from ..observing.error_text import described
from ..platform.environment import World
from .kept_results import Results
from .retries import Tries, tried


class Records(Protocol):
    """What is stored of failures that are handled."""

    async def record_failure(
        self, task: Task, error: Exception, events: Callable[[], EventRow | None] | None = None
    ) -> None:
        """Store that a task has failed, and that its handler is to run, with the row that `events` makes; return when
        that is durable."""
        ...


class Attempts(Protocol):
    """Who makes the attempts."""

    async def once(
        self, task: Task, given: list[Write] | None, tries: Tries | None, failure: NodeError | None
    ) -> Settled:
        """One attempt at a task."""
        ...

    @property
    def context(self) -> Any:
        """Of the call."""
        ...

    def answered(self, task: Task) -> bool:
        """Whether a question was answered that the task has asked, or something that it called."""
        ...

    def input_of(self, task: Task) -> Any:
        """What the node gets."""
        ...

    async def closing(self, task: Task) -> Callable[[], EventRow | None] | None:
        """What makes the row of a task's events, as its failure is recorded."""
        ...

    async def failed(self, task: Task, failed: Failed, number: int) -> None:
        """A failure is told that is tried again."""
        ...

    async def handled(self, task: Task, failed: Failed, handler: Task) -> None:
        """A failure is told that is handled, and by whom."""
        ...


async def guarded(
    attempts: Attempts,
    task: Task,
    recorded: Unfinished,
    world: World,
    records: Records | None,
    results: Results | None,
    final: Callable[[BaseException], bool],
) -> Settled:
    """Run a task by its node's policies.

    Args:
        recorded: where the task has to start.
        records: None where nothing is stored.
        results: of earlier runs of the node; None where none are kept.
        final: whether a failure is one that nothing can be done about.
    """
    handler = task.node.handler
    if recorded.failures:
        (error,) = recorded.failures
    else:

        def compute(given: list[Write] | None) -> Awaitable[Settled]:
            return _tried(attempts, task, given, world, final)

        if results is None or task.node.cache is None or recorded.has_run:
            outcome = await compute(recorded.writes)
        else:
            outcome = await results.share(
                task,
                lambda: attempts.input_of(task),
                compute,
                context=attempts.context,
                answered=attempts.answered(task),
            )
        if handler is None or not isinstance(outcome, Failed) or not can_be_handled(outcome, final):
            return outcome
        assert isinstance(outcome.error, Exception)
        error = outcome.error
        if records is not None:
            await records.record_failure(task, error, await attempts.closing(task))
    assert handler is not None
    by = task.handling(handler)
    await attempts.handled(task, Failed(error), by)
    failure = NodeError(task.node.name, task.id, error)
    outcome = await _tried(attempts, by, None, world, final, failure)
    assert not isinstance(outcome, NotStarted), "a handler goes with its task, which has begun"
    if isinstance(outcome, Failed):
        annotate(outcome.error, f"in the error handler of node {task.node.name!r}", context=error)
        if records is not None:
            annotate(
                outcome.error,
                f"the failure of node {task.node.name!r} is recorded: a resume starts at its error handler, and "
                "does not run the node again. To leave that superstep, pass a new input, or give the node's result "
                f"with aupdate_state(config, values, as_node={task.node.name!r})",
            )
        return Failed(outcome.error)
    return msgspec.structs.replace(outcome, by=by)


def can_be_handled(outcome: Failed, final: Callable[[BaseException], bool]) -> bool:
    """A node's failure, and not that of its routers: what they decide nobody else can."""
    return isinstance(outcome.error, Exception) and outcome.writes is None and not final(outcome.error)


async def _tried(
    attempts: Attempts,
    task: Task,
    given: list[Write] | None,
    world: World,
    final: Callable[[BaseException], bool],
    failure: NodeError | None = None,
) -> Settled:
    if not task.node.retry:
        return await attempts.once(task, given, None, failure)

    def once(tries: Tries, given: list[Write] | None) -> Awaitable[Settled]:
        return attempts.once(task, given, tries, failure)

    async def again(outcome: Failed, number: int) -> None:
        await attempts.failed(task, outcome, number)

    return await tried(once, task, given, world, final=final, again=again)


def collected(task: Task, error: Exception, channel: str) -> list[Write]:
    """The update that a failure is, under the policy `Collect`."""
    return [(channel, [NodeError(task.node.name, task.id, RecordedFailureError(*described(error)))])]
