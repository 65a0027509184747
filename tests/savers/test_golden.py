"""Each number of each stored format has a golden file, and every later version reads it and continues from it (P4, P11,
P15).

See "Change a stored format" in CONTRIBUTING.md.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from checkpoint_savers import InMemorySaver, PostgresSaver, PostgresStore, SqliteSaver, SqliteStore
from checkpoint_savers.caches.sqlite import SqliteCache
from checkpoint_savers.codec import unseal
from checkpoint_savers.conformance.savers.suite import everything, take
from checkpoint_savers.deltas import read_delta, read_record
from checkpoint_savers.errors import StorageReadOnlyError
from checkpoint_savers.records import TaskId, TaskRecord
from checkpoint_savers.runs.queries import ThreadQuery
from checkpoint_savers.runs.rows import RunRequest
from checkpoint_savers.sqlite import schema
from checkpoint_savers.upkeep.export import export_threads, import_threads
from pregel_async._runtime.persistence.digests import FORM, Digests
from tests.helpers.postgres_tools import conninfo, new_schema
from tests.savers.golden import engine_graphs, memories_items, sample, sample_runs, scenarios
from tests.savers.golden.formats import FORMATS, HERE, Format, expected_of, load_sql

pytestmark = pytest.mark.anyio


def golden_files(kind: str) -> list[Path]:
    """The golden files of all numbers of a format."""
    (suffix,) = (made.suffix for made in FORMATS if made.kind == kind)
    return sorted(HERE.glob(f"{kind}-[0-9]*{suffix}"))


def of_each(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("golden", golden_files(kind), ids=lambda path: path.name)


def test_golden_files_are_unchanged() -> None:
    """P11: no golden file has been made again or lost, and there is one for each number of each format."""
    lines = (HERE / "SHA256SUMS").read_text().splitlines()
    listed = {name: digest for digest, name in (line.split("  ") for line in lines)}
    found = [path for path in HERE.iterdir() if path.suffix in (".db", ".json", ".sql", ".threads")]
    assert listed == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}
    for made in FORMATS:
        names = [f"{made.kind}-{number}{made.suffix}" for number in range(1, made.number + 1)]
        assert [path.name for path in golden_files(made.kind)] == names, (
            f"the format {made.kind!r} has number {made.number} ({made.set_in}), and there is not one golden file of each. "
            "Make the new one: python -m tests.savers.golden.make"
        )


@pytest.mark.one_loop
@pytest.mark.parametrize("made", FORMATS, ids=lambda made: made.kind)
async def test_a_layout_belongs_to_its_number(made: Format, tmp_path: Path) -> None:
    """P11, P15: files written now have the layout of the golden file with the same number."""
    path = tmp_path / made.golden.name
    await made.write(path)
    assert made.layout(path) == made.layout(made.golden), (
        f"What is written in the format {made.kind!r} has changed, and its number, {made.number}, has not. Programs that are "
        f"installed would read it wrongly. Raise the number ({made.set_in}), write the upgrade from the number before, and "
        "make the golden file: python -m tests.savers.golden.make. See 'Change a stored format' in CONTRIBUTING.md."
    )


def test_a_digest_belongs_to_its_form() -> None:
    """P15: a later version can resume an open superstep, as the digests of its calls are the same or have another
    form number."""
    found = Digests(sample.CODEC).of_input(sample.OBJECTS)
    assert {FORM: found} == {b"\x01": bytes.fromhex("01f6984ea1e7bd6c6ba314765c")}, (
        "The digests of calls have changed, and their first byte has not: change FORM in "
        "pregel_async/_runtime/persistence/digests.py, and this test."
    )


@of_each("frames")
def test_frames_are_read(golden: Path) -> None:
    """P11: checkpoints, records, events and values of each type are read with all fields and types."""
    frames = {name: bytes.fromhex(text) for name, text in json.loads(golden.read_text()).items()}
    assert read_delta(frames.pop("a checkpoint that holds everything"), "here") == sample.FULL
    assert read_delta(frames.pop("a checkpoint that changes another"), "here") == sample.GROWN
    record = frames.pop("a record of a task")
    known = TaskRecord(ns="", checkpoint_id=sample.cid(1), task_id=TaskId("t"), index=0, kind="result", frame=record)
    assert read_record(known, "t") == sample.TASK
    assert frames.pop("a row of events") == sample.EVENTS.frame
    assert len(frames) == len(sample.OBJECTS)
    for at, value in enumerate(sample.OBJECTS):
        found = sample.CODEC.decode(bytes(unseal(frames[f"value {at}"], "here")), channel="sample")
        assert (type(found), repr(found)) == (type(value), repr(value))


@of_each("export")
async def test_an_export_is_imported(golden: Path) -> None:
    """P11: an export is imported byte for byte, from the file's bytes and from its path."""
    for source in (golden, golden.read_bytes()):
        saver = InMemorySaver(codec=sample.CODEC)
        assert await import_threads(saver, source) == list(sample.THREADS)
        assert await saver.dump(sample.THREADS[1]) == sample.DUMP
        await saver.release(await take(saver, sample.THREADS[0]))


class Threads:
    """A copy of a golden file of `SqliteSaver`, and what was read from it when it was made."""

    def __init__(self, golden: Path, folder: Path) -> None:
        self.made = golden
        self.path = Path(shutil.copy(golden, folder))
        self.expected = expected_of(golden)

    def open(self, *, read_only: bool = False, path: Path | None = None) -> SqliteSaver:
        name = self.path if path is None else path
        return SqliteSaver(f"file:{name}?mode=ro" if read_only else name, codec=engine_graphs.codec())

    async def is_read(self, saver: SqliteSaver) -> bool:
        return await scenarios.read(saver, self.expected["filled"]) == self.expected["read"]


@pytest.fixture(params=golden_files("threads"), ids=lambda path: path.name)
def threads(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Threads]:
    yield Threads(request.param, tmp_path)


async def test_threads_are_read(threads: Threads) -> None:
    """P4: values with their types, what runs next, questions, failures, histories, ids, stream events and the lease
    of a run are read as they were stored."""
    async with threads.open() as saver:
        assert await threads.is_read(saver)
        await saver.vacuum()
        assert await threads.is_read(saver)
        assert await saver.dump(sample.THREADS[1]) == sample.DUMP
        (held,) = [one for one in await saver.threads(limit=1000) if one.thread_id == sample.THREADS[0]]
        assert (held.epoch, held.owner, held.expires_at) == (1, sample.OWNER, sample.NOW + 60)
        assert (held.newest, held.head, held.metadata) == (sample.cid(4), sample.cid(2), {"user": "ann"})


async def test_runs_are_read(threads: Threads) -> None:
    """P4: accepted runs are read as they were stored. A file of a version without them is upgraded, and takes runs."""
    async with threads.open() as saver:
        if threads.made.name != "threads-1.db":
            await sample_runs.check(saver)
            return
        assert await saver.runs.queued() == () and await saver.runs.count_threads(ThreadQuery()) == 0
        await saver.runs.start(sample.THREADS[1], RunRequest(run_id="new", assistant="graph", payload=b""))
        assert [thread.thread_id for thread in await saver.runs.queued()] == [sample.THREADS[1]]
        assert await threads.is_read(saver)
    assert int.from_bytes(threads.path.read_bytes()[60:64], "big") == schema.VERSION


async def test_a_file_that_cannot_be_upgraded_has_no_runs(tmp_path: Path) -> None:
    """P11: the run store of an earlier version's file that is opened read-only says what is missing, and why."""
    path = shutil.copy(HERE / "threads-1.db", tmp_path)
    async with SqliteSaver(f"file:{path}?mode=ro") as saver:
        with pytest.raises(StorageReadOnlyError, match="an earlier version of this package made the file"):
            await saver.runs.queued()


async def test_threads_are_read_from_a_read_only_file(threads: Threads) -> None:
    """P4: reading does not change the file."""
    async with threads.open(read_only=True) as saver:
        assert await threads.is_read(saver)
    assert threads.path.read_bytes() == threads.made.read_bytes()


async def test_open_threads_are_finished(threads: Threads) -> None:
    """P4, P5, P8: questions can be answered and failures resumed; recorded work does not run again."""
    async with threads.open() as saver:
        assert await scenarios.finish(saver) == threads.expected["finished"]


async def test_threads_are_exported_to_a_new_file(threads: Threads, tmp_path: Path) -> None:
    """P4: each thread is copied into a new file, byte for byte."""
    async with threads.open() as old, threads.open(path=tmp_path / "new.db") as new:
        for header in await old.threads(limit=1000):
            dump = await old.dump(header.thread_id)
            if header.newest is None:
                continue  # a thread of which only runs were accepted
            assert dump is not None
            lease = await take(new, header.thread_id)
            await new.load(lease, dump)
            await new.release(lease)
            assert await new.dump(header.thread_id) == dump
        assert await threads.is_read(new)
        assert await everything(new) == await everything(old)


@of_each("items")
@pytest.mark.parametrize("read_only", [True, False])
async def test_items_are_read(golden: Path, read_only: bool, tmp_path: Path) -> None:
    """P11: items come back equal in value, type, order and time, and expired items are gone, also when the store is
    opened read-only."""
    path = shutil.copy(golden, tmp_path)
    for when, expected in expected_of(golden).items():
        clock = getattr(memories_items, when)
        name = f"file:{path}?mode=ro" if read_only else path
        async with SqliteStore(name, codec=memories_items.codec(), clock=lambda at=clock: at) as store:
            assert json.loads(json.dumps(await memories_items.read(store))) == expected


@of_each("items")
async def test_a_store_continues_with_the_items(golden: Path, tmp_path: Path) -> None:
    """P4: new items and replaced items are stored together with the old ones, and a sweep removes the expired items
    only."""
    path = shutil.copy(golden, tmp_path)
    async with SqliteStore(path, codec=memories_items.codec(), clock=lambda: memories_items.LATE) as store:
        await store.aput(("users", "ann"), "plain", {"put": "once more"})
        await store.aput(("users", "cleo"), "plain", {"put": "first"})
        await store.asweep_ttl()
        await store.adelete(("usersx",), "plain")
        found = await memories_items.read(store)
    gone = [["usersx"], "plain"], [["users", "ann"], "plain"]
    left = [item for item in expected_of(golden)["LATE"]["items"] if item[:2] not in gone]
    assert [item for item in found["items"] if item[0] != ["users", "cleo"] and item[:2] not in gone] == left
    assert [item[2] for item in found["items"][:2]] == ["{'put': 'once more'}", "{'put': 'first'}"]


@of_each("cache")
async def test_cached_values_are_found(golden: Path, tmp_path: Path) -> None:
    """P11: cached values are found until they expire."""
    path = shutil.copy(golden, tmp_path)
    for now, left in ((sample.NOW, 3), (sample.NOW + 61, 2)):
        async with SqliteCache(path, clock=lambda at=now: at) as cache:
            found = await cache.aget(sample.CACHED)
            assert found == {key: sample.CACHED[key][0] for key in found} and len(found) == left


@asynccontextmanager
async def loaded(golden: Path, maker: Any, **settings: Any) -> AsyncIterator[Any]:
    """Open a saver or store on the tables of a golden file, upgraded if they are of an earlier version."""
    with new_schema() as name:
        load_sql(golden, name)
        async with maker(conninfo(), schema=name, setup=True, **settings) as opened:
            yield opened


@of_each("postgres")
async def test_threads_of_postgresql_are_read(golden: Path) -> None:
    """P4, P11: they are read byte for byte, and runs can continue them."""
    async with loaded(golden, PostgresSaver.from_conn_string, codec=sample.CODEC) as saver:
        assert await saver.dump(sample.THREADS[1]) == sample.DUMP
        (held,) = [one for one in await saver.threads() if one.thread_id == sample.THREADS[0]]
        assert (held.epoch, held.owner, held.expires_at) == (1, sample.OWNER, sample.NOW + 60)
        assert (held.newest, held.head, held.metadata) == (sample.cid(4), sample.cid(2), {"user": "ann"})
        file = BytesIO()
        await export_threads(saver, sample.THREADS, file)
        assert [read for read in golden_files("export") if read.read_bytes() == file.getvalue()]
        lease = await saver.acquire(
            sample.THREADS[0], sample.OWNER, now=held.expires_at, expires_at=held.expires_at + 30
        )
        assert lease.epoch == 2


@of_each("postgres-store")
async def test_items_of_postgresql_are_read(golden: Path) -> None:
    """P11: items in PostgreSQL are read as those in SQLite."""
    clock = [memories_items.WHOLE]
    async with loaded(golden, PostgresStore, codec=memories_items.codec(), clock=lambda: clock[0]) as store:
        for when, expected in expected_of(golden_files("items")[0]).items():
            clock[0] = getattr(memories_items, when)
            assert json.loads(json.dumps(await memories_items.read(store))) == expected


async def test_a_file_is_upgraded_in_one_transaction(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    """P3, P15: a later version's upgrade keeps all that is stored; one that fails leaves the file as it was."""
    before = threads.path.read_bytes()

    def upgrade(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE later (thread INTEGER) STRICT")
        if fails:
            raise RuntimeError("no further")

    monkeypatch.setattr(schema, "UPGRADES", (*schema.UPGRADES, upgrade))
    monkeypatch.setattr(schema, "TABLES", {**schema.TABLES, "later": ""})
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    monkeypatch.setattr(schema, "MARKS", (f"PRAGMA user_version = {schema.VERSION}",))
    fails = True
    with pytest.raises(RuntimeError, match="no further"):
        await threads.open().__aenter__()
    assert threads.path.read_bytes() == before
    fails = False
    async with threads.open() as saver:
        assert await threads.is_read(saver)
    assert int.from_bytes(threads.path.read_bytes()[60:64], "big") == schema.VERSION
