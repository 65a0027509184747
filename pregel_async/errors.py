"""Every error that the runtime raises on purpose, and the savers' errors that a call may raise.

All derive from `PregelError`, except warnings and the two that are no errors (`GraphBubbleUp`): a node that asks a
question, or sends a command to the enclosing graph, is left by a `BaseException`, which `except Exception` in its code
does not catch.

The exception of a node is never wrapped: it gets a note that names node, superstep and task. The exceptions of several
nodes that failed in one superstep are raised as an `ExceptionGroup`, in plan order.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
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

from .types import Command, Interrupt, Mismatch, TaskId

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
    "GeneratorNotSupportedError",
    "GraphBubbleUp",
    "GraphChangedError",
    "GraphDrained",
    "GraphInterrupt",
    "GraphRecursionError",
    "GraphValidationError",
    "GraphVersionError",
    "InPlaceChangeWarning",
    "InterruptSwallowedError",
    "InvalidAnswerError",
    "InvalidCheckpointerError",
    "InvalidContextError",
    "InvalidCursorError",
    "InvalidInputError",
    "InvalidResumeError",
    "InvalidRouteError",
    "InvalidUpdateError",
    "KeptStateWarning",
    "MigrationError",
    "NoCheckpointerError",
    "NodeCancelledError",
    "NodeError",
    "NodeInterrupt",
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
    "UnknownInterruptError",
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
    """Codes of errors, named as in LangGraph. An error has its code as `code`."""

    GRAPH_RECURSION_LIMIT = "GRAPH_RECURSION_LIMIT"
    INVALID_CONCURRENT_GRAPH_UPDATE = "INVALID_CONCURRENT_GRAPH_UPDATE"
    INVALID_GRAPH_NODE_RETURN_VALUE = "INVALID_GRAPH_NODE_RETURN_VALUE"


class InPlaceChangeWarning(UserWarning):
    """A node changed its input in place, which has no effect on the state. Issued in debug mode only."""


class BlockingCallWarning(UserWarning):
    """A sync method (`invoke`, `stream` and the others) blocks the running event loop of its thread.

    Issued when the call starts, except in notebooks; and again after the call has blocked the loop for 30 seconds,
    because a node that the call waits for may in turn be waiting for that loop.
    """


class QuestionChangedWarning(UserWarning):
    """A node got the answer to a question whose value has changed, as `compile(changed_questions="accept")` allows."""


class ObserverWarning(UserWarning):
    """An observer raised an exception. The run was not affected; the observer's first exception is the cause."""


class UnknownStoredKeyWarning(UserWarning):
    """A thread holds a key that the graph's code has renamed or removed.

    The value stays stored, and `StateSnapshot.unknown` shows it. Issued once for each graph and key.

    Attributes:
        thread_id: the first thread in which the key was found.
        graph: the graph's name.
        key: the stored key.
    """

    def __init__(self, thread_id: str, graph: str, key: str) -> None:
        self.thread_id = thread_id
        self.graph = graph
        self.key = key
        super().__init__(
            f"thread {thread_id!r} (and perhaps others) holds key {key!r}, which graph {graph!r} does not have: its "
            "value stays stored, and StateSnapshot.unknown shows it. Declare what became of it: "
            f"Renamed({key!r}) at the key that has its values now, or compile(removed=({key!r},))"
        )


class KeptStateWarning(UserWarning):
    """A graph that keeps its state begins again, and the thread has the kept state of a node that does not exist.

    Attributes:
        thread_id: the thread.
        graph: the name of the graph whose node runs it.
        namespace: the checkpoint namespace that begins.
        left: the checkpoint namespace of the state that is left behind.
    """

    def __init__(self, thread_id: str, graph: str, namespace: str, left: str) -> None:
        self.thread_id = thread_id
        self.graph = graph
        self.namespace = namespace
        self.left = left
        old, new = left.rpartition("|")[2], namespace.rpartition("|")[2]
        super().__init__(
            f"the graph of node {new!r} of graph {graph!r} keeps its state, and begins without one in thread "
            f"{thread_id!r}, which holds the state of node {old!r}. If the node was renamed, declare it: "
            f"add_node({new!r}, ..., was={old!r})"
        )


class UnreachableNodeWarning(UserWarning):
    """A graph has nodes that no edge, conditional edge or command leads to. Issued when the graph is compiled.

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
    """A thread could not be pruned at the end of a run. The result of the run is stored; the failure is the cause."""


class GraphValidationError(PregelError, ValueError):
    """A graph's definition is invalid: an unknown, duplicate or reserved name, a missing entry, or a bad option."""


class GeneratorNotSupportedError(GraphValidationError, NotImplementedError):
    """An entrypoint is a generator function. Also a `NotImplementedError`, which LangGraph raises here."""


class InvalidCheckpointerError(GraphValidationError, TypeError):
    """The value given as checkpointer is no saver."""


class UnsettableAttributeError(PregelError, AttributeError):
    """Code set an attribute that a compiled graph does not have, or that cannot be set. The graph was not changed.

    Attributes:
        graph: the graph's name.
        name: the attribute's name.
        nearest: the name of the settable attribute, or of the method, with the nearest name.
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
    """A config or an option of a call is wrong. Nothing was run or stored."""


class InvalidCursorError(PregelError, ValueError):
    """A stream cannot be continued from the value of `after`: it is no cursor, or one of another branch or thread."""


class InvalidInputError(PregelError, TypeError):
    """The input does not fit the graph's input schema. Nothing was run or stored.

    Attributes:
        path: the path in the input, such as `"order.items[0].amount"`; empty for the input as a whole.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        self.path = path
        super().__init__(message)


class EmptyInputError(PregelError):
    """There is nothing to run: the call has no input, and nothing is stored to continue from."""


class GraphChangedError(PregelError):
    """The stored thread does not fit the current code of the graph. Nothing was run or changed.

    Attributes:
        thread_id: the thread's id.
        name: the key or node that does not fit; the first one if there are several.
        mismatches: all that does not fit, as `StateSnapshot.changed` shows it.
    """

    def __init__(
        self, thread_id: str, name: str, reason: str, mismatches: Sequence[Mismatch] = (), accepted: str = ""
    ) -> None:
        self.thread_id = thread_id
        self.name = name
        self.mismatches = tuple(mismatches)
        advice = "; ".join(dict.fromkeys(each.advice for each in self.mismatches if each.advice))
        super().__init__(
            f"thread {thread_id!r} was stored by another version of this graph: {reason}. "
            + (f"Declare it: {advice}. Or finish" if advice else "Finish")
            + " the thread with the old code, or "
            + (accepted or "start a new thread, or change the graph so that it fits")
            + "."
        )


class GraphVersionError(GraphChangedError):
    """Another version of the graph has to continue the thread: a greater one, or one that `Versions` lacks.

    Nothing was run or changed. Reading the thread is possible.

    Attributes:
        thread_id: the thread's id.
        name: the graph's name.
        stored: the version that stored the thread.
        version: this graph's version; 1 if it was compiled without `version=`.
        mismatches: as in `GraphChangedError`.
    """

    def __init__(self, thread_id: str, name: str, stored: int, version: int, mismatches: Sequence[Mismatch]) -> None:
        self.thread_id = thread_id
        self.name = name
        self.stored = stored
        self.version = version
        self.mismatches = tuple(mismatches)
        # Not the message of `GraphChangedError`: this code cannot be changed so that it fits.
        PregelError.__init__(
            self,
            f"thread {thread_id!r} was stored by version {stored} of graph {name!r}"
            + (
                f", and this is version {version}: deploy version {stored}, or give Versions({{...}}) that has it"
                if stored > version
                else "".join(f"; {each.reason}: {each.advice}" for each in mismatches)
            ),
        )


class MigrationError(PregelError):
    """A declared rule that converts stored values raised an exception, which is the cause. Nothing was stored.

    Reads do not raise it: `aget_state` and the history show the state as it is stored, with the failure in `changed`.

    Attributes:
        rule: the rule: `migrations[3]`, or `Retyped` with its key.
        graph: the graph's name.
        thread_id: the thread's id.
        checkpoint_id: the id of the checkpoint.
    """

    def __init__(self, rule: str, graph: str, thread_id: str, checkpoint_id: str, error: Exception) -> None:
        self.rule = rule
        self.graph = graph
        self.thread_id = thread_id
        self.checkpoint_id = checkpoint_id
        super().__init__(
            f"{rule} of graph {graph!r} failed on thread {thread_id!r}, checkpoint {checkpoint_id}: "
            f"{type(error).__name__}: {error}"
        )


class UntrackedValueLostError(PregelError):
    """A pending send carried the value of an untracked key, which was not stored. The send did not run.

    Attributes:
        node: the node that the send is for.
        key: the untracked key.
        thread_id: the thread's id.
        step: the number of the superstep that has to run.
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
    """The context does not fit the graph's context schema. Nothing was run or stored.

    Attributes:
        path: the path in the context, such as `"user.name"`; empty for the context as a whole.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        self.path = path
        super().__init__(message)


class EmptyChannelError(PregelError):
    """Code read a channel that holds no value.

    Attributes:
        channel: the channel's name.
    """

    def __init__(self, channel: str = "") -> None:
        self.channel = channel
        super().__init__(f"channel {channel!r} holds nothing: it was never written, or has been cleared")


class InvalidUpdateError(PregelError):
    """A channel or the graph cannot take a write. The superstep was not applied.

    Attributes:
        channel: the channel's name; None if the write names none.
        node: the node that wrote; None if unknown.
        code: an `ErrorCode`; None if the error has none.
        path: for an update by hand that does not fit its annotation, the path in the update, such as
            `"order.items[0].amount"`; otherwise empty.
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
    """A key without a reducer was written several times in one superstep. The superstep was not applied.

    Attributes:
        count: the number of writes.
        writers: the number of writes by writer, in plan order. A writer is a node's name in quotes, or "the input".
            Empty for a channel that is used without a graph.
    """

    def __init__(self, channel: str, count: int) -> None:
        self.count = count
        self.writers: dict[str, int] = {}
        super().__init__(self._sentence(channel), channel=channel, code=ErrorCode.INVALID_CONCURRENT_GRAPH_UPDATE)

    def name_writers(self, writers: Mapping[str, int]) -> None:
        """Add the writers to the message.

        Args:
            writers: the number of writes by writer; see the attribute.
        """
        self.writers = dict(writers)
        self.args = (self._sentence(str(self.channel)),)

    def _sentence(self, channel: str) -> str:
        return (
            f"channel {channel!r} was written {self.count} times in one superstep{_by_writers(self.writers)} and keeps "
            "only one value. Let one node write it, or give its key a reducer that merges the writes, for example "
            "Annotated[list[str], operator.add]."
        )


_MAX_WRITERS: Final = 8
"""The greatest number of writers that a message names."""


def _by_writers(writers: Mapping[str, int]) -> str:
    if not writers:
        return ""
    named = [name + (f" ({count} times)" if count > 1 else "") for name, count in writers.items()]
    more = len(named) - _MAX_WRITERS
    if more > 0:
        named = [*named[:_MAX_WRITERS], f"{more} more"]
    return f" by {', '.join(named[:-1])} and {named[-1]}" if len(named) > 1 else f" by {named[0]}"


class InvalidResumeError(PregelError, ValueError, RuntimeError):
    """An answer fits no open question, or more than one. Nothing was run or stored.

    Also a `RuntimeError`, which LangGraph raises here, so that code which catches it keeps working.

    Attributes:
        thread_id: the thread's id; None for a run without a thread.
        open: the ids of the open questions.
    """

    def __init__(self, message: str, *, thread_id: str | None = None, open: tuple[str, ...] = ()) -> None:
        self.thread_id = thread_id
        self.open = open
        super().__init__(message)


class UnknownInterruptError(InvalidResumeError):
    """Answers were given to questions that are not open, or one answer while several are open.

    Nothing was run or stored, so the open questions can still be answered.

    Attributes:
        reason: "not_pending": the answers name questions that are not open; "ambiguous": one answer was given, and
            several questions are open.
        interrupt_ids: the ids of the answers that name no open question.
        pending_ids: the ids of the open questions.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: Literal["not_pending", "ambiguous"],
        interrupt_ids: Sequence[str] = (),
        pending_ids: Sequence[str] = (),
        thread_id: str | None = None,
    ) -> None:
        self.reason = reason
        self.interrupt_ids = tuple(interrupt_ids)
        self.pending_ids = tuple(pending_ids)
        super().__init__(message, thread_id=thread_id, open=self.pending_ids)


class InvalidAnswerError(PregelError, ValueError):
    """An answer does not fit the `response_schema` of its question, which is open again.

    The node fails with this error even if its code catches it, and is neither retried nor handled. Nothing of the
    answer is stored any more. Its cause is the error of pydantic or msgspec.

    Attributes:
        node: the name of the node or task that asked.
        id: the id of the question.
        problem: what does not fit, and where in the answer.
    """

    def __init__(self, node: str, id: str, problem: str) -> None:
        self.node = node
        self.id = id
        self.problem = problem
        super().__init__(
            f"the answer to question {id} of node {node!r} does not fit its response_schema: {problem}. The answer was "
            f"dropped, and the question is open again: pass Command(resume={{{id!r}: answer}}) with another answer"
        )


class OutsideRunError(PregelError, RuntimeError):
    """Code outside a running node called a function that works only inside one."""


class NoCheckpointerError(PregelError, RuntimeError):
    """A node called `interrupt()` in a run that stores nothing, so its question could never be answered.

    The node fails with this error even if its code catches it (`except Exception`), and its error handler does not run.

    Attributes:
        node: the name of the node or task that asked.
        graph: the name of the called graph, which has no checkpointer.
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
    """A router returned an invalid destination. Its task stays open, with the node's own writes recorded."""


class InterruptSwallowedError(PregelError):
    """A node returned although the node, or code that it called, had asked a question: `GraphInterrupt` was caught.

    Attributes:
        node: the node's name.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        super().__init__(
            f"node {node!r} returned although it had asked a question with interrupt(): something in it caught what "
            "interrupt() raises. Let GraphInterrupt through: it is a BaseException, so that 'except Exception' does."
        )


class CallsChangedError(PregelError):
    """A node that runs again made another call than the recorded one: another task or graph, or other arguments.

    Nothing was called. The recorded result belongs to other work, and must not be returned for this call: the payment
    of one invoice is not the payment of the next.

    Attributes:
        node: the name of the node, or of the task, that makes the call.
        superstep: the number of the superstep.
        number: the index of the call among the node's calls, from 1; for a named call, its key.
        recorded: the name of the task whose result is recorded, or of the graph whose state is stored.
        asked: the name of the task or graph that is called now. If it equals `recorded`, the arguments differ, or
            `moved` is True.
        kind: "task" or "graph".
        moved: the same call, with the same arguments, is recorded in another position or without a name.
    """

    def __init__(
        self,
        node: str,
        superstep: int,
        number: int | str,
        recorded: str,
        asked: str,
        kind: Literal["task", "graph"] = "task",
        *,
        moved: bool = False,
    ) -> None:
        self.node = node
        self.superstep = superstep
        self.moved = moved
        self.number = number
        self.recorded = recorded
        self.asked = asked
        self.kind = kind
        which = f"call {number}" if isinstance(number, int) else f"the call named {number!r}"
        if kind == "graph":
            which = f"graph {number} that it runs"
        done, verb, noun = ("call", "calls", "arguments") if kind == "task" else ("run", "runs", "input")
        what = f"{verb} {kind} {asked!r} instead" if asked != recorded else f"has other {noun}"
        was = f"was recorded as a {done} of {kind} {recorded!r}, and now {what}"
        if moved:
            was = f"is not recorded, and an equal call of task {asked!r} is, in another position or without a name"
        others = (
            f"use @task(on_change='run'), or identify calls by a name: {asked}.named(key)(...)"
            if kind == "task"
            else "run each graph in a @task, whose calls are identified by a name: work.named(key)(...)"
        )
        super().__init__(
            f"node {node!r}, superstep {superstep}: {which} {was}. Nothing was called. A node that runs again must "
            "make the same calls in the same order: get what they depend on in a task or in an earlier node. If its "
            "code has changed, keep the old calls where patched(name) is False. If the node may choose others, "
            f"{others}. A new input or aupdate_state() discards what is recorded."
        )


class QuestionChangedError(PregelError):
    """A node that runs again asked another question than the answered one. The node did not get the answer.

    The answer stays recorded, for code that asks the old question.

    Attributes:
        id: the id of the question.
        asked_then: the value of the answered question.
        asked_now: the value of the question that the node asks now.
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
    """Code awaited a called task that has been cancelled.

    Attributes:
        name: the task's name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"task {name!r} was cancelled, so that it has no result")


class GraphRecursionError(PregelError, RecursionError):
    """The run reached its limit of supersteps with work left. The thread can be resumed.

    Attributes:
        limit: the greatest number of supersteps of the run (`recursion_limit`).
        step: the number of the last superstep that ran.
        pending: the names of the nodes that would have run next.
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
        mode: the stream mode of the chunk.
        unread: the number of chunks that wait for the reader.
    """

    def __init__(self, mode: str, unread: int) -> None:
        self.mode = mode
        self.unread = unread
        super().__init__(
            f"a node writes to the {mode!r} stream without waiting, and {unread} chunks are unread: await what the "
            f"writer returns (await writer(chunk)), or let the reader lose some: overflow={{{mode!r}: 'drop_oldest'}}"
        )


class GraphDrained(PregelError):
    """The run stopped at the request of `RunControl.request_drain`, with work left. Call again with input None.

    Tasks that had begun have finished and are recorded. The work that is left, even of an open superstep, had not
    begun.

    Raised to the caller of the run only. In LangGraph this is a `GraphBubbleUp`, which passes through nodes; here no
    node sees it.

    Attributes:
        reason: the reason that was passed to `request_drain`.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the run was drained ({reason}); it is stored: call again with input None to go on")


class RecordedFailureError(PregelError):
    """A failure read from storage, in place of the exception, which no longer exists.

    Raised to a reader that reconnects to a failed run; given to an error handler if the process ended before the
    handler ran; and held by a `NodeError` in the state. Two with the same type and message are equal.

    Attributes:
        type: the exception's class, qualified by its module unless it is a builtin.
        message: the exception's text.
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
    """The failure of a node.

    An error handler gets it as a parameter annotated `NodeError` or named `error`. Under the failure policy `Collect`,
    a failed task writes it to the state.

    Attributes:
        node: the name of the failed node.
        task_id: the id of the failed task.
        error: the exception. In the state, and in a handler after a crash, a `RecordedFailureError` with the type and
            message of the exception.
    """

    node: str
    task_id: TaskId
    error: Exception


class NodeTimeoutError(PregelError):
    """An attempt at a node exceeded its timeout. `default_retry_on` selects this error.

    Attributes:
        node: the node's name.
        kind: "run" if the attempt took longer than its `run_timeout`; "idle" if it gave no sign of life for its
            `idle_timeout`.
        elapsed: seconds since the attempt's start, or since the last sign of life, without waiting for slots and
            readers.
        timeout: the exceeded limit, in seconds.
        run_timeout: the limit from the attempt's start, in seconds; None for no limit.
        idle_timeout: the limit without a sign of life, in seconds; None for no limit.
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
    """A superstep exceeded the graph's `step_timeout`. Running tasks were cancelled; finished tasks are recorded.

    Attributes:
        step: the number of the superstep.
        timeout: the limit, in seconds.
        unfinished: the names of the nodes that had not finished, in plan order.
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
    """A node counted spending on a budget that the graph does not have.

    Attributes:
        name: the name that was passed to `spend()`.
        known: the names of the graph's budgets.
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
    """The run or thread exceeded a budget or time limit, and the run stopped at a barrier with work left.

    All results are stored. Call again with input None and a larger budget to continue.

    Attributes:
        name: the budget's name; "seconds" for the time limit of a run.
        spent: the amount spent so far, in the budget's unit; for the time limit, in seconds.
        limit: the limit, in the same unit.
        per: "run" or "thread", the scope of the limit.
        step: the number of the last superstep that ran.
        pending: the names of the nodes that would have run next.
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
    """The run that a reader had joined was cancelled by its caller.

    Attributes:
        thread_id: the thread's id.
    """

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        super().__init__(f"the run of thread {thread_id!r} was cancelled; call with input None to go on")


class NodeCancelledError(PregelError):
    """A node raised the event loop's cancellation error although the run was not cancelled.

    Attributes:
        node: the node's name.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        super().__init__(
            f"node {node!r} raised a cancellation of its own: something it awaited was cancelled and it let that "
            "through. Catch it in the node, or raise another exception."
        )


class GraphBubbleUp(BaseException):
    """Base of the exceptions by which a node is left that has neither finished nor failed. Nodes must not catch it."""


class GraphInterrupt(GraphBubbleUp):
    """A node has asked a question, and the run pauses until it is answered.

    Attributes:
        interrupts: the questions; empty if a subgraph stopped at a breakpoint.
    """

    def __init__(self, interrupts: tuple[Interrupt, ...] = ()) -> None:
        self.interrupts = interrupts
        super().__init__(interrupts)


class NodeInterrupt(GraphInterrupt):
    """A node stops the run with a question: `raise NodeInterrupt(value)`. Deprecated: use `interrupt(value)`.

    No answer reaches the node: while it raises this, it asks again. To let it continue, change the state on which it
    decides (`aupdate_state`), and resume.

    Attributes:
        interrupts: the question, without the id that it gets in the run.
    """

    def __init__(self, value: Any) -> None:
        warnings.warn("NodeInterrupt is deprecated: use interrupt()", DeprecationWarning, stacklevel=2)
        super().__init__((Interrupt(value),))


class ParentCommand(GraphBubbleUp):
    """A subgraph ends with commands for an enclosing graph.

    Attributes:
        commands: the commands, in the order of the tasks that returned them.
    """

    def __init__(self, commands: tuple[Command, ...]) -> None:
        self.commands = commands
        super().__init__(commands)
