"""PostgresSaver behind a pooler in transaction mode, with three server connections for all clients.

There each transaction may run in another session than the one before: the saver can neither rely on a session's state
nor leave any.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import anyio
import anyio.to_thread
import psycopg
import pytest

from checkpoint_savers import PostgresSaver
from checkpoint_savers.conformance import SaverConformance
from checkpoint_savers.conformance.savers.atomic_commits import AtomicCommits
from checkpoint_savers.conformance.savers.loops.event_loops import EventLoops
from checkpoint_savers.conformance.savers.one_writer import OneWriter
from checkpoint_savers.conformance.savers.reading import CheckpointReads
from checkpoint_savers.conformance.savers.suite import OpenSaver, cid, commit, head_of, in_threads, row, take, written
from checkpoint_savers.conformance.savers.upkeep.rewriting import Rewriting
from tests.helpers.postgres_tools import Pooler, conninfo, empty, execute, new_schema, pooler, unsynced


@pytest.fixture(scope="module")
def behind() -> Iterator[Pooler]:
    with pooler(conninfo()) as behind:
        yield behind


class TestBehindAPooler(AtomicCommits, EventLoops, OneWriter, CheckpointReads, Rewriting):
    """The parts of the suite that have the most to do with sessions; all of the suite runs without the pooler."""

    @pytest.fixture
    def open_saver(self, behind: Pooler, schema: str) -> OpenSaver:
        empty(schema)
        return lambda: PostgresSaver.from_conn_string(behind.url, schema=schema, busy_timeout=60)


def test_these_are_parts_of_the_suite() -> None:
    """So each clause that runs here also runs without the pooler."""
    assert set(TestBehindAPooler.__bases__) <= set(SaverConformance.__mro__)


pytestmark = pytest.mark.anyio


async def test_no_state_is_left_in_a_session(behind: Pooler, schema: str) -> None:
    """After calls of every method, the pooler's sessions have no prepared statement, no changed setting, no lock and
    no listener of the saver's."""
    async with PostgresSaver.from_conn_string(behind.url, schema=schema, listen=conninfo()) as saver:
        for number in range(8):
            lease = await take(saver, f"t{number}")
            for step in range(1, 8):  # often enough for psycopg to prepare statements
                await saver.commit(lease, commit(row(step, step - 1 or None), head=step - 1 or None))
                await head_of(saver, f"t{number}")
            await saver.dump(f"t{number}")
            await saver.erase(lease)
        await saver.setup()
        looks: list[tuple[object, ...]] = []
        for _ in range(12):
            with psycopg.connect(behind.url, autocommit=True, prepare_threshold=None) as connection:
                cursor = connection.execute(
                    "SELECT (SELECT count(*) FROM pg_prepared_statements), "
                    "(SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'), "
                    "(SELECT count(*) FROM pg_listening_channels()), current_setting('lock_timeout'), "
                    "current_setting('search_path')"
                )
                looks += cursor.fetchall()
        plain = execute("SELECT current_setting('lock_timeout'), current_setting('search_path')")[0]
        assert set(looks) == {(0, 0, 0, *plain)}


async def test_waiting_for_a_release_bypasses_the_pooler(behind: Pooler, schema: str) -> None:
    """P6: statements go through the pooler, and the listening connection bypasses it."""
    async with (
        PostgresSaver.from_conn_string(behind.url, schema=schema, listen=conninfo()) as waiting,
        PostgresSaver.from_conn_string(behind.url, schema=schema) as working,
    ):
        lease = await take(working, "held")
        with anyio.fail_after(30):
            await waiting.wait_for_release("held")  # the saver listens now
            async with anyio.create_task_group() as group:
                group.start_soon(waiting.wait_for_release, "held")
                await anyio.lowlevel.checkpoint()
                await working.release(lease)


@pytest.mark.slow
async def test_the_pooler_is_killed(schema: str) -> None:
    """P4: if the pooler is killed during many commits, all callers continue when it is back, and each acknowledged
    write is stored once."""
    with pooler(conninfo()) as mine:
        async with PostgresSaver.from_conn_string(mine.url, schema=schema, reconnect_timeout=60) as saver:
            leases = [await take(saver, f"killed{number}") for number in range(10)]
            stored = dict.fromkeys(range(10), 0)
            over = anyio.Event()

            async def write(number: int) -> None:
                while not over.is_set():
                    last = stored[number]
                    await saver.commit(leases[number], commit(row(last + 1, last or None), head=last or None))
                    stored[number] = last + 1

            async with anyio.create_task_group() as group:
                for number in range(10):
                    group.start_soon(write, number)
                for _ in range(3):
                    before = dict(stored)
                    mine.kill()
                    await anyio.to_thread.run_sync(mine.start)
                    while any(stored[number] <= before[number] for number in stored):
                        await anyio.sleep(0.005)
                over.set()
    async with PostgresSaver.from_conn_string(unsynced(), schema=schema) as saver:
        for number, last in stored.items():
            headers = await saver.scan(f"killed{number}", "", limit=10_000)
            assert [one.checkpoint_id for one in headers] == [cid(n) for n in range(last, 0, -1)]


async def test_setup_through_the_pooler(behind: Pooler) -> None:
    """P13: ten savers in threads create the tables at once, through three connections."""
    with new_schema() as fresh:

        async def work(number: int) -> None:
            async with PostgresSaver.from_conn_string(behind.url, schema=fresh, setup=True) as saver:
                await written(saver, row(1), thread=f"t{number}")

        await in_threads(*(partial(work, number) for number in range(10)))
        async with PostgresSaver.from_conn_string(unsynced(), schema=fresh) as saver:
            assert len(await saver.threads()) == 10
    assert not [one for one in threading.enumerate() if "PostgresSaver" in one.name]
