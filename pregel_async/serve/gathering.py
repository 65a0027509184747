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

Told: TypeAlias = tuple[str, Any]
"""The name and the data of an event."""

TEXTS = ("content", "reasoning", "refusal")
"""The keys of a chunk in which its message goes on."""


class _Said(msgspec.Struct):
    """A message, as far as it was said.

    Attributes:
        step: the superstep of its graph.
        due: the superstep of the called graph with which it is over at the latest; None when that is not known.
        task: the id of the task that says it; None where no events are kept.
        grows: it was not told as complete.
    """

    message: Any
    step: int
    due: int | None
    task: str | None = None
    grows: bool = True


class Gathering:
    """The messages that are being told, of the superstep that each graph is in."""

    def __init__(self) -> None:
        self._said: dict[tuple[tuple[str, ...], Any], _Said] = {}
        self._step: int | None = None  # the newest of the called graph's that something was told of

    def forget(self, tasks: Collection[str] | None = None) -> None:
        """Drop the messages of tasks that are void; all of them if `tasks` is None."""
        for at, said in list(self._said.items()):
            if tasks is None or said.task in tasks:
                del self._said[at]

    def end(self) -> list[Told]:
        """The supersteps are over: the events that complete what has grown in them, namespaces and all."""
        return self._end(lambda ns, said: True)

    def see(self, part: Any) -> list[Told]:
        """The events that complete messages of supersteps that are over, as a part shows."""
        ns, step, speaks = part["ns"], part["step"], part["type"] == "messages"
        # What is read back says how far storage is now, and not how far it was.
        committed = part["committed"] if part["cursor"] is None else None
        if not ns:
            self._step = step
            for said in self._said.values():
                said.due = step if said.due is None else said.due

        def is_over(where: tuple[str, ...], said: _Said) -> bool:
            if where == ns and (step > said.step or (speaks and step != said.step)):
                return True
            if said.due is None:
                return False
            return (not ns and step > said.due) or (committed is not None and committed >= said.due)

        return self._end(is_over)

    def _end(self, is_over: Callable[[tuple[str, ...], _Said], bool]) -> list[Told]:
        over = {at: said for at, said in self._said.items() if is_over(at[0], said)}
        for at in over:
            del self._said[at]
        return [
            (COMPLETE + inside(ns), [_shown(said.message, whole=True)]) for (ns, _), said in over.items() if said.grows
        ]

    def add(self, part: Any) -> list[Told]:
        """The events that tell a message, or a chunk of one."""
        (message, metadata), ns, step, committed = part["data"], part["ns"], part["step"], part["committed"]
        id = id_of(message)
        if id is None:
            return [(COMPLETE, [message])]
        said = self._said.get((ns, id))
        first = said is None
        if said is None:
            around = self._step if committed is None else committed
            due = step if not ns else None if around is None else around + 1
            said = self._said[ns, id] = _Said(message, step, due, None if part["task"] is None else part["task"]["id"])
        else:
            said.message = _added(said.message, message)
        if _field(message, "type") == "AIMessageChunk":
            said.grows = not (_field(message, "finish_reason") or _field(message, "chunk_position") == "last")
        else:
            said.grows = not first
        name = PARTIAL if said.grows else COMPLETE
        told = [(name, [_shown(said.message, whole=not said.grows)])]
        return [("messages/metadata", {str(id): {"metadata": metadata}}), *told] if first else told


def inside(ns: tuple[str, ...]) -> str:
    """What stands behind the name of an event of a graph inside."""
    return "".join(f"|{name}" for name in ns)


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
