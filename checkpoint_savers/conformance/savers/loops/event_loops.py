"""P13: the same on both event loops, from any thread of the process."""

from __future__ import annotations

import threading

from ....abc import BaseCheckpointSaver
from ....errors import ThreadBusyError
from ..suite import (
    LATER,
    OpenSaver,
    Suite,
    cid,
    commit,
    head_of,
    here,
    in_a_loop_each,
    in_threads,
    record,
    repeated,
    row,
    take,
)

THREADS = 20
STEPS = 10


class EventLoops(Suite):
    async def test_one_saver_in_twenty_threads(self, saver: BaseCheckpointSaver) -> None:
        """P13: one open saver serves twenty OS threads at once, each with its own event loop, asyncio or trio."""

        async def run(number: int) -> None:
            lease = await take(saver, f"t{number}", f"run-{number}")
            await saver.commit(lease, commit(row(1)))
            for step in range(2, STEPS + 1):
                await saver.record(lease, [record(step - 1, "a")], expires_at=LATER)
                await saver.commit(lease, commit(row(step, step - 1, base=1), head=step - 1))
            await saver.release(lease)

        await in_threads(*repeated(run, THREADS))
        for number in range(THREADS):
            chain = await saver.read(f"t{number}")
            assert chain is not None and [one.checkpoint_id for one in chain.rows] == [
                cid(step) for step in range(1, STEPS + 1)
            ]
        assert len(await saver.scan(None, None, limit=10_000)) == THREADS * STEPS

    async def test_twenty_threads_count_on_one_thread(self, saver: BaseCheckpointSaver) -> None:
        """P13, P6: twenty OS threads write one thread, each retrying until it holds the lease, and no write is lost."""
        # A writer that fails keeps its lease: without this flag, the others would retry forever.
        failed = threading.Event()

        async def run(number: int) -> None:
            while not failed.is_set():
                try:
                    lease = await take(saver, run=f"run-{number}")
                except ThreadBusyError:
                    continue
                try:
                    head = await head_of(saver)
                    last = 0 if head is None else int(head.split("-")[0])
                    successor = row(last + 1, last or None, base=1)
                    await saver.commit(lease, commit(successor, head=last or None, releases=True))
                except BaseException:
                    failed.set()
                    raise
                return

        await in_threads(*repeated(run, THREADS))
        assert await head_of(saver) == cid(THREADS)
        rows, _ = await saver.segment("t", "", cid(1))
        assert len(rows) == THREADS

    async def test_opened_on_one_loop_and_closed_on_another(self, open_saver: OpenSaver) -> None:
        """P13: a saver may be opened on one event loop, used on another and closed on a third, after the earlier ones
        have ended."""
        manager = open_saver()
        opened: list[BaseCheckpointSaver] = []

        async def enter() -> None:
            saver = await manager.__aenter__()
            lease = await saver.acquire("t", here("run-1"), now=0.0, expires_at=LATER)
            await saver.commit(lease, commit(row(1), releases=True))
            opened.append(saver)

        async def use() -> None:
            lease = await take(opened[0], run="run-2")
            await opened[0].commit(lease, commit(row(2, 1), head=1))

        async def leave() -> None:
            assert await head_of(opened[0]) == cid(2)
            await manager.__aexit__(None, None, None)

        await in_a_loop_each(enter, use, leave)
