"""Fixtures for tests of PostgreSQL: a module's schema, and a proxy in front of the server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.postgres_tools import Proxy, empty, made_schema, unsynced


@pytest.fixture(scope="module")
def schema() -> Iterator[str]:
    """A schema with the tables of PostgresSaver, for the tests of one file."""
    with made_schema() as schema:
        yield schema


@pytest.fixture
def proxy(schema: str) -> Iterator[Proxy]:
    """A proxy in front of the server. The tables of the file's schema are empty."""
    empty(schema)
    with Proxy(unsynced()) as proxy:
        yield proxy
