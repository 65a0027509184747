"""Channels that wait until each of a set of names was written."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any, Generic, Self, TypeVar, cast

from ..errors import EmptyChannelError, GraphValidationError, InvalidUpdateError
from .abc import MISSING, BaseChannel, Missing, Stored

Name = TypeVar("Name", bound=Hashable)


class _Barrier(BaseChannel[None, Name, Stored], Generic[Name, Stored]):
    """Names, and those of them that were seen.

    Attributes:
        names: all that it waits for, in a fixed order.
    """

    __slots__ = ("_awaited", "_seen", "names")

    names: tuple[Name, ...]
    _awaited: frozenset[Name]
    _seen: frozenset[Name]

    def __init__(self, typ: type[Name], names: Collection[Name]) -> None:
        super().__init__(typ)
        self._awaited = frozenset(names)
        self._seen = frozenset()
        if not self._awaited:
            raise GraphValidationError("a barrier without names would wait for nothing. Name what it waits for.")
        self.names = tuple(_sorted(self._awaited))

    def get(self) -> None:
        if not self.is_available():
            raise EmptyChannelError(self.key)

    def update(self, values: Sequence[Name]) -> bool:
        try:
            seen = self._seen.union(values)
        except TypeError:  # not hashable: no name
            raise self._unknown_names_error([value for value in values if value not in self.names]) from None
        if len(seen) == len(self._seen):
            return False
        if not seen <= self._awaited:
            raise self._unknown_names_error(_sorted(seen - self._awaited))
        self._seen = seen
        return True

    def fresh(self) -> Self:
        twin = self._blank()
        twin.names = self.names
        twin._awaited = self._awaited
        twin._seen = frozenset()
        return twin

    def copy(self) -> Self:
        return self.from_checkpoint(self.checkpoint())

    def same_declaration(self, other: BaseChannel[Any, Any, Any]) -> bool:
        return super().same_declaration(other) and isinstance(other, _Barrier) and self._awaited == other._awaited

    def _complete(self) -> bool:
        return len(self._seen) == len(self._awaited)

    def _unknown_names_error(self, found: Sequence[object]) -> InvalidUpdateError:
        shown = ", ".join(map(repr, found))
        return InvalidUpdateError(
            f"channel {self.key!r} was written {shown}, for which it does not wait. It takes one of: "
            + ", ".join(map(repr, self.names)),
            channel=self.key,
        )


class NamedBarrierValue(_Barrier[Name, list[Name]]):
    """Shows None once each of its names was written, in one superstep or in several, and starts anew when its node has
    run.

    What an edge from a list of nodes becomes. A name that is written again before the others have come changes nothing.
    """

    __slots__ = ()

    kind = "NamedBarrierValue"
    expires = False

    def is_available(self) -> bool:
        return self._complete()

    def consume(self) -> bool:
        if not self._complete():
            return False
        self._seen = frozenset()
        return True

    def checkpoint(self) -> list[Name] | Missing:
        return [name for name in self.names if name in self._seen] or MISSING

    def from_checkpoint(self, stored: list[Name] | Missing) -> Self:
        twin = self.fresh()
        if stored is not MISSING:
            # A name that code no longer has cannot come again, and would keep the barrier from ever being complete.
            twin._seen = self._awaited.intersection(stored)
        return twin


class NamedBarrierValueAfterFinish(_Barrier[Name, tuple[list[Name], bool]]):
    """The same, hidden until the run is about to end: what an edge from a list of nodes to a deferred one becomes."""

    __slots__ = ("_finished",)

    kind = "NamedBarrierValueAfterFinish"
    expires = False

    _finished: bool

    def __init__(self, typ: type[Name], names: Collection[Name]) -> None:
        super().__init__(typ, names)
        self._finished = False

    def is_available(self) -> bool:
        return self._finished and self._complete()

    def consume(self) -> bool:
        if not self.is_available():
            return False
        self._seen = frozenset()
        self._finished = False
        return True

    def finish(self) -> bool:
        if self._finished or not self._complete():
            return False
        self._finished = True
        return True

    def checkpoint(self) -> tuple[list[Name], bool] | Missing:
        if not self._seen:
            return MISSING
        return [name for name in self.names if name in self._seen], self._finished

    def from_checkpoint(self, stored: tuple[list[Name], bool] | Missing) -> Self:
        twin = self.fresh()
        if stored is not MISSING:
            seen, twin._finished = stored
            twin._seen = self._awaited.intersection(seen)
        return twin

    def fresh(self) -> Self:
        twin = super().fresh()
        twin._finished = False
        return twin


def _sorted(names: Collection[Name]) -> list[Name]:
    """In an order that does not depend on hashes, so that equal barriers are stored as equal bytes."""
    try:
        return cast("list[Name]", sorted(cast("Collection[Any]", names)))
    except TypeError:  # enum members, mixed types
        return sorted(names, key=repr)
