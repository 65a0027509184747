"""Messages that grow: chunks added up, so that each event of `messages/partial` has the message as far as it is known.

A chunk says that it is one: by its type, "AIMessageChunk" (those of `pregel_async.adapters`), or by its class
(langchain-core's, which are added by their own `+`). What does not is a whole message; unless more comes with its id,
which is then added to its content. The chunk that says how its message has ended completes it; where none says so, the
end of the superstep in which it was said does.
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
"""The name and the data of an event."""

TEXT_KEYS = ("content", "reasoning", "refusal")
"""The keys of a chunk in which its message goes on."""


class _PartialMessage(msgspec.Struct):
    """A message, as far as it was said.

    Attributes:
        step: the superstep of its graph.
        due: the superstep of the called graph with which it is over at the latest; None when that is not known.
        task: the id of the task that says it; None where no events are kept.
        grows: it was not told as complete.
    """

    message: Any
    step: int
    due_step: int | None
    task: str | None = None
    is_open: bool = True


class MessageAssembler:
    """The messages that are being told, of the superstep that each graph is in."""

    def __init__(self) -> None:
        self._partials: dict[tuple[tuple[str, ...], Any], _PartialMessage] = {}
        self._step: int | None = None  # the newest of the called graph's that something was told of

    def discard(self, tasks: Collection[str] | None = None) -> None:
        """Drop the messages of tasks that are void; all of them if `tasks` is None."""
        for key, partial in list(self._partials.items()):
            if tasks is None or partial.task in tasks:
                del self._partials[key]

    def complete_all(self) -> list[UnencodedEvent]:
        """The supersteps are over: the events that complete what has grown in them, namespaces and all."""
        return self._complete(lambda ns, partial: True)

    def complete_finished(self, part: Any) -> list[UnencodedEvent]:
        """The events that complete messages of supersteps that are over, as a part shows."""
        ns, step, is_message = part["ns"], part["step"], part["type"] == "messages"
        # What is read back says how far storage is now, and not how far it was.
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
        finished = {key: partial for key, partial in self._partials.items() if is_over(key[0], partial)}
        for key in finished:
            del self._partials[key]
        return [
            (COMPLETE + namespace_suffix(ns), [_as_message(partial.message, is_complete=True)])
            for (ns, _), partial in finished.items()
            if partial.is_open
        ]

    def add(self, part: Any) -> list[UnencodedEvent]:
        """The events that tell a message, or a chunk of one."""
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
    """What stands behind the name of an event of a graph inside."""
    return "".join(f"|{name}" for name in ns)


def _field(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, dict) else getattr(message, name, None)


def _merged(known: Any, chunk: Any) -> Any:
    if isinstance(chunk, dict):
        return _merged_dict(known if isinstance(known, dict) else {}, chunk)
    try:
        return known + chunk  # what langchain-core's can
    except TypeError:
        joined: Any = copy.copy(chunk)
        try:
            joined.content = _concatenated(_field(known, "content"), chunk.content)
        except (AttributeError, TypeError):
            return chunk  # frozen: what came last is all that can be said
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
    if isinstance(known, str) and isinstance(more, str):
        return known + more
    if isinstance(known, list) and isinstance(more, list):
        return [*known, *more]
    return known if more is None else more


def _as_message(message: Any, *, is_complete: bool) -> Any:
    """The message that a chunk is a chunk of, or sums of chunks are; anything else as it is."""
    if isinstance(message, dict):
        shown = {key: value for key, value in message.items() if key != "type" or value != "AIMessageChunk"}
        return _with_parsed_tool_calls(shown) if is_complete and "tool_call_chunks" in shown else shown
    langchain: Any = sys.modules.get("langchain_core.messages")
    if langchain is not None and isinstance(message, langchain.BaseMessageChunk):
        return langchain.message_chunk_to_message(message)
    return message


def _with_parsed_tool_calls(message: dict[str, Any]) -> dict[str, Any]:
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
