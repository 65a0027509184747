"""The interface of readers, which turn the items of one provider's stream into chunks and a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from .draft import MessageDraft


class MessageReader(Protocol):
    """Read one message of one provider. A reader does no I/O and never waits: items come in, chunks go out.

    Attributes:
        provider: the provider, for LangChain's metadata key `ls_provider`; None if unknown.
        model: the model that answers, for `ls_model_name`; None until known.
    """

    provider: str | None
    model: str | None

    def read(self, item: Any) -> Iterable[Any]:
        """Read the next item of the stream.

        Args:
            item: an item, in the order in which the stream yields them.

        Returns:
            The chunks to stream: none, one or several.

        Raises:
            InvalidSourceError: the item belongs to no message of this provider, or to a second one.
            StreamFailedError: the item says that the provider has failed.
        """
        ...

    def end(self) -> Iterable[Any]:
        """Finish the message: the stream is exhausted.

        Returns:
            The remaining chunks to stream.

        Raises:
            StreamFailedError: the message is incomplete.
        """
        ...

    def message(self) -> Any:
        """Return the whole message. Call `end` first.

        Returns:
            A `Message`, or a message of langchain-core.
        """
        ...

    def usage(self) -> Any:
        """Return what the provider has reported about tokens so far, also of a message that is incomplete.

        Returns:
            A usage in a form that `read_usage` reads; None if the provider has reported nothing.
        """
        ...


class DraftReader:
    """Base class of the readers whose messages are dicts: they fill a `MessageDraft` item by item.

    Args:
        id: the message's id; None to take the provider's, or else a made one.
        name: the speaker's name; None for none.
        make_id: makes an id if the provider has sent none when the first chunk is due.

    Attributes:
        provider, model: as in `MessageReader`.
        draft: the message so far.
    """

    provider: str | None = None
    model: str | None = None

    def __init__(self, id: str | None, name: str | None, make_id: Callable[[], str]) -> None:
        self.draft = MessageDraft(id, name, make_id)

    def read(self, item: Any) -> Iterable[Any]:
        """Add an item to the draft, and return the new pieces as a chunk.

        Args:
            item: an item, in the order in which the stream yields them.

        Returns:
            No chunk or one.

        Raises:
            InvalidSourceError: the item belongs to no message of this provider, or to a second one.
            StreamFailedError: the item says that the provider has failed.
        """
        self.consume(item)
        chunk = self.draft.take_chunk()
        return () if chunk is None else (chunk,)

    def consume(self, item: Any) -> None:
        """Add an item's contents to the draft. Subclasses implement this.

        Args:
            item: an item, in the order in which the stream yields them.

        Raises:
            InvalidSourceError: the item belongs to no message of this provider, or to a second one.
            StreamFailedError: the item says that the provider has failed.
        """
        raise NotImplementedError

    def end(self) -> Iterable[Any]:
        """Return the last chunk, with the finish reason and the usage. Subclasses check that the message is complete.

        Returns:
            No chunk or one.

        Raises:
            StreamFailedError: the message is incomplete.
        """
        chunk = self.draft.final_chunk()
        return () if chunk is None else (chunk,)

    def message(self) -> Any:
        """Return the whole message.

        Returns:
            The message.
        """
        return self.draft.message()

    def usage(self) -> Any:
        """Return what the provider has reported about tokens so far.

        Returns:
            The usage; None if the provider has reported nothing.
        """
        return self.draft.usage
