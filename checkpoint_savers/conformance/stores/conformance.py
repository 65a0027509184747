"""The suite for stores: items come back as they were put until they expire, in a defined order, in batches."""

from __future__ import annotations

from .batches import Batches
from .expiry import Expiry
from .items import Items
from .search import Search
from .suite import OpenStore

__all__ = ["OpenStore", "StoreConformance"]


class StoreConformance(Items, Search, Batches, Expiry):
    """All clauses for stores. Override the fixture `open_store`."""
