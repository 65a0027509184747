"""Add up the chunks of messages, so that each event `messages/partial` has the message so far.

A chunk is recognised by its type, "AIMessageChunk" (those of `pregel_async.adapters`), or by its class
(langchain-core's chunks, which are added by their own `+`). Anything else is a whole message, unless more comes with
the same id: that is then added to the message's content. A chunk that says how its message ended completes the message.
If no chunk does, the end of the superstep completes it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import msgspec

from ..messages import id_of

PARTIAL, COMPLETE = "messages/partial", "messages/complete"

UnencodedEvent: TypeAlias = tuple[str, Any]
"""The name of an event and its data, before they are encoded."""

TEXT_KEYS = ("content", "reasoning", "refusal")
"""The keys of a chunk whose values are appended to those of the message."""


class _PartialMessage(msgspec.Struct):
    """The sum of a message's chunks so far.

    Attributes:
        message: the sum.
        step: the superstep of the message's graph.
        due_step: the superstep of the called graph after which the message is complete at the latest; None if unknown.
        task: the id of the task that sends the message; None if no events are kept.
        is_open: True if no `messages/complete` was made for the message.
    """

    message: Any
    step: int
    due_step: int | None
    task: str | None = None
    is_open: bool = True


class MessageAssembler:
    """Adds up the messages of the superstep that each graph is in."""

    def __init__(self) -> None:
        self._partials: dict[tuple[tuple[str, ...], Any], _PartialMessage] = {}
        self._step: int | None = None  # the superstep of the called graph's newest part

    def discard(self, tasks: Collection[str] | None = None) -> None:
        """Drop messages that are void, without completing them.

        Args:
            tasks: the ids of the tasks whose messages are void; None for all messages.
        """
        for key, partial in list(self._partials.items()):
            if tasks is None or partial.task in tasks:
                del self._partials[key]

    def complete_all(self) -> list[UnencodedEvent]:
        """Complete all messages, because their supersteps are over.

        Returns:
            One `messages/complete` for each message that had none, its name with the graph's namespace.
        """
        return self._complete(lambda ns, partial: True)

    def complete_finished(self, part: Any) -> list[UnencodedEvent]:
        """Complete the messages of supersteps that are over, as a part of the stream shows.

        Args:
            part: any part of the stream, before its own chunk is added.

        Returns:
            One `messages/complete` for each message that had none, its name with the graph's namespace.
        """
        ns, step, is_message = part["ns"], part["step"], part["type"] == "messages"
        # A part with a cursor may be read back from storage. Its `committed` then says how far storage is now, and not
        # how far it was when the part was made: that would complete messages too early.
        committed = part["committed"] if part["cursor"] is None else None
        if not ns:
            self._step = step
            for partial in self._partials.values():
                partial.due_step = step if partial.due_step is None else partial.due_step

        def is_over(namespace: tuple[str, ...], partial: _PartialMessage) -> bool:
            if namespace == ns and (step > partial.step or (is_message and step != partial.step)):
                return True
            if partial.due_step is None:
                return False
            return (not ns and step > partial.due_step) or (committed is not None and committed >= partial.due_step)

        return self._complete(is_over)

    def _complete(self, is_over: Callable[[tuple[str, ...], _PartialMessage], bool]) -> list[UnencodedEvent]:
        """Remove the messages of supersteps that are over, and return the events that complete them."""
        finished = {key: partial for key, partial in self._partials.items() if is_over(key[0], partial)}
        for key in finished:
            del self._partials[key]
        return [
            (COMPLETE + namespace_suffix(ns), [_as_message(partial.message, is_complete=True)])
            for (ns, _), partial in finished.items()
            if partial.is_open
        ]

    def add(self, part: Any) -> list[UnencodedEvent]:
        """Add a message, or a chunk of one.

        Args:
            part: a part of type `messages`.

        Returns:
            The event with the message so far; for a new message with an id, after its `messages/metadata`. Names are
            without namespace.
        """
        (message, metadata), ns, step, committed = part["data"], part["ns"], part["step"], part["committed"]
        id = id_of(message)
        if id is None:
            return [(COMPLETE, [message])]
        partial = self._partials.get((ns, id))
        first = partial is None
        if partial is None:
            parent_step = self._step if committed is None else committed
            due_step = step if not ns else None if parent_step is None else parent_step + 1
            partial = self._partials[ns, id] = _PartialMessage(
                message, step, due_step, None if part["task"] is None else part["task"]["id"]
            )
        else:
            partial.message = _merged(partial.message, message)
        if _field(message, "type") == "AIMessageChunk":
            partial.is_open = not (_field(message, "finish_reason") or _field(message, "chunk_position") == "last")
        else:
            partial.is_open = not first
        name = PARTIAL if partial.is_open else COMPLETE
        events = [(name, [_as_message(partial.message, is_complete=not partial.is_open)])]
        return [("messages/metadata", {str(id): {"metadata": metadata}}), *events] if first else events


def namespace_suffix(ns: tuple[str, ...]) -> str:
    """Return what follows an event's name, to say which graph the event belongs to.

    Args:
        ns: the graph's namespace, relative to the called graph; empty for the called graph.

    Returns:
        "|" and the name, for each level of subgraphs.
    """
    return "".join(f"|{name}" for name in ns)


def _field(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, dict) else getattr(message, name, None)


def _merged(known: Any, chunk: Any) -> Any:
    """Return the sum of a message so far and a chunk of it."""
    if isinstance(chunk, dict):
        return _merged_dict(known if isinstance(known, dict) else {}, chunk)
    try:
        return known + chunk  # chunks of langchain-core can be added
    except TypeError:
        joined: Any = copy.copy(chunk)
        try:
            joined.content = _concatenated(_field(known, "content"), chunk.content)
        except (AttributeError, TypeError):
            return chunk  # a frozen class, or one without content: the newest chunk is all there is
        return joined


def _merged_dict(known: dict[str, Any], chunk: dict[str, Any]) -> dict[str, Any]:
    added = {**known, **chunk}
    for name in TEXT_KEYS:
        if name in known and name in chunk:
            added[name] = _concatenated(known[name], chunk[name])
    if "tool_call_chunks" in chunk:
        calls = {call["index"]: call for call in known.get("tool_call_chunks", ())}
        for call in chunk["tool_call_chunks"]:
            before = calls.get(call["index"], {})
            calls[call["index"]] = {**before, **call, "args": before.get("args", "") + call.get("args", "")}
        added["tool_call_chunks"] = [calls[index] for index in sorted(calls)]
    return added


def _concatenated(known: Any, more: Any) -> Any:
    """Return two pieces of content in one: texts or lists joined, and else the newer one that is not None."""
    if isinstance(known, str) and isinstance(more, str):
        return known + more
    if isinstance(known, list) and isinstance(more, list):
        return [*known, *more]
    return known if more is None else more


def _as_message(message: Any, *, is_complete: bool) -> Any:
    """Return a chunk, or a sum of chunks, as a message; anything else unchanged.

    Args:
        is_complete: the message is whole, so that the arguments of its tool calls can be parsed.
    """
    if isinstance(message, dict):
        shown = {key: value for key, value in message.items() if key != "type" or value != "AIMessageChunk"}
        return _with_parsed_tool_calls(shown) if is_complete and "tool_call_chunks" in shown else shown
    langchain: Any = sys.modules.get("langchain_core.messages")
    if langchain is not None and isinstance(message, langchain.BaseMessageChunk):
        return langchain.message_chunk_to_message(message)
    return message


def _with_parsed_tool_calls(message: dict[str, Any]) -> dict[str, Any]:
    """Return a whole message with its tool calls parsed, as `pregel_async.adapters` returns them."""
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
