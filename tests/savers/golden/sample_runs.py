"""Accepted runs of every kind, which golden files of savers with a run store have, in threads of their own."""

from __future__ import annotations

from typing import Final

from checkpoint_savers import BaseCheckpointSaver
from checkpoint_savers.runs.decisions import Changes, Found
from checkpoint_savers.runs.rows import RunError, RunRequest, RunRow, RunThreadRow
from tests.savers.golden import sample

PLAIN: Final = RunRow(
    request=RunRequest(run_id="run-plain", assistant="graph", payload=b"\x00payload"),
    thread_id="runs",
    seq=2,
    status="pending",
    created_at=sample.NOW,
)
"""A run with the defaults of all options."""

FULL: Final = RunRow(
    request=RunRequest(
        run_id="run-full",
        assistant="gräph",
        payload=bytes(range(256)),
        metadata={"user": "ann", "n": [1, 1.5, True, None, {"deep": 2**70}]},
        multitask="interrupt",
        priority=-3,
        due=sample.NOW + 0.5,
        time_limit=12.5,
        max_stalls=2,
        idempotency_key="key",
        digest=b"\xff\x00",
    ),
    thread_id="runs",
    seq=1,
    status="error",
    attempt=3,
    stalls=2,
    begun=True,
    worker="worker",
    cancel="rollback",
    cancel_reason="user",
    hidden=True,
    error=RunError(type="ValueError", message="no 'x'"),
    created_at=sample.NOW - 1,
    started_at=sample.NOW - 0.5,
    ended_at=sample.NOW + 1e-6,
)
"""A run with a value of its own in each field."""

THREAD: Final = RunThreadRow(
    thread_id="runs",
    status="busy",
    rest="error",
    assistant="gräph",
    metadata={"owner": "ann"},
    values={"messages": ["ä", {"n": -(2**70)}]},
    interrupts={"task": [{"value": None}]},
    error=RunError(type="ValueError", message="no 'x'"),
    created_at=sample.NOW - 1,
    updated_at=sample.NOW + 2,
    activation="queued",
    activation_no=4,
    activation_at=sample.NOW + 3,
    epoch=2,
    pending=1,
    runs=2,
    priority=7,
    wake_at=0.25,
)


async def fill(saver: BaseCheckpointSaver) -> None:
    """Store them."""
    assert saver.runs is not None

    def write(found: Found) -> Changes[None]:
        return Changes(None, THREAD, (FULL, PLAIN), THREAD.metadata)

    await saver.runs.transact("runs", write)


async def check(saver: BaseCheckpointSaver) -> None:
    """Check that they are read as they were stored."""
    assert saver.runs is not None
    assert await saver.runs.get_thread("runs") == THREAD
    assert [await saver.runs.get_run(run.run_id) for run in (PLAIN, FULL)] == [PLAIN, FULL]
    assert await saver.runs.queued() == (THREAD,)
