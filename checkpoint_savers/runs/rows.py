"""The rows of a run store: accepted runs, and for each thread with such runs a row of its own.

A saver's `thread` row has the lease, and is changed by every commit. The rows here are changed when a run is accepted,
taken, cancelled or ended. Payloads (a run's input, command and config) are frames: bytes that a run store does not
interpret.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

RunStatus: TypeAlias = Literal["pending", "running", "success", "interrupted", "error", "timeout", "cancelled"]
"""What has become of a run. `pending` and `running` are open, the others are final:

| status | meaning |
| --- | --- |
| pending | accepted; no worker has it |
| running | a worker has it, or had it and died |
| success | nothing is left to run |
| interrupted | it asks a person, or stopped at a breakpoint |
| error | a node failed, a limit was reached, or its input is invalid |
| timeout | its time limit passed |
| cancelled | it was cancelled, and all its tasks have ended |
"""

OPEN: Final = frozenset[RunStatus](("pending", "running"))
"""The statuses of runs that have not ended."""

ThreadStatus: TypeAlias = Literal["idle", "busy", "interrupted", "error"]
"""`busy` while a run of the thread is open. Otherwise how the last one left the thread: `interrupted` if nodes are
still to run (a question, a breakpoint, a cancelled run), `error` after a failure or a timeout, and `idle`. A run whose
input or answer was refused leaves the thread as it was."""

Activation: TypeAlias = Literal["none", "queued", "active"]
"""Whether a worker is to work on a thread (`queued`), does so (`active`), or need not."""

Multitask: TypeAlias = Literal["enqueue", "reject", "interrupt", "rollback"]
"""What happens to a new run if its thread has open runs: it waits; it is refused; or the open runs are cancelled, with
`rollback` also their checkpoints deleted."""

CancelAction: TypeAlias = Literal["interrupt", "rollback"]
"""What is to be cancelled: the run, or the run and its checkpoints."""


class RunError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run failed.

    Attributes:
        type: the name of the error's class.
        message: its text.
        traceback: where it was raised, as Python prints it; of a long one the last 16 KiB. Empty if no code has raised
            it, or if the worker stores no tracebacks.
    """

    type: str
    message: str
    traceback: str = ""


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A run, as it is asked for.

    Attributes:
        run_id: its id, a UUID; unique.
        assistant: the name of the graph, as the service knows it.
        payload: input, command, config and options, as a frame.
        metadata: JSON values, by which runs are searched.
        multitask: what happens if the thread has open runs.
        priority: runs of a greater priority are taken first.
        due: when it may begin, in unix seconds; 0 for at once.
        time_limit: seconds that it may take; None for no limit.
        max_stalls: how often in a row it may be taken without a committed superstep.
        idempotency_key: a second request with this key and the same digest is the same run; None for no key.
        digest: a digest of what is asked for, which is compared if a key is used again.
    """

    run_id: str
    assistant: str
    payload: bytes
    metadata: dict[str, Any] = {}
    multitask: Multitask = "enqueue"
    priority: int = 0
    due: float = 0.0
    time_limit: float | None = None
    max_stalls: int = 5
    idempotency_key: str | None = None
    digest: bytes = b""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run, as it is stored.

    Attributes:
        request: what was asked for.
        thread_id: its thread.
        seq: its number in the thread, from 1, in the order in which runs were accepted.
        status: what has become of it.
        attempt: how many workers have taken it. It never becomes smaller.
        stalls: how many have taken it since it last committed a superstep, except those that gave it back in order.
        begun: True once its input or command is stored in the thread: it is resumed then, and not applied again.
        first_event: the cursor before its first event; "" until it has begun.
        last_event: a cursor after its last event, and before those of the thread's next run; "" until it has ended.
        worker: the worker that has or had it; "" before.
        cancel: the cancellation that was asked for; None for none. It remains after the end.
        cancel_reason: who or what has cancelled it; "" without a cancellation.
        hidden: True if it was rolled back. It is kept for its idempotency key only.
        error: why it failed; None if it did not.
        created_at, started_at, ended_at: unix seconds; 0 for a time that has not come.
        followed_until: a process without the run follows it until then, in unix seconds; 0 for never.
    """

    request: RunRequest
    thread_id: str
    seq: int
    status: RunStatus
    attempt: int = 0
    stalls: int = 0
    begun: bool = False
    first_event: str = ""
    last_event: str = ""
    worker: str = ""
    cancel: CancelAction | None = None
    cancel_reason: str = ""
    hidden: bool = False
    error: RunError | None = None
    created_at: float
    started_at: float = 0.0
    ended_at: float = 0.0
    followed_until: float = 0.0

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.request.run_id

    @property
    def is_open(self) -> bool:
        """True if the run has not ended."""
        return self.status in OPEN

    @property
    def order(self) -> tuple[int, int]:
        """The key by which the runs of a thread are sorted: the first one is taken first."""
        return -self.request.priority, self.seq


def in_order(runs: Sequence[RunRow]) -> tuple[RunRow, ...]:
    """Return the runs of a thread in the order in which they are taken.

    Args:
        runs: the runs.
    """
    return tuple(runs) if len(runs) < 2 else tuple(sorted(runs, key=lambda run: run.order))


def assistant_of(route: str) -> str:
    """Return the assistant of a route.

    Args:
        route: `assistant`, or `assistant@version`.
    """
    name, at, version = route.rpartition("@")
    return name if at and version.isdecimal() else route


class RunThreadRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a service knows of a thread.

    Attributes:
        thread_id: the thread.
        status: see `ThreadStatus`.
        rest: the status that it has when no run is open.
        assistant: of its first run; "" before.
        metadata: JSON values, by which threads are searched. They are the metadata of the saver's thread, and filled
            when the row is read: `decisions.Changes.metadata` and the saver's `update_thread` change them.
        values: the root graph's state when the last run ended, as JSON values; None if it is not kept.
        interrupts: the open questions, as JSON values, by task id.
        error: of the last run that ended; None if it did not fail.
        created_at, updated_at: unix seconds.
        activation: whether a worker works on it.
        activation_no: greater by one each time the thread is queued. A wake-up that carries an older number is stale.
        activation_at: when it was queued or taken, in unix seconds.
        epoch: of the lease of the activation that is active, or was the last.
        pending: the number of its pending runs.
        runs: the number of its runs, ended ones included.
        priority: the greatest priority of its due runs, while it is queued.
        route: while it is queued, which workers take it: those that have the `assistant` of the run that is taken next,
            or with `assistant@version` those that have this version of it. Else the last route that was known.
        stalls: the stalls of that run.
        wake_at: while no activation is queued or active, when one is due, in unix seconds; 0 for never.
    """

    thread_id: str
    status: ThreadStatus = "idle"
    rest: ThreadStatus = "idle"
    assistant: str = ""
    metadata: dict[str, Any] = {}
    values: dict[str, Any] | None = None
    interrupts: dict[str, Any] = {}
    error: RunError | None = None
    created_at: float
    updated_at: float
    activation: Activation = "none"
    activation_no: int = 0
    activation_at: float = 0.0
    epoch: int = 0
    pending: int = 0
    runs: int = 0
    priority: int = 0
    route: str = ""
    stalls: int = 0
    wake_at: float = 0.0
