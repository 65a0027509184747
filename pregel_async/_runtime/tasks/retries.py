"""Trying a task again: after which failures, how often, and after how long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from checkpoint_savers.errors import annotate
from checkpoint_savers.records import TaskId

from ..._core.program import Write
from ..._core.task import Failed, Finished, Settled, Task
from ...policies import RetryPolicy, leaves_of, retry_after_of
from ..platform.environment import Environment

RunOnce = Callable[["AttemptHistory", list[Write] | None], Awaitable[Settled]]
"""One attempt: with how many there have been, and the node's own writes when only its routers have failed."""


_NO_RETRY = RetryPolicy(max_attempts=1)
"""Of an exception that no policy applies to."""


class AttemptHistory:
    """The attempts at one task.

    Attributes:
        number: of the attempt that is under way, from 1.
        began: when the first began, in unix seconds.
        done: by task that it called, the digest of the arguments and what it gave to an earlier attempt, where nothing
            is stored.
        keeps: another attempt may follow, which gets what is done.
    """

    __slots__ = ("call_results", "first_attempt_time", "keeps_results", "number")

    def __init__(self, first_attempt_time: float | None, *, keeps_results: bool = True) -> None:
        self.number = 1
        self.keeps_results = keeps_results
        self.first_attempt_time: Final = first_attempt_time
        self.call_results: dict[TaskId, tuple[bytes, Finished]] = {}


SINGLE_ATTEMPT = AttemptHistory(None, keeps_results=False)
"""Of a task that is attempted once."""


async def run_with_retries(
    run_once: RunOnce,
    task: Task,
    writes: list[Write] | None,
    environment: Environment,
    *,
    is_final: Callable[[BaseException], bool],
    on_retry: Callable[[Failed, int], Awaitable[None]],
) -> Settled:
    """Attempt a task until it has not failed, or is not to be tried again.

    Each attempt starts afresh, but for what is kept of it: the results of tasks that it called, the states of graphs
    that it ran, and, where only a router has failed, the node's own writes.

    Args:
        once: one attempt.
        given: the node's own writes, when only its routers are to run.
        final: whether a failure is one that nothing can be done about: storage's.
        again: told of each failure that is tried again, and in which attempt, before the wait.
    """
    attempts = AttemptHistory(environment.now())
    while True:
        outcome = await run_once(attempts, writes)
        if not isinstance(outcome, Failed) or is_final(outcome.error):
            return outcome
        try:
            wait = _wait(task.node.retry, outcome.error, attempts.number, environment)
        except Exception as error:  # the user's predicate
            note = f"raised by retry_on of node {task.node.name!r}, superstep {task.step}, task {task.id}"
            annotate(error, note, context=outcome.error)
            return Failed(error, outcome.writes)
        if wait is None:
            if attempts.number > 1:
                annotate(outcome.error, f"in attempt {attempts.number}")
            return outcome
        await on_retry(outcome, attempts.number)
        writes = outcome.writes
        await environment.sleep(wait)
        attempts.number += 1


def _wait(
    policies: tuple[RetryPolicy, ...], error: BaseException, failed: int, environment: Environment
) -> float | None:
    """Seconds until the next attempt; None for no other."""
    if not isinstance(error, Exception):
        return None
    policy = next((policy for policy in policies if policy.applies_to(error)), _NO_RETRY)
    if failed >= policy.max_attempts:
        return None
    wait = policy.wait(failed)
    asked = max((_retry_after(leaf, environment) for leaf in leaves_of(error)), default=0.0)
    if asked > wait:
        if asked > policy.max_interval:
            annotate(
                error,
                f"not retried: the server asks to wait {asked:g} s, and the retry policy's max_interval is "
                f"{policy.max_interval:g} s",
            )
            return None
        wait = asked
    return wait + environment.jitter() if policy.jitter else wait


def _retry_after(error: BaseException, environment: Environment) -> float:
    """Return the seconds for which a server asks to be left alone; 0 when the exception carries no such header.

    Source: RFC 9110, 10.2.3: digits, which are seconds, or a date. `float()` would take `1_0`, `1e9`, `inf` and digits
    of other scripts, too.
    """
    said = retry_after_of(error)
    if said is None:
        return 0.0
    said = said.strip(" \t")
    if said.isascii() and said.isdigit():
        return float(said)
    from .http_date import read_http_date  # few servers send a date

    try:
        return max(0.0, read_http_date(said, now=environment.now()) - environment.now())
    except ValueError:
        return 0.0
