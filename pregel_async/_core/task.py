"""A task: one run of one node in one superstep. And the outcomes: what becomes of it, exactly one each."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, TypeAlias

import msgspec

from checkpoint_savers.records import TaskId

from ..policies import TimeoutPolicy
from ..types import Interrupt
from .program import Node, Write

PULL = "__pregel_pull"
PUSH = "__pregel_push"

Path: TypeAlias = "tuple[str | int | bool | Path, ...]"
"""`(PULL, node)` of a triggered node, `(PUSH, index, False)` of a send, `(PUSH, path of the caller, index, True)` of a
call that a task makes; and any of these with "error" behind it, of the error handler that runs in a task's place."""


def task_id(scope: str, ns: str, step: int, node: str, path: Path) -> TaskId:
    """Return a task's id, 32 hex digits, derived only from the position of the work in the graph and in time.

    The same work has the same id on every attempt, replay, resume and fork, and after the thread was moved to another
    database, because neither a checkpoint's id nor a clock goes into it. The thread's id does, so that an id can serve
    as an idempotency key towards a service that many threads call.

    Args:
        scope: the thread's id; the run's id when it has no thread.
        ns: the namespace, "" for the root graph.
        step: the number of the superstep that runs the task.
    """
    # repr() of a tuple of strings and numbers: no two different tuples have the same.
    key = repr((scope, ns, step, node, path)).encode("utf-8", "surrogatepass")
    return TaskId(blake2b(key, digest_size=16).hexdigest())


class Task:
    """One run of a node.

    Attributes:
        node: what runs.
        step: the superstep's number.
        scope: what its id is made in; see `task_id`.
        index: the task's place in the plan.
        send: the place among the superstep's sends, or among the calls of one task, from 0; -1 for a triggered node.
        arg: the argument of the send or call.
        caller: the path of the task that calls; None for a task of the superstep's plan.
        timeout: how long one attempt may take: the send's own, or the node's.
        digest: of a call, the digest of its arguments; empty for other tasks, and where nothing is recorded.
    """

    __slots__ = (
        "_failed",
        "_handles",
        "_id",
        "arg",
        "caller",
        "digest",
        "index",
        "node",
        "scope",
        "send",
        "step",
        "timeout",
    )

    def __init__(
        self,
        node: Node,
        step: int,
        index: int,
        scope: tuple[str, str],
        send: int = -1,
        arg: Any = None,
        caller: Path | None = None,
        timeout: TimeoutPolicy | None = None,
        digest: bytes = b"",
    ) -> None:
        self.node = node
        self.step = step
        self.index = index
        self.send = send
        self.arg = arg
        self.caller = caller
        self.timeout = node.timeout if timeout is None else timeout
        self.digest = digest
        self.scope = scope
        self._handles: Path | None = None
        self._failed: Task | None = None
        self._id: TaskId | None = None

    @property
    def id(self) -> TaskId:
        """Structural; see `task_id`. Computed on first use."""
        if self._id is None:
            self._id = task_id(self.scope[0], self.scope[1], self.step, self.node.name, self.path)
        return self._id

    @property
    def is_planned(self) -> bool:
        """Whether the task is of the superstep's plan, and was not called by another."""
        return self.caller is None

    def written_as(self) -> TaskId:
        """The id under which what it writes belongs to the superstep: of an error handler, that of the failed task."""
        return self.id if self._failed is None else self._failed.written_as()

    @property
    def is_called(self) -> bool:
        """Whether another task calls it; or else it is of the superstep's plan."""
        return self.caller is not None

    @property
    def path(self) -> Path:
        if self._handles is not None:
            return (*self._handles, "error")
        if self.caller is not None:
            return (PUSH, self.caller, self.send, True)
        return (PULL, self.node.name) if self.send < 0 else (PUSH, self.send, False)

    def call(self, node: Node, index: int, arg: Any, digest: bytes = b"") -> Task:
        """The task of a call that this one makes: its `index`-th, from 0."""
        return Task(node, self.step, self.index, self.scope, index, arg, self.path, digest=digest)

    def id_as(self, name: str) -> TaskId:
        """The id that a task of another node would have in this one's place."""
        return task_id(self.scope[0], self.scope[1], self.step, name, self.path)

    @property
    def own_timeout(self) -> TimeoutPolicy | None:
        """The send's; None when the node's applies."""
        return None if self.timeout is self.node.timeout else self.timeout

    def handling(self, handler: Node) -> Task:
        """The task of the error handler that runs in this one's place: on the same input, under an id of its own."""
        task = Task(handler, self.step, self.index, self.scope, self.send, self.arg, self.caller)
        task._handles = self.path
        task._failed = self
        return task

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
        leaves: commands for a graph around this one are among them (writes to `PARENT`): this graph ends with them.
        by: the task of the error handler whose writes they are, as the task itself has failed; None for its own.
        cached: the node did not run: another run on an equal input has made them.
    """

    writes: list[Write]
    replayed: bool = False
    own: int = 0
    leaves: bool = False
    by: Task | None = None
    cached: bool = False


class Paused(msgspec.Struct, frozen=True):
    """The node has asked, and runs again when it is answered.

    Attributes:
        interrupts: the open questions, in the order in which the node's code makes them; none when a graph that it runs
            stopped at a breakpoint.
        writes: the node's own writes, when only a router asks; None otherwise.
        by: the task of the error handler that asks; None for the task itself.
    """

    interrupts: tuple[Interrupt, ...]
    writes: list[Write] | None = None
    by: Task | None = None

    @property
    def has_run(self) -> bool:
        """Whether the node itself has run, so that only a router asks."""
        return self.writes is not None


class Failed(msgspec.Struct, frozen=True):
    """The node, its result or one of its routers raised.

    Attributes:
        error: the exception, with a note that names the place.
        writes: the node's own writes, when only a router failed; None otherwise.
    """

    error: BaseException
    writes: list[Write] | None = None

    @property
    def has_run(self) -> bool:
        """Whether the node itself has run, so that only a router failed."""
        return self.writes is not None


class Cancelled(msgspec.Struct, frozen=True):
    """The task was stopped because a sibling failed or the run was cancelled."""


class NotStarted(msgspec.Struct, frozen=True):
    """The run was asked to stop before the task began: none of the node's code ran, and nothing is recorded of it."""


class Unfinished(msgspec.Struct, frozen=True):
    """What is recorded of a task that has to run.

    Attributes:
        writes: the node's own writes, if it has run and only its routers are left; None otherwise.
        failures: the node's failure, if it has failed and only its error handler is left; empty otherwise.
    """

    writes: list[Write] | None = None
    failures: tuple[Exception, ...] = ()

    @property
    def has_run(self) -> bool:
        """Whether the node itself has run, so that only its routers are left."""
        return self.writes is not None


NEW = Unfinished()
"""Nothing is recorded of the task."""

Recorded: TypeAlias = Finished | Paused | Unfinished
"""What a thread has recorded of a task: its result, its open questions, or where it has to start."""

Settled: TypeAlias = Finished | Failed | Paused | NotStarted
"""What becomes of a task that is not cancelled."""

Outcome: TypeAlias = Settled | Cancelled
