"""Items to rows and back.

A row's frame is sealed, and holds namespace and key beside the value: a row of which a part is damaged, or that stands
where it was not written, is never taken for an item.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast

import msgspec

from ..codec import Codec, seal, unseal
from ..errors import (
    CheckpointError,
    CorruptCheckpointError,
    StoredTypeChangedError,
    UnknownTypeError,
    UnstorableItemError,
    UnstorableValueError,
)
from .filters import compile_filter
from .names import unpack
from .ops import Item, Namespace
from .port import Row

ItemT = TypeVar("ItemT", bound=Item)

_FILTER: Final = "a search's filter"

_ADVICE: Final = "Put the item again, or restore it from a backup"


def frame_of(namespace: Namespace, key: str, value: object, address: tuple[bytes, bytes], codec: Codec) -> bytes:
    """The frame of an item. What it holds of the value is a copy, made now.

    Raises:
        UnstorableItemError: the value, or something in it, cannot be stored.
        TypeError: the value is no dict.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"an item's value is a dict, or None to delete it, not {value!r}")
    try:
        data = codec.encode_held(value if isinstance(value, dict) else dict(value), channel="an item's value")
    except UnstorableValueError as error:
        raise UnstorableItemError(namespace, key, error.path, error.reason) from error.__cause__
    return seal(_head(*address) + data)


def item_of(row: Row, codec: Codec, kind: type[ItemT]) -> ItemT:
    """The item of a row.

    Raises:
        CorruptCheckpointError: the row is damaged, or another item's.
        StoredTypeChangedError: the class of an object in the value does not take it.
        UnknownTypeError: the codec does not know a type in the value.
        UnsupportedFormatError: a later version has written it.
    """
    where = _where(row)
    try:
        space, name, created, updated, _, frame = msgspec.convert(
            tuple(row), tuple[bytes, bytes, float, float, float | None, bytes], builtin_types=(bytes,)
        )
        namespace, key = unpack(space), name.decode()
        created_at, updated_at = (datetime.fromtimestamp(each, UTC) for each in (created, updated))
    except (ValueError, OverflowError, OSError) as error:  # msgspec's ValidationError is a ValueError
        raise CorruptCheckpointError(where, f"its row is damaged ({error})", _ADVICE) from error
    body, head = unseal(frame, where), _head(space, name)
    if body[: len(head)] != head:
        raise CorruptCheckpointError(where, "it is another item's", _ADVICE)
    try:
        value = codec.decode(body[len(head) :], channel=where)
    except UnknownTypeError as error:
        raise UnknownTypeError(where, error.tag) from None
    except StoredTypeChangedError as error:
        facts = (error.tag, error.type_name, error.field, error.reason, error.advice)
        raise StoredTypeChangedError(where, *facts) from error.__cause__
    except CorruptCheckpointError as error:
        raise CorruptCheckpointError(where, error.reason, error.advice) from error.__cause__
    if not isinstance(value, dict):
        raise CorruptCheckpointError(where, f"its value is no dict but {type(value).__name__}", _ADVICE)
    return kind(value=value, key=key, namespace=namespace, created_at=created_at, updated_at=updated_at)


def namespace_of(data: object) -> Namespace:
    """The namespace of a row's column. Raises CorruptCheckpointError."""
    try:
        return unpack(cast("bytes", data))
    except (ValueError, AttributeError, TypeError) as error:
        raise CorruptCheckpointError("a stored namespace", f"{data!r} is none ({error})") from error


def compile_row_filter(filter: Mapping[str, Any], codec: Codec) -> tuple[bytes, Callable[[Row], bool]]:
    """What a filter is known by, and what tells whether a row's item matches it, whatever becomes of the filter.

    A row that cannot be read matches everything: so whoever gets to it is told, and nobody takes it for one that does
    not match.

    Raises:
        UnstorableValueError: it has a value that no item can have.
        TypeError, ValueError: it is no filter.
    """
    if not isinstance(filter, Mapping):
        raise TypeError(f"a filter is a dict, not {filter!r}")
    data = codec.encode_held(filter if isinstance(filter, dict) else dict(filter), channel=_FILTER)
    check = compile_filter(cast("dict[str, Any]", codec.decode(data, channel=_FILTER)))

    def accepts(row: Row) -> bool:
        try:
            return check(item_of(row, codec, Item).value)
        except CheckpointError:
            return True

    return data, accepts


def _head(space: bytes, name: bytes) -> bytes:
    return b"".join((space, name, b"\0"))


def _where(row: Row) -> str:
    try:
        return f"item {row.key.decode()!r} of namespace {unpack(row.namespace)!r}"
    except (ValueError, AttributeError, TypeError):
        return f"item {row.key!r} of namespace {row.namespace!r}"
