"""The suites that every saver, every store and every cache passes. Run them on one of your own:

    pytest --saver mypackage.store:open_saver       # a function of a folder, without any test file

    import pytest
    from checkpoint_savers.conformance import SaverConformance

    class TestMySaver(SaverConformance):
        @pytest.fixture
        def open_saver(self, tmp_path):
            return functools.partial(MySaver, tmp_path / "store")     # an async context manager that gives the saver

    from checkpoint_savers.conformance import CacheConformance

    class TestMyCache(CacheConformance):
        @pytest.fixture
        def open_cache(self, tmp_path):
            return lambda clock: MyCache(tmp_path / "cache", clock=clock)    # an async context manager, as above

    from checkpoint_savers.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def open_store(self, tmp_path):
            return lambda **settings: MyStore(tmp_path / "store", **settings)    # as above; codec=, ttl= and clock=

docs/savers.md tells more. A clause is a test, and its docstring the promise, under its number. It needs pytest, and
anyio, which brings the plugin that runs the checks: on asyncio and on trio if that is installed, or on what a fixture
`anyio_backend` of yours says.
"""

# ruff: noqa: E402  # the checks are imported after pytest's assertion rewriting is set up for them

from __future__ import annotations

import pytest

# Before the modules are imported: else a failed check of somebody's own saver would say no more than "AssertionError".
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in (
            "caches",
            "chains",
            "crashing",
            "deeds",
            "deleting",
            "dumping",
            "growing",
            "erasing",
            "hearing",
            "listing",
            "moving",
            "ordering",
            "p1_aliasing",
            "p3_atomic",
            "p3_crash_points",
            "p4_durable",
            "p4_events",
            "p5_records",
            "p6_one_writer",
            "p6_ownership",
            "p7_cancellation",
            "p7_every_await",
            "p10_pruning",
            "p11_bytes",
            "p11_damage",
            "p11_types",
            "p13_both_loops",
            "p13_together",
            "reading",
            "rewriting",
            "stores",
            "stores_batches",
            "stores_expiry",
            "stores_items",
            "stores_search",
            "stores_suite",
            "suite",
            "thread_metadata",
            "threads",
        )
    )
)

from .caches import CacheConformance
from .chains import Chains
from .deleting import Deleting
from .dumping import Dumping
from .erasing import Erasing
from .hearing import Hearing
from .listing import Listing
from .moving import Moving
from .ordering import Ordering
from .p1_aliasing import Aliasing
from .p3_atomic import Atomic
from .p3_crash_points import CrashPoints
from .p4_durable import Durable
from .p4_events import Events
from .p5_records import Records
from .p6_one_writer import OneWriter
from .p6_ownership import Ownership
from .p7_cancellation import Cancellation
from .p7_every_await import EveryAwait
from .p10_pruning import Pruning
from .p11_bytes import Bytes
from .p11_damage import Cell, Damage
from .p11_types import Types
from .p13_both_loops import BothLoops
from .p13_together import Together
from .reading import Reading
from .rewriting import Rewriting
from .stores import StoreConformance
from .thread_metadata import ThreadMetadata
from .threads import Threads

__all__ = ["CacheConformance", "Cell", "SaverConformance", "StoreConformance"]


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
