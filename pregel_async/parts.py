"""What a stream gives with `version="v2"`: dicts that say of what type they are, so that a type checker narrows on it.

    async for part in graph.astream(input, stream_mode=["updates", "custom"], version="v2"):
        if part["type"] == "updates":
            ...  # part["data"] is a dict here

Every part has, beside its `type` and its `data`:

    ns         whose it is: `()` for the graph that was called, `("node:task", ...)` for the graphs inside
    seq        1, 2, 3, ... over all that the call was asked to show. A gap says what a policy has dropped
    step       the superstep of that graph
    committed  the superstep of the called graph up to which everything is on disk; None while nothing is
    cursor     where to come back to: `astream(None, thread, after=cursor)`; None where no events are kept
    task       the task whose part it is; None for a part of the graph, and where no events are kept
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
    "StreamPart",
    "StreamTask",
    "TaskPayload",
    "TaskResultPayload",
    "TasksStreamPart",
    "UpdatesStreamPart",
    "ValuesStreamPart",
]

OutputT = TypeVar("OutputT")


class GraphOutput(msgspec.Struct, Generic[OutputT], frozen=True):
    """What `ainvoke(..., version="v2")` returns.

    Attributes:
        value: the output, as the output schema's own class where it is a dataclass, Struct or pydantic model.
        interrupts: the open questions, when the run has paused to ask.
    """

    value: OutputT
    interrupts: tuple[Interrupt, ...] = ()


class TaskPayload(TypedDict):
    """A task that is about to run."""

    id: str
    name: str
    input: Any
    triggers: tuple[str, ...]


class TaskResultPayload(TypedDict):
    """A task that has ended. `error` is the live exception, or its text where the event was kept."""

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
    """A task of the superstep that follows a checkpoint."""

    error: str
    result: Any


class CheckpointPayload(TypedDict):
    """A checkpoint that has been stored: what `aget_state` would say of it before the next superstep."""

    config: RunnableConfig
    parent_config: RunnableConfig | None
    values: Any
    metadata: dict[str, Any]
    next: list[str]
    tasks: list[CheckpointTask]


class DebugPayload(TypedDict):
    """An event of `checkpoints` or `tasks` with its superstep and the time, ISO 8601 in UTC."""

    step: int
    timestamp: str
    type: Literal["checkpoint", "task", "task_result"]
    payload: CheckpointPayload | TaskPayload | TaskResultPayload


class ErrorPayload(TypedDict):
    """Why the run has failed: the exception's type and text. The exception itself is raised next."""

    error: str
    message: str


class StreamTask(TypedDict):
    """The task that a part belongs to: its result is recorded as one, and its parts are final from then on.

    `ns` is the namespace of its graph. A task that a node calls is one of its own, and so are the tasks of a graph
    inside, if that graph stores its state. `id` ends with ":routers" for what the routers of a task show once the
    task's own writes are recorded.
    """

    id: str
    ns: tuple[str, ...]
    name: str


class RestartedPayload(TypedDict):
    """Tasks run again: what was shown of them after the place `after` is void.

    Attributes:
        step: the open superstep of the called graph.
        checkpoint_id: the checkpoint on which it was planned.
        after: a cursor. Cursors compare as text.
        tasks: those that run again; None if everything that was shown after `after` is void.
    """

    step: int
    checkpoint_id: str
    after: str
    tasks: list[StreamTask] | None


class _PartFields(TypedDict):
    ns: tuple[str, ...]
    seq: int
    step: int
    committed: int | None
    cursor: str | None
    task: StreamTask | None


class ValuesStreamPart(_PartFields):
    """The state after a superstep; with the open questions, when the run has paused to ask."""

    type: Literal["values"]
    data: Any
    interrupts: tuple[Interrupt, ...]


class UpdatesStreamPart(_PartFields):
    """`{node: update}` of a task that has finished, or `{"__interrupt__": (...)}`."""

    type: Literal["updates"]
    data: dict[str, Any]


class MessagesStreamPart(_PartFields):
    """A message, or a chunk of one, and where it comes from."""

    type: Literal["messages"]
    data: tuple[Any, dict[str, Any]]


class CustomStreamPart(_PartFields):
    """What a node wrote to the stream."""

    type: Literal["custom"]
    data: Any


class TasksStreamPart(_PartFields):
    """A task is about to run, or has ended."""

    type: Literal["tasks"]
    data: TaskPayload | TaskResultPayload


class CheckpointStreamPart(_PartFields):
    """A checkpoint has been stored."""

    type: Literal["checkpoints"]
    data: CheckpointPayload


class DebugStreamPart(_PartFields):
    """An event of `checkpoints` or `tasks`, dated."""

    type: Literal["debug"]
    data: DebugPayload


class ErrorStreamPart(_PartFields):
    """The run has failed: the last part; the exception follows."""

    type: Literal["error"]
    data: ErrorPayload


class RestartedStreamPart(_PartFields):
    """Sent to a reader that has reconnected: these tasks run again."""

    type: Literal["superstep_restarted"]
    data: RestartedPayload


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
"""Any of them."""
