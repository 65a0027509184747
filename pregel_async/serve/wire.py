"""Parts of a stream as server-sent events.

    metadata                          {run_id, attempt}: the first
    values, updates, custom, tasks, checkpoints, debug
                                      the part's data, as it is
    messages                          [message or chunk, where it comes from], for who asked for "messages-tuple"
    messages/metadata                 {id: {metadata}}, before the first chunk of each message
    messages/partial                  [the message as far as it is known], for each chunk of it
    messages/complete                 [the whole message], for its last chunk, or where it comes in one piece; where no
                                      chunk says that it is the last, when its superstep is over
    superstep_restarted               {step, checkpoint_id, after, tasks}: tasks run again. Void are the events whose
                                      ids, as text, are greater than `after` and end with "!" and the `id` of one of the
                                      `tasks`; where `tasks` is null, all whose ids are greater
    error                             {error, message}
    end                               {run_id, status}: the last

The events of a graph inside have its namespace behind their name: `updates|research:1f3a...`.

An event's id is the cursor of its part, from which its reader resumes (`after=`), and after a "!" the id of the part's
task. Ids increase, as text. Where one part makes two events, the id of the first has a "+" in it: its reader resumes
before the part, and has read one half.
Messages that are complete because a superstep is over have the id of the part before, with "-000001" and so on behind.
The id of the last event ends with "~": there is nothing to come back to.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, NamedTuple

from msgspec.structs import replace
from sse_starlette import ServerSentEvent

from .._runtime.streaming.parts import Cursor
from ..errors import InvalidCursorError, RecordedFailureError
from .failures import Told, named, told
from .gathering import Gathering, inside
from .plain import Writer

METADATA, ERROR, END, RESTARTED = "metadata", "error", "end", "superstep_restarted"

HALF, TASK, ENDED, OVER = "+", "!", "-", "~"
"""What ids have besides a cursor. `HALF` sorts before digits. Behind a cursor, `TASK` sorts before `ENDED`, and that
before `OVER`."""


def event(name: str, data: bytes, id: str | None = None) -> bytes:
    """An event as it goes out."""
    return ServerSentEvent(data.decode(), event=name, id=id, sep="\n").encode()


class Wire:
    """What one connection is told of one stream.

    Attributes:
        place: of the last part that was told, as an id; None before, and where no events are kept.

    Args:
        tuples: tell messages as pairs, and not as they grow.
        seen: what a reader was told that comes back.
        expose: tell the words of every error.
    """

    def __init__(self, write: Writer, *, tuples: bool, seen: Seen | None = None, expose: bool = False) -> None:
        self.place = None if seen is None else seen.cursor
        self._write = write
        self._gathering = None if tuples else Gathering()
        self._half = seen is not None and seen.half
        self._ended = 0 if seen is None else seen.ended
        self._expose = expose
        self._attempt = ""
        self._failed: list[bytes] = []  # the event of a failure that is not told yet

    def metadata(self, run_id: str | None, attempt: int, **more: Any) -> bytes:
        return event(METADATA, self._write({"run_id": run_id, "attempt": attempt, **more}), self.place)

    def part(self, part: Any) -> list[bytes]:
        """The events that tell a part."""
        kind, cursor = part["type"], part["cursor"]
        ended = self._see(part)
        if part["seq"] == 0:  # it was read before; and is committed, or else it would not come again
            if kind == "messages":
                self._messages(part)
            return []
        ends = [] if self._half and kind == "messages" else self._tell_ended(ended)  # told before the first half
        says: list[tuple[str, Any]] = []
        if kind == "messages":
            says = self._messages(part)
        elif kind == RESTARTED:
            self._half = False
            says = [(kind, part["data"])]
        elif kind == "values" and part["interrupts"]:
            data, asked = part["data"], {"__interrupt__": part["interrupts"]}
            says = [(kind, {**data, **asked} if isinstance(data, dict) else asked)]
        elif kind in ("tasks", "checkpoints", "debug"):
            says = [(kind, part["data"] if self._expose else _discreet(kind, part["data"]))]
        elif kind != ERROR:
            says = [(kind, part["data"])]
        ids: list[str | None] = [cursor] if cursor is None or len(says) < 2 else [_half(cursor), cursor]
        if part["task"] is not None:
            ids = [f"{id}{TASK}{part['task']['id']}" for id in ids]
        if cursor is not None:
            self.place = cursor
        failed, self._failed = self._failed, []
        if kind == ERROR:  # told with the run's end, when it is known what may be said of it; or when more comes
            failure = RecordedFailureError(part["data"]["error"], part["data"]["message"])
            self._failed = [self.failure(told(failure, expose=self._expose))]
            return [*failed, *ends]
        behind = inside(part["ns"])
        return [
            *failed,
            *ends,
            *(event(name + behind, self._write(data), id) for (name, data), id in zip_longest(says, ids[: len(says)])),
        ]

    def failure(self, what: Told) -> bytes:
        return event(ERROR, self._write({"error": what.error, "message": what.message}), self.place)

    def rest(self, status: str) -> list[bytes]:
        """The events of what is complete because the run has come to rest."""
        if self._gathering is None or status not in ("success", "interrupted"):
            return []
        return self._tell_ended(self._gathering.end())

    def end(self, run_id: str | None, status: str) -> bytes:
        # What was cut off goes on when somebody comes back, or by itself when the service starts again.
        goes_on = status in ("drained", "cancelled", "timeout")
        id = None if self.place is None or goes_on else self.place + OVER
        return event(END, self._write({"run_id": run_id, "status": status}), id)

    def _see(self, part: Any) -> list[tuple[str, Any]]:
        """The messages that are complete by now.

        When an attempt follows one that ended or was cut off, void messages are reported first. All others of that
        attempt are complete: tasks that run again send all of theirs again, perhaps under the same ids.
        """
        gathering, kind, before = self._gathering, part["type"], self._attempt
        self._attempt = "" if part["cursor"] is None else _attempt(part["cursor"])
        if gathering is None:
            return []
        if kind == RESTARTED:
            tasks = part["data"]["tasks"]
            gathering.forget(None if tasks is None else {task["id"] for task in tasks})
            return gathering.end()
        ended = gathering.see(part) if before in ("", self._attempt) else gathering.end()
        if kind == ERROR:
            gathering.forget()
        return ended

    def _tell_ended(self, ended: list[tuple[str, Any]]) -> list[bytes]:
        """As far as it was not told before."""
        before, self._ended = self._ended, 0
        told: list[bytes] = []
        for number, (name, data) in enumerate(ended[before:], before + 1):
            id = None if self.place is None else f"{self.place}{ENDED}{number:06d}"
            told.append(event(name, self._write(data), id))
        return told

    def _messages(self, part: Any) -> list[tuple[str, Any]]:
        message, metadata = part["data"]
        if self._gathering is None:
            return [("messages", (message, metadata))]
        told = self._gathering.add(part)
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


class Seen(NamedTuple):
    """How far a reader has got.

    Attributes:
        cursor: the place.
        half: the part after it was told by half.
        ended: so many messages were told as complete after it.
        over: the end was told.
    """

    cursor: str
    half: bool = False
    ended: int = 0
    over: bool = False


def seen(id: str) -> Seen:
    """What a `Last-Event-ID` says.

    Raises:
        InvalidCursorError: it is none.
    """
    id = id.partition(TASK)[0]
    if HALF in id:
        cursor = Cursor.read(id.replace(HALF, "", 1))
        return Seen(str(replace(cursor, position=max(cursor.position - 1, 0), seq=max(cursor.seq - 1, 0))), half=True)
    place = id.removesuffix(OVER)
    checkpoint, _, number = place.rpartition(".")
    number, dash, ended = number.partition(ENDED)
    if dash and not (ended.isascii() and ended.isdigit() and len(ended) < 16):
        raise InvalidCursorError(f"{id!r} is no id of an event: pass it as it was")
    return Seen(str(Cursor.read(f"{checkpoint}.{number}")), ended=int(ended or 0), over=place != id)


def _half(cursor: str) -> str:
    place, _, number = cursor.rpartition(".")
    return f"{place}.{HALF}{number}"


def _attempt(cursor: str) -> str:
    """Names the attempt at a superstep that a place is in."""
    return cursor.rsplit(".", 2)[0]
