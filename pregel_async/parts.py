"""The chunks of a stream with `version="v2"`: dicts with a `type`, on which type checkers narrow.

    async for part in graph.astream(input, stream_mode=["updates", "custom"], version="v2"):
        if part["type"] == "updates":
            ...  # part["data"] is a dict here

Every part has `type`, `data`, and

    ns         the graph of the event: `()` for the called graph, `("node:task_id", ...)` for a subgraph
    seq        the part's number, from 1, over all parts that the call asked for. A gap means dropped parts
    step       the number of the superstep of that graph
    committed  the last superstep of the called graph that is stored, as are all before it; None while none is
    cursor     the place at which to reconnect: `astream(None, thread, after=cursor)`; None without `keep_events`
    task       the task of the event, as `StreamTask`; None for an event of a graph, and without `keep_events`

In the log of a thread (`RunService.follow_thread`) a part also has

    run_id     the run
    timestamp  when the event was published, in unix seconds

and its `seq` and `cursor` are the same for all readers: `seq` grows with each event of the thread, with gaps.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeAlias, TypedDict, TypeVar

import msgspec

from .types import Interrupt, RunnableConfig

__all__ = [
    "CheckpointPayload",
    "CheckpointStreamPart",
    "CheckpointTask",
    "CustomStreamPart",
    "DebugPayload",
    "DebugStreamPart",
    "ErrorPayload",
    "ErrorStreamPart",
    "GraphOutput",
    "MessagesStreamPart",
    "RestartedPayload",
    "RestartedStreamPart",
    "RunEndedPart",
    "RunEndedPayload",
    "RunStartedPart",
    "RunStartedPayload",
    "StreamPart",
    "StreamTask",
    "TaskPayload",
    "TaskResultPayload",
    "TasksStreamPart",
    "ThreadPart",
    "UpdatesStreamPart",
    "ValuesStreamPart",
]

OutputT = TypeVar("OutputT")


class GraphOutput(msgspec.Struct, Generic[OutputT], frozen=True):
    """The result of `ainvoke(..., version="v2")`.

    Attributes:
        value: the output. Once the run has finished, an object of the output schema's class if that is a dataclass,
            Struct or pydantic model.
        interrupts: the open questions if nodes have asked; else empty.
    """

    value: OutputT
    interrupts: tuple[Interrupt, ...] = ()


class TaskPayload(TypedDict):
    """The payload of "tasks" for a task that is planned.

    Attributes:
        id: the task's id.
        name: the node's name.
        input: the input that the node will get; None if it cannot be computed, and the task will fail.
        triggers: the names of the channels that triggered the task; `("__pregel_push",)` for a send.
    """

    id: str
    name: str
    input: Any
    triggers: tuple[str, ...]


class TaskResultPayload(TypedDict):
    """The payload of "tasks" for a task that has ended.

    Attributes:
        id: the task's id.
        name: the node's name.
        error: the exception, or its text if the event was read from storage; None if the task did not fail.
        result: the task's update.
        interrupts: the questions of the task, each `{"value", "id"}`.
    """

    id: str
    name: str
    error: BaseException | str | None
    result: Any
    interrupts: list[dict[str, Any]]


class _CheckpointTask(TypedDict):
    id: str
    name: str
    interrupts: tuple[dict[str, Any], ...]
    state: RunnableConfig | None


class CheckpointTask(_CheckpointTask, total=False):
    """A task of the superstep after a checkpoint, in `CheckpointPayload`."""

    error: str
    result: Any


class CheckpointPayload(TypedDict):
    """The payload of "checkpoints": a stored checkpoint, as `aget_state` shows it before the next superstep runs."""

    config: RunnableConfig
    parent_config: RunnableConfig | None
    values: Any
    metadata: dict[str, Any]
    next: list[str]
    tasks: list[CheckpointTask]


class DebugPayload(TypedDict):
    """The payload of "debug": an event of "checkpoints" or "tasks" with its superstep and time.

    Attributes:
        step: the number of the superstep.
        timestamp: the time of the event, ISO 8601 in UTC.
        type: the kind of event: "checkpoint", "task" (planned) or "task_result" (ended).
        payload: the payload that "checkpoints" or "tasks" has for the event.
    """

    step: int
    timestamp: str
    type: Literal["checkpoint", "task", "task_result"]
    payload: CheckpointPayload | TaskPayload | TaskResultPayload


class ErrorPayload(TypedDict):
    """The payload of "error": the type and text of the run's exception, which the next read raises."""

    error: str
    message: str


class StreamTask(TypedDict):
    """The task that a part belongs to. The part is final once the task's result is recorded.

    Called tasks are tasks of their own, and so are the tasks of a subgraph that stores its state.

    Attributes:
        id: the task's id; with the suffix ":routers" for events of its routers, once its own writes are recorded.
        ns: the namespace of the task's graph.
        name: the node's name.
    """

    id: str
    ns: tuple[str, ...]
    name: str


class RestartedPayload(TypedDict):
    """The payload of "superstep_restarted": tasks run again, so their parts after the cursor `after` are void.

    Attributes:
        step: the number of the open superstep of the called graph.
        checkpoint_id: the id of the checkpoint on which the superstep was planned.
        after: a cursor. Cursors compare as strings.
        tasks: the tasks that run again; None if all parts after `after` are void.
    """

    step: int
    checkpoint_id: str
    after: str
    tasks: list[StreamTask] | None


class RunStartedPayload(TypedDict):
    """The payload of "run_started": the id of the run whose parts follow."""

    run_id: str


class RunEndedPayload(TypedDict):
    """The payload of "run_ended".

    Attributes:
        run_id: the run.
        status: a final status of `pregel_async.service.RunStatus`.
        error: why it failed, as `{"type", "message"}`; None if it did not.
        rolled_back: its checkpoints were deleted: all its parts are void.
    """

    run_id: str
    status: str
    error: dict[str, str] | None
    rolled_back: bool


class _LogFields(TypedDict, total=False):
    run_id: str
    timestamp: float


class _PartFields(_LogFields):
    ns: tuple[str, ...]
    seq: int
    step: int
    committed: int | None
    cursor: str | None
    task: StreamTask | None


class ValuesStreamPart(_PartFields):
    """The state after a superstep, and the open questions if nodes have asked."""

    type: Literal["values"]
    data: Any
    interrupts: tuple[Interrupt, ...]


class UpdatesStreamPart(_PartFields):
    """`{node: update}` of a task that has finished, or `{"__interrupt__": (Interrupt, ...)}`."""

    type: Literal["updates"]
    data: dict[str, Any]


class MessagesStreamPart(_PartFields):
    """`(message, metadata)`: a message or a chunk of one, and the node, task and thread that it comes from."""

    type: Literal["messages"]
    data: tuple[Any, dict[str, Any]]


class CustomStreamPart(_PartFields):
    """A value that a node passed to its stream writer."""

    type: Literal["custom"]
    data: Any


class TasksStreamPart(_PartFields):
    """A task is planned, or has ended."""

    type: Literal["tasks"]
    data: TaskPayload | TaskResultPayload


class CheckpointStreamPart(_PartFields):
    """A checkpoint has been stored."""

    type: Literal["checkpoints"]
    data: CheckpointPayload


class DebugStreamPart(_PartFields):
    """An event of "checkpoints" or "tasks", with its superstep and time."""

    type: Literal["debug"]
    data: DebugPayload


class ErrorStreamPart(_PartFields):
    """The run has failed. This is the last part; the next read raises the exception."""

    type: Literal["error"]
    data: ErrorPayload


class RestartedStreamPart(_PartFields):
    """A reader has reconnected to an interrupted run, and tasks run again."""

    type: Literal["superstep_restarted"]
    data: RestartedPayload


class RunStartedPart(_PartFields):
    """In a thread's log: a run begins."""

    type: Literal["run_started"]
    data: RunStartedPayload


class RunEndedPart(_PartFields):
    """In a thread's log: the run that began last has ended."""

    type: Literal["run_ended"]
    data: RunEndedPayload


StreamPart: TypeAlias = (
    ValuesStreamPart
    | UpdatesStreamPart
    | MessagesStreamPart
    | CustomStreamPart
    | TasksStreamPart
    | CheckpointStreamPart
    | DebugStreamPart
    | ErrorStreamPart
    | RestartedStreamPart
)
"""A part of any type."""

ThreadPart: TypeAlias = StreamPart | RunStartedPart | RunEndedPart
"""An event of a thread's log; see `RunService.follow_thread`."""
