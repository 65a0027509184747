"""Refuses sets and dicts that would take quadratic time to build, before they are built.

Python compares a new member of a set with the members before it that have the same hash. Hashes of texts and bytes are
random in each process, and those of numbers are not: multiples of 2**61 - 1 all have the hash 0, -1 has that of -2,
powers of two share 61 hashes, and a tuple or a class of such numbers has the same hash as another. 780 KB of the first
kind took 20 seconds. An imported file from an untrusted source may contain that, so the work is bounded when bytes are
read; and when they are written, so that what can be written can be read.

A dict with plain keys needs no such check: of 64-bit numbers at most about 50 share one hash. MessagePack allows maps
with other keys, which this package never writes but msgspec reads. `check_maps` refuses those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final, cast

import msgspec

from . import codes
from .reading import Damaged
from .writing import SCALARS

MOST_PER_MEMBER: Final = 256
"""Number of members with the same hash that each may be compared with, on average. All powers of two below 2**30000,
and all vectors of nine numbers between -2 and 2, have less; 780 KB with this many take a third of a second."""

FEW: Final = 2 * MOST_PER_MEMBER
"""Up to this number of members, the average cannot be exceeded, whatever their hashes are."""

REASON: Final = (
    f"so many of its members have the same hash (each the same as {MOST_PER_MEMBER} others, on average) that making it "
    "takes time that grows with the square of their number"
)

_RANDOMIZED: Final = frozenset({str, bytes})

_list = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_plain_list = msgspec.msgpack.Decoder(list[bool | int | float | str | None]).decode
_ext = msgspec.msgpack.Decoder(msgspec.msgpack.Ext).decode

_SCALARS: Final = frozenset(
    first
    for first in range(256)
    if not (0x80 <= first <= 0x9F or first == 0xC1 or 0xC7 <= first <= 0xC9 or 0xD4 <= first <= 0xD8)
    and not 0xDC <= first <= 0xDF
)
"""First bytes of scalars: of all but arrays, maps and extensions."""

_OPAQUE: Final = frozenset(
    {
        codes.BIG_INT,
        codes.SURROGATES,
        codes.BYTEARRAY,
        codes.COMPLEX,
        codes.DECIMAL,
        codes.UUID,
        codes.PATH,
        codes.ZONE,
        codes.IP,
        codes.UNSET,
    }
)
"""Extensions whose payload is not MessagePack."""

_SHORT: Final = frozenset({codes.DATETIME, codes.TIME})
"""Extensions whose payload is short, and has MessagePack somewhere behind its beginning."""


def collide(members: Collection[object]) -> bool:
    """Return True if a set of these members, or a dict with these keys, takes quadratic time to build.

    Args:
        members: the members or keys.
    """
    if len(members) <= FEW or _RANDOMIZED.issuperset(map(type, members)):
        return False
    most = MOST_PER_MEMBER * len(members)
    others = len(members) - len(set(map(hash, members)))
    if others * (others + 1) // 2 <= most:  # even if all of them share one hash: nearly always
        return False
    return sum(size * (size - 1) // 2 for size in Counter(map(hash, members)).values()) > most


def is_plain_key(key: object) -> bool:
    """Return True if a key may be in an encoded map: a scalar that MessagePack has.

    Args:
        key: the key.
    """
    kind = type(key)
    return kind in SCALARS and (kind is not int or -(2**63) <= cast("int", key) < 2**64)


def check_maps(data: bytes) -> None:
    """Refuse encoded maps of many entries, at any depth, whose keys are not plain.

    Arrays and extensions may share a hash.

    Args:
        data: the encoded value.

    Raises:
        Damaged: the bytes contain such a map.
        msgspec.MsgspecError: the bytes are no value.
    """
    parts = [data]
    while parts:
        part = parts.pop()
        if not _may_hold_many(part):
            continue
        first = part[0]
        if 0x90 <= first <= 0x9F or first in (0xDC, 0xDD):
            try:
                _plain_list(part)
            except msgspec.ValidationError:
                parts += _containers(_list(part))
        elif 0x80 <= first <= 0x8F or first in (0xDE, 0xDF):
            flat = _list(_as_list(part))
            _check_keys(flat[::2])
            parts += _containers(flat[1::2])
        elif 0xC7 <= first <= 0xC9:
            ext = _ext(part)
            if ext.code in _SHORT:
                raise Damaged("a time that is longer than any")
            if ext.code not in _OPAQUE:
                parts.append(bytes(ext.data))


def _containers(raws: list[msgspec.Raw]) -> list[bytes]:
    """Return the raw values that may contain a map of many entries."""
    return [part for raw in raws if len(raw) > FEW and (part := bytes(raw))[0] not in _SCALARS]


def _check_keys(keys: list[msgspec.Raw]) -> None:
    try:
        _plain_list(_header(len(keys)) + b"".join(map(bytes, keys)))
    except msgspec.ValidationError:  # some are bytes, or are no scalars
        if not _SCALARS.issuperset(bytes(key)[0] for key in keys):
            raise Damaged("a dict with keys that are written in another way") from None


def _header(length: int) -> bytes:
    return b"\xdd" + length.to_bytes(4, "big")


def _as_list(part: bytes) -> bytes:
    """Return the bytes of a map as those of a list: key, value, key, value."""
    first = part[0]
    start = 3 if first == 0xDE else 5 if first == 0xDF else 1
    count = int.from_bytes(part[1:start], "big") if start > 1 else first & 0x0F
    return _header(2 * count) + part[start:]


def _may_hold_many(data: bytes) -> bool:
    """Return True if the bytes may contain a map of many entries: a header with a count that fits their length."""
    # A quick filter, and not exact: a string or a float may contain the same bytes. Nearly all values end here, without
    # being parsed twice.
    end = len(data)
    for header, width in ((b"\xde", 2), (b"\xdf", 4)):
        place = data.find(header)
        while place >= 0:
            start = place + 1 + width
            if FEW < int.from_bytes(data[place + 1 : start], "big") <= (end - start) // 2:
                return True
            place = data.find(header, place + 1)
    return False
