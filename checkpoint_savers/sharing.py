"""Pending sends that carry the state: what they share with the state's own values is stored once.

    stored = shared(send.arg, Shareable(values))     writing: marks in the place of what the state holds
    arg = filled(stored, value_of)                   reading: the values in the place of the marks

`Send("tools", {**state, "call": call})` carries all messages of the state, and the next superstep's sends carry them
again. Stored as they are, a thread of n messages would take n * n of them. A mark (`Shared`) names the channel of the
same checkpoint that holds the same objects.

Shared values are found by identity: a node that returns its input unchanged returns the object that the state holds.
Other lists are compared only with the channel of the same name as their key in the argument, and only up to the first
element that differs: a pydantic model copies its lists, so that none of its elements is identical.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from operator import is_not
from typing import Any, Final, cast

import msgspec

from .codec.writing import SCALARS
from .errors import CorruptCheckpointError
from .records import Shared, StoredObject

DEPTH: Final = 4
"""Levels of dicts and objects in an argument that are looked into: `{"state": {"messages": [...]}}` has two."""

LARGE: Final = 64
"""Characters or bytes, or scalars in a list, from which on a mark is smaller than what it stands for."""


class Shareable:
    """The values of a checkpoint's channels, by identity.

    Args:
        values: by channel; of those that are stored.
        alike: gives the number of a list's first elements that the channel of this name stores as the same bytes.
    """

    def __init__(self, values: Mapping[str, Any], alike: Callable[[str, list[Any]], int]) -> None:
        self._alike = alike
        self._wholes: dict[int, str] = {}
        self._lists: dict[int, list[tuple[str, list[Any]]]] = {}  # by the first element
        for name, value in values.items():
            kind = type(value)
            if kind is list and value:
                self._lists.setdefault(id(value[0]), []).append((name, value))
            if (kind in (list, dict) and value) or (kind in (str, bytes) and len(value) >= LARGE):
                self._wholes.setdefault(id(value), name)

    def mark(self, value: Any, name: str) -> Shared | None:
        """Return a reference to a value, or to the longest shared prefix of a list; None if nothing is shared.

        Args:
            name: of the value in what holds it; empty for none.
        """
        whole = self._wholes.get(id(value))
        if whole is not None:
            return Shared(whole)
        if type(value) is not list or not value:
            return None
        found: Shared | None = None
        for channel, held in self._lists.get(id(value[0]), ()):
            both = min(len(value), len(held))
            count = next((at for at, differs in enumerate(map(is_not, value, held)) if differs), both)
            if found is None or count > cast("int", found.count):
                found = Shared(channel, count, value[count:])
        if found is None and (count := self._alike(name, value)):
            found = Shared(name, count, value[count:])
        if found is None or (type(value[0]) in SCALARS and cast("int", found.count) < LARGE):
            return None
        return found


def shared(arg: Any, held: Shareable, depth: int = DEPTH, name: str = "") -> Any:
    """Return what is stored of a send's argument: itself, or a copy with marks."""
    mark = held.mark(arg, name)
    if mark is not None:
        return mark
    if not depth:
        return arg
    found = {part: made for part, value in parts_of(arg) if (made := shared(value, held, depth - 1, part)) is not value}
    return with_parts(arg, found) if found else arg


def filled(arg: Any, value_of: Callable[[str], Any], depth: int = DEPTH) -> Any:
    """Return a send's argument with the values in the place of the marks.

    Args:
        value_of: gives the value of a channel, decoded.

    Raises:
        LookupError, TypeError: a mark does not fit what the channel holds: the checkpoint is damaged.
    """
    if type(arg) is Shared:
        value = value_of(arg.channel)
        if arg.count is None:
            return value
        if type(value) is not list or not 0 <= arg.count <= len(value):
            raise LookupError(f"{arg.count} elements of channel {arg.channel!r}, which does not have them")
        return [*value[: arg.count], *arg.rest]
    if not depth:
        return arg
    found = {name: made for name, value in parts_of(arg) if (made := filled(value, value_of, depth - 1)) is not value}
    return with_parts(arg, found) if found else arg


def filled_sends(sends: Iterable[Any], value_of: Callable[[str], Any], where: str) -> list[Any]:
    """Return pending sends with the values in the place of the marks in their arguments.

    Args:
        value_of: as in `filled`.
        where: what is being read, for the error.

    Raises:
        CorruptCheckpointError: a mark does not fit what the channel holds.
    """
    try:
        return [filled(send, value_of, DEPTH + 1) for send in sends]  # a send is a level itself
    except (LookupError, TypeError) as error:
        reason = f"a part of it refers to what is not stored ({error})"
        raise CorruptCheckpointError(f"{where}, a pending send", reason) from error


def parts_of(arg: Any) -> list[tuple[str, Any]]:
    """Return the entries of a dict that have names, or the fields of an object of a state's class."""
    if isinstance(arg, StoredObject):
        return list(arg.fields.items())
    if isinstance(arg, dict):
        return [(name, value) for name, value in dict.items(arg) if isinstance(name, str)]
    if isinstance(arg, msgspec.Struct):
        names: Any = arg.__struct_fields__
    elif dataclasses.is_dataclass(arg) and not isinstance(arg, type):
        names = [field.name for field in dataclasses.fields(arg)]
    elif hasattr(type(arg), "__pydantic_fields_set__"):
        names = list(arg.__dict__)
    else:
        return []
    return [(name, getattr(arg, name)) for name in names if hasattr(arg, name)]


def with_parts(arg: Any, parts: Mapping[str, Any]) -> Any:
    """Return a copy of an argument with other parts. No code of its class runs."""
    if isinstance(arg, StoredObject):
        return StoredObject(arg.type, {**arg.fields, **parts})
    made = copy.copy(arg)
    for name, value in parts.items():
        if isinstance(made, dict):
            made[name] = value
        elif isinstance(made, msgspec.Struct):
            msgspec.structs.force_setattr(made, name, value)
        elif dataclasses.is_dataclass(made):
            object.__setattr__(made, name, value)
        else:
            made.__dict__[name] = value
    return made
