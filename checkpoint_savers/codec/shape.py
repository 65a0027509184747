"""How objects of a class are taken apart for storing, and made again without running their code: the contract.

An object is made of its parts as copy and pickle make one: `__init__`, `__post_init__` and validators do not run, since
what was stored had been made once. Parts are stored by name, so that a class may change: a field that it has now and
the bytes have not takes its default, and one that it has no longer is dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from types import MemberDescriptorType
from typing import Any, Final, cast

from .reading import Damaged, Misfit
from .writing import Refused, ValueWriter

HEAP_TYPE: Final = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: a class of a class statement (or of a C module of the newer kind)."""

Default = Callable[[], object]
"""Makes the default of a field."""

_ABSENT: Final = object()


class Shape(ABC):
    """How objects of one class are taken apart and made again.

    Attributes:
        cls: the class.
        rest: what its objects may carry beside their fields; None for nothing.
    """

    __slots__ = ("cls", "rest")

    def __init__(self, cls: type, rest: ExtraAttributes | None = None) -> None:
        self.cls: Final[Any] = cls
        self.rest: Final = rest

    @abstractmethod
    def take(self, value: Any, writer: ValueWriter, enclosing: set[int]) -> object:
        """What to encode for an object. Raises `Refused`."""

    @abstractmethod
    def make(self, state: object) -> object:
        """The object of what was encoded. Whatever it raises means that the class has changed since."""


class ExtraAttributes:
    """Attributes of an object beside its fields: what a `__post_init__` computed, or a subclass of list carries.

    Cached properties are left out (they come again when they are asked for), and so are names with two leading
    underscores, which typing leaves on objects of generic classes.
    """

    __slots__ = ("_left_out", "_slots")

    def __init__(self, left_out: frozenset[str], slots: frozenset[str]) -> None:
        self._left_out = left_out
        self._slots = slots

    @classmethod
    def of(cls, owner: type, fields: Collection[str]) -> ExtraAttributes | None:
        """None if objects of the class cannot have other attributes."""
        members = [item for base in owner.__mro__ if base.__flags__ & HEAP_TYPE for item in vars(base).items()]
        cached = {name for name, member in members if isinstance(member, cached_property)}
        slots = {name for name, member in members if isinstance(member, MemberDescriptorType)}
        slots = {name for name in slots.difference(fields) if not name.startswith("__")}
        return cls(frozenset(cached.union(fields)), frozenset(slots)) if slots or owner.__dictoffset__ else None

    def take(self, value: object, writer: ValueWriter, enclosing: set[int]) -> object:
        """The attributes to encode; None if there are none."""
        found = {name: part for name in sorted(self._slots) if (part := getattr(value, name, _ABSENT)) is not _ABSENT}
        attributes: dict[str, object] = getattr(value, "__dict__", {})
        found |= {n: part for n, part in attributes.items() if n not in self._left_out and not n.startswith("__")}
        return writer.fields(found, enclosing) if found else None

    def give(self, value: object, rest: Mapping[str, object]) -> None:
        """Sets attributes. The names come from the bytes: fields, and names of Python's own, are left alone."""
        attributes: dict[str, object] | None = getattr(value, "__dict__", None)
        for name, part in rest.items():
            if name in self._slots:
                object.__setattr__(value, name, part)
            elif attributes is not None and name not in self._left_out and not name.startswith("__"):
                attributes[name] = part


def mapping(state: object) -> Mapping[str, object]:
    """The parts of an object, by name."""
    if type(state) is not dict:
        raise Damaged("an object without the names of its parts")
    return cast("dict[str, object]", state)


def present(value: object, names: Collection[str]) -> dict[str, object]:
    """An object's fields. One that is not set is refused: it would come back as its default, or not at all."""
    try:
        return {name: getattr(value, name) for name in names}
    except AttributeError:
        name = next(name for name in names if not hasattr(value, name))
        raise Refused("this field is not set", f".{name}") from None


def filled(cls: type, names: Mapping[str, Default | None], state: object) -> Mapping[str, object]:
    """The stored fields that a class has now, with defaults for those that were not stored. Raises `Misfit`."""
    stored = mapping(state)
    if stored.keys() == names.keys():
        return stored
    out = dict[str, object]()
    for name, default in names.items():
        if name in stored:
            out[name] = stored[name]
        elif default is not None:
            out[name] = default()
        else:
            reason = f"lacks field {name!r}, which {cls.__qualname__} needs now"
            raise Misfit(name, reason, "give the field a default")
    return out


def constant(value: object) -> Default:
    """The default that is one value."""
    return lambda: value
