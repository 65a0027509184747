"""Convert rows of a run store to bound columns, and stored columns to rows.

A row is stored as a frame, whose checksum detects damage. What statements filter by or sort by is stored in columns,
too; they are compared with the frame when the row is read.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from ..codec.frame import seal, unseal
from ..errors import CorruptCheckpointError
from ..metadata import read_metadata, write_metadata
from ..runs.rows import RunRequest, RunRow, RunThreadRow
from .rows import location, validated

T = TypeVar("T")


class RunColumns(NamedTuple):
    """The columns of a run to be stored."""

    id: str
    seq: int
    status: str
    assistant: str
    hidden: bool
    idempotency_key: str | None
    created_at: float
    metadata: str
    data: bytes


class RunThreadColumns(NamedTuple):
    """The columns of a thread's row to be stored."""

    id: str
    status: str
    assistant: str
    activation: str
    activation_at: float
    priority: int
    route: str
    wake_at: float
    created_at: float
    updated_at: float
    data: bytes


class _StoredRequest(msgspec.Struct, frozen=True):
    """A request. Its metadata are JSON, which has whole numbers of any size."""

    request: RunRequest
    metadata: str


_STATE: Final = tuple([name for name in RunRow.__struct_fields__ if name != "request"])
"""The fields of a run that are not of its request."""

# A struct that is made of a tuple of the fields, because that costs less than a dict. Its JSON is the same.
_state_of = attrgetter(*_STATE)
_RunState = msgspec.defstruct("_RunState", _STATE)

_write_json = msgspec.json.Encoder().encode
_write_request = msgspec.msgpack.Encoder().encode
_read_state = msgspec.json.Decoder(dict[str, Any]).decode
_read_thread = msgspec.json.Decoder(RunThreadRow).decode
_read_request = msgspec.msgpack.Decoder(_StoredRequest).decode


def bind_run(row: RunRow) -> RunColumns:
    """Convert a run to columns.

    Args:
        row: the run.
    """
    return RunColumns(
        row.run_id,
        row.seq,
        row.status,
        row.request.assistant,
        row.hidden,
        row.request.idempotency_key,
        row.created_at,
        write_metadata(row.request.metadata),
        run_frame(row),
    )


def run_frame(row: RunRow) -> bytes:
    """Return the frame of a run, without its request. Equal runs have equal frames.

    Args:
        row: the run.
    """
    return seal(_write_json(_RunState(*_state_of(row))))


def thread_frame(row: RunThreadRow) -> bytes:
    """Return the frame of a thread's row, without its metadata. Equal rows have equal frames.

    Args:
        row: the row.
    """
    return seal(_write_json(replace(row, metadata={})))


def bind_request(request: RunRequest) -> bytes:
    """Return a request as a frame. It is stored in a row of its own, as it never changes and may be large.

    Args:
        request: the request.
    """
    stored = _StoredRequest(replace(request, metadata={}), write_metadata(request.metadata))
    return seal(_write_request(stored))


def bind_thread(row: RunThreadRow) -> RunThreadColumns:
    """Convert a thread's row to columns, without its metadata.

    Args:
        row: the row.
    """
    return RunThreadColumns(
        row.thread_id,
        row.status,
        row.assistant,
        row.activation,
        row.activation_at,
        row.priority,
        row.route,
        row.wake_at,
        row.created_at,
        row.updated_at,
        thread_frame(row),
    )


class _RunFields(msgspec.Struct, array_like=True):
    thread_id: str
    id: str
    seq: int
    status: str
    assistant: str
    hidden: int
    idempotency_key: str | None
    created_at: float
    metadata: str
    data: bytes
    request: bytes


def read_run(raw: tuple[Any, ...]) -> RunRow:
    """Decode a run.

    Args:
        raw: thread id, the columns of `RunColumns`, and the frame of the request.

    Raises:
        CorruptCheckpointError: a column is damaged.
        UnsupportedFormatError: a later version wrote it.
    """
    where = f"run {raw[1]!r}"
    found = validated(raw, _RunFields, where)
    try:
        stored = _read_request(unseal(found.request, where))
        request = replace(stored.request, metadata=read_metadata(stored.metadata, where))
        row = msgspec.convert({**_read_state(unseal(found.data, where)), "request": request}, RunRow)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptCheckpointError(where, f"it cannot be read ({error})") from error
    # Without this, a listing by a damaged column would show the row in a place where it does not belong.
    if (row.thread_id, *bind_run(row)[:-1]) != tuple(raw[:-2]):
        raise CorruptCheckpointError(where, "its columns do not fit its frame")
    return row


class _ThreadFields(msgspec.Struct, array_like=True):
    thread_id: str
    metadata: str
    id: str
    status: str
    assistant: str
    activation: str
    activation_at: float
    priority: int
    route: str
    wake_at: float
    created_at: float
    updated_at: float
    data: bytes


def read_thread(raw: tuple[Any, ...]) -> RunThreadRow:
    """Decode a thread's row.

    Args:
        raw: id and metadata of the saver's thread, and the columns of `RunThreadColumns`.

    Raises:
        CorruptCheckpointError: a column is damaged.
        UnsupportedFormatError: a later version wrote it.
    """
    where = location(raw[2] if raw[0] is None else raw[0], "")
    found = validated(raw, _ThreadFields, where)
    try:
        row = _read_thread(unseal(found.data, where))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptCheckpointError(where, f"its row of runs cannot be read ({error})") from error
    if (row.thread_id, *bind_thread(row)[:-1]) != (raw[0], *raw[2:-1]):
        raise CorruptCheckpointError(where, "the columns of its row of runs do not fit its frame")
    return replace(row, metadata=read_metadata(found.metadata, where))
