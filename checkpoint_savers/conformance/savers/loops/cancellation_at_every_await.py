"""P7 at every await: each verb is cancelled at its first await, at its second, and so on to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

import anyio
import pytest

from ....abc import BaseCheckpointSaver
from ....memory import InMemorySaver
from ....records import Lease
from ..scenarios import CHANGE, WHOLE, WRITE_SCENARIOS, WriteScenario, fill
from ..suite import LATER, NOW, Suite, commit, elsewhere, event, here, needs, refused, row, stored, take, written

T = TypeVar("T")

MAX_AWAITS = 300
"""The limit of awaits within one verb. A verb that awaits more often than this waits in a loop."""


class CallAtAwait(Awaitable[T]):
    """Wrap an awaitable, and call a function right before its n-th await.

    Args:
        inner: the awaitable.
        number: n, counted from 1.
        call: the function.

    Attributes:
        waits: the number of awaits so far.
    """

    def __init__(self, inner: Awaitable[T], number: int, call: Callable[[], object]) -> None:
        self._inner = inner
        self._number = number
        self._call = call
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, T]:
        # Written out instead of `yield from`: the function must run after the awaitable has asked to wait, and before
        # the event loop gets the request.
        steps = self._inner.__await__()
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                wanted = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                value: T = end.value
                return value
            self.waits += 1
            if self.waits == self._number:
                self._call()
            try:
                answer, error = (yield wanted), None
            except BaseException as raised:
                answer, error = None, raised


async def cancelled_at(number: int, work: Callable[[], Coroutine[Any, Any, object]]) -> bool:
    """Run a verb in a scope that is cancelled at the verb's n-th await.

    Args:
        number: n, counted from 1; 0 to cancel before the verb starts.
        work: starts the verb.

    Returns:
        Whether the verb reached that await.
    """
    with anyio.CancelScope() as scope:
        if number == 0:
            scope.cancel()
            await work()
            return True
        at = CallAtAwait(work(), number, scope.cancel)
        await at
        return at.waits >= number
    return True


async def natively_cancelled_at(number: int, work: Callable[[], Coroutine[Any, Any, object]]) -> bool:
    """Run a verb in an asyncio task that is cancelled twice by `Task.cancel()`, at the verb's n-th await.

    Args:
        number: n, counted from 1; 0 to cancel before the verb starts.
        work: starts the verb.

    Returns:
        Whether the verb reached that await.
    """

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            task.cancel()
            # The second cancellation arrives while the verb may still be cleaning up after the first.
            asyncio.get_running_loop().call_soon(task.cancel)

        if number == 0:
            cancel()
        at = CallAtAwait(work(), number, cancel)
        waits.append(at)
        await at

    waits: list[CallAtAwait[object]] = []
    task = asyncio.ensure_future(run())  # noqa: TID251  # the clause needs a task that asyncio itself cancels
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return number == 0 or waits[0].waits >= number


async def outcome(scenario: WriteScenario, thread: str) -> tuple[object, object]:
    """Return what is stored before and after a scenario, in a saver that is not cancelled.

    Args:
        scenario: the scenario.
        thread: the thread's id.
    """
    memory = InMemorySaver()
    lease = await scenario.prepare(memory, thread)
    before = await contents(memory, thread)
    await scenario.act(memory, lease)
    return before, await contents(memory, thread)


async def contents(saver: BaseCheckpointSaver, thread: str) -> object:
    """Read what a thread holds, without its lease. Other threads may exist."""
    headers = await saver.scan(thread, None)
    return (
        [await saver.read(thread, one.ns, one.checkpoint_id) for one in headers],
        [await saver.segment(thread, one.ns, one.base_id) for one in headers],
        await saver.events(thread),
    )


class CancellationAtEveryAwait(Suite):
    @pytest.mark.parametrize("scenario", WRITE_SCENARIOS, ids=lambda scenario: scenario.name)
    @pytest.mark.parametrize("native", [False, True], ids=["a scope", "Task.cancel"])
    async def test_each_verb_is_cancelled_at_each_await(
        self, saver: BaseCheckpointSaver, anyio_backend_name: str, scenario: WriteScenario, native: bool
    ) -> None:
        """P7: a verb that is cancelled at any of its awaits has stored everything or nothing when control returns;
        nothing is stored later, and thread and saver keep working."""
        if native and anyio_backend_name != "asyncio":
            pytest.skip("trio has no cancellation of its own besides scopes")
        for number in range(MAX_AWAITS):
            thread = f"t{number}"
            before, after = await outcome(scenario, thread)
            lease = await scenario.prepare(saver, thread)
            assert await contents(saver, thread) == before
            cancel = natively_cancelled_at if native else cancelled_at
            waited = await cancel(number, partial(_done, scenario, saver, lease))
            found = await contents(saver, thread)
            assert found in (before, after)
            await written(saver, row(1), thread="later")  # an abandoned write would be stored before these later ones
            await saver.adelete_thread("later")
            assert await contents(saver, thread) == found
            if found == before and found != after:
                await scenario.act(saver, lease)
                assert await contents(saver, thread) == after
            await saver.release(lease)
            mine = await take(saver, thread, "run-2")
            await saver.release(mine)
            await saver.adelete_thread(thread)
            if not waited:
                assert found == after
                return
        raise AssertionError(f"the verb has not returned after {MAX_AWAITS} awaits")

    async def test_an_acquire_cancelled_at_each_await(self, saver: BaseCheckpointSaver) -> None:
        """P7, P6: if acquiring a lease is cancelled at any await, no lease is held when control returns."""
        for number in range(MAX_AWAITS):
            leases: list[Lease] = []

            async def acquire(leases: list[Lease] = leases) -> None:
                leases.append(await saver.acquire("t", elsewhere("run-1"), now=NOW, expires_at=LATER))

            waited = await cancelled_at(number, acquire)
            if leases:
                await saver.release(leases[0])
            mine = await saver.acquire("t", here("run-2"), now=NOW, expires_at=LATER)
            assert mine.epoch == 1, "the cancelled acquire left no trace"
            await saver.release(mine)
            if not waited:
                assert leases
                return
        raise AssertionError(f"the verb has not returned after {MAX_AWAITS} awaits")

    @pytest.mark.parametrize("native", [False, True], ids=["a scope", "Task.cancel"])
    async def test_a_shielded_lease_is_cancelled_at_each_await(
        self, saver: BaseCheckpointSaver, anyio_backend_name: str, native: bool
    ) -> None:
        """P6, P7: a saver with `lease_is_shielded` holds no lease after an `acquire` that raises, and none after
        `release`, at whichever await either is cancelled."""
        if not saver.lease_is_shielded:
            pytest.skip("the saver leaves the shield to its callers")
        if native and anyio_backend_name != "asyncio":
            pytest.skip("trio has no cancellation of its own besides scopes")
        cancel = natively_cancelled_at if native else cancelled_at
        for verb in ("acquire", "release"):
            for number in range(MAX_AWAITS):
                leases = [] if verb == "acquire" else [await take(saver)]

                async def call(leases: list[Lease] = leases, verb: str = verb) -> None:
                    if verb == "acquire":
                        leases.append(await saver.acquire("t", elsewhere("run-1"), now=NOW, expires_at=LATER))
                    else:
                        await saver.release(leases.pop())

                waited = await cancel(number, call)
                for lease in leases:
                    await saver.release(lease)
                mine = await saver.acquire("t", here("run-2"), now=NOW, expires_at=LATER)
                await saver.release(mine)
                if not waited:
                    break
            else:
                raise AssertionError(f"{verb} has not returned after {MAX_AWAITS} awaits")

    async def test_deleting_is_cancelled_at_each_await(self, saver: BaseCheckpointSaver) -> None:
        """P7: a thread is deleted whole or not at all, at whichever await the deletion is cancelled."""
        for number in range(MAX_AWAITS):
            await saver.release(await fill(saver))
            before = await stored(saver)
            waited = await cancelled_at(number, lambda: saver.adelete_thread("t"))
            found = await stored(saver)
            if found != before:
                assert await saver.read("t") is None and await saver.scan(None, None) == ()
                assert await saver.events("t") == ()
            await saver.adelete_thread("t")
            if not waited:
                assert found != before
                return
        raise AssertionError(f"the verb has not returned after {MAX_AWAITS} awaits")

    @needs("dump", "threads")
    async def test_each_reader_is_cancelled_at_each_await(self, saver: BaseCheckpointSaver) -> None:
        """P7: a read that is cancelled at any of its awaits changes nothing, and the saver keeps working."""
        lease = await fill(saver)
        before = await stored(saver)
        readers: tuple[Callable[[], Coroutine[Any, Any, object]], ...] = (
            lambda: saver.read("t"),
            lambda: saver.segment("t", "", WHOLE.rows[0].checkpoint_id),
            lambda: saver.scan("t", None, filter={"source": "loop"}),
            lambda: saver.events("t"),
            lambda: saver.threads(filter={"user": "Ada"}),
            lambda: saver.dump("t"),
        )
        for reader in readers:
            for number in range(MAX_AWAITS):
                if not await cancelled_at(number, reader):
                    break
            else:
                raise AssertionError(f"the verb has not returned after {MAX_AWAITS} awaits")
        assert await stored(saver) == before
        await saver.commit(lease, commit(events=[event(9)], releases=True))

    @needs("rewrite", "dump")
    async def test_many_at_once_and_some_are_cancelled(self, saver: BaseCheckpointSaver) -> None:
        """P7: callers that share a transaction do not share their cancellation: the work of the others is done."""
        for number in range(8):
            threads = [f"t{place}" for place in range(6)]
            leases = [await fill(saver, thread, f"run-{thread}") for thread in threads]
            ended: list[str] = []

            async def rewrite(lease: Lease, ended: list[str] = ended) -> None:
                await saver.rewrite(lease, CHANGE)
                ended.append(lease.thread_id)

            async with anyio.create_task_group() as group:
                for place, lease in enumerate(leases):
                    if place % 2:
                        group.start_soon(cancelled_at, number, partial(rewrite, lease))
                    else:
                        group.start_soon(rewrite, lease)
            assert set(ended) >= set(threads[::2])
            done = await saver.dump(threads[0])
            assert done is not None and done != WHOLE
            for thread, lease in zip(threads, leases, strict=True):
                assert await saver.dump(thread) in ((done,) if thread in ended else (done, WHOLE))
                await saver.release(lease)
                await refused(saver.renew(lease, expires_at=LATER))
                await saver.adelete_thread(thread)


async def _done(scenario: WriteScenario, saver: BaseCheckpointSaver, lease: Lease) -> None:
    """Run a scenario as a coroutine; `act` may return any awaitable."""
    await scenario.act(saver, lease)
