"""Where the states of graphs inside graphs are stored, and how they are found again.

A namespace is the path of tasks to the graph: `node:task`, then `|` and the next. Each of its checkpoints says in its
metadata (`parents`) on which checkpoints of the graphs around it it was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Final

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.history import walk
from checkpoint_savers.records import CALLER, FOLLOWED, CheckpointId, CheckpointRow, Header, TaskId

from ..._core.task import Task
from ...types import RunnableConfig

NO_TASK: Final = TaskId("")
"""Where no task is meant."""


def namespace_of(ns: str, task: Task, *, keeps: bool, number: int = 0) -> str:
    """Where the state of a graph is stored that a task runs: by node and task; of one that keeps it, by node alone.

    Args:
        ns: the namespace of the task's own graph.
        number: which of the graphs that the task runs it is.
    """
    inside = f"{task.node.name}:{task.id}"
    inside = f"{ns}|{inside}" if ns else inside
    if keeps:
        inside = "|".join(part.partition(":")[0] for part in inside.split("|"))
    return f"{inside}|{number}" if number else inside


def ids_in(ns: str, caller: str) -> str:
    """What ids of tasks are made in where a namespace outlives the task that runs its graph: each such task has its
    own, so that no question is taken for one of a run that was discarded."""
    return f"{ns}@{caller}" if caller else ns


async def has_child(saver: BaseCheckpointSaver, thread_id: str, ns: str, at: CheckpointId) -> bool:
    """Whether a checkpoint is no branch's tip."""
    async with aclosing(walk(saver, thread_id, ns)) as headers:
        async for header, _, _ in headers:
            if header.parent_id == at:
                return True
            if header.checkpoint_id <= at:
                return header.checkpoint_id == at and FOLLOWED in header.metadata
    return False


async def made_on(
    saver: BaseCheckpointSaver,
    thread_id: str,
    ns: str,
    outer_ns: str,
    at: CheckpointId,
    *,
    caller: TaskId = NO_TASK,
) -> tuple[CheckpointId, bool] | None:
    """The newest checkpoint of a namespace that was made on a checkpoint of the graph around it, and whether it is the
    namespace's head; None when there is none.

    Args:
        caller: the task that made it, if the namespace does not say; else `NO_TASK`.
    """
    chain = await saver.read(thread_id, ns)
    if chain is None:
        return None
    if was_made_on(chain.rows[-1], outer_ns, at, caller):
        return chain.head, True
    async with aclosing(walk(saver, thread_id, ns)) as headers:
        async for header, _, _ in headers:
            if was_made_on(header, outer_ns, at, caller):
                return header.checkpoint_id, False
            if header.checkpoint_id < at:
                break
    return None


def was_made_on(row: CheckpointRow | Header, outer_ns: str, at: CheckpointId, caller: TaskId) -> bool:
    """Whether a checkpoint was made on that one of the graph around it, by that task."""
    return parents_of(row).get(outer_ns) == at and (not caller or row.metadata.get(CALLER) == caller)


def parents_of(row: CheckpointRow | Header) -> dict[str, str]:
    """Namespace -> checkpoint, of the graphs around the one whose checkpoint this is."""
    found = row.metadata.get("parents")
    return found if isinstance(found, dict) else {}


def config_of(
    thread_id: str, ns: str, checkpoint_id: CheckpointId | None, parents: Mapping[str, str] = {}
) -> RunnableConfig:
    """The config that addresses a checkpoint; without an id, the namespace's head."""
    known: dict[str, Any] = {"thread_id": thread_id, "checkpoint_ns": ns}
    if checkpoint_id:
        known["checkpoint_id"] = checkpoint_id
        if ns:
            known["checkpoint_map"] = {**parents, ns: checkpoint_id}
    return {"configurable": known}
