"""Clauses about waiting for changes."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from ...abc import BaseCheckpointSaver
from ...runs.changes import TOPICS, Topic
from ...runs.port import RunStore
from ..caches.conformance import Clock
from ..savers.suite import commit, in_threads, row
from .suite import SUCCESS, OpenSaverAt, RunSuite, request, take_run


class Waiting(RunSuite):
    async def test_a_change_is_noticed(self, saver: BaseCheckpointSaver, runs: RunStore) -> None:
        """`wait_for_change` returns at once at first, and then after a change; none is missed between two calls."""
        seen = await runs.wait_for_change()
        assert seen > 0
        await runs.start("t", request("a"))  # before the call
        with anyio.fail_after(30):
            later = await runs.wait_for_change(seen)
        assert later != seen
        found: list[int] = []
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(self.wait_for_pending, runs, 3, found)
            for name in ("b", "c"):
                await anyio.lowlevel.checkpoint()
                await runs.start("t", request(name))
        assert found == [3, 3, 3]
        await self.acquire(saver)
        with pytest.raises(TimeoutError), anyio.fail_after(0):  # a call that is cancelled leaves nothing
            while True:
                later = await runs.wait_for_change(later)

    async def wait_for_pending(self, runs: RunStore, number: int, found: list[int]) -> None:
        """Wait until the thread has as many pending runs, and add the number to a list."""
        seen = 0
        with anyio.fail_after(30):
            while True:
                seen = await runs.wait_for_change(seen)
                thread = await runs.get_thread("t")
                if thread is not None and thread.pending == number:
                    found.append(thread.pending)
                    return

    async def test_a_change_on_another_loop(self, runs: RunStore) -> None:
        """Waiting tasks of each event loop of the process are woken."""
        found: list[int] = []

        async def start() -> None:
            for name in ("a", "b"):
                await runs.start("t", request(name))

        await in_threads(*[lambda: self.wait_for_pending(runs, 2, found)] * 4, start)
        assert found == [2] * 4

    @pytest.mark.parametrize("verb", ["delete", "drop"])
    async def test_a_deletion_is_a_change(self, saver: BaseCheckpointSaver, runs: RunStore, verb: str) -> None:
        """A task that waits for a run of a deleted thread is woken."""
        await runs.start("t", request("a"))
        lease = None if verb == "delete" else await self.acquire(saver)
        seen = await runs.wait_for_change()
        await (saver.adelete_thread("t") if lease is None else saver.drop(lease))
        with anyio.fail_after(30):
            assert await runs.wait_for_change(seen) != seen
        assert await runs.get_run("a") is None

    async def test_a_change_by_another_saver(self, runs: RunStore, open_saver: OpenSaverAt, clock: Clock) -> None:
        """A change that another connection makes is noticed, too."""
        found: list[int] = []
        async with open_saver(clock) as other, anyio.create_task_group() as group:
            assert other.runs is not None
            group.start_soon(self.wait_for_pending, runs, 1, found)
            await anyio.lowlevel.checkpoint()
            await other.runs.start("t", request("a"))
        assert found == [1]

    async def test_changes_by_topic(self, saver: BaseCheckpointSaver, runs: RunStore) -> None:
        """A task that waits for one kind of change is not woken by the others, and misses none of its own."""
        seen = {topic: await runs.wait_for_change(0, topic) for topic in TOPICS}

        async def changed() -> set[Topic]:
            numbers = {topic: await runs.changes.wait(0, 0, topic) for topic in TOPICS}
            found: set[Topic] = {topic for topic in TOPICS if numbers[topic] != seen[topic]}
            seen.update(numbers)
            return found

        await changed()
        await runs.start("t", request("a"))
        assert "queue" in await changed()
        lease, _ = await take_run(saver, 1)
        assert not await changed() & {"queue", "cancel", "run"}
        await runs.begin(lease, "a", commit(row(1)))
        assert await changed() == {"run"}
        running = await runs.get_run("a")
        assert running is not None
        await runs.follow(running, 5.0)
        assert "cancel" in await changed(), "its worker looks at its row"
        followed = await runs.get_run("a")
        assert followed is not None
        assert followed.followed_until > running.followed_until
        await runs.follow(followed, 0.0)  # by another follower: the longest time counts
        assert await runs.get_run("a") == followed
        await changed()
        await runs.cancel("a")
        assert "cancel" in await changed()
        await runs.start("t", request("b"))
        assert "queue" not in await changed(), "a worker has the thread"
        runs.announce("t")
        assert not await changed(), "events of a thread wake only its followers"
        assert await runs.end(lease, "a", SUCCESS)
        assert await changed() >= {"queue", "run"}
        await saver.adelete_thread("t")
        assert await changed() == set(TOPICS)
