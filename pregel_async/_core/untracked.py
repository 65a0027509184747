"""Untracked keys in the arguments of sends: what is stored in their place, and how it is filled again.

The value of an untracked key is never stored (a connection, a secret), and a send may carry it to the node:
`Send("work", {**state, "item": item})`. A mark is stored instead of the value. A run that is resumed in another process
finds the mark, and takes the value that its own state has for the key.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec

from ..types import Send


class NotStored(msgspec.Struct, frozen=True):
    """Stands for the value of an untracked key in what is stored of a send.

    Attributes:
        key: the key.
    """

    key: str


def storable(send: Send, untracked: frozenset[str]) -> Send:
    """Return what is stored of a send: a mark for each value of an untracked key in its argument.

    Args:
        untracked: the graph's untracked keys.
    """
    found = {name: NotStored(name) for name, value in _fields(send.arg) if name in untracked and value is not None}
    return msgspec.structs.replace(send, arg=_replaced(send.arg, found)) if found else send


def missing(arg: Any) -> list[str]:
    """Return the keys of a send's argument whose values were not stored, sorted."""
    return sorted(name for name, value in _fields(arg) if type(value) is NotStored)


def filled(arg: Any, values: Mapping[str, Any]) -> Any:
    """Return a send's argument with the marks replaced, each by the value of its name."""
    return _replaced(arg, values)


def _fields(arg: Any) -> list[tuple[str, Any]]:
    """The entries of a dict, or the fields of an object of a state's class."""
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


def _replaced(arg: Any, values: Mapping[str, Any]) -> Any:
    made = copy.copy(arg)
    for name, value in values.items():
        if isinstance(made, dict):
            made[name] = value
        elif isinstance(made, msgspec.Struct):
            msgspec.structs.force_setattr(made, name, value)
        elif dataclasses.is_dataclass(made):
            object.__setattr__(made, name, value)
        else:
            made.__dict__[name] = value
    return made
