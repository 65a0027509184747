"""What users see of accepted runs and of their threads."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from checkpoint_savers.runs.rows import OPEN, Multitask, RunError, RunRow, RunStatus, RunThreadRow, ThreadStatus


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run that a service has accepted, as it was stored at one moment.

    Attributes:
        run_id: its id; unique.
        thread_id: its thread.
        graph: the name of its graph, as the service knows it.
        status: what has become of it; see `RunStatus`.
        metadata: the metadata of `start`.
        multitask: what `start` was to do if the thread had open runs.
        priority: runs of a greater priority are taken first.
        due: when it may begin; None for at once.
        attempt: how many workers have taken it.
        stalls: how many have taken it since it last committed a superstep.
        worker: the id of the worker that has or had it; "" before.
        cancel_reason: who or what has cancelled it; "" without a cancellation. It may be open still: its worker is to
            stop it.
        error: why it failed; None if it did not.
        created_at: when it was accepted.
        started_at: when the first worker took it; None before.
        ended_at: when it ended; None before.
    """

    run_id: str
    thread_id: str
    graph: str
    status: RunStatus
    metadata: dict[str, Any]
    multitask: Multitask
    priority: int
    due: datetime | None
    attempt: int
    stalls: int
    worker: str
    cancel_reason: str
    error: RunError | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @classmethod
    def from_row(cls, row: RunRow) -> Run:
        """Return a stored run as users see it.

        Args:
            row: the run.
        """
        request = row.request
        return cls(
            run_id=row.run_id,
            thread_id=row.thread_id,
            graph=request.assistant,
            status=row.status,
            metadata=request.metadata,
            multitask=request.multitask,
            priority=request.priority,
            due=_time(request.due),
            attempt=row.attempt,
            stalls=row.stalls,
            worker=row.worker,
            cancel_reason=row.cancel_reason,
            error=row.error,
            created_at=datetime.fromtimestamp(row.created_at, UTC),
            started_at=_time(row.started_at),
            ended_at=_time(row.ended_at),
        )

    @property
    def is_open(self) -> bool:
        """True if the run had not ended: its status is `pending` or `running`."""
        return self.status in OPEN


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a run.

    Attributes:
        run: the run.
        values: the graph's output, as `ainvoke` returns it; None if the run has stored no state.
        interrupts: the questions that it asked and that are open.
    """

    run: Run
    values: Any
    interrupts: tuple[Any, ...]

    @property
    def status(self) -> RunStatus:
        """How the run ended."""
        return self.run.status

    @property
    def error(self) -> RunError | None:
        """Why the run failed; None if it did not."""
        return self.run.error


class ThreadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A thread of a service, as it was stored at one moment.

    Attributes:
        thread_id: the thread.
        status: see `ThreadStatus`.
        graph: the name of the graph of its first run.
        metadata: the thread's own metadata.
        values: its state when its last run ended, as JSON values, without values that are large; None before.
        interrupts: the open questions as JSON values, by task id.
        error: why its last run failed; None if it did not.
        created_at: when its first run was accepted.
        updated_at: when something of these last changed.
    """

    thread_id: str
    status: ThreadStatus
    graph: str
    metadata: dict[str, Any]
    values: dict[str, Any] | None
    interrupts: dict[str, Any]
    error: RunError | None
    created_at: datetime
    updated_at: datetime

    @classmethod
    def from_row(cls, row: RunThreadRow) -> ThreadInfo:
        """Return a stored thread as users see it.

        Args:
            row: the thread.
        """
        return cls(
            thread_id=row.thread_id,
            status=row.status,
            graph=row.assistant,
            metadata=row.metadata,
            values=row.values,
            interrupts=row.interrupts,
            error=row.error,
            created_at=datetime.fromtimestamp(row.created_at, UTC),
            updated_at=datetime.fromtimestamp(row.updated_at, UTC),
        )


def _time(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None
