"""What a store promises, as tests: items come back as they were put until they expire, found in one order, batched."""

from __future__ import annotations

from .batches import Batching
from .expiry import Expiry
from .items import Items
from .search import Searching
from .suite import OpenStore

__all__ = ["OpenStore", "StoreConformance"]


class StoreConformance(Items, Searching, Batching, Expiry):
    """All of it. Override the fixture `open_store`."""
