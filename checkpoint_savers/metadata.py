"""A checkpoint's metadata as text, the same in every saver: JSON, so that people and databases can read it."""

from __future__ import annotations

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
