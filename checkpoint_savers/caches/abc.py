"""The port between the runtime and a cache: bytes under keys, for a time.

A cache is not data: whatever is in it can be computed again. So it may lose anything at any time, and what it finds
damaged it forgets. What it gives back is what was put there under that key, byte for byte, or nothing.

A cache of one's own subclasses `BaseCache`, calls its `__init__`, implements three methods, and runs
`checkpoint_savers.conformance.CacheConformance` on the result.

The contract, for every cache
    - It serves concurrent calls from any thread and any event loop of the process, asyncio and trio.
    - An entry that has expired is never given back, and goes by itself when others are written.
    - Cancelling a caller leaves each entry as it was, or as it was to be.
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
"""Where an entry stands, from the outside inwards: ("my_graph", "my_node"). Parts may be any text."""

FullKey: TypeAlias = tuple[Namespace, str]
"""What an entry is known by: its namespace, and its key there, which may be any text."""


class BaseCache(ABC):
    """Keeps bytes under keys.

    Args:
        clock: unix seconds; says when an entry has expired.

    Attributes:
        flights: what is being computed for this cache, by key.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.flights = Flights()

    @abstractmethod
    async def aget(self, keys: Iterable[FullKey]) -> dict[FullKey, bytes]:
        """The values of those keys that have one.

        Raises:
            TypeError: something is no key.
            StorageError
        """

    @abstractmethod
    async def aset(self, pairs: Mapping[FullKey, tuple[bytes, float | None]]) -> None:
        """Keep values, in the place of those that were kept under the same keys.

        Args:
            pairs: each key's value, and for how many seconds from now it is kept; None for ever (until it is cleared,
                or the cache needs the room).

        Raises:
            TypeError, ValueError: something is no key, no bytes, or no time that is positive and finite; nothing was
                changed.
            StorageError
        """

    @abstractmethod
    async def aclear(self, namespaces: Iterable[Namespace] | None = None) -> None:
        """Forget all entries, or those in these namespaces and in all namespaces inside them.

        ("graph",) stands for ("graph",), ("graph", "node") and so on, and not for ("graph2",).

        Raises:
            TypeError: something is no namespace. A text is none: `[("graph",)]`, not `"graph"`.
            StorageError
        """


class CacheEntry(NamedTuple):
    """What is kept under a key.

    Attributes:
        expires_at: unix seconds; from then on it is not there any more. Infinite for one that does not expire.
    """

    value: bytes
    expires_at: float


def checked_keys(keys: Iterable[FullKey]) -> list[FullKey]:
    """The keys, each of them one."""
    found = list(keys)
    for key in found:
        match cast("object", key):
            case tuple((namespace, str())) if _is_namespace(namespace):
                continue
            case _:
                raise TypeError(f"a key is (namespace, text), with a tuple of texts as its namespace, not {key!r}")
    return found


def checked_entries(pairs: Mapping[FullKey, tuple[bytes, float | None]], now: float) -> dict[FullKey, CacheEntry]:
    """The entries to keep."""
    checked_keys(pairs)
    return {key: _entry(key, value, ttl, now) for key, (value, ttl) in pairs.items()}


def checked_namespaces(namespaces: Iterable[Namespace] | None) -> list[Namespace]:
    """The namespaces to clear. All lie in the empty one, which stands for none being named."""
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
