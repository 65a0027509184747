"""The tags under which the runtime stores objects of its own classes, and how a codec without these classes reads them.

The classes belong to `pregel_async`, which this package does not import. The runtime registers them under these tags
for its graphs. A codec without them, such as that of a saver that is opened alone, reads their objects as
`StoredObject`s: an error would hide everything else in a checkpoint that has pending sends. Classes of users are not
read like this, since an object of theirs has to come back as what it was, or with an error that says what to register.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from ..records import StoredObject
from .reading import Damaged
from .shape import mapping

RUNTIME_TAGS: Final = (
    "checkpoint_savers.Item",
    "checkpoint_savers.SearchItem",
    "pregel_async.Command",
    "pregel_async.Interrupt",
    "pregel_async.NodeError",
    "pregel_async.Overwrite",
    "pregel_async.RecordedFailureError",
    "pregel_async.Send",
    "pregel_async.TimeoutPolicy",
)

_IN_ORDER: Final[Mapping[str, Sequence[str]]] = {
    "pregel_async.NodeError": ("node", "task_id", "error"),
    "pregel_async.RecordedFailureError": ("type", "message"),
}
"""The fields of objects that are stored as lists, without the names."""


class _DataReader:
    """Makes a `StoredObject` of what is stored under a tag."""

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


RUNTIME_READERS: Final = {tag: _DataReader(tag) for tag in RUNTIME_TAGS}
"""By tag. A class that is registered under one of them takes precedence."""
