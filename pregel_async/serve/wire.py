"""Parts of a stream as server-sent events.

    metadata                          {run_id, attempt}: the first
    values, updates, custom, tasks, checkpoints, debug
                                      the part's data, as it is
    messages                          [message or chunk, where it comes from], for who asked for "messages-tuple"
    messages/metadata                 {id: {metadata}}, before the first chunk of each message
    messages/partial                  [the message as far as it is known], for each chunk of it
    messages/complete                 [the whole message], for its last chunk, or where it comes in one piece
    superstep_restarted               {step, checkpoint_id, after}: void is what was told and not committed, of that
                                      superstep: all events whose ids, as text, are greater than `after`
    error                             {error, message}
    end                               {run_id, status}: the last

The events of a graph inside have its namespace behind their name: `updates|research:1f3a...`.

An event's id is the cursor of its part, the place where its reader goes on (`after=`). Ids increase, as text. Where one
part makes two events, the id of the first has a "+" in it: its reader goes on before the part, and has read one half.
The id of the last event ends with "~": there is nothing to come back to.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from msgspec.structs import replace
from sse_starlette import ServerSentEvent

from .._runtime.part import Cursor
from ..errors import RecordedFailureError
from .failures import Told, named, told
from .gathering import Gathering
from .plain import Writer

METADATA, ERROR, END, RESTARTED = "metadata", "error", "end", "superstep_restarted"

HALF, OVER = "+", "~"
"""What stands in ids that are no cursors: one sorts before all digits, the other after them."""


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
        self._solid = None if place is None else _beginning(place)
        self._write = write
        self._gathering = None if tuples else Gathering()
        self._half = half
        self._expose = expose
        self._attempt = ""
        self._failed: list[bytes] = []  # the event of a failure that is not told yet

    def metadata(self, run_id: str | None, attempt: int, **more: Any) -> bytes:
        return event(METADATA, self._write({"run_id": run_id, "attempt": attempt, **more}), self.place)

    def part(self, part: Any) -> list[bytes]:
        """The events that tell a part."""
        kind, cursor = part["type"], part["cursor"]
        self._see_attempt(cursor)
        if part["seq"] == 0:  # it was read before; and is committed, or else it would not come again
            if kind == "messages":
                self._messages(part)
            self._solid = _last(part["cursor"])
            return []
        says: list[tuple[str, Any]] = []
        if kind == "messages":
            says = self._messages(part)
        elif kind == RESTARTED:
            if self._gathering is not None:
                self._gathering.forget()
            self._half = False
            says = [(kind, {**part["data"], "after": self._solid})]
        elif kind == "values" and part["interrupts"]:
            data, asked = part["data"], {"__interrupt__": part["interrupts"]}
            says = [(kind, {**data, **asked} if isinstance(data, dict) else asked)]
        elif kind in ("tasks", "checkpoints", "debug"):
            says = [(kind, part["data"] if self._expose else _discreet(kind, part["data"]))]
        elif kind != ERROR:
            says = [(kind, part["data"])]
        ids = [cursor] if cursor is None or len(says) < 2 else [_half(cursor), cursor]
        if cursor is not None:
            self.place = self._solid = cursor
        failed, self._failed = self._failed, []
        if kind == ERROR:  # told with the run's end, when it is known what may be said of it; or when more comes
            failure = RecordedFailureError(part["data"]["error"], part["data"]["message"])
            self._failed = [self.failure(told(failure, expose=self._expose))]
            return failed
        inside = "".join(f"|{name}" for name in part["ns"])
        return [
            *failed,
            *(event(name + inside, self._write(data), id) for (name, data), id in zip_longest(says, ids[: len(says)])),
        ]

    def failure(self, what: Told) -> bytes:
        return event(ERROR, self._write({"error": what.error, "message": what.message}), self.place)

    def end(self, run_id: str | None, status: str) -> bytes:
        # What was cut off goes on when somebody comes back, or by itself when the service starts again.
        goes_on = status in ("drained", "cancelled", "timeout")
        id = None if self.place is None or goes_on else self.place + OVER
        return event(END, self._write({"run_id": run_id, "status": status}), id)

    def _see_attempt(self, cursor: str | None) -> None:
        """In another attempt nodes say everything again, perhaps under the same ids."""
        attempt = "" if cursor is None else _attempt(cursor)
        if attempt != self._attempt and self._gathering is not None:
            self._gathering.forget()
        self._attempt = attempt

    def _messages(self, part: Any) -> list[tuple[str, Any]]:
        message, metadata = part["data"]
        if self._gathering is None:
            return [("messages", (message, metadata))]
        told = self._gathering.add(message, metadata, part["ns"], part["step"])
        half = self._half and part["seq"] > 0
        self._half = self._half and not half
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


# ---- ids -------------------------------------------------------------------------------------------------------------


def ids_of(text: str) -> tuple[str, bool, bool]:
    """What a `Last-Event-ID` says: the cursor, whether the part after it was told by half, whether the end was.

    Raises:
        InvalidCursorError: it is none.
    """
    if HALF not in text:
        cursor = Cursor.read(text.removesuffix(OVER))
        return str(cursor), False, text.endswith(OVER)
    cursor = Cursor.read(text.replace(HALF, "", 1))
    return str(replace(cursor, position=max(cursor.position - 1, 0), seq=max(cursor.seq - 1, 0))), True, False


def _half(cursor: str) -> str:
    place, _, number = cursor.rpartition(".")
    return f"{place}.{HALF}{number}"


def _attempt(cursor: str) -> str:
    """Names the attempt at a superstep that a place is in."""
    return cursor.rsplit(".", 2)[0]


def _last(cursor: str) -> str:
    """Not smaller than the id of any reader's part at this place."""
    return f"{cursor.rpartition('.')[0]}.99999999"


def _beginning(cursor: str) -> str:
    """Smaller than the ids of all parts of the attempt that a place is in."""
    return str(replace(Cursor.read(cursor), position=0, seq=0))
