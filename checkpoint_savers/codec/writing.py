"""Prepares values for encoding: everything that MessagePack would change silently becomes an extension, or is refused.

msgspec stores a tuple as an array, an enum as its value, a dataclass as a map. They would be decoded as other types, so
exact types are checked here first. Most values are *plain* throughout (the types of JSON, and bytes): `is_plain`
detects that as fast as Python can, and they are encoded unchanged. For all others `ValueWriter.prepare` returns a value
of plain parts and extensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from reprlib import Repr
from types import NoneType
from typing import Any, Final, cast

import msgspec

from .plain_scalars import plain_maker

MAX_DEPTH: Final = 100
"""The greatest depth of nested containers. Reading a level takes up to five of the 1000 levels of Python's stack (an
object in a list in a field), and the calling program needs some for itself."""

MAX_BYTES: Final = 2**32 - 1
"""The greatest size of a MessagePack str, bytes or extension."""

SCALARS: Final = frozenset({NoneType, bool, int, float, str, bytes})

_PLAIN_DEPTH: Final = 32  # deeper data takes the slow path, which detects cycles

pack = msgspec.msgpack.Encoder().encode
"""Encodes prepared values. An encoder holds no state between calls, so threads share it."""

_short = Repr()
_short.maxstring = _short.maxother = 60


class Refused(Exception):
    """A value cannot be stored. Raised where it was found; each enclosing level adds its part of the path."""

    def __init__(self, reason: str, *parts: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.parts = list(parts)  # the innermost first

    @property
    def path(self) -> str:
        """The position of the refused value, in Python notation."""
        return "".join(reversed(self.parts))


# The exact type of the first argument is the key under which the function stands in the table; only Any says that.
WriteFunction = Callable[[Any, "ValueWriter", set[int]], object]


class ValueWriter:
    """Prepares values of the types in its table.

    Args:
        table: function by exact type.
        safe: types whose values need no preparation.
        explain: returns why a type that is not in the table cannot be stored.

    Attributes:
        safe: types whose values need no preparation.
    """

    __slots__ = ("_explain", "_table", "safe")

    def __init__(
        self, table: Mapping[type, WriteFunction], safe: frozenset[type], explain: Callable[[type], str]
    ) -> None:
        self._table = table
        self._explain = explain
        self.safe = safe

    def prepare(self, value: object, enclosing: set[int]) -> object:
        """Return what to encode for a value.

        Args:
            value: the value.
            enclosing: ids of the enclosing containers. Their number is the depth.

        Raises:
            Refused: the value, or a part of it, cannot be stored.
        """
        write = self._table.get(type(value))
        if write is None:
            make = plain_maker(type(value))
            if make is None:
                raise Refused(self._explain(type(value)))
            return self.prepare(make(value), enclosing)
        return write(value, self, enclosing)

    def items(self, values: Iterable[object], enclosing: set[int]) -> list[object]:
        """Prepare the elements of a sequence.

        Args:
            values: the elements.
            enclosing: ids of the enclosing containers.

        Raises:
            Refused: an element cannot be stored.
        """
        safe, out = self.safe, list[object]()
        try:
            for value in values:
                out.append(value if type(value) in safe else self.prepare(value, enclosing))
        except Refused as refused:
            refused.parts.append(f"[{len(out)}]")
            raise
        return out

    def fields(self, values: Mapping[str, object], enclosing: set[int]) -> dict[str, object]:
        """Prepare the attributes of an object.

        Args:
            values: value by name.
            enclosing: ids of the enclosing containers.

        Raises:
            Refused: an attribute cannot be stored.
        """
        safe, out, name = self.safe, dict[str, object](), ""
        try:
            for name, value in values.items():
                out[name] = value if type(value) in safe else self.prepare(value, enclosing)
        except Refused as refused:
            refused.parts.append(f".{name}")
            raise
        return out


class NodeValueWriter(ValueWriter):
    """Prepares values that a node may hold: the runtime's containers count as plain ones."""

    __slots__ = ()

    def prepare(self, value: object, enclosing: set[int]) -> object:
        if type(value) not in self._table:
            value = _as_plain_container(value)
        return super().prepare(value, enclosing)


def _as_plain_container(value: Any) -> object:
    """Return the plain list or dict that an object becomes when it is copied; else the object."""
    # Nodes get such objects in the place of plain containers, to change them freely. This package does not know their
    # classes; it recognises them by their copies, which are plain containers.
    kind = dict if isinstance(value, dict) else list if isinstance(value, list) else None
    if kind is None or cast("object", type(value).__reduce_ex__) is object.__reduce_ex__:
        return value
    try:
        said = value.__reduce_ex__(2)
    except Exception:  # it cannot be copied: report that it is not registered
        return value
    match said:
        case (made, (content,)) if made is kind:
            return kind(content)
        case _:
            return value


def enter(value: object, enclosing: set[int]) -> None:
    """Enter a container. The caller removes its id from `enclosing` when it leaves the container without an error.

    Args:
        value: the container.
        enclosing: ids of the enclosing containers.

    Raises:
        Refused: the container contains itself, or is nested too deep.
    """
    if id(value) in enclosing:
        raise Refused("it contains itself: a cycle cannot be stored")
    if len(enclosing) >= MAX_DEPTH:
        raise Refused(f"it is nested more than {MAX_DEPTH} levels deep")
    enclosing.add(id(value))


def ext(code: int, payload: bytes) -> msgspec.msgpack.Ext:
    """Return an extension.

    Args:
        code: its code; see `codes.py`.
        payload: its bytes.

    Raises:
        Refused: the payload is too long.
    """
    if len(payload) > MAX_BYTES:
        raise Refused(f"it takes {len(payload)} bytes, and one value may take {MAX_BYTES}")
    return msgspec.msgpack.Ext(code, payload)


def short_repr(value: object) -> str:
    """Return the repr of a key or member, shortened, for a path. A repr that raises does no harm.

    Args:
        value: the key or member.
    """
    return _short.repr(value)


def is_plain(value: object) -> bool:
    """Return True if a value can be encoded unchanged.

    Args:
        value: the value.

    Returns:
        True is certain, except for ints and strs for which msgspec raises.
    """
    return type(value) in SCALARS or (type(value) in (list, dict) and all_plain(value))


def all_plain(value: Any, depth: int = _PLAIN_DEPTH) -> bool:
    """Return True if a list or dict can be encoded unchanged, as `is_plain` does.

    Args:
        value: a plain list or dict.
        depth: the number of levels of nested containers that are looked into.
    """
    # Measured: 0.4 us for a chat message of six values; half of what set(map(type, ...)) takes for one dict.
    scalars = SCALARS
    if type(value) is dict:
        for key, item in value.items():
            if type(key) not in scalars:
                return False
            kind = type(item)
            if kind not in scalars and not ((kind is dict or kind is list) and depth and all_plain(item, depth - 1)):
                return False
        return True
    for item in value:
        kind = type(item)
        if kind not in scalars and not ((kind is dict or kind is list) and depth and all_plain(item, depth - 1)):
            return False
    return True
