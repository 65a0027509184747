"""Recognise a stream's provider by the shape of its first item, without importing any SDK."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from .anthropic_messages import AnthropicReader
from .errors import InvalidSourceError
from .fields import get_field
from .langchain_chunks import LangchainReader, messages_module
from .openai_chat import ChatCompletionReader
from .openai_responses import ResponsesReader
from .reader import MessageReader
from .strings import StringReader

_ANTHROPIC: Final = ("message_", "content_block_")

ACCEPTED: Final = (
    "a stream of OpenAI (chat completions or responses), of Anthropic, of langchain-core's message chunks, or strings"
)


def find_reader(item: Any) -> Callable[[str | None, str | None, Callable[[], str]], MessageReader]:
    """Return the reader class for the stream that begins with an item.

    Args:
        item: the stream's first item.

    Returns:
        A callable that makes the reader from an id, a name and an id factory; see `DraftReader`.

    Raises:
        InvalidSourceError: no reader knows items of this shape.
    """
    if isinstance(item, str):
        return StringReader
    langchain = messages_module()
    if langchain is not None and isinstance(item, langchain.BaseMessage):
        return LangchainReader
    if _is_chat_chunk(item):
        return ChatCompletionReader
    kind = get_field(item, "type")
    if isinstance(kind, str):
        if kind == "chunk" and _is_chat_chunk(get_field(item, "chunk")):
            return ChatCompletionReader
        if kind.startswith("response."):
            return ResponsesReader
        if kind.startswith(_ANTHROPIC) or kind == "ping":
            return AnthropicReader
        if kind == "error":
            return AnthropicReader if get_field(item, "error") is not None else ResponsesReader
    about = f"of type {kind!r} " if isinstance(kind, str) else ""
    raise InvalidSourceError(
        type(item).__name__, f"{about}came out of the stream, and begins no message: {ACCEPTED} is taken"
    )


def _is_chat_chunk(item: Any) -> bool:
    if not isinstance(item, Mapping) and isinstance(item, Sequence):
        return False
    choices = get_field(item, "choices")
    return isinstance(choices, (list, tuple)) and (not choices or get_field(choices[0], "delta") is not None)


def check_source(source: Any, *, name: str, also_async: bool) -> None:
    """Check, before anything is read, that a source can be a stream.

    Args:
        source: the argument of the public function.
        name: the public function's name, for error messages.
        also_async: True if the caller can also read async sources.

    Raises:
        InvalidSourceError: the source cannot be a stream, or needs async code. The message says what to do instead.
    """
    kind = type(source)
    if isinstance(source, (str, bytes, bytearray, Mapping)):
        raise InvalidSourceError(kind.__name__, f"is no stream: {name}() takes {ACCEPTED}, as they arrive")
    if hasattr(kind, "__pydantic_fields__") and not any(hasattr(kind, name) for name in ("__aiter__", "__next__")):
        # A whole response, or a model object. pydantic's objects iterate over their fields, so the checks for
        # `__iter__` below would accept them.
        raise InvalidSourceError(
            kind.__name__,
            f"is a whole object and no stream: call the model with stream=True, or by astream(), for {name}()",
        )
    sync = hasattr(source, "__iter__") or hasattr(source, "__enter__")
    if any(hasattr(source, method) for method in ("__aiter__", "__aenter__", "__await__")):
        if also_async or sync:
            return
        raise InvalidSourceError(
            kind.__name__, "is read asynchronously: use `await stream_message(...)` in an async node"
        )
    if not sync:
        raise InvalidSourceError(kind.__name__, f"cannot be iterated: {name}() takes {ACCEPTED}")
