"""How channels treat an `Overwrite`: with a fold it replaces the fold, otherwise it is unwrapped as a normal write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from ..errors import ErrorCode, InvalidUpdateError
from ..types import Overwrite
from .abc import MISSING, BaseChannel

T = TypeVar("T")

_OVERWRITE_TYPES: Final = (Overwrite, dict)
_DICT_KEY: Final = "__overwrite__"


def unwrap_overwrite(value: T) -> T:
    """Return the value of an `Overwrite`, and any other value as it is: the write of a channel without a fold.

    Args:
        value: the write.

    Returns:
        The value to store.
    """
    # Dicts that spell an overwrite are data here: without a fold, an overwrite and a plain write do the same.
    if isinstance(value, Overwrite):
        unwrapped: T = value.value
        return unwrapped
    return value


def find_overwrite(channel: BaseChannel[Any, Any, Any], values: Sequence[object], *, accept_dicts: bool = True) -> Any:
    """Return the value of the overwrite among a superstep's writes.

    Args:
        channel: the channel, for the message.
        values: the writes.
        accept_dicts: True also accepts a dict in the form of an overwrite.

    Returns:
        The value that replaces the channel's value and all other writes; `MISSING` if there is no overwrite.

    Raises:
        InvalidUpdateError: there are two overwrites.
    """
    found: Any = MISSING
    for value in values:
        if not isinstance(value, _OVERWRITE_TYPES if accept_dicts else Overwrite):
            continue
        inside = overwrite_value(value)
        if inside is MISSING:
            continue
        if found is not MISSING:
            raise InvalidUpdateError(
                f"channel {channel.key!r} was overwritten twice in one superstep, and can hold only one of the values. "
                "Let one node overwrite it.",
                channel=channel.key,
                code=ErrorCode.INVALID_CONCURRENT_GRAPH_UPDATE,
            )
        found = inside
    return found


def overwrite_value(value: object) -> Any:
    """Return the value of an `Overwrite`, or of a dict in one of its two forms.

    A dict is an overwrite only if it has no other keys; with one more key it is data.

    Args:
        value: the write.

    Returns:
        The value in the overwrite; `MISSING` for any other write.
    """
    if isinstance(value, Overwrite):
        return value.value
    if not isinstance(value, Mapping):
        return MISSING
    if len(value) == 1:
        return value.get(_DICT_KEY, MISSING)
    if len(value) == 2 and "value" in value:
        mark = value.get("type")
        if isinstance(mark, str) and mark == _DICT_KEY:  # an array would compare element by element, not to a bool
            return value["value"]
    return MISSING
