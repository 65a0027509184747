"""P6, for every verb that writes: under a claim that is not held any more it changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from ...abc import BaseCheckpointSaver
from ...records import Lease, Owner
from .scenarios import DEEDS, Deed
from .suite import LATER, NOW, Suite, elsewhere, here, in_threads, offers, refused, stored, take

Loss = Callable[[BaseCheckpointSaver, Lease], Awaitable[object]]


async def taken_over(saver: BaseCheckpointSaver, lease: Lease) -> object:
    return await saver.acquire(lease.thread_id, elsewhere("run-2"), now=LATER + 60, expires_at=LATER + 90)


async def taken_again(saver: BaseCheckpointSaver, lease: Lease) -> object:
    return await saver.acquire(lease.thread_id, lease.owner, now=NOW, expires_at=LATER)


async def given_up(saver: BaseCheckpointSaver, lease: Lease) -> None:
    await saver.release(lease)


async def passed_on(saver: BaseCheckpointSaver, lease: Lease) -> object:
    await saver.release(lease)
    return await take(saver, lease.thread_id, "run-2")


async def deleted(saver: BaseCheckpointSaver, lease: Lease) -> None:
    await saver.release(lease)
    await saver.adelete_thread(lease.thread_id)


async def made_anew(saver: BaseCheckpointSaver, lease: Lease) -> object:
    await deleted(saver, lease)
    new = await saver.acquire(lease.thread_id, elsewhere("run-2"), now=NOW, expires_at=LATER)
    assert new.epoch == lease.epoch, "the number alone does not tell them apart"
    return new


LOSSES: tuple[Loss, ...] = (taken_over, taken_again, given_up, passed_on, deleted, made_anew)


class Ownership(Suite):
    @pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.name)
    async def test_a_lost_lease_changes_nothing(self, saver: BaseCheckpointSaver, deed: Deed) -> None:
        """P6: whichever verb is called under it, and however it was lost; who gives it up is told nothing, who wants to
        write is told that it is lost; and it is so the second time, too."""
        for loss in LOSSES:
            thread = loss.__name__
            lease = await deed.prepare(saver, thread)
            await loss(saver, lease)
            before = await stored(saver)
            for _ in range(2):
                if deed.verb == "release":
                    await deed.act(saver, lease)
                else:
                    error = await refused(deed.act(saver, lease))
                    assert error.thread_id == thread
                assert await stored(saver) == before, thread
            now = await saver.acquire(thread, here("run-3"), now=LATER + 100, expires_at=LATER + 100)
            await saver.release(now)
            await saver.adelete_thread(thread)
        lease = await deed.prepare(saver)
        before = await stored(saver)
        await deed.act(saver, lease)  # it was the claim, and not the deed
        assert await stored(saver) != before or not offers(saver, "threads")  # which shows claims

    @pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.name)
    async def test_a_lease_of_another_run_or_thread(self, saver: BaseCheckpointSaver, deed: Deed) -> None:
        """P6: a claim is compared in all of its parts: its run, its number, its thread."""
        lease = await deed.prepare(saver)
        await deed.prepare(saver, "other", "run-other")
        before = await stored(saver)
        rivals: list[tuple[str, int, Owner]] = [
            ("t", lease.epoch, here("run-2")),
            ("t", lease.epoch + 1, lease.owner),
            ("t", lease.epoch - 1, lease.owner),
            ("other", lease.epoch, lease.owner),
            ("unknown", lease.epoch, lease.owner),
        ]
        for thread, epoch, owner in rivals:
            forged = Lease(thread_id=thread, epoch=epoch, owner=owner, newest=lease.newest)
            if deed.verb == "release":
                await deed.act(saver, forged)
            else:
                await refused(deed.act(saver, forged))
            assert await stored(saver) == before
        await deed.act(saver, lease)

    @pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.name)
    async def test_taken_over_at_that_moment(self, saver: BaseCheckpointSaver, deed: Deed) -> None:
        """P6: of a verb, and a rival who takes the thread at the same moment, one is first: what is stored is what the
        verb left, with the rival's claim, or what was there before it, and then the verb was told."""
        for turn in range(4):
            thread = f"t{turn}"
            lease = await deed.prepare(saver, thread)
            before = await contents(saver, thread)
            told: list[object] = []

            async def act(lease: Lease = lease, told: list[object] = told) -> None:
                try:
                    await deed.act(saver, lease)
                except Exception as error:
                    told.append(error)

            async def rival(lease: Lease = lease) -> None:
                await taken_over(saver, lease)

            works = [act, rival]
            await in_threads(*(works if turn % 2 else reversed(works)))
            after = await contents(saver, thread)
            if told:
                assert [getattr(one, "lost", False) for one in told] == [True], told
                assert after == before
            elif deed.name not in ("renew", "release"):
                assert after != before
            await refused(saver.renew(lease, expires_at=LATER + 60))


async def contents(saver: BaseCheckpointSaver, thread: str) -> object:
    """What a thread holds, whoever has it."""
    headers = await saver.scan(thread, None)
    return (
        headers,
        [await saver.read(thread, one.ns, one.checkpoint_id) for one in headers],
        await saver.events(thread),
    )
