"""Copy data other than plain dicts and lists: one copier per type, looked up once.

A copier takes a value and a function to apply to each element or field. It returns the value itself if no element has
changed and the value cannot be changed in place.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cached_property, partial
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, NoneType
from typing import Any

import msgspec

from checkpoint_savers.codec.plain_scalars import plain_maker

Copier = Callable[[Any, Callable[[Any], Any]], Any]

ATOMS: frozenset[type] = frozenset(
    {
        *(NoneType, bool, int, float, complex, str, bytes, range, type, type(Ellipsis), type(NotImplemented)),
        *(datetime, date, time, timedelta, timezone, Decimal, Fraction),
        *(FunctionType, BuiltinFunctionType, MethodType, partial),
    }
)
"""Types whose values cannot be changed in place, or are code. They are never copied."""


# A global cache is safe: a copier depends on the type alone.
_copiers: dict[type, Copier] = {}


def is_opaque(kind: type) -> bool:
    """Return True if values of a type are shared although they may be changed in place."""
    return kind not in ATOMS and copier_of(kind) is _shared and not issubclass(kind, (Enum, type))


def copier_of(kind: type) -> Copier:
    """Return the copier of a type."""
    known = _copiers.get(kind)
    if known is not None:
        return known
    if kind in ATOMS or issubclass(kind, (Enum, type)):
        found: Copier = _shared
    elif kind is tuple:
        found = _copy_tuple
    elif kind is set:
        found = _copy_set
    elif kind is frozenset:
        found = _copy_frozenset
    elif plain_maker(kind) is not None:
        found = bare_scalar
    elif issubclass(kind, _BUILT_IN):
        found = _built_in_copier(kind)
    elif issubclass(kind, msgspec.Struct):
        found = _struct_copier(kind)
    elif dataclasses.is_dataclass(kind):
        found = _dataclass_copier(kind)
    elif hasattr(kind, "__pydantic_fields__") or hasattr(kind, "__pydantic_fields_set__"):
        found = _model_copier(kind)
    else:
        found = _shared
    _copiers[kind] = found
    return found


def _shared(value: Any, each: Callable[[Any], Any]) -> Any:
    return value


def bare_scalar(value: Any, each: Callable[[Any], Any]) -> Any:
    """Return the value: the copier of subclasses of plain scalars without data of their own.

    `own` recognises this copier, and makes the plain value.
    """
    return value


def _copy_set(value: set[Any], each: Callable[[Any], Any]) -> set[Any]:
    return set(_members(value, each))


def _copy_frozenset(value: frozenset[Any], each: Callable[[Any], Any]) -> frozenset[Any]:
    members = _members(value, each)
    return value if members is value or _same(members, value) else frozenset(members)


def _members(value: Collection[Any], each: Callable[[Any], Any]) -> Collection[Any]:
    """Return copies of a set's members."""
    # Members are hashable, yet may hold lists: an object that compares by identity, or one with frozen fields.
    return value if ATOMS.issuperset(map(type, value)) else [each(item) for item in value]


def _copy_tuple(value: tuple[Any, ...], each: Callable[[Any], Any]) -> tuple[Any, ...]:
    made = tuple([each(item) for item in value])
    return value if _same(made, value) else made


class Attributes:
    """The attributes that objects of a class may have in addition to their fields or elements.

    Attributes that a `__post_init__` sets, or that an object of a list subclass has, are data as the fields are: they
    are copied and stored with the object (`checkpoint_savers.codec.shape.ExtraAttributes`).

    Attributes:
        can_be: objects of the class can have such attributes.
        cached: the class has cached properties, so that reading an object can change it.
    """

    # Cached properties are neither copied nor stored: they were computed from the original, whose fields may differ
    # from the copy's by then. The copy computes its own.

    __slots__ = ("_cached", "_fields", "_known", "_loose", "_slots", "cached", "can_be")

    def __init__(self, kind: Any, fields: Iterable[str] = ()) -> None:
        members = [member for base in kind.__mro__ for member in vars(base).items()]
        self._fields = frozenset(fields)
        self._cached = frozenset(name for name, member in members if isinstance(member, cached_property))
        self._slots = tuple(
            {
                name: None
                for base in kind.__mro__
                for name, member in vars(base).items()
                if isinstance(member, MemberDescriptorType)
                and "__slots__" in vars(base)
                and name not in self._fields
                and not name.startswith("__")
            }
        )
        self._known = self._fields | self._cached
        self._loose: bool = kind.__dictoffset__ != 0
        self.cached = bool(self._cached)
        self.can_be = self._loose or bool(self._slots)

    def of(self, value: Any) -> Iterator[tuple[str, Any]]:
        """Yield the names and values of an object's attributes."""
        for name in self._slots:
            item = getattr(value, name, _UNSET)
            if item is not _UNSET:
                yield name, item
        if self._loose:
            for name, item in value.__dict__.items():
                if name not in self._known:
                    yield name, item

    def copied(self, value: Any, each: Callable[[Any], Any]) -> dict[str, Any]:
        """Return copies of an object's attributes."""
        # Nearly all objects have none, and comparing key views runs in C.
        if not self._slots and (not self._loose or value.__dict__.keys() <= self._known):
            return {}
        # Python's own names (`__orig_class__` of generic classes) are no data. They are not stored either.
        return {
            name: item if type(item) in ATOMS or name.startswith("__") else each(item) for name, item in self.of(value)
        }

    def changed(self, value: Any, carried: dict[str, Any]) -> bool:
        """Return True if any of the copies differs from the object's own attribute."""
        return any(item is not carried[name] for name, item in self.of(value)) if carried else False

    def give(self, made: Any, attributes: dict[str, Any]) -> None:
        """Set a copy's attributes, and remove its cached properties."""
        for name in self._slots:
            if name in attributes:
                object.__setattr__(made, name, attributes[name])  # the class may be frozen
        if self._loose and (attributes or self.cached):
            loose: dict[str, Any] = made.__dict__
            for name in self._cached:
                loose.pop(name, None)
            loose.update({name: item for name, item in attributes.items() if name not in self._slots})


_UNSET = object()


def _built_in_copier(kind: type) -> Copier:
    """Return the copier of a subclass of a built-in container or of a container of `collections`."""
    # The copy is made with the base type's own methods. `__init__`, `__new__` and `append` of the subclass are not
    # called: they may need other arguments, or would do their work twice. A class with a `__copy__` makes the copy.
    base = next(base for base in _BUILT_IN if issubclass(kind, base))
    attributes = Attributes(kind)
    if "__copy__" in {name for each in kind.__mro__[: kind.__mro__.index(base)] for name in vars(each)}:
        return partial(_copy_as_it_says, attributes)
    make = _MAKERS[base]

    def copy_built_in(value: Any, each: Callable[[Any], Any]) -> Any:
        made = make(kind, base, value, each)
        if attributes.can_be:
            attributes.give(made, attributes.copied(value, each))
        elif base in (tuple, frozenset) and _same(base.__iter__(made), base.__iter__(value)):
            return value
        return made

    return copy_built_in


def _make_list(kind: Any, base: Any, value: Any, each: Callable[[Any], Any]) -> Any:
    made: Any = list.__new__(kind)
    list.extend(made, [each(item) for item in list.__iter__(value)])
    return made


def _make_deque(kind: Any, base: Any, value: Any, each: Callable[[Any], Any]) -> Any:
    made: Any = deque.__new__(kind)
    deque.__init__(made, [each(item) for item in deque.__iter__(value)], value.maxlen)
    return made


def _make_dict(kind: Any, base: Any, value: Any, each: Callable[[Any], Any]) -> Any:
    made = base.__new__(kind)
    if base is defaultdict:
        defaultdict.__init__(made, value.default_factory)
    for key, item in base.items(value):
        # Keys are shared, except subclasses of plain scalars, which `own` replaces by the plain value.
        if type(key) not in ATOMS and copier_of(type(key)) is bare_scalar:
            key = each(key)
        base.__setitem__(made, key, item if type(item) in ATOMS else each(item))
    return made


def _make_set(kind: Any, base: Any, value: Any, each: Callable[[Any], Any]) -> Any:
    made: Any = set.__new__(kind)
    set.update(made, _members([*set.__iter__(value)], each))
    return made


def _make_bytearray(kind: Any, base: Any, value: Any, each: Callable[[Any], Any]) -> Any:
    made: Any = bytearray.__new__(kind)
    bytearray.extend(made, memoryview(value))
    return made


def _copy_as_it_says(attributes: Attributes, value: Any, each: Callable[[Any], Any]) -> Any:
    """Copy an object by its class's `__copy__`, then copy the elements."""
    made = copy.copy(value)
    if isinstance(made, dict):
        for key, item in dict.items(made):
            dict.__setitem__(
                made, key, each(item)
            )  # the key exists, so the size does not change and the iteration may continue
    elif isinstance(made, (list, deque)):
        for index, item in enumerate([*made]):
            made[index] = each(item)
    if type(made) is type(value) and attributes.can_be:
        attributes.give(made, attributes.copied(made, each))
    return made


_MAKERS: dict[type, Callable[[Any, Any, Any, Callable[[Any], Any]], Any]] = {
    # The most derived type first, because the first match is taken: a defaultdict is a dict.
    OrderedDict: _make_dict,
    defaultdict: _make_dict,
    dict: _make_dict,
    list: _make_list,
    deque: _make_deque,
    set: _make_set,
    bytearray: _make_bytearray,
    tuple: lambda kind, base, value, each: tuple.__new__(kind, [each(item) for item in tuple.__iter__(value)]),
    frozenset: lambda kind, base, value, each: frozenset.__new__(
        kind, _members([*frozenset[Any].__iter__(value)], each)
    ),
}

_BUILT_IN = tuple(_MAKERS)


def _struct_copier(kind: type[msgspec.Struct]) -> Copier:
    names, frozen = kind.__struct_fields__, kind.__struct_config__.frozen
    attributes = Attributes(kind, names)

    def copy_struct(value: Any, each: Callable[[Any], Any]) -> Any:
        carried = attributes.copied(value, each) if attributes.can_be else {}
        # A frozen object may be shared, unless its fields or attributes have to be copied. An object with cached
        # properties is always copied, because reading them changes it.
        shared = frozen and not attributes.cached and not attributes.changed(value, carried)
        made: Any = None if shared else copy.copy(value)
        for name in names:
            item = getattr(value, name)
            if type(item) in ATOMS:
                continue
            mine = each(item)
            if mine is not item:
                if made is None:
                    made = copy.copy(value)
                msgspec.structs.force_setattr(made, name, mine)
        if made is None:
            return value
        if attributes.can_be:
            attributes.give(made, carried)
        return made

    return copy_struct


def _dataclass_copier(kind: Any) -> Copier:
    names = tuple(field.name for field in dataclasses.fields(kind))
    frozen = kind.__dataclass_params__.frozen
    attributes = Attributes(kind, names)

    def copy_dataclass(value: Any, each: Callable[[Any], Any]) -> Any:
        changed: list[tuple[str, Any]] = []
        for name in names:
            item = getattr(value, name, None)
            if type(item) in ATOMS:
                continue
            mine = each(item)
            if mine is not item:
                changed.append((name, mine))
        carried = attributes.copied(value, each) if attributes.can_be else {}
        if frozen and not changed and not attributes.cached and not attributes.changed(value, carried):
            return value
        made = copy.copy(value)
        for name, mine in changed:
            object.__setattr__(made, name, mine)  # works on frozen classes, too; no other code has the copy yet
        if attributes.can_be:
            attributes.give(made, carried)
        return made

    return copy_dataclass


def _model_copier(kind: Any) -> Copier:
    cached = [name for base in kind.__mro__ for name, item in vars(base).items() if isinstance(item, cached_property)]
    return partial(_copy_model, cached)


def _copy_model(cached: list[str], value: Any, each: Callable[[Any], Any]) -> Any:
    made = copy.copy(value)  # pydantic copies __dict__, the extras and the private attributes, one level deep
    for name in cached:
        made.__dict__.pop(name, None)
    for part in ("__dict__", "__pydantic_extra__", "__pydantic_private__"):
        names = getattr(made, part, None) or {}
        for name, item in list(names.items()):
            mine = each(item)
            if mine is not item:
                names[name] = mine
    return made


def _same(left: Iterable[Any], right: Iterable[Any]) -> bool:
    return all(a is b for a, b in zip(left, right, strict=True))
