"""The suite for savers: all promises of the port, as tests."""

from __future__ import annotations

from .aliasing import Aliasing
from .atomic_commits import AtomicCommits
from .chains import Chains
from .crash_points import CrashPoints
from .damage import Damage
from .durability import Durability
from .events import StreamEvents
from .loops.cancellation import Cancellation
from .loops.cancellation_at_every_await import CancellationAtEveryAwait
from .loops.concurrency import Concurrency
from .loops.event_loops import EventLoops
from .moved_heads import MovedHeads
from .one_writer import OneWriter
from .ownership import Ownership
from .reading import CheckpointReads
from .records import TaskRecords
from .release_notifications import ReleaseNotifications
from .result_order import ResultOrder
from .several_namespaces import SeveralNamespaces
from .stored_bytes import StoredBytes
from .stored_types import StoredTypes
from .upkeep.checkpoint_listing import CheckpointListing
from .upkeep.deleting import Deleting
from .upkeep.dump_and_load import DumpAndLoad
from .upkeep.erasing import Erasing
from .upkeep.pruning import Pruning
from .upkeep.rewriting import Rewriting
from .upkeep.thread_listing import ThreadListing
from .upkeep.thread_metadata import ThreadMetadata

__all__ = ["SaverConformance"]


class SaverConformance(
    AtomicCommits,
    SeveralNamespaces,
    CrashPoints,
    Durability,
    StreamEvents,
    TaskRecords,
    OneWriter,
    Ownership,
    Cancellation,
    CancellationAtEveryAwait,
    StoredBytes,
    StoredTypes,
    Aliasing,
    Damage,
    EventLoops,
    Concurrency,
    CheckpointReads,
    Chains,
    CheckpointListing,
    ResultOrder,
    ThreadListing,
    ThreadMetadata,
    MovedHeads,
    Deleting,
    DumpAndLoad,
    Rewriting,
    Pruning,
    Erasing,
    ReleaseNotifications,
):
    """All clauses for savers. Override the fixture `open_saver`."""
