"""Before a value is encoded: everything that MessagePack would change silently is put into an extension, or refused.

msgspec stores a tuple as an array, an enum as its value, a dataclass as a map. It would come back as something else, so
exact types are checked here first. Most values are *plain* all through (what JSON has, and bytes): `is_plain` finds
that out as fast as Python can, and they are encoded as they are. For all others `ValueWriter.prepare` makes a value of
plain parts and extensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from reprlib import Repr
from types import NoneType
from typing import Any, Final, cast

import msgspec

from .plain_scalars import plain_maker

MAX_DEPTH: Final = 100
"""How deep containers may lie in one another. Reading a level takes up to five of the 1000 levels of Python's stack
(an object in a list in a field), and the program that reads is in need of some for itself."""

MAX_BYTES: Final = 2**32 - 1
"""The most that one MessagePack str, bytes or extension holds."""

SCALARS: Final = frozenset({NoneType, bool, int, float, str, bytes})

_PLAIN_DEPTH: Final = 32  # deeper data goes the slow way, which detects cycles

pack = msgspec.msgpack.Encoder().encode
"""Encodes what has been prepared. An encoder keeps nothing between calls, so threads share it."""

_short = Repr()
_short.maxstring = _short.maxother = 60


class Refused(Exception):
    """A value cannot be stored. Raised where it was found; each level above adds its part of the path."""

    def __init__(self, reason: str, *parts: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.parts = list(parts)  # the innermost first

    @property
    def path(self) -> str:
        return "".join(reversed(self.parts))


# The exact type of the first argument is the key under which the function stands in the table; only Any says that.
Write = Callable[[Any, "ValueWriter", set[int]], object]


class ValueWriter:
    """Prepares values of the types in its table.

    Attributes:
        safe: types whose values are left as they are, without a look.
    """

    __slots__ = ("_explain", "_table", "safe")

    def __init__(self, table: Mapping[type, Write], safe: frozenset[type], explain: Callable[[type], str]) -> None:
        self._table = table
        self._explain = explain
        self.safe = safe

    def prepare(self, value: object, enclosing: set[int]) -> object:
        """What to encode for a value.

        Args:
            inside: ids of the containers that this value lies in. Its length is the depth.

        Raises:
            Refused: the value, or something in it, cannot be stored.
        """
        write = self._table.get(type(value))
        if write is None:
            make = plain_maker(type(value))
            if make is None:
                raise Refused(self._explain(type(value)))
            return self.prepare(make(value), enclosing)
        return write(value, self, enclosing)

    def items(self, values: Iterable[object], enclosing: set[int]) -> list[object]:
        """Prepares the elements of a sequence."""
        safe, out = self.safe, list[object]()
        try:
            for value in values:
                out.append(value if type(value) in safe else self.prepare(value, enclosing))
        except Refused as refused:
            refused.parts.append(f"[{len(out)}]")
            raise
        return out

    def fields(self, values: Mapping[str, object], enclosing: set[int]) -> dict[str, object]:
        """Prepares the attributes of an object."""
        safe, out, name = self.safe, dict[str, object](), ""
        try:
            for name, value in values.items():
                out[name] = value if type(value) in safe else self.prepare(value, enclosing)
        except Refused as refused:
            refused.parts.append(f".{name}")
            raise
        return out


class NodeValueWriter(ValueWriter):
    """Prepares what a node may hold: objects in the place of plain containers count as those."""

    __slots__ = ()

    def prepare(self, value: object, enclosing: set[int]) -> object:
        if type(value) not in self._table:
            value = _as_plain_container(value)
        return super().prepare(value, enclosing)


def _as_plain_container(value: Any) -> object:
    """The plain list or dict that an object says it is when it is copied; else the object.

    Nodes are given such objects in the place of plain containers, to change them as they like. This package does not
    know their classes; that a copy of one is a plain container is what makes them out.
    """
    kind = dict if isinstance(value, dict) else list if isinstance(value, list) else None
    if kind is None or cast("object", type(value).__reduce_ex__) is object.__reduce_ex__:
        return value
    try:
        said = value.__reduce_ex__(2)
    except Exception:  # it does not want to be copied; what is wrong with it here is that it is not registered
        return value
    match said:
        case (made, (content,)) if made is kind:
            return kind(content)
        case _:
            return value


def enter(value: object, enclosing: set[int]) -> None:
    """Go into a container. Whoever comes out of it without an error takes its id from `enclosing` again."""
    if id(value) in enclosing:
        raise Refused("it contains itself: a cycle cannot be stored")
    if len(enclosing) >= MAX_DEPTH:
        raise Refused(f"it is nested more than {MAX_DEPTH} levels deep")
    enclosing.add(id(value))


def ext(code: int, payload: bytes) -> msgspec.msgpack.Ext:
    """An extension, if it is not too long for one."""
    if len(payload) > MAX_BYTES:
        raise Refused(f"it takes {len(payload)} bytes, and one value may take {MAX_BYTES}")
    return msgspec.msgpack.Ext(code, payload)


def short_repr(value: object) -> str:
    """A key or a member as a path shows it: its repr, shortened. A repr that raises does no harm."""
    return _short.repr(value)


def is_plain(value: object) -> bool:
    """Whether a value can be encoded as it is. True is certain but for ints and strs that msgspec raises for."""
    return type(value) in SCALARS or (type(value) in (list, dict) and _all_plain(value, _PLAIN_DEPTH))


def _all_plain(value: object, depth: int) -> bool:
    # Measured: 0.4 us for a chat message of six values; half of what set(map(type, ...)) takes for one dict.
    scalars = SCALARS
    if type(value) is dict:
        for key, item in cast("dict[object, object]", value).items():
            if type(key) not in scalars:
                return False
            kind = type(item)
            if kind not in scalars and not ((kind is dict or kind is list) and depth and _all_plain(item, depth - 1)):
                return False
        return True
    for item in cast("list[object]", value):
        kind = type(item)
        if kind not in scalars and not ((kind is dict or kind is list) and depth and _all_plain(item, depth - 1)):
            return False
    return True
