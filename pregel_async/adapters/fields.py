"""Read events of any form: an SDK's models, plain dicts, or objects with the same attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast


def get_field(event: Any, name: str) -> Any:
    """Return a field of an event.

    Args:
        event: a mapping, or an object with attributes.
        name: the key or attribute.

    Returns:
        The value, or None if the event has no such field.
    """
    if isinstance(event, dict):  # first: the question whether something else is a Mapping takes longer than the rest
        return cast("dict[str, Any]", event).get(name)
    if isinstance(event, Mapping):
        return cast("Mapping[str, Any]", event).get(name)
    return getattr(event, name, None)


def get_text(event: Any, name: str) -> str:
    """Return a text field of an event.

    Args:
        event: a mapping, or an object with attributes.
        name: the key or attribute.

    Returns:
        The text, or "" if the field is missing or is not a string.
    """
    found = get_field(event, name)
    return found if isinstance(found, str) else ""


def to_builtins(value: Any) -> Any:
    """Convert an event to builtin values, without the fields that are None.

    Args:
        value: an SDK's model, a container, or a scalar.

    Returns:
        Dicts, lists, strings, numbers and booleans.
    """
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, Mapping):
        fields: Mapping[Any, Any] = value
    elif isinstance(value, (list, tuple)):
        return [to_builtins(part) for part in cast("Sequence[Any]", value)]
    elif hasattr(value, "model_dump"):
        # SDKs make their models without validation, so fields that a server adds would only cause warnings here.
        fields = value.model_dump(mode="json", by_alias=True, warnings=False)
    else:
        fields = vars(value)
    return {str(key): to_builtins(part) for key, part in fields.items() if part is not None}
