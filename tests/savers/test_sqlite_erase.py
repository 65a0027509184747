"""SqliteSaver.erase leaves no byte of a thread in the file, its log or its free pages, or raises an error that says
so (P11)."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import UUID

import anyio
import pytest

from checkpoint_savers import ErasureIncompleteError, SqliteSaver, StorageLockedError, ThreadBusyError
from checkpoint_savers.conformance.savers.suite import LATER, commit, event, everything, here, row, take, written
from checkpoint_savers.records import (
    CheckpointId,
    CheckpointRow,
    Commit,
    EventRow,
    Lease,
    TaskId,
    TaskRecord,
)
from checkpoint_savers.sqlite import files
from checkpoint_savers.sqlite.worker import Job
from checkpoint_savers.upkeep.threads import erase_threads
from tests.savers.sqlite_tools import execute, held, turns

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "threads.db"


@pytest.fixture
async def saver(path: Path) -> AsyncIterator[SqliteSaver]:
    async with SqliteSaver.from_conn_string(path, synchronous="NORMAL") as saver:
        yield saver


@pytest.fixture
def rewritten(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One element for each time that the file is rewritten."""
    times: list[int] = []
    vacuum = files.vacuum

    def counted(db: sqlite3.Cursor) -> bool:
        times.append(len(times))
        return vacuum(db)

    monkeypatch.setattr(files, "vacuum", counted)
    return times


class Secret:
    """A thread whose every part can be distinguished from all other bytes."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.rng = rng
        self.mark = f"<5ecre7-{number:03d}>"
        self.prefix = rng.getrandbits(48)
        self.ids: list[CheckpointId] = []
        self.lease: Lease | None = None

    def id(self, number: int) -> CheckpointId:
        return CheckpointId(str(UUID(int=self.prefix << 80 | 0x7000 << 64 | number)))

    def large(self) -> bytes:
        """Values of several sizes: within a page, and in overflow pages."""
        return (self.mark.encode() * 700)[: self.rng.choice([80, 330, 330, 330, 900, 2500, 6300])]

    async def step(self, saver: SqliteSaver) -> None:
        if self.lease is None:
            owner = here(f"run{self.mark}")
            self.lease = await saver.acquire(f"thread{self.mark}", owner, now=0.0, expires_at=LATER)
        number = len(self.ids)
        parent = self.ids[-1] if self.ids else None
        self.ids.append(self.id(number))
        new = CheckpointRow(
            ns="",
            checkpoint_id=self.ids[-1],
            parent_id=parent,
            base_id=self.ids[number // 10 * 10],
            step=number,
            metadata={"step": number, "run_id": f"{self.mark}{number // 7}", "note": self.mark * 3},
            frame=self.large(),
        )
        task = TaskId(f"task{self.mark}")
        records = [
            TaskRecord(ns=ns, checkpoint_id=self.ids[-1], task_id=task, index=0, kind="result", frame=self.large())
            for ns in ("", f"inside{self.mark}")
        ]
        events = [EventRow(checkpoint_id=self.ids[-1], epoch=1, position=1, kind="head", frame=self.large()[:500])]
        await saver.commit(
            self.lease,
            Commit(
                rows=(new,),
                expected_head=parent,
                records=tuple(records),
                clears=() if parent is None else (("", parent, task),),
                expires_at=LATER,
                events=tuple(events),
            ),
        )

    def traces(self, path: Path) -> int:
        """Count the occurrences of the thread's secret bytes in the files."""
        needles = [self.mark.encode(), *(one.encode() for one in self.ids)]
        needles += [bytes.fromhex(one.replace("-", "")) for one in self.ids]
        return sum(data.count(needle) for data in contents(path) for needle in needles)


def contents(path: Path) -> Iterable[bytes]:
    """The contents of the file, its log and its index."""
    files = [path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")]
    return [file.read_bytes() for file in files if file.exists()]


async def secrets(saver: SqliteSaver, seed: int, *, threads: int = 12, steps: int = 25) -> list[Secret]:
    """Threads written in turns, so that SQLite has moved their rows between pages."""
    rng = random.Random(seed)
    made = [Secret(number, rng) for number in range(threads)]
    for _ in range(steps):
        for one in rng.sample(made, len(made)):
            await one.step(saver)
    return made


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Read in another connection that keeps its snapshot."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM frame").fetchone()
        yield connection


@pytest.mark.parametrize("seed", range(3))
async def test_no_byte_is_left(saver: SqliteSaver, path: Path, seed: int) -> None:
    """P11: no byte of ids, metadata, payloads, records, events and owners is left, whichever rows have been moved or
    replaced; other threads are unchanged."""
    made = await secrets(saver, seed)
    for number, one in enumerate(made[:6]):
        if number % 2:
            await saver.adelete_thread("missing")
            await made[-1].step(saver)
        assert one.lease is not None and one.traces(path) > 100, "the secret is not where the test looks"
        others = [await saver.dump(f"thread{other.mark}") for other in made[number + 1 :]]
        await saver.erase(one.lease)
        assert one.traces(path) == 0
        assert [await saver.dump(f"thread{other.mark}") for other in made[number + 1 :]] == others
        assert (await saver.size()).free == (await saver.size()).log == 0
    assert all(one.traces(path) == 0 for one in made[:6]), "the secret has come back"


async def test_no_byte_of_earlier_deletions_is_left(saver: SqliteSaver, path: Path) -> None:
    """P11: pages that were free before, and the leftovers of a plain deletion, are rewritten, too."""
    made = await secrets(saver, 7, threads=4)
    for one in made[:3]:
        assert one.lease is not None
        await saver.release(one.lease)
        await saver.adelete_thread(f"thread{one.mark}")
    assert made[3].lease is not None
    await saver.erase(made[3].lease)
    assert [one.traces(path) for one in made] == [0] * 4


async def test_it_waits_for_readers(path: Path) -> None:
    """P11: erasing waits for readers of an earlier snapshot that has the thread; they read on undisturbed, and
    others commit."""
    async with SqliteSaver.from_conn_string(path, busy_timeout=60) as saver:
        made = await secrets(saver, 1, threads=3)
        done: list[int] = []

        async def erase() -> None:
            assert made[0].lease is not None
            await saver.erase(made[0].lease)
            done.append(made[0].traces(path))

        with reading(path) as other:
            before = other.execute("SELECT count(*) FROM frame").fetchone()
            async with anyio.create_task_group() as group:
                group.start_soon(erase)
                while await saver.dump(f"thread{made[0].mark}") is not None:
                    await anyio.lowlevel.checkpoint()
                for _ in range(5):
                    await made[1].step(saver)
                assert not done and made[0].traces(path) > 100
                assert other.execute("SELECT count(*) FROM frame").fetchone() == before
                other.execute("COMMIT")
        assert done == [0]


async def test_readers_that_stay(path: Path) -> None:
    """P11: after the busy timeout the error says what is not done, and the thread is deleted; erasing again
    completes it."""
    async with SqliteSaver.from_conn_string(path, busy_timeout=0.1) as saver:
        made = await secrets(saver, 2, threads=3)
        with reading(path):
            assert made[0].lease is not None
            with pytest.raises(ErasureIncompleteError, match="still reads") as caught:
                await saver.erase(made[0].lease)
            assert caught.value.thread_id == f"thread{made[0].mark}"
            assert made[0].traces(path) > 0
            assert await saver.dump(f"thread{made[0].mark}") is None
            await made[1].step(saver)
        await saver.erase(await take(saver, f"thread{made[0].mark}"))
        assert made[0].traces(path) == 0


async def test_readers_that_come_and_go(path: Path) -> None:
    """P11: a sequence of many readers does not keep erasing from completing."""
    async with SqliteSaver.from_conn_string(path, busy_timeout=60) as saver:
        made = await secrets(saver, 3, threads=3)
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                with reading(path) as other:
                    other.execute("SELECT sum(length(data)) FROM frame").fetchone()

        readers = [threading.Thread(target=read) for _ in range(2)]
        for one in readers:
            one.start()
        try:
            for thread in made[:2]:
                assert thread.lease is not None
                await saver.erase(thread.lease)
                assert thread.traces(path) == 0
        finally:
            stop.set()
            for one in readers:
                one.join()


async def test_another_program_writes(path: Path) -> None:
    """P11: if another program takes the lock after the thread is deleted, for longer than the busy timeout, an error
    says so."""
    async with SqliteSaver.from_conn_string(path, busy_timeout=0.05) as saver:
        made = await secrets(saver, 4, threads=2)
        lease = made[0].lease
        assert lease is not None and saver._worker is not None
        worker = saver._worker
        with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:

            async def lock() -> None:
                await worker.run(Job(lambda db: other.execute("BEGIN IMMEDIATE"), writes=False, bare=True))

            async def erase() -> None:
                with pytest.raises(ErasureIncompleteError) as caught:
                    await saver.erase(lease)
                assert isinstance(caught.value.__cause__, StorageLockedError)

            async with anyio.create_task_group() as group, held(saver):
                group.start_soon(erase)
                await turns()
                group.start_soon(lock)  # it gets the lock after the thread is deleted, and before the file is rewritten
                await turns()
            assert await saver.dump(f"thread{made[0].mark}") is None
            other.execute("ROLLBACK")
        await saver.erase(await take(saver, f"thread{made[0].mark}"))
        assert made[0].traces(path) == 0


async def test_a_cancelled_caller(saver: SqliteSaver, path: Path) -> None:
    """P7, P11: a caller that is cancelled after the thread is deleted gets its cancellation when the bytes are gone."""
    made = await secrets(saver, 5, threads=2)
    left: list[int] = []

    async def erase() -> None:
        assert made[0].lease is not None
        try:
            await saver.erase(made[0].lease)
        finally:
            left.append(made[0].traces(path))

    async with anyio.create_task_group() as group:
        async with held(saver):
            group.start_soon(erase)
            await turns()
        while await saver.dump(f"thread{made[0].mark}") is not None:
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert left == [0]


async def test_a_caller_that_was_cancelled_before(saver: SqliteSaver) -> None:
    """P7: if the caller is cancelled before, no thread is deleted."""
    lease = await take(saver)
    await saver.commit(lease, commit(row(1), events=[event(1)]))
    before = await everything(saver)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await saver.erase(lease)
    assert scope.cancelled_caught
    assert await everything(saver) == before


async def test_concurrent_erasures_share_a_rewrite(saver: SqliteSaver, path: Path) -> None:
    """Ten threads that are erased at once do not cause ten rewrites of the file."""
    made = await secrets(saver, 6, threads=12, steps=6)
    await written(saver, row(1), thread="other")
    statements: list[str] = []
    await execute(saver, lambda db: db.connection.set_trace_callback(statements.append))
    async with anyio.create_task_group() as group, held(saver):
        for one in made[:10]:
            assert one.lease is not None
            group.start_soon(saver.erase, one.lease)
        await turns()
    assert [one.traces(path) for one in made[:10]] == [0] * 10
    assert statements.count("VACUUM") == 1
    assert len(await saver.threads()) == 3


async def several(saver: SqliteSaver, count: int) -> list[str]:
    """Several threads, each of a run of its own."""
    names = [f"t{number}" for number in range(count)]
    for name in names:
        lease = await take(saver, name)
        await saver.commit(lease, commit(row(1, metadata={"run_id": f"run of {name}"}), releases=True))
    return names


async def test_deleting_does_not_rewrite_the_file(saver: SqliteSaver, rewritten: list[int]) -> None:
    """Deleting threads, by name or with their runs, costs as much as their rows: only erasing rewrites the file, and
    blocks other writers meanwhile."""
    names = await several(saver, 6)
    done = await saver.aprune(names[:2], strategy="delete")
    await saver.adelete_for_runs([f"run of {name}" for name in names[2:4]])
    await saver.adelete_thread(names[4])
    assert done.checkpoints == 2 and rewritten == []
    assert [one.thread_id async for one in saver.alist_threads()] == names[5:]
    await saver.aerase_thread(names[5])
    assert rewritten == [0] and await saver.acount_threads() == 0


async def test_many_are_erased_together(saver: SqliteSaver, rewritten: list[int]) -> None:
    """Erasures of many threads wait at the same time and share the rewrite; a thread that a run owns does not block
    them."""
    names = await several(saver, 20)
    lease = await take(saver, names[0], run="another")
    with pytest.raises(ThreadBusyError) as caught:
        await erase_threads(saver, [*names, names[3], "never"])
    assert caught.value.thread_id == names[0] and not caught.value.lost
    assert [one.thread_id async for one in saver.alist_threads()] == names[:1]
    assert 0 < len(rewritten) < 6
    await saver.release(lease)
