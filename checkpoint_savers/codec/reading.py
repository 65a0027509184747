"""Decodes bytes to values: creates only the fixed set of types and the registered ones.

Names in the bytes are looked up in two dictionaries that code has filled. An unknown name is an error; nothing is
imported or called because of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from .codes import REGISTERED


class Damaged(Exception):
    """The bytes are no value. While reading, any other exception means the same."""


class Misfit(Exception):
    """A class as it is now does not accept a part of a stored object.

    Attributes:
        name: the field or enum member.
        reason: what does not fit; continues the sentence "a stored object ...".
        advice: what to do.
    """

    def __init__(self, name: str, reason: str, advice: str) -> None:
        super().__init__(name, reason, advice)
        self.name = name
        self.reason = reason
        self.advice = advice


class FailedUpcast(Exception):
    """An upcaster raised, or returned something else than fields; the cause says what.

    Attributes:
        version: the version whose objects the upcaster takes.
    """

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


class Changed(Exception):
    """A registered class does not accept what is stored of one of its objects; the cause says why.

    Attributes:
        tag: the tag of the class.
        version: the version of the stored object.
        newest: the version of the class.
        type_name: the class, qualified by its module.
    """

    def __init__(self, tag: str, version: int, newest: int, type_name: str) -> None:
        super().__init__(tag, version, newest, type_name)
        self.tag = tag
        self.version = version
        self.newest = newest
        self.type_name = type_name


class UnknownTag(Exception):
    """The tag of a stored object is not registered with this codec.

    Attributes:
        tag: the stored name.
    """

    def __init__(self, tag: str) -> None:
        super().__init__(tag)
        self.tag = tag


class ObjectReader(Protocol):
    """Creates objects of one registered type."""

    def make(self, state: object, rest: object) -> object: ...


class Tags(Protocol):
    """Finds the reader for a stored tag; returns None for an unknown tag."""

    def get(self, tag: str, /) -> ObjectReader | None: ...


ReadFunction = Callable[[memoryview, "Loader"], object]


class Loader:
    """Decodes values.

    Attributes:
        any: decodes any value.
        list, tuple, set, frozenset: decode an array, as this type.
    """

    __slots__ = ("_kinds", "_tags", "any", "frozenset", "list", "set", "tuple")

    def __init__(self, kinds: Mapping[int, ReadFunction], tags: Tags) -> None:
        self._kinds = kinds
        self._tags = tags
        self.any = msgspec.msgpack.Decoder(ext_hook=self._hook).decode
        self.list = msgspec.msgpack.Decoder(list[object], ext_hook=self._hook).decode
        self.tuple = msgspec.msgpack.Decoder(tuple[object, ...], ext_hook=self._hook).decode
        self.set = msgspec.msgpack.Decoder(set[object], ext_hook=self._hook).decode
        self.frozenset = msgspec.msgpack.Decoder(frozenset[object], ext_hook=self._hook).decode

    def _hook(self, code: int, data: memoryview) -> object:
        if code != REGISTERED:
            read = self._kinds.get(code)
            if read is None:
                raise Damaged(f"there is no kind of value with the code {code}")
            return read(data, self)
        # Inline and not in a function of its own: every stack frame reduces the depth of values that can be read.
        parts = self.list(data)
        tag = parts[0] if 2 <= len(parts) <= 3 else None
        if type(tag) is not str:
            raise Damaged("a value of a registered type without its tag")
        known = self._tags.get(tag)
        if known is None:
            raise UnknownTag(tag)
        return known.make(parts[1], parts[2] if len(parts) == 3 else None)
