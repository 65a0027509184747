"""The events that observers receive, and the base class of observers.

`Event` is the union of all events. The start of a run, superstep, attempt or update is an event, and later events refer
to that object. An observer that stores data per run should use the object as the key, because two runs may have been
given the same id.
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


# eq=False: by value, two runs with equal fields would be one key, and `RunEnded` could not be hashed: it has a mapping.
class _Event(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """An event. It compares equal only to itself, and is hashable, so that it can be a key."""


class RunStarted(_Event, frozen=True):
    """A graph was called, or a node has begun to run a subgraph. Reported before the thread's lease is acquired.

    Attributes:
        run_id: the id of the call, shared by its subgraphs.
        thread_id: the thread; None if the run has none.
        namespace: the checkpoint namespace; "" for the graph that was called.
        graph: the name of the graph.
        within: the attempt whose code runs the graph; None if no node does.
        around: the run of the outer graph, if this run is a part of it; otherwise None.
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
        run_id: the id of the call.
        thread_id: the thread.
        namespace: the checkpoint namespace of the edited state.
        graph: the name of the graph.
        supersteps: the number of supersteps to make.
        updates: the number of updates in these supersteps.
    """

    run_id: str
    thread_id: str
    namespace: str
    graph: str
    supersteps: int
    updates: int


class _CallEvent(_Event, frozen=True):
    """An event of a graph's run, or of the edit of a thread."""

    run: RunStarted | UpdateStarted

    @property
    def run_id(self) -> str:
        """The id of the call."""
        return self.run.run_id

    @property
    def thread_id(self) -> str | None:
        """The thread; None if the run has none."""
        return self.run.thread_id

    @property
    def graph(self) -> str:
        """The name of the graph."""
        return self.run.graph


class _RunEvent(_CallEvent, frozen=True):
    """An event of a graph's run.

    Attributes:
        run: the run.
    """

    run: RunStarted

    @property
    def namespace(self) -> str:
        """The checkpoint namespace of the run; "" for the graph that was called."""
        return self.run.namespace


class RunEnded(_RunEvent, frozen=True):
    """A graph's run has ended.

    Attributes:
        status: how it ended, see `RunStatus`. A run with open questions is "interrupted", and has not failed.
        supersteps: the number of supersteps that began, without the hidden start.
        seconds: the seconds since the call.
        error: the exception that it raised; None if it is done, interrupted or stopped.
        spent: the amounts that the call and its subgraphs spent, by budget; empty for a subgraph.
    """

    status: RunStatus
    supersteps: int
    seconds: float
    error: BaseException | None
    spent: Mapping[str, int | Decimal]


class SuperstepStarted(_RunEvent, frozen=True):
    """The tasks of a superstep are about to run.

    Attributes:
        step: the number of the superstep.
        nodes: the names of its tasks' nodes: sends in their order, then the others by name.
    """

    step: int
    nodes: tuple[str, ...]


class SuperstepEnded(_RunEvent, frozen=True):
    """A superstep has ended, and its commit or records were passed to the saver.

    Attributes:
        started: the event that reported its start.
        status: "done" if its writes were folded; "interrupted" if it stays open, because a task asked or the run had to
            stop; "failed" or "cancelled".
        finished: the number of tasks that ran and finished, perhaps by their error handler.
        replayed: the number of tasks that did not run, because an earlier run recorded their result.
        cached: the number of tasks that did not run, because their result was in the cache.
        failed: the number of tasks that failed.
        paused: the number of tasks that paused.
        cancelled: the number of tasks that were cancelled, or not started because the run was drained.
        seconds: the seconds since it started.
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
        """The number of the superstep."""
        return self.started.step


class AttemptStarted(_RunEvent, frozen=True):
    """An attempt at a task begins. The task has its concurrency slot.

    Attributes:
        superstep: the superstep; None for a router at the hidden start.
        node: the name of the node, or of the function of a called task.
        task_id: the id of the task, the same on each attempt and resume.
        number: the number of the attempt at the task in this run, from 1.
        caller: the attempt that called the task; None for a task of the superstep's plan.
        handles: the task is an error handler.
        routes: only the node's routers run, because its own writes are recorded.
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
        """The number of the superstep; 0 at the hidden start."""
        return 0 if self.superstep is None else self.superstep.step


class AttemptEnded(_RunEvent, frozen=True):
    """An attempt and all tasks that it had started have ended.

    Attributes:
        started: the event that reported its start.
        outcome: "finished" or "failed"; "paused" if it has asked a question or a subgraph of it has stopped;
            "cancelled", also if the run was drained before a worker thread was free.
        error: the exception of a failed attempt; otherwise None.
        seconds: the seconds since it started.
    """

    started: AttemptStarted
    outcome: Literal["finished", "failed", "paused", "cancelled"]
    error: BaseException | None
    seconds: float

    @property
    def node(self) -> str:
        """The name of the node, or of the function of a called task."""
        return self.started.node

    @property
    def step(self) -> int:
        """The number of the superstep; 0 at the hidden start."""
        return self.started.step

    @property
    def task_id(self) -> TaskId:
        """The id of the task."""
        return self.started.task_id


class AttemptRetried(_RunEvent, frozen=True):
    """A failed attempt will be followed by another, after a delay.

    Attributes:
        node: the name of the node, or of the function of a called task.
        task_id: the id of the task.
        step: the number of the superstep.
        number: the number of the failed attempt, from 1.
        error: the exception of the failed attempt.
    """

    node: str
    task_id: TaskId
    step: int
    number: int
    error: BaseException


class FailureHandled(_RunEvent, frozen=True):
    """A task has failed on its last attempt, without failing its superstep.

    Attributes:
        node: the name of the node, or of the function of a called task.
        task_id: the id of the task.
        step: the number of the superstep.
        handler: the name of the error handler that runs next; None if the failure is collected
            (`on_failure=Collect(...)`).
        error: the exception of the task.
    """

    node: str
    task_id: TaskId
    step: int
    handler: str | None
    error: BaseException


class CheckpointWritten(_CallEvent, frozen=True):
    """The saver has stored a transaction.

    Attributes:
        kind: "commit" for checkpoints; "record" for outcomes of tasks.
        namespace: the checkpoint namespace of the rows; with durability "exit", where a transaction may contain rows of
            subgraphs too, that of the outermost graph.
        step: the superstep of that graph's newest checkpoint; None if the transaction contains no checkpoint.
        checkpoints: the number of checkpoint rows.
        records: the number of task records.
        events: the number of rows of stream events.
        size: the bytes of all rows, as they were passed to the saver.
        seconds: the seconds that the saver took.
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
    """The saver has failed to store a transaction. None of its rows is stored.

    Attributes:
        kind: as in `CheckpointWritten`.
        error: the exception that the saver raised.
        seconds: the seconds that the saver took.
    """

    kind: Literal["commit", "record"]
    error: BaseException
    seconds: float


class ConflictMet(_CallEvent, frozen=True):
    """Another run has the thread's lease.

    Attributes:
        kind: "rejected": this run does not start. "waiting": it waits for the lease; reported once. "lost": it had the
            lease, which another run has acquired since.
        holder: a description of the lease's owner; None if it is not known.
    """

    kind: Literal["rejected", "waiting", "lost"]
    holder: str | None


class ModelCalled(_RunEvent, frozen=True):
    """A call of a model has ended. Reported by the models of `pregel_async.prebuilt`.

    Attributes:
        attempt: the attempt whose code has called the model.
        model: the model that was asked for.
        response_model: the model that has answered, by the provider's name; None if the provider named none.
        provider: the provider, such as "openai"; None if it is not known.
        input_tokens: all input tokens, cached or not; None if the provider has reported no tokens.
        output_tokens: all output tokens, including reasoning; None if the provider has reported no tokens.
        cache_read_tokens: the input tokens that the provider has read from its cache.
        cache_write_tokens: the input tokens that the provider has written to its cache.
        reasoning_tokens: the output tokens of the model's reasoning.
        cost_usd: the cost in US dollars; None if the model has no price.
        error: the exception that the call raised; None if the model has answered, or the call was cancelled or has
            asked a question.
        seconds: the seconds that the call took.
    """

    attempt: AttemptStarted
    model: str
    response_model: str | None
    provider: str | None
    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost_usd: Decimal | None
    error: BaseException | None
    seconds: float


class StreamFilled(_RunEvent, frozen=True):
    """A part was added to a stream's buffer.

    Attributes:
        mode: the stream mode of the part.
        depth: the number of unread parts now; of several readers, the greatest.
    """

    mode: str
    depth: int


class UpdateEnded(_Event, frozen=True):
    """The edit of a thread has ended. All of it is stored, or nothing.

    Attributes:
        run: the event that reported its start.
        error: the exception that it raised; None if it is stored.
        seconds: the seconds since the call.
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
    | ModelCalled
    | StreamFilled
    | UpdateStarted
    | UpdateEnded
)
"""Everything that an observer receives."""


class Observer:
    """Receives the events of runs. Subclass it, and pass it to a graph (`compile(observer=...)`) or to a call.

    Its methods are called in the thread of the run's event loop and must not block. Their exceptions do not change the
    run, and are reported as an `ObserverWarning` when the call ends. One observer may be passed to many graphs and
    calls, and is then called in several threads.
    """

    def observe(self, event: Event, /) -> None:
        """Receive an event.

        Args:
            event: one of the types in `Event`.
        """

    def around(self, started: AttemptStarted, /) -> AbstractContextManager[object]:
        """Return a context manager to enter around an attempt's code.

        It is entered in the attempt's own context: the node, its tasks and its worker threads see the context variables
        that it sets. It cannot suppress or replace the attempt's exception.

        Args:
            started: the event that reported the attempt's start.

        Returns:
            The context manager. The default does nothing.
        """
        return contextlib.nullcontext()
