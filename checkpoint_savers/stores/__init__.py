"""Long-term memory: items under namespaces, shared by all threads and all graphs. The port and its stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InvalidKeyError, InvalidNamespaceError, UnstorableItemError, VectorSearchError
from ..lazily import exported
from .ops import (
    NOT_PROVIDED,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    NotProvided,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    StoreNamespace,
    TTLConfig,
)

if TYPE_CHECKING:
    from .abc import BaseStore
    from .memory import InMemoryStore
    from .port import Batch, Done, Find, Outcome, Read, Row, Scan, Spaces, Write
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
    "StoreNamespace",
    "TTLConfig",
    "UnstorableItemError",
    "VectorSearchError",
    "Write",
]


__getattr__ = exported(
    __name__,
    {
        "BaseStore": ".abc",
        "InMemoryStore": ".memory",
        "PostgresStore": ".postgres",
        "SqliteStore": ".sqlite",
        **dict.fromkeys(("Batch", "Done", "Find", "Outcome", "Read", "Row", "Scan", "Spaces", "Write"), ".port"),
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
