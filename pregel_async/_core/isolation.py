"""Isolate the runtime's values from user code, on the way out: a change in place by user code never reaches them.

`isolate` makes what user code gets (a node's input, a chunk, a result). `own` (`ownership.py`) copies what comes back.

A channel's value is *owned*: made of plain containers, and never changed in place. `isolate` does not copy all of it.
It returns a real list, dict or set, of a subclass, that holds all elements: `isinstance`, `len`, `==`, json, msgspec
and `match` see the whole value. Nested containers are isolated when Python code takes them: one by one if it takes them
by index or key, all of one list or dict if it iterates. The isolated copy replaces the original, so that the next
access returns the same object. A list or dict whose elements are all isolated behaves as a plain one.

Data are isolated at any depth: list, dict, set, deque, tuple and their subclasses, dataclasses, msgspec.Structs and
pydantic models. Everything else is opaque and shared: instances of other classes, the keys of dicts, and elements that
C code takes directly out of a container (a `heapq` function, for example).

The containers that `isolate` returns know their originals, and `Copies` records those of plain dicts: `own` needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import chain, takewhile
from operator import call, is_
from types import MappingProxyType
from typing import Any, Final, Self, SupportsIndex, TypeAlias, TypeVar, cast

from .copying import ATOMS, copier_of

_T = TypeVar("_T")
_K = TypeVar("_K")
_V = TypeVar("_V")


def isolate(value: Any, copies: Copies | KnownCopiers | None = None) -> Any:
    """Return a copy of an owned value, whose containers are copied when they are taken out.

    Args:
        value: the owned value.
        copies: records the plain copies that the reader gets, or copiers of the values of `value`, with which the
            record is made when it is needed; None if `own` need not recognise these copies in other containers.
    """
    # Typed as Any, although the result has the type of `value`: a `cast` is a call, for each element of a long list.
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is dict or kind is IsolatedDict or kind is CopiedDict:
        return IsolatedDict.of(value, copies)
    if kind is list or kind is IsolatedList or kind is CopiedList:
        return IsolatedList.of(value, copies)
    return copier_of(kind)(value, isolate)


Copiers: TypeAlias = list[Callable[[Any], Any]]
"""For each element of a list, the function that isolates it. Empty if all elements are shared."""

KnownCopiers: TypeAlias = dict[str, tuple[list[Any], Copiers]]
"""By state key: a list that this key has held, and the copiers of its elements."""

_call: Final = cast("Callable[[Callable[[Any], Any], Any], Any]", call)
_copy_flat: Final = dict[Any, Any].copy
_values: Final = dict[Any, Any].values

_SHORT: Final = 16
"""The length up to which finding copiers takes no longer than looking them up."""


def _find_copiers(values: Collection[Any]) -> Copiers:
    """Return the function that isolates each of some owned values; an empty list if all of them are shared."""
    if ATOMS.issuperset(map(type, values)):
        return []
    # A dict of atoms becomes a plain dict, which costs a fifth of an `IsolatedDict` to make and to read.
    return [
        (_copy_flat if ATOMS.issuperset(map(type, value.values())) else IsolatedDict.of)
        if type(value) is dict
        else isolate
        for value in values
    ]


def drop_if_replaced(known: KnownCopiers, key: str, value: object) -> None:
    """Forget the copiers of a key's list, unless the key's new value may be that list with more elements."""
    # Copiers of a list that has grown are completed when it is iterated. Others would keep the old list in memory.
    held = known[key][0]
    if type(value) is not list or len(value) < len(held) or value[0] is not held[0]:
        del known[key]


class Copies:
    """The plain copies that one reader of owned values got, and the originals of which they were made.

    Args:
        values: the state that the reader got, by key.
        known: copiers of the state's lists. Lists that the reader iterates are added.
    """

    # Finding out that a dict holds only atoms takes longer than copying it. Therefore copiers are found once for a
    # list, and once for each element that is appended to it. They are known by key and compared by identity: a plain
    # list has no attribute that could hold them, and can have no weak reference.

    __slots__ = ("_known", "_made", "_originals", "_values")

    def __init__(self, values: Mapping[str, Any] = MappingProxyType({}), known: KnownCopiers | None = None) -> None:
        self._values = values
        self._known = {} if known is None else known
        self._made: list[tuple[list[Any], list[Any]]] = []
        self._originals: dict[int, tuple[Any, Any]] = {}

    def copiers(self, origin: list[Any]) -> Copiers:
        """Return the copiers of an owned list's elements."""
        if len(origin) > _SHORT:
            for key, value in self._values.items():
                if value is origin:
                    return self._copiers_of_key(key, origin)
        return _find_copiers(origin)

    def _copiers_of_key(self, key: str, origin: list[Any]) -> Copiers:
        held, copiers = self._known.get(key, _NO_COPIERS)
        if held is origin:
            return copiers
        count = len(list(takewhile(bool, map(is_, held, origin))))
        more = _find_copiers(origin[count:])
        if copiers or more:
            copiers = [*(copiers[:count] or [isolate] * count), *(more or [isolate] * (len(origin) - count))]
        self._known[key] = origin, copiers
        return copiers

    def record(self, made: list[Any], origins: list[Any]) -> None:
        """Record copies: `made[n]` was made of `origins[n]`, unless both are one object. Do not change the lists."""
        # Holds the copies, because an id is valid as long as its object lives. None of them may hold this record:
        # without a cycle, all memory is free when the reader ends.
        self._made.append((made, origins))

    def record_plain(self, made: list[Any], origins: list[Any]) -> None:
        """Record those copies that are plain dicts."""
        pairs = [pair for pair in zip(made, origins, strict=True) if type(pair[0]) is dict and pair[0] is not pair[1]]
        self.record([copy for copy, _ in pairs], [origin for _, origin in pairs])

    def originals(self, values: Iterable[Any]) -> dict[int, Any]:
        """Return the originals of those values that are recorded copies and unchanged, by the id of the copy."""
        # Taken away first: threads of the node may call this at the same time. One that misses a record copies more.
        records, self._made = self._made, []
        for made, origins in records:
            self._originals.update(
                [
                    (key, pair)
                    for key, pair in zip(map(id, made), zip(made, origins, strict=True), strict=True)
                    if type(pair[0]) is dict
                ]
            )
        if not self._originals:
            return {}
        found = [pair for pair in map(self._originals.get, map(id, values)) if pair is not None]
        if not _unchanged(found):  # all at once, in C; one by one if some have changed
            found = [pair for pair in found if _unchanged((pair,))]
        return by_id([copy for copy, _ in found], [origin for _, origin in found])


_NO_COPIERS: Final[tuple[list[Any], Copiers]] = ([], [])


def by_id(objects: Iterable[Any], values: Iterable[Any]) -> dict[int, Any]:
    """Return the values by the ids of the objects, of which there are as many."""
    return dict(zip(map(id, objects), values, strict=True))


def _unchanged(pairs: Collection[tuple[dict[Any, Any], dict[Any, Any]]]) -> bool:
    """Return True if each dict has the same keys and values, in the same order, as its original."""
    # By identity: True equals 1. The lengths come first, because `map` stops at the shorter of two iterables.
    copies, origins = [copy for copy, _ in pairs], [origin for _, origin in pairs]
    return (
        list(map(len, copies)) == list(map(len, origins))
        and all(map(is_, chain.from_iterable(copies), chain.from_iterable(origins)))
        and all(map(is_, chain.from_iterable(map(_values, copies)), chain.from_iterable(map(_values, origins))))
    )


def advice_on_attribute(message: object, name: str) -> str:
    """Return what to write instead of `message.name`, if the object is a message that is a dict; else an empty string.

    Args:
        message: the object that lacks the attribute.
        name: the attribute.
    """
    if name.startswith("_") or not isinstance(message, dict) or "content" not in message:
        return ""
    if "role" not in message and "type" not in message:
        return ""
    return (
        f"write message[{name!r}]. For langchain-core's messages, give the key the reducer "
        "pregel_async.langchain.add_messages"
    )


class CopiedDict(dict[_K, _V]):
    """A dict whose values are all isolated."""

    __slots__ = ("_copies", "_known", "_origin")
    _origin: dict[_K, _V]  # the owned dict of which this is a copy
    _known: set[int] | None  # ids of the origin's values, once they are needed
    _copies: Copies | KnownCopiers | None

    # This class has the methods that `IsolatedDict` calls: another thread may make an object a `CopiedDict` meanwhile.

    def __getattr__(self, name: str) -> Any:
        # Only called for missing attributes. Code written for message classes reads `message.content`: say what to do.
        advice = advice_on_attribute(self, name)
        raise AttributeError(
            f"this message is a dict, which has no attribute {name!r}: {advice}"
            if advice
            else f"'dict' object has no attribute {name!r}",
            name=name,
            obj=self,
        )

    def _is_original(self, key: Any, value: Any) -> bool:
        """Return True for a value of the origin that has to be isolated, False for one that user code has set."""
        kind = type(value)
        if kind in ATOMS or kind in CONTAINERS:
            return False
        if self._origin.get(key) is value:
            return True
        # User code may have moved a value of the origin to another key, so compare with all of them.
        if self._known is None:
            self._known = set(map(id, self._origin.values()))
        return id(value) in self._known

    def _take(self, key: Any, value: Any) -> Any:
        """Return an isolated copy of a value of the origin. Values that user code has set are returned as is."""
        if not self._is_original(key, value):
            return value
        copies = self._copies
        if type(copies) is dict:
            copies = self._copies = Copies(cast("dict[str, Any]", self._origin), copies)
        return isolate(value, copies)

    def _take_all(self) -> None:
        """Isolate every value now, for code that takes all values without calling another method of this class."""

    def __copy__(self) -> dict[_K, _V]:
        return {**self}

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[_K, _V]:
        return {deepcopy(key, memo): deepcopy(value, memo) for key, value in dict.items(self)}

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> tuple[Any, ...]:
        # Pickled as a plain dict, which another process can read without this package.
        return (dict, (list(dict.items(self)),))


class IsolatedDict(CopiedDict[_K, _V]):
    """A dict that isolates each value when it is taken out. It becomes a `CopiedDict` when all values are taken."""

    __slots__ = ()

    @staticmethod
    def of(origin: dict[_K, _V], copies: Copies | KnownCopiers | None = None) -> IsolatedDict[_K, _V]:
        """Return a dict of all keys and values of `origin`. The values are isolated later."""
        made: IsolatedDict[_K, _V] = IsolatedDict(origin)
        made._origin, made._known, made._copies = origin, None, copies
        return made

    def __getitem__(self, key: _K) -> _V:
        value: _V = dict.__getitem__(self, key)
        if type(value) in ATOMS:
            return value
        mine: _V = self._take(key, value)
        if mine is not value:
            dict.__setitem__(self, key, mine)
        return mine

    def _take_all(self) -> None:
        copies = self._copies
        if not isinstance(copies, Copies):
            copies = self._copies = Copies(cast("dict[str, Any]", self._origin), copies)
        keys = [key for key, value in dict.items(self) if self._is_original(key, value)]
        originals: list[Any] = [dict.__getitem__(self, key) for key in keys]
        made: list[Any] = [
            copier(value) if copier is _copy_flat else isolate(value, copies)
            for copier, value in zip(_find_copiers(originals), originals, strict=True)
        ]
        copies.record_plain(made, originals)
        for key, value, mine in zip(keys, originals, made, strict=True):
            if dict.get(self, key) is value:
                # The key exists, so the size does not change and an iteration may continue.
                dict.__setitem__(self, key, mine)
        self.__class__ = CopiedDict  # type: ignore[assignment]  # its base, with the same slots

    def get(self, key: Any, default: Any = None, /) -> Any:
        return self[key] if key in self else default

    def __iter__(self) -> Iterator[_K]:
        # Overridden only for a side effect: C code that merges dicts (`{**d}`, `dict(d)`, `f(**d)`) copies a dict's
        # values straight from memory, unless `__iter__` is overridden. Then it calls `keys` and `__getitem__`.
        return dict.__iter__(self)

    def values(self) -> Any:
        self._take_all()
        return dict.values(self)

    def items(self) -> Any:
        self._take_all()
        return dict.items(self)

    def pop(self, key: _K, *default: Any) -> Any:
        if key in self:
            return self._take(key, dict.pop(self, key))
        return dict.pop(self, key, *default)

    def popitem(self) -> tuple[_K, _V]:
        key, value = dict.popitem(self)
        return key, self._take(key, value)

    def setdefault(self, key: Any, default: Any = None, /) -> Any:
        if key in self:
            return self[key]
        dict.__setitem__(self, key, default)
        return default

    def copy(self) -> dict[_K, _V]:
        return {**self}

    def __or__(self, other: Any) -> Any:
        return {**self, **other} if isinstance(other, dict) else NotImplemented

    def __ror__(self, other: Any) -> Any:
        return {**other, **self} if isinstance(other, dict) else NotImplemented


class CopiedList(list[_T]):
    """A list whose elements are all isolated."""

    __slots__ = ("_copies", "_known", "_origin")
    _origin: list[_T]
    _known: set[int] | None
    _copies: Copies | KnownCopiers | None

    def _take(self, index: SupportsIndex, value: Any) -> Any:
        """Return an isolated copy of an element of the origin. Other elements are returned as they are."""
        kind = type(value)
        if kind in ATOMS or kind in CONTAINERS:
            return value
        origin = self._origin
        if len(origin) != len(self) or origin[index] is not value:
            if self._known is None:
                self._known = set(map(id, origin))
            if id(value) not in self._known:
                return value
        return isolate(value, self._copies)

    def _take_all(self) -> None:
        """Isolate every element now."""

    def __copy__(self) -> list[_T]:
        return [*self]

    def __deepcopy__(self, memo: dict[int, Any]) -> list[_T]:
        return [deepcopy(value, memo) for value in list.__getitem__(self, slice(None))]

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> tuple[Any, ...]:
        return (list, (list.__getitem__(self, slice(None)),))


class IsolatedList(CopiedList[_T]):
    """A list that isolates each element when it is taken out. It becomes a `CopiedList` when it is iterated."""

    __slots__ = ()

    @staticmethod
    def of(origin: list[_T], copies: Copies | KnownCopiers | None = None) -> IsolatedList[_T]:
        """Return a list of all elements of `origin`. They are isolated later."""
        made: IsolatedList[_T] = IsolatedList(origin)
        made._origin, made._known, made._copies = origin, None, copies
        return made

    def _take_all(self) -> None:
        # Not one by one, which would run Python code for each element: that took eight times as long for 1000 messages.
        origin, copies = self._origin, self._copies
        if not isinstance(copies, Copies):
            copies = self._copies = Copies()
        copiers = copies.copiers(origin)
        # A list is mostly as it was made, or its last element was taken. If others were, that is noticed below.
        expected = bool(copiers) and len(self) == len(origin) and list.__getitem__(self, -1) is origin[-1]
        while copiers:
            held = origin if expected else list.__getitem__(self, slice(None))
            if expected:
                made = list(map(_call, copiers, origin))
            else:
                found = by_id(origin, copiers)
                made = [found[id(value)](value) if id(value) in found else value for value in held]
            # Another thread of the node may have changed the list meanwhile: its change must not be lost. It may append
            # even after the comparison, so no more elements are replaced than were compared.
            if len(held) <= len(self) and all(map(is_, held, list.__iter__(self))):
                list.__setitem__(self, slice(len(held)), made)
                (copies.record if expected else copies.record_plain)(made, held)
                if len(held) == len(self):
                    break
            expected = False
        self.__class__ = CopiedList  # type: ignore[assignment]  # its base, with the same slots

    def __getitem__(self, index: Any) -> Any:
        value = list.__getitem__(self, index)
        if type(value) in ATOMS:
            return value
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        mine = self._take(index, value)
        if mine is not value:
            list.__setitem__(self, index, mine)
        return mine

    def __iter__(self) -> Iterator[_T]:
        self._take_all()
        return list.__iter__(self)

    def __reversed__(self) -> Iterator[_T]:
        # Usually a search for the latest element of some kind, which ends soon. So the first ones are taken by index.
        index = len(self) - 1
        last = max(index - _SHORT, -1)
        while last < index < len(self):
            yield self[index]
            index -= 1
        if 0 <= index < len(self):
            self._take_all()
            rest: Any = list.__reversed__(self)
            rest.__setstate__(index)
            yield from rest

    def pop(self, index: SupportsIndex = -1, /) -> Any:
        value = self[index]
        list.pop(self, index)
        return value

    def copy(self) -> list[_T]:
        return [*self]

    def __add__(self, other: Any) -> Any:
        return [*self, *other] if isinstance(other, list) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return [*other, *self] if isinstance(other, list) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> list[_T]:
        return list.__mul__([*self], times)

    __rmul__ = __mul__

    def __imul__(self, times: SupportsIndex) -> Self:
        self._take_all()
        list.__imul__(self, times)
        return self

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        self._take_all()
        list.sort(self, key=key, reverse=reverse)


CONTAINERS: Final = frozenset[type]({CopiedDict, IsolatedDict, CopiedList, IsolatedList})
