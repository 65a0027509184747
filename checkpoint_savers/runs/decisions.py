"""What happens to the runs of one thread: functions of its rows, without a database and without a clock.

A run store finds the rows of a thread and locks them, calls one of these functions, and writes the changes, in one
transaction (`port.py`). So each rule is written once for all databases, and tested without any.

The rule that they keep: no transaction ends with a thread that has a due run and no activation. If the thread is
`active`, the worker finds the run when it ends the one before; both lock the thread's row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from ..errors import IdempotencyConflictError, RunNotFoundError, RunOverError, StorageError, ThreadBusyError
from ..records import Lease, Owner
from .rows import CancelAction, RunError, RunRequest, RunRow, RunStatus, RunThreadRow, ThreadStatus, assistant_of

T = TypeVar("T")

STALLED = RunError(
    type="RunStalledError", message="it was taken again and again without committing a superstep: its workers died"
)
LATE = RunError(type="TimeoutError", message="its time limit passed while no worker had it")


class Found(NamedTuple):
    """The rows of a thread, as a transaction has found and locked them.

    Attributes:
        thread_id: the thread.
        thread: its row; None if it has none.
        open: its open runs, in the order in which they are taken.
        named: the run with the id or the idempotency key that was asked for; None if there is none. It may be of
            another thread.
        now: the store's time, in unix seconds.
        lease: the lease that the transaction acquires; None if it acquires none, if a queued thread does not exist any
            more, or if another lease is live and the wanted one is not required.
    """

    thread_id: str
    thread: RunThreadRow | None
    open: tuple[RunRow, ...]
    named: RunRow | None
    now: float
    lease: Lease | None = None


class WantedLease(NamedTuple):
    """A lease that a transaction acquires. As the arguments of `SaverPort.acquire`.

    Attributes:
        owner: the run or worker that acquires it.
        now: the current time, in unix seconds.
        expires_at: when it expires, in unix seconds.
        required: True for a thread that was queued: `ThreadBusyError` is raised if another lease is live. False for a
            thread that may be new: if another lease is live, the decision is called without a lease.
    """

    owner: Owner
    now: float
    expires_at: float
    required: bool = True

    def lease_from(self, next_lease: Callable[[Owner, float], Lease]) -> Lease | None:
        """Return the lease to acquire; None if another one is live and this one is not required.

        Args:
            next_lease: makes the thread's next lease for an owner and a time. Raises `ThreadBusyError` if another lease
                is live.

        Raises:
            ThreadBusyError: another lease is live, and this one is required.
        """
        try:
            return next_lease(self.owner, self.now)
        except ThreadBusyError:
            if self.required:
                raise
            return None


class TakenRun(NamedTuple):
    """A run that a worker has taken.

    Attributes:
        lease: the thread's lease.
        run: the run, as `take` returns it.
    """

    lease: Lease
    run: RunRow


class StartedRun(NamedTuple):
    """A run that was accepted.

    Attributes:
        run: the run as it was accepted, with status `pending`; or the earlier run with the same idempotency key.
        taken: the run with its lease, if the same transaction has also taken it; else None.
    """

    run: RunRow
    taken: TakenRun | None


class Changes(NamedTuple, Generic[T]):
    """What a transaction writes.

    Attributes:
        result: what the caller gets.
        thread: the new row of the thread, without its metadata; None if it does not change.
        runs: new and changed runs.
        metadata: JSON values for the thread's metadata. Keys that the thread has already are not changed.
    """

    result: T
    thread: RunThreadRow | None = None
    runs: tuple[RunRow, ...] = ()
    metadata: Mapping[str, Any] = MappingProxyType({})


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended, and how it left its thread.

    Attributes:
        status: a final status.
        rest: the thread's status, if no other run is open.
        rolled_back: the run's checkpoints were deleted.
        error: why it failed; None if it did not.
        values: the root graph's state as JSON values; None to keep what is stored.
        interrupts: the open questions, as JSON values, by task id.
        first_event: the cursor before the run's first event, if the run begins and ends in one transaction; else "".
        last_event: a cursor after the run's last event.
        route: the thread's route for another run of the same assistant; "" to keep the one that is stored.
    """

    status: RunStatus
    rest: ThreadStatus
    rolled_back: bool = False
    error: RunError | None = None
    values: dict[str, Any] | None = None
    interrupts: dict[str, Any] = {}
    first_event: str = ""
    last_event: str = ""
    route: str = ""


def start(
    found: Found, request: RunRequest, *, metadata: dict[str, Any] | None = None, route: str = ""
) -> Changes[RunRow]:
    """Accept a run.

    Args:
        found: the thread's rows, with the run that has the request's idempotency key.
        request: the run.
        metadata: for the thread: keys that its metadata lacks are set.
        route: the thread's route for runs of the request's assistant; "" to keep the one that is stored.

    Returns:
        The run; the first one of the same key and digest, if there is one.

    Raises:
        IdempotencyConflictError: the key was used for another request.
        ThreadBusyError: the request's `multitask` is "reject", and the thread has open runs.
        StorageError: a run of the thread has the request's id.
    """
    same = found.named
    if same is not None:
        if same.request.digest != request.digest:
            raise IdempotencyConflictError(request.idempotency_key or "", same.run_id)
        return Changes(same)
    if any(run.run_id == request.run_id for run in found.open):  # of other runs, the store knows the ids
        raise StorageError(f"run {request.run_id!r}: a run with this id is stored already. Nothing was stored.")
    if found.open and request.multitask == "reject":
        raise ThreadBusyError(found.thread_id, holder=f"run {found.open[0].run_id}")
    thread = found.thread
    if thread is None:
        thread = RunThreadRow(thread_id=found.thread_id, created_at=found.now, updated_at=found.now)
    displaced: list[RunRow] = []
    if request.multitask == "interrupt" or request.multitask == "rollback":
        reason = f"multitask: {request.multitask}"
        displaced = [_cancelled(run, request.multitask, reason, found.now) for run in found.open]
    run = RunRow(
        request=request, thread_id=found.thread_id, seq=thread.runs + 1, status="pending", created_at=found.now
    )
    thread = replace(thread, runs=run.seq, assistant=thread.assistant or request.assistant)
    return _settled(found, thread, [*displaced, run], run, route)._replace(metadata=metadata or {})


def start_and_take(
    found: Found, request: RunRequest, *, metadata: dict[str, Any] | None = None, route: str = "", worker: str
) -> Changes[StartedRun]:
    """Accept a run as `start` does, and take it as `take` does if its thread has no other open run and a free lease.

    Args:
        found: the thread's rows, with the lease and the run that has the request's idempotency key.
        request: the run.
        metadata: for the thread: keys that its metadata lacks are set.
        route: the thread's route for runs of the request's assistant; "" to keep the one that is stored.
        worker: the worker that takes the run.

    Returns:
        The run. It is not taken, and no lease is acquired, if it is due later, if its idempotency key is that of an
        earlier run, or if its thread is busy.

    Raises:
        CheckpointError: as `start` does.
    """
    run, thread, runs, defaults = start(found, request, metadata=metadata, route=route)
    lease = found.lease
    if thread is not None and lease is not None and not found.open:
        after = found._replace(thread=thread, open=runs)
        taken = take(after, thread.activation_no, epoch=lease.epoch, worker=worker)
        if taken.result is not None:  # None if the run is due later
            return Changes(StartedRun(run, TakenRun(lease, taken.result)), taken.thread, taken.runs, defaults)
    return Changes(StartedRun(run, None), thread, runs, defaults)


def cancel(found: Found, run_id: str, action: CancelAction, reason: str) -> Changes[RunRow]:
    """Cancel a run: at once if no worker has it, and else by a request that its worker sees.

    Args:
        found: the thread's rows, with the run.
        run_id: the run.
        action: what to cancel.
        reason: who or what cancels it.

    Returns:
        The run: `cancelled`, or still open, with a request.

    Raises:
        RunNotFoundError: there is no such run.
        RunOverError: it has ended.
    """
    run = found.named
    if run is None or found.thread is None or run.hidden:
        raise RunNotFoundError(run_id)
    if not run.is_open:
        raise RunOverError(run_id, run.status)
    changed = _cancelled(run, action, reason, found.now)
    return _settled(found, found.thread, [changed], changed)


def follow(found: Found, seconds: float) -> Changes[None]:
    """Note that a process without the run follows it. Nothing changes if it is not running.

    Args:
        found: the thread's rows, with the run.
        seconds: how long the note is valid.
    """
    run = found.named
    if run is None or run.status != "running":
        return Changes(None)
    return Changes(None, runs=(replace(run, followed_until=max(run.followed_until, found.now + seconds)),))


def take(found: Found, activation_no: int, *, epoch: int, worker: str) -> Changes[RunRow | None]:
    """Begin to work on a queued thread, under its lease: take the first run that is due.

    Args:
        found: the thread's rows.
        activation_no: the number that the wake-up carries.
        epoch: of the lease.
        worker: the worker.

    Returns:
        The run, which is `running`. If it has a request to cancel it, it is to be ended and not run. None if the
        wake-up is stale or nothing is due: release the lease.
    """
    thread = found.thread
    if thread is None or thread.activation != "queued" or thread.activation_no != activation_no:
        return Changes(None)
    due = _due(found.open, found.now)
    if not due:
        return _settled(found, replace(thread, activation="none"), [], None)
    run = _first(due)
    taken = replace(
        run,
        status="running",
        attempt=run.attempt + 1,
        stalls=run.stalls + 1,
        worker=worker,
        started_at=run.started_at or found.now,
    )
    active = replace(thread, activation="active", activation_at=found.now, epoch=epoch)
    return _settled(found, active, [taken], taken)


def acquire_and_take(found: Found, activation_no: int, *, worker: str) -> Changes[TakenRun | None]:
    """Do as `take`, under the lease that the transaction acquires.

    Args:
        found: the thread's rows, with the lease.
        activation_no: the number that the wake-up carries.
        worker: the worker.

    Returns:
        The run and the lease; None if the wake-up is stale or nothing is due. The lease is not acquired then.
    """
    lease = found.lease
    if lease is None:
        return Changes(None)
    changes = take(found, activation_no, epoch=lease.epoch, worker=worker)
    run = changes.result
    return Changes(None if run is None else TakenRun(lease, run), changes.thread, changes.runs)


def refusal(run: RunRow, now: float) -> tuple[RunStatus, RunError] | None:
    """Return how a run ends that was taken and is not to be executed; None if it is to be executed.

    Args:
        run: the run, as `take` returned it.
        now: the store's time, in unix seconds.

    Returns:
        Its final status, and why.
    """
    if run.stalls > run.request.max_stalls:
        return "error", STALLED
    limit = run.request.time_limit
    return ("timeout", LATE) if limit is not None and now - run.started_at > limit else None


def begin(found: Found, *, epoch: int, first_event: str = "") -> Changes[None]:
    """Note that a run's input is stored in the thread, and that it has committed a superstep.

    Args:
        found: the thread's rows, with the run.
        epoch: of the lease.
        first_event: the cursor before the run's first event. Of the first attempt alone it is stored.

    Raises:
        ThreadBusyError: with `lost=True`: the run was taken under another lease since.
    """
    _, run = _held(found, epoch)
    # The thread's row stays as it is: a database need not change its indexes, in the midst of the run.
    return Changes(None, runs=(replace(run, begun=True, stalls=0, first_event=run.first_event or first_event),))


def end(found: Found, outcome: RunOutcome, *, epoch: int) -> Changes[bool]:
    """End a run. The thread is queued again if another run of it is due.

    Args:
        found: the thread's rows, with the run.
        outcome: how it ended.
        epoch: of the lease, which is to be released.

    Returns:
        False, and nothing changes, if the run was cancelled, and a rollback was asked for since: delete its checkpoints
        first.

    Raises:
        ThreadBusyError: with `lost=True`: the run was taken under another lease since.
    """
    thread, run = _held(found, epoch)
    hidden = outcome.status == "cancelled" and run.cancel == "rollback"
    if hidden and not outcome.rolled_back:
        return Changes(False)
    ended = _ended(run, outcome.status, found.now, hidden=hidden)
    ended = replace(
        ended,
        error=outcome.error,
        begun=run.begun or bool(outcome.first_event),
        stalls=0 if outcome.status == "success" else run.stalls,  # its only transaction may be the one that ends it
        first_event=run.first_event or outcome.first_event,
        last_event=outcome.last_event,
    )
    thread = replace(
        thread,
        rest=outcome.rest,
        error=None if outcome.error is None else replace(outcome.error, traceback=""),  # the run's row has it
        values=thread.values if outcome.values is None else outcome.values,
        interrupts=outcome.interrupts,
    )
    return _settled(found, replace(thread, activation="none"), [ended], True, outcome.route)


def give_back(found: Found, *, epoch: int, last_event: str = "", route: str = "") -> Changes[None]:
    """Return a run that was stopped between two supersteps, so that another worker resumes it.

    Args:
        found: the thread's rows, with the run.
        epoch: of the lease, which is to be released.
        last_event: a cursor after the run's last event so far.
        route: the thread's route for this run; "" to keep the one that is stored.

    Raises:
        ThreadBusyError: with `lost=True`: the run was taken under another lease since.
    """
    thread, run = _held(found, epoch)
    given = replace(run, status="pending", stalls=max(0, run.stalls - 1), last_event=last_event)
    rest: ThreadStatus = "interrupted" if run.begun else thread.rest
    return _settled(found, replace(thread, activation="none", rest=rest), [given], None, route)


def requeue(found: Found, seen: RunThreadRow, *, route: str = "") -> Changes[bool]:
    """Queue a thread again whose worker is gone, whose wake-up is lost, which has become due, or whose route is wrong.

    Args:
        found: the thread's rows.
        seen: the thread's row, as the caller saw it when it decided so.
        route: its route from now on; "" to keep the one that is stored.

    Returns:
        False if the thread has changed since, or if nothing of it is due.
    """
    thread = found.thread
    if thread is None or _activation_of(thread) != _activation_of(seen) or not _due(found.open, found.now):
        return Changes(False)
    return _settled(found, replace(thread, activation="none"), [], True, route)


def _activation_of(thread: RunThreadRow) -> tuple[Any, ...]:
    return thread.activation, thread.activation_no, thread.epoch


def _held(found: Found, epoch: int) -> tuple[RunThreadRow, RunRow]:
    """Return the thread and its running run, if they were taken under this lease."""
    thread, run = found.thread, found.named
    if thread is None or run is None or run.status != "running" or thread.epoch != epoch:
        raise ThreadBusyError(found.thread_id, lost=True)
    return thread, run


def _cancelled(run: RunRow, action: CancelAction, reason: str, now: float) -> RunRow:
    """Return a run as cancelled, or with a request if a worker must act: to stop it, or to delete its checkpoints."""
    # A rollback wins over an earlier request: it does all that the other one does.
    asked: CancelAction = "rollback" if run.cancel == "rollback" else action
    run = replace(run, cancel=asked, cancel_reason=run.cancel_reason or reason)
    if run.status == "running" or (run.begun and asked == "rollback"):
        return run
    return _ended(run, "cancelled", now, hidden=asked == "rollback")


def _ended(run: RunRow, status: RunStatus, now: float, *, hidden: bool) -> RunRow:
    return replace(run, status=status, ended_at=now, hidden=hidden)


def _due(runs: Iterable[RunRow], now: float) -> list[RunRow]:
    return [run for run in runs if run.status == "running" or run.request.due <= now]


def _open_after(found: Found, changed: Sequence[RunRow]) -> list[RunRow]:
    after = {run.run_id: run for run in (*found.open, *changed)}
    return [run for run in after.values() if run.is_open]


def _settled(found: Found, thread: RunThreadRow, changed: Sequence[RunRow], result: T, route: str = "") -> Changes[T]:
    """Return changes with what follows from them: the thread's status, its counts, and its activation."""
    runs = _open_after(found, changed)
    pending = [run for run in runs if run.status == "pending"]
    thread = replace(
        thread, status="busy" if runs else thread.rest, pending=len(pending), updated_at=found.now, wake_at=0.0
    )
    if thread.activation != "active":
        thread = _queued_if_due(thread, runs, found.now, route)
    return Changes(result, thread, tuple(changed))


def _queued_if_due(thread: RunThreadRow, runs: Sequence[RunRow], now: float, route: str) -> RunThreadRow:
    """Queue a thread that has due runs, again if they have become more urgent; else note when it will have one."""
    due = _due(runs, now)
    if not due:  # also of a queued thread, whose last due run was cancelled: the wake-up for it is stale
        wake_at = min((run.request.due for run in runs), default=0.0)
        return replace(thread, activation="none", route=route or thread.route, wake_at=wake_at)
    first, priority = _first(due), max(run.request.priority for run in due)
    # A decision reads no checkpoints: it does not know versions itself. A route of another assistant says nothing.
    known = (each for each in (route, thread.route) if assistant_of(each) == first.request.assistant)
    route = next(known, first.request.assistant)
    if thread.activation == "queued" and thread.priority >= priority and thread.route == route:
        return thread
    return replace(
        thread,
        activation="queued",
        activation_no=thread.activation_no + 1,
        activation_at=now,
        priority=priority,
        route=route,
        stalls=first.stalls,
    )


def _first(due: Iterable[RunRow]) -> RunRow:
    """Return the due run that is taken next: one that is running still, as its worker died in the midst of it; else one
    that has begun and was given back."""
    # However urgent another run is: its input would discard what the run that has begun has still to do.
    return min(due, key=lambda run: (run.status != "running", not run.begun, run.order))
