"""The words that users and the runtime share: names, sends, configs, snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypedDict

import msgspec

from checkpoint_savers.records import CheckpointId, CheckpointMetadata, TaskId

__all__ = [
    "END",
    "START",
    "CheckpointId",
    "CheckpointMetadata",
    "OnConflict",
    "PregelTask",
    "RunnableConfig",
    "Send",
    "StateSnapshot",
    "StateUpdate",
    "StreamMode",
    "TaskId",
]

START: Final = "__start__"
"""The virtual node before the first: edges from it say where a graph begins."""

END: Final = "__end__"
"""The virtual node after the last: an edge to it ends that path."""

StreamMode: TypeAlias = Literal["values", "updates", "tasks"]
"""What a stream shows: the state after each superstep, each task's update as it finishes, or each task when it is
planned and when it has ended."""

OnConflict: TypeAlias = Literal["reject", "wait"]
"""What a run does when another owns its thread: raise `ThreadBusyError`, or wait until it is given up or lapses."""


class Send(msgspec.Struct, frozen=True, order=False):
    """One extra run of a node in the next superstep, with an input of its own.

    Returned by a router (alone or in a list), as often as needed: each is a task. The argument is handed to the node as
    it is, isolated like any input; it is not merged with the state.

    Attributes:
        node: the node to run.
        arg: its input.
    """

    node: str
    arg: Any


class StateUpdate(msgspec.Struct, frozen=True, order=False):
    """One update of `abulk_update_state`.

    Attributes:
        values: the update, as the node may return it.
        as_node: the node that is to have made it; END, `INPUT` and `"__copy__"` have a meaning of their own.
        task_id: which of the node's pending tasks; needed when it has several.
    """

    values: Any
    as_node: str | None = None
    task_id: str | None = None


class RunnableConfig(TypedDict, total=False):
    """Settings of one call. Wherever a config is taken, a thread id as a string is taken too.

    Keys:
        configurable: `thread_id`, `checkpoint_ns`, `checkpoint_id`, and keys of the user's own.
        recursion_limit: how many supersteps the run may take; 10 007 by default, the hidden start not counted.
        max_concurrency: how many tasks run at once; all of them by default.
        metadata: scalars that are stored with each checkpoint of the run, and that listings can filter by.
        tags: kept for tracing.
        run_id: the run's id; made up by default.
        run_name: kept for tracing.
    """

    configurable: dict[str, Any]
    recursion_limit: int
    max_concurrency: int | None
    metadata: dict[str, Any]
    tags: list[str]
    run_id: str
    run_name: str


class TaskFailure(msgspec.Struct, frozen=True):
    """A failed task as it is stored. The live exception reached the caller of the run.

    Attributes:
        type: the exception's class, qualified by its module unless it is a builtin.
        message: `str()` of it.
        time: when, in unix seconds.
    """

    type: str
    message: str
    time: float

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


class PregelTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task of the superstep that follows a checkpoint.

    Attributes:
        id: structural; the same on every attempt, replay and fork. Fit as an idempotency key.
        name: the node.
        path: `("__pregel_pull", node)`, or `("__pregel_push", index, False)` for a send.
        error: its failure, if it failed and has not been resumed.
        result: its update, once it has finished; None before.
    """

    id: TaskId
    name: str
    path: tuple[str | int, ...]
    error: TaskFailure | None = None
    result: Any = None


class StateSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A thread's state at a superstep's boundary.

    Attributes:
        values: the graph's output channels.
        next: names of the tasks that have yet to run; empty when the thread has finished.
        config: addresses this checkpoint; pass it back to read or resume from here.
        metadata: source, step, parents, run_id and the caller's own; None for a thread with nothing stored.
        created_at: ISO 8601, UTC; None for a thread with nothing stored.
        parent_config: addresses the checkpoint before; None for the first.
        tasks: sends by index, then the triggered nodes by name.
        error: why the superstep after this checkpoint could not be folded, if it could not.
    """

    values: Any
    next: tuple[str, ...]
    config: RunnableConfig
    metadata: CheckpointMetadata | None = None
    created_at: str | None = None
    parent_config: RunnableConfig | None = None
    tasks: tuple[PregelTask, ...] = ()
    error: TaskFailure | None = None


Config: TypeAlias = RunnableConfig | Mapping[str, Any] | str
"""What is accepted as a config."""

Names: TypeAlias = str | Sequence[str]
"""One channel (bare values), or several (mappings)."""
