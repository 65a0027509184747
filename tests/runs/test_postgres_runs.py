"""`PostgresRuns`: the conformance suite, with a direct connection and behind a pooler."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from checkpoint_savers import PostgresSaver
from checkpoint_savers.conformance.caches.conformance import Clock
from checkpoint_savers.conformance.runs.conformance import OpenSaverAt, RunStoreConformance
from checkpoint_savers.conformance.runs.lifecycle import Lifecycle
from checkpoint_savers.conformance.runs.search import RunSearch
from checkpoint_savers.conformance.runs.suite import request
from checkpoint_savers.conformance.runs.supersteps import Supersteps
from checkpoint_savers.runs.decisions import Changes, Found
from tests.helpers.postgres_tools import Pooler, conninfo, empty, pooler, unsynced


@pytest.fixture(scope="module")
def behind() -> Iterator[Pooler]:
    with pooler(conninfo()) as behind:
        yield behind


def opened(url: str, schema: str, clock: Clock) -> PostgresSaver:
    return PostgresSaver.from_conn_string(url, schema=schema, clock=clock, busy_timeout=60)


class TestPostgresRuns(RunStoreConformance):
    @pytest.fixture
    def open_saver(self, schema: str) -> OpenSaverAt:
        empty(schema)
        return partial(opened, unsynced(), schema)


@pytest.mark.anyio
async def test_payloads_that_are_not_read(schema: str) -> None:
    """Payloads may be large: a transaction that takes no run does not read those of the thread's open runs."""
    empty(schema)
    async with opened(unsynced(), schema, Clock()) as saver:
        await saver.runs.start("t", request("a"))
        await saver.runs.start("t", request("b"))

        def payloads(found: Found) -> Changes[list[bytes]]:
            return Changes([run.request.payload for run in found.open])

        assert await saver.runs.transact("t", payloads) == [b"", b""]
        cancelled = await saver.runs.cancel("b")
        assert cancelled == await saver.runs.get_run("b") and cancelled.request.payload == b"payload"


class TestBehindAPooler(Lifecycle, Supersteps, RunSearch):
    """Each transaction may run in another session than the one before."""

    @pytest.fixture
    def open_saver(self, behind: Pooler, schema: str) -> OpenSaverAt:
        empty(schema)
        return partial(opened, behind.url, schema)
