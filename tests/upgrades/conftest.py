"""Run the tests of upgrades on PostgreSQL too, in one schema for each module.

Every third of them runs there by default, and on asyncio. Of the cells of test_table.py, every ninth runs.
`PREGEL_EVERY=1` and `--loops=all` run all of them; `nox -s fuzz` does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, PostgresSaver, SqliteSaver
from tests.helpers.postgres_tools import empty, made_schema, unsynced
from tests.helpers.sampling import leave_out

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_out(config, items, is_left_out)


def is_left_out(item: pytest.Item) -> bool:
    """Return True for a test of this folder that only the long sessions run."""
    if HERE not in item.path.parents or not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    at, params = item.callspec.indices, item.callspec.params
    if "situation" in at:  # with these factors, each change has a cell
        return (at["name"] + 2 * at["situation"] + 3 * at["saver"]) % 9 > 0
    loop: Any = params.get("anyio_backend", ("asyncio",))
    return params.get("saver") == "postgres" and (loop[0] != "asyncio" or crc32(item.name.encode()) % 3 > 0)


@pytest.fixture(scope="module")
def shared_schema() -> Iterator[str]:
    with made_schema() as schema:
        yield schema


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    """Open each saver, without threads."""
    if request.param == "memory":
        yield InMemorySaver()
    elif request.param == "sqlite":
        async with SqliteSaver.from_conn_string(tmp_path / "threads.db", synchronous="NORMAL") as opened:
            yield opened
    else:
        schema = request.getfixturevalue("shared_schema")
        async with PostgresSaver(unsynced(), schema=schema, setup=False) as opened:
            yield opened
        empty(schema)
