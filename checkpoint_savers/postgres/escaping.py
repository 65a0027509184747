"""Escape texts for PostgreSQL, which cannot store NUL; ids of this package may contain it.

U+0000 becomes U+0001 U+0001, and U+0001 becomes U+0001 U+0002. Texts without either, which is practically all, are
stored as they are and can be read in any client. Different texts stay different. No character's escape is a prefix of
another's, and escapes sort as the characters do, so stored texts sort as the texts do.
"""

from __future__ import annotations

import re

from ..errors import CorruptCheckpointError

_SPECIAL = re.compile("[\x00\x01]")
_SPELLED = re.compile("\x01(.?)", re.DOTALL)
_CHARACTERS = {"\x01": "\x00", "\x02": "\x01"}


def escape(text: str) -> str:
    """Return a text as it is stored.

    Args:
        text: the text.

    Returns:
        The text without NUL.
    """
    if _SPECIAL.search(text) is None:
        return text
    # U+0001 first: the escape of NUL contains it.
    return text.replace("\x01", "\x01\x02").replace("\x00", "\x01\x01")


def escape_or_none(text: str | None) -> str | None:
    """Return a text as it is stored, or None.

    Args:
        text: the text, or None.

    Returns:
        What `escape` returns, or None.
    """
    return None if text is None else escape(text)


def unescape(text: str) -> str:
    """Return the text of its stored form.

    Args:
        text: as it is stored.

    Returns:
        The text.

    Raises:
        CorruptCheckpointError: no saver has stored it.
    """
    return text if "\x01" not in text else _SPELLED.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    known = _CHARACTERS.get(found[1])
    if known is None:
        raise CorruptCheckpointError(repr(found.string), "an id holds a character that no saver stores like this")
    return known
