"""Where the threads of `pregel_async` are kept: a port, two savers, and the suite that any further one has to pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .abc import BaseCheckpointSaver
from .codec import Codec
from .errors import (
    CheckpointError,
    CorruptCheckpointError,
    PregelError,
    SaverClosedError,
    StorageError,
    StorageFullError,
    StorageLockedError,
    StorageReadOnlyError,
    ThreadBusyError,
    UnknownTypeError,
    UnstorableValueError,
    UnsupportedFormatError,
)
from .memory import InMemorySaver
from .records import Checkpoint, CheckpointMetadata, CheckpointTuple

if TYPE_CHECKING:
    from .sqlite import SqliteSaver

MemorySaver = InMemorySaver
"""The same, by its older name elsewhere."""

__all__ = [
    "BaseCheckpointSaver",
    "Checkpoint",
    "CheckpointError",
    "CheckpointMetadata",
    "CheckpointTuple",
    "Codec",
    "CorruptCheckpointError",
    "InMemorySaver",
    "MemorySaver",
    "PregelError",
    "SaverClosedError",
    "SqliteSaver",
    "StorageError",
    "StorageFullError",
    "StorageLockedError",
    "StorageReadOnlyError",
    "ThreadBusyError",
    "UnknownTypeError",
    "UnstorableValueError",
    "UnsupportedFormatError",
]


def __getattr__(name: str) -> Any:
    """Import what has a driver when it is asked for: a program without SQLite never loads it."""
    if name == "SqliteSaver":
        from .sqlite import SqliteSaver

        return SqliteSaver
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
