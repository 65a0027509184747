"""Own values that come from user code: a later change in place by user code never reaches the runtime's copy.

    own(value)            copies an update or an input. Subclasses of str, int, float and bytes without data of their
                          own become the plain value.
    own_as_it_is(value)   copies a value that is never stored, and keeps such subclasses
    own_fold(value)       copies a reducer's result, except what it takes from the values that the reducer got

For unchanged values, `own` returns the very objects of which `isolate` made copies. So an unchanged element of a list
keeps its identity through a node, by which storage recognises the part that a list shares with its predecessor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from operator import is_
from typing import Any, Final

from checkpoint_savers.codec.plain_scalars import plain_maker

from ..errors import InvalidUpdateError
from .copying import ATOMS, bare_scalar, copier_of
from .isolation import CONTAINERS, CopiedDict, CopiedList, Copies, IsolatedDict, IsolatedList, by_id


def own(value: Any, channel: str = "", source: Any = None) -> Any:
    """Return a plain copy of a value from user code, which user code does not hold.

    Args:
        value: the value.
        channel: the channel that it is written to, for the error message.
        source: what the user code got. Elements of `value` that are unchanged copies of elements of it are replaced by
            their originals, so that a node may return `[*messages, new]` without a copy of each message.

    Raises:
        InvalidUpdateError: the value contains itself, or is nested deeper than Python's recursion allows.
    """
    kind = type(value)
    if kind in ATOMS:
        return value
    try:
        if kind in _PLAIN and type(source) in CONTAINERS and isinstance(source._copies, Copies):
            return _own_elements(value, source._copies.originals(value if kind is list else value.values()))
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
    if kind is IsolatedDict or kind is CopiedDict:
        return _own_isolated_dict(value)
    if kind is IsolatedList or kind is CopiedList:
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


_PLAIN: Final = frozenset[type]({list, dict})


def _own_elements(value: Any, known: Mapping[int, Any]) -> Any:
    """Return a copy of a list or dict with known elements replaced, and other elements copied.

    Args:
        value: the list or dict, which may be isolated.
        known: owned values: by the id of themselves, or of an unchanged copy.
    """
    values = list.__getitem__(value, slice(None)) if isinstance(value, list) else [*dict.values(value)]
    made = [
        item if type(item) in ATOMS else _own(item) if original is None else original
        for item, original in zip(values, map(known.get, map(id, values)), strict=True)
    ]
    if isinstance(value, list):
        return made
    keys = [key if type(key) in ATOMS else _own_key(key) for key in dict.keys(value)]
    return dict(zip(keys, made, strict=True))


def _own_isolated_dict(value: CopiedDict[Any, Any]) -> dict[Any, Any]:
    origin: dict[Any, Any] = getattr(value, "_origin", {})
    if _same_dict(value, origin):  # most dicts are only read
        return origin
    made = _own_elements(value, _known_of(origin.values(), dict.values(value), value))
    return origin if _same_dict(made, origin) else made


def _same_dict(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    # `is` and not `==`: True equals 1.
    return (
        len(one) == len(other)
        and all(map(is_, dict.values(one), other.values()))
        and all(map(is_, dict.__iter__(one), other))
    )


def _own_isolated_list(value: CopiedList[Any]) -> list[Any]:
    origin: list[Any] = getattr(value, "_origin", [])
    held = list.__getitem__(value, slice(None))
    if _same_list(held, origin):  # most lists are passed on untouched
        return origin
    made = _own_elements(held, _known_of(origin, held, value))
    return origin if _same_list(made, origin) else made


def _same_list(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


def _known_of(origin: Iterable[Any], held: Iterable[Any], value: Any) -> dict[int, Any]:
    """Return the elements of an isolated container that need no copy, as `_own_elements` takes them."""
    known = by_id(origin, origin)
    copies = getattr(value, "_copies", None)
    if isinstance(copies, Copies):
        known.update(copies.originals(held))
    return known


def own_fold(value: Any, copies: Copies, *parts: Any) -> Any:
    """Return a plain copy of a reducer's result. Elements of the owned `parts` are kept as they are.

    Args:
        value: the reducer's result.
        copies: the copies that the reducer got of them.
        parts: the owned values that the reducer got.
    """
    # Without this exception, a fold that appends to a list of n elements would copy all n of them each time.
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind not in _PLAIN:
        return own(value)
    known: dict[int, Any] = {}
    for part in parts:
        if type(part) in _PLAIN:
            owned = part if type(part) is list else part.values()
            known.update(by_id(owned, owned))
    known.update(copies.originals(value if kind is list else value.values()))
    return _own_elements(value, known)
