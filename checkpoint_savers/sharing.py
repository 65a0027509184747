"""Pending sends that carry the state: values that they share with the state's channels are stored once.

    stored = shared(send.arg, Shareable(values))     writing: references in the place of the state's values
    arg = filled(stored, value_of)                   reading: values in the place of the references

`Send("tools", {**state, "call": call})` carries all messages of the state, and the next superstep's sends carry them
again. Stored as they are, a thread of n messages would take space for n * n of them. A reference (`Shared`) names the
channel of the same checkpoint that holds the same objects.

Shared values are found by identity: a node that returns its input unchanged returns the object that the state holds.
Other lists are compared only with the channel that has the same name as their key in the argument, and only up to the
first different element: a pydantic model copies its lists, so that none of its elements is identical.
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
"""Number of levels of dicts and objects in an argument that are searched: `{"state": {"messages": [...]}}` has two."""

LARGE: Final = 64
"""Characters or bytes of a text, or scalars of a list, from which a reference is smaller than the value."""


class Shareable:
    """The values of a checkpoint's channels, by identity.

    Args:
        values: value by channel, of the channels that are stored.
        alike: returns how many of a list's first elements the channel of this name stores as the same bytes.
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
            value: a value in a send's argument.
            name: the value's key or field in its container; "" if it has none.
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
    """Return a send's argument as it is stored: itself, or a copy with references.

    Args:
        arg: the argument.
        held: the channels' values.
        depth: number of levels to search.
        name: the argument's key or field in its container; "" if it has none.
    """
    mark = held.mark(arg, name)
    if mark is not None:
        return mark
    if not depth:
        return arg
    found = {part: made for part, value in parts_of(arg) if (made := shared(value, held, depth - 1, part)) is not value}
    return with_parts(arg, found) if found else arg


def filled(arg: Any, value_of: Callable[[str], Any], depth: int = DEPTH) -> Any:
    """Return a send's argument with values in the place of references.

    Args:
        arg: the stored argument.
        value_of: returns the decoded value of a channel.
        depth: number of levels to search.

    Raises:
        LookupError, TypeError: a reference does not fit the channel's value: the checkpoint is damaged.
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
    """Return pending sends with values in the place of the references in their arguments.

    Args:
        sends: the stored sends.
        value_of: returns the decoded value of a channel.
        where: what is being read, for the error.

    Raises:
        CorruptCheckpointError: a reference does not fit the channel's value.
    """
    try:
        return [filled(send, value_of, DEPTH + 1) for send in sends]  # the send itself is one level
    except (LookupError, TypeError) as error:
        reason = f"a part of it refers to what is not stored ({error})"
        raise CorruptCheckpointError(f"{where}, a pending send", reason) from error


def parts_of(arg: Any) -> list[tuple[str, Any]]:
    """Return the entries of a dict that have text keys, or the fields of an object of a state's class; else nothing.

    Args:
        arg: the dict or object.
    """
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
    """Return a copy of an argument with some parts replaced.

    Args:
        arg: the dict or object.
        parts: the new parts, by name.
    """
    if isinstance(arg, StoredObject):
        return StoredObject(arg.type, {**arg.fields, **parts})
    # A shallow copy and attribute assignment, since the class's own code must not run: a constructor or validator could
    # refuse a reference in the place of a value.
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
