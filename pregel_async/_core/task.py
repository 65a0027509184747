"""Define tasks, each of which is one run of one node in one superstep, and their outcomes."""

from __future__ import annotations

from collections.abc import Container
from hashlib import blake2b
from itertools import chain
from typing import Any, Final, TypeAlias

import msgspec

from checkpoint_savers.records import TaskId

from ..policies import TimeoutPolicy
from ..types import Interrupt
from .program import Node, Write

PULL = "__pregel_pull"
PUSH = "__pregel_push"
PATCH = "__patched"
_PULL_REPR: Final = repr(PULL)

ROUTER_BASE: Final = 1 << 20
"""First number of the questions, calls and graph runs of a node's routers."""
# A range of its own: a resume may run the routers without the node, so counting on from the node would differ.

Path: TypeAlias = "tuple[str | int | bool | Path, ...]"
"""The position of a task: `(PULL, node)` for a triggered node, `(PUSH, index, False)` for a send, `(PUSH, path of the
caller, index, True)` for a call by a task. The error handler of a task has the task's path followed by "error"."""


def task_id(scope: str, ns: str, step: int, node: str, path: Path) -> TaskId:
    """Return a task's id, 32 hex digits, derived only from the task's position in the graph and its superstep.

    The same work has the same id on every attempt, replay, resume and fork, and after the thread was moved to another
    database. The id contains the thread's id, so that it can serve as an idempotency key for a service that many
    threads call.

    Args:
        scope: the thread's id; the run's id if there is no thread.
        ns: the namespace; empty for the root graph.
        step: the number of the superstep that runs the task.
        node: the node's name.
        path: the task's position.
    """
    # No checkpoint id and no clock: both differ on a replay. The text is the repr() of the tuple of the arguments: two
    # different tuples of strings and numbers never have the same repr; joined strings could.
    return _id_from(f"({scope!r}, {ns!r}, {step}, {node!r}, {path!r})")


def _id_from(position: str) -> TaskId:
    """Return the id for the repr of a position."""
    return TaskId(blake2b(position.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest())


class Task:
    """One run of a node.

    Attributes:
        node: the node.
        step: the superstep's number.
        scope: the first two arguments of `task_id`: thread id and namespace.
        index: the task's position in the plan, from 0.
        send: the position among the superstep's sends, or among one task's calls, from 0; -1 for a triggered node.
        arg: the argument of the send or call.
        caller: the path of the calling task; None for a task of the superstep's plan.
        timeout: the timeout of one attempt: the send's own, or the node's.
        digest: the digest of a call's arguments; empty for other tasks, and in runs without records.
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
        """The task's id; see `task_id`."""
        # Computed on first use: a superstep of many tasks would otherwise pay for a hash each.
        if self._id is None:
            scope, ns = self.scope
            if self.send < 0 and self.caller is None and self._handles is None:
                # A fast path for triggered nodes, by far the most frequent tasks. The text is the same as in `task_id`,
                # without a repr of the path, which would cost as much as the hash.
                name = self.node.identity_repr
                self._id = _id_from(f"({scope!r}, {ns!r}, {self.step}, {name}, ({_PULL_REPR}, {name}))")
            else:
                self._id = task_id(scope, ns, self.step, self.node.identity, self.path)
        return self._id

    @property
    def is_planned(self) -> bool:
        """Whether the task is one of the superstep's plan."""
        return self.caller is None

    def written_as(self) -> TaskId:
        """Return the id of the task for which this one writes: its own, or the failed task's for an error handler."""
        return self.id if self._failed is None else self._failed.written_as()

    @property
    def is_called(self) -> bool:
        """Whether another task calls this one."""
        return self.caller is not None

    @property
    def path(self) -> Path:
        if self._handles is not None:
            return (*self._handles, "error")
        if self.caller is not None:
            return (PUSH, self.caller, self.send, True)
        return (PULL, self.node.identity) if self.send < 0 else (PUSH, self.send, False)

    @property
    def namespace(self) -> str:
        """The task's part of the namespaces of the graphs that it runs."""
        return f"{self.node.identity}:{self.id}"

    def call(self, node: Node, index: int, arg: Any, digest: bytes = b"") -> Task:
        """Return the task of this task's `index`-th call, from 0."""
        return Task(node, self.step, self.index, self.scope, index, arg, self.path, digest=digest)

    def id_as(self, name: str) -> TaskId:
        """Return the id that a task of the node `name` would have in this position."""
        return task_id(self.scope[0], self.scope[1], self.step, name, self.path)

    def has_called(self, name: str, ids: Container[str]) -> bool:
        """Return True if one of these ids is that of a call of the task `name` by this task's code, or by its routers.

        Args:
            name: the name of the called task.
            ids: the ids. Of calls that are identified by their positions, the first thousand are recognised.
        """
        (scope, ns), path = self.scope, self.path
        positions = chain(range(1000), range(ROUTER_BASE, ROUTER_BASE + 1000))
        return any(task_id(scope, ns, self.step, name, (PUSH, path, at, True)) in ids for at in positions)

    def id_of_patch(self, name: str) -> TaskId:
        """Return the id of the record of a `patched()` decision. A task and its error handler share the decision."""
        return task_id(self.scope[0], self.scope[1], self.step, PATCH, (self.written_as(), name))

    @property
    def own_timeout(self) -> TimeoutPolicy | None:
        """The send's own timeout; None if the node's applies."""
        return None if self.timeout is self.node.timeout else self.timeout

    def handling(self, handler: Node) -> Task:
        """Return the task of this task's error handler: it has the same input and an id of its own."""
        task = Task(handler, self.step, self.index, self.scope, self.send, self.arg, self.caller)
        task._handles = self.path
        task._failed = self
        return task

    @property
    def triggers(self) -> tuple[str, ...]:
        """The channels that triggered the task; empty for a send."""
        return self.node.triggers if self.send < 0 else ()

    def __repr__(self) -> str:
        return f"<task {self.node.name!r} of superstep {self.step}, path {self.path}>"


class Finished(msgspec.Struct, frozen=True):
    """The node and its routers returned.

    Attributes:
        writes: the writes of the update, then of the edges, then of the routers, in order.
        replayed: the writes were recorded earlier, and the node did not run.
        own: the number of the node's own writes, which come first.
        ends_graph: some writes are commands for an outer graph (writes to `PARENT`), so this graph's run ends.
        handler_task: the error handler's task, if the task has failed and the writes are the handler's; else None.
        cached: the writes come from the cache, and the node did not run.
    """

    writes: list[Write]
    replayed: bool = False
    own: int = 0
    ends_graph: bool = False
    handler_task: Task | None = None
    cached: bool = False


class Paused(msgspec.Struct, frozen=True):
    """The node has asked questions, and runs again when they are answered.

    Attributes:
        interrupts: the open questions, in the order of the node's code; empty if a subgraph stopped at a breakpoint.
        writes: the node's own writes if only a router asks; else None.
        handler_task: the error handler's task if the handler asks; else None.
    """

    interrupts: tuple[Interrupt, ...]
    writes: list[Write] | None = None
    handler_task: Task | None = None

    @property
    def has_run(self) -> bool:
        """Whether the node itself has run, so that only a router asks."""
        return self.writes is not None


class Failed(msgspec.Struct, frozen=True):
    """The node, its result or one of its routers raised.

    Attributes:
        error: the exception; a note names the node and the superstep.
        writes: the node's own writes if only a router failed; else None.
    """

    error: BaseException
    writes: list[Write] | None = None

    @property
    def has_run(self) -> bool:
        """Whether the node itself has run, so that only a router failed."""
        return self.writes is not None


class Cancelled(msgspec.Struct, frozen=True):
    """The task was cancelled because a sibling failed or the run was cancelled."""


class NotStarted(msgspec.Struct, frozen=True):
    """The run was drained before the task began: none of the node's code ran, and the task has no record."""


class Unfinished(msgspec.Struct, frozen=True):
    """A task that has to run, at least in part.

    Attributes:
        writes: the node's own writes if the node has run and only its routers are left; else None.
        failures: the node's failure, as a tuple of one, if the node has failed and only its error handler is left.
    """

    writes: list[Write] | None = None
    failures: tuple[Exception, ...] = ()

    @property
    def has_run(self) -> bool:
        """Whether the node itself has run, so that only its routers are left."""
        return self.writes is not None


NEW = Unfinished()
"""The task has no record, so that all of it has to run."""

Recorded: TypeAlias = Finished | Paused | Unfinished
"""The recorded state of a task: its result, its open questions, or where it has to start."""

Settled: TypeAlias = Finished | Failed | Paused | NotStarted
"""The outcome of a task that was not cancelled."""

Outcome: TypeAlias = Settled | Cancelled
