"""Messages that grow: chunks added up, so that each event of `messages/partial` has the message as far as it is known.

What is a chunk cannot be told by all messages' shapes. langchain-core's chunks say so by their class, and are added by
their own `+`. Of others, what comes first is the message so far, and what comes after it with the same id is more of
its content; "complete" is then said of those only that have no id, since nothing more can come of them.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

from ..messages import id_of


class Gathering:
    """The messages that are being told, of the superstep that each graph is in."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, ...], tuple[int, dict[Any, Any]]] = {}

    def forget(self) -> None:
        """What was told of the open superstep is void."""
        self._steps.clear()

    def add(self, message: Any, metadata: Any, ns: tuple[str, ...], step: int) -> list[tuple[str, Any]]:
        """The events that tell a message, or a chunk of one: names and data."""
        id = id_of(message)
        if id is None:
            return [("messages/complete", [message])]
        at = self._steps.get(ns)
        if at is None or at[0] != step:
            if not ns:
                self._steps.clear()  # the graphs inside belonged to the superstep that is over
            at = self._steps[ns] = step, {}
        known = at[1]
        first = id not in known
        known[id] = message if first else _added(known[id], message)
        whole = first and _says_that_it_is_whole(message)
        told = [("messages/complete" if whole else "messages/partial", [_message(known[id])])]
        return [("messages/metadata", {str(id): {"metadata": metadata}}), *told] if first else told


def _says_that_it_is_whole(message: Any) -> bool:
    """Of langchain-core's, and no chunk."""
    names = [base.__name__ for base in type(message).__mro__]
    return "BaseMessage" in names and "BaseMessageChunk" not in names


def _added(known: Any, chunk: Any) -> Any:
    if isinstance(chunk, dict):
        before: Any = known.get("content") if isinstance(known, dict) else getattr(known, "content", None)
        return {**(known if isinstance(known, dict) else {}), **chunk, "content": _joined(before, chunk.get("content"))}
    try:
        return known + chunk  # what langchain-core's can
    except TypeError:
        joined: Any = copy.copy(chunk)
        try:
            joined.content = _joined(known.content, chunk.content)
        except (AttributeError, TypeError):
            return chunk  # frozen: what came last is all that can be said
        return joined


def _joined(known: Any, more: Any) -> Any:
    if isinstance(known, str) and isinstance(more, str):
        return known + more
    if isinstance(known, list) and isinstance(more, list):
        return [*known, *more]
    return known if more is None else more


def _message(message: Any) -> Any:
    """The message that langchain-core's chunk is a chunk of; anything else as it is."""
    langchain: Any = sys.modules.get("langchain_core.messages")
    if langchain is not None and isinstance(message, langchain.BaseMessageChunk):
        return langchain.message_chunk_to_message(message)
    return message
