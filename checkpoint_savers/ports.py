"""Types of the parameters that accept a store or a cache, for annotations: they resolve, and load on first access."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazily import exported

if TYPE_CHECKING:
    from .caches.abc import BaseCache
    from .stores.abc import BaseStore

__all__ = ["BaseCache", "BaseStore"]

__getattr__ = exported(__name__, {"BaseCache": "..caches.abc", "BaseStore": "..stores.abc"})
