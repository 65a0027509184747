"""Clauses about runs from start to end: each change is one transaction, under the lease where there is one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from ...abc import BaseCheckpointSaver
from ...errors import IdempotencyConflictError, RunNotFoundError, RunOverError, StorageError, ThreadBusyError
from ...runs.decisions import Changes, Found, RunOutcome, TakenRun, WantedLease
from ...runs.port import RunStore
from ...runs.rows import RunRow
from ..caches.conformance import Clock
from ..savers.suite import commit, here, in_threads, row
from .suite import SUCCESS, OpenSaverAt, RunSuite, request, take_run


class Lifecycle(RunSuite):
    async def test_acquire_and_take(self, saver: BaseCheckpointSaver, runs: RunStore) -> None:
        """P6, P16: the lease is acquired with the run, or neither: not if another lease is live, or if the wake-up is
        stale."""
        now = saver.clock()
        wants = WantedLease(here("worker"), now, now + 30)
        assert await runs.acquire_and_take("t", 1, wants, worker="w") is None
        assert await saver.threads() == ()
        run = await runs.start("t", request("a"))
        other = await self.acquire(saver, "other")
        with pytest.raises(ThreadBusyError) as refused:
            await runs.acquire_and_take("t", 1, wants, worker="w")
        assert not refused.value.lost and "other" in str(refused.value)
        await saver.commit(other, commit(row(1), releases=True))
        for stale in (0, 2):
            assert await runs.acquire_and_take("t", stale, wants, worker="w") is None
            assert [header.owner for header in await saver.threads()] == [None]
        assert await runs.get_run("a") == run and (await self.thread_of(runs)).activation == "queued"
        taken = await runs.acquire_and_take("t", 1, wants, worker="w")
        assert taken is not None
        lease, took = taken
        (header,) = await saver.threads()
        assert (header.owner, header.epoch) == (wants.owner, lease.epoch) and lease.epoch > other.epoch
        assert (lease.thread_id, lease.owner, lease.newest) == ("t", wants.owner, row(1).checkpoint_id)
        assert took == await runs.get_run("a") and took.status == "running"
        assert (await self.thread_of(runs)).epoch == lease.epoch
        with pytest.raises(ThreadBusyError):
            await saver.commit(other, commit(row(2, 1), head=1))
        with pytest.raises(ThreadBusyError):
            await self.acquire(saver, "third")
        await runs.begin(lease, "a", commit(row(2, 1), head=1))
        assert await runs.end(lease, "a", SUCCESS)
        assert [header.owner for header in await saver.threads()] == [None]

    async def test_start_and_take(self, saver: BaseCheckpointSaver, runs: RunStore) -> None:
        """P6, P16: a run is accepted and taken in one transaction if its thread has no other open run. The thread may
        be new, or have checkpoints."""
        now = saver.clock()
        wants = WantedLease(here("worker"), now, now + 30)
        run, taken = await runs.start_and_take(
            "t", request("a"), wants, worker="w", metadata={"user": "ada"}, route="graph@2"
        )
        assert taken is not None
        lease, took = taken
        assert (run.run_id, run.status, run.attempt) == ("a", "pending", 0)
        assert (took.status, took.attempt, took.worker) == ("running", 1, "w")
        assert await runs.get_run("a") == took and await runs.queued() == ()
        thread = await self.thread_of(runs)
        assert (thread.activation, thread.status, thread.epoch, thread.pending) == ("active", "busy", lease.epoch, 0)
        assert (thread.metadata, thread.route) == ({"user": "ada"}, "graph@2")
        assert (lease.thread_id, lease.owner, lease.newest) == ("t", wants.owner, None)
        (header,) = await saver.threads()
        assert (header.owner, header.epoch, header.expires_at) == (wants.owner, lease.epoch, wants.expires_at)
        with pytest.raises(ThreadBusyError):
            await self.acquire(saver, "other")
        await runs.begin(lease, "a", commit(row(1)))
        assert await runs.end(lease, "a", SUCCESS)
        wants = WantedLease(here("next"), now, now + 30)
        run, taken = await runs.start_and_take("t", request("b"), wants, worker="w")
        assert taken is not None and taken.lease.epoch > lease.epoch and taken.lease.newest == row(1).checkpoint_id
        with pytest.raises(ThreadBusyError):
            await saver.commit(lease, commit(row(2, 1), head=1))
        await runs.begin(taken.lease, "b", commit(row(2, 1), head=1))
        assert await runs.end(taken.lease, "b", SUCCESS)

    async def test_start_and_take_of_a_busy_thread(
        self, saver: BaseCheckpointSaver, runs: RunStore, clock: Clock
    ) -> None:
        """P6, P16: a run that cannot be taken now is queued, or waits for its time, and no lease is acquired. A refused
        run is not stored."""
        wants = WantedLease(here("worker"), clock.now, clock.now + 30)

        async def start(thread_id: str, name: str, **options: Any) -> TakenRun | None:
            run, taken = await runs.start_and_take(thread_id, request(name, **options), wants, worker="w")
            assert run == await runs.get_run(name) or taken is not None
            return taken

        direct = await self.acquire(saver, "a direct call", thread_id="called")
        assert await start("called", "a") is None  # another owner has its lease
        await saver.commit(direct, commit(row(1), releases=True))
        assert await start("called", "b") is None  # "a" is queued
        assert await start("later", "c", due=clock.now + 5) is None
        with pytest.raises(ThreadBusyError):
            await start("called", "d", multitask="reject")
        with pytest.raises(StorageError):
            await start("new", "a")
        assert await start("keyed", "e", idempotency_key="k", digest=b"1") is not None
        same, taken = await runs.start_and_take(
            "another", request("f", idempotency_key="k", digest=b"1"), wants, worker="w"
        )
        assert (same.run_id, taken) == ("e", None)
        with pytest.raises(IdempotencyConflictError):
            await start("another", "g", idempotency_key="k", digest=b"2")
        assert [await runs.get_run(name) for name in ("d", "f", "g")] == [None] * 3
        assert sorted([one.thread_id for one in await runs.queued()]) == ["called"]
        owners = {header.thread_id: (header.owner, header.epoch) for header in await saver.threads()}
        assert owners == {"called": (None, direct.epoch), "later": (None, 0), "keyed": (wants.owner, 1)}

    async def test_start_in_a_new_thread(self, saver: BaseCheckpointSaver, runs: RunStore) -> None:
        """P3, P16: with `is_new`, a store may decide without reading. It stores and returns the same as without
        `is_new`, even if the thread or the idempotency key exists already."""
        now = saver.clock()
        stored: list[Any] = []
        for name, is_new in (("a", False), ("b", True)):
            thread_id = f"waits {name}"
            run = await runs.start(thread_id, request(name), metadata={"user": "ada"}, route="r", is_new=is_new)
            assert run == await runs.get_run(name)
            wants = WantedLease(here(f"worker {name}"), now, now + 30)
            started = await runs.start_and_take(
                f"taken {name}", request(f"{name} 2"), wants, worker="w", metadata={"n": 1}, is_new=is_new
            )
            assert started.taken is not None and started.taken.run == await runs.get_run(f"{name} 2")
            rows = [await runs.get_thread(each) for each in (thread_id, f"taken {name}")]
            headers = [each for each in await saver.threads() if each.thread_id.endswith(name)]
            in_headers = [(each.epoch, each.expires_at, each.metadata, each.head) for each in headers]
            in_rows = [each and (each.activation, each.activation_no, each.route, each.metadata) for each in rows]
            stored.append((run.status, run.seq, started.run.seq, started.taken.run.attempt, in_headers, in_rows))
            await runs.begin(started.taken.lease, f"{name} 2", commit(row(1)))
            assert await runs.end(started.taken.lease, f"{name} 2", SUCCESS)
        assert stored[0] == stored[1]

        wants = WantedLease(here("late"), now, now + 30)
        again = await runs.start("waits a", request("c"), metadata={"user": "eve", "n": 2}, is_new=True)
        assert (again.seq, (await self.thread_of(runs, "waits a")).metadata) == (2, {"user": "ada", "n": 2})
        busy = await runs.start_and_take("waits a", request("d"), wants, worker="w", is_new=True)
        assert (busy.run.seq, busy.taken) == (3, None)
        with pytest.raises(ThreadBusyError):
            await runs.start("waits a", request("e", multitask="reject"), is_new=True)
        with pytest.raises(StorageError):
            await runs.start("another", request("a"), is_new=True)
        after = await runs.start_and_take("taken a", request("f"), wants, worker="w", is_new=True)
        assert after.taken is not None and after.taken.lease.newest == row(1).checkpoint_id
        first = await runs.start("keyed", request("g", idempotency_key="k", digest=b"1"), is_new=True)
        assert await runs.start("other", request("h", idempotency_key="k", digest=b"1"), is_new=True) == first
        assert await runs.get_thread("other") is await runs.get_thread("another") is None

    async def test_a_run_from_start_to_end(self, saver: BaseCheckpointSaver, runs: RunStore, clock: Clock) -> None:
        """P4: a run is stored when `start` returns. A worker takes it under a lease, which its end releases."""
        run = await runs.start("t", request("a", metadata={"n": 1}), metadata={"owner": "ada"})
        assert await runs.get_run("a") == run
        assert (run.status, run.seq, run.request.payload, run.created_at) == ("pending", 1, b"payload", clock.now)
        thread = await self.thread_of(runs)
        assert (thread.status, thread.activation, thread.pending) == ("busy", "queued", 1)
        assert (thread.metadata, thread.assistant) == ({"owner": "ada"}, "graph")

        lease, taken = await take_run(saver, thread.activation_no)
        assert (taken.status, taken.attempt, taken.worker) == ("running", 1, "worker")
        with pytest.raises(ThreadBusyError):
            await self.acquire(saver, "other")
        await runs.begin(lease, "a")
        clock.now += 5
        await runs.end(lease, "a", SUCCESS)

        ended = await runs.get_run("a")
        assert ended is not None and (ended.status, ended.begun, ended.ended_at) == ("success", True, clock.now)
        thread = await self.thread_of(runs)
        assert (thread.status, thread.activation, thread.pending, thread.values) == ("idle", "none", 0, {"x": 1})
        await self.acquire(saver, "other")  # the lease was released in the same transaction

    async def test_runs_by_id_and_queued_threads_by_route(
        self, saver: BaseCheckpointSaver, runs: RunStore, clock: Clock
    ) -> None:
        """A worker sees the threads whose next run is of a graph that it has."""
        for name in ("a", "b", "c"):
            await runs.start(name, request(name, assistant="other" if name == "b" else "graph"))
            clock.now += 1
        assert {run.run_id for run in await runs.get_runs(("a", "c", "nothing"))} == {"a", "c"}
        assert await runs.get_runs(()) == ()
        assert [row.thread_id for row in await runs.queued(routes=("other", "unknown"))] == ["b"]
        assert [row.thread_id for row in await runs.queued()] == ["a", "b", "c"]
        assert [row.thread_id for row in await runs.queued(routes=("graph",), limit=1)] == ["a"]
        await runs.start("a", request("d", assistant="other", priority=1))
        row = await self.thread_of(runs, "a")
        assert (row.route, row.activation_no) == ("other", 2)

    async def test_unknown_ids(self, runs: RunStore) -> None:
        assert await runs.get_run("nothing") is None and await runs.get_thread("nothing") is None
        with pytest.raises(RunNotFoundError):
            await runs.cancel("nothing")

    async def test_a_decision_that_raises_changes_nothing(self, runs: RunStore) -> None:
        """P3: the transaction is rolled back, and the error reaches the caller."""
        await runs.start("t", request("a"))
        before = await runs.get_run("a"), await runs.get_thread("t")

        def refuse(found: Found) -> Changes[None]:
            assert found.thread is not None and [run.run_id for run in found.open] == ["a"]
            raise ThreadBusyError("t")

        with pytest.raises(ThreadBusyError):
            await runs.transact("t", refuse)
        with pytest.raises(ThreadBusyError):
            await runs.start("t", request("b", multitask="reject"))
        assert (await runs.get_run("a"), await runs.get_thread("t")) == before
        assert await runs.get_run("b") is None

    async def test_a_lost_lease_writes_nothing(self, saver: BaseCheckpointSaver, runs: RunStore, clock: Clock) -> None:
        """P6: a worker whose lease was acquired by another one is refused, also before its run is taken again."""
        await runs.start("t", request("a"))
        late, _ = await take_run(saver, 1, "late")
        clock.now += 60
        await self.acquire(saver, "next")

        async def refused() -> None:
            before = await runs.get_run("a"), await runs.get_thread("t")
            writes: tuple[Callable[[], Awaitable[object]], ...] = (
                lambda: runs.begin(late, "a"),
                lambda: runs.end(late, "a", SUCCESS),
                lambda: runs.give_back(late, "a"),
            )
            for write in writes:
                with pytest.raises(ThreadBusyError) as caught:
                    await write()
                assert caught.value.lost
            assert (await runs.get_run("a"), await runs.get_thread("t")) == before

        await refused()
        assert await runs.requeue(await self.thread_of(runs))
        await refused()
        lease, again = await take_run(saver, 2, "next")
        assert (again.run_id, again.attempt, again.stalls) == ("a", 2, 2)
        await refused()
        await runs.end(lease, "a", SUCCESS)

    async def test_a_run_that_is_given_back(self, saver: BaseCheckpointSaver, runs: RunStore) -> None:
        """It is pending again, its input is not applied again, and another worker may take it at once."""
        await runs.start("t", request("a"))
        lease, _ = await take_run(saver, 1)
        await runs.begin(lease, "a")
        await runs.give_back(lease, "a")
        _, run = await take_run(saver, 2, "other")
        assert (run.begun, run.attempt, run.stalls, run.worker) == (True, 2, 1, "other")

    async def test_runs_of_a_thread_in_order(self, saver: BaseCheckpointSaver, runs: RunStore) -> None:
        """By priority, and then as they were accepted."""
        for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5)):
            await runs.start("t", request(name, priority=priority))
        assert await self.work(saver, runs) == ["b", "d", "a", "c"]

    async def test_a_run_that_is_due_later(self, saver: BaseCheckpointSaver, runs: RunStore, clock: Clock) -> None:
        """Its thread is busy, and not queued before the time has come."""
        await runs.start("t", request("a", due=clock.now + 10))
        thread = await self.thread_of(runs)
        assert (thread.status, thread.activation, thread.wake_at) == ("busy", "none", clock.now + 10)
        assert await runs.due() == () and not await runs.requeue(thread)
        clock.now += 10
        assert await runs.due() == (thread,)
        assert await runs.requeue(thread)
        assert await runs.due() == ()
        assert await self.work(saver, runs) == ["a"]

    async def test_listings(self, saver: BaseCheckpointSaver, runs: RunStore, clock: Clock) -> None:
        """Queued threads by priority and age; active ones with the owners of their leases; pages are bounded."""
        for number, priority in enumerate((0, 5, 0, 5)):
            await runs.start(f"t{number}", request(f"r{number}", priority=priority))
            clock.now += 1
        queued = await runs.queued()
        assert [thread.thread_id for thread in queued] == ["t1", "t3", "t0", "t2"]
        assert await runs.queued(limit=2) == queued[:2]
        assert await runs.active() == ()
        for number in (2, 0):
            await take_run(saver, 1, f"w{number}", at=f"t{number}")
            clock.now += 1
        active = await runs.active()
        assert [(each.thread.thread_id, each.owner) for each in active] == [("t2", here("w2")), ("t0", here("w0"))]
        assert active[0].expires_at == clock.now + 28
        assert [each.thread.thread_id for each in await runs.active(limit=1)] == ["t2"]
        assert [thread.thread_id for thread in await runs.queued()] == ["t1", "t3"]

    async def test_cancelling(self, saver: BaseCheckpointSaver, runs: RunStore) -> None:
        """A pending run ends at once; a running one has a request, and ends by its worker; an ended one is refused."""
        await runs.start("t", request("a"))
        lease, _ = await take_run(saver, 1)
        await runs.start("t", request("b"))
        pending = await runs.cancel("b", reason="user")
        assert (pending.status, pending.cancel_reason, pending.hidden) == ("cancelled", "user", False)
        running = await runs.cancel("a", action="rollback")
        assert (running.status, running.cancel) == ("running", "rollback")
        cancelled = RunOutcome(status="cancelled", rest="idle")
        assert not await runs.end(lease, "a", cancelled)  # its checkpoints are there still
        assert (await runs.get_run("a")) == running
        assert await runs.end(lease, "a", replace(cancelled, rolled_back=True))
        ended = await runs.get_run("a")
        assert ended is not None and (ended.status, ended.hidden) == ("cancelled", True)
        with pytest.raises(RunNotFoundError):
            await runs.cancel("a")
        with pytest.raises(RunOverError, match="has ended with status 'cancelled'"):
            await runs.cancel("b")

    async def test_an_idempotency_key(self, saver: BaseCheckpointSaver, runs: RunStore) -> None:
        """A key belongs to one run, on whatever thread it is used again and however often at the same time."""
        first = await runs.start("t", request("a", idempotency_key="k"))
        assert await runs.start("other", request("b", idempotency_key="k")) == first
        assert await runs.get_thread("other") is None
        assert await self.work(saver, runs) == ["a"]
        again = await runs.start("t", request("c", idempotency_key="k"))
        assert (again.run_id, again.status) == ("a", "success")

        started: list[RunRow] = []

        async def start(name: str) -> None:
            started.append(await runs.start("t", request(name, idempotency_key="many")))

        await in_threads(*[lambda name=f"n{number}": start(name) for number in range(6)])
        assert len({run.run_id for run in started}) == 1

    async def test_an_id_belongs_to_one_run(self, runs: RunStore) -> None:
        """P3: a run with the id of another one is refused, and nothing is stored of it."""
        first = await runs.start("t", request("a", priority=1))
        for thread_id in ("t", "other"):
            before = await runs.get_thread(thread_id)
            with pytest.raises(StorageError):
                await runs.start(thread_id, request("a"), metadata={"user": "ada"})
            assert await runs.get_thread(thread_id) == before
        assert await runs.get_run("a") == first

    @pytest.mark.parametrize("connections", [1, 2])
    async def test_no_run_is_left_behind(
        self, saver: BaseCheckpointSaver, open_saver: OpenSaverAt, clock: Clock, connections: int
    ) -> None:
        """P3: runs that are accepted while a worker ends the one before are taken, or their thread is queued: no
        transaction ends with a due run and no activation. Both write by one connection, or each by its own."""
        names = [f"r{number}" for number in range(40)]
        done: list[str] = []
        runs = saver.runs
        assert runs is not None

        async def start(some: list[str], store: RunStore) -> None:
            for name in some:
                await store.start("t", request(name))
                thread = await store.get_thread("t")
                assert thread is not None and (thread.activation != "none" or not thread.pending)

        async def work() -> None:
            while len(done) < len(names):
                thread = await runs.get_thread("t")
                if thread is not None and thread.activation == "queued":
                    done.extend(await self.work(saver, runs))

        async with open_saver(clock) as other:
            store = runs if connections == 1 else other.runs
            assert store is not None
            await in_threads(lambda: start(names[::2], store), lambda: start(names[1::2], store), work)
        assert sorted(done) == sorted(names)
        thread = await self.thread_of(runs)
        assert (thread.activation, thread.pending, thread.status, thread.runs) == ("none", 0, "idle", 40)
