"""Long-term memory: items under namespaces, for all threads and all graphs. A port, and the stores that keep it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import InvalidKeyError, InvalidNamespaceError, UnstorableItemError, VectorSearchError
from .abc import BaseStore
from .memory import InMemoryStore
from .ops import (
    NOT_PROVIDED,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Namespace,
    NotProvided,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)
from .port import Batch, Done, Find, Outcome, Read, Row, Scan, Spaces, Write

if TYPE_CHECKING:
    from .postgres import PostgresStore as PostgresStore  # not in `__all__`: it needs an extra
    from .sqlite import SqliteStore

__all__ = [
    "NOT_PROVIDED",
    "BaseStore",
    "Batch",
    "Done",
    "Find",
    "GetOp",
    "InMemoryStore",
    "InvalidKeyError",
    "InvalidNamespaceError",
    "Item",
    "ListNamespacesOp",
    "MatchCondition",
    "Namespace",
    "NotProvided",
    "Op",
    "Outcome",
    "PutOp",
    "Read",
    "Result",
    "Row",
    "Scan",
    "SearchItem",
    "SearchOp",
    "Spaces",
    "SqliteStore",
    "TTLConfig",
    "UnstorableItemError",
    "VectorSearchError",
    "Write",
]


def __getattr__(name: str) -> Any:
    """Import what has a driver when it is asked for: a program without SQLite never loads it."""
    if name == "SqliteStore":
        from .sqlite import SqliteStore

        return SqliteStore
    if name == "PostgresStore":
        from .postgres import PostgresStore

        return PostgresStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
