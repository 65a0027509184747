"""What is read of a thread, as JSON values that each later version must read, too."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


async def describe_thread(graph: Any, thread: Any) -> dict[str, Any]:
    """Return the state with its tasks in full, and for each checkpoint of the history its id and a digest."""
    history = [_snapshot(one) async for one in graph.aget_state_history(thread)]
    return {
        "state": _snapshot(await graph.aget_state(thread)),
        "history": [[one["id"], digest(one)] for one in history],
    }


def digest(description: Any) -> str:
    text = json.dumps(description, ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def describe(value: Any) -> Any:
    """Describe a value with its types: a tuple differs from a list, and 1 from 1.0."""
    # Without a field that questions had not yet when the first files were written.
    return repr(value).replace(", response_schema=None)", ")")


def _snapshot(one: Any) -> dict[str, Any]:
    return {
        "id": _id(one.config),
        "parent": _id(one.parent_config),
        "values": _values(one.values),
        "next": list(one.next),
        "created_at": one.created_at,
        "metadata": one.metadata,
        "tasks": [_task(task) for task in one.tasks],
    }


def _id(config: Any) -> Any:
    return None if config is None else config["configurable"].get("checkpoint_id")


def _values(values: Any) -> Any:
    return {key: describe(value) for key, value in values.items()} if isinstance(values, Mapping) else describe(values)


def _task(task: Any) -> dict[str, Any]:
    return {
        "id": task.id,
        "name": task.name,
        "error": None if task.error is None else str(task.error),
        # The hidden start has no record: its result is made of the input when it is read.
        "result": describe(None if task.name == "__start__" else task.result),
        "interrupts": [[one.id, describe(one.value)] for one in getattr(task, "interrupts", ())],
    }
