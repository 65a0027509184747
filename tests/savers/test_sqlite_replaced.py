"""Files that are removed, replaced, or upgraded by a later version while a saver, store or cache has them open (P4,
P11)."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypedDict

import anyio
import pytest

from checkpoint_savers import (
    CheckpointError,
    InMemorySaver,
    SqliteSaver,
    SqliteStore,
    StorageReplacedError,
    UnsupportedFormatError,
)
from checkpoint_savers.caches.sqlite import SqliteCache
from checkpoint_savers.codec import seal
from checkpoint_savers.conformance.savers.suite import (
    LATER,
    cid,
    commit,
    everything,
    head_of,
    here,
    record,
    row,
    take,
    written,
)
from checkpoint_savers.records import Lease, Rewrite
from checkpoint_savers.sqlite import open_file
from pregel_async import START, StateGraph
from pregel_async.testing import VirtualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "threads.db"


@pytest.fixture
async def saver(path: Path) -> AsyncIterator[SqliteSaver]:
    async with SqliteSaver.from_conn_string(path, synchronous="NORMAL") as saver:
        yield saver


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def index_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-shm")


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    shutil.copy2(path, f"{path}.copy")
    os.replace(f"{path}.copy", path)


WAYS: dict[str, Callable[[Path], object]] = {
    "removed": remove,
    "replaced": replace,
    "moved away with its folder": lambda path: path.parent.rename(f"{path.parent}.elsewhere"),
    "its log removed": lambda path: remove(log_of(path)),
    "its log replaced": lambda path: replace(log_of(path)),
    "its index removed": lambda path: remove(index_of(path)),
}


def verbs(saver: SqliteSaver, lease: Lease) -> list[Callable[[], Awaitable[object]]]:
    """Every method that writes."""
    return [
        lambda: saver.acquire("new", here("run-2"), now=0.0, expires_at=LATER),
        lambda: saver.renew(lease, expires_at=LATER),
        lambda: saver.commit(lease, commit(row(2, 1), head=1)),
        lambda: saver.record(lease, [record(1, "a")], expires_at=LATER),
        lambda: saver.rewrite(lease, Rewrite()),
        lambda: saver.release(lease),
        lambda: saver.adelete_thread("t"),
        lambda: saver.drop(lease),
        saver.vacuum,
    ]


@pytest.mark.parametrize("way", WAYS)
async def test_a_removed_file_is_not_written(saver: SqliteSaver, path: Path, way: str, tmp_path: Path) -> None:
    """P4: writes to a removed file would be lost with it, so they are refused. What is stored in the open file can
    be read and exported."""
    lease = await take(saver)
    await saver.commit(lease, commit(row(1, frame=seal(b"whole"))))
    before = await everything(saver)
    WAYS[way](path)
    for attempt in verbs(saver, lease):
        with pytest.raises(StorageReplacedError) as caught:
            await attempt()
        assert caught.value.path == str(path)
        gone = log_of(path) if "log" in way else index_of(path) if "index" in way else path
        assert caught.value.missing == str(gone)
    assert await everything(saver) == before
    assert path.exists() is (way not in ("removed", "moved away with its folder"))
    exported = tmp_path.parent / f"{tmp_path.name}.exported"
    await saver.aexport_thread("t", exported)
    other = InMemorySaver()
    await other.aimport_thread(exported)
    assert await head_of(other) == cid(1)


async def test_jobs_that_share_a_transaction_are_all_refused(saver: SqliteSaver, path: Path) -> None:
    """P4: each job is refused, without being tried in a transaction of its own."""
    leases = [await take(saver, f"t{number}") for number in range(20)]
    path.unlink()
    refused: list[StorageReplacedError] = []

    async def store(lease: Lease) -> None:
        try:
            await saver.commit(lease, commit(row(1)))
        except StorageReplacedError as error:
            refused.append(error)

    async with anyio.create_task_group() as group:
        for lease in leases:
            group.start_soon(store, lease)
    assert len(refused) == len(leases)


async def test_a_file_that_is_moved_back_is_written_again(saver: SqliteSaver, path: Path) -> None:
    """The same file is at its path again, so nothing was lost."""
    lease = await take(saver)
    path.rename(path.with_name("aside"))
    with pytest.raises(StorageReplacedError):
        await saver.commit(lease, commit(row(1)))
    path.with_name("aside").rename(path)
    await saver.commit(lease, commit(row(1)))
    assert await head_of(saver) == cid(1)


async def test_other_ways_to_name_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path keeps its meaning when the process changes its directory; a symbolic link counts as the file."""
    monkeypatch.chdir(path.parent)
    link = path.with_name("link.db")
    async with SqliteSaver.from_conn_string(path.name) as saver:
        monkeypatch.chdir("/")
        await written(saver, row(1))
    link.symlink_to(path)
    async with SqliteSaver.from_conn_string(link) as saver:
        await written(saver, row(1), thread="u")
        shutil.copy2(path, path.with_name("other.db"))
        link.unlink()
        link.symlink_to(path.with_name("other.db"))
        with pytest.raises(StorageReplacedError):
            await take(saver, "v")


async def test_files_without_a_path_are_not_checked(path: Path) -> None:
    """A database in memory has no file, and a URI may name what a path cannot: these are not checked."""
    async with SqliteSaver.from_conn_string(":memory:") as saver:
        await written(saver, row(1))
    async with SqliteSaver.from_conn_string(f"file:{path}") as saver:
        await written(saver, row(1))
        path.unlink()
        log_of(path).unlink()
        await written(saver, row(1), thread="u")


async def test_a_file_system_without_inodes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a missing file is noticed, and a replaced one is not."""
    identity = open_file._identity

    def without_inode(path: str) -> Any:
        found = identity(path)
        return None if found is None else (found[0], 0)

    monkeypatch.setattr(open_file, "_identity", without_inode)
    async with SqliteSaver.from_conn_string(path) as saver:
        replace(path)
        await take(saver)
        path.unlink()
        with pytest.raises(StorageReplacedError):
            await take(saver, "u")


async def test_stores_and_caches_notice_a_removed_file(tmp_path: Path) -> None:
    """P4: what they write would be lost as well."""
    async with SqliteStore.from_conn_string(tmp_path / "store.db") as store:
        await store.aput(("a",), "k", {"x": 1})
        (tmp_path / "store.db").unlink()
        with pytest.raises(StorageReplacedError):
            await store.aput(("a",), "k", {"x": 2})
        assert (found := await store.aget(("a",), "k")) is not None and found.value == {"x": 1}
    async with SqliteCache(tmp_path / "cache.db") as cache:
        await cache.aset({(("a",), "k"): (b"1", None)})
        (tmp_path / "cache.db").unlink()
        with pytest.raises(StorageReplacedError):
            await cache.aset({(("a",), "k"): (b"2", None)})


class State(TypedDict, total=False):
    ran: str


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_run_stops_when_its_file_is_removed(saver: SqliteSaver, path: Path, durability: Any) -> None:
    """P4: the run stops with that error at its next commit."""
    ran: list[str] = []

    async def first(state: State) -> State:
        ran.append("first")
        path.unlink()
        return {"ran": "first"}

    async def later(state: State) -> State:
        ran.append("later")
        return {"ran": "later"}

    graph = StateGraph(State).add_sequence([first, later, ("last", later)]).add_edge(START, "first").compile(saver)
    with pytest.raises(StorageReplacedError):
        await graph.ainvoke({}, "t", durability=durability)
    assert len(ran) <= {"sync": 1, "async": 2, "exit": 3}[durability]
    assert not path.exists()


async def test_a_heartbeat_that_notices_stops_the_runs_commits(virtual_clock: VirtualClock) -> None:
    """P4: nothing is committed afterwards, even if the file is back by then."""

    class Gone(InMemorySaver):
        async def renew(self, lease: Lease, *, expires_at: float) -> None:
            raise StorageReplacedError("threads.db")

    async def slow(state: State) -> State:
        await virtual_clock.sleep(60)
        return {"ran": "slow"}

    saver = Gone(clock=virtual_clock.now)
    graph = StateGraph(State).add_node(slow).add_edge(START, "slow").compile(saver, environment=virtual_clock)
    with pytest.raises(StorageReplacedError):
        await graph.ainvoke({}, "t")
    assert (await graph.aget_state("t")).values == {}


def upgrade(path: Path, statement: str) -> list[Any]:
    """Upgrade the file as a later version would while others have it open. Return the number of rows of threads."""
    with closing(sqlite3.connect(path, isolation_level=None)) as later:
        later.execute(statement)
    return threads_of(path)


def threads_of(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM thread").fetchall()


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        found: int = connection.execute("PRAGMA user_version").fetchone()[0]
        return found


async def test_an_upgrade_while_the_saver_is_open(saver: SqliteSaver, path: Path) -> None:
    """P11: each acquire detects the upgrade, on new and on known threads, although the tables still look the same,
    and nothing is written. A run that holds its lease finishes."""
    lease = await take(saver)
    await written(saver, row(1), thread="u")
    now = version_of(path)
    before = upgrade(path, f"PRAGMA user_version = {now + 1}")
    for thread in ("u", "t", "new"):
        with pytest.raises(UnsupportedFormatError) as caught:
            await take(saver, thread)
        assert (caught.value.found, caught.value.supported) == (now + 1, now)
    for write in (saver.update_thread("u", {"a": 1}), saver.adelete_thread("u")):
        with pytest.raises(UnsupportedFormatError):  # these need no lease
            await write
    assert threads_of(path) == before
    await saver.commit(lease, commit(row(1)))
    upgrade(path, f"PRAGMA user_version = {now}")
    await take(saver, "u")


async def test_a_run_does_not_start_on_an_upgraded_file(saver: SqliteSaver, path: Path) -> None:
    """P11: the run's first node does not run."""
    ran: list[str] = []

    async def node(state: State) -> State:
        ran.append("node")
        return {"ran": "node"}

    graph = StateGraph(State).add_node(node).add_edge(START, "node").compile(saver)
    upgrade(path, f"PRAGMA user_version = {version_of(path) + 1}")
    with pytest.raises(CheckpointError) as caught:
        await graph.ainvoke({}, "t")
    assert isinstance(caught.value, UnsupportedFormatError) and ran == []
