"""P13: many tasks on several event loops call all verbs of one saver at once, and no task disturbs another."""

from __future__ import annotations

import anyio

from ....abc import BaseCheckpointSaver
from ....errors import CheckpointError, StorageError, ThreadBusyError
from ....records import Lease
from ..scenarios import CHANGE, HEAD, WHOLE, fill, fill_commits
from ..suite import (
    LATER,
    MANY,
    OpenSaver,
    Suite,
    cid,
    commit,
    event,
    everything,
    in_threads,
    needs,
    record,
    repeated,
    row,
    stored,
    take,
)

LOOPS = 4
TASKS = 20


class Concurrency(Suite):
    async def test_twenty_tasks_on_each_of_four_loops(self, saver: BaseCheckpointSaver) -> None:
        """P13: twenty tasks on each of four event loops, asyncio and trio, each read their own thread as they wrote it,
        while the others write and list."""

        async def work(thread: str) -> None:
            lease = await take(saver, thread, f"run of {thread}")
            for step in fill_commits():
                await step(saver, lease)
            chain = await saver.read(thread)
            assert chain is not None and chain.head == cid(HEAD)
            assert chain.rows == tuple(WHOLE.rows[number - 1] for number in (1, 2, 3, 5, 6, 7))
            assert [one.thread_id for one in await saver.scan(thread, None)] == [thread] * len(WHOLE.rows)
            assert await saver.events(thread) == WHOLE.events
            await saver.record(lease, [record(HEAD, "z", 9, frame=thread.encode())], expires_at=LATER)
            await saver.commit(lease, commit(row(20, HEAD, base=6, frame=thread.encode()), head=HEAD, releases=True))
            rows, records = await saver.segment(thread, "", cid(6))
            assert rows[-1].frame == records[-1].frame == thread.encode()

        async def run(number: int) -> None:
            async with anyio.create_task_group() as group:
                for task in range(TASKS):
                    group.start_soon(work, f"t{number}-{task}")
                await saver.scan(None, None, filter={"source": "loop"})

        await in_threads(*repeated(run, LOOPS))
        headers = await saver.scan(None, None, limit=MANY)
        assert len(headers) == LOOPS * TASKS * (len(WHOLE.rows) + 1)

    @needs("rewrite", "load", "erase", "dump", "threads")
    async def test_upkeep_while_runs_write(self, saver: BaseCheckpointSaver) -> None:
        """P13: threads are dumped, loaded, rewritten and erased on four event loops at once, and each is as its own
        calls left it."""
        source = await fill(saver, "source")
        await saver.release(source)

        async def work(thread: str, number: int) -> None:
            dump = await saver.dump("source")
            assert dump is not None and dump == WHOLE
            lease = await take(saver, thread, f"run of {thread}")
            await saver.load(lease, dump)
            if number % 2:
                await saver.rewrite(lease, CHANGE)
                changed = await saver.dump(thread)
                assert changed is not None and changed.heads == {"": cid(3)}
            if number % 3 == 0:
                await saver.erase(lease)
                assert await saver.dump(thread) is None
            else:
                await saver.release(lease)

        async def run(loop: int) -> None:
            async with anyio.create_task_group() as group:
                for number in range(12):
                    group.start_soon(work, f"t{loop}-{number:02d}", number)
                for _ in range(3):
                    assert "source" in [one.thread_id for one in await saver.threads(limit=MANY)]

        await in_threads(*repeated(run, LOOPS))
        left = [f"t{loop}-{number:02d}" for loop in range(LOOPS) for number in range(12) if number % 3]
        assert [one.thread_id for one in await saver.threads(limit=MANY)] == ["source", *left]
        dumps = [await saver.dump(thread) for thread in left]
        assert [dump for dump in dumps if dump == WHOLE] == [WHOLE] * (LOOPS * 4)
        assert len({repr(dump) for dump in dumps}) == 2

    async def test_a_failure_is_its_callers_alone(self, saver: BaseCheckpointSaver) -> None:
        """P3: if some of several concurrent commits fail, the others are stored, and each caller gets its own error."""
        leases = [await take(saver, f"t{number:02d}", f"run-{number}") for number in range(TASKS)]
        for lease in leases:
            await saver.commit(lease, commit(row(1), events=[event(1)]))
        for lease in leases[::5]:
            await saver.acquire(lease.thread_id, lease.owner, now=0.0, expires_at=LATER)
        outcomes: dict[str, type[BaseException] | None] = {}

        async def work(number: int, lease: Lease) -> None:
            second = row(2, 1, base=1)
            change = {
                0: commit(second, head=1, events=[event(2)]),  # under a lease that its run has acquired again
                1: commit(second, head=1, events=[event(1)]),  # the key of a stored row of events
                2: commit(second, row(1), head=1, events=[event(2)]),  # the id of a stored checkpoint
                3: commit(second, head=1, events=[event(2)]),
                4: commit(row(2, 1, metadata={"note": "\ud800"}), head=1, events=[event(2)]),
            }[number % 5]
            try:
                await saver.commit(lease, change)
            except (CheckpointError, ValueError) as error:
                outcomes[lease.thread_id] = type(error)
            else:
                outcomes[lease.thread_id] = None

        async with anyio.create_task_group() as group:
            for number, lease in enumerate(leases):
                group.start_soon(work, number, lease)
        for number, lease in enumerate(leases):
            error = outcomes[lease.thread_id]
            headers = await saver.scan(lease.thread_id, None)
            events = await saver.events(lease.thread_id)
            if number % 5 == 3:
                assert error is None and len(headers) == len(events) == 2
                continue
            wanted = {0: ThreadBusyError, 1: StorageError, 2: StorageError, 4: ValueError}[number % 5]
            assert error is not None and issubclass(error, wanted), (number, error)
            assert len(headers) == len(events) == 1

    async def test_two_savers_on_one_storage(self, open_saver: OpenSaver) -> None:
        """P13: two savers on one storage, used on all event loops, read what the other wrote and do not block each
        other."""
        async with open_saver() as first, open_saver() as second:

            async def run(number: int) -> None:
                mine, other = (first, second) if number % 4 < 2 else (second, first)
                lease = await take(mine, f"t{number}", f"run-{number}")
                for step in range(1, 12):
                    await mine.commit(lease, commit(row(step, step - 1 or None, base=1), head=step - 1 or None))
                    chain = await other.read(f"t{number}")
                    assert chain is not None and len(chain.rows) == step
                await mine.release(lease)

            await in_threads(*repeated(run, 8))
            assert await everything(first) == await everything(second)

    async def test_fifty_readers_at_once(self, saver: BaseCheckpointSaver) -> None:
        """P13: fifty concurrent readers each get the complete result."""
        lease = await fill(saver)
        whole = await stored(saver)
        found: list[object] = []

        async def look() -> None:
            found.append(await stored(saver))

        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(look)
        assert found == [whole] * 50
        await saver.release(lease)
