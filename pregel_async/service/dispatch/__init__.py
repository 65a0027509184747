"""How queued threads come to workers: from their rows, or as jobs of procrastinate."""

from .port import Crew, Dispatcher
from .rows import RowDispatcher

__all__ = ["Crew", "Dispatcher", "RowDispatcher"]
