"""How data that is no plain dict or list is copied: one copier per type, looked up once.

A copier takes the value and what to apply to each thing inside it. It returns the value itself when nothing inside
changed and the value cannot be changed in place either.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, NoneType
from typing import Any

import msgspec

Copier = Callable[[Any, Callable[[Any], Any]], Any]

ATOMS: frozenset[type] = frozenset(
    {
        *(
            NoneType,
            bool,
            int,
            float,
            complex,
            str,
            bytes,
            range,
            type,
            frozenset,
            type(Ellipsis),
            type(NotImplemented),
        ),
        *(datetime, date, time, timedelta, timezone, Decimal, Fraction),
        *(FunctionType, BuiltinFunctionType, MethodType, partial),
    }
)
"""Types whose values cannot be changed in place, or are code."""


_copiers: dict[type, Copier] = {}  # a cache: what is put in depends on the type alone


def is_opaque(kind: type) -> bool:
    """Whether values of a type are shared, although they may be changed in place."""
    return kind not in ATOMS and copier_of(kind) is _shared and not issubclass(kind, (Enum, type))


def copier_of(kind: type) -> Copier:
    """The copier of a type."""
    known = _copiers.get(kind)
    if known is not None:
        return known
    if kind in ATOMS or issubclass(kind, (Enum, type)):
        found: Copier = _shared
    elif kind is tuple:
        found = _copy_tuple
    elif kind is set:
        found = _copy_set
    elif issubclass(kind, tuple):
        found = _copy_tuple_subclass
    elif issubclass(kind, dict):
        found = _copy_mapping
    elif issubclass(kind, (list, deque)):
        found = _copy_sequence
    elif issubclass(kind, (set, bytearray)):
        found = _copy_shallow
    elif issubclass(kind, msgspec.Struct):
        found = _struct_copier(kind)
    elif dataclasses.is_dataclass(kind):
        found = _copy_dataclass
    elif hasattr(kind, "__pydantic_fields__") or hasattr(kind, "__pydantic_fields_set__"):
        found = _copy_model
    else:
        found = _shared
    _copiers[kind] = found
    return found


def _shared(value: Any, each: Callable[[Any], Any]) -> Any:
    return value


def _copy_shallow(value: Any, each: Callable[[Any], Any]) -> Any:
    return copy.copy(value)


def _copy_set(value: set[Any], each: Callable[[Any], Any]) -> set[Any]:
    return set(value)


def _copy_tuple(value: tuple[Any, ...], each: Callable[[Any], Any]) -> tuple[Any, ...]:
    made = tuple([each(item) for item in value])
    return value if _same(made, value) else made


def _copy_tuple_subclass(value: Any, each: Callable[[Any], Any]) -> Any:
    made = [each(item) for item in value]
    if _same(made, value):
        return value
    copied = tuple.__new__(type(value), made)  # not by its class, whose arguments nobody knows
    if hasattr(value, "__dict__"):
        copied.__dict__.update(value.__dict__)
    return copied


def _copy_mapping(value: Any, each: Callable[[Any], Any]) -> Any:
    made = copy.copy(value)
    for key, item in dict.items(value):
        mine = each(item)
        if mine is not item:
            dict.__setitem__(made, key, mine)
    return made


def _copy_sequence(value: Any, each: Callable[[Any], Any]) -> Any:
    made = copy.copy(value)
    for index, item in enumerate(value):
        mine = each(item)
        if mine is not item:
            made[index] = mine
    return made


def _struct_copier(kind: type[msgspec.Struct]) -> Copier:
    names, frozen = kind.__struct_fields__, kind.__struct_config__.frozen

    def copy_struct(value: Any, each: Callable[[Any], Any]) -> Any:
        made: Any = None if frozen else copy.copy(value)
        for name in names:
            item = getattr(value, name)
            if type(item) in ATOMS:
                continue
            mine = each(item)
            if mine is not item:
                if made is None:
                    made = copy.copy(value)
                msgspec.structs.force_setattr(made, name, mine)
        return value if made is None else made

    return copy_struct


def _copy_dataclass(value: Any, each: Callable[[Any], Any]) -> Any:
    changed: list[tuple[str, Any]] = []
    for field in dataclasses.fields(value):
        item = getattr(value, field.name, None)
        mine = each(item)
        if mine is not item:
            changed.append((field.name, mine))
    if not changed and type(value).__dataclass_params__.frozen:
        return value
    made = copy.copy(value)
    for name, mine in changed:
        object.__setattr__(made, name, mine)  # frozen ones too: the copy is nobody's yet
    return made


def _copy_model(value: Any, each: Callable[[Any], Any]) -> Any:
    made = copy.copy(value)  # pydantic copies __dict__, the extras and the private attributes, one level deep
    for part in ("__dict__", "__pydantic_extra__", "__pydantic_private__"):
        names = getattr(made, part, None) or {}
        for name, item in list(names.items()):
            mine = each(item)
            if mine is not item:
                names[name] = mine
    return made


def _same(left: Iterable[Any], right: Iterable[Any]) -> bool:
    return all(a is b for a, b in zip(left, right, strict=True))
