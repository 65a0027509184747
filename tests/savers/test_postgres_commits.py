"""PostgresSaver's commits: round trips, batches, and what a batch means for each of its callers (P3, P4, P6, P7)."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import PostgresSaver, StorageError, StorageLockedError, ThreadBusyError
from checkpoint_savers.conformance.savers.suite import (
    LATER,
    NOW,
    cid,
    commit,
    elsewhere,
    event,
    head_of,
    here,
    record,
    row,
    take,
    written,
)
from checkpoint_savers.postgres.group_commit import MAX_BATCH_BYTES, MAX_WRITES
from checkpoint_savers.records import Lease
from tests.helpers.postgres_tools import Proxy, execute, locked, stopped, turns, unsynced

pytestmark = pytest.mark.anyio


@pytest.fixture
async def saver(proxy: Proxy, schema: str) -> AsyncIterator[PostgresSaver]:
    async with PostgresSaver.from_conn_string(proxy.url, schema=schema, writers=1) as saver:
        yield saver


async def leases(saver: PostgresSaver, number: int) -> list[Lease]:
    """Acquire leases on threads t0, t1, ..., each with one checkpoint."""
    found: list[Lease] = []

    async def one(number: int) -> None:
        lease = await take(saver, f"t{number}")
        await saver.commit(lease, commit(row(1)))
        found.append(lease)

    async with anyio.create_task_group() as group:
        for each in range(number):
            group.start_soon(one, each)
    return sorted(found, key=lambda lease: int(lease.thread_id[1:]))


class Outcomes:
    """The outcomes of calls by name, in the order in which they ended: None or an exception."""

    def __init__(self) -> None:
        self.of: dict[str, BaseException | None] = {}

    async def watch(self, name: str, call: Awaitable[object]) -> None:
        try:
            await call
        except Exception as error:
            self.of[name] = error
        else:
            self.of[name] = None


def batches_of(saver: PostgresSaver) -> list[list[str]]:
    """The thread ids in each batch of commits from now on, in the order in which they are stored."""
    batches: list[list[str]] = []
    assert saver._open is not None
    writes = saver._open._writes
    store = writes._store

    async def store_and_note(cursor: Any, writes: Sequence[Any]) -> Sequence[Any]:
        batches.append([write.thread_id for write in writes])
        return await store(cursor, writes)

    writes._store = store_and_note
    return batches


async def test_each_verb_is_one_round_trip(saver: PostgresSaver, proxy: Proxy) -> None:
    """A commit with all its optional parts is one round trip to the server, and so is every other method that a run
    calls."""
    lease = await take(saver)

    async def costs(call: Awaitable[object]) -> int:
        before = proxy.turns
        await call
        return proxy.turns - before

    whole = commit(row(1), records=[record(1, "a")], events=[event(1)])
    assert await costs(saver.commit(lease, whole)) == 1
    second = commit(row(2, 1, base=1), head=1, records=[record(2, "b")], clears=[record(1, "a")], events=[event(2)])
    assert await costs(saver.commit(lease, second)) == 1
    assert await costs(saver.record(lease, [record(2, "c")], expires_at=LATER)) == 1
    assert await costs(saver.renew(lease, expires_at=LATER)) == 1
    assert await costs(saver.commit(lease, commit(head=2, moves=("", 1)))) == 1
    assert await costs(saver.release(lease)) == 1
    assert await costs(take(saver)) == 1
    assert await costs(saver.read("t")) == 1
    assert await costs(saver.segment("t", "", cid(1))) == 1
    assert await costs(saver.events("t")) == 1
    assert await costs(saver.threads()) == 1


async def test_no_connection_is_held_between_verbs(proxy: Proxy, schema: str) -> None:
    """Between calls, the lease of a running node holds no connection, no transaction and no lock."""
    async with PostgresSaver.from_conn_string(proxy.url, schema=schema, pool_size=1, writers=1) as saver:
        lease = await take(saver)
        await saver.commit(lease, commit(row(1)))
        assert saver._source.pool is not None
        stats = saver._source.pool.get_stats()
        assert stats["pool_available"] == stats["pool_size"] == 1
        found = execute(
            "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s",
            schema,
        )
        assert found == [(0,)]


async def test_waiting_commits_share_the_next_transaction(saver: PostgresSaver, proxy: Proxy, schema: str) -> None:
    """P4: commits, records, renewals and releases of a hundred threads that wait are stored in one transaction."""
    held = await leases(saver, 100)
    fates, before = Outcomes(), proxy.turns
    async with anyio.create_task_group() as group:
        async with stopped(saver):
            for number, lease in enumerate(held):
                calls = (
                    saver.commit(lease, commit(row(2, 1, base=1), head=1, events=[event(1)])),
                    saver.record(lease, [record(1, "a")], expires_at=LATER),
                    saver.renew(lease, expires_at=LATER + 1),
                    saver.release(lease),
                )
                for other in calls[: number % 4] + calls[number % 4 + 1 :]:
                    other.close()
                group.start_soon(fates.watch, lease.thread_id, calls[number % 4])
            await turns()
            assert not fates.of
    assert proxy.turns == before + 1
    assert set(fates.of.values()) == {None} and len(fates.of) == 100
    rows = execute(f'SELECT count(DISTINCT xmin::text), count(*) FROM "{schema}".pregel_threads')
    assert rows == [(1, 100)], "stored by one transaction"
    assert await head_of(saver, "t0") == cid(2) and await head_of(saver, "t1") == cid(1)


async def test_acquires_share_a_transaction(saver: PostgresSaver, proxy: Proxy) -> None:
    """P6: leases on new, released, expired and busy threads are acquired in one transaction; each caller gets its
    own result."""
    await written(saver, row(1), thread="old")
    await saver.acquire("busy", elsewhere("run-0"), now=NOW, expires_at=LATER)
    await saver.acquire("lapsed", elsewhere("run-0"), now=1.0, expires_at=NOW)
    fates, before = Outcomes(), proxy.turns
    async with anyio.create_task_group() as group:
        async with stopped(saver):
            for name in ("old", "busy", "lapsed", *(f"new{n}" for n in range(40))):
                group.start_soon(fates.watch, name, take(saver, name, f"run-{name}"))
            await turns()
    assert proxy.turns == before + 1
    busy = fates.of.pop("busy")
    assert isinstance(busy, ThreadBusyError) and not busy.lost and "run-0" in str(busy)
    assert set(fates.of.values()) == {None} and len(fates.of) == 42


async def test_a_failure_affects_its_own_caller_only(saver: PostgresSaver, schema: str) -> None:
    """P3, P6: of forty commits in a batch, one has lost its lease, one has the wrong head, one repeats a checkpoint,
    one repeats events, one cannot be encoded, one is too long: each of these fails with its own error, and all
    others are stored."""
    held = await leases(saver, 40)
    await saver.commit(held[4], commit(events=[event(1)]))
    await saver.acquire("t1", elsewhere("run-2"), now=LATER, expires_at=LATER + 30)
    wrong = {
        1: commit(row(2, 1), head=1),
        2: commit(row(2, 1), head=7),
        3: commit(row(2, 1), row(1), head=1),
        4: commit(row(2, 1), head=1, events=[event(1)]),
        5: commit(row(2, 1), head=1, records=[record(2, "\ud800")]),
        6: commit(row(2, 1), head=1, records=[record(2, "".join(map(chr, range(300, 3300))))]),
    }
    fates = Outcomes()
    async with anyio.create_task_group() as group:
        async with stopped(saver):
            for number, lease in enumerate(held):
                one = wrong.get(number, commit(row(2, 1), head=1))
                group.start_soon(fates.watch, lease.thread_id, saver.commit(lease, one))
            await turns()
    failed = {name: error for name, error in fates.of.items() if error is not None}
    assert failed.keys() == {f"t{number}" for number in wrong}
    assert isinstance(failed["t1"], ThreadBusyError) and "run-2" in str(failed["t1"])
    assert isinstance(failed["t2"], ThreadBusyError) and failed["t2"].lost
    assert isinstance(failed["t3"], StorageError) and isinstance(failed["t4"], StorageError)
    assert isinstance(failed["t5"], UnicodeEncodeError)
    assert isinstance(failed["t6"], StorageError) and "too long" in str(failed["t6"])
    heads = {lease.thread_id: await head_of(saver, lease.thread_id) for lease in held}
    assert {name for name, head in heads.items() if head == cid(1)} == failed.keys()
    assert execute(f'SELECT count(*) FROM "{schema}".pregel_checkpoints') == [(40 + 34,)]


@pytest.mark.parametrize("writers", [1, 4])
async def test_writes_of_one_thread_keep_their_order(writers: int, schema: str, proxy: Proxy) -> None:
    """P5: the writes of one thread are in separate transactions, in order, however many transactions run at a time;
    of several records of one task, the last one is kept."""
    async with PostgresSaver.from_conn_string(proxy.url, schema=schema, writers=writers) as saver:
        (lease,) = await leases(saver, 1)
        fates = Outcomes()
        async with anyio.create_task_group() as group:
            async with stopped(saver):
                for number in range(20):
                    kept = record(1, "a", frame=b"%d" % number)
                    group.start_soon(fates.watch, f"{number}", saver.record(lease, [kept], expires_at=LATER))
                    await turns(2)
                group.start_soon(fates.watch, "last", saver.commit(lease, commit(row(2, 1), head=1, releases=True)))
                await turns()
        assert set(fates.of.values()) == {None} and len(fates.of) == 21
        chain = await saver.read("t0", "", cid(1))
        assert chain is not None and [one.frame for one in chain.records] == [b"19"]


async def test_a_flood_from_one_thread_does_not_starve_others(saver: PostgresSaver) -> None:
    """A thread that writes continuously takes one place in each batch: another thread's commit is in the next batch."""
    flood, other = await leases(saver, 2)
    fates, batches = Outcomes(), batches_of(saver)
    async with anyio.create_task_group() as group:
        async with stopped(saver):
            for number in range(50):
                call = saver.record(flood, [record(1, f"task-{number}")], expires_at=LATER)
                group.start_soon(fates.watch, f"flood {number}", call)
            await turns()
            group.start_soon(fates.watch, "other", saver.commit(other, commit(row(2, 1), head=1)))
            await turns()
    assert set(fates.of.values()) == {None} and len(fates.of) == 51
    assert batches == [["t0", "t1"], *[["t0"]] * 49]


async def test_threads_take_turns(saver: PostgresSaver) -> None:
    """If there are more threads than places in a batch, the first write of each is stored before the third of any."""
    held = await leases(saver, MAX_WRITES + 20)
    fates, batches = Outcomes(), batches_of(saver)
    async with anyio.create_task_group() as group:
        async with stopped(saver):
            for lease in held:
                for number in range(3):
                    call = saver.record(lease, [record(1, f"task-{number}")], expires_at=LATER)
                    group.start_soon(fates.watch, f"{lease.thread_id} {number}", call)
            await turns()
    assert set(fates.of.values()) == {None} and len(fates.of) == 3 * len(held)
    assert [len(batch) for batch in batches] == [MAX_WRITES, MAX_WRITES, MAX_WRITES, 3 * 20]
    places: dict[str, list[int]] = {}
    for place, thread in enumerate(thread for batch in batches for thread in batch):
        places.setdefault(thread, []).append(place)
    assert max(each[0] for each in places.values()) < min(each[2] for each in places.values())


async def test_a_batch_is_bounded(saver: PostgresSaver, proxy: Proxy) -> None:
    """A batch is bounded in commits and in bytes; a commit that exceeds the byte limit goes alone."""
    held = await leases(saver, MAX_WRITES + 1)

    async def transactions(frames: list[bytes], at: int) -> int:
        fates, before = Outcomes(), proxy.turns
        async with anyio.create_task_group() as group:
            async with stopped(saver):
                for lease, frame in zip(held, frames, strict=False):
                    call = saver.commit(lease, commit(row(at, at - 1, frame=frame), head=at - 1))
                    group.start_soon(fates.watch, lease.thread_id, call)
                await turns()
        assert set(fates.of.values()) == {None}
        return proxy.turns - before

    assert await transactions([b""] * (MAX_WRITES + 1), 2) == 2
    assert await transactions([bytes(MAX_BATCH_BYTES // 4)] * 8, 3) == 2
    assert await transactions([b"", bytes(MAX_BATCH_BYTES + 1)], 4) == 2


async def test_cancelling_a_caller_does_not_split_the_batch(saver: PostgresSaver) -> None:
    """P7: if half of a batch's callers are cancelled, all writes are stored, before the cancelled calls end."""
    held = await leases(saver, 20)
    fates = Outcomes()

    async def run(lease: Lease) -> None:
        await saver.commit(lease, commit(row(2, 1), head=1))
        await anyio.lowlevel.checkpoint()

    async with stopped(saver) as go:
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as cancelled:
                    for lease in held[:10]:
                        cancelled.start_soon(run, lease)
                    for lease in held[10:]:
                        group.start_soon(fates.watch, lease.thread_id, saver.commit(lease, commit(row(2, 1), head=1)))
                    await turns()
                    scope.cancel()
                    go.set()
            assert scope.cancelled_caught
            for lease in held[:10]:
                assert await head_of(saver, lease.thread_id) == cid(2)
    assert set(fates.of.values()) == {None} and len(fates.of) == 10


async def test_closing_finishes_waiting_commits(proxy: Proxy, schema: str) -> None:
    """P4, P7: commits that wait when the saver is closed are stored, and later ones are refused."""
    async with PostgresSaver.from_conn_string(proxy.url, schema=schema, writers=1) as saver:
        held = await leases(saver, 30)
        fates = Outcomes()
        async with anyio.create_task_group() as group:
            async with stopped(saver):
                for lease in held:
                    group.start_soon(fates.watch, lease.thread_id, saver.commit(lease, commit(row(2, 1), head=1)))
                await turns()
            await saver.__aexit__(None, None, None)
            with pytest.raises(StorageError, match="not open"):
                await saver.commit(held[0], commit(row(3, 2), head=2))
        assert set(fates.of.values()) == {None} and len(fates.of) == 30
        async with saver:
            assert await head_of(saver, "t29") == cid(2)
            await take(saver, "t29", "run-2")  # closing the saver has released it


async def test_a_locked_thread_does_not_block_others(proxy: Proxy, schema: str) -> None:
    """P6: while another connection locks a thread's row, that thread's commit waits and all others proceed; then it
    is stored."""
    async with PostgresSaver.from_conn_string(proxy.url, schema=schema, writers=1, busy_timeout=30) as saver:
        held = await leases(saver, 10)
        fates = Outcomes()
        async with anyio.create_task_group() as group:
            with locked(schema, "t0"):
                async with stopped(saver):
                    for lease in held:
                        group.start_soon(fates.watch, lease.thread_id, saver.commit(lease, commit(row(2, 1), head=1)))
                    await turns()
                for step in range(2, 12):
                    await saver.commit(held[1], commit(row(step + 1, step), head=step))
                assert len(fates.of) == 9 and "t0" not in fates.of
                group.start_soon(fates.watch, "after it", saver.record(held[0], [record(2, "a")], expires_at=LATER))
                await saver.renew(held[2], expires_at=LATER)
                assert "after it" not in fates.of, "a thread's writes keep their order"
        assert set(fates.of.values()) == {None} and len(fates.of) == 11
        chain = await saver.read("t0")
        assert chain is not None and chain.head == cid(2) and len(chain.records) == 1


async def test_a_lock_that_is_held_too_long_is_an_error(proxy: Proxy, schema: str) -> None:
    """P3: after `busy_timeout` seconds commit, acquire, rewrite and delete raise, and have changed nothing."""
    async with PostgresSaver.from_conn_string(proxy.url, schema=schema, busy_timeout=0.1) as saver:
        (lease,) = await leases(saver, 1)
        await written(saver, row(1), thread="free")
        with locked(schema, "t0"):
            with pytest.raises(StorageLockedError, match="busy_timeout"):
                await saver.commit(lease, commit(row(2, 1), head=1))
            with pytest.raises(StorageLockedError, match="busy_timeout"):
                await saver.adelete_thread("t0")
            with pytest.raises(StorageLockedError, match="busy_timeout"):
                await saver.erase(lease)
        with locked(schema, "free"), pytest.raises(StorageLockedError, match="busy_timeout"):
            await take(saver, "free")
        assert await head_of(saver, "t0") == cid(1)
        await saver.commit(lease, commit(row(2, 1), head=1))
        await take(saver, "free")


async def test_many_writers_of_many_threads(schema: str, proxy: Proxy) -> None:
    """P6, P13: three savers, each with three transactions at a time, write the same twenty threads: each thread is
    one chain, with an epoch for every lease."""
    rounds = 5

    async def count(saver: PostgresSaver, thread: str, run: str) -> None:
        done = 0
        while done < rounds:
            try:
                lease = await take(saver, thread, f"{run} {done}")
            except ThreadBusyError:
                await anyio.lowlevel.checkpoint()
                continue
            head = await head_of(saver, thread)
            last = 0 if head is None else int(head.split("-")[0])
            await saver.commit(lease, commit(row(last + 1, last or None, base=1), head=last or None, releases=True))
            done += 1

    async def saver_of(number: int) -> None:
        async with PostgresSaver.from_conn_string(unsynced(), schema=schema, writers=3) as saver:
            async with anyio.create_task_group() as group:
                for thread in range(20):
                    group.start_soon(count, saver, f"t{thread}", f"run {number}")

    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(saver_of, number)
    async with PostgresSaver.from_conn_string(unsynced(), schema=schema) as saver:
        for thread in range(20):
            rows, _ = await saver.segment(f"t{thread}", "", cid(1))
            assert [one.checkpoint_id for one in rows] == [cid(number) for number in range(1, 3 * rounds + 1)]
            assert [one.parent_id for one in rows[1:]] == [one.checkpoint_id for one in rows[:-1]]
            assert (await take(saver, f"t{thread}")).epoch == 3 * rounds + 1


async def test_one_of_two_acquires_wins(schema: str, proxy: Proxy) -> None:
    """P6: of two savers that acquire a released or expired lease at the same moment, one gets it, even if the other
    had seen the thread free before."""
    async with (
        PostgresSaver.from_conn_string(unsynced(), schema=schema) as one,
        PostgresSaver.from_conn_string(unsynced(), schema=schema) as other,
    ):
        await written(one, row(1))
        for turn in range(150):
            won: list[tuple[PostgresSaver, Lease]] = []

            async def attempt(
                saver: PostgresSaver, run: str, won: list[tuple[PostgresSaver, Lease]] = won, turn: int = turn
            ) -> None:
                try:
                    lease = await saver.acquire("t", elsewhere(f"{run} {turn}"), now=turn, expires_at=turn + 1)
                except ThreadBusyError:
                    return
                won.append((saver, lease))

            async with anyio.create_task_group() as group:
                group.start_soon(attempt, one, "one")
                group.start_soon(attempt, other, "other")
            assert len(won) == 1
            ((winner, lease),) = won
            await winner.renew(lease, expires_at=turn + 1)
            if turn % 2:
                await winner.release(lease)


async def test_one_of_two_commits_on_the_same_head_wins(schema: str, proxy: Proxy) -> None:
    """P3, P6: of two concurrent commits through two savers that expect the same head, one is stored, even if the
    other had checked before; a head never skips a checkpoint."""
    async with (
        PostgresSaver.from_conn_string(unsynced(), schema=schema) as one,
        PostgresSaver.from_conn_string(unsynced(), schema=schema) as other,
    ):
        lease = await take(one)
        await one.commit(lease, commit(row(1)))
        head = 1
        for turn in range(150):
            won: list[int] = []

            async def attempt(saver: PostgresSaver, number: int, won: list[int] = won, head: int = head) -> None:
                try:
                    await saver.commit(lease, commit(row(number, head), head=head))
                except ThreadBusyError:
                    return
                won.append(number)

            async with anyio.create_task_group() as group:
                group.start_soon(attempt, one, 2 * turn + 2)
                group.start_soon(attempt, other, 2 * turn + 3)
            assert len(won) == 1
            (head,) = won
            assert await head_of(one) == cid(head)


async def test_expiry_uses_the_callers_clock(saver: PostgresSaver) -> None:
    """P6: expiry is compared with the time that the caller passes: the server's clock is not used."""
    await saver.acquire("t", elsewhere("run-1"), now=1.0, expires_at=2.0)
    with pytest.raises(ThreadBusyError):
        await saver.acquire("t", here("run-2"), now=1.5, expires_at=3.0)
    assert time.time() > 2.0
    await saver.acquire("t", here("run-2"), now=2.0, expires_at=3.0)


async def test_the_savers_thread_ends_when_closed(saver: PostgresSaver) -> None:
    """P13: the saver's loop runs in a thread of its own, which ends when the saver is closed."""
    names = [one.name for one in threading.enumerate() if "PostgresSaver" in one.name]
    assert len(names) == 1
    await saver.__aexit__(None, None, None)
    assert not [one for one in threading.enumerate() if "PostgresSaver" in one.name]
