"""A frame: bytes that carry their own format number, length and checksum.

    magic (2) | format (1) | length of the body (8) | checksum (4) | body

The header is the same in every format, so that any version can distinguish a newer frame, which it must leave alone,
from a damaged one. The checksum covers magic, format, length and body: a damaged format byte is reported as damage, and
never looks like a frame of a later version.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final
from zlib import crc32

from ..errors import CorruptCheckpointError, UnsupportedFormatError
from ..records import FORMAT

MAGIC: Final = b"\xc1F"
"""0xc1 is the one byte that no MessagePack value has, so a bare value is never taken for a frame."""

_CHECKED = Struct(">2sBQ")
_HEADER = Struct(">2sBQI")
_SUMMED: Final = _CHECKED.size
_START: Final = _HEADER.size


def _same(body: memoryview) -> memoryview:
    return body


_READERS: dict[int, Callable[[memoryview], memoryview]] = {1: _same}
"""Format number -> function from a body of that format to one of the current format. Entries are never removed."""


def seal(body: bytes) -> bytes:
    """Return the frame of a body, in the current format.

    Args:
        body: the bytes to seal.
    """
    start = _CHECKED.pack(MAGIC, FORMAT, len(body))
    return start + crc32(body, crc32(start)).to_bytes(4, "big") + body


def unseal(frame: bytes | memoryview, where: str) -> memoryview:
    """Return the body of a frame, as a view: nothing is copied.

    Args:
        frame: the frame.
        where: what is being read, for the error.

    Raises:
        CorruptCheckpointError: the frame is damaged, truncated or too long, or the bytes are no frame.
        UnsupportedFormatError: the frame is intact, in a format newer than this version supports.
    """
    try:
        view = memoryview(frame) if type(frame) is bytes else memoryview(frame).cast("B")
    except TypeError as error:  # a database can hand out a str or a number where a blob was
        raise CorruptCheckpointError(where, f"not bytes but {type(frame).__name__}") from error
    if len(view) < _START:
        raise CorruptCheckpointError(where, f"{len(view)} bytes are too few for a frame: it was truncated")
    magic, number, length, checksum = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise CorruptCheckpointError(where, "it does not start like a frame: it is foreign or damaged")
    body = view[_START:]
    if len(body) != length:
        raise CorruptCheckpointError(where, f"its header announces {length} bytes, and {len(body)} follow")
    if crc32(body, crc32(view[:_SUMMED])) != checksum:
        raise CorruptCheckpointError(where, "its checksum is wrong: it is damaged")
    read = _READERS.get(number)
    if read is not None:
        return read(body)
    if number > FORMAT:
        raise UnsupportedFormatError(where, number, FORMAT)
    raise CorruptCheckpointError(where, f"there never was a format {number}")
