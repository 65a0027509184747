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
from .failures import FailureReport, describe_failure, failure_class_name
from .json_encoder import JsonEncoder
from .message_assembler import MessageAssembler, namespace_suffix

METADATA, ERROR, END, RESTARTED = "metadata", "error", "end", "superstep_restarted"

HALF_MARK, TASK_MARK, COMPLETION_MARK, END_MARK = "+", "!", "-", "~"
"""What ids have besides a cursor. `HALF` sorts before digits. Behind a cursor, `TASK` sorts before `ENDED`, and that
before `OVER`."""


def encode_event(name: str, data: bytes, id: str | None = None) -> bytes:
    """An event as it goes out."""
    return ServerSentEvent(data.decode(), event=name, id=id, sep="\n").encode()


class EventEncoder:
    """What one connection is told of one stream.

    Attributes:
        place: of the last part that was told, as an id; None before, and where no events are kept.

    Args:
        tuples: tell messages as pairs, and not as they grow.
        seen: what a reader was told that comes back.
        expose: tell the words of every error.
    """

    def __init__(
        self,
        encode_json: JsonEncoder,
        *,
        tuples: bool,
        position: ReaderPosition | None = None,
        expose_errors: bool = False,
    ) -> None:
        self.last_cursor = None if position is None else position.cursor
        self._encode_json = encode_json
        self._assembler = None if tuples else MessageAssembler()
        self._skips_half = position is not None and position.mid_part
        self._completions_sent = 0 if position is None else position.completions
        self._expose_errors = expose_errors
        self._attempt = ""
        self._held_failure: list[bytes] = []  # the event of a failure that is not told yet

    def encode_metadata(self, run_id: str | None, attempt: int, **extra: Any) -> bytes:
        return encode_event(
            METADATA, self._encode_json({"run_id": run_id, "attempt": attempt, **extra}), self.last_cursor
        )

    def encode_part(self, part: Any) -> list[bytes]:
        """The events that tell a part."""
        kind, cursor = part["type"], part["cursor"]
        completed = self._completed_messages(part)
        if part["seq"] == 0:  # it was read before; and is committed, or else it would not come again
            if kind == "messages":
                self._message_events(part)
            return []
        completions = (
            [] if self._skips_half and kind == "messages" else self._encode_completions(completed)
        )  # told before the first half
        unencoded: list[tuple[str, Any]] = []
        if kind == "messages":
            unencoded = self._message_events(part)
        elif kind == RESTARTED:
            self._skips_half = False
            unencoded = [(kind, part["data"])]
        elif kind == "values" and part["interrupts"]:
            data, interrupts = part["data"], {"__interrupt__": part["interrupts"]}
            unencoded = [(kind, {**data, **interrupts} if isinstance(data, dict) else interrupts)]
        elif kind in ("tasks", "checkpoints", "debug"):
            unencoded = [(kind, part["data"] if self._expose_errors else _hide_failures(kind, part["data"]))]
        elif kind != ERROR:
            unencoded = [(kind, part["data"])]
        ids: list[str | None] = [cursor] if cursor is None or len(unencoded) < 2 else [_half_id(cursor), cursor]
        if part["task"] is not None:
            ids = [f"{id}{TASK_MARK}{part['task']['id']}" for id in ids]
        if cursor is not None:
            self.last_cursor = cursor
        held, self._held_failure = self._held_failure, []
        if kind == ERROR:  # told with the run's end, when it is known what may be said of it; or when more comes
            failure = RecordedFailureError(part["data"]["error"], part["data"]["message"])
            self._held_failure = [self.encode_failure(describe_failure(failure, expose_errors=self._expose_errors))]
            return [*held, *completions]
        suffix = namespace_suffix(part["ns"])
        return [
            *held,
            *completions,
            *(
                encode_event(name + suffix, self._encode_json(data), id)
                for (name, data), id in zip_longest(unencoded, ids[: len(unencoded)])
            ),
        ]

    def encode_failure(self, report: FailureReport) -> bytes:
        return encode_event(
            ERROR, self._encode_json({"error": report.error, "message": report.message}), self.last_cursor
        )

    def encode_final_messages(self, status: str) -> list[bytes]:
        """The events of what is complete because the run has come to rest."""
        if self._assembler is None or status not in ("success", "interrupted"):
            return []
        return self._encode_completions(self._assembler.complete_all())

    def encode_end(self, run_id: str | None, status: str) -> bytes:
        # What was cut off goes on when somebody comes back, or by itself when the service starts again.
        goes_on = status in ("drained", "cancelled", "timeout")
        id = None if self.last_cursor is None or goes_on else self.last_cursor + END_MARK
        return encode_event(END, self._encode_json({"run_id": run_id, "status": status}), id)

    def _completed_messages(self, part: Any) -> list[tuple[str, Any]]:
        """The messages that are complete by now.

        When an attempt follows one that ended or was cut off, void messages are reported first. All others of that
        attempt are complete: tasks that run again send all of theirs again, perhaps under the same ids.
        """
        assembler, kind, before = self._assembler, part["type"], self._attempt
        self._attempt = "" if part["cursor"] is None else _attempt_prefix(part["cursor"])
        if assembler is None:
            return []
        if kind == RESTARTED:
            tasks = part["data"]["tasks"]
            assembler.discard(None if tasks is None else {task["id"] for task in tasks})
            return assembler.complete_all()
        completed = assembler.complete_finished(part) if before in ("", self._attempt) else assembler.complete_all()
        if kind == ERROR:
            assembler.discard()
        return completed

    def _encode_completions(self, completed: list[tuple[str, Any]]) -> list[bytes]:
        """As far as it was not told before."""
        already_sent, self._completions_sent = self._completions_sent, 0
        encoded: list[bytes] = []
        for number, (name, data) in enumerate(completed[already_sent:], already_sent + 1):
            id = None if self.last_cursor is None else f"{self.last_cursor}{COMPLETION_MARK}{number:06d}"
            encoded.append(encode_event(name, self._encode_json(data), id))
        return encoded

    def _message_events(self, part: Any) -> list[tuple[str, Any]]:
        message, metadata = part["data"]
        if self._assembler is None:
            return [("messages", (message, metadata))]
        events = self._assembler.add(part)
        skips_first = self._skips_half and part["seq"] > 0
        self._skips_half = self._skips_half and not skips_first
        return events[1:] if skips_first and len(events) > 1 else events


def _hide_failures(kind: str, data: Any) -> Any:
    """A payload in which failures are named, and not quoted."""
    if kind == "debug":
        return {
            **data,
            "payload": _hide_failures("tasks" if "task" in data["type"] else "checkpoints", data["payload"]),
        }
    if kind == "tasks":
        return _hide_task_failure(data)
    return {**data, "tasks": [_hide_task_failure(task) for task in data["tasks"]]}


def _hide_task_failure(task: dict[str, Any]) -> dict[str, Any]:
    error = task.get("error")
    if error is None:
        return task
    return {**task, "error": failure_class_name(error) if isinstance(error, str) else type(error).__name__}


class ReaderPosition(NamedTuple):
    """How far a reader has got.

    Attributes:
        cursor: the place.
        half: the part after it was told by half.
        ended: so many messages were told as complete after it.
        over: the end was told.
    """

    cursor: str
    mid_part: bool = False
    completions: int = 0
    after_end: bool = False


def parse_event_id(id: str) -> ReaderPosition:
    """What a `Last-Event-ID` says.

    Raises:
        InvalidCursorError: it is none.
    """
    id = id.partition(TASK_MARK)[0]
    if HALF_MARK in id:
        cursor = Cursor.read(id.replace(HALF_MARK, "", 1))
        return ReaderPosition(
            str(replace(cursor, position=max(cursor.position - 1, 0), seq=max(cursor.seq - 1, 0))), mid_part=True
        )
    position = id.removesuffix(END_MARK)
    checkpoint, _, number = position.rpartition(".")
    number, dash, completions = number.partition(COMPLETION_MARK)
    if dash and not (completions.isascii() and completions.isdigit() and len(completions) < 16):
        raise InvalidCursorError(f"{id!r} is no id of an event: pass it as it was")
    return ReaderPosition(
        str(Cursor.read(f"{checkpoint}.{number}")), completions=int(completions or 0), after_end=position != id
    )


def _half_id(cursor: str) -> str:
    cursor_text, _, number = cursor.rpartition(".")
    return f"{cursor_text}.{HALF_MARK}{number}"


def _attempt_prefix(cursor: str) -> str:
    """Names the attempt at a superstep that a place is in."""
    return cursor.rsplit(".", 2)[0]
