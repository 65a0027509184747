"""Isolate user code from the runtime's values: changes in place on one side never reach the other.

    own(value)       on the way in (an update, an input): a plain copy that no user code holds. Subclasses of str, int,
                     float and bytes without data of their own become the plain value.
    isolate(value)   on the way out (a node's input, a chunk, a result): a copy made lazily, element by element

A channel's value is *owned*: made of plain containers, and never changed in place. `isolate` does not copy all of it.
It returns a real list, dict or set, of a subclass, that holds all elements: `isinstance`, `len`, `==`, json, msgspec
and `match` see the whole value. Nested containers are isolated one by one when Python code takes them, and the isolated
copy replaces the original, so that the next access returns the same object.

Data are isolated at any depth: list, dict, set, deque, tuple and their subclasses, dataclasses, msgspec.Structs and
pydantic models. Everything else is opaque and shared: instances of other classes, the keys of dicts, and elements that
C code takes directly out of a container (a `heapq` function, for example).

For unchanged values, `own` returns the very objects of which `isolate` made copies. So an unchanged element of a list
keeps its identity through a node, by which storage recognises the part that a list shares with its predecessor.
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
    """Return a copy of an owned value, whose containers are copied when they are taken out."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is dict or kind is IsolatedDict:
        return cast("_T", IsolatedDict.of(cast("dict[Any, Any]", value)))
    if kind is list or kind is IsolatedList:
        return cast("_T", IsolatedList.of(cast("list[Any]", value)))
    return cast("_T", copier_of(kind)(value, isolate))


class IsolatedDict(dict[_K, _V]):
    """A dict that isolates each value when it is taken out."""

    __slots__ = ("_known", "_origin")
    _origin: dict[_K, _V]  # the owned dict of which this is a copy
    _known: set[int] | None  # ids of the origin's values, once they are needed

    @staticmethod
    def of(origin: dict[_K, _V]) -> IsolatedDict[_K, _V]:
        """Return a dict of all keys and values of `origin`. The values are isolated later."""
        made: IsolatedDict[_K, _V] = IsolatedDict(origin)
        made._origin, made._known = origin, None
        return made

    def _take(self, key: Any, value: Any) -> Any:
        """Return an isolated copy of a value of the origin. Values that user code has set are returned as is."""
        kind = type(value)
        if kind in ATOMS or kind is IsolatedDict or kind is IsolatedList:
            return value
        if self._origin.get(key) is not value:
            # User code may have moved a value of the origin to another key, so compare with all of them.
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
        # Only called for missing attributes. Code written for message classes reads `message.content`: say what to do.
        if "content" in self and ("role" in self or "type" in self) and not name.startswith("_"):
            raise AttributeError(
                f"this message is a dict, which has no attribute {name!r}: write message[{name!r}]. For "
                "langchain-core's messages, give the key the reducer pregel_async.langchain.add_messages",
                name=name,
                obj=self,
            )
        raise AttributeError(f"'dict' object has no attribute {name!r}", name=name, obj=self)

    def _take_all(self) -> None:
        """Isolate every value now, for C code that takes all values without calling a method of this class."""
        for key, value in dict.items(self):
            if type(value) not in ATOMS:
                mine = self._take(key, value)
                if mine is not value:
                    dict.__setitem__(
                        self, key, mine
                    )  # the key exists, so the size does not change and the iteration may continue

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

    __copy__ = copy

    def __or__(self, other: Any) -> Any:
        return {**self, **other} if isinstance(other, dict) else NotImplemented

    def __ror__(self, other: Any) -> Any:
        return {**other, **self} if isinstance(other, dict) else NotImplemented

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[_K, _V]:
        return {deepcopy(key, memo): deepcopy(value, memo) for key, value in dict.items(self)}

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> tuple[Any, ...]:
        # Pickled as a plain dict, which another process can read without this package.
        return (dict, (list(dict.items(self)),))


class IsolatedList(list[_T]):
    """A list that isolates each element when it is taken out."""

    __slots__ = ("_known", "_origin")
    _origin: list[_T]
    _known: set[int] | None

    @staticmethod
    def of(origin: list[_T]) -> IsolatedList[_T]:
        """Return a list of all elements of `origin`. They are isolated later."""
        made: IsolatedList[_T] = IsolatedList(origin)
        made._origin, made._known = origin, None
        return made

    def _take(self, index: SupportsIndex, value: Any) -> Any:
        """Return an isolated copy of an element of the origin. Other elements are returned as they are."""
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
        # By index, with the length read each time: a list may change while it is iterated, as a plain list may.
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
    """Return a plain copy of a value from user code, which user code does not hold.

    Args:
        value: the value.
        channel: the channel that it is written to, for the error message.

    Raises:
        InvalidUpdateError: the value contains itself, or is nested deeper than Python's recursion allows.
    """
    kind = type(value)
    if kind in ATOMS:
        return value
    try:
        return _own(value)
    except RecursionError:
        # Searched only now: looking for cycles on the way would cost each copy.
        path = _cycle(value, [])
        raise InvalidUpdateError(
            f"channel {channel!r}, at value{path}: the container there contains itself"
            if path is not None
            else f"channel {channel!r}: the value contains itself, or is nested too deeply to be copied",
            channel=channel,
        ) from None


def _cycle(value: Any, above: list[Any]) -> str | None:
    """Return the path, as Python would write it, to a list or dict that contains itself; None if there is none."""
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
    """Return the plain value for a dict's key of a subclass of a plain scalar, and other keys as they are."""
    # A stored dict is read with plain keys. With other keys here, a question asked again would differ from the
    # recorded one.
    return _own(key) if copier_of(type(key)) is bare_scalar else key


NO_CLASSES: Final = frozenset[type]()

REGISTERED: Final[ContextVar[frozenset[type] | None]] = ContextVar("pregel_async.registered", default=NO_CLASSES)
"""Subclasses of plain scalars that the run's codec stores as they are; None for all subclasses.

Set only if the codec has such classes, as few do: setting a context variable costs each run.
"""


def _plain(value: Any) -> Any:
    """Return the plain value of an object of a subclass of str, int, float or bytes without data of its own."""
    # Also in runs that store nothing: otherwise a graph could behave differently with a saver than without one.
    registered = REGISTERED.get()
    if registered is None or type(value) in registered:
        return value
    make = plain_maker(type(value))
    return value if make is None else make(value)


def own_as_it_is(value: Any) -> Any:
    """Return a copy as `own` does, but keep subclasses of scalars: for values that are never stored."""
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
    """Return a plain copy of a reducer's result. Elements of the owned `parts` are kept as they are.

    Args:
        value: the reducer's result.
        parts: the owned values that the reducer got.
    """
    # Without this exception, a fold that appends to a list of n elements would copy all n of them each time.
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
