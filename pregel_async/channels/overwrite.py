"""An `Overwrite`, as channels take it: in place of the fold where there is one, else for the value in it."""

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
    """What a write brings to a channel that has no fold.

    A dict is never taken for an overwrite here. It could be anybody's data, and nothing is gained by the spelling.
    """
    if isinstance(value, Overwrite):
        unwrapped: T = value.value
        return unwrapped
    return value


def find_overwrite(channel: BaseChannel[Any, Any, Any], values: Sequence[object], *, accept_dicts: bool = True) -> Any:
    """The value that one of a superstep's writes puts in place of all others; `MISSING` when there is none.

    Args:
        accept_dicts: dicts that spell an overwrite count as well.

    Raises:
        InvalidUpdateError: there are two, and it would be left to chance which one stays.
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
    """What is in an overwrite, however it is spelled; `MISSING` for any other value.

    A dict stands for an overwrite only if it says nothing else: with one more key it is data.
    """
    if isinstance(value, Overwrite):
        return value.value
    if not isinstance(value, Mapping):
        return MISSING
    if len(value) == 1:
        return value.get(_DICT_KEY, MISSING)
    if len(value) == 2 and "value" in value:
        mark = value.get("type")
        if isinstance(mark, str) and mark == _DICT_KEY:  # an array compares element by element
            return value["value"]
    return MISSING
