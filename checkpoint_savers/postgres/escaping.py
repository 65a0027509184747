"""Texts as PostgreSQL keeps them. It cannot hold NUL; ids of this package may have it.

U+0000 becomes U+0001 U+0001, and U+0001 becomes U+0001 U+0002. So texts that have neither, which are practically all,
are stored as they are and can be read in any client; different texts stay different; and as no character's spelling
begins another's, and the spellings sort as the characters do, stored texts sort as texts do.
"""

from __future__ import annotations

import re

from ..errors import CorruptCheckpointError

_SPECIAL = re.compile("[\x00\x01]")
_SPELLED = re.compile("\x01(.?)", re.DOTALL)
_CHARACTERS = {"\x01": "\x00", "\x02": "\x01"}


def escape(text: str) -> str:
    """A text as it is bound."""
    if _SPECIAL.search(text) is None:
        return text
    return text.replace("\x01", "\x01\x02").replace("\x00", "\x01\x01")


def escape_or_none(text: str | None) -> str | None:
    return None if text is None else escape(text)


def unescape(text: str) -> str:
    """A stored text as it was.

    Raises:
        CorruptCheckpointError: no saver has stored it.
    """
    return text if "\x01" not in text else _SPELLED.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    known = _CHARACTERS.get(found[1])
    if known is None:
        raise CorruptCheckpointError(repr(found.string), "an id holds a character that no saver stores like this")
    return known
