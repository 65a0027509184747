"""Where results of nodes are kept, to be used again for an equal input: a port, and two caches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .abc import BaseCache, FullKey, Namespace
from .flights import Flights
from .memory import InMemoryCache

if TYPE_CHECKING:
    from .sqlite import SqliteCache

__all__ = ["BaseCache", "Flights", "FullKey", "InMemoryCache", "Namespace", "SqliteCache"]


def __getattr__(name: str) -> Any:
    """Import what has a driver when it is asked for: a program without SQLite never loads it."""
    if name == "SqliteCache":
        from .sqlite import SqliteCache

        return SqliteCache
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
