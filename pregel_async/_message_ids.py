"""Ids for messages without one, derived from the task that wrote the message, its position, and its content.

A message is written once: by a task, an input, or an edit. Its id is derived from this origin. So two messages with the
same content get two ids, and one message has the same id everywhere: in the fold of the superstep, in the view of a
router, in a stream, and on a retry, resume and replay (P2). Checkpoint ids are never part of it, not even for inputs
and edits: a checkpoint id contains the time, so that two identical runs would get different message ids.

`add_messages` is a function of two lists and does not know the origin. Context variables pass it on: a fold sets
`FOLD`, and the runtime sets `TASK` for code of a node that calls `add_messages` itself. If neither is set,
`add_messages` is called outside a run, and ids are random.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from enum import Enum
from hashlib import blake2b
from typing import Any, Final, Protocol, TypeAlias, cast
from uuid import uuid4

import msgspec


class Naming(Protocol):
    """Gives ids to messages that have none."""

    def message_id(self, message: Any) -> str:
        """Return the id of the next message with this content.

        The same id may be returned twice; `add_messages` then adds a count to the second.
        """
        ...


FOLD: Final[ContextVar[Naming | None]] = ContextVar("pregel_async.fold", default=None)
"""Gives ids to messages in the current fold; None outside folds."""

TASK: Final[ContextVar[Naming | None]] = ContextVar("pregel_async.current", default=None)
"""Gives ids to messages in the code of the running node or task; None outside runs.

`_runtime.tasks.context.CURRENT` is this very variable, and attempts implement `Naming`: a second variable would have to
be set and reset for every task."""

MessagePosition: TypeAlias = "int | str | tuple[MessagePosition, ...]"
"""The position of a message in a write: its index in the list, or 0 for a single message; for each enclosing mapping,
in a pair with its key there."""


def derive_message_id(base: str, channel: str, nth: int, position: MessagePosition, content: str) -> str:
    """Return the id of a message that was written without one: 32 hex digits.

    Args:
        base: the id of the task that wrote the message, or `_core.ids.outside_id` for inputs and edits.
        channel: the channel that was written.
        nth: the index of the write among the writer's writes to the channel, from 0.
        position: the message's position in that write.
        content: the message's `fingerprint`.
    """
    key = f"{base} {channel!r} {nth} {position!r} {content}".encode("utf-8", "surrogatepass")
    return blake2b(key, digest_size=16).hexdigest()


def next_id(message: Any) -> str:
    """Return an id for a message without one: from the running fold, else from the running task, else random."""
    naming = FOLD.get()
    if naming is None:
        naming = TASK.get()
    return uuid4().hex if naming is None else naming.message_id(message)


def is_model(kind: type) -> bool:
    """Return True if a class is a pydantic model."""
    return hasattr(kind, "__pydantic_fields_set__")


def fingerprint(message: Any) -> str:
    """Return 32 hex digits that are equal for equal messages, in every process and on every version of Python."""
    if isinstance(message, dict):
        name, parts = "", cast("Mapping[Any, Any]", message)
    else:
        name = type(message).__qualname__
        parts = _fields_of(message) or getattr(message, "__dict__", {})
    text = name + _canonical({key: value for key, value in parts.items() if key != "id"})
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _canonical(value: object) -> str:
    """Return a text that is equal for equal values, whatever the order of their keys."""
    # Not `repr`: it contains addresses and the order of sets, and its escapes change between versions of Python.
    # An object of an unknown class is represented by its class alone.
    if isinstance(value, str):
        return f"{len(value)}:{value}"
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, Mapping):
        return "{" + ",".join(sorted(f"{_canonical(key)}={_canonical(part)}" for key, part in value.items())) + "}"
    if isinstance(value, (list, tuple, deque)):
        return "[" + ",".join([_canonical(part) for part in cast("Iterable[object]", value)]) + "]"
    if isinstance(value, (set, frozenset)):
        return "<" + ",".join(sorted(_canonical(part) for part in cast("Iterable[object]", value))) + ">"
    name = type(value).__qualname__
    if value is None or isinstance(value, _PLAIN):
        return f"{name} {value!r}"
    parts = _fields_of(value)
    if parts is not None:
        return name + _canonical(parts)
    # `str` identifies values of the standard library's types: dates, decimals, uuids, paths.
    is_standard = type(value).__module__.partition(".")[0] in sys.stdlib_module_names
    return f"{name} {value}" if is_standard and type(value).__str__ is not object.__str__ else name


_PLAIN: Final = (bool, int, float, complex, bytes, bytearray, range)


def _fields_of(value: Any) -> dict[str, Any] | None:
    """Return an object's fields that are not None; None if its class declares no fields."""
    # Fields that are None are left out, so that a class can get another optional field without changing the ids of its
    # existing objects.
    kind: Any = type(value)
    if isinstance(value, msgspec.Struct):
        found = {name: getattr(value, name, None) for name in value.__struct_fields__}
    elif dataclasses.is_dataclass(value):
        found = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    elif is_model(kind):
        # pydantic has `__pydantic_fields__` from 2.10 on. Older versions have `model_fields` only.
        names = kind.__pydantic_fields__ if hasattr(kind, "__pydantic_fields__") else kind.model_fields
        found = {name: value.__dict__.get(name) for name in names} | (value.__pydantic_extra__ or {})
    else:
        return None
    return {name: part for name, part in found.items() if part is not None}
