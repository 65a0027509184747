"""What a reader is: it turns the items of one provider's stream into chunks and a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from .draft import MessageDraft


class MessageReader(Protocol):
    """One message of one provider. Nothing in it waits: items in, chunks out.

    Attributes:
        provider: for metadata, LangChain's `ls_provider`; None where it is not known.
        model: for metadata: what answers; None until known.
    """

    provider: str | None
    model: str | None

    def read(self, item: Any) -> Iterable[Any]:
        """The chunks that an item makes: none, one or several.

        Raises:
            InvalidSourceError: the item belongs to no message of this provider, or to a second one.
            StreamFailedError: the item says that the provider has failed.
        """
        ...

    def end(self) -> Iterable[Any]:
        """The stream is at its end: the chunks that are left.

        Raises:
            StreamFailedError: the message is not.
        """
        ...

    def message(self) -> Any:
        """The whole message, after `end`."""
        ...


class DraftReader:
    """What the readers share that make dicts: they fill a `MessageDraft` item by item.

    Args:
        id: the message's, instead of what the provider calls it; None for that.
        name: who speaks.
        make: makes an id, for when the provider has given none by the time that there is a chunk.
    """

    provider: str | None = None
    model: str | None = None

    def __init__(self, id: str | None, name: str | None, make_id: Callable[[], str]) -> None:
        self.draft = MessageDraft(id, name, make_id)

    def read(self, item: Any) -> Iterable[Any]:
        self.consume(item)
        chunk = self.draft.take_chunk()
        return () if chunk is None else (chunk,)

    def consume(self, item: Any) -> None:
        """Put what an item says into the draft."""
        raise NotImplementedError

    def end(self) -> Iterable[Any]:
        chunk = self.draft.final_chunk()
        return () if chunk is None else (chunk,)

    def message(self) -> Any:
        return self.draft.message()
