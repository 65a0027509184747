"""What a store promises, as tests: items come back as they were put until they expire, found in one order, batched."""

from __future__ import annotations

from .batches import Batches
from .expiry import Expiry
from .items import Items
from .search import Search
from .suite import OpenStore

__all__ = ["OpenStore", "StoreConformance"]


class StoreConformance(Items, Search, Batches, Expiry):
    """All of it. Override the fixture `open_store`."""
