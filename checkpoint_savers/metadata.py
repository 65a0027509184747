"""A checkpoint's metadata as text, the same in every saver: JSON, so that people and databases can read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .errors import CorruptCheckpointError

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def write_metadata(metadata: dict[str, Any]) -> str:
    """The text of JSON values."""
    return _encode(metadata).decode()


def read_metadata(text: str | bytes, where: str) -> dict[str, Any]:
    """A new dict. Raises `CorruptCheckpointError`."""
    try:
        return _decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptCheckpointError(where, f"its metadata cannot be read ({error})") from error


def metadata_matches(metadata: Mapping[str, Any], filter: Mapping[str, Any] | None) -> bool:
    """Whether all entries of a filter are equal in the metadata. A bool is not a number here."""
    if not filter:
        return True
    for key, wanted in filter.items():
        if key not in metadata:
            return False
        found = metadata[key]
        if found != wanted or isinstance(found, bool) is not isinstance(wanted, bool):
            return False
    return True
