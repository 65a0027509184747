"""Databases that are damaged, foreign, of a later version, read-only, full or locked, and values that cannot be stored.

Each case raises a typed error, before any node runs where that is possible, and leaves nothing half done.
"""

from __future__ import annotations

import contextlib
import operator
import os
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Annotated, Any, TypedDict
from zlib import crc32

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import SqliteSaver
from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.errors import (
    CheckpointError,
    CorruptCheckpointError,
    PregelError,
    StorageError,
    StorageFullError,
    StorageLockedError,
    StorageReadOnlyError,
    UnstorableValueError,
    UnsupportedFormatError,
)
from checkpoint_savers.sqlite.ids import read_id
from checkpoint_savers.sqlite.worker import Job
from pregel_async import START, CompiledStateGraph, Send, StateGraph, StateSnapshot
from tests.durability.durable_environment import EXPIRY, Graph, Watch
from tests.durability.durable_graphs import Probe, State, node
from tests.helpers.environments import SeededEnvironment

pytestmark = pytest.mark.anyio

FLIPS = int(os.environ.get("PREGEL_FLIPS", "60"))

TABLES = ("checkpoint", "frame", "metadata", "space", "record", "event")

OF_U = "(SELECT key FROM thread WHERE id = 'u')"
FRAMES_OF_U = f"(SELECT frame FROM checkpoint WHERE thread = {OF_U})"


def chain(probe: Probe, saver: BaseCheckpointSaver, **settings: Any) -> Graph:
    graph = StateGraph(State).add_sequence([(name, node(probe, name)) for name in "abc"]).add_edge(START, "a")
    return graph.compile(saver, **settings)


@pytest.fixture
async def database(tmp_path: Path) -> Path:
    """A database with a finished thread `t` and an unfinished thread `u`."""
    path = tmp_path / "threads.db"
    async with SqliteSaver(path, synchronous="NORMAL") as saver:
        await chain(Probe(), saver).ainvoke({"log": ["in"]}, "t")
        failing = StateGraph(State)
        failing.add_sequence(
            [(name, node(Probe(), name, fails=frozenset((name == "b" and [0]) or []))) for name in "abc"]
        )
        with pytest.raises(Exception, match="b@2"):
            await failing.add_edge(START, "a").compile(saver).ainvoke({"log": ["in"]}, "u")
    return path


def rows_of(path: Path) -> list[Any]:
    """Return all stored rows except leases."""
    with closing(sqlite3.connect(path)) as connection:
        heads = connection.execute("SELECT key, id, newest, head FROM thread ORDER BY 1").fetchall()
        return [heads, *(connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3").fetchall() for table in TABLES)]


def execute(path: Path, sql: str, *values: Any) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql, values)


CALLS: list[Callable[[Graph, str], Awaitable[Any]]] = [
    lambda graph, thread: graph.ainvoke(None, thread),
    lambda graph, thread: graph.ainvoke({"log": ["again"]}, thread),
    lambda graph, thread: graph.aget_state(thread),
    lambda graph, thread: _values(graph.aget_state_history(thread)),
    lambda graph, thread: _all(graph.astream(None, thread)),
]


async def _all(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


async def _values(history: AsyncIterator[StateSnapshot]) -> list[Any]:
    return [state.values for state in await _all(history)]


async def every_call_raises(path: Path, kind: type[BaseException], thread: str = "u") -> None:
    """Check that every call raises, that no node ran, that nothing was stored and that the thread is not left busy."""
    before = rows_of(path)
    probe = Probe()
    async with SqliteSaver(path, synchronous="NORMAL") as saver:
        graph = chain(probe, saver)
        for _ in range(2):
            for call in CALLS:
                with pytest.raises(kind) as caught:
                    await call(graph, thread)
                assert type(caught.value) is kind and thread in str(caught.value)
    assert probe.started == []
    assert rows_of(path) == before


async def test_a_damaged_frame(database: Path) -> None:
    """P11: a damaged frame of a checkpoint in the thread's chain is an error."""
    execute(database, f"UPDATE frame SET data = CAST(substr(data, 2) AS BLOB) WHERE key IN {FRAMES_OF_U}")
    await every_call_raises(database, CorruptCheckpointError)
    async with SqliteSaver(database) as saver:
        assert (await chain(Probe(), saver).aget_state("t")).values["log"] == ["in", "a@1", "b@2", "c@3"]


async def test_a_damaged_checkpoint_does_not_hide_the_others(database: Path) -> None:
    """P11: a history lists a damaged checkpoint with what is known of it, and each access to its values raises what is
    wrong."""
    last = "(SELECT frame FROM checkpoint WHERE id = (SELECT head FROM thread WHERE id = 't'))"
    execute(database, f"UPDATE frame SET data = CAST(substr(data, 2) AS BLOB) WHERE key IN {last}")
    async with SqliteSaver(database) as saver:
        damaged, *others = await _all(chain(Probe(), saver).aget_state_history("t"))
    assert damaged.metadata is not None and damaged.metadata["step"] == 3
    for _ in range(2):
        with pytest.raises(CorruptCheckpointError):
            assert damaged.values
    assert "cannot be decoded: CorruptCheckpointError" in repr(damaged)
    with pytest.raises(CorruptCheckpointError):  # the results of its tasks, which the damaged checkpoint holds
        assert others[0].values
    assert [state.values["log"] for state in others[1:]] == [["in", "a@1"], ["in"], []]


async def test_a_damaged_record(database: Path) -> None:
    """P11: a damaged record of a failed task is an error."""
    execute(database, f"UPDATE record SET frame = x'00' WHERE thread = {OF_U}")
    await every_call_raises(database, CorruptCheckpointError)


async def test_a_missing_checkpoint(database: Path) -> None:
    """P11: a missing checkpoint, the one that the head points to, is an error."""
    execute(database, "DELETE FROM checkpoint WHERE id = (SELECT head FROM thread WHERE id = 'u')")
    before = rows_of(database)
    async with SqliteSaver(database) as saver:
        graph = chain(probe := Probe(), saver)
        for call in CALLS[:3]:
            with pytest.raises(CorruptCheckpointError):
                await call(graph, "u")
    assert probe.started == [] and rows_of(database) == before


async def test_a_frame_of_a_later_version(database: Path) -> None:
    """P11: an intact frame of a later version is neither read nor replaced, and the error says so."""

    def later(frame: bytes) -> bytes:
        start = frame[:2] + bytes([frame[2] + 1]) + frame[3:11]
        return start + crc32(frame[15:], crc32(start)).to_bytes(4, "big") + frame[15:]

    with closing(sqlite3.connect(database)) as connection, connection:
        connection.create_function("later", 1, later)
        connection.execute(f"UPDATE frame SET data = later(data) WHERE key IN {FRAMES_OF_U}")
    await every_call_raises(database, UnsupportedFormatError)


async def test_a_file_of_a_later_version(database: Path) -> None:
    """P11: a file of a later version is refused when it is opened, and not changed."""
    execute(database, "PRAGMA user_version = 99")
    before = database.read_bytes()
    with pytest.raises(UnsupportedFormatError):
        async with SqliteSaver(database):
            pass
    assert database.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [b"not a database at all\n" * 100, b"SQLite format 3\x00" + b"\xff" * 5000, b"\x00" * 4096],
    ids=["text", "a header and rubbish", "zeros"],
)
async def test_a_file_that_is_no_database(content: bytes, tmp_path: Path) -> None:
    """P11: a file of another kind is refused when it is opened, and not changed."""
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        async with SqliteSaver(path):
            pass
    assert path.read_bytes() == content


async def test_a_database_of_another_program(tmp_path: Path) -> None:
    """P11: a database of another program is refused when it is opened, and not changed."""
    path = tmp_path / "file"
    execute(path, "CREATE TABLE threads (name TEXT)")
    before = path.read_bytes()
    with pytest.raises(CorruptCheckpointError):
        async with SqliteSaver(path):
            pass
    assert path.read_bytes() == before


async def test_an_empty_file(tmp_path: Path) -> None:
    """A file of no bytes is a new database."""
    path = tmp_path / "file"
    path.touch()
    async with SqliteSaver(path) as saver:
        assert (await chain(Probe(), saver).ainvoke({"log": []}, "t"))["log"][-1] == "c@2"


@pytest.mark.slow
async def test_a_bit_is_flipped(database: Path, tmp_path: Path) -> None:
    """P11: a bit flipped anywhere in the file gives the right values or a typed error, never a wrong value or another
    exception."""
    rng = random.Random(os.environ.get("PREGEL_SEED", "0"))
    execute(database, "PRAGMA wal_checkpoint(TRUNCATE)")
    whole = database.read_bytes()
    for number in range(FLIPS):
        damaged = bytearray(whole)
        place = rng.randrange(len(whole))
        damaged[place] ^= 1 << rng.randrange(8)
        path = tmp_path / f"damaged{number}"
        path.write_bytes(damaged)
        try:
            async with SqliteSaver(path, synchronous="NORMAL", busy_timeout=0.1) as saver:
                graph = chain(Probe(), saver)
                found = (await graph.aget_state("t")).values
                assert found in ({}, {"log": []}) or found["log"] == ["in", "a@1", "b@2", "c@3"], (place, found)
                result = await graph.ainvoke(None, "u")
                assert result["log"] == ["in", "a@1", "b@2", "c@3"], (place, result)
        except PregelError:
            pass


async def test_a_bit_of_a_frame_is_flipped(database: Path) -> None:
    """P11: the checksum detects every flipped bit of a frame."""
    rng = random.Random(os.environ.get("PREGEL_SEED", "0"))
    with closing(sqlite3.connect(database)) as connection:
        frames = connection.execute(
            "SELECT key, id, data FROM frame "
            "WHERE key IN (SELECT frame FROM checkpoint WHERE thread = (SELECT key FROM thread WHERE id = 't'))"
        ).fetchall()
    async with SqliteSaver(database, synchronous="NORMAL") as saver:
        graph = chain(Probe(), saver)
        for _ in range(FLIPS * 2):
            key, stored, frame = rng.choice(frames)
            checkpoint = read_id(stored)
            damaged = bytearray(frame)
            damaged[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
            update = "UPDATE frame SET data = ? WHERE key = ?"
            execute(database, update, bytes(damaged), key)
            with pytest.raises(CorruptCheckpointError):
                await graph.aget_state({"configurable": {"thread_id": "t", "checkpoint_id": checkpoint}})
            execute(database, update, frame, key)
        assert (await graph.aget_state("t")).values["log"] == ["in", "a@1", "b@2", "c@3"]


async def test_read_only(database: Path) -> None:
    """P4: a read-only database can be read; a run is refused before any node."""
    probe = Probe()
    async with SqliteSaver(f"file:{database}?mode=ro") as saver:
        graph = chain(probe, saver)
        assert (await graph.aget_state("t")).values["log"] == ["in", "a@1", "b@2", "c@3"]
        assert len(await _all(graph.aget_state_history("u"))) == 3
        for call in (CALLS[0], CALLS[1], CALLS[4]):
            with pytest.raises(StorageReadOnlyError):
                await call(graph, "u")
    assert probe.started == []


async def test_read_only_and_missing(tmp_path: Path) -> None:
    """P4: an empty read-only database cannot be set up, and a missing one cannot be created."""
    (tmp_path / "empty").touch()
    for name in ("empty", "missing"):
        with pytest.raises(StorageError):
            async with SqliteSaver(f"file:{tmp_path / name}?mode=ro"):
                pass
    assert not (tmp_path / "missing").exists()


async def _limit_pages(saver: SqliteSaver, most: int | None) -> None:
    """Stop the database from growing, or allow it again."""

    def limit(db: sqlite3.Cursor) -> None:
        pages = db.execute("PRAGMA page_count").fetchone()[0] if most is None else most
        db.execute(f"PRAGMA max_page_count = {pages}")

    assert saver._worker is not None
    await saver._worker.run(Job(limit, writes=False))


async def test_full(tmp_path: Path, environment: SeededEnvironment) -> None:
    """P4: a run on a full disk stops with that error at the superstep that does not fit, and continues when there is
    space."""
    probe = Probe()

    async def big(state: Any) -> dict[str, Any]:
        key = f"big@{len(state['log'])}"
        with probe.task(key):
            return {"log": [key], "last": random.Random(1).randbytes(200_000).hex()}

    graph = StateGraph(State).add_node("a", node(probe, "a")).add_node("big", big).add_node("c", node(probe, "c"))
    graph.add_edge(START, "a").add_edge("a", "big").add_edge("big", "c")
    async with SqliteSaver(tmp_path / "db", clock=environment.now) as saver:
        watch = Watch(saver, probe)
        await chain(Probe(), saver).ainvoke({"log": []}, "other")
        compiled = graph.compile(saver, environment=environment)
        await _limit_pages(saver, None)
        for _ in range(2):
            with pytest.raises(StorageFullError):
                await compiled.ainvoke({"log": ["in"]} if probe.started == [] else None, "t")
            await watch.look(disturbed=True)
        assert probe.started == ["a@1", "big@2", "big@2"]
        assert (await compiled.aget_state("t")).values["log"] == ["in", "a@1"]
        await _limit_pages(saver, 1_000_000)
        assert (await compiled.ainvoke(None, "t"))["log"] == ["in", "a@1", "big@2", "c@3"]
        await watch.look()


@asynccontextmanager
async def locked(path: Path) -> AsyncIterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        if connection.in_transaction:
            connection.execute("ROLLBACK")


async def test_locked(database: Path) -> None:
    """P4: a run on a locked database is refused before any node; reading still works."""
    probe = Probe()
    async with SqliteSaver(database, busy_timeout=0.05) as saver:
        graph = chain(probe, saver)
        async with locked(database):
            assert (await graph.aget_state("t")).values["log"] == ["in", "a@1", "b@2", "c@3"]
            for call in (CALLS[0], CALLS[1], CALLS[4]):
                with pytest.raises(StorageLockedError):
                    await call(graph, "u")
        assert probe.started == []
        await graph.ainvoke(None, "u")


async def test_locked_during_a_run(tmp_path: Path, environment: SeededEnvironment) -> None:
    """P4: a run whose superstep cannot be stored ends there, and a later call continues from there."""
    probe = Probe()
    locks: list[sqlite3.Connection] = []

    async def lock(state: Any) -> dict[str, Any]:
        key = f"lock@{len(state['log'])}"
        with probe.task(key):
            if not locks:
                locks.append(sqlite3.connect(tmp_path / "db", isolation_level=None))
                locks[0].execute("BEGIN IMMEDIATE")
            return {"log": [key]}

    graph = StateGraph(State).add_node("a", node(probe, "a")).add_node("lock", lock).add_node("c", node(probe, "c"))
    graph.add_edge(START, "a").add_edge("a", "lock").add_edge("lock", "c")
    async with SqliteSaver(tmp_path / "db", busy_timeout=0.05, clock=environment.now) as saver:
        watch = Watch(saver, probe)
        compiled = graph.compile(saver, environment=environment)
        with pytest.raises(StorageLockedError):
            await compiled.ainvoke({"log": ["in"]}, "t")
        await watch.look(disturbed=True)
        locks[0].close()
        environment.time += EXPIRY  # the lease could not be released either
        assert (await compiled.ainvoke(None, "t"))["log"] == ["in", "a@1", "lock@2", "c@3"]
        await watch.look()


async def test_the_file_is_deleted(tmp_path: Path) -> None:
    """A saver whose file is deleted continues with its open file or raises an error; a new saver starts an
    empty file."""
    path = tmp_path / "db"
    async with SqliteSaver(path) as saver:
        graph = chain(Probe(), saver)
        await graph.ainvoke({"log": ["in"]}, "t")
        for file in tmp_path.iterdir():
            file.unlink()
        with contextlib.suppress(CheckpointError):
            assert (await graph.ainvoke({"log": ["again"]}, "t"))["log"][-1] == "c@7"
    async with SqliteSaver(path) as saver:
        assert (await chain(Probe(), saver).ainvoke({"log": ["in"]}, "t"))["log"][-1] == "c@3"


class Opaque:
    """A type that no codec can store."""


class Values(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    one: Any
    many: Annotated[list[Any], operator.add]


BAD: list[tuple[Any, str]] = [
    (Opaque(), ""),
    ([1, Opaque()], "[1]"),
    ({"user": [{"born": Opaque()}]}, "['user'][0]['born']"),
    ((1, (2, {"x": lambda: 0})), "[1][1]['x']"),
    ({"open": iter(())}, "['open']"),
]


def values_graph(saver: BaseCheckpointSaver, probe: Probe, bad: Any, *, siblings: int) -> CompiledStateGraph[Any]:
    """Return a graph where `breaks` finishes after some of its siblings and before the others, and returns the value in
    the first call."""

    async def work(given: Any) -> dict[str, Any]:
        key = f"work[{given['i']}]@1"
        with probe.task(key):
            for _ in range(given["i"] * 4):
                await anyio.lowlevel.checkpoint()
            return {"log": [key], "many": [key]}

    async def breaks(given: Any) -> dict[str, Any]:
        key = "breaks@1"
        with probe.task(key):
            for _ in range(6):
                await anyio.lowlevel.checkpoint()
            return {"log": [key], "one": bad if probe.op == 0 else 1}

    def entry(state: Any) -> list[Any]:
        return ["breaks", *(Send("work", {"i": i}) for i in range(siblings))]

    graph = StateGraph(Values).add_node("work", work).add_node("breaks", breaks)
    return graph.add_conditional_edges(START, entry).compile(saver)


@pytest.mark.parametrize("siblings", [0, 1, 4])
@pytest.mark.parametrize(("bad", "path"), BAD, ids=[path or "itself" for _, path in BAD])
async def test_a_nodes_value(bad: Any, path: str, siblings: int, saver: BaseCheckpointSaver) -> None:
    """P3, P5, P11: an unstorable value of a node is refused with its channel and path; finished siblings keep their
    results; after the node is fixed the thread resumes."""
    probe = Probe()
    watch = Watch(saver, probe)
    graph = values_graph(saver, probe, bad, siblings=siblings)
    with pytest.raises(UnstorableValueError) as caught:
        await graph.ainvoke({"log": ["in"]}, "t")
    assert (caught.value.channel, caught.value.path) == ("one", path)
    assert [note for note in caught.value.__notes__ if "'breaks'" in note and "superstep 1" in note]
    assert not [note for note in caught.value.__notes__ if "'work'" in note]
    snapshot = await graph.aget_state("t")
    assert snapshot.values == {"log": ["in"], "many": []}
    kept = [task.result for task in snapshot.tasks if task.result is not None]
    assert len(kept) == len(probe.finished) - 1 and all(task.error for task in snapshot.tasks if task.name == "breaks")
    probe.finished.remove("breaks@1")
    await watch.look()
    probe.op = 1
    result = await graph.ainvoke(None, "t")
    await watch.look()
    assert result["one"] == 1 and len(result["many"]) == siblings
    assert probe.started.count("breaks@1") == 2


@pytest.mark.parametrize(("bad", "path"), BAD, ids=[path or "itself" for _, path in BAD])
async def test_one_of_many_writers(bad: Any, path: str, saver: BaseCheckpointSaver) -> None:
    """P5, P9, P11: in a folded channel the task that wrote the value is named and refused, and only that task runs
    again."""
    ran: list[int] = []
    first = True

    async def work(given: Any) -> dict[str, Any]:
        ran.append(given["i"])
        for _ in range(given["i"] * 3):
            await anyio.lowlevel.checkpoint()
        return {"many": [bad if given["i"] == 3 and first else given["i"]]}

    graph = StateGraph(Values).add_node("work", work)
    graph.add_conditional_edges(START, lambda state: [Send("work", {"i": i}) for i in range(4)])
    compiled = graph.compile(saver)
    with pytest.raises(UnstorableValueError) as caught:
        await compiled.ainvoke({}, "t")
    assert caught.value.channel == "many" and caught.value.path.endswith(path)
    failed = [task.path[1] for task in (await compiled.aget_state("t")).tasks if task.error]
    assert failed == [3] and len(caught.value.__notes__) == 1
    first = False
    ran.clear()
    assert (await compiled.ainvoke(None, "t"))["many"] == [0, 1, 2, 3]
    assert ran == [3]


broken = True


def into_opaque(current: Any, update: Any) -> Any:
    return Opaque() if broken else update


class Folded(TypedDict, total=False):
    many: Annotated[Any, into_opaque]


async def test_a_folded_value(saver: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """P3, P5, P11: when only the folded value cannot be stored, no task is to blame and none runs again."""
    ran: list[int] = []

    async def work(given: int) -> dict[str, Any]:
        ran.append(given)
        for _ in range(given):
            await anyio.lowlevel.checkpoint()
        return {"many": given}

    graph = StateGraph(Folded).add_node("work", work)
    graph.add_conditional_edges(START, lambda state: [Send("work", i) for i in range(3)])
    compiled = graph.compile(saver)
    with pytest.raises(UnstorableValueError) as caught:
        await compiled.ainvoke({}, "t")
    assert caught.value.channel == "many"
    snapshot = await compiled.aget_state("t")
    assert [task.error for task in snapshot.tasks] == [None] * 3 and snapshot.error is not None
    monkeypatch.setitem(globals(), "broken", False)
    assert await compiled.ainvoke(None, "t") == {"many": 2}
    assert sorted(ran) == [0, 1, 2]


@pytest.mark.parametrize(("bad", "path"), BAD, ids=[path or "itself" for _, path in BAD])
async def test_an_input(bad: Any, path: str, saver: BaseCheckpointSaver) -> None:
    """P11: nothing of an unstorable input is stored: a new thread leaves no trace, an existing one stays as it was."""
    probe = Probe()
    graph = values_graph(saver, probe, None, siblings=0)
    with pytest.raises(UnstorableValueError) as caught:
        await graph.ainvoke({"one": bad, "log": ["in"]}, "t")
    assert f"{caught.value.channel}{caught.value.path}".endswith(path) and "one" in str(caught.value)
    assert await saver.scan(None, None) == () and probe.started == []
    await graph.ainvoke({"one": 1, "log": ["in"]}, "t")
    before = await saver.scan(None, None)
    with pytest.raises(UnstorableValueError):
        await graph.ainvoke({"one": bad, "log": ["in"]}, "t")
    assert await saver.scan(None, None) == before


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("siblings", [0, 1])
@pytest.mark.parametrize(("bad", "path"), BAD[:3], ids=[path or "itself" for _, path in BAD[:3]])
async def test_a_sends_argument(bad: Any, path: str, siblings: int, kind: str, saver: BaseCheckpointSaver) -> None:
    """P3, P5, P11: a router's unstorable send is refused; the node's writes are kept, and a resume runs the router
    again."""
    probe = Probe()

    async def asynchronous(state: Any) -> list[Send]:
        await anyio.lowlevel.checkpoint()
        return plain(state)

    def plain(state: Any) -> list[Send]:
        return [Send("work", {"i": 0, "at": 2, "x": bad if probe.op == 0 else 1})]

    graph = StateGraph(State).add_node("head", node(probe, "head", turns=1)).add_node("work", node(probe, "work"))
    graph.add_edge(START, "head").add_conditional_edges("head", plain if kind == "plain" else asynchronous)
    for number in range(siblings):
        graph.add_node(f"other{number}", node(probe, f"other{number}")).add_edge(START, f"other{number}")
    compiled = graph.compile(saver)
    with pytest.raises(UnstorableValueError) as caught:
        await compiled.ainvoke({"log": ["in"]}, "t")
    assert caught.value.path.endswith(f".arg['x']{path}")
    assert [note for note in caught.value.__notes__ if "'head'" in note]
    probe.op = 1
    result = await compiled.ainvoke(None, "t")
    assert result["log"][-1].startswith("work[0]")
    assert probe.started.count("head@1") == 1
