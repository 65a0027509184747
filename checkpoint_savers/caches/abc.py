"""The port between the runtime and a cache: bytes under keys, for a limited time.

A cache is not data: everything in it can be computed again. So it may lose entries at any time, and it drops what it
finds damaged. What it returns is what was put under that key, byte for byte, or nothing.

A custom cache subclasses `BaseCache`, calls its `__init__`, implements three methods, and passes
`checkpoint_savers.conformance.CacheConformance`.

The contract, for every cache
    - It serves concurrent calls from any thread and any event loop of the process, asyncio and trio.
    - An expired entry is never returned, and is removed as other entries are written.
    - Cancelling a caller leaves each entry in its old or in its new state.
    - A database's own exceptions are translated to `StorageError`s, with their cause.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias, cast

from ..durations import read_seconds
from .flights import Flights

Namespace: TypeAlias = tuple[str, ...]
"""The path under which an entry is stored, outermost first: ("my_graph", "my_node"). Parts may be any text."""

FullKey: TypeAlias = tuple[Namespace, str]
"""The key of an entry: its namespace, and its key in the namespace, which may be any text."""


class BaseCache(ABC):
    """Stores bytes under keys.

    Args:
        clock: returns the time in unix seconds: when an entry has expired.

    Attributes:
        flights: the computations for this cache that are running, by key.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.flights = Flights()

    @abstractmethod
    async def aget(self, keys: Iterable[FullKey]) -> dict[FullKey, bytes]:
        """Return the values of those keys that have one.

        Args:
            keys: the keys to look up.

        Returns:
            Values by key. A missing key has no value, or an expired or damaged one.

        Raises:
            TypeError: an element is not a key.
            StorageError: the database failed, or the cache is not open.
        """

    @abstractmethod
    async def aset(self, pairs: Mapping[FullKey, tuple[bytes, float | None]]) -> None:
        """Store values, and replace those of the same keys.

        Args:
            pairs: for each key its value, and the number of seconds from now for which it is stored; None for ever
                (until it is cleared, or the cache needs the space).

        Raises:
            TypeError: something is not a key, or a value not bytes; nothing was changed.
            ValueError: a number of seconds is not positive and finite; nothing was changed.
            StorageError: the database failed, or the cache is not open.
        """

    @abstractmethod
    async def aclear(self, namespaces: Iterable[Namespace] | None = None) -> None:
        """Remove all entries, or those of some namespaces and of all namespaces inside them.

        ("graph",) stands for ("graph",), ("graph", "node") and so on, and not for ("graph2",).

        Args:
            namespaces: the namespaces; None for all entries.

        Raises:
            TypeError: an element is not a namespace. A str is not one: pass `[("graph",)]`, not `"graph"`.
            StorageError: the database failed, or the cache is not open.
        """


class CacheEntry(NamedTuple):
    """The entry of a key.

    Attributes:
        value: the value.
        expires_at: unix seconds, from which on the entry is not returned. Infinite if it does not expire.
    """

    value: bytes
    expires_at: float


def checked_keys(keys: Iterable[FullKey]) -> list[FullKey]:
    """Check keys.

    Args:
        keys: what the caller passed.

    Returns:
        The keys, in a list.

    Raises:
        TypeError: an element is not a key.
    """
    found = list(keys)
    for key in found:
        match cast("object", key):
            case tuple((namespace, str())) if _is_namespace(namespace):
                continue
            case _:
                raise TypeError(f"a key is (namespace, text), with a tuple of texts as its namespace, not {key!r}")
    return found


def checked_entries(pairs: Mapping[FullKey, tuple[bytes, float | None]], now: float) -> dict[FullKey, CacheEntry]:
    """Check what is to be stored.

    Args:
        pairs: what the caller passed.
        now: unix seconds.

    Returns:
        Entries by key.

    Raises:
        TypeError: something is not a key, or a value not bytes.
        ValueError: a number of seconds is not positive and finite.
    """
    checked_keys(pairs)
    return {key: _entry(key, value, ttl, now) for key, (value, ttl) in pairs.items()}


def checked_namespaces(namespaces: Iterable[Namespace] | None) -> list[Namespace]:
    """Check the namespaces to clear.

    Args:
        namespaces: what the caller passed.

    Returns:
        The namespaces; the empty one, which contains all, if None was passed.

    Raises:
        TypeError: an element is not a namespace.
    """
    found: list[Namespace] = [()] if namespaces is None else list(namespaces)
    for one in found:
        if not _is_namespace(one):
            raise TypeError(f"a namespace is a tuple of texts, like ('my_graph', 'my_node'), not {one!r}")
    return found


def _entry(key: FullKey, value: bytes, ttl: float | None, now: float) -> CacheEntry:
    if not isinstance(value, bytes):
        raise TypeError(f"a cache keeps bytes, not {type(value).__name__} (for the key {key!r})")
    if ttl is None:
        return CacheEntry(value, math.inf)
    return CacheEntry(value, now + read_seconds(f"the ttl of the key {key!r}", ttl))


def _is_namespace(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(part, str) for part in cast("tuple[object, ...]", value))
