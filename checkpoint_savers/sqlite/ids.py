"""Checkpoint ids as they are stored: the 16 bytes of the UUID, which sort as the texts do.

Any other text is not a checkpoint's id and is bound as text: a query for it finds nothing, as SQLite orders every text
before every blob. One such text is stored: the empty one, by events that were shown before the first checkpoint.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

from ..records import is_checkpoint_id

StoredId: TypeAlias = "bytes | str"

AFTER_ALL = b"\xff" * 17
"""Greater than every stored id."""


@lru_cache(maxsize=4096)  # a commit names its checkpoint, its parent and its base, and so does the next commit
def write_id(text: str) -> StoredId:
    """Return the stored form of an id.

    Args:
        text: the id.

    Returns:
        16 bytes; the text itself if it is not a checkpoint id.
    """
    return bytes.fromhex(text.replace("-", "")) if is_checkpoint_id(text) else text


def read_id(stored: object) -> str:
    """Return the id of its stored form.

    Args:
        stored: the column, of any type.

    Returns:
        The id.

    Raises:
        ValueError: it is not the stored form of an id.
    """
    if stored == "":
        return ""
    if not isinstance(stored, bytes) or len(stored) != 16:
        raise ValueError(f"{stored!r} is not the stored form of an id")
    # The text of the UUID, cut out of one hex text: `uuid.UUID` costs several times as much, and a listing reads three
    # ids per row.
    text = stored.hex("-", 2)
    return f"{text[:4]}{text[5:29]}{text[30:34]}{text[35:]}"
