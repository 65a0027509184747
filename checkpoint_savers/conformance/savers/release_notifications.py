"""Waiting for a lease to be released: the wait may return early or never, may be cancelled, and never fails."""

from __future__ import annotations

from typing import ClassVar

import anyio
import anyio.lowlevel

from ...abc import BaseCheckpointSaver
from ...errors import ThreadBusyError
from .loops.cancellation import TURNS
from .stored_bytes import HOSTILE
from .suite import (
    LATER,
    NOW,
    OpenSaver,
    Suite,
    commit,
    elsewhere,
    here,
    in_threads,
    repeated,
    row,
    stored,
    take,
    written,
)

POLL_INTERVAL = 0.02
"""Seconds after which a waiter tries again, whether it was notified or not."""


class ReleaseNotifications(Suite):
    needed: ClassVar[tuple[str, ...]] = ("wait_for_release",)

    async def test_it_can_be_left(self, saver: BaseCheckpointSaver) -> None:
        """P7: a wait may be cancelled at any moment, whether the thread is unknown, free or leased; it changes nothing,
        and the saver keeps working."""
        await written(saver, row(1), thread="free")
        await take(saver, "held")
        before = await stored(saver)
        for turns in range(TURNS):
            async with anyio.create_task_group() as group:
                for thread in ("unknown", "free", "held", "held"):
                    group.start_soon(saver.wait_for_release, thread)
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
        assert await stored(saver) == before
        await written(saver, row(2, 1), thread="new")

    async def test_whatever_happens_meanwhile_is_no_error(self, saver: BaseCheckpointSaver) -> None:
        """P6: a waiter returns or waits on while the thread is acquired, renewed, written, released, deleted and
        created again; it never gets an error."""

        async def listen() -> None:
            while True:
                await saver.wait_for_release("t")
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            group.start_soon(listen)
            for turn in range(1, 4):
                lease = await take(saver, run=f"run-{turn}")
                await saver.renew(lease, expires_at=LATER + 1)
                await saver.commit(lease, commit(row(1)))
                await saver.commit(lease, commit(row(2, 1), head=1, releases=turn % 2 == 0))
                await saver.release(lease)
                await saver.adelete_thread("t")
                for _ in range(TURNS):
                    await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        assert (await take(saver)).epoch == 1

    async def test_names_are_data(self, saver: BaseCheckpointSaver) -> None:
        """P11: callers can wait for a thread of any name."""
        async with anyio.create_task_group() as group:
            for thread in HOSTILE:
                group.start_soon(saver.wait_for_release, thread)
            for _ in range(TURNS):
                await anyio.lowlevel.checkpoint()
            await written(saver, row(1), thread=HOSTILE[0])
            group.cancel_scope.cancel()

    async def test_who_waits_gets_it(self, saver: BaseCheckpointSaver, open_saver: OpenSaver) -> None:
        """P6, P13: waiters on both event loops, through one saver and several, each acquire the thread in the end if
        they also poll."""
        lease = await saver.acquire("t", elsewhere("run-first"), now=NOW, expires_at=LATER)
        await saver.commit(lease, commit(row(1)))
        order: list[int] = []

        async def wait(mine: BaseCheckpointSaver, number: int) -> None:
            while True:
                try:
                    taken = await mine.acquire("t", here(f"run-{number}"), now=NOW, expires_at=LATER)
                except ThreadBusyError:
                    with anyio.move_on_after(POLL_INTERVAL):
                        await mine.wait_for_release("t")
                else:
                    break
            order.append(number)
            await mine.release(taken)

        async def run(number: int) -> None:
            if number == 0:
                await saver.release(lease)
            elif number % 3:
                await wait(saver, number)
            else:
                async with open_saver() as other:
                    await wait(other, number)

        await in_threads(*repeated(run, 8))
        assert sorted(order) == list(range(1, 8))
        assert (await take(saver)).epoch == 9
