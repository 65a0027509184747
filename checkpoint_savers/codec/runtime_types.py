"""The tags of the runtime's own classes, and how a codec without these classes reads their objects.

The classes belong to `pregel_async`, which this package does not import. The runtime registers them under these tags
for its graphs. A codec without them, such as that of a saver that is opened alone, reads their objects as
`StoredObject`s: an error would hide everything else in a checkpoint that has pending sends. Users' classes are not read
like this: their objects must be decoded as what they were, or raise an error that says what to register.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import NoneType
from typing import Final, cast

from ..records import Shared, StoredObject
from .reading import Damaged, ObjectReader
from .shape import mapping, named_parts

RUNTIME_TAGS: Final = (
    "checkpoint_savers.Item",
    "checkpoint_savers.SearchItem",
    "pregel_async.Command",
    "pregel_async.Interrupt",
    "pregel_async.NodeError",
    "pregel_async.NotStored",
    "pregel_async.Overwrite",
    "pregel_async.RecordedFailureError",
    "pregel_async.Send",
    "pregel_async.TimeoutPolicy",
)

_IN_ORDER: Final[Mapping[str, Sequence[str]]] = {
    "pregel_async.NodeError": ("node", "task_id", "error"),
    "pregel_async.RecordedFailureError": ("type", "message"),
}
"""The fields of objects that are stored as lists, without names."""


class _DataReader:
    """Creates a `StoredObject` from what is stored under a tag."""

    __slots__ = ("_tag",)

    def __init__(self, tag: str) -> None:
        self._tag = tag

    def make(self, state: object, rest: object) -> StoredObject:
        names = _IN_ORDER.get(self._tag)
        if names is None:
            return StoredObject(self._tag, {**mapping(state)})
        if type(state) is not list or len(parts := cast("list[object]", state)) != len(names):
            raise Damaged(f"a {self._tag} that does not have {len(names)} fields")
        return StoredObject(self._tag, dict(zip(names, parts, strict=True)))


class TolerantTags:
    """Readers by tag that create a `StoredObject` if the class is missing, or does not accept what is stored.

    Args:
        tags: those of the codec, and of the runtime.
    """

    __slots__ = ("_tags",)

    def __init__(self, tags: Mapping[str, ObjectReader]) -> None:
        self._tags = tags

    def get(self, tag: str) -> ObjectReader:
        """Return the reader for a tag.

        Args:
            tag: the stored name.
        """
        return _TolerantReader(tag, self._tags.get(tag))


class PlainTags:
    """Readers by tag that create a `StoredObject`, whether or not the class is known."""

    __slots__ = ()

    def get(self, tag: str) -> ObjectReader:
        """Return the reader for a tag.

        Args:
            tag: the stored name.
        """
        return RUNTIME_READERS.get(tag) or _TolerantReader(tag, None)


class _TolerantReader:
    __slots__ = ("_known", "_tag")

    def __init__(self, tag: str, known: ObjectReader | None) -> None:
        self._tag = tag
        self._known = known

    def make(self, state: object, rest: object) -> object:
        if self._known is not None:
            # A user's class may raise anything here; its object is shown as data all the same.
            with suppress(Exception):
                return self._known.make(state, rest)
        return StoredObject(self._tag, _fields_of(state))


def _fields_of(state: object) -> dict[str, object]:
    """Return the parts of an object of which only the stored form is known."""
    parts = named_parts(state)
    return {"value": state} if parts is None else {**parts}


class _SharedReader:
    """Creates a `Shared`: the class belongs to this package, so that a saver that is opened alone can resolve sends."""

    __slots__ = ()

    def make(self, state: object, rest: object) -> Shared:
        parts = mapping(state)
        channel, count, more = parts.get("channel"), parts.get("count"), parts.get("rest")
        if type(channel) is not str or type(count) not in (int, NoneType) or type(more) is not list:
            raise Damaged("a part of a send that refers to no channel")
        return Shared(channel, cast("int | None", count), cast("list[object]", more))


RUNTIME_READERS: Final[Mapping[str, ObjectReader]] = {
    **{tag: _DataReader(tag) for tag in RUNTIME_TAGS},
    "checkpoint_savers.Shared": _SharedReader(),
}
"""By tag. A class that is registered under one of them takes precedence."""
