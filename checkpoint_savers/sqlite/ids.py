"""Checkpoint ids as they are stored: the 16 bytes that a UUID spells, which sort as the spellings do.

Any other text is no checkpoint's id, and is bound as it is: a query for it finds nothing, as SQLite puts every text
before every blob. One is stored, the empty text, by events that were shown before there was a checkpoint.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

from ..records import is_checkpoint_id

StoredId: TypeAlias = "bytes | str"

AFTER_ALL = b"\xff" * 17
"""Greater than every stored id."""


@lru_cache(maxsize=4096)  # a commit names its checkpoint's, its parent's and its base's, and so does the next
def write_id(text: str) -> StoredId:
    """How an id is stored."""
    return bytes.fromhex(text.replace("-", "")) if is_checkpoint_id(text) else text


def read_id(stored: object) -> str:
    """The id. Raises `ValueError` when none is stored in this way."""
    if stored == "":
        return ""
    if not isinstance(stored, bytes) or len(stored) != 16:
        raise ValueError(f"{stored!r} is none")
    text = stored.hex("-", 2)
    return f"{text[:4]}{text[5:29]}{text[30:34]}{text[35:]}"
