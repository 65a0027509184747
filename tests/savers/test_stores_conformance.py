"""All stores pass the conformance suite, on every event loop."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from checkpoint_savers import PostgresStore
from checkpoint_savers.conformance import OpenStore, StoreConformance
from checkpoint_savers.stores import InMemoryStore, SqliteStore
from tests.helpers.postgres_tools import empty, execute, new_schema, unsynced


class TestInMemoryStore(StoreConformance):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        return InMemoryStore


class TestSqliteStore(StoreConformance):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        # These tests lose no power, and without an fsync per commit they take a third of the time.
        make, number = partial(SqliteStore, synchronous="NORMAL", busy_timeout=60), count()

        def open_store(**settings: Any) -> SqliteStore:
            return make(tmp_path / f"{next(number)}.db", **settings)

        return open_store


@pytest.fixture(scope="module")
def stored_in() -> Iterator[str]:
    """A schema with the table of PostgresStore."""
    with new_schema() as schema:
        execute(PostgresStore.setup_script(schema=schema))
        yield schema


class TestPostgresStore(StoreConformance):
    @pytest.fixture
    def open_store(self, stored_in: str) -> OpenStore:
        empty(stored_in, "items")

        def open_store(**settings: Any) -> PostgresStore:
            return PostgresStore(unsynced(), schema=stored_in, busy_timeout=60, **settings)

        return open_store
