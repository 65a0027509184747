"""A task: one run of one node in one superstep. And the outcomes: what becomes of it, exactly one each."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from checkpoint_savers.records import TaskId

from .ids import PULL, PUSH, Path, task_id
from .program import Node, Write


class Task:
    """One run of a node.

    Attributes:
        node: what runs.
        step: the superstep's number.
        index: the task's place in the plan.
        send: the place among the superstep's sends, from 0; -1 for a triggered node.
        arg: the send's argument.
    """

    __slots__ = ("_id", "_scope", "arg", "index", "node", "send", "step")

    def __init__(
        self, node: Node, step: int, index: int, scope: tuple[str, str], send: int = -1, arg: Any = None
    ) -> None:
        self.node = node
        self.step = step
        self.index = index
        self.send = send
        self.arg = arg
        self._scope = scope
        self._id: TaskId | None = None

    @property
    def id(self) -> TaskId:
        """Structural; see `ids`. Made when somebody asks."""
        if self._id is None:
            self._id = task_id(self._scope[0], self._scope[1], self.step, self.node.name, self.path)
        return self._id

    @property
    def path(self) -> Path:
        return (PULL, self.node.name) if self.send < 0 else (PUSH, self.send, False)

    @property
    def triggers(self) -> tuple[str, ...]:
        """The channels that made it run; a send is triggered by being sent."""
        return self.node.triggers if self.send < 0 else ()

    def __repr__(self) -> str:
        return f"<task {self.node.name!r} of superstep {self.step}, path {self.path}>"


class Finished(msgspec.Struct, frozen=True):
    """The node returned, and its routers have spoken.

    Attributes:
        writes: the update, then the edges, then what the routers said, in order.
        replayed: True when they were recorded earlier and the node did not run.
        own: how many of them, from the first, are the node's own; the others are its edges' and routers'.
    """

    writes: list[Write]
    replayed: bool = False
    own: int = 0


class Failed(msgspec.Struct, frozen=True):
    """The node, its result or one of its routers raised.

    Attributes:
        error: the exception, with a note that names the place.
        writes: the node's own writes, when only a router failed; None otherwise.
    """

    error: BaseException
    writes: list[Write] | None = None


class Cancelled(msgspec.Struct, frozen=True):
    """The task was stopped because a sibling failed or the run was cancelled."""


Outcome: TypeAlias = Finished | Failed | Cancelled
