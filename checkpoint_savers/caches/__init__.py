"""Caches: results of nodes, stored to be reused for an equal input. A port, and two caches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazily import exported

if TYPE_CHECKING:
    from .abc import BaseCache, FullKey, Namespace
    from .flights import Flights
    from .memory import InMemoryCache
    from .sqlite import SqliteCache

__all__ = ["BaseCache", "Flights", "FullKey", "InMemoryCache", "Namespace", "SqliteCache"]


__getattr__ = exported(
    __name__,
    {
        **dict.fromkeys(("BaseCache", "FullKey", "Namespace"), ".abc"),
        "Flights": ".flights",
        "InMemoryCache": ".memory",
        "SqliteCache": ".sqlite",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
