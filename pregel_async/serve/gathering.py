"""Messages that grow: chunks added up, so that each event of `messages/partial` has the message as far as it is known.

A chunk says that it is one: by its type, "AIMessageChunk" (those of `pregel_async.adapters`), or by its class
(langchain-core's, which are added by their own `+`). What does not is a whole message; unless more comes with its id,
which is then added to its content. The chunk that says how its message has ended completes it.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import msgspec

from ..messages import id_of

PARTIAL, COMPLETE = "messages/partial", "messages/complete"

TEXTS = ("content", "reasoning", "refusal")
"""The keys of a chunk in which its message goes on."""


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
            return [(COMPLETE, [message])]
        at = self._steps.get(ns)
        if at is None or at[0] != step:
            if not ns:
                self._steps.clear()  # the graphs inside belonged to the superstep that is over
            at = self._steps[ns] = step, {}
        known = at[1]
        first = id not in known
        known[id] = message if first else _added(known[id], message)
        if _field(message, "type") == "AIMessageChunk":
            ended = _field(message, "finish_reason") or _field(message, "chunk_position") == "last"
        else:
            ended = first
        name = COMPLETE if ended else PARTIAL
        told = [(name, [_shown(known[id], whole=name == COMPLETE)])]
        return [("messages/metadata", {str(id): {"metadata": metadata}}), *told] if first else told


def _field(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, dict) else getattr(message, name, None)


def _added(known: Any, chunk: Any) -> Any:
    if isinstance(chunk, dict):
        return _added_dict(known if isinstance(known, dict) else {}, chunk)
    try:
        return known + chunk  # what langchain-core's can
    except TypeError:
        joined: Any = copy.copy(chunk)
        try:
            joined.content = _joined(_field(known, "content"), chunk.content)
        except (AttributeError, TypeError):
            return chunk  # frozen: what came last is all that can be said
        return joined


def _added_dict(known: dict[str, Any], chunk: dict[str, Any]) -> dict[str, Any]:
    added = {**known, **chunk}
    for name in TEXTS:
        if name in known and name in chunk:
            added[name] = _joined(known[name], chunk[name])
    if "tool_call_chunks" in chunk:
        calls = {call["index"]: call for call in known.get("tool_call_chunks", ())}
        for call in chunk["tool_call_chunks"]:
            before = calls.get(call["index"], {})
            calls[call["index"]] = {**before, **call, "args": before.get("args", "") + call.get("args", "")}
        added["tool_call_chunks"] = [calls[index] for index in sorted(calls)]
    return added


def _joined(known: Any, more: Any) -> Any:
    if isinstance(known, str) and isinstance(more, str):
        return known + more
    if isinstance(known, list) and isinstance(more, list):
        return [*known, *more]
    return known if more is None else more


def _shown(message: Any, *, whole: bool) -> Any:
    """The message that a chunk is a chunk of, or sums of chunks are; anything else as it is."""
    if isinstance(message, dict):
        shown = {key: value for key, value in message.items() if key != "type" or value != "AIMessageChunk"}
        return _with_calls(shown) if whole and "tool_call_chunks" in shown else shown
    langchain: Any = sys.modules.get("langchain_core.messages")
    if langchain is not None and isinstance(message, langchain.BaseMessageChunk):
        return langchain.message_chunk_to_message(message)
    return message


def _with_calls(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose tool calls are there whole: as `pregel_async.adapters` returns them."""
    calls: list[Any] = []
    invalid: list[Any] = []
    for chunk in message.pop("tool_call_chunks"):
        call = {"id": chunk.get("id", ""), "name": chunk.get("name", "")}
        try:
            args = msgspec.json.decode(chunk["args"] if chunk["args"].strip() else "{}", type=dict[str, Any])
            calls.append({"type": "tool_call", **call, "args": args})
        except (msgspec.MsgspecError, ValueError) as error:
            wrong = f"the arguments are no JSON object: {error}"
            invalid.append({"type": "invalid_tool_call", **call, "args": chunk["args"], "error": wrong})
    found = {"tool_calls": calls, "invalid_tool_calls": invalid}
    return {**message, **{name: each for name, each in found.items() if each}}
