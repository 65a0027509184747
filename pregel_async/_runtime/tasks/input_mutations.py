"""Debug mode: warn about nodes that change their input in place.

No other code sees such a change (see `_core.isolation`), so it is useless, or the node meant to return it as an update.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

from ..._core.isolation import CopiedDict, CopiedList
from ..._core.ownership import own
from ..._core.task import Task
from ...errors import InPlaceChangeWarning

_ABSENT = object()


def watch_input(task: Task, value: Any) -> Callable[[], None]:
    """Take a copy of a node's input, and return a function that warns of changes since. Call it after the node.

    Args:
        task: the task, for the message.
        value: the input.
    """
    before = _parts(value)

    def compare() -> None:
        after = _parts(value)
        keys = {**before, **after}
        changed = [key for key in keys if not _same(before.get(key, _ABSENT), after.get(key, _ABSENT))]
        for key in changed:
            warnings.warn(
                f"node {task.node.name!r} changed {key!r} of its input in place (superstep {task.step}, "
                f"task {task.id}). No other code sees that change: return it as an update.",
                InPlaceChangeWarning,
                stacklevel=2,
            )

    return compare


def _same(before: Any, after: Any) -> bool:
    # `own` returns the same object for a container that was not changed. Other values, such as sets, are copies, so
    # they are compared.
    return before is after or bool(type(before) is type(after) and before == after)


def _parts(value: Any) -> dict[Any, Any]:
    if isinstance(value, dict):
        return {key: _owned(item) for key, item in dict.items(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: own(getattr(value, field.name, None)) for field in dataclasses.fields(value)}
    if hasattr(value, "__pydantic_fields_set__"):
        return {name: own(item) for name, item in value.__dict__.items()}
    if names := getattr(value, "__struct_fields__", ()):
        return {name: own(getattr(value, name)) for name in names}
    return {"the value": own(value)} if isinstance(value, list) else {}


def _owned(item: Any) -> Any:
    return own(item) if isinstance(item, (CopiedDict, CopiedList)) else item
