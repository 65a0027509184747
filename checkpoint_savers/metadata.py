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
    """Return True if all entries of a filter are equal in the metadata. A bool is not a number here, at any depth."""
    return not filter or all(key in metadata and _equal(metadata[key], wanted) for key, wanted in filter.items())


def _equal(found: Any, wanted: Any) -> bool:
    # Python calls [True] and [1] equal, so containers are compared element by element.
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(_equal(found[key], wanted[key]) for key in found)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_equal, found, wanted))
    return bool(found == wanted) and isinstance(found, bool) is isinstance(wanted, bool)
