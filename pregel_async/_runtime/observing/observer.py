"""What can be watched of runs: events, in the past tense, and the protocol of who watches.

The set is closed: `Event` is the union of all. What has begun is an event too, and what is told of it later refers to
that very object: an observer that keeps something for what is under way keeps it by the object, and never mixes up two
runs that were given one id.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from decimal import Decimal
from typing import Literal, TypeAlias

import msgspec

from checkpoint_savers.records import TaskId

from ...types import RunStatus


class _Event(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Something that has happened. Equal to itself alone, so that it can be a key."""


class RunStarted(_Event, frozen=True):
    """A graph was called, or a node has begun to run one. Told before the thread is leased.

    Attributes:
        run_id: of the call; shared by the graphs that its nodes run.
        thread_id: None when the run has no thread.
        namespace: "" for the graph that was called.
        graph: its name.
        within: the attempt at a node that runs the graph; None for one that no node runs.
        around: the run of the graph that this node is in, where the call is a part of it; else None.
    """

    run_id: str
    thread_id: str | None
    namespace: str
    graph: str
    within: AttemptStarted | None = None
    around: RunStarted | None = None


class UpdateStarted(_Event, frozen=True):
    """A thread is being edited (`aupdate_state`, `abulk_update_state`).

    Attributes:
        run_id, thread_id, graph: as in `RunStarted`.
        namespace: of the state that is edited.
        supersteps: how many are to be made.
        updates: how many updates they are made of.
    """

    run_id: str
    thread_id: str
    namespace: str
    graph: str
    supersteps: int
    updates: int


class _CallEvent(_Event, frozen=True):
    """What happens in a graph's run, or while a thread is edited."""

    run: RunStarted | UpdateStarted

    @property
    def run_id(self) -> str:
        return self.run.run_id

    @property
    def thread_id(self) -> str | None:
        return self.run.thread_id

    @property
    def graph(self) -> str:
        return self.run.graph


class _RunEvent(_CallEvent, frozen=True):
    """What happens in a graph's run.

    Attributes:
        run: which.
    """

    run: RunStarted

    @property
    def namespace(self) -> str:
        return self.run.namespace


class RunEnded(_RunEvent, frozen=True):
    """A graph's run has ended, in whatever way.

    Attributes:
        status: see `RunStatus`. A run with open questions is "interrupted", and has not failed.
        supersteps: how many have begun in it; the hidden start does not count.
        seconds: since it was called.
        error: what it raised; None when it is done, interrupted or stopped.
        spent: by budget: what was spent in the call, by the graphs inside too; empty for a graph inside.
    """

    status: RunStatus
    supersteps: int
    seconds: float
    error: BaseException | None
    spent: Mapping[str, int | Decimal]


class SuperstepStarted(_RunEvent, frozen=True):
    """The tasks of a superstep are about to run.

    Attributes:
        step: its number.
        nodes: those of its tasks: what was sent, in order, then the others by name.
    """

    step: int
    nodes: tuple[str, ...]


class SuperstepEnded(_RunEvent, frozen=True):
    """A superstep has ended, and what is to be stored of it has been handed to storage.

    Attributes:
        started: which.
        status: "done": it was folded. "interrupted": it is open, as somebody asked or had to stop. "failed",
            "cancelled".
        finished: tasks that ran and finished, perhaps by their error handler.
        replayed: tasks that did not run, as an earlier run has recorded their result.
        cached: tasks that did not run, as another run has made their result.
        failed, paused, cancelled: tasks that ended so; those that a drain kept from starting count as cancelled.
        seconds: since it started.
    """

    started: SuperstepStarted
    status: Literal["done", "interrupted", "failed", "cancelled"]
    finished: int
    replayed: int
    cached: int
    failed: int
    paused: int
    cancelled: int
    seconds: float

    @property
    def step(self) -> int:
        return self.started.step


class AttemptStarted(_RunEvent, frozen=True):
    """A task is being run, for the first time or again. It has its place among those that run at once.

    Attributes:
        superstep: None for what runs at the hidden start: a router there.
        node: or the function's name, of a task that was called.
        task_id: the same on every attempt and resume.
        number: which attempt at the task in this run, from 1.
        caller: the attempt that called the task; None for a task of the superstep's plan.
        handles: it is an error handler.
        routes: the node's own writes are known already: only its routers run.
    """

    superstep: SuperstepStarted | None
    node: str
    task_id: TaskId
    number: int
    caller: AttemptStarted | None
    handles: bool
    routes: bool

    @property
    def step(self) -> int:
        """The superstep's number."""
        return 0 if self.superstep is None else self.superstep.step


class AttemptEnded(_RunEvent, frozen=True):
    """An attempt has ended, and so has all that it had started.

    Attributes:
        started: which.
        outcome: "paused": it has asked, or a graph that it runs has stopped; that is no failure. "cancelled", too, when
            the run was asked to stop before a worker thread was free for it.
        error: when it has failed.
        seconds: since it started.
    """

    started: AttemptStarted
    outcome: Literal["finished", "failed", "paused", "cancelled"]
    error: BaseException | None
    seconds: float

    @property
    def node(self) -> str:
        return self.started.node

    @property
    def step(self) -> int:
        return self.started.step

    @property
    def task_id(self) -> TaskId:
        return self.started.task_id


class AttemptRetried(_RunEvent, frozen=True):
    """A failed attempt will be followed by another, after a wait.

    Attributes:
        node, task_id, step: of the task.
        number: of the attempt that has failed, from 1.
        error: why.
    """

    node: str
    task_id: TaskId
    step: int
    number: int
    error: BaseException


class FailureHandled(_RunEvent, frozen=True):
    """A task has failed for good, and that does not fail its superstep.

    Attributes:
        node, task_id, step: of the task.
        handler: the error handler that is to run in its place; None when the failure is collected
            (`on_failure=Collect(...)`).
        error: what it failed with.
    """

    node: str
    task_id: TaskId
    step: int
    handler: str | None
    error: BaseException


class CheckpointWritten(_CallEvent, frozen=True):
    """Storage has made a transaction durable.

    Attributes:
        kind: "commit": of checkpoints; "record": of what became of tasks.
        namespace: what it was written to; of the first, when records are of several.
        step: of the newest checkpoint in it; None when there is none.
        checkpoints, records, events: how many rows of each.
        size: their bytes, as they were given to the saver.
        seconds: how long the saver took.
    """

    kind: Literal["commit", "record"]
    namespace: str
    step: int | None
    checkpoints: int
    records: int
    events: int
    size: int
    seconds: float


class CheckpointRefused(_CallEvent, frozen=True):
    """Storage has failed to make a transaction durable: nothing of it is stored.

    Attributes:
        kind: as in `CheckpointWritten`.
        error: what the saver raised.
        seconds: how long it took.
    """

    kind: Literal["commit", "record"]
    error: BaseException
    seconds: float


class ConflictMet(_CallEvent, frozen=True):
    """Another run owns the thread.

    Attributes:
        kind: "rejected": this one does not run. "waiting": it waits, and this is told once. "lost": it had the thread,
            and it was taken over.
        holder: who holds the thread, in words; None where that is not known.
    """

    kind: Literal["rejected", "waiting", "lost"]
    holder: str | None


class StreamFilled(_RunEvent, frozen=True):
    """A part was put in a stream's queue.

    Attributes:
        mode: of the part.
        depth: how many wait for the reader now; the most, where several read.
    """

    mode: str
    depth: int


class UpdateEnded(_Event, frozen=True):
    """The edit of a thread has ended: all of it is stored, or nothing.

    Attributes:
        run: which.
        error: None when it is stored.
        seconds: since it was called.
    """

    run: UpdateStarted
    error: BaseException | None
    seconds: float


Event: TypeAlias = (
    RunStarted
    | RunEnded
    | SuperstepStarted
    | SuperstepEnded
    | AttemptStarted
    | AttemptEnded
    | AttemptRetried
    | FailureHandled
    | CheckpointWritten
    | CheckpointRefused
    | ConflictMet
    | StreamFilled
    | UpdateStarted
    | UpdateEnded
)


class Observer:
    """Is told what runs do. Subclass it, and give it to a graph (`compile(observer=...)`) or to a call.

    It is called on the thread of the run's event loop, between two steps of the run: it must not block. What it raises
    changes nothing in the run: it is told as an `ObserverWarning` when the call ends. One observer may be given to many
    graphs and calls, in several threads then.
    """

    def observe(self, event: Event, /) -> None:
        """Something has happened."""

    def around(self, started: AttemptStarted, /) -> AbstractContextManager[object]:
        """What to enter around an attempt's code, in its own context: a context variable that is set there is seen by
        the node, its tasks, and its worker threads. An exception that it suppresses or replaces goes on all the same.
        """
        return contextlib.nullcontext()
