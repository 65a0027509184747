"""Channels that wait until all of a set of names have been written."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any, Generic, Self, TypeVar, cast

from ..errors import EmptyChannelError, GraphValidationError, InvalidUpdateError
from .abc import MISSING, BaseChannel, Missing, Stored

Name = TypeVar("Name", bound=Hashable)


class _Barrier(BaseChannel[None, Name, Stored], Generic[Name, Stored]):
    """A set of names, and those of them that have been written.

    Args:
        typ: the type of the names.
        names: the names to wait for.

    Attributes:
        names: the names, in an order that does not depend on hashes.

    Raises:
        GraphValidationError: there are no names.
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
        except TypeError:  # a value is not hashable, so it is not one of the names
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
    """Has the value None once all names have been written, in one superstep or several. Reset when its node has run.

    An edge from a list of nodes becomes this channel. Writing a name again before the others have come changes nothing.

    Args:
        typ: the type of the names.
        names: the names to wait for.

    Raises:
        GraphValidationError: there are no names.
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
            # Drop names that the code no longer declares: `_complete` compares numbers, so one too many would stand in
            # for a name that is still missing.
            twin._seen = self._awaited.intersection(stored)
        return twin


class NamedBarrierValueAfterFinish(_Barrier[Name, tuple[list[Name], bool]]):
    """A `NamedBarrierValue` that has its value only when no other node is left to run.

    An edge from a list of nodes to a deferred node becomes this channel.

    Args:
        typ: the type of the names.
        names: the names to wait for.

    Raises:
        GraphValidationError: there are no names.
    """

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
    """Sort names without using hashes, so that equal barriers are stored as equal bytes in every process."""
    try:
        return cast("list[Name]", sorted(cast("Collection[Any]", names)))
    except TypeError:  # enum members, mixed types
        return sorted(names, key=repr)
