"""The debug mode: name the node that changed its input in place.

Such a change reaches nobody (see `_core.isolation`), so that it is either idle or a mistake: the node meant to return
it.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from .._core.isolation import own
from .._core.task import Task
from ..errors import InPlaceChangeWarning


_ABSENT = object()


def watch(task: Task, value: Any) -> Callable[[], None]:
    """Look at a node's input before it runs; call what is returned when it has."""
    before = _parts(value)

    def compare() -> None:
        after = _parts(value)
        # `own` gives back the very objects that were handed out where nothing was changed in them.
        keys = {**before, **after}
        changed = [key for key in keys if before.get(key, _ABSENT) is not after.get(key, _ABSENT)]
        for key in changed:
            warnings.warn(
                f"node {task.node.name!r} changed {key!r} of its input in place (superstep {task.step}, task {task.id}). "
                "Nobody sees that change: return it as an update.",
                InPlaceChangeWarning,
                stacklevel=2,
            )

    return compare


def _parts(value: Any) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return {key: own(item) for key, item in dict.items(value)} if isinstance(value, dict) else {}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: own(getattr(value, field.name, None)) for field in dataclasses.fields(value)}
    names = getattr(value, "__struct_fields__", None)
    if names is not None:
        return {name: own(getattr(value, name)) for name in names}
    return {"the value": own(value)} if isinstance(value, list) else {}
