"""Checkpoint ids as they are stored: 16 bytes each, in the order of the texts.

An id that is a UUID in its canonical spelling (36 characters, lower-case) is stored as the 16 bytes that it spells.
Ids may be any text, though, and must come in the order of their code points, in whatever company. So any other text is
stored beside the UUID that stands before it:

    a canonical UUID                        the 16 bytes
    a text after at least one of them       the 16 bytes of the greatest that is smaller, and the text in UTF-8
    a text before all of them               the text itself

Why this keeps the order. SQLite puts every text before every blob, texts in the order of their UTF-8, which is that of
their code points, and blobs byte by byte. Of two ids in the third row that is all. One of the third row is smaller than
all others, in both orders. Of two others, call `f` and `g` the greatest UUIDs that are not greater than them. Where
`f < g`, the first id is smaller than `g` (else its greatest would be `g`), and `g` is not greater than the second; and
16 different bytes decide, as canonical spellings are in the order of what they spell. Where `f == g`, the UUID itself
is the smallest and is stored as a prefix of the others, which follow in the order of their texts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

StoredId: TypeAlias = "bytes | str"

AFTER_ALL = b"\xff" * 17
"""Greater than every stored id: no UTF-8 has this byte."""

_DASHES = frozenset({8, 13, 18, 23})
_DIGITS = frozenset("0123456789abcdef")


@lru_cache(maxsize=4096)  # a commit names its checkpoint's, its parent's and its base's, and so does the next
def write_id(text: str) -> StoredId:
    """How an id is stored. Raises `UnicodeEncodeError` of half a surrogate pair, which no database takes."""
    if len(text) == 36:
        try:
            spelled = bytes.fromhex(text.replace("-", ""))
        except ValueError:
            pass
        else:
            if _spell(spelled) == text:
                return spelled
    before = _uuid_before(text)
    return text if before is None else before + text.encode()


def read_id(stored: object) -> str:
    """The id. Raises `ValueError` when none is stored in this way."""
    text = ""
    if isinstance(stored, bytes):
        if len(stored) == 16:
            return _spell(stored)
        text = stored[16:].decode()
    elif isinstance(stored, str):
        text = stored
    if write_id(text) != stored:
        raise ValueError(f"{stored!r} is none")
    return text


def _spell(data: bytes) -> str:
    text = data.hex("-", 2)
    return f"{text[:4]}{text[5:29]}{text[30:34]}{text[35:]}"


def _uuid_before(text: str) -> bytes | None:
    """The bytes of the greatest canonical UUID that is smaller than a text, which is none itself."""
    digits = ""
    for place in range(36):
        allowed = "-" if place in _DASHES else "0123456789abcdef"
        found = text[place : place + 1]
        if found and found in allowed:
            digits += found if found in _DIGITS else ""
            continue
        smaller = [one for one in allowed if one < found]
        if not smaller:  # all that begin as the text does so far are greater than it
            number = int(digits or "0", 16) - 1
            return None if number < 0 else _filled(f"{number:0{len(digits)}x}")
        return _filled(digits + smaller[-1].strip("-"))
    return _filled(digits)


def _filled(digits: str) -> bytes:
    """The greatest with these first digits."""
    return bytes.fromhex(digits.ljust(32, "f"))
