"""The contract of shapes: how objects are taken apart for storing, and created again without running their code.

An object is created from its parts as copy and pickle do: `__init__`, `__post_init__` and validators do not run, since
they ran when the object was first created. Parts are stored by name, so that a class may change: a field that is not in
the bytes takes its default, and a stored field that the class no longer has is dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from types import MemberDescriptorType
from typing import Any, ClassVar, Final, cast

from .reading import Damaged, Misfit
from .writing import Refused, ValueWriter

HEAP_TYPE: Final = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: the flag of a class of a class statement (or of a C module of the newer kind)."""

Default = Callable[[], object]
"""Returns the default of a field."""

_ABSENT: Final = object()

_MODEL_PARTS: Final = [dict, list, dict, dict]
"""The parts of a stored pydantic model: fields, names of the fields that were set, extra and private values."""


class Shape(ABC):
    """How objects of one class are taken apart and created.

    Attributes:
        cls: the class.
        rest: the attributes that its objects may have besides their fields; None for none.
    """

    __slots__ = ("cls", "rest")

    by_fields: ClassVar[bool] = False
    """True if objects are stored by the names of their fields."""

    def __init__(self, cls: type, rest: ExtraAttributes | None = None) -> None:
        self.cls: Final[Any] = cls
        self.rest: Final = rest

    def names(self) -> Collection[str]:
        """Return the stored names of the class: of its fields, or of its members."""
        return ()

    @abstractmethod
    def take(self, value: Any, writer: ValueWriter, enclosing: set[int]) -> object:
        """Return what to encode for an object.

        Args:
            value: the object.
            writer: prepares its parts.
            enclosing: ids of the enclosing containers.

        Raises:
            Refused: a part cannot be stored.
        """

    @abstractmethod
    def make(self, state: object) -> object:
        """Create the object from its decoded state. Any exception means that the class has changed since.

        Args:
            state: what `take` returned, decoded.
        """


class ExtraAttributes:
    """Attributes of an object besides its fields.

    A `__post_init__` may have computed them, or a subclass of list carries them.

    Cached properties are omitted (they are computed again on access), and so are names with two leading underscores,
    which typing sets on objects of generic classes.
    """

    __slots__ = ("_left_out", "_slots")

    def __init__(self, left_out: frozenset[str], slots: frozenset[str]) -> None:
        self._left_out = left_out
        self._slots = slots

    @classmethod
    def of(cls, owner: type, fields: Collection[str]) -> ExtraAttributes | None:
        """Return the extra attributes of a class; None if its objects cannot have any.

        Args:
            owner: the class.
            fields: names of its fields.
        """
        members = [item for base in owner.__mro__ if base.__flags__ & HEAP_TYPE for item in vars(base).items()]
        cached = {name for name, member in members if isinstance(member, cached_property)}
        slots = {name for name, member in members if isinstance(member, MemberDescriptorType)}
        slots = {name for name in slots.difference(fields) if not name.startswith("__")}
        return cls(frozenset(cached.union(fields)), frozenset(slots)) if slots or owner.__dictoffset__ else None

    def take(self, value: object, writer: ValueWriter, enclosing: set[int]) -> object:
        """Return the attributes to encode; None if there are none.

        Args:
            value: the object.
            writer: prepares the attributes.
            enclosing: ids of the enclosing containers.
        """
        found = {name: part for name in sorted(self._slots) if (part := getattr(value, name, _ABSENT)) is not _ABSENT}
        attributes: dict[str, object] = getattr(value, "__dict__", {})
        found |= {n: part for n, part in attributes.items() if n not in self._left_out and not n.startswith("__")}
        return writer.fields(found, enclosing) if found else None

    def give(self, value: object, rest: Mapping[str, object]) -> None:
        """Set attributes of an object.

        Args:
            value: the object.
            rest: value by name.
        """
        # The names come from the bytes. Fields, and names of Python's own, are ignored: damaged or hostile bytes must
        # not set `__class__`.
        attributes: dict[str, object] | None = getattr(value, "__dict__", None)
        for name, part in rest.items():
            if name in self._slots:
                object.__setattr__(value, name, part)
            elif attributes is not None and name not in self._left_out and not name.startswith("__"):
                attributes[name] = part


def mapping(state: object) -> Mapping[str, object]:
    """Return the parts of an object by name, if they are such.

    Args:
        state: a decoded state.

    Raises:
        Damaged: it is no dict.
    """
    if type(state) is not dict:
        raise Damaged("an object without the names of its parts")
    return cast("dict[str, object]", state)


def named_parts(state: object) -> Mapping[str, object] | None:
    """Return the fields in the state of any kind of class; None if it has no names of fields.

    Args:
        state: the decoded state.
    """
    if type(state) is dict:
        return cast("dict[str, object]", state)
    if type(state) is not list or [type(part) for part in cast("list[object]", state)] != _MODEL_PARTS:
        return None
    fields, _, extra, _ = cast("list[dict[str, object]]", state)
    return {**extra, **fields}


def present(value: object, names: Collection[str]) -> dict[str, object]:
    """Return an object's fields.

    Args:
        value: the object.
        names: the fields' names.

    Raises:
        Refused: a field is not set. It would be restored as its default, or not at all.
    """
    try:
        return {name: getattr(value, name) for name in names}
    except AttributeError:
        name = next(name for name in names if not hasattr(value, name))
        raise Refused("this field is not set", f".{name}") from None


def filled(cls: type, names: Mapping[str, Default | None], state: object) -> Mapping[str, object]:
    """Return the stored fields that a class has now, with defaults for those that were not stored.

    Args:
        cls: the class.
        names: default by name of its fields; None for a required field.
        state: the decoded fields.

    Raises:
        Misfit: a required field was not stored.
        Damaged: the state has no names of fields.
    """
    stored: Mapping[str, object] = state if type(state) is dict else mapping(named_parts(state))
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
    """Return a default that is always the same value.

    Args:
        value: the value.
    """
    return lambda: value
