"""Convert the rows of accepted runs to the columns of their tables, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from ..codec.frame import seal, unseal
from ..errors import CorruptCheckpointError
from ..metadata import read_metadata
from ..runs.port import ActiveThread
from ..runs.rows import RunRow, RunThreadRow
from .batches import Columns
from .escaping import escape, escape_or_none, unescape
from .rows import Raw, owner_of, where_of

RUN_COLUMNS: Final = "u.run_id, u.thread_id, u.seq, u.status, u.hidden, u.payload, u.frame"
RUN_COLUMNS_AND_ASKED_PAYLOADS: Final = RUN_COLUMNS.replace(
    "u.payload", "CASE WHEN u.run_id = ANY(%b::text[]) OR u.thread_id = ANY(%b::text[]) THEN u.payload ELSE '' END"
)
"""`RUN_COLUMNS`, with the payloads of certain runs, and of those of certain threads. Other payloads are not read: they
may be large."""
THREAD_COLUMNS: Final = "r.thread_id, r.status, r.activation, r.activation_no, r.content, r.frame, t.metadata"


class _RunFrame(msgspec.Struct, frozen=True):
    """What the frame of a run holds: all but its payload, which is a column of its own.

    Attributes:
        row: the run, without its payload and metadata.
        metadata: of the request, as JSON: MessagePack has no integers of more than 64 bits.
    """

    row: RunRow
    metadata: bytes


class _Content(msgspec.Struct, frozen=True):
    """What the last run of a thread has left, as JSON. It is written when a run ends, and not with each change."""

    values: dict[str, Any] | None
    interrupts: dict[str, Any]


_encode_run = msgspec.msgpack.Encoder().encode
_decode_run = msgspec.msgpack.Decoder(_RunFrame).decode
_encode_thread = msgspec.msgpack.Encoder().encode
_decode_thread = msgspec.msgpack.Decoder(RunThreadRow).decode
_encode_json = msgspec.json.Encoder().encode
_decode_content = msgspec.json.Decoder(_Content).decode
_DAMAGES = (msgspec.MsgspecError, ValueError, RecursionError)


def json_text(value: Mapping[str, Any]) -> str:
    """Return a JSON object as text for a `jsonb`, which cannot hold NUL: texts in it are escaped as by `escaping`.

    Args:
        value: the object.
    """
    text = _encode_json(value).decode()
    return text if "\\u000" not in text else _encode_json(_escaped(value)).decode()


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Mapping):
        return {escape(key): _escaped(one) for key, one in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_escaped(one) for one in cast("list[Any]", value)]
    return value


RUN_CHANGES: Final[Columns] = {"run_id": "text", "status": "text", "hidden": "bool", "frame": "bytea"}
"""The columns of `changed_run_values`."""

NEW_RUN: Final[Columns] = {
    **RUN_CHANGES,
    "thread_id": "text",
    "seq": "bigint",
    "assistant": "text",
    "key": "text",
    "created_at": "float8",
    "metadata": "text",
    "payload": "bytea",
}
"""The columns of `new_run_values`."""

THREAD_CHANGES: Final[Columns] = {
    "thread_id": "text",
    "status": "text",
    "assistant": "text",
    "activation": "text",
    "activation_no": "bigint",
    "activation_at": "float8",
    "priority": "bigint",
    "route": "text",
    "wake_at": "float8",
    "created_at": "float8",
    "updated_at": "float8",
    "frame": "bytea",
}
"""A thread's id, and the columns of `thread_values`."""

CONTENT: Final[Columns] = {"state": "text", "content": "bytea"}
"""The columns of `content_values`."""


def new_run_values(run: RunRow) -> Raw:
    """Return the values of a new run, in the order of `NEW_RUN`.

    Args:
        run: the run.
    """
    request = run.request
    return (
        *changed_run_values(run),
        escape(run.thread_id),
        run.seq,
        escape(request.assistant),
        escape_or_none(request.idempotency_key),
        run.created_at,
        json_text(request.metadata),
        request.payload,
    )


def changed_run_values(run: RunRow) -> Raw:
    """Return the values of a run that change, and its id, in the order of `RUN_CHANGES`.

    Args:
        run: the run.
    """
    request = run.request
    bare = replace(run, request=replace(request, payload=b"", metadata={}))
    frame = seal(_encode_run(_RunFrame(bare, _encode_json(request.metadata))))
    return escape(run.run_id), run.status, run.hidden, frame


def thread_values(thread: RunThreadRow) -> Raw:
    """Return the values of a thread that change with each transaction: those of `THREAD_CHANGES`, without the id.

    Args:
        thread: the thread.
    """
    return (
        thread.status,
        escape(thread.assistant),
        thread.activation,
        thread.activation_no,
        thread.activation_at,
        thread.priority,
        escape(thread.route),
        thread.wake_at,
        thread.created_at,
        thread.updated_at,
        seal(_encode_thread(replace(thread, metadata={}, values=None, interrupts={}))),
    )


def touched_values(raw: Raw, now: float) -> tuple[float, bytes]:
    """Return the columns of a thread's row that change with its time of the last change alone.

    Args:
        raw: a row of `THREAD_COLUMNS`.
        now: that time, in unix seconds.

    Returns:
        The values of `updated_at` and `frame`.

    Raises:
        CorruptCheckpointError: a column is damaged.
    """
    values = thread_values(replace(thread_row_of(raw), updated_at=now))
    return now, values[-1]


def content_values(thread: RunThreadRow) -> Raw:
    """Return the values of a thread that change when a run ends, in the order of `CONTENT`.

    Args:
        thread: the thread.
    """
    state = None if thread.values is None else json_text(thread.values)
    return state, seal(_encode_json(_Content(thread.values, thread.interrupts)))


def run_of(raw: Raw) -> RunRow:
    """Decode a run.

    Args:
        raw: a row of `RUN_COLUMNS`.

    Returns:
        The run.

    Raises:
        CorruptCheckpointError: a column is damaged.
        UnsupportedFormatError: a later version has written it.
    """
    run_id, thread_id, seq, status, hidden, payload, frame = raw
    where = f"run {unescape(run_id)!r}"
    body = unseal(frame, where)
    try:
        found = _decode_run(body)
        row, metadata = found.row, read_metadata(found.metadata, where)
    except _DAMAGES as error:
        raise CorruptCheckpointError(where, f"its row cannot be read ({error})") from error
    # The columns are what statements filter by: a run that a listing leaves out would else not be noticed.
    copies = (unescape(run_id), unescape(thread_id), seq, status, hidden)
    if copies != (row.run_id, row.thread_id, row.seq, row.status, row.hidden):
        raise CorruptCheckpointError(where, f"its columns {copies} differ from its frame")
    return replace(row, request=replace(row.request, payload=payload, metadata=metadata))


def thread_row_of(raw: Raw) -> RunThreadRow:
    """Decode a thread's row.

    Args:
        raw: a row of `THREAD_COLUMNS`.

    Returns:
        The row.

    Raises:
        CorruptCheckpointError: a column is damaged.
        UnsupportedFormatError: a later version has written it.
    """
    thread_id, status, activation, activation_no, content, frame, metadata = raw
    thread_id = unescape(thread_id)
    where = f"the runs of {where_of(thread_id)}"
    body = unseal(frame, where)
    kept = unseal(content, where)
    try:
        row, left = _decode_thread(body), _decode_content(kept)
    except _DAMAGES as error:
        raise CorruptCheckpointError(where, f"its row cannot be read ({error})") from error
    copies = (thread_id, status, activation, activation_no)
    if copies != (row.thread_id, row.status, row.activation, row.activation_no):
        raise CorruptCheckpointError(where, f"its columns {copies} differ from its frame")
    return replace(
        row,
        values=left.values,
        interrupts=left.interrupts,
        metadata={} if metadata is None else read_metadata(metadata, where_of(thread_id)),
    )


def active_of(raw: Raw) -> ActiveThread:
    """Decode an active thread.

    Args:
        raw: a row of `THREAD_COLUMNS`, and the owner and the expiry of the thread's lease.

    Returns:
        The thread and the owner of its lease.

    Raises:
        CorruptCheckpointError: a column is damaged.
    """
    *columns, owner, expires_at = raw
    thread = thread_row_of(tuple(columns))
    if owner is None:
        return ActiveThread(thread, None, 0.0)
    return ActiveThread(thread, owner_of(owner, thread.thread_id), expires_at or 0.0)
