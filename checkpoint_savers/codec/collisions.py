"""Sets and dicts that would take quadratic time to build, refused before they are built.

Python compares a new member of a set with the members before it that have the same hash. Hashes of texts and bytes are
drawn anew in every process, and those of numbers are not: multiples of 2**61 - 1 all have the hash 0, -1 has that of
-2, powers of two share 61 hashes, and a tuple or a class of such numbers has the same hash as another. 780 KB of the
first kind took 20 seconds. A file that somebody sends for an import may hold that, so the work is bounded when bytes
are read; and when they are written, so that what can be written can be read.

A dict with plain keys needs no look at its hashes: of numbers of 64 bits at most about 50 share one. MessagePack knows
maps with other keys, which this package never writes and msgspec reads. `check_maps` refuses those.
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
"""How many members with the same hash each may be compared with, on average. All powers of two below 2**30000, and all
vectors of nine numbers between -2 and 2, have less; 780 KB take a third of a second at that."""

FEW: Final = 2 * MOST_PER_MEMBER
"""So many members cannot have more, whatever their hashes are."""

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
"""Extensions whose payload is no MessagePack."""

_SHORT: Final = frozenset({codes.DATETIME, codes.TIME})
"""Extensions whose payload has MessagePack somewhere behind its beginning, and is short."""


def collide(members: Collection[object]) -> bool:
    """Return True if a set of these members, or a dict of these keys, takes quadratic time to build."""
    if len(members) <= FEW or _RANDOMIZED.issuperset(map(type, members)):
        return False
    most = MOST_PER_MEMBER * len(members)
    others = len(members) - len(set(map(hash, members)))
    if others * (others + 1) // 2 <= most:  # even if all of them share one hash: nearly always
        return False
    return sum(size * (size - 1) // 2 for size in Counter(map(hash, members)).values()) > most


def is_plain_key(key: object) -> bool:
    """Return True if a key is one of those of an encoded dict: a scalar that MessagePack has."""
    kind = type(key)
    return kind in SCALARS and (kind is not int or -(2**63) <= cast("int", key) < 2**64)


def check_maps(data: bytes) -> None:
    """Refuse encoded dicts of many keys, at any depth, that are not plain: arrays and extensions may share a hash.

    Raises:
        Damaged: there is one.
        msgspec.MsgspecError: these are the bytes of no value.
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
    """Those that may hold a map of many entries."""
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
    """The bytes of a dict as those of a list: key, value, key, value."""
    first = part[0]
    start = 3 if first == 0xDE else 5 if first == 0xDF else 1
    count = int.from_bytes(part[1:start], "big") if start > 1 else first & 0x0F
    return _header(2 * count) + part[start:]


def _may_hold_many(data: bytes) -> bool:
    """Return True if some bytes could be the header of a map of many entries, and that many bytes follow. It is quick
    and not exact: a string or a float may look like that."""
    end = len(data)
    for header, width in ((b"\xde", 2), (b"\xdf", 4)):
        place = data.find(header)
        while place >= 0:
            start = place + 1 + width
            if FEW < int.from_bytes(data[place + 1 : start], "big") <= (end - start) // 2:
                return True
            place = data.find(header, place + 1)
    return False
