"""The suite that every saver passes, one module per promise, and that of every cache. Run it on one of your own:

    import pytest
    from checkpoint_savers.conformance import SaverConformance

    class TestMySaver(SaverConformance):
        @pytest.fixture
        def open_saver(self, tmp_path):
            return lambda: MySaver(tmp_path / "store")     # an async context manager that gives the saver

    from checkpoint_savers.conformance import CacheConformance

    class TestMyCache(CacheConformance):
        @pytest.fixture
        def open_cache(self, tmp_path):
            return lambda clock: MyCache(tmp_path / "cache", clock=clock)    # an async context manager, as above

It needs pytest, and anyio, which brings the plugin that runs the checks: on asyncio and on trio if that is
installed, or on what a fixture `anyio_backend` of yours says.
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
            "deleting",
            "listing",
            "moving",
            "p3_atomic",
            "p4_durable",
            "p4_events",
            "p5_records",
            "p6_one_writer",
            "p7_cancellation",
            "p11_bytes",
            "p13_both_loops",
            "reading",
            "suite",
        )
    )
)

from .caches import CacheConformance
from .deleting import Deleting
from .listing import Listing
from .moving import Moving
from .p3_atomic import Atomic
from .p4_durable import Durable
from .p4_events import Events
from .p5_records import Records
from .p6_one_writer import OneWriter
from .p7_cancellation import Cancellation
from .p11_bytes import Bytes
from .p13_both_loops import BothLoops
from .reading import Reading

__all__ = ["CacheConformance", "SaverConformance"]


class SaverConformance(
    Atomic, Durable, Events, Records, OneWriter, Cancellation, Bytes, BothLoops, Reading, Listing, Deleting, Moving
):
    """All of it. Override the fixture `open_saver`."""
