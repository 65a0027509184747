"""All that a saver promises, as tests."""

from __future__ import annotations

from .aliasing import Aliasing
from .atomic_commits import Atomic
from .chains import Chains
from .crash_points import CrashPoints
from .damage import Damage
from .durability import Durable
from .events import Events
from .loops.cancellation import Cancellation
from .loops.cancellation_at_every_await import EveryAwait
from .loops.concurrency import Together
from .loops.event_loops import BothLoops
from .moved_heads import Moving
from .one_writer import OneWriter
from .ownership import Ownership
from .reading import Reading
from .records import Records
from .release_notifications import Hearing
from .result_order import Ordering
from .stored_bytes import Bytes
from .stored_types import Types
from .upkeep.checkpoint_listing import Listing
from .upkeep.deleting import Deleting
from .upkeep.dump_and_load import Dumping
from .upkeep.erasing import Erasing
from .upkeep.pruning import Pruning
from .upkeep.rewriting import Rewriting
from .upkeep.thread_listing import Threads
from .upkeep.thread_metadata import ThreadMetadata

__all__ = ["SaverConformance"]


class SaverConformance(
    Atomic,
    CrashPoints,
    Durable,
    Events,
    Records,
    OneWriter,
    Ownership,
    Cancellation,
    EveryAwait,
    Bytes,
    Types,
    Aliasing,
    Damage,
    BothLoops,
    Together,
    Reading,
    Chains,
    Listing,
    Ordering,
    Threads,
    ThreadMetadata,
    Moving,
    Deleting,
    Dumping,
    Rewriting,
    Pruning,
    Erasing,
    Hearing,
):
    """All of it. Override the fixture `open_saver`."""
