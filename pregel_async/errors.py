"""Every error that the runtime raises on purpose, and the savers' errors that pass through it.

All derive from `PregelError`, but for the two that are no errors (`GraphBubbleUp`): a node that stops to ask, or hands
a command to the graph around it, leaves by a `BaseException`, which `except Exception` in its code does not catch.

An exception that a node raised itself is never wrapped: it gets a note that names node, superstep and task. Several
that failed in one superstep come as an `ExceptionGroup` in plan order.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from reprlib import Repr
from typing import Any, Final, Literal

import msgspec

from checkpoint_savers.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    PregelError,
    SaverClosedError,
    StorageError,
    StorageFullError,
    StorageLockedError,
    StorageReadOnlyError,
    StorageReplacedError,
    StoredTypeChangedError,
    SyncCallError,
    ThreadBusyError,
    ThreadExistsError,
    ThreadNotFoundError,
    TypeRegistrationError,
    UnknownTypeError,
    UnstorableValueError,
    UnsupportedFormatError,
)

from .types import Command, Interrupt, TaskId

__all__ = [
    "BlockingCallWarning",
    "BudgetExceededError",
    "CallsChangedError",
    "CheckpointError",
    "CheckpointNotFoundError",
    "ConcurrentUpdateError",
    "ConfigError",
    "CorruptCheckpointError",
    "EmptyChannelError",
    "EmptyInputError",
    "ErrorCode",
    "GraphBubbleUp",
    "GraphChangedError",
    "GraphDrained",
    "GraphInterrupt",
    "GraphRecursionError",
    "GraphValidationError",
    "InPlaceChangeWarning",
    "InterruptSwallowedError",
    "InvalidCheckpointerError",
    "InvalidContextError",
    "InvalidCursorError",
    "InvalidInputError",
    "InvalidResumeError",
    "InvalidRouteError",
    "InvalidUpdateError",
    "NoCheckpointerError",
    "NodeCancelledError",
    "NodeError",
    "NodeTimeoutError",
    "ObserverWarning",
    "OutsideRunError",
    "ParentCommand",
    "PregelError",
    "QuestionChangedError",
    "QuestionChangedWarning",
    "RecordedFailureError",
    "RetentionWarning",
    "RunCancelledError",
    "SaverClosedError",
    "StepTimeoutError",
    "StorageError",
    "StorageFullError",
    "StorageLockedError",
    "StorageReadOnlyError",
    "StorageReplacedError",
    "StoredTypeChangedError",
    "StreamFullError",
    "SubgraphNotFoundError",
    "SyncCallError",
    "TaskCancelledError",
    "ThreadBusyError",
    "ThreadExistsError",
    "ThreadNotFoundError",
    "TypeRegistrationError",
    "UnknownBudgetError",
    "UnknownStoredKeyWarning",
    "UnknownTypeError",
    "UnreachableNodeWarning",
    "UnsettableAttributeError",
    "UnstorableValueError",
    "UnsupportedFormatError",
    "UntrackedValueLostError",
]


_SHORT: Final = Repr()
_SHORT.maxstring = _SHORT.maxother = 120


class ErrorCode(Enum):
    """Names for the errors that people look up."""

    GRAPH_RECURSION_LIMIT = "GRAPH_RECURSION_LIMIT"
    INVALID_CONCURRENT_GRAPH_UPDATE = "INVALID_CONCURRENT_GRAPH_UPDATE"
    INVALID_GRAPH_NODE_RETURN_VALUE = "INVALID_GRAPH_NODE_RETURN_VALUE"


class InPlaceChangeWarning(UserWarning):
    """A node changed its input in place, which nobody sees (debug mode only)."""


class BlockingCallWarning(UserWarning):
    """A sync verb (`invoke`, `stream` and the others) blocks the event loop of its thread; or it has done so for 30
    seconds, and a node that it waits for may in turn be waiting for that loop.

    Python shows the first kind once for each place in the code, like all warnings, and no notebook shows it.
    """


class QuestionChangedWarning(UserWarning):
    """An answer was given to a question whose value has changed, as `compile(changed_questions="accept")` allows."""


class ObserverWarning(UserWarning):
    """An observer of a run has raised. The run was not changed by that; what it raised first is the cause."""


class UnknownStoredKeyWarning(UserWarning):
    """A thread holds a key that the graph does not have, because its code has renamed or removed it. The value stays
    stored and is shown in `StateSnapshot.unknown`. Issued once for each graph and key.

    Attributes:
        thread_id: the first thread that was seen to hold it.
        graph: the graph's name.
        key: the stored key.
    """

    def __init__(self, thread_id: str, graph: str, key: str) -> None:
        self.thread_id = thread_id
        self.graph = graph
        self.key = key
        super().__init__(
            f"thread {thread_id!r} (and perhaps others) holds key {key!r}, which graph {graph!r} does not have: its "
            "value stays stored, and StateSnapshot.unknown shows it. If the key was renamed, write the value to the "
            "new key with aupdate_state()"
        )


class UnreachableNodeWarning(UserWarning):
    """A graph has nodes that no edge, conditional edge or command leads to. Issued when it is compiled.

    Attributes:
        graph: the graph's name.
        nodes: the nodes, in the order in which they were added.
    """

    def __init__(self, graph: str, nodes: tuple[str, ...]) -> None:
        self.graph = graph
        self.nodes = nodes
        super().__init__(
            f"graph {graph!r} never runs {', '.join(map(repr, nodes))}: no edge, conditional edge or command leads "
            "there. Add an edge, or remove what is not used. If commands or sends lead there, say so where they are "
            "made: add_node(destinations=[...]), a return annotation Command[Literal[...]], or the path map of the "
            "conditional edge"
        )


class RetentionWarning(UserWarning):
    """A thread could not be pruned at the end of a run. The run was not changed by that, and its result is stored; what
    prevented it is the cause."""


class GraphValidationError(PregelError, ValueError):
    """The graph as it was built cannot run: an unknown name, a missing entry, a duplicate, a reserved word."""


class InvalidCheckpointerError(GraphValidationError, TypeError):
    """What was given as a checkpointer is no saver."""


class UnsettableAttributeError(PregelError, AttributeError):
    """An attribute was set on a compiled graph that it does not have, or that cannot be set. Nothing was changed.

    Attributes:
        graph: the graph's name.
        name: the attribute.
        nearest: the attribute that may have been meant.
    """

    def __init__(self, graph: str, name: str, nearest: str) -> None:
        super().__init__(
            f"attribute {name!r} of the compiled graph {graph!r} cannot be set: the nearest that can is {nearest!r}. "
            "Other settings are arguments of compile() or of a call, and values of your own reach nodes as context"
        )
        self.graph = graph
        self.name = name
        self.nearest = nearest


class ConfigError(PregelError, ValueError):
    """A config or an argument of a call is wrong; nothing was run or stored."""


class InvalidCursorError(PregelError, ValueError):
    """There is no going on from where a reader says that it has got to: what it passed is no cursor, or one of another
    branch or thread."""


class InvalidInputError(PregelError, TypeError):
    """The input does not fit the graph's input schema; nothing was run or stored.

    Attributes:
        path: where in the input, as `"order.items[0].amount"`; empty for the input as a whole.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        self.path = path
        super().__init__(message)


class EmptyInputError(PregelError):
    """There is nothing to run: no input was given, and nothing is stored to go on from."""


class GraphChangedError(PregelError):
    """What is stored of the thread does not fit the graph's code as it is now; nothing was run or changed.

    Attributes:
        thread_id: the thread.
        name: the channel or node that does not fit.
    """

    def __init__(self, thread_id: str, name: str, reason: str) -> None:
        self.thread_id = thread_id
        self.name = name
        super().__init__(
            f"thread {thread_id!r} was stored by another version of this graph: {reason}. "
            "Finish the thread with the old code, start a new thread, or change the graph so that it fits."
        )


class UntrackedValueLostError(PregelError):
    """A send has to run that was given the value of an untracked key, which was not stored; nothing ran with it.

    Attributes:
        node: the node that the send is for.
        key: the key.
        thread_id: the thread.
        step: the superstep that has to run.
    """

    def __init__(self, node: str, key: str, thread_id: str, step: int) -> None:
        self.node = node
        self.key = key
        self.thread_id = thread_id
        self.step = step
        super().__init__(
            f"a send to node {node!r}, superstep {step} of thread {thread_id!r}, was given key {key!r}, which is "
            "untracked: its value was not stored with the send. Give the thread a new value when you resume it, with "
            f"Command(update={{{key!r}: ...}}); the sends that lack one get it."
        )


class InvalidContextError(ConfigError, TypeError):
    """The context does not fit the graph's context schema; nothing was run or stored.

    Attributes:
        path: where in the context, as `"user.name"`; empty for the context as a whole.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        self.path = path
        super().__init__(message)


class EmptyChannelError(PregelError):
    """A channel was read that holds nothing.

    Attributes:
        channel: its name.
    """

    def __init__(self, channel: str = "") -> None:
        self.channel = channel
        super().__init__(f"channel {channel!r} holds nothing: it was never written, or has been cleared")


class InvalidUpdateError(PregelError):
    """A write that its channel or graph cannot take. The superstep was not applied.

    Attributes:
        channel: the channel, where there is one.
        node: the node whose write it was, where it is known.
        code: an `ErrorCode`, where there is one.
        path: of an update by hand that does not fit its annotation: where, as `"order.items[0].amount"`; else empty.
    """

    def __init__(
        self,
        message: str,
        *,
        channel: str | None = None,
        node: str | None = None,
        code: ErrorCode | None = None,
        path: str = "",
    ) -> None:
        self.path = path
        self.channel = channel
        self.node = node
        self.code = code
        super().__init__(message)


class ConcurrentUpdateError(InvalidUpdateError):
    """A key that keeps one value was written several times in one superstep. The superstep was not applied.

    Attributes:
        count: how often it was written.
        writers: the nodes that wrote it, quoted and in plan order, with a count for each; "the input" for what no node
            wrote. Empty where a channel is used without a graph.
    """

    def __init__(self, channel: str, count: int) -> None:
        self.count = count
        self.writers: dict[str, int] = {}
        super().__init__(self._sentence(channel), channel=channel, code=ErrorCode.INVALID_CONCURRENT_GRAPH_UPDATE)

    def name_writers(self, writers: Mapping[str, int]) -> None:
        """Add to the message which nodes wrote."""
        self.writers = dict(writers)
        self.args = (self._sentence(str(self.channel)),)

    def _sentence(self, channel: str) -> str:
        return (
            f"channel {channel!r} was written {self.count} times in one superstep{_by_writers(self.writers)} and keeps "
            "only one value. Let one node write it, or give its key a reducer that merges the writes, for example "
            "Annotated[list[str], operator.add]."
        )


_MAX_WRITERS: Final = 8
"""How many writers a message names."""


def _by_writers(writers: Mapping[str, int]) -> str:
    if not writers:
        return ""
    named = [name + (f" ({count} times)" if count > 1 else "") for name, count in writers.items()]
    more = len(named) - _MAX_WRITERS
    if more > 0:
        named = [*named[:_MAX_WRITERS], f"{more} more"]
    return f" by {', '.join(named[:-1])} and {named[-1]}" if len(named) > 1 else f" by {named[0]}"


class InvalidResumeError(PregelError, ValueError, RuntimeError):
    """An answer fits no open question, or more than one; nothing was run or stored.

    A `RuntimeError` too, since that is what LangGraph raises here: code that catches it keeps working.

    Attributes:
        thread_id: the thread.
        open: ids of the questions that are open.
    """

    def __init__(self, message: str, *, thread_id: str | None = None, open: tuple[str, ...] = ()) -> None:
        self.thread_id = thread_id
        self.open = open
        super().__init__(message)


class OutsideRunError(PregelError, RuntimeError):
    """Something was called that works only inside a running node."""


class NoCheckpointerError(PregelError, RuntimeError):
    """A node called `interrupt()` in a run that stores nothing, so that its question could never be answered.

    The node fails with it also when its code catches it (`except Exception`), and no error handler is asked.

    Attributes:
        node: the node or task that asked.
        graph: the graph that was called, which has no checkpointer.
    """

    def __init__(self, node: str, graph: str) -> None:
        self.node = node
        self.graph = graph
        super().__init__(
            f"node {node!r} called interrupt(), and the run of graph {graph!r} stores nothing, so that the question "
            f"could never be answered: compile graph {graph!r} with a checkpointer, and pass a thread_id"
        )


class SubgraphNotFoundError(PregelError, LookupError, ValueError):
    """A `checkpoint_ns` names a subgraph that the graph does not have."""


class InvalidRouteError(InvalidUpdateError, ValueError):
    """A router answered with what is no destination. Its task stays open, with the node's own writes recorded."""


class InterruptSwallowedError(PregelError):
    """A node returned although it, or something that it called, had asked a question.

    Attributes:
        node: the node.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        super().__init__(
            f"node {node!r} returned although it had asked a question with interrupt(): something in it caught what "
            "interrupt() raises. Let GraphInterrupt through: it is a BaseException, so that 'except Exception' does."
        )


class CallsChangedError(PregelError):
    """A node that runs again calls a task with other arguments, or another task, than is recorded of the same call; or
    runs a graph with another input, or another graph, than it did in the same place.

    Nothing was called. The recorded results are those of other work: a payment of one invoice is not that of the next.

    Attributes:
        node: the node that calls, or the task that calls another.
        superstep: its number.
        number: which of the node's calls it is, from 1; of a named call, its key.
        recorded: the name of the task whose result is recorded, or of the graph whose state is stored.
        asked: the name of the task that is called now, or of the graph. If it is the same, the arguments differ.
        kind: "task" or "graph".
    """

    def __init__(
        self,
        node: str,
        superstep: int,
        number: int | str,
        recorded: str,
        asked: str,
        kind: Literal["task", "graph"] = "task",
    ) -> None:
        self.node = node
        self.superstep = superstep
        self.number = number
        self.recorded = recorded
        self.asked = asked
        self.kind = kind
        which = f"call {number}" if isinstance(number, int) else f"the call named {number!r}"
        if kind == "graph":
            which = f"graph {number} that it runs"
        done, verb, noun = ("call", "calls", "arguments") if kind == "task" else ("run", "runs", "input")
        what = f"{verb} {kind} {asked!r} instead" if asked != recorded else f"has other {noun}"
        others = (
            f"use @task(on_change='run'), or identify calls by a name: {asked}.named(key)(...)"
            if kind == "task"
            else "run each graph in a @task, whose calls are identified by a name: work.named(key)(...)"
        )
        super().__init__(
            f"node {node!r}, superstep {superstep}: {which} was recorded as a {done} of {kind} {recorded!r}, and now "
            f"{what}. Nothing was called. A node that runs again must make the same calls in the same order: get what "
            "they depend on in a task or in an earlier node. If the node may choose others, "
            f"{others}. A new input or aupdate_state() discards what is recorded."
        )


class QuestionChangedError(PregelError):
    """A node that runs again asks something else than the question that was answered; the answer was not given to it.

    The answer stays recorded: code that asks the old question gets it.

    Attributes:
        id: the question's.
        asked_then: the value that was answered.
        asked_now: the value that the node asks now.
    """

    def __init__(self, id: str, asked_then: Any, asked_now: Any) -> None:
        self.id = id
        self.asked_then = asked_then
        self.asked_now = asked_now
        super().__init__(
            f"question {id} was answered when its value was {_SHORT.repr(asked_then)}, and the node now asks "
            f"{_SHORT.repr(asked_now)}. The answer was not applied. Make the value in an earlier node or in a @task, "
            "so that it is the same when the node runs again; or accept such answers with "
            "compile(changed_questions='accept'). A new input or aupdate_state() discards the question."
        )


class TaskCancelledError(PregelError):
    """A task was awaited that has been cancelled.

    Attributes:
        name: the task's name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"task {name!r} was cancelled, so that it has no result")


class GraphRecursionError(PregelError, RecursionError):
    """The run reached its limit of supersteps with work left. The thread can be resumed.

    Attributes:
        limit: how many supersteps the run was allowed.
        step: the number of the last superstep that ran.
        pending: names of the nodes that would have run next.
        code: `ErrorCode.GRAPH_RECURSION_LIMIT`.
    """

    code = ErrorCode.GRAPH_RECURSION_LIMIT

    def __init__(self, limit: int, step: int, pending: tuple[str, ...]) -> None:
        self.limit = limit
        self.step = step
        self.pending = pending
        shown = ", ".join(repr(name) for name in pending[:5]) + (", ..." if len(pending) > 5 else "")
        super().__init__(
            f"the run reached its limit of {limit} supersteps (at step {step}) and {shown} would run next. "
            "Check that the loop ends, raise recursion_limit in the config, or call again with input None to go on."
        )


class StreamFullError(PregelError):
    """Code that never waits has written far more to a stream than its reader takes.

    Attributes:
        mode: the mode that it wrote to.
        unread: how many chunks wait for the reader.
    """

    def __init__(self, mode: str, unread: int) -> None:
        self.mode = mode
        self.unread = unread
        super().__init__(
            f"a node writes to the {mode!r} stream without waiting, and {unread} chunks are unread: await what the "
            f"writer returns (await writer(chunk)), or let the reader lose some: overflow={{{mode!r}: 'drop_oldest'}}"
        )


class GraphDrained(PregelError):
    """The run was asked to stop (`RunControl.request_drain`) and has, with work left: call again with input None.

    Tasks that had begun have finished and are recorded. What is left, be it of an open superstep, had not begun.

    An exception like others, for callers to catch; LangGraph's is one that bubbles through nodes. No node ever sees it.

    Attributes:
        reason: what `request_drain` was given.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the run was drained ({reason}); it is stored: call again with input None to go on")


class RecordedFailureError(PregelError):
    """A failure as it was recorded, where the exception itself is no more: a run has failed that a reader comes back
    to; a task had failed before the process ended that was to handle it; or it is kept in the state (`NodeError`).

    Two of the same type and message are equal.

    Attributes:
        type: of the exception, qualified by its module unless it is a builtin.
        message: its text.
    """

    def __init__(self, type: str, message: str) -> None:
        self.type = type
        self.message = message
        super().__init__(f"{type}: {message}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordedFailureError) and self.type == other.type and self.message == other.message

    def __hash__(self) -> int:
        return hash((self.type, self.message))


class NodeError(msgspec.Struct, frozen=True):
    """What an error handler gets, with a parameter annotated `NodeError` or named `error`; and what a failed task
    leaves in the state under the failure policy `Collect`.

    Attributes:
        node: the node that failed.
        task_id: of the task.
        error: the exception. In the state, and in a handler after a crash, a `RecordedFailureError` with its type and
            message.
    """

    node: str
    task_id: TaskId
    error: Exception


class NodeTimeoutError(PregelError):
    """An attempt at a node took longer than it may. Tried again by default, where the node has a retry policy.

    Attributes:
        node: the node.
        kind: "run": it took longer than its `run_timeout`; "idle": it gave no sign of life for its `idle_timeout`.
        elapsed: seconds from the attempt's beginning, or from the last sign of life; times of waiting not counted.
        timeout: the limit that it ran into, in seconds.
        run_timeout, idle_timeout: both limits, in seconds; None for no such limit.
    """

    retryable = True

    def __init__(
        self,
        node: str,
        *,
        kind: Literal["run", "idle"],
        elapsed: float,
        run_timeout: float | None,
        idle_timeout: float | None,
    ) -> None:
        self.node = node
        self.kind = kind
        self.elapsed = elapsed
        self.run_timeout = run_timeout
        self.idle_timeout = idle_timeout
        limit = run_timeout if kind == "run" else idle_timeout
        assert limit is not None
        self.timeout = limit
        why = (
            f"took longer than its run_timeout of {limit:g} s"
            if kind == "run"
            else f"gave no sign of life for its idle_timeout of {limit:g} s"
        )
        super().__init__(
            f"node {node!r} {why} and was stopped; nothing of the attempt counts. Raise the timeout, or "
            "give the node a retry policy or an error handler"
        )


class StepTimeoutError(PregelError, TimeoutError):
    """A superstep took longer than the graph's `step_timeout`: what ran was cancelled, what had finished is recorded.

    Attributes:
        step: the superstep.
        timeout: seconds.
        unfinished: names of the nodes that were running, in plan order.
    """

    def __init__(self, step: int, timeout: float, unfinished: tuple[str, ...]) -> None:
        self.step = step
        self.timeout = timeout
        self.unfinished = unfinished
        super().__init__(
            f"superstep {step} took longer than the graph's step_timeout of {timeout:g} s, and "
            f"{', '.join(map(repr, unfinished))} had not finished. What had is kept: call again with input None to run "
            "the rest"
        )


class UnknownBudgetError(PregelError, LookupError):
    """A node spends of a budget that its graph does not have.

    Attributes:
        name: the budget.
        known: the names of those that there are.
    """

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        self.name = name
        self.known = known
        there = f"there are {', '.join(map(repr, known))}" if known else "the graph has none at all"
        super().__init__(
            f"there is no budget {name!r}; {there}: compile the graph with budgets={{{name!r}: Budget()}}, which "
            "counts without a limit"
        )


class BudgetExceededError(PregelError):
    """The run has spent more than it may, and has stopped at a barrier, with work left. Everything until then is
    stored: call again with input None and a larger budget to go on.

    Attributes:
        name: of the budget; "seconds" for the time limit of a run.
        spent: how much was spent.
        limit: how much may be.
        per: "run" or "thread".
        step: the last superstep that ran.
        pending: names of the nodes that would have run next.
    """

    def __init__(
        self,
        name: str,
        *,
        spent: int | float | Decimal,
        limit: int | float | Decimal,
        per: Literal["run", "thread"],
        step: int,
        pending: tuple[str, ...],
    ) -> None:
        self.name = name
        self.spent = spent
        self.limit = limit
        self.per = per
        self.step = step
        self.pending = pending
        shown = ", ".join(repr(node) for node in pending[:5]) + (", ..." if len(pending) > 5 else "")
        if isinstance(limit, float):  # amounts of budgets are exact, so this is time
            said, limited = f"taken {spent:.6g} s, and its time_limit is {limit:.6g} s", "time_limit"
        else:
            said, limited = f"spent {spent} of {name!r}, and its budget is {limit}", "budget"
        super().__init__(
            f"the {per} has {said}: it stopped after superstep {step}, and {shown} would run next. Raise the {limited} "
            "and call again with input None to go on"
        )


class RunCancelledError(PregelError):
    """The run that a reader had joined was cancelled by whoever started it."""

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        super().__init__(f"the run of thread {thread_id!r} was cancelled; call with input None to go on")


class NodeCancelledError(PregelError):
    """A node ended with the event loop's cancellation error although nobody had cancelled the run.

    Attributes:
        node: the node.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        super().__init__(
            f"node {node!r} raised a cancellation of its own: something it awaited was cancelled and it let that "
            "through. Catch it in the node, or raise another exception."
        )


class GraphBubbleUp(BaseException):
    """What leaves a node that has neither finished nor failed. Let it through."""


class GraphInterrupt(GraphBubbleUp):
    """The node has asked, and stops until it is answered.

    Attributes:
        interrupts: the questions; none when a subgraph stopped at a breakpoint.
    """

    def __init__(self, interrupts: tuple[Interrupt, ...] = ()) -> None:
        self.interrupts = interrupts
        super().__init__(interrupts)


class ParentCommand(GraphBubbleUp):
    """A subgraph ends with commands for a graph around it.

    Attributes:
        commands: in the order of the tasks that gave them.
    """

    def __init__(self, commands: tuple[Command, ...]) -> None:
        self.commands = commands
        super().__init__(commands)
