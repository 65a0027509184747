"""P12: the cost of storing the events of many concurrent tasks is proportional to their number."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.records import CheckpointId, CheckpointRow, Commit, Owner
from pregel_async import entrypoint, get_stream_writer, task
from pregel_async._runtime.streaming import event_recorder

pytestmark = pytest.mark.anyio


class Lines:
    """Counts the executed lines of a module, loops and comprehensions included."""

    def __init__(self, module: Any) -> None:
        self.count = 0
        self._file = inspect.getsourcefile(module)

    def __call__(self, frame: Any, event: str, arg: object) -> Any:
        if frame.f_code.co_filename != self._file:
            return None
        self.count += event == "line"
        return self


async def lines_of(calls: int) -> int:
    """Return how many lines of `event_recorder.py` run for the given number of called tasks, all of which have begun
    when the first one ends."""
    begun, count = anyio.Event(), 0

    @task
    async def works(number: int) -> int:
        nonlocal count
        get_stream_writer()(number)
        count += 1
        if count == calls:
            begun.set()
        await begun.wait()
        return number

    @entrypoint(checkpointer=InMemorySaver())
    async def flow(calls: int) -> int:
        return sum([await future for future in [works(number) for number in range(calls)]])

    lines, before = Lines(event_recorder), sys.gettrace()
    sys.settrace(lines)
    try:
        async for _ in flow.astream(calls, "thread", stream_mode="custom", keep_events=True):
            pass
    finally:
        sys.settrace(before)
    return lines.count


async def test_keeping_events_is_linear_in_open_tasks() -> None:
    """Closing the unit of one called task looks at the few buffered events, and at no other open unit."""
    calls = 4 * event_recorder.FLUSH_EVENTS
    assert await lines_of(calls) < calls * 4 * event_recorder.FLUSH_EVENTS


class CountedId(str):
    """An id that counts how often all such ids are hashed."""

    hashed = 0

    def __hash__(self) -> int:
        CountedId.hashed += 1
        return super().__hash__()


async def hashes_of(commits: int) -> int:
    saver = InMemorySaver()
    lease = await saver.acquire(
        "thread", Owner(host="here", boot="", pid=1, started="", run_id="run"), now=0.0, expires_at=1e12
    )
    CountedId.hashed = 0
    head: CheckpointId | None = None
    for number in range(commits):
        tip = CheckpointId(CountedId(f"{number:06}"))
        row = CheckpointRow(ns="", checkpoint_id=tip, parent_id=head, base_id=tip, step=0, metadata={}, frame=b"")
        await saver.commit(lease, Commit(rows=(row,), expected_head=head, expires_at=1e12))
        head = tip
    return CountedId.hashed


async def test_a_commit_in_memory_looks_at_no_other_checkpoint() -> None:
    assert await hashes_of(160) < 2.5 * await hashes_of(80)
