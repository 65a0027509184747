"""Ids for messages that come without one: made of the task that wrote the message, of its place, and of its content.

A message is written once: by a task, by an input, or by an edit. Its id is made of where that happened, so that two
messages of the same words are two messages, and that the same message has the same id wherever it is met: in the fold
of the superstep, in the view of a router, in a stream, on a retry, a resume and a replay (P2). No checkpoint's id goes
into it, not even of what an input or an edit brings: a checkpoint's id has the time in it, and two identical runs would
differ by that.

`add_messages` is a function of two lists and knows none of that. So a fold says in a context variable what the messages
in it are called (`FOLD`), and so does the runtime for code of a node that calls `add_messages` itself (`TASK`). Where
neither is set, `add_messages` is called outside of a run, and ids are random.
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
        """Return the id of the next message of this content.

        Two messages may get one id: `add_messages` adds a count to the second.
        """
        ...


FOLD: Final[ContextVar[Naming | None]] = ContextVar("pregel_async.fold", default=None)
"""Names the messages in the fold that is being done; None outside of folds."""

TASK: Final[ContextVar[Naming | None]] = ContextVar("pregel_async.current", default=None)
"""Names the messages in the code of a node or task that is running; None outside of runs.

`_runtime.tasks.context.CURRENT` is this variable, and attempts are `Naming`s: a second variable would have to be set
for every task."""

MessagePosition: TypeAlias = "int | str | tuple[MessagePosition, ...]"
"""Where in a write a message is: its index in the list, behind the keys of the mappings around that; 0 if alone."""


def derive_message_id(base: str, channel: str, nth: int, position: MessagePosition, content: str) -> str:
    """Return the id of a message that was written without one: 32 hex digits.

    Args:
        base: who wrote it: the id of a task, or `_core.ids.outside_id`.
        channel: where it was written to.
        nth: which of the writer's writes to the channel it is in, from 0.
        place: where in that write it is.
        content: its `fingerprint`.
    """
    key = f"{base} {channel!r} {nth} {position!r} {content}".encode("utf-8", "surrogatepass")
    return blake2b(key, digest_size=16).hexdigest()


def next_id(message: Any) -> str:
    """Return an id for a message that has none, as the running fold or task gives it, or a random one."""
    naming = FOLD.get()
    if naming is None:
        naming = TASK.get()
    return uuid4().hex if naming is None else naming.message_id(message)


def is_model(kind: type) -> bool:
    """Return True if a class is a pydantic model."""
    return hasattr(kind, "__pydantic_fields_set__")


def fingerprint(message: Any) -> str:
    """32 hex digits that are the same for equal messages, in every process and on every version of Python."""
    if isinstance(message, dict):
        name, parts = "", cast("Mapping[Any, Any]", message)
    else:
        name = type(message).__qualname__
        parts = _fields_of(message) or getattr(message, "__dict__", {})
    text = name + _canonical({key: value for key, value in parts.items() if key != "id"})
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _canonical(value: object) -> str:
    """A value as text: equal for equal values, whatever the order of their keys.

    Not `repr`, which writes addresses, the order of a set, and other escapes from one version of Python to the next.
    Nothing is left out but what has no value of its own: of an object of an unknown class there is only its class.
    """
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
    # Values of the standard library's own types (dates, decimals, uuids, paths) say by `str` what they are.
    is_standard = type(value).__module__.partition(".")[0] in sys.stdlib_module_names
    return f"{name} {value}" if is_standard and type(value).__str__ is not object.__str__ else name


_PLAIN: Final = (bool, int, float, complex, bytes, bytearray, range)


def _fields_of(value: Any) -> dict[str, Any] | None:
    """An object's fields that are not None; None when its class does not say which it has.

    Without None, a class may get another optional field, and the ids of its objects stay as they were.
    """
    kind: Any = type(value)
    if isinstance(value, msgspec.Struct):
        found = {name: getattr(value, name, None) for name in value.__struct_fields__}
    elif dataclasses.is_dataclass(value):
        found = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    elif is_model(kind):
        # The first is new in pydantic 2.10, where the second may not be asked of an object any more.
        names = kind.__pydantic_fields__ if hasattr(kind, "__pydantic_fields__") else kind.model_fields
        found = {name: value.__dict__.get(name) for name in names} | (value.__pydantic_extra__ or {})
    else:
        return None
    return {name: part for name, part in found.items() if part is not None}
