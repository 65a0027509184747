"""Reading events of any make: an SDK's models, plain dicts, or whatever has the same attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast


def get_field(event: Any, name: str) -> Any:
    """A field of an event; None when it has no such field."""
    if isinstance(event, Mapping):
        return cast("Mapping[str, Any]", event).get(name)
    return getattr(event, name, None)


def get_text(event: Any, name: str) -> str:
    """A field that is text; "" when it is missing, or something else."""
    found = get_field(event, name)
    return found if isinstance(found, str) else ""


def to_builtins(value: Any) -> Any:
    """An event as builtin values, without the fields that say nothing."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, Mapping):
        fields: Mapping[Any, Any] = value
    elif isinstance(value, (list, tuple)):
        return [to_builtins(part) for part in cast("Sequence[Any]", value)]
    elif hasattr(value, "model_dump"):
        # Without warnings: SDKs make their models without validation, so that what a server adds does not break them.
        fields = value.model_dump(mode="json", by_alias=True, warnings=False)
    else:
        fields = vars(value)
    return {str(key): to_builtins(part) for key, part in fields.items() if part is not None}
