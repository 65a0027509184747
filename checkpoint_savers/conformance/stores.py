"""What a store promises, as tests: items come back as they were put until they expire, found in one order, batched."""

from __future__ import annotations

from .stores_batches import Batching
from .stores_expiry import Expiry
from .stores_items import Items
from .stores_search import Searching
from .stores_suite import OpenStore

__all__ = ["OpenStore", "StoreConformance"]


class StoreConformance(Items, Searching, Batching, Expiry):
    """All of it. Override the fixture `open_store`."""
