"""Who may change what: values inside a run are never changed in place; what leaves it can be, and nobody else notices.

    own(value)       on the way in (an update, an input): a plain copy that no user code holds; of subclasses of str,
                     int, float and bytes without data of their own, the plain value
    isolate(value)   on the way out (a node's input, a chunk, a result): a copy made lazily, element by element

A channel's value is *owned*: made of plain containers, and by convention never changed in place. To hand it out without
copying all of it, `isolate` gives a real list, dict or set (a subclass that holds all elements, so that `isinstance`,
`len`, `==`, json, msgspec and `match` see the whole value) whose containers are isolated one by one when Python code
takes them. What is taken stays in the copy, so that it is the same object the next time.

What counts as data, and is isolated at any depth: list, dict, set, deque, tuple and their subclasses, dataclasses,
msgspec.Structs, pydantic models. Everything else is opaque and shared: instances of other classes, what C code takes
out of a container by itself (a `heapq` function's elements, say), and the keys of dicts.

`own` gives back the very objects that `isolate` had handed out where they were not changed: an unchanged element of a
list keeps its identity through a node. Storage recognises by it what a list shares with its predecessor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from copy import deepcopy
from typing import Any, Final, Self, SupportsIndex, TypeVar, cast

from checkpoint_savers.codec.plain_scalars import plain_maker

from ..errors import InvalidUpdateError
from .copying import ATOMS, bare_scalar, copier_of

_T = TypeVar("_T")
_K = TypeVar("_K")
_V = TypeVar("_V")


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
    """A dict whose values are isolated when they are taken out."""

    __slots__ = ("_known", "_origin")
    _origin: dict[_K, _V]  # what it was made of
    _known: set[int] | None  # ids of the origin's values, once they are needed

    @staticmethod
    def of(origin: dict[_K, _V]) -> IsolatedDict[_K, _V]:
        """Every key and value of `origin`; the values are isolated later."""
        made: IsolatedDict[_K, _V] = IsolatedDict(origin)
        made._origin, made._known = origin, None
        return made

    def _take(self, key: Any, value: Any) -> Any:
        """A value on its way out: a copy of the origin's, or what it is when it is the holder's already."""
        kind = type(value)
        if kind in ATOMS or kind is IsolatedDict or kind is IsolatedList:
            return value
        if self._origin.get(key) is not value:
            if self._known is None:
                self._known = set(map(id, self._origin.values()))
            if id(value) not in self._known:
                return value
        return isolate(value)

    def __getitem__(self, key: _K) -> _V:
        value: _V = dict.__getitem__(self, key)
        if type(value) in ATOMS:
            return value
        mine: _V = self._take(key, value)
        if mine is not value:
            dict.__setitem__(self, key, mine)
        return mine

    def __getattr__(self, name: str) -> Any:
        # Called for what a dict does not have. Code that comes from libraries of messages takes `message.content`.
        if "content" in self and ("role" in self or "type" in self) and not name.startswith("_"):
            raise AttributeError(
                f"this message is a dict, which has no attribute {name!r}: write message[{name!r}]. For "
                "langchain-core's messages, give the key the reducer pregel_async.langchain.add_messages",
                name=name,
                obj=self,
            )
        raise AttributeError(f"'dict' object has no attribute {name!r}", name=name, obj=self)

    def _take_all(self) -> None:
        """Isolate every value now: somebody takes them all, through C code that asks no method of ours."""
        for key, value in dict.items(self):
            if type(value) not in ATOMS:
                mine = self._take(key, value)
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

    __copy__ = copy

    def __or__(self, other: Any) -> Any:
        return {**self, **other} if isinstance(other, dict) else NotImplemented

    def __ror__(self, other: Any) -> Any:
        return {**other, **self} if isinstance(other, dict) else NotImplemented

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[_K, _V]:
        return {deepcopy(key, memo): deepcopy(value, memo) for key, value in dict.items(self)}

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> tuple[Any, ...]:
        return (dict, (list(dict.items(self)),))


class IsolatedList(list[_T]):
    """A list whose elements are isolated when they are taken out."""

    __slots__ = ("_known", "_origin")
    _origin: list[_T]
    _known: set[int] | None

    @staticmethod
    def of(origin: list[_T]) -> IsolatedList[_T]:
        """Every element of `origin`; they are isolated later."""
        made: IsolatedList[_T] = IsolatedList(origin)
        made._origin, made._known = origin, None
        return made

    def _take(self, index: SupportsIndex, value: Any) -> Any:
        """An element on its way out: a copy of the origin's, or what it is when it is the holder's already."""
        kind = type(value)
        if kind in ATOMS or kind is IsolatedDict or kind is IsolatedList:
            return value
        origin = self._origin
        if len(origin) != len(self) or origin[index] is not value:
            if self._known is None:
                self._known = set(map(id, origin))
            if id(value) not in self._known:
                return value
        return isolate(value)

    def _take_all(self) -> None:
        for index in range(len(self)):
            self[index]

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
        index = 0
        while index < len(self):
            value = list.__getitem__(self, index)
            kind = type(value)
            if kind not in ATOMS and kind is not IsolatedDict and kind is not IsolatedList:
                mine = self._take(index, value)
                if mine is not value:
                    list.__setitem__(self, index, mine)
                value = mine
            yield value
            index += 1

    def __reversed__(self) -> Iterator[_T]:
        for index in range(len(self) - 1, -1, -1):
            yield self[index]

    def pop(self, index: SupportsIndex = -1, /) -> Any:
        value = self[index]
        list.pop(self, index)
        return value

    def copy(self) -> list[_T]:
        return [*self]

    __copy__ = copy

    def __add__(self, other: Any) -> Any:
        return [*self, *other] if isinstance(other, list) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return [*other, *self] if isinstance(other, list) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> list[_T]:
        return list.__mul__([*self], times)

    __rmul__ = __mul__

    def __imul__(self, times: SupportsIndex) -> Self:
        self._take_all()
        return super().__imul__(times)

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        self._take_all()
        list.sort(self, key=key, reverse=reverse)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[_T]:
        return [deepcopy(value, memo) for value in list.__getitem__(self, slice(None))]

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> tuple[Any, ...]:
        return (list, (list.__getitem__(self, slice(None)),))


def own(value: Any, channel: str = "") -> Any:
    """A copy of what user code gave, of plain containers, which that code does not hold.

    Args:
        channel: where it is written, for the message.

    Raises:
        InvalidUpdateError: the value contains itself, or is nested deeper than Python's recursion allows.
    """
    kind = type(value)
    if kind in ATOMS:
        return value
    try:
        return _own(value)
    except RecursionError:
        path = _cycle(value, [])
        raise InvalidUpdateError(
            f"channel {channel!r}, at value{path}: the container there contains itself"
            if path is not None
            else f"channel {channel!r}: the value contains itself, or is nested too deeply to be copied",
            channel=channel,
        ) from None


def _cycle(value: Any, above: list[Any]) -> str | None:
    """Where in a value, as Python would write it, a list or dict stands that is one of those above it."""
    if any(value is outer for outer in above):
        return ""
    if not isinstance(value, (dict, list)) or len(above) > 200:
        return None
    inner = dict.items(value) if isinstance(value, dict) else enumerate(list.__getitem__(value, slice(None)))
    for key, item in inner:
        found = _cycle(item, [*above, value])
        if found is not None:
            return f"[{key!r}]{found}"
    return None


def _own(value: Any) -> Any:
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is dict:
        return {
            key if type(key) in ATOMS else _own_key(key): item if type(item) in ATOMS else _own(item)
            for key, item in value.items()
        }
    if kind is list:
        return [item if type(item) in ATOMS else _own(item) for item in value]
    if kind is IsolatedDict:
        return _own_isolated_dict(value)
    if kind is IsolatedList:
        return _own_isolated_list(value)
    copier = copier_of(kind)
    return _plain(value) if copier is bare_scalar else copier(value, _own)


def _own_key(key: Any) -> Any:
    """Return the plain value for a dict's key of a subclass of a plain scalar, and other keys as they are.

    A stored dict is read with the plain keys. So a question that is asked again would differ from the recorded one.
    """
    return _own(key) if copier_of(type(key)) is bare_scalar else key


NO_CLASSES: Final = frozenset[type]()

REGISTERED: Final[ContextVar[frozenset[type] | None]] = ContextVar("pregel_async.registered", default=NO_CLASSES)
"""Subclasses of plain scalars that the run's codec stores as they are; None for all. Set only where it has some, as few
do: setting a context variable costs each run."""


def _plain(value: Any) -> Any:
    """The plain value of an object of a subclass of str, int, float or bytes that has no data of its own.

    Also where nothing is stored: else a graph would work without a saver and fail, or go another way, with one.
    """
    registered = REGISTERED.get()
    if registered is None or type(value) in registered:
        return value
    make = plain_maker(type(value))
    return value if make is None else make(value)


def own_as_it_is(value: Any) -> Any:
    """`own` for what is handed on and never stored, such as the arguments of a call: subclasses of scalars stay."""
    token = REGISTERED.set(None)
    try:
        return own(value)
    finally:
        REGISTERED.reset(token)


def _own_isolated_dict(value: IsolatedDict[Any, Any]) -> dict[Any, Any]:
    origin: dict[Any, Any] = getattr(value, "_origin", {})
    made: dict[Any, Any] = {}
    for key, item in dict.items(value):
        # `is` and not `==`: True equals 1.
        made[key if type(key) in ATOMS else _own_key(key)] = (
            item if type(item) in ATOMS or (key in origin and origin[key] is item) else _own(item)
        )
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
    return {
        key if type(key) in ATOMS else _own_key(key): item if type(item) in ATOMS or id(item) in known else own(item)
        for key, item in value.items()
    }
