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

# Before the modules are imported: otherwise a failed check of a user's saver says no more than "AssertionError".
pytest.register_assert_rewrite(*(f"{__name__}.{package}" for package in ("savers", "stores", "caches")))

from .caches.conformance import CacheConformance, OpenCache
from .savers.conformance import SaverConformance
from .savers.damage import Cell
from .savers.suite import OpenSaver
from .stores.conformance import OpenStore, StoreConformance

__all__ = ["CacheConformance", "Cell", "OpenCache", "OpenSaver", "OpenStore", "SaverConformance", "StoreConformance"]
