"""Publish the suites that every saver, every store and every cache must pass.

Run the suite of savers on your own saver without a test file:

    pytest --saver mypackage.store:open_saver       # open_saver takes a folder

Or subclass a suite in a test file, and override one fixture:

    import pytest
    from checkpoint_savers.conformance import SaverConformance

    class TestMySaver(SaverConformance):
        @pytest.fixture
        def open_saver(self, tmp_path):
            return functools.partial(MySaver, tmp_path / "store")     # returns an async context manager

    from checkpoint_savers.conformance import CacheConformance

    class TestMyCache(CacheConformance):
        @pytest.fixture
        def open_cache(self, tmp_path):
            return lambda clock: MyCache(tmp_path / "cache", clock=clock)    # as above

    from checkpoint_savers.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def open_store(self, tmp_path):
            return lambda **settings: MyStore(tmp_path / "store", **settings)    # as above; codec=, ttl= and clock=

A clause is a test. The docstring of a clause states the promise that the clause checks, after the promise's number.
See docs/savers.md for fixtures, attributes and options.

The suites need pytest and anyio. The pytest plugin of anyio runs each clause on asyncio, and on trio if trio is
installed; override the fixture `anyio_backend` to choose the event loops yourself.
"""

# ruff: noqa: E402  # the suites are imported after pytest has been asked to rewrite their assertions

from __future__ import annotations

import pytest

# pytest rewrites assertions when it imports a module, so the registration must come first. Without it, a clause that
# fails on a user's saver reports a bare "AssertionError".
pytest.register_assert_rewrite(*(f"{__name__}.{package}" for package in ("savers", "stores", "caches")))

from .caches.conformance import CacheConformance, OpenCache
from .savers.conformance import SaverConformance
from .savers.damage import Cell
from .savers.suite import OpenSaver
from .stores.conformance import OpenStore, StoreConformance

__all__ = ["CacheConformance", "Cell", "OpenCache", "OpenSaver", "OpenStore", "SaverConformance", "StoreConformance"]
