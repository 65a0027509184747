"""`Script`: a node whose behaviour on each attempt is written down.

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
    """The attempt returns this. See `returns`."""

    value: Any


class Gives(msgspec.Struct, frozen=True):
    """The attempt returns what a function makes of its input and of the answers. See `gives`."""

    make: Callable[..., Any]


class Fails(msgspec.Struct, frozen=True):
    """The attempt raises this. See `fails`."""

    error: BaseException | type[BaseException]


class Waits(msgspec.Struct, frozen=True):
    """The attempt sleeps. See `waits`."""

    seconds: float


class Asks(msgspec.Struct, frozen=True):
    """The attempt asks a question. See `asks`."""

    question: Any


ScriptStep: TypeAlias = Returns | Gives | Fails | Waits | Asks
ScriptedAttempt: TypeAlias = ScriptStep | Sequence[ScriptStep]


def returns(value: Any = None) -> ScriptStep:
    """Return this."""
    return Returns(value)


def gives(make: Callable[..., Any]) -> ScriptStep:
    """Return what `make` makes of the node's input and, after it, of the answers to what the attempt has asked."""
    return Gives(make)


def fails(error: BaseException | type[BaseException]) -> ScriptStep:
    """Raise this."""
    return Fails(error)


def waits(seconds: float) -> ScriptStep:
    """Sleep so many seconds, by the clock that the graph was compiled with."""
    return Waits(seconds)


def asks(question: Any) -> ScriptStep:
    """Ask a person (`interrupt`), and go on with the answer: `gives` is told it."""
    return Asks(question)


class ScriptEndedError(AssertionError):
    """A scripted node ran once more than its script says."""


class Played(msgspec.Struct, kw_only=True):
    """One run of a scripted node's code.

    Attributes:
        node, task_id: what ran.
        input: what it was given.
        attempt: the task's attempt, as the runtime counts them, from 1.
        at: when it began, in unix seconds by the graph's clock.
        outcome: how it ended; "running" while it has not.
    """

    node: str
    task_id: str
    input: Any
    attempt: int
    at: float
    outcome: PlayedOutcome = "running"


class Script:
    """A node, or a task, that does as it is told, and remembers how it was called.

    Each time it runs, it does the next attempt: one step, or several in order. An attempt that asks is done again when
    the answer is there, as a node's code is. An attempt that says nothing else in the end returns None.

    Args:
        attempts: what happens on each.
        repeats: the last goes on for ever. Otherwise one more run is an error.

    Attributes:
        calls: how it ran, in the order in which it began.

    Raises:
        ScriptEndedError: in the node, when it runs once more than was written down.
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
        """How many attempts have not begun."""
        return len(self._attempts) - self._next

    async def __call__(self, given: Any) -> Any:
        running = current("a Script")
        info = running.runtime.execution_info
        world = running.around.session.world
        played = Played(
            node=running.task.node.name, task_id=info.task_id, input=given, attempt=info.node_attempt, at=world.now()
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
                        await world.sleep(seconds)
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
                f"node {played.node!r} runs for the {len(self.calls)}. time, and its script has "
                f"{len(self._attempts)} attempts: write down one more, or look why it runs again (Script.calls)"
            )
        self._next += 1
        return self._attempts[self._next - 1]
