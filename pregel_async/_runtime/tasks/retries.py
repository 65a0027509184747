"""Retry tasks: after which failures, how often, and after which delay."""

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
"""Makes one attempt, given the history and, if only the routers have failed, the node's own writes."""


_NO_RETRY = RetryPolicy(max_attempts=1)
"""The policy for exceptions that no policy of the node covers."""


class AttemptHistory:
    """The history of attempts at one task.

    Attributes:
        number: the number of the running attempt, from 1.
        first_attempt_time: when the first attempt began, in unix seconds.
        call_results: task id -> (digest of the arguments, outcome) of the tasks that earlier attempts called. Only used
            if nothing is stored: with a saver, the next attempt finds their records.
        keeps_results: True if another attempt may follow and use `call_results`.
    """

    __slots__ = ("call_results", "first_attempt_time", "keeps_results", "number")

    def __init__(self, first_attempt_time: float | None, *, keeps_results: bool = True) -> None:
        self.number = 1
        self.keeps_results = keeps_results
        self.first_attempt_time: Final = first_attempt_time
        self.call_results: dict[TaskId, tuple[bytes, Finished]] = {}


SINGLE_ATTEMPT = AttemptHistory(None, keeps_results=False)
"""The history of all tasks that are not retried. It is shared: `keeps_results` is False, so it never changes."""


async def run_with_retries(
    run_once: RunOnce,
    task: Task,
    writes: list[Write] | None,
    environment: Environment,
    *,
    is_final: Callable[[BaseException], bool],
    on_retry: Callable[[Failed, int], Awaitable[None]],
) -> Settled:
    """Attempt a task until it does not fail, or its failure is not to be retried.

    A new attempt runs the node from its start. It reuses the results of called tasks, the states of subgraphs and, if
    only a router has failed, the node's own writes.

    Args:
        run_once: makes one attempt.
        task: the task.
        writes: the node's own writes, if only its routers are to run.
        environment: the clock and the source of jitter.
        is_final: returns True for a failure that must not be retried, such as one of storage.
        on_retry: called with each failure that is retried, and the number of its attempt, before the delay.
    """
    attempts = AttemptHistory(environment.now())
    while True:
        outcome = await run_once(attempts, writes)
        if not isinstance(outcome, Failed) or is_final(outcome.error):
            return outcome
        try:
            wait = _wait(task.node.retry, outcome.error, attempts.number, environment)
        except Exception as error:  # raised by the user's `retry_on`
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
    """Return the seconds until the next attempt, or None if there is to be none."""
    # KeyboardInterrupt and SystemExit end the process, whatever the policies say.
    if not isinstance(error, Exception):
        return None
    policy = next((policy for policy in policies if policy.applies_to(error)), _NO_RETRY)
    if failed >= policy.max_attempts:
        return None
    wait = policy.wait(failed)
    # Of several failures in a group, the server with the longest Retry-After decides.
    asked = max((_retry_after(leaf, environment) for leaf in leaves_of(error)), default=0.0)
    if asked > wait:
        # An attempt before that time would be refused again, and the user allows no wait longer than max_interval.
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
    """Return the seconds of a Retry-After header, or 0 if the exception carries none.

    Source: RFC 9110, 10.2.3.
    """
    said = retry_after_of(error)
    if said is None:
        return 0.0
    said = said.strip(" \t")
    # The header has digits, or a date. `float()` alone would also accept `1_0`, `1e9`, `inf` and other scripts' digits.
    if said.isascii() and said.isdigit():
        return float(said)
    from .http_date import read_http_date  # few servers send a date

    try:
        return max(0.0, read_http_date(said, now=environment.now()) - environment.now())
    except ValueError:  # a malformed header counts as none: the policy's own delay applies
        return 0.0
