"""Metadata of checkpoints and threads as text, and how metadata are merged and compared.

The text is the same in every saver. It is JSON, so that people and databases can read it. A thread's metadata belong to
the user alone. A checkpoint's consist of those of the call that made it, and of what the runtime adds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from .errors import CorruptCheckpointError
from .records import CheckpointId, CheckpointRow

SCALARS: Final = frozenset((str, int, float, bool))
"""The types of values that users may pass as metadata."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def write_metadata(metadata: dict[str, Any]) -> str:
    """Return metadata as JSON text.

    Args:
        metadata: JSON values by key.
    """
    return _encode(metadata).decode()


def read_metadata(text: str | bytes, where: str) -> dict[str, Any]:
    """Return the metadata of a JSON text, as a new dict.

    Args:
        text: the JSON text.
        where: what is being read, for the error.

    Raises:
        CorruptCheckpointError: the text is no JSON object.
    """
    try:
        return _decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptCheckpointError(where, f"its metadata cannot be read ({error})") from error


# `gc=False`: a row holds only texts, bytes and numbers, and a saver in memory holds thousands.
class TextRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A `CheckpointRow` with its metadata as text, so that callers hold no reference into stored metadata."""

    ns: str
    checkpoint_id: CheckpointId
    parent_id: CheckpointId | None
    base_id: CheckpointId
    step: int
    metadata: str
    frame: bytes
    pinned: bool

    def row(self, where: str = "") -> CheckpointRow:
        """Return the row with its metadata decoded.

        Args:
            where: a prefix for the error about damaged metadata.

        Raises:
            CorruptCheckpointError: the metadata cannot be read.
        """
        return CheckpointRow(
            ns=self.ns,
            checkpoint_id=self.checkpoint_id,
            parent_id=self.parent_id,
            base_id=self.base_id,
            step=self.step,
            metadata=read_metadata(self.metadata, f"{where}checkpoint {self.checkpoint_id}"),
            frame=self.frame,
            pinned=self.pinned,
        )


def text_row(row: CheckpointRow, *, pinned: bool) -> TextRow:
    """Return a row with its metadata as text.

    Args:
        row: the row.
        pinned: whether the result is pinned.
    """
    metadata = write_metadata(row.metadata)
    return TextRow(row.ns, row.checkpoint_id, row.parent_id, row.base_id, row.step, metadata, row.frame, pinned)


def plain_scalar(value: Any) -> Any:
    """Return the plain value of a scalar, as it is stored.

    Args:
        value: a scalar, or an object of a subclass of one (a `StrEnum`'s member, or the safe string of a template
            engine).

    Returns:
        The plain value; None if the value is no scalar.
    """
    if type(value) in SCALARS:
        return value
    for kind, plain in ((str, str.__str__), (int, int.__pos__), (float, float.__pos__)):
        if isinstance(value, kind):
            return cast("Any", plain)(value)
    return None


def id_text(given: object) -> str:
    """Return an id as text: of a member of an `Enum` of texts or numbers its value, as a plain id would be.

    Args:
        given: a text, a whole number, or an object whose `str()` is the id (a UUID).
    """
    return str(given if (plain := plain_scalar(given)) is None else plain)


def with_defaults(metadata: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a thread's metadata with the given keys that it lacks. Existing keys keep their values.

    Args:
        metadata: the thread's metadata.
        given: the metadata of a call.
    """
    return {**metadata, **{key: value for key, value in given.items() if key not in metadata}}


def with_changes(metadata: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a thread's metadata after changes.

    Args:
        metadata: the thread's metadata.
        changes: values by key; None deletes a key.
    """
    changed = {**metadata, **changes}
    return {key: value for key, value in changed.items() if value is not None or key not in changes}


def checked_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes of a thread's metadata as they are stored, if they are allowed.

    Args:
        changes: values by key; None deletes a key.

    Raises:
        ValueError: the changes are no mapping; a key is not text, or begins with "__" as those of the runtime do; a
            value is not text, a finite number or a bool; or a text has a lone surrogate.
    """
    if not isinstance(cast("object", changes), Mapping):
        raise ValueError(f"metadata is a mapping of keys to values, or to None to delete them, not {changes!r}")
    for key, value in cast("Mapping[object, object]", changes).items():
        if not isinstance(key, str) or key.startswith("__"):
            raise ValueError(f"metadata key {key!r}: a key is a text that does not begin with '__'")
        if not (value is None or plain_scalar(value) is not None):
            raise ValueError(
                f"metadata {key!r} is {value!r}: a value is a str, int, float or bool, or None to delete it"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"metadata {key!r} is {value}, which JSON cannot hold")
        try:
            f"{key}{value}".encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"metadata {key!r} holds half of a surrogate pair, which no database stores") from error
    return {str.__str__(key): plain_scalar(value) for key, value in changes.items()}


def metadata_matches(metadata: Mapping[str, Any], filter: Mapping[str, Any] | None) -> bool:
    """Return True if all entries of a filter are equal in the metadata.

    A bool never equals a number here, at any depth.

    Args:
        metadata: the metadata.
        filter: the entries; None matches everything.
    """
    return not filter or all(key in metadata and _equal(metadata[key], wanted) for key, wanted in filter.items())


def _equal(found: Any, wanted: Any) -> bool:
    # Python calls [True] and [1] equal, so containers are compared element by element.
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(_equal(found[key], wanted[key]) for key in found)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_equal, found, wanted))
    return bool(found == wanted) and isinstance(found, bool) is isinstance(wanted, bool)
