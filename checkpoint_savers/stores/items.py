"""Encode items as rows, and decode rows.

A row's frame is sealed and repeats namespace and key: a damaged row, or a row under the wrong key, is never returned as
an item.
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
from .ops import Item, StoreNamespace
from .port import Row

ItemT = TypeVar("ItemT", bound=Item)

_FILTER: Final = "a search's filter"

_ADVICE: Final = "Put the item again, or restore it from a backup"


def frame_of(namespace: StoreNamespace, key: str, value: object, address: tuple[bytes, bytes], codec: Codec) -> bytes:
    """Encode an item's frame: the value is copied now.

    Args:
        namespace: for error messages.
        key: for error messages.
        value: what the user passed as value.
        address: the bytes of namespace and key.
        codec: encodes the value.

    Returns:
        The sealed frame.

    Raises:
        UnstorableItemError: the value, or something in it, cannot be stored.
        TypeError: the value is not a dict.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"an item's value is a dict, or None to delete it, not {value!r}")
    try:
        data = codec.encode_held(value if isinstance(value, dict) else dict(value), channel="an item's value")
    except UnstorableValueError as error:
        raise UnstorableItemError(namespace, key, error.path, error.reason) from error.__cause__
    return seal(_head(*address) + data)


def item_of(row: Row, codec: Codec, kind: type[ItemT]) -> ItemT:
    """Decode the item of a row.

    Args:
        row: as the database returned it: of any types.
        codec: decodes the value.
        kind: `Item` or `SearchItem`.

    Returns:
        The item.

    Raises:
        CorruptCheckpointError: the row is damaged, or another item's.
        StoredTypeChangedError: the class of an object in the value does not accept its stored state. Also an
            `UpcastError` or a `TypeVersionError`, which are subclasses.
        UnknownTypeError: the codec does not know a type in the value.
        UnsupportedFormatError: a later version wrote the row.
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
    # The seal proves that the frame is whole, not that it belongs to this key: swapped rows are detected here.
    if body[: len(head)] != head:
        raise CorruptCheckpointError(where, "it is another item's", _ADVICE)
    try:
        value = codec.decode(body[len(head) :], channel=where)
    except UnknownTypeError as error:
        raise UnknownTypeError(where, error.tag) from None
    except StoredTypeChangedError as error:
        raise error.located(where) from error.__cause__
    except CorruptCheckpointError as error:
        raise CorruptCheckpointError(where, error.reason, error.advice) from error.__cause__
    if not isinstance(value, dict):
        raise CorruptCheckpointError(where, f"its value is no dict but {type(value).__name__}", _ADVICE)
    return kind(value=value, key=key, namespace=namespace, created_at=created_at, updated_at=updated_at)


def namespace_of(data: object) -> StoreNamespace:
    """Decode a namespace column.

    Args:
        data: the column, of any type.

    Returns:
        The namespace.

    Raises:
        CorruptCheckpointError: it is not a namespace's bytes.
    """
    try:
        return unpack(cast("bytes", data))
    except (ValueError, AttributeError, TypeError) as error:
        raise CorruptCheckpointError("a stored namespace", f"{data!r} is none ({error})") from error


def compile_row_filter(filter: Mapping[str, Any], codec: Codec) -> tuple[bytes, Callable[[Row], bool]]:
    """Capture a filter, and compile it for rows.

    An unreadable row matches every filter: the search then raises the row's error instead of omitting it silently.

    Args:
        filter: what the user passed; it may be changed afterwards.
        codec: copies the filter by encoding and decoding it.

    Returns:
        The encoded filter, which identifies it, and a function that returns True if a row's item matches.

    Raises:
        UnstorableValueError: it has a value that no item can have.
        TypeError, ValueError: it is not a valid filter.
    """
    if not isinstance(filter, Mapping):
        raise TypeError(f"a filter is a dict, not {filter!r}")
    data = codec.encode_held(filter if isinstance(filter, dict) else dict(filter), channel=_FILTER)
    # Compiled from the decoded copy, not from the caller's dict: the caller may change that while the search waits. And
    # both sides of a comparison have gone through the codec, so they have the same types.
    check = compile_filter(cast("dict[str, Any]", codec.decode(data, channel=_FILTER)))

    def accepts(row: Row) -> bool:
        try:
            return check(item_of(row, codec, Item).value)
        except CheckpointError:
            return True

    return data, accepts


def error_of(row: Row, codec: Codec) -> CheckpointError | None:
    """Return the error that reading a row raises; None if the row can be read.

    Args:
        row: as the database returned it.
        codec: decodes the value.
    """
    try:
        item_of(row, codec, Item)
    except CheckpointError as error:
        return error
    return None


def _head(space: bytes, name: bytes) -> bytes:
    return b"".join((space, name, b"\0"))


def _where(row: Row) -> str:
    try:
        return f"item {row.key.decode()!r} of namespace {unpack(row.namespace)!r}"
    except (ValueError, AttributeError, TypeError):
        return f"item {row.key!r} of namespace {row.namespace!r}"
