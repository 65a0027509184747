"""`Script`: a node with a prescribed behaviour for each attempt.

search = Script(fails(ConnectionError("reset")), [waits(2.0), returns({"found": 3})])
graph.add_node("search", search)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import anyio
import msgspec

from .._runtime.tasks.context import current
from ..errors import GraphBubbleUp

PlayedOutcome: TypeAlias = Literal["running", "returned", "raised", "asked", "cancelled"]


class Returns(msgspec.Struct, frozen=True):
    """The step made by `returns`."""

    value: Any


class Gives(msgspec.Struct, frozen=True):
    """The step made by `gives`."""

    make: Callable[..., Any]


class Fails(msgspec.Struct, frozen=True):
    """The step made by `fails`."""

    error: BaseException | type[BaseException]


class Waits(msgspec.Struct, frozen=True):
    """The step made by `waits`."""

    seconds: float


class Asks(msgspec.Struct, frozen=True):
    """The step made by `asks`."""

    question: Any


ScriptStep: TypeAlias = Returns | Gives | Fails | Waits | Asks
ScriptedAttempt: TypeAlias = ScriptStep | Sequence[ScriptStep]


def returns(value: Any = None) -> ScriptStep:
    """Make a step in which the node returns a value.

    Args:
        value: what the node returns.

    Returns:
        The step.
    """
    return Returns(value)


def gives(make: Callable[..., Any]) -> ScriptStep:
    """Make a step in which the node returns the result of a function.

    Args:
        make: called with the node's input and the answers to the questions that the attempt has asked, in order.

    Returns:
        The step.
    """
    return Gives(make)


def fails(error: BaseException | type[BaseException]) -> ScriptStep:
    """Make a step in which the node raises an exception.

    Args:
        error: the exception, or its class.

    Returns:
        The step.
    """
    return Fails(error)


def waits(seconds: float) -> ScriptStep:
    """Make a step in which the node sleeps on the clock that the graph was compiled with.

    Args:
        seconds: how long, in seconds of that clock.

    Returns:
        The step.
    """
    return Waits(seconds)


def asks(question: Any) -> ScriptStep:
    """Make a step in which the node asks a question, as `interrupt` does.

    When the question is answered, the attempt runs again from its first step. A step `gives` receives the answer.

    Args:
        question: the value of the interrupt.

    Returns:
        The step.
    """
    return Asks(question)


class ScriptEndedError(AssertionError):
    """A scripted node ran more often than its script has attempts."""


class Played(msgspec.Struct, kw_only=True):
    """One execution of a scripted node.

    Attributes:
        node: the name of the node.
        task_id: the id of its task.
        input: the node's input.
        attempt: the number of the task's attempt as the runtime counts it, from 1.
        at: when it started, in unix seconds of the graph's clock.
        outcome: how it ended, or "running".
    """

    node: str
    task_id: str
    input: Any
    attempt: int
    at: float
    outcome: PlayedOutcome = "running"


class Script:
    """A node or task with a prescribed behaviour, which records its executions.

    Each execution follows the next attempt: one step, or several in order. An attempt that asks a question runs again
    when the answer is there, as a node's code does. An attempt whose steps neither return nor raise returns None.

    Args:
        attempts: the steps of each execution. Without any, the one attempt returns None.
        repeats: True repeats the last attempt for all further executions, False makes them fail.

    Attributes:
        calls: the executions, in the order in which they started.

    Raises:
        ScriptEndedError: raised inside of the node, if it runs more often than there are attempts.
    """

    def __init__(self, *attempts: ScriptedAttempt, repeats: bool = False) -> None:
        self.calls: list[Played] = []
        self._attempts: list[Sequence[ScriptStep]] = [
            each if isinstance(each, Sequence) else (each,) for each in (attempts or (returns(),))
        ]
        self._repeats = repeats
        self._next = 0
        self._awaiting_answers: dict[str, Sequence[ScriptStep]] = {}

    @property
    def left(self) -> int:
        """The number of attempts that have not started."""
        return len(self._attempts) - self._next

    async def __call__(self, given: Any) -> Any:
        running = current("a Script")
        info = running.runtime.execution_info
        environment = running.graph.run.environment
        played = Played(
            node=running.task.node.name,
            task_id=info.task_id,
            input=given,
            attempt=info.node_attempt,
            at=environment.now(),
        )
        self.calls.append(played)
        steps = self._awaiting_answers.pop(info.task_id, None)
        if steps is None:
            steps = self._next_steps(played)
        answers: list[Any] = []
        try:
            for step in steps:
                match step:
                    case Waits(seconds):
                        await environment.sleep(seconds)
                    case Asks(question):
                        answers.append(running.ask(question))
                    case Fails(error):
                        raise error
                    case Returns(value):
                        played.outcome = "returned"
                        return value
                    case Gives(make):
                        made = make(given, *answers)
                        played.outcome = "returned"
                        return made
        except GraphBubbleUp:
            # The node runs again with the answer, by the same task id: this attempt, and not the next one.
            played.outcome = "asked"
            self._awaiting_answers[info.task_id] = steps
            raise
        except anyio.get_cancelled_exc_class():
            played.outcome = "cancelled"
            raise
        except BaseException:
            played.outcome = "raised"
            raise
        played.outcome = "returned"
        return None

    def _next_steps(self, played: Played) -> Sequence[ScriptStep]:
        if self.left == 0:
            if self._repeats:
                return self._attempts[-1]
            played.outcome = "raised"
            raise ScriptEndedError(
                f"node {played.node!r} is executed {len(self.calls)} times, and its script has "
                f"{len(self._attempts)} attempts: add one, or find out why the node runs again (Script.calls)"
            )
        self._next += 1
        return self._attempts[self._next - 1]
