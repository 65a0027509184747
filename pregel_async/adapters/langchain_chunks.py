"""langchain-core's chunks of messages: streamed as they are, and summed by langchain-core."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from .errors import InvalidSourceError


def messages_module() -> Any:
    """`langchain_core.messages`, if somebody has imported it; None otherwise. Its objects come from nowhere else."""
    return sys.modules.get("langchain_core.messages")


class LangchainReader:
    """Chunks of `model.astream()` and the like; or one whole message, which models give that do not stream.

    All chunks have the id of the first one, made up if it has none. Where a chunk has another or none, a copy is
    streamed: langchain-core fills in an id of its own where a provider names the message in its first chunk only.
    """

    provider: str | None = None
    model: str | None = None

    def __init__(self, id: str | None, name: str | None, make_id: Callable[[], str]) -> None:
        self._id = id
        self._name = name
        self._make_id = make_id
        self._chunks: list[Any] = []

    def read(self, item: Any) -> Iterable[Any]:
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
        if self._name is not None and message.name is None:  # a sum has no name, whatever its parts are called
            changes["name"] = self._name
        return message.model_copy(update=changes) if changes else message

    def end(self) -> Iterable[Any]:
        return ()

    def message(self) -> Any:
        langchain = messages_module()
        first, *others = self._chunks
        if not isinstance(first, langchain.BaseMessageChunk):
            return first
        # All at once: a sum of two at a time copies the message for each of its tokens. A sum of one is a copy, so
        # that what was streamed is not what the node goes on with.
        return self._named(langchain.message_chunk_to_message(first + others))
