"""The base class of all suites for run stores: fixtures, and short ways to make and execute runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from ...abc import BaseCheckpointSaver
from ...records import Lease
from ...runs.decisions import RunOutcome, TakenRun, WantedLease
from ...runs.port import RunStore
from ...runs.rows import RunRequest, RunThreadRow
from ..caches.conformance import Clock
from ..savers.suite import here

OpenSaverAt = Callable[[Clock], AbstractAsyncContextManager[BaseCheckpointSaver]]
"""Opens the saver under test, with a clock. Within one test, all savers that it opens must share one storage, unless
their runs end with the process; each test needs an empty one."""

SUCCESS = RunOutcome(status="success", rest="idle", values={"x": 1})


def request(run_id: str, **options: Any) -> RunRequest:
    """Make a request.

    Args:
        run_id: the run's id.
        options: further fields.
    """
    fields: dict[str, Any] = {"run_id": run_id, "assistant": "graph", "payload": b"payload", **options}
    return RunRequest(**fields)


async def take_run(saver: BaseCheckpointSaver, activation_no: int, owner: str = "worker", *, at: str = "t") -> TakenRun:
    """Take the next run of a queued thread, under a lease of this process for 30 seconds. There must be one.

    Args:
        saver: has a run store.
        activation_no: the thread's.
        owner: of the lease, and the worker's id.
        at: the thread.
    """
    assert saver.runs is not None
    now = saver.clock()
    taken = await saver.runs.acquire_and_take(at, activation_no, WantedLease(here(owner), now, now + 30), worker=owner)
    assert taken is not None
    return taken


class RunSuite:
    """The base class of all suites for run stores."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def open_saver(self) -> OpenSaverAt:
        """Return a function that opens a saver with a run store, as an async context manager. Override it."""
        raise NotImplementedError("override the fixture open_saver")

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    async def saver(self, open_saver: OpenSaverAt, clock: Clock) -> AsyncIterator[BaseCheckpointSaver]:
        async with open_saver(clock) as saver:
            yield saver

    @pytest.fixture
    def runs(self, saver: BaseCheckpointSaver) -> RunStore:
        assert saver.runs is not None
        return saver.runs

    async def acquire(self, saver: BaseCheckpointSaver, run_id: str = "worker", *, thread_id: str = "t") -> Lease:
        """Acquire the lease of a thread."""
        now = saver.clock()
        return await saver.acquire(thread_id, here(run_id), now=now, expires_at=now + 30)

    async def thread_of(self, runs: RunStore, thread_id: str = "t") -> RunThreadRow:
        """Return the row of a thread, which must exist."""
        row = await runs.get_thread(thread_id)
        assert row is not None
        return row

    async def work(self, saver: BaseCheckpointSaver, runs: RunStore) -> list[str]:
        """Take all runs of the thread that are due, and end them with success. Return their ids."""
        done: list[str] = []
        while (thread := await self.thread_of(runs)).activation == "queued":
            lease, run = await take_run(saver, thread.activation_no)
            done.append(run.run_id)
            await runs.begin(lease, run.run_id)
            await runs.end(lease, run.run_id, SUCCESS)
        return done
