"""Storage for threads of `pregel_async` and for long-term memory: ports, implementations, and conformance suites."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    StorageReplacedError,
    StoredTypeChangedError,
    SyncCallError,
    ThreadBusyError,
    ThreadExistsError,
    ThreadNotFoundError,
    TypeVersionError,
    UnknownTypeError,
    UnstorableValueError,
    UnsupportedFormatError,
    UpcastError,
)
from .lazily import exported
from .memory import InMemorySaver
from .records import Checkpoint, CheckpointMetadata, CheckpointTuple, StoredObject, ThreadHeader
from .upkeep.retention import Pruned, Retention

if TYPE_CHECKING:
    # The PostgreSQL classes are not in `__all__`: they need an extra, and `import *` must work without it.
    from .codec.versions import stored_type
    from .postgres import PostgresSaver as PostgresSaver
    from .sqlite import SqliteSaver
    from .stores.abc import BaseStore
    from .stores.memory import InMemoryStore
    from .stores.postgres import PostgresStore as PostgresStore
    from .stores.sqlite import SqliteStore

MemorySaver = InMemorySaver
"""The older name of `InMemorySaver` in LangGraph."""

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
    "StorageReplacedError",
    "StoredObject",
    "StoredTypeChangedError",
    "SyncCallError",
    "ThreadBusyError",
    "ThreadExistsError",
    "ThreadHeader",
    "ThreadNotFoundError",
    "TypeVersionError",
    "UnknownTypeError",
    "UnstorableValueError",
    "UnsupportedFormatError",
    "UpcastError",
    "stored_type",
]


__getattr__ = exported(
    __name__,
    {
        "BaseStore": ".stores.abc",
        "InMemoryStore": ".stores.memory",
        "PostgresSaver": ".postgres",
        "PostgresStore": ".stores.postgres",
        "SqliteSaver": ".sqlite",
        "SqliteStore": ".stores.sqlite",
        "stored_type": ".codec.versions",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
