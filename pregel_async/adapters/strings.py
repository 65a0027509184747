"""Strings: each is a token."""

from __future__ import annotations

from typing import Any

from .errors import InvalidSourceError
from .reader import DraftReader


class StringReader(DraftReader):
    """An iterable of strings. It ends when it ends."""

    def consume(self, item: Any) -> None:
        if not isinstance(item, str):
            raise InvalidSourceError(type(item).__name__, "came after strings in one stream: it is no token")
        self.draft.add_text(item)
