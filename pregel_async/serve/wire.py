"""Parts of a stream as server-sent events.

    metadata                          {run_id, attempt}: the first
    values, updates, custom, tasks, checkpoints, debug
                                      the part's data, as it is
    messages                          [message or chunk, where it comes from], for who asked for "messages-tuple"
    messages/metadata                 {id: {metadata}}, before the first chunk of each message
    messages/partial                  [the message as far as it is known], for each chunk of it
    messages/complete                 [message]
    superstep_restarted               {step, checkpoint_id}: what was shown of that superstep is void
    error                             {error, message}
    end                               {run_id, status}: the last

The events of a graph inside have its namespace behind their name: `updates|research:1f3a...`.

An event's id is the place where its reader goes on (`after=`). Where one part makes two events, the first has the place
before the part, and a "+", which says that it was read. The id of the last event ends with "~": there is nothing to
come back to.
"""

from __future__ import annotations

from typing import Any

from sse_starlette import ServerSentEvent

from .failures import Told, named
from .gathering import Gathering
from .plain import Writer

METADATA, ERROR, END, RESTARTED = "metadata", "error", "end", "superstep_restarted"

HALF, OVER = "+", "~"
"""What an id ends with that is no place alone."""


def event(name: str, data: bytes, id: str | None = None) -> bytes:
    """An event as it goes out."""
    return ServerSentEvent(data.decode(), event=name, id=id, sep="\n").encode()


class Wire:
    """What one connection is told of one stream.

    Attributes:
        place: of the last part that was told, as an id; None before, and where no events are kept.

    Args:
        tuples: tell messages as pairs, and not as they grow.
        half: a reader that comes back was told the first half of the part after its place.
        expose: tell the words of every error.
    """

    def __init__(
        self,
        write: Writer,
        *,
        tuples: bool,
        place: str | None = None,
        half: bool = False,
        expose: bool = False,
    ) -> None:
        self.place = place
        self._write = write
        self._gathering = None if tuples else Gathering()
        self._half = half
        self._expose = expose

    def metadata(self, run_id: str | None, attempt: int, **more: Any) -> bytes:
        return event(METADATA, self._write({"run_id": run_id, "attempt": attempt, **more}), self.place)

    def part(self, part: Any) -> list[bytes]:
        """The events that tell a part."""
        kind, ns, cursor = part["type"], part["ns"], part["cursor"]
        told: list[tuple[str, Any]] = []
        if kind == "messages":
            told = self._messages(part)
        elif kind == RESTARTED:
            if self._gathering is not None:
                self._gathering.forget()
            told = [(kind, part["data"])]
        elif kind == "values" and part["interrupts"]:
            data, asked = part["data"], {"__interrupt__": part["interrupts"]}
            told = [(kind, {**data, **asked} if isinstance(data, dict) else asked)]
        elif kind in ("tasks", "checkpoints", "debug"):
            told = [(kind, part["data"] if self._expose else _discreet(kind, part["data"]))]
        elif kind != ERROR:  # which is told when it is known what may be said of it
            told = [(kind, part["data"])]
        before = self.place
        if cursor is not None and part["seq"]:
            self.place = cursor
        suffix = "".join(f"|{name}" for name in ns)
        halves = [None if before is None else before + HALF] * (len(told) - 1)
        ids = [*halves, self.place] if part["seq"] and told else [None] * len(told)
        return [event(name + suffix, self._write(data), id) for (name, data), id in zip(told, ids, strict=True)]

    def failure(self, what: Told) -> bytes:
        return event(ERROR, self._write({"error": what.error, "message": what.message}), self.place)

    def end(self, run_id: str | None, status: str) -> bytes:
        id = None if self.place is None or status == "drained" else self.place + OVER
        return event(END, self._write({"run_id": run_id, "status": status}), id)

    def _messages(self, part: Any) -> list[tuple[str, Any]]:
        message, metadata = part["data"]
        if self._gathering is None:
            return [("messages", (message, metadata))]
        told = self._gathering.add(message, metadata, part["ns"], part["step"])
        if part["seq"] == 0:
            return []  # read before: it was wanted for what comes after it
        half, self._half = self._half, False
        return told[1:] if half and len(told) > 1 else told


def _discreet(kind: str, data: Any) -> Any:
    """A payload in which failures are named, and not quoted."""
    if kind == "debug":
        return {**data, "payload": _discreet("tasks" if "task" in data["type"] else "checkpoints", data["payload"])}
    if kind == "tasks":
        return _without_words(data)
    return {**data, "tasks": [_without_words(task) for task in data["tasks"]]}


def _without_words(task: dict[str, Any]) -> dict[str, Any]:
    error = task.get("error")
    if error is None:
        return task
    return {**task, "error": named(error) if isinstance(error, str) else type(error).__name__}


def ids_of(text: str) -> tuple[str, bool, bool]:
    """What a `Last-Event-ID` says: the place, whether the part after it was told by half, whether the end was."""
    if text.endswith(OVER):
        return text.removesuffix(OVER), False, True
    return text.removesuffix(HALF), text.endswith(HALF), False
