"""Where threads of `pregel_async` and long-term memory are kept: ports, what keeps them, and the suites they pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .abc import BaseCheckpointSaver
from .codec import Codec
from .errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    ErasureIncompleteError,
    InvalidNamespaceError,
    PregelError,
    SaverClosedError,
    StorageError,
    StorageFullError,
    StorageLockedError,
    StorageReadOnlyError,
    SyncCallError,
    ThreadBusyError,
    ThreadExistsError,
    ThreadNotFoundError,
    UnknownTypeError,
    UnstorableValueError,
    UnsupportedFormatError,
)
from .memory import InMemorySaver
from .records import Checkpoint, CheckpointMetadata, CheckpointTuple, ThreadHeader
from .stores.abc import BaseStore
from .stores.memory import InMemoryStore
from .upkeep.retention import Pruned, Retention

if TYPE_CHECKING:
    # Those of Postgres are not in `__all__`: they need an extra, and `import *` has to work without.
    from .postgres import PostgresSaver as PostgresSaver
    from .sqlite import SqliteSaver
    from .stores.postgres import PostgresStore as PostgresStore
    from .stores.sqlite import SqliteStore

MemorySaver = InMemorySaver
"""The same, by its older name elsewhere."""

__all__ = [
    "BaseCheckpointSaver",
    "BaseStore",
    "Checkpoint",
    "CheckpointError",
    "CheckpointMetadata",
    "CheckpointNotFoundError",
    "CheckpointTuple",
    "Codec",
    "CorruptCheckpointError",
    "ErasureIncompleteError",
    "InMemorySaver",
    "InMemoryStore",
    "InvalidNamespaceError",
    "MemorySaver",
    "PregelError",
    "Pruned",
    "Retention",
    "SaverClosedError",
    "SqliteSaver",
    "SqliteStore",
    "StorageError",
    "StorageFullError",
    "StorageLockedError",
    "StorageReadOnlyError",
    "SyncCallError",
    "ThreadBusyError",
    "ThreadExistsError",
    "ThreadHeader",
    "ThreadNotFoundError",
    "UnknownTypeError",
    "UnstorableValueError",
    "UnsupportedFormatError",
]


def __getattr__(name: str) -> Any:
    """Import what has a driver when it is asked for: a program that does not use it never loads it."""
    if name == "SqliteSaver":
        from .sqlite import SqliteSaver

        return SqliteSaver
    if name == "PostgresSaver":
        from .postgres import PostgresSaver

        return PostgresSaver
    if name == "SqliteStore":
        from .stores.sqlite import SqliteStore

        return SqliteStore
    if name == "PostgresStore":
        from .stores.postgres import PostgresStore

        return PostgresStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
