"""Who may change what: values inside a run are never changed in place; what leaves it can be, and nobody else notices.

    own(value)       on the way in (an update, an input): a plain copy that no user code holds
    isolate(value)   on the way out (a node's input, a chunk, a result): a copy made lazily, element by element

A channel's value is *owned*: made of plain containers, and by convention never changed in place. To hand it out without
copying all of it, `isolate` gives a real list, dict or set (a subclass that holds all elements, so that `isinstance`,
`len`, `==`, json, msgspec and `match` see the whole value) whose containers are isolated one by one when Python code
takes them. What is taken stays in the copy, so that it is the same object the next time.

What counts as data, and is isolated at any depth: list, dict, set, deque, tuple and their subclasses, dataclasses,
msgspec.Structs, pydantic models. Everything else is opaque and shared: instances of other classes, what C code takes
out of a container by itself (a `heapq` function's elements, say), and the keys of dicts.

`own` gives back the very objects that `isolate` had handed out where they were not changed: an unchanged element of a
    list
keeps its identity through a node. Storage recognises by it what a list shares with its predecessor.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex, TypeVar, cast

from ..errors import InvalidUpdateError
from .copying import ATOMS, copier_of

_T = TypeVar("_T")
_K = TypeVar("_K")
_V = TypeVar("_V")


# ---- on the way out ----------------------------------------------------------------------------------------------


def isolate(value: _T) -> _T:
    """A copy of an owned value; its containers are copied when they are taken out of it."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is dict or kind is IsolatedDict:
        return cast("_T", IsolatedDict.of(cast("dict[Any, Any]", value)))
    if kind is list or kind is IsolatedList:
        return cast("_T", IsolatedList.of(cast("list[Any]", value)))
    return cast("_T", copier_of(kind)(value, isolate))


class IsolatedDict(dict[_K, _V]):
    """A dict whose values are isolated when they are taken out; those that its holder put in are the holder's."""

    __slots__ = ("_known", "_mixed", "_origin")
    _origin: dict[_K, _V]  # what it was made of
    _mixed: bool  # its holder has put something in
    _known: set[int] | None  # ids of the origin's values, once they are needed

    @staticmethod
    def of(origin: dict[_K, _V]) -> IsolatedDict[_K, _V]:
        """Every key and value of `origin`; the values are isolated later."""
        made: IsolatedDict[_K, _V] = IsolatedDict(origin if type(origin) is dict else dict.items(origin))
        made._origin, made._mixed, made._known = origin, False, None
        if type(origin) is IsolatedDict:
            made._origin, made._mixed = origin._origin, True
        return made

    def _take(self, value: Any) -> Any:
        kind = type(value)
        if kind in ATOMS or kind is IsolatedDict or kind is IsolatedList:
            return value
        if self._mixed:
            if self._known is None:
                self._known = set(map(id, self._origin.values()))
            if id(value) not in self._known:
                return value
        return isolate(value)

    def __getitem__(self, key: _K) -> _V:
        value: _V = dict.__getitem__(self, key)
        if type(value) in ATOMS:
            return value
        mine: _V = self._take(value)
        if mine is not value:
            dict.__setitem__(self, key, mine)
        return mine

    def _take_all(self) -> None:
        """Isolate every value now: somebody takes them all, through C code that asks no method of ours."""
        for key, value in dict.items(self):
            if type(value) not in ATOMS:
                mine = self._take(value)
                if mine is not value:
                    dict.__setitem__(self, key, mine)  # the key exists: the size stays, iteration goes on

    def get(self, key: Any, default: Any = None, /) -> Any:
        return self[key] if key in self else default

    def __iter__(self) -> Iterator[_K]:
        # Not for its result: C code that merges dicts (`{**d}`, `dict(d)`, `f(**d)`) copies the values of a dict
        # straight from memory unless `__iter__` is overridden, and asks `keys` and `__getitem__` then.
        return dict.__iter__(self)

    def values(self) -> Any:
        self._take_all()
        return dict.values(self)

    def items(self) -> Any:
        self._take_all()
        return dict.items(self)

    def pop(self, key: _K, *default: Any) -> Any:
        return self._take(dict.pop(self, key, *default)) if key in self else dict.pop(self, key, *default)

    def popitem(self) -> tuple[_K, _V]:
        key, value = dict.popitem(self)
        return key, self._take(value)

    def __setitem__(self, key: _K, value: _V) -> None:
        self._mixed = True
        dict.__setitem__(self, key, value)

    def setdefault(self, key: Any, default: Any = None, /) -> Any:
        if key in self:
            return self[key]
        self[key] = default
        return default

    def update(self, *args: Any, **kwargs: Any) -> None:
        self._mixed = True
        dict.update(self, *args, **kwargs)

    def copy(self) -> IsolatedDict[_K, _V]:
        return IsolatedDict.of(self)

    def __copy__(self) -> IsolatedDict[_K, _V]:
        return IsolatedDict.of(self)

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, dict):
            return NotImplemented
        made = IsolatedDict.of(self)
        made.update(other)
        return made

    def __ror__(self, other: Any) -> Any:
        if not isinstance(other, dict):
            return NotImplemented
        return {**other, **self}

    def __ior__(self, other: Any) -> IsolatedDict[_K, _V]:  # type: ignore[override]  # dict's is overloaded
        self.update(other)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[_K, _V]:
        return {copy.deepcopy(key, memo): copy.deepcopy(value, memo) for key, value in dict.items(self)}

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> tuple[Any, ...]:
        return (dict, (list(dict.items(self)),))


class IsolatedList(list[_T]):
    """A list whose elements are isolated when they are taken out; those that its holder put in are the holder's."""

    __slots__ = ("_known", "_mixed", "_origin")
    _origin: list[_T]
    _mixed: bool
    _known: set[int] | None

    @staticmethod
    def of(origin: list[_T]) -> IsolatedList[_T]:
        """Every element of `origin`; they are isolated later."""
        if type(origin) is IsolatedList:
            return origin._derive(list.__getitem__(origin, slice(None)))
        made: IsolatedList[_T] = IsolatedList(origin)
        made._origin, made._mixed, made._known = origin, False, None
        return made

    def _derive(self, elements: list[_T]) -> IsolatedList[_T]:
        """Another list, of some of the elements as they stand in this one."""
        made: IsolatedList[_T] = IsolatedList(elements)
        made._origin, made._mixed, made._known = self._origin, self._mixed, self._known
        return made

    def _take(self, value: Any) -> Any:
        kind = type(value)
        if kind in ATOMS or kind is IsolatedDict or kind is IsolatedList:
            return value
        if self._mixed:
            if self._known is None:
                self._known = set(map(id, self._origin))
            if id(value) not in self._known:
                return value
        return isolate(value)

    def _take_all(self) -> None:
        for index in range(len(self)):
            self[index]

    def __getitem__(self, index: Any) -> Any:
        value = list.__getitem__(self, index)
        kind = type(value)
        if kind in ATOMS:
            return value
        if kind is list and isinstance(index, slice):
            return self._derive(value)
        mine = self._take(value)
        if mine is not value:
            list.__setitem__(self, index, mine)
        return mine

    def __iter__(self) -> Iterator[_T]:
        index = 0
        while index < len(self):
            yield self[index]
            index += 1

    def __reversed__(self) -> Iterator[_T]:
        for index in range(len(self) - 1, -1, -1):
            yield self[index]

    def pop(self, index: SupportsIndex = -1, /) -> Any:
        return self._take(list.pop(self, index))

    def __setitem__(self, index: Any, value: Any) -> None:
        self._mixed = True
        list.__setitem__(self, index, value)

    def append(self, value: _T, /) -> None:
        self._mixed = True
        list.append(self, value)

    def extend(self, values: Iterable[_T], /) -> None:
        self._mixed = True
        list.extend(self, values)

    def insert(self, index: SupportsIndex, value: _T, /) -> None:
        self._mixed = True
        list.insert(self, index, value)

    def copy(self) -> IsolatedList[_T]:
        return IsolatedList.of(self)

    def __copy__(self) -> IsolatedList[_T]:
        return IsolatedList.of(self)

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, list):
            return NotImplemented
        made = IsolatedList.of(self)
        made.extend(other)
        return made

    def __radd__(self, other: Any) -> Any:
        if not isinstance(other, list):
            return NotImplemented
        return [*other, *self]

    def __iadd__(self, other: Any) -> IsolatedList[_T]:  # type: ignore[override]  # list's returns Self
        self.extend(other)
        return self

    def __mul__(self, times: SupportsIndex) -> list[_T]:
        return list.__mul__([*self], times)

    __rmul__ = __mul__

    def __imul__(self, times: SupportsIndex) -> IsolatedList[_T]:
        self._take_all()
        list.__imul__(self, times)
        return self

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        self._take_all()
        list.sort(self, key=key, reverse=reverse)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[_T]:
        return [copy.deepcopy(value, memo) for value in list.__getitem__(self, slice(None))]

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> tuple[Any, ...]:
        return (list, (list.__getitem__(self, slice(None)),))


# ---- on the way in -----------------------------------------------------------------------------------------------


def own(value: Any) -> Any:
    """A copy of what user code gave, of plain containers, which that code does not hold.

    Raises:
        InvalidUpdateError: the value contains itself, or is nested deeper than Python's recursion allows.
    """
    kind = type(value)
    if kind in ATOMS:
        return value
    try:
        return _own(value)
    except RecursionError:
        raise InvalidUpdateError(
            "a value contains itself, or is nested too deeply to be copied. Write a value without cycles."
        ) from None


def _own(value: Any) -> Any:
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is dict:
        return {key: item if type(item) in ATOMS else _own(item) for key, item in value.items()}
    if kind is list:
        return [item if type(item) in ATOMS else _own(item) for item in value]
    if kind is IsolatedDict:
        return _own_isolated_dict(value)
    if kind is IsolatedList:
        return _own_isolated_list(value)
    return copier_of(kind)(value, _own)


def _own_isolated_dict(value: IsolatedDict[Any, Any]) -> dict[Any, Any]:
    origin: dict[Any, Any] = getattr(value, "_origin", {})
    made: dict[Any, Any] = {}
    for key, item in dict.items(value):
        # `is` and not `==`: True equals 1.
        made[key] = item if type(item) in ATOMS or (key in origin and origin[key] is item) else _own(item)
    same = len(made) == len(origin) and all(
        left is right and made[left] is origin[right] for left, right in zip(made, origin, strict=True)
    )
    return origin if same else made


def _own_isolated_list(value: IsolatedList[Any]) -> list[Any]:
    origin: list[Any] = getattr(value, "_origin", [])
    plain = list.__getitem__(value, slice(None))
    known = set(map(id, origin))
    made = [item if type(item) in ATOMS or id(item) in known else _own(item) for item in plain]
    same = len(made) == len(origin) and all(left is right for left, right in zip(made, origin, strict=True))
    return origin if same else made


def own_fold(value: Any, *parts: Any) -> Any:
    """`own` for what a reducer made of owned `parts`: their elements are kept as they are."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is not list and kind is not dict:
        return own(value)
    known: set[int] = set()
    for part in parts:
        if type(part) is list:
            known.update(map(id, part))
        elif type(part) is dict:
            known.update(map(id, part.values()))
    if kind is list:
        return [item if type(item) in ATOMS or id(item) in known else own(item) for item in value]
    return {key: item if type(item) in ATOMS or id(item) in known else own(item) for key, item in value.items()}
