"""A frame: bytes that say by themselves whether they are whole, and in which format they are.

    magic (2) | format (1) | length of the body (8) | checksum (4) | body

The header is the same in every format, so that any version can tell a newer frame (say so, leave it alone) from a
damaged one. The checksum covers magic, format, length and body: damage to the format byte is damage, and never looks
like a frame from the future.
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
"""Format number -> what makes a body of the current format out of a body of that format. Entries are never removed."""


def seal(body: bytes) -> bytes:
    """The frame of a body, in the current format."""
    start = _CHECKED.pack(MAGIC, FORMAT, len(body))
    return b"".join((start, crc32(body, crc32(start)).to_bytes(4, "big"), body))


def unseal(frame: bytes | memoryview, where: str) -> memoryview:
    """The body of a frame, as a view of it: nothing is copied.

    Args:
        where: what is being read, for the error.

    Raises:
        CorruptCheckpointError: the frame is damaged, truncated or too long, or never was one.
        UnsupportedFormatError: the frame is whole, in a format newer than this version.
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
