"""Read strings: each is a token."""

from __future__ import annotations

from typing import Any

from .errors import InvalidSourceError
from .reader import DraftReader


class StringReader(DraftReader):
    """Read an iterable of strings. The message is complete when the iterable is exhausted."""

    def consume(self, item: Any) -> None:
        """Append one string to the message's content.

        Args:
            item: the next token.

        Raises:
            InvalidSourceError: the item is not a string.
        """
        if not isinstance(item, str):
            raise InvalidSourceError(type(item).__name__, "came after strings in one stream: it is no token")
        self.draft.add_text(item)
