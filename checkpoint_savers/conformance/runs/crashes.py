"""P3, P4 and P16 if the process is killed within a transaction of a run store."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import anyio.to_thread

from ...abc import BaseCheckpointSaver
from ...memory import InMemorySaver
from ...records import Lease
from ...runs.decisions import RunOutcome, WantedLease
from ...runs.port import RunStore
from ...runs.queries import RunQuery, ThreadQuery
from ..caches.conformance import Clock
from ..savers.crash_points import crash_points_in, run_until_killed, skip_unless_picklable
from ..savers.killed_process import CrashPoint, Leases, Step
from ..savers.suite import LATER, NOW, OpenSaver, commit, everything, here, record, row
from .suite import SUCCESS, OpenSaverAt, RunSuite, request


def script() -> list[Step]:
    """Return steps that call all methods which write, on two threads."""
    return [
        _step(lambda runs: runs.start("t", request("a", idempotency_key="k"), metadata={"user": "ada"})),
        _step(lambda runs: runs.start("t", request("b", priority=1, metadata={"n": 1}), metadata={"n": 1})),
        _take(2),
        _step(lambda runs: runs.start("u", request("c", due=NOW + 5))),
        _under(lambda runs, lease: runs.begin(lease, "b", commit(row(1), records=[record(1, "x")]))),
        _under(
            lambda runs, lease: runs.end(
                lease, "b", SUCCESS, commit(row(2, 1, base=1), head=1, records=[record(2, "x")])
            )
        ),
        _take(3),
        _step(lambda runs: runs.cancel("a", action="rollback")),
        _step(lambda runs: runs.start("t", request("d", multitask="interrupt"))),
        _under(
            lambda runs, lease: runs.begin(lease, "a", commit(row(3, 2, base=1), head=2, clears=[record(2, "x")])),
        ),
        _under(lambda runs, lease: runs.give_back(lease, "a")),
        _take(4),
        _under(lambda runs, lease: runs.end(lease, "a", RunOutcome(status="cancelled", rest="idle", rolled_back=True))),
        Step(lambda saver, leases: saver.adelete_thread("u")),
        _start_and_take("u", "e"),
        _step(lambda runs: runs.start("u", request("f"))),
        _under(lambda runs, lease: runs.end(lease, "e", SUCCESS, commit(row(1))), "u"),
        _start_and_take("v", "g", is_new=True),
        _step(lambda runs: runs.start("w", request("h"), metadata={"n": 3}, is_new=True)),
        _under(lambda runs, lease: runs.end(lease, "g", SUCCESS, commit(row(1))), "v"),
    ]


def _runs(saver: BaseCheckpointSaver) -> RunStore:
    assert saver.runs is not None
    return saver.runs


def _step(act: Callable[[RunStore], Awaitable[object]]) -> Step:
    async def run(saver: BaseCheckpointSaver, leases: Leases) -> None:
        await act(_runs(saver))

    return Step(run)


def _under(act: Callable[[RunStore, Lease], Awaitable[object]], thread_id: str = "t") -> Step:
    async def run(saver: BaseCheckpointSaver, leases: Leases) -> None:
        await act(_runs(saver), leases[thread_id])

    return Step(run)


def _take(activation_no: int) -> Step:
    async def run(saver: BaseCheckpointSaver, leases: Leases) -> None:
        wants = WantedLease(here("worker"), NOW, LATER)
        taken = await _runs(saver).acquire_and_take("t", activation_no, wants, worker="w")
        assert taken is not None
        leases["t"] = taken.lease

    return Step(run)


def _start_and_take(thread_id: str, run_id: str, *, is_new: bool = False) -> Step:
    async def run(saver: BaseCheckpointSaver, leases: Leases) -> None:
        wants = WantedLease(here("worker"), NOW, LATER)
        started = await _runs(saver).start_and_take(
            thread_id, request(run_id), wants, worker="w", metadata={"n": 2}, is_new=is_new
        )
        assert started.taken is not None
        leases[thread_id] = started.taken.lease

    return Step(run)


NAMES: Final = ("a", "b", "c", "d", "e", "f", "g", "h")


async def contents(saver: BaseCheckpointSaver) -> dict[str, object]:
    """Read all that is stored, except the process of a lease's owner."""
    runs = _runs(saver)
    return {
        "runs": [await runs.get_run(name) for name in NAMES],
        "found": await runs.search_runs(RunQuery()),
        "rows": await runs.search_threads(ThreadQuery()),
        # By id: of two threads that were queued at the same time, either may be listed first.
        "queued": sorted(await runs.queued(), key=lambda one: one.thread_id),
        "listed": (await runs.due(), [one.thread for one in await runs.active()]),
        "threads": [
            (one.thread_id, one.epoch, one.owner and one.owner.run_id, one.newest, one.metadata)
            for one in await saver.threads()
        ],
        "checkpoints": await everything(saver),
    }


async def expected_contents() -> list[dict[str, object]]:
    """Return what is stored before the first step, and after each step, if the process is not killed."""
    saver, leases = InMemorySaver(clock=Clock()), Leases()
    found = [await contents(saver)]
    for step in script():
        await step.act(saver, leases)
        found.append(await contents(saver))
    return found


class Crashes(RunSuite):
    """Clauses that open the saver in other processes. The opener must be one that pickle can send there.

    Attributes:
        crashes: the number of processes to kill on each event loop. Larger numbers find more defects.
    """

    crashes: int = int(os.environ.get("PREGEL_CRASHES", "4"))

    async def test_killed_in_the_midst_of_a_transaction(
        self, open_saver: OpenSaverAt, anyio_backend_name: str, clock: Clock
    ) -> None:
        """P3, P4: a process that was killed anywhere leaves the transactions that had returned, and the next one whole
        or not at all: the thread's row, its runs, its metadata, its lease and the superstep."""
        opener = partial(open_saver, clock)
        skip_unless_picklable(opener)
        expected = await expected_contents()
        steps, calls = await self._run(opener, anyio_backend_name, CrashPoint(0, None))
        assert steps == len(expected) - 1 and calls > 0
        await self._check(open_saver, clock, expected[steps:])
        for crash_point in crash_points_in(self.crashes, calls):
            done, _ = await self._run(opener, anyio_backend_name, crash_point)
            await self._check(open_saver, clock, expected[done : done + 2])

    async def _run(self, opener: OpenSaver, backend: str, crash_point: CrashPoint) -> tuple[int, int]:
        """Return the numbers of steps that a process completed and of calls that it counted."""
        return await anyio.to_thread.run_sync(run_until_killed, opener, backend, script, crash_point)

    async def _check(self, open_saver: OpenSaverAt, clock: Clock, expected: list[dict[str, object]]) -> None:
        """Check that the storage has one of these contents, then delete everything."""
        async with open_saver(clock) as saver:
            assert await contents(saver) in expected
            for thread in ("t", "u", "v", "w"):
                await saver.release(await saver.acquire(thread, here("next"), now=NOW + 100, expires_at=NOW + 130))
                await saver.adelete_thread(thread)
            assert (await contents(saver))["runs"] == [None] * len(NAMES)
