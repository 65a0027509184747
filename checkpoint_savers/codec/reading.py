"""From bytes back to values: only the kinds of the fixed set and the registered types are ever made.

What the bytes name is looked up in two dictionaries that code has filled. A name that is in neither is an error;
nothing is imported for it, and nothing called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from .codes import REGISTERED


class Damaged(Exception):
    """These bytes are of no value. Any other exception while reading means the same."""


class Misfit(Exception):
    """A class as it is now does not take a part of a stored object.

    Attributes:
        name: the field or enum member.
        reason: what does not fit, of "a stored object".
        advice: what to do.
    """

    def __init__(self, name: str, reason: str, advice: str) -> None:
        super().__init__(name, reason, advice)
        self.name = name
        self.reason = reason
        self.advice = advice


class Changed(Exception):
    """A registered class does not take what is stored of one of its objects; the cause says why.

    Attributes:
        tag: the name that is stored.
        type_name: the class, qualified by its module.
    """

    def __init__(self, tag: str, type_name: str) -> None:
        super().__init__(tag, type_name)
        self.tag = tag
        self.type_name = type_name


class UnknownTag(Exception):
    """A value of a registered type whose tag this codec does not know."""

    def __init__(self, tag: str) -> None:
        super().__init__(tag)
        self.tag = tag


class ObjectReader(Protocol):
    """Makes values of one registered type."""

    def make(self, state: object, rest: object) -> object: ...


class Tags(Protocol):
    """Finds what makes values by the tag that is stored with them; None for an unknown tag."""

    def get(self, tag: str, /) -> ObjectReader | None: ...


Read = Callable[[memoryview, "Loader"], object]


class Loader:
    """Decodes values.

    Attributes:
        any, list, tuple, set, frozenset: decode a value that may be anything, or has to be an array and is made that
            type.
    """

    __slots__ = ("_kinds", "_tags", "any", "frozenset", "list", "set", "tuple")

    def __init__(self, kinds: Mapping[int, Read], tags: Tags) -> None:
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
        # Done here and not in a function of its own, because every frame counts against the depth that can be read.
        parts = self.list(data)
        tag = parts[0] if 2 <= len(parts) <= 3 else None
        if type(tag) is not str:
            raise Damaged("a value of a registered type without its tag")
        known = self._tags.get(tag)
        if known is None:
            raise UnknownTag(tag)
        return known.make(parts[1], parts[2] if len(parts) == 3 else None)
