"""Clauses about a run store and its saver: supersteps, metadata and deletions in the same transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from ...abc import BaseCheckpointSaver
from ...errors import CheckpointError, ThreadBusyError, ThreadNotFoundError
from ...records import Lease
from ...runs.decisions import Changes, Found
from ...runs.port import RunStore
from ...runs.queries import RunQuery, ThreadQuery
from ...runs.rows import RunThreadRow
from ...upkeep import without_runs
from ..caches.conformance import Clock
from ..savers.suite import cid, commit, everything, head_of, record, row
from .suite import SUCCESS, RunSuite, request, take_run


class Supersteps(RunSuite):
    async def begun(self, saver: BaseCheckpointSaver, runs: RunStore) -> Lease:
        """Start and take run "a" of thread "t". Return the lease."""
        await runs.start("t", request("a"))
        lease, _ = await take_run(saver, 1)
        return lease

    async def test_a_superstep_in_the_same_transaction(self, saver: BaseCheckpointSaver, runs: RunStore) -> None:
        """P3: the first superstep of a run is stored together with `begun`; a later one continues from it."""
        lease = await self.begun(saver, runs)
        step = commit(row(1), records=[record(1, "a")], metadata={"user": "ada"})
        await runs.begin(lease, "a", step)
        run = await runs.get_run("a")
        assert run is not None and run.begun
        chain = await saver.read("t")
        assert chain is not None and (chain.head, chain.records) == (cid(1), (record(1, "a"),))
        assert (await self.thread_of(runs)).metadata == {"user": "ada"}
        await saver.commit(lease, commit(row(2, 1, base=1), head=1))
        await runs.end(lease, "a", SUCCESS)
        assert await head_of(saver) == cid(2)

    async def test_a_superstep_that_is_refused(self, saver: BaseCheckpointSaver, runs: RunStore) -> None:
        """P3, P6: if the superstep cannot be stored, neither is the change of the run, and the other way round."""
        lease = await self.begun(saver, runs)
        await saver.commit(lease, commit(row(1)))
        before = await everything(saver), await runs.get_run("a"), await runs.get_thread("t")

        def refuse(found: Found) -> Changes[None]:
            raise ThreadBusyError("t")

        def describe(found: Found) -> Changes[None]:
            return Changes(None, metadata={"user": "ada"})

        attempts: tuple[tuple[Callable[[], Awaitable[object]], type[Exception]], ...] = (
            (lambda: runs.begin(lease, "a", commit(row(2, 1), head=7)), ThreadBusyError),
            (lambda: runs.begin(lease, "a", commit(row(2, 1), row(1), head=1)), CheckpointError),
            (lambda: runs.begin(lease, "a", commit(row(2, 1, metadata={"x": "\ud800"}), head=1)), ValueError),
            (lambda: runs.transact("t", refuse, lease=lease, commit=commit(row(2, 1), head=1)), ThreadBusyError),
            (lambda: runs.begin(lease, "other", commit(row(2, 1), head=1)), ThreadBusyError),
            (lambda: runs.transact("t", describe, lease=lease, commit=commit(row(2, 1), head=7)), ThreadBusyError),
            (lambda: runs.transact("t", refuse, commit=commit(row(2, 1), head=1)), ValueError),
        )
        for attempt, error in attempts:
            with pytest.raises(error):
                await attempt()
            assert (await everything(saver), await runs.get_run("a"), await runs.get_thread("t")) == before
        await saver.release(lease)
        with pytest.raises(ThreadBusyError) as caught:
            await runs.begin(lease, "a", commit(row(2, 1), head=1))
        assert caught.value.lost
        assert (await everything(saver), await runs.get_run("a"), await runs.get_thread("t")) == before

    async def test_a_superstep_that_releases(self, saver: BaseCheckpointSaver, runs: RunStore) -> None:
        """A superstep may release the lease, as any other. The run can be taken again."""
        lease = await self.begun(saver, runs)
        await runs.begin(lease, "a", commit(row(1), releases=True))
        with pytest.raises(ThreadBusyError):
            await runs.end(lease, "a", SUCCESS)
        await self.acquire(saver, "other")
        assert await head_of(saver) == cid(1)

    async def test_the_last_superstep_with_the_end(self, saver: BaseCheckpointSaver, runs: RunStore) -> None:
        """P3: a superstep and the decision that ends the work under the lease are one transaction."""
        lease = await self.begun(saver, runs)

        def decide(found: Found) -> Changes[str]:
            assert found.thread is not None
            return Changes("done", RunThreadRow(thread_id="t", created_at=found.now, updated_at=found.now))

        for releases in (False, True):
            number = await self.head_number(saver)
            step = commit(row(number + 1, number or None), head=number or None, releases=releases)
            assert await runs.transact("t", decide, lease=lease, commit=step) == "done"
            assert await head_of(saver) == cid(number + 1)
            lease = await self.acquire(saver, f"other-{releases}")  # the lease was released in the same transaction

    async def head_number(self, saver: BaseCheckpointSaver) -> int:
        """Return the number of the head's checkpoint id; 0 if there is none."""
        head = await head_of(saver)
        return 0 if head is None else int(head[:8])

    async def test_a_caller_that_is_cancelled(self, saver: BaseCheckpointSaver, runs: RunStore) -> None:
        """P3: a cancellation does not interrupt a transaction: when control returns, it is stored whole or not at all,
        the run together with its superstep."""
        lease = await self.begun(saver, runs)
        number = 0
        for turns in range(20):
            step = commit(row(number + 1, number or None), head=number or None)
            started = request(f"r{turns}")
            async with anyio.create_task_group() as group:
                group.start_soon(runs.begin, lease, "a", step)
                group.start_soon(runs.start, "t", started)
                for _ in range(turns // 2):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            seen, run = await head_of(saver), await runs.get_run(f"r{turns}")
            number = 0 if seen is None else int(seen[:8])
            begun = await runs.get_run("a")
            assert begun is not None and begun.begun is (number > 0)
            thread = await self.thread_of(runs)
            found = await runs.search_runs(RunQuery(thread_id="t"))
            assert (run is not None) is (run in found.items)
            assert (thread.runs, thread.pending) == (len(found.items), len(found.items) - 1)
        await runs.end(lease, "a", SUCCESS)

    async def test_metadata_of_a_thread(self, saver: BaseCheckpointSaver, runs: RunStore) -> None:
        """A thread's metadata have one place: `start` sets keys that it lacks, and the saver changes and lists them."""
        await runs.start("t", request("a"), metadata={"user": "ada", "n": 1})
        await runs.start("t", request("b"), metadata={"user": "bob", "plan": ["x", {"y": None}]})
        expected = {"user": "ada", "n": 1, "plan": ["x", {"y": None}]}
        assert (await self.thread_of(runs)).metadata == expected
        assert [thread.metadata for thread in await runs.queued()] == [expected]
        await saver.update_thread("t", {"user": "eve", "n": None})
        expected = {"user": "eve", "plan": ["x", {"y": None}]}
        assert (await self.thread_of(runs)).metadata == expected
        assert await self.work(saver, runs) == ["a", "b"]
        assert (await self.thread_of(runs)).metadata == expected

        def see(found: Found) -> Changes[None]:
            assert found.thread is not None and found.thread.metadata == expected
            return Changes(None, RunThreadRow(thread_id="t", metadata={"no": 1}, created_at=1.0, updated_at=1.0))

        await runs.transact("t", see)
        assert (await self.thread_of(runs)).metadata == expected, "the metadata of a written row are ignored"
        (header,) = await saver.threads()
        assert (header.thread_id, header.metadata, header.newest) == ("t", expected, None)

    async def test_changed_metadata_are_a_change_of_the_thread(
        self, saver: BaseCheckpointSaver, runs: RunStore, clock: Clock
    ) -> None:
        """`update_thread` of the saver sets the time of the last change of the thread's row, by which threads are
        sorted, also while a worker has a run of it. Nothing else of the row changes."""
        for name in ("t", "u"):
            await runs.start(name, request(name))
            clock.now += 1
        lease, _ = await take_run(saver, 1)
        await runs.begin(lease, "t", commit(row(1)))
        clock.now += 1
        before, other = await self.thread_of(runs), await self.thread_of(runs, "u")
        await saver.update_thread("t", {"user": "ada"})
        assert await self.thread_of(runs) == replace(before, metadata={"user": "ada"}, updated_at=clock.now)
        assert await self.thread_of(runs, "u") == other
        await runs.end(lease, "t", SUCCESS)
        clock.now += 1
        await saver.update_thread("u", {"user": "bob"})
        clock.now += 1
        assert [one.thread_id for one in (await runs.search_threads(ThreadQuery())).items] == ["u", "t"]
        await saver.update_thread("t", {"user": None})
        assert [one.thread_id for one in (await runs.search_threads(ThreadQuery())).items] == ["t", "u"]

    async def test_a_thread_without_checkpoints(self, saver: BaseCheckpointSaver, runs: RunStore) -> None:
        """A thread with a row in the run store is listed, and remains when a lease is released; another one without
        checkpoints is deleted then."""
        await runs.start("t", request("a"))
        (header,) = await saver.threads()
        assert (header.thread_id, header.epoch, header.owner, header.newest) == ("t", 0, None, None)
        lease = await self.acquire(saver)
        assert (lease.epoch, lease.newest) == (1, None)
        await saver.release(lease)
        (header,) = await saver.threads()
        assert (header.epoch, header.owner, header.head) == (1, None, None)
        assert await self.work(saver, runs) == ["a"]
        assert (await self.thread_of(runs)).epoch == 2
        await saver.update_thread("t", {"user": "ada"})
        assert await saver.read("t") is None and await saver.dump("t") is None

        await saver.release(await self.acquire(saver, thread_id="bare"))
        assert [one.thread_id for one in await saver.threads()] == ["t"]
        with pytest.raises(ThreadNotFoundError):
            await saver.update_thread("bare", {"user": "ada"})

    @pytest.mark.parametrize("verb", ["delete", "erase", "drop"])
    async def test_a_deleted_thread_has_no_runs(self, saver: BaseCheckpointSaver, runs: RunStore, verb: str) -> None:
        """Deleting a thread deletes its runs, their keys and its row. It may be made again."""
        await runs.start("t", request("a", idempotency_key="k"), metadata={"user": "ada"})
        await runs.start("other", request("b"))
        assert await self.work(saver, runs) == ["a"]
        await runs.start("t", request("c", due=saver.clock() + 5))
        if verb == "delete":
            await saver.adelete_thread("t")
        else:
            lease = await self.acquire(saver)
            await (saver.erase(lease) if verb == "erase" else saver.drop(lease))
        assert await runs.get_thread("t") is None
        assert [await runs.get_run(name) for name in ("a", "c")] == [None, None]
        assert await runs.get_run("b") is not None
        assert [one.thread_id for one in await saver.threads()] == ["other"]
        again = await runs.start("t", request("d", idempotency_key="k"))
        assert (again.run_id, again.seq) == ("d", 1)
        assert (await self.thread_of(runs)).metadata == {}
        assert await self.work(saver, runs) == ["d"]

    async def test_checkpoints_of_a_run_are_deleted(self, saver: BaseCheckpointSaver, runs: RunStore) -> None:
        """A run can be rolled back under the lease of its worker, and later: its thread and the runs remain, also if
        nothing else is stored of the thread."""
        for name in ("a", "b"):
            await runs.start("t", request(name))
        lease, _ = await take_run(saver, 1)
        await runs.begin(lease, "a", commit(row(1, metadata={"run_id": "a"})))
        await saver.commit(lease, commit(row(1, ns="child", metadata={"run_id": "a"})))
        assert await without_runs(saver, "t", {"other"}) is None
        change = await without_runs(saver, "t", {"a"})
        assert change is not None
        await saver.rewrite(lease, change)
        assert await saver.read("t") is None and await saver.scan("t", None) == ()
        await runs.end(lease, "a", SUCCESS)
        lease, _ = await take_run(saver, 2)
        await runs.begin(lease, "b", commit(row(2, metadata={"run_id": "b"})))
        await runs.end(lease, "b", SUCCESS)
        assert await head_of(saver) == cid(2)

        await saver.adelete_for_runs(["b"])
        assert await saver.scan("t", None) == ()
        assert [run.run_id for run in (await runs.search_runs(RunQuery(thread_id="t"))).items] == ["b", "a"]
        (header,) = await saver.threads()
        assert (header.newest, header.head, header.owner) == (cid(2), None, None)
