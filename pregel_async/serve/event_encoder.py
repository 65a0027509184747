"""Encode the parts of a stream as server-sent events, and parse the ids of events.

    metadata                          {run_id, attempt}: the first event
    values, updates, custom, tasks, checkpoints, debug
                                      the part's data, unchanged
    messages                          [message or chunk, metadata], if the client asked for "messages-tuple"
    messages/metadata                 {id: {metadata}}, before the first chunk of each message
    messages/partial                  [the message so far], for each chunk that does not end the message
    messages/complete                 [the whole message], for its last chunk or for a message in one piece; if no
                                      chunk says that it is the last, when the message's superstep is over
    superstep_restarted               {step, checkpoint_id, after, tasks}: tasks run again. Events are void if their
                                      ids, as text, are greater than `after` and end with "!" and the `id` of one of the
                                      `tasks`; if `tasks` is null, if their ids are greater
    error                             {error, message}
    end                               {run_id, status}: the last event

The events of a subgraph have its namespace after their name: `updates|research:1f3a...`.

An event's id is the cursor of its part, from which its reader resumes (`after=`), followed by "!" and the id of the
part's task. Ids increase, compared as text. If one part makes two events, the id of the first contains a "+": its
reader resumes before the part, and has read one of its two events.
Messages that are complete because a superstep is over have the id of the part before, followed by "-000001" and so on.
The id of the last event ends with "~": there is nothing left to read.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, NamedTuple

from msgspec.structs import replace
from sse_starlette import ServerSentEvent

from .._api.json_encoder import JsonEncoder
from .._runtime.streaming.parts import Cursor
from ..errors import InvalidCursorError, RecordedFailureError
from .failures import FailureReport, describe_failure, failure_class_name
from .message_assembler import MessageAssembler, namespace_suffix

METADATA, ERROR, END, RESTARTED = "metadata", "error", "end", "superstep_restarted"

HALF_MARK, TASK_MARK, COMPLETION_MARK, END_MARK = "+", "!", "-", "~"
"""What ids contain besides a cursor. They are chosen for their order as text: `HALF_MARK` sorts before digits, and
after a cursor `TASK_MARK` sorts before `COMPLETION_MARK`, and that before `END_MARK`."""


def encode_event(name: str, data: bytes, id: str | None = None) -> bytes:
    """Encode one server-sent event.

    Args:
        name: the event's name.
        data: its data, encoded as JSON.
        id: its id; None for an event without one.

    Returns:
        The bytes to send.
    """
    return ServerSentEvent(data.decode(), event=name, id=id, sep="\n").encode()


class EventEncoder:
    """Encodes the parts of one stream for one connection.

    Attributes:
        last_cursor: the cursor of the last part that was encoded; None before the first, and if no events are kept.

    Args:
        encode_json: encodes values as JSON.
        tuples: encode messages as pairs with their metadata, instead of adding up their chunks.
        position: the position that a reconnecting reader has reached; None for a new reader.
        expose_errors: send the client every error's own message.
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
        self._held_failure: list[bytes] = []  # the event of a failure that is not sent yet

    def encode_metadata(self, run_id: str | None, attempt: int, **extra: Any) -> bytes:
        """Encode the first event.

        Args:
            run_id: the run's id; None if unknown.
            attempt: the number of the attempt that is read, from 1.
            extra: more entries of the event's data.

        Returns:
            The event.
        """
        return encode_event(
            METADATA, self._encode_json({"run_id": run_id, "attempt": attempt, **extra}), self.last_cursor
        )

    def encode_part(self, part: Any) -> list[bytes]:
        """Encode one part of the stream.

        Args:
            part: a part of `astream(..., version="v2")`, a dict.

        Returns:
            The events to send now. Events of messages that are complete with this part come first.
        """
        kind, cursor = part["type"], part["cursor"]
        completed = self._completed_messages(part)
        # The reader has read this part before it reconnected. It comes again only to restore the sums of chunks.
        if part["seq"] == 0:
            if kind == "messages":
                self._message_events(part)
            return []
        # A reader that has read the first event of this part has read the completions before that event.
        completions = [] if self._skips_half and kind == "messages" else self._encode_completions(completed)
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
            unencoded = [(kind, part["data"] if self._expose_errors else hide_failures(kind, part["data"]))]
        elif kind != ERROR:
            unencoded = [(kind, part["data"])]
        ids: list[str | None] = [cursor] if cursor is None or len(unencoded) < 2 else [_half_id(cursor), cursor]
        if part["task"] is not None:
            ids = [f"{id}{TASK_MARK}{part['task']['id']}" for id in ids]
        if cursor is not None:
            self.last_cursor = cursor
        held, self._held_failure = self._held_failure, []
        # A part has only the class and the message of a failure. If the run ends with it, `RunReader` encodes the
        # exception itself. If more parts come, a further attempt has followed the failure, and this event goes first.
        if kind == ERROR:
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
        """Encode the failure of a run.

        Args:
            report: what the client may see of the failure.

        Returns:
            The event `error`.
        """
        return encode_event(
            ERROR, self._encode_json({"error": report.error, "message": report.message}), self.last_cursor
        )

    def encode_final_messages(self, status: str) -> list[bytes]:
        """Encode the messages that are complete because the run has ended.

        Args:
            status: how the run has ended.

        Returns:
            The events. There are none unless the status is "success" or "interrupted".
        """
        if self._assembler is None or status not in ("success", "interrupted"):
            return []
        return self._encode_completions(self._assembler.complete_all())

    def encode_end(self, run_id: str | None, status: str) -> bytes:
        """Encode the last event.

        Args:
            run_id: the run's id; None if unknown.
            status: how the run has ended.

        Returns:
            The event `end`.
        """
        # A run that was cut off is resumed when its client reconnects, or by `pick_up`. Without an id on this event,
        # the client reconnects with the id of the event before.
        is_resumable = status in ("drained", "cancelled", "timeout")
        id = None if self.last_cursor is None or is_resumable else self.last_cursor + END_MARK
        return encode_event(END, self._encode_json({"run_id": run_id, "status": status}), id)

    def _completed_messages(self, part: Any) -> list[tuple[str, Any]]:
        """Return the events of messages that are complete once a part has come.

        When an attempt follows one that ended or was cut off, a part of type `superstep_restarted` first says which
        messages are void. All other messages of the earlier attempt are complete: tasks that run again send all of
        theirs again, perhaps under the same ids.
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
        """Encode completed messages, except those that the reader has read before it reconnected."""
        already_sent, self._completions_sent = self._completions_sent, 0
        encoded: list[bytes] = []
        for number, (name, data) in enumerate(completed[already_sent:], already_sent + 1):
            id = None if self.last_cursor is None else f"{self.last_cursor}{COMPLETION_MARK}{number:06d}"
            encoded.append(encode_event(name, self._encode_json(data), id))
        return encoded

    def _message_events(self, part: Any) -> list[tuple[str, Any]]:
        """Return the events of a message or chunk, without the first if the reader has read it."""
        message, metadata = part["data"]
        if self._assembler is None:
            return [("messages", (message, metadata))]
        events = self._assembler.add(part)
        skips_first = self._skips_half and part["seq"] > 0
        self._skips_half = self._skips_half and not skips_first
        return events[1:] if skips_first and len(events) > 1 else events


def hide_failures(kind: str, data: Any) -> Any:
    """Return a payload with each failure replaced by the name of its class.

    Args:
        kind: "tasks", "checkpoints" or "debug".
        data: the part's data.
    """
    if kind == "debug":
        return {
            **data,
            "payload": hide_failures("tasks" if "task" in data["type"] else "checkpoints", data["payload"]),
        }
    if kind == "tasks":
        return _hide_task_failure(data)
    return {**data, "tasks": [_hide_task_failure(task) for task in data["tasks"]]}


def _hide_task_failure(task: dict[str, Any]) -> dict[str, Any]:
    """Return a task with its failure replaced by the name of its class."""
    error = task.get("error")
    if error is None:
        return task
    return {**task, "error": failure_class_name(error) if isinstance(error, str) else type(error).__name__}


class ReaderPosition(NamedTuple):
    """How far a reader has read.

    Attributes:
        cursor: the cursor of the last part that the reader has read in full.
        mid_part: True if the reader has read the first of two events of the next part.
        completions: number of completed messages that the reader has read after that part.
        after_end: True if the reader has read the event `end`.
    """

    cursor: str
    mid_part: bool = False
    completions: int = 0
    after_end: bool = False


def parse_event_id(id: str) -> ReaderPosition:
    """Read a position from the id of an event.

    Args:
        id: the id of the last event that the reader has read.

    Returns:
        The position after that event.

    Raises:
        InvalidCursorError: it is not the id of an event.
    """
    id = id.partition(TASK_MARK)[0]
    if HALF_MARK in id:
        # Resume before the part, so that it comes again: the second of its events is still to be sent.
        cursor = Cursor.parse(id.replace(HALF_MARK, "", 1))
        return ReaderPosition(
            str(replace(cursor, position=max(cursor.position - 1, 0), seq=max(cursor.seq - 1, 0))), mid_part=True
        )
    position = id.removesuffix(END_MARK)
    checkpoint, _, number = position.rpartition(".")
    number, dash, completions = number.partition(COMPLETION_MARK)
    if dash and not (completions.isascii() and completions.isdigit() and len(completions) < 16):
        raise InvalidCursorError(f"{id!r} is not the id of an event: pass an id unchanged")
    return ReaderPosition(
        str(Cursor.parse(f"{checkpoint}.{number}")), completions=int(completions or 0), after_end=position != id
    )


def _half_id(cursor: str) -> str:
    """Return the id of the first of two events of one part. It sorts after all ids of earlier parts."""
    cursor_text, _, number = cursor.rpartition(".")
    return f"{cursor_text}.{HALF_MARK}{number}"


def _attempt_prefix(cursor: str) -> str:
    """Return the part of a cursor that names the attempt at a superstep."""
    return cursor.rsplit(".", 2)[0]
