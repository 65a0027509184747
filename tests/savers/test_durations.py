"""Durations are checked where they are passed: a value that no clock or database can use is refused there."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from checkpoint_savers.caches.memory import InMemoryCache
from checkpoint_savers.caches.sqlite import SqliteCache
from checkpoint_savers.durations import LONGEST_LOCK_WAIT, read_number, read_seconds
from checkpoint_savers.postgres import PostgresSaver
from checkpoint_savers.sqlite import SqliteSaver
from checkpoint_savers.sqlite.worker import Job
from checkpoint_savers.stores.memory import InMemoryStore
from checkpoint_savers.stores.postgres import PostgresStore
from checkpoint_savers.stores.sqlite import SqliteStore

NONE: list[Any] = [
    pytest.param("1", TypeError, id="text"),
    pytest.param(True, TypeError, id="bool"),
    pytest.param(None, TypeError, id="None"),
    pytest.param([1], TypeError, id="list"),
    pytest.param(-0.1, ValueError, id="negative"),
    pytest.param(timedelta(seconds=-1), ValueError, id="timedelta-negative"),
    pytest.param(math.nan, ValueError, id="nan"),
    pytest.param(10**400, ValueError, id="10**400"),
    pytest.param(10**5000, ValueError, id="10**5000"),
]


@pytest.mark.parametrize(("value", "error"), NONE)
def test_invalid_durations(value: Any, error: type[Exception]) -> None:
    """The error is a short, plain `TypeError` or `ValueError` that names the argument."""
    with pytest.raises(error, match=r"^busy_timeout is ") as caught:
        read_seconds("busy_timeout", value, zero=True, endless=True)
    assert type(caught.value) is error
    assert len(str(caught.value)) < 160


def test_durations_are_seconds() -> None:
    """Whole numbers, floats and timedeltas of the same length are equal; 0 and infinity are accepted where they have
    a meaning."""
    assert [read_seconds("t", each) for each in (90, 90.0, timedelta(minutes=1.5))] == [90.0] * 3
    assert type(read_seconds("t", 90)) is float
    assert read_seconds("t", 0, zero=True) == read_seconds("t", timedelta(), zero=True) == 0.0
    assert read_seconds("t", math.inf, endless=True) == math.inf
    for wrong in (0, timedelta(), math.inf, -math.inf):
        with pytest.raises(ValueError, match="t is "):
            read_seconds("t", wrong)
    with pytest.raises(TypeError, match="factor is a number, not"):
        read_number("factor", timedelta(1))


@pytest.mark.parametrize(
    "opened",
    [
        pytest.param(lambda wait: SqliteSaver("x.db", busy_timeout=wait), id="SqliteSaver"),
        pytest.param(lambda wait: SqliteStore("x.db", busy_timeout=wait), id="SqliteStore"),
        pytest.param(lambda wait: SqliteCache("x.db", busy_timeout=wait), id="SqliteCache"),
        pytest.param(lambda wait: PostgresSaver("postgresql://none", busy_timeout=wait), id="PostgresSaver"),
        pytest.param(lambda wait: PostgresStore("postgresql://none", busy_timeout=wait), id="PostgresStore"),
    ],
)
def test_waits_for_locks(opened: Callable[[Any], Any]) -> None:
    """Invalid values are refused when the saver is created. A timeout that exceeds a database's range becomes the
    longest possible one; it does not overflow into no timeout."""
    for wrong in ("1", True, -1, math.nan, math.inf, 10**400):
        with pytest.raises((TypeError, ValueError), match="busy_timeout"):
            opened(wrong)
    assert opened(timedelta(seconds=3)).busy_timeout == 3.0
    assert opened(1e300).busy_timeout == LONGEST_LOCK_WAIT


@pytest.mark.one_loop
async def test_the_longest_lock_timeout(anyio_backend_name: str, tmp_path: Path) -> None:
    """The database has a timeout, where 1e300 used to give none."""
    async with SqliteSaver(tmp_path / "x.db", busy_timeout=1e300) as saver:
        job = Job(lambda db: db.execute("PRAGMA busy_timeout").fetchone()[0], writes=False)
        assert await saver._connection.run(job) == LONGEST_LOCK_WAIT * 1000


@pytest.mark.one_loop
async def test_times_to_live(anyio_backend_name: str) -> None:
    """Cached results (seconds) and store items (minutes) check their times to live."""
    cache, store = InMemoryCache(), InMemoryStore()
    for wrong in ("1", True, -1, 0, math.nan, math.inf, 10**400):
        with pytest.raises((TypeError, ValueError), match="ttl"):
            await cache.aset({(("space",), "key"): (b"", wrong)})
        with pytest.raises((TypeError, ValueError), match="ttl"):
            await store.aput(("space",), "key", {}, ttl=wrong)
    with pytest.raises(TypeError, match="minutes"):
        await store.aput(("space",), "key", {}, ttl=timedelta(1))
