"""Read langchain-core's message chunks: stream them unchanged, and let langchain-core add them up."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from .errors import InvalidSourceError


def messages_module() -> Any:
    """Return `langchain_core.messages` if it has been imported. If it has not, no object of its classes can exist.

    Returns:
        The module, or None.
    """
    return sys.modules.get("langchain_core.messages")


class LangchainReader:
    """Read the chunks of `model.astream()` and the like, or one whole message of a model that does not stream.

    All streamed chunks have the id of the first one, or a made id if the first has none. A chunk with another id is
    copied: langchain-core fills in an id of its own where a provider names the message in its first chunk only.

    Args:
        id: the message's id; None to take the first chunk's, or else a made one.
        name: the speaker's name, for chunks without one; None for none.
        make_id: makes an id if the first chunk has none.

    Attributes:
        provider, model: as in `MessageReader`.
    """

    provider: str | None = None
    model: str | None = None

    def __init__(self, id: str | None, name: str | None, make_id: Callable[[], str]) -> None:
        self._id = id
        self._name = name
        self._make_id = make_id
        self._chunks: list[Any] = []

    def read(self, item: Any) -> Iterable[Any]:
        """Return the item as a chunk with the message's id and name.

        Args:
            item: a chunk or a whole message of langchain-core.

        Returns:
            One chunk.

        Raises:
            InvalidSourceError: the item is not a message, or is not a chunk of the message that came before it.
        """
        langchain = messages_module()
        if not isinstance(item, langchain.BaseMessage):
            raise InvalidSourceError(type(item).__name__, "came among messages in one stream: it is no message")
        if self._chunks and not (
            isinstance(item, langchain.BaseMessageChunk) and isinstance(self._chunks[0], langchain.BaseMessageChunk)
        ):
            raise InvalidSourceError(type(item).__name__, "came after another message, of which it is no chunk")
        self._id = self._id or item.id or self._make_id()
        about = item.response_metadata
        self.provider = self.provider or about.get("model_provider")
        self.model = self.model or about.get("model_name")
        chunk = self._named(item)
        self._chunks.append(chunk)
        return (chunk,)

    def _named(self, message: Any) -> Any:
        changes = {"id": self._id} if message.id != self._id else {}
        if self._name is not None and message.name is None:  # langchain-core drops the names when it adds chunks
            changes["name"] = self._name
        return message.model_copy(update=changes) if changes else message

    def end(self) -> Iterable[Any]:
        """Return no chunk: langchain-core's chunks carry the finish reason and the usage themselves.

        Returns:
            An empty tuple.
        """
        return ()

    def message(self) -> Any:
        """Return the sum of the chunks as a whole message.

        Returns:
            A message of langchain-core.
        """
        langchain = messages_module()
        first, *others = self._chunks
        if not isinstance(first, langchain.BaseMessageChunk):
            return first
        # One sum of all chunks: adding them one by one would copy the message once for each token. Even a sum of one
        # chunk is a copy, so the node does not share an object with the stream's readers.
        return self._named(langchain.message_chunk_to_message(first + others))

    def usage(self) -> Any:
        """Return the sum of the usage of all chunks so far.

        Returns:
            `usage_metadata` of langchain-core; None if no chunk has one.
        """
        return usage_of_chunks(self._chunks)


def usage_of_chunks(chunks: Iterable[Any]) -> Any:
    """Return the sum of the usage of a message's chunks.

    Args:
        chunks: chunks of langchain-core.

    Returns:
        `usage_metadata` of langchain-core; None if no chunk has one.
    """
    counted = [chunk for chunk in chunks if getattr(chunk, "usage_metadata", None) is not None]
    if not counted:
        return None
    first, *others = counted
    return (first + others if others else first).usage_metadata
