"""P6 for every verb that writes: under a lease that is no longer held, the verb changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from ...abc import BaseCheckpointSaver
from ...records import Lease, Owner
from .scenarios import WRITE_SCENARIOS, WriteScenario
from .suite import LATER, NOW, Suite, elsewhere, here, in_threads, offers, refused, stored, take

Loss = Callable[[BaseCheckpointSaver, Lease], Awaitable[object]]


async def taken_over(saver: BaseCheckpointSaver, lease: Lease) -> object:
    """Let another owner acquire the lease after its expiry."""
    return await saver.acquire(lease.thread_id, elsewhere("run-2"), now=LATER + 60, expires_at=LATER + 90)


async def taken_again(saver: BaseCheckpointSaver, lease: Lease) -> object:
    """Let the same owner acquire the lease again, under a new epoch."""
    return await saver.acquire(lease.thread_id, lease.owner, now=NOW, expires_at=LATER)


async def released(saver: BaseCheckpointSaver, lease: Lease) -> None:
    """Release the lease."""
    await saver.release(lease)


async def released_and_reacquired(saver: BaseCheckpointSaver, lease: Lease) -> object:
    """Release the lease, and let another run acquire it."""
    await saver.release(lease)
    return await take(saver, lease.thread_id, "run-2")


async def deleted(saver: BaseCheckpointSaver, lease: Lease) -> None:
    """Release the lease and delete the thread."""
    await saver.release(lease)
    await saver.adelete_thread(lease.thread_id)


async def recreated(saver: BaseCheckpointSaver, lease: Lease) -> object:
    """Delete the thread, and create one of the same name under a lease with the same epoch."""
    await deleted(saver, lease)
    new = await saver.acquire(lease.thread_id, elsewhere("run-2"), now=NOW, expires_at=LATER)
    assert new.epoch == lease.epoch, "the epoch alone does not distinguish the two leases"
    return new


LOSSES: tuple[Loss, ...] = (taken_over, taken_again, released, released_and_reacquired, deleted, recreated)
"""The ways to lose a lease. Each function's name serves as the id of the thread that it is used on."""


class Ownership(Suite):
    @pytest.mark.parametrize("scenario", WRITE_SCENARIOS, ids=lambda scenario: scenario.name)
    async def test_a_lost_lease_changes_nothing(self, saver: BaseCheckpointSaver, scenario: WriteScenario) -> None:
        """P6: under a lost lease every verb changes nothing, however the lease was lost and however often the verb is
        called: `release` returns, and the others raise."""
        for loss in LOSSES:
            thread = loss.__name__
            lease = await scenario.prepare(saver, thread)
            await loss(saver, lease)
            before = await stored(saver)
            for _ in range(2):
                if scenario.verb == "release":
                    await scenario.act(saver, lease)
                else:
                    error = await refused(scenario.act(saver, lease))
                    assert error.thread_id == thread
                assert await stored(saver) == before, thread
            now = await saver.acquire(thread, here("run-3"), now=LATER + 100, expires_at=LATER + 100)
            await saver.release(now)
            await saver.adelete_thread(thread)
        lease = await scenario.prepare(saver)
        before = await stored(saver)
        # The counter-check: under a live lease the same call changes the thread. Only `threads` shows leases, so that a
        # renewal or a release cannot be seen without it.
        await scenario.act(saver, lease)
        assert await stored(saver) != before or not offers(saver, "threads")

    @pytest.mark.parametrize("scenario", WRITE_SCENARIOS, ids=lambda scenario: scenario.name)
    async def test_a_lease_of_another_run_or_thread(self, saver: BaseCheckpointSaver, scenario: WriteScenario) -> None:
        """P6: a lease is valid only if its owner, its epoch and its thread all match."""
        lease = await scenario.prepare(saver)
        await scenario.prepare(saver, "other", "run-other")
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
            if scenario.verb == "release":
                await scenario.act(saver, forged)
            else:
                await refused(scenario.act(saver, forged))
            assert await stored(saver) == before
        await scenario.act(saver, lease)

    @pytest.mark.parametrize("scenario", WRITE_SCENARIOS, ids=lambda scenario: scenario.name)
    async def test_taken_over_at_that_moment(self, saver: BaseCheckpointSaver, scenario: WriteScenario) -> None:
        """P6: if a rival takes the thread over while a verb runs, the verb either completes or raises and changes
        nothing."""
        for turn in range(4):
            thread = f"t{turn}"
            lease = await scenario.prepare(saver, thread)
            before = await contents(saver, thread)
            errors: list[object] = []

            async def act(lease: Lease = lease, errors: list[object] = errors) -> None:
                try:
                    await scenario.act(saver, lease)
                except Exception as error:
                    errors.append(error)

            async def rival(lease: Lease = lease) -> None:
                await taken_over(saver, lease)

            works = [act, rival]
            await in_threads(*(works if turn % 2 else reversed(works)))
            after = await contents(saver, thread)
            if errors:
                assert [getattr(one, "lost", False) for one in errors] == [True], errors
                assert after == before
            elif scenario.name not in ("renew", "release"):
                assert after != before
            await refused(saver.renew(lease, expires_at=LATER + 60))


async def contents(saver: BaseCheckpointSaver, thread: str) -> object:
    """Read what a thread holds, without its lease."""
    headers = await saver.scan(thread, None)
    return (
        headers,
        [await saver.read(thread, one.ns, one.checkpoint_id) for one in headers],
        await saver.events(thread),
    )
