"""Report runs, attempts and edits of threads to observers. A run without observers has `NOT_OBSERVED` instead."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, TypeVar, cast

import anyio

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.errors import ThreadBusyError
from checkpoint_savers.records import CheckpointRow, Commit, EventRow, Lease, Owner, TaskRecord

from ..._core.superstep import names_of
from ..._core.task import Cancelled, Failed, Finished, NotStarted, Outcome, Paused, Task
from ...errors import GraphDrained, GraphInterrupt, ParentCommand
from ...types import RunStatus
from ..platform.environment import Environment
from .observation import AttemptObservation, Observation, RunOutcomeT
from .observer import (
    AttemptEnded,
    AttemptRetried,
    AttemptStarted,
    CheckpointRefused,
    CheckpointWritten,
    ConflictMet,
    Event,
    FailureHandled,
    Observer,
    RunEnded,
    RunStarted,
    StreamFilled,
    SuperstepEnded,
    SuperstepStarted,
    UpdateEnded,
    UpdateStarted,
)
from .observers import Observers

T = TypeVar("T")


class ObservedAttempt(AttemptObservation):
    """Reports one attempt.

    Attributes:
        started: the event that reported its start.
    """

    __slots__ = ("_began", "_entered", "_observed", "_started", "started")

    def __init__(self, observed: Observed, started: AttemptStarted) -> None:
        # Twice: the base class declares `started` as optional, and `end` needs an event.
        self.started: AttemptStarted | None = started
        self._started = started
        self._observed = observed
        self._began = observed.observers.environment.monotonic()
        observed.observers.notify(started)
        self._entered = observed.observers.around(started)

    def end(self, outcome: Outcome | None) -> None:
        error = _raised(outcome)
        # Exited in reverse order, like nested `with` statements, and in the context in which they were entered, because
        # a context variable's token is only valid there.
        while self._entered:
            self._entered.pop().exit(error)
        how: Literal["finished", "failed", "paused", "cancelled"] = "failed"
        if isinstance(outcome, Finished):
            how = "finished"
        elif isinstance(outcome, Paused):
            how = "paused"
        elif isinstance(outcome, NotStarted) or isinstance(error, (anyio.get_cancelled_exc_class(), GeneratorExit)):
            # GeneratorExit: the coroutine is closed while it is suspended. Neither is the node's failure.
            how, error = "cancelled", None
        observers = self._observed.observers
        seconds = observers.environment.monotonic() - self._began
        observers.notify(
            AttemptEnded(run=self._started.run, started=self._started, outcome=how, error=error, seconds=seconds)
        )


def _raised(outcome: Outcome | None) -> BaseException | None:
    """Return the exception of a failed attempt; without an outcome, the exception that is being handled."""
    # Without an outcome, `end` is called in a `finally` block, where only the interpreter knows the exception.
    if outcome is None:
        return sys.exc_info()[1]
    return outcome.error if isinstance(outcome, Failed) else None


class Observed(Observation):
    """Reports one graph's run.

    Attributes:
        run: the event that reported its start.
        superstep: the current superstep; None between two supersteps.
        spent: returns what the call has spent of its budgets; nothing for a subgraph.
    """

    is_on = True

    def __init__(
        self, observers: Observers, run: RunStarted, spent: Callable[[], Mapping[str, int | Decimal]] = dict
    ) -> None:
        self.observers = observers
        self.registered = observers.registered
        self.run = run
        self.runs = (run,)
        self.superstep: SuperstepStarted | None = None
        self.spent = spent
        self._supersteps = 0
        self._superstep_began = 0.0

    def with_observers(self, registered: tuple[Observer, ...], environment: Environment) -> Observers:
        return self.observers.extended_with(registered)

    def measure(self, saver: BaseCheckpointSaver, *, waits: bool) -> BaseCheckpointSaver:
        return measure_writes(saver, self, waits=waits)

    async def observe(self, work: Callable[[], Awaitable[RunOutcomeT]]) -> RunOutcomeT:
        """Run `work` and report its start and end. At the end of the call, warn of observers that have failed."""
        monotonic = self.observers.environment.monotonic
        began = monotonic()
        self.observers.notify(self.run)
        raised: BaseException | None = None
        failure: BaseException | None = None
        status: RunStatus = "done"
        try:
            ended = await work()
            if not ended.done:
                status = "interrupted" if ended.interrupts else "stopped"
            return ended
        except BaseException as error:
            raised = error
            failure, status = _failure_of(error)
            raise
        finally:
            # A cancelled or failed run leaves its superstep without an end: each start that observers get has an end.
            if self.superstep is not None:
                self._end_superstep("failed" if status == "failed" else "cancelled", ())
            self.observers.notify(
                RunEnded(
                    run=self.run,
                    status=status,
                    supersteps=self._supersteps,
                    seconds=monotonic() - began,
                    error=failure,
                    spent=dict(self.spent()),
                )
            )
            # A subgraph's run leaves the warnings to the call, which warns once for all graphs.
            if self.run.around is None:
                self.observers.warn(raised)

    def superstep_started(self, tasks: Sequence[Task]) -> None:
        """Report that the tasks are about to run. The hidden start is not reported as a superstep."""
        if not tasks[0].node.hidden:
            self._supersteps += 1
            self.superstep = SuperstepStarted(run=self.run, step=tasks[0].step, nodes=names_of(tasks))
            self._superstep_began = self.observers.environment.monotonic()
            self.observers.notify(self.superstep)

    def superstep_ended(self, status: Literal["done", "interrupted", "failed"], outcomes: Sequence[Outcome]) -> None:
        if self.superstep is not None:
            self._end_superstep(status, outcomes)

    def _end_superstep(
        self, status: Literal["done", "interrupted", "failed", "cancelled"], outcomes: Sequence[Outcome]
    ) -> None:
        started, self.superstep = self.superstep, None
        assert started is not None
        replayed = sum(isinstance(outcome, Finished) and outcome.replayed for outcome in outcomes)
        cached = sum(isinstance(outcome, Finished) and outcome.cached for outcome in outcomes)
        self.observers.notify(
            SuperstepEnded(
                run=self.run,
                started=started,
                status=status,
                # Tasks whose result was recorded or cached are `Finished` too, and did not run.
                finished=_count(outcomes, Finished) - replayed - cached,
                replayed=replayed,
                cached=cached,
                failed=_count(outcomes, Failed),
                paused=_count(outcomes, Paused),
                cancelled=_count(outcomes, Cancelled) + _count(outcomes, NotStarted),
                seconds=self.observers.environment.monotonic() - self._superstep_began,
            )
        )

    def attempt(
        self, task: Task, *, number: int, caller: AttemptStarted | None, handles: bool, routes: bool
    ) -> AttemptObservation:
        return ObservedAttempt(
            self,
            AttemptStarted(
                run=self.run,
                superstep=self.superstep,
                node=task.node.name,
                task_id=task.id,
                number=number,
                caller=caller,
                handles=handles,
                routes=routes,
            ),
        )

    def retried(self, task: Task, failed: Failed, number: int) -> None:
        self.observers.notify(
            AttemptRetried(
                run=self.run, node=task.node.name, task_id=task.id, step=task.step, number=number, error=failed.error
            )
        )

    def handled(self, task: Task, error: BaseException, handler: str | None) -> None:
        self.observers.notify(
            FailureHandled(
                run=self.run, node=task.node.name, task_id=task.id, step=task.step, handler=handler, error=error
            )
        )

    def report(self, event: Event) -> None:
        self.observers.notify(event)

    def part_queued(self, mode: str, depth: int) -> None:
        if depth:
            self.observers.notify(StreamFilled(run=self.run, mode=mode, depth=depth))


def _count(outcomes: Sequence[Outcome], kind: type[Outcome]) -> int:
    return sum(isinstance(outcome, kind) for outcome in outcomes)


def _failure_of(error: BaseException) -> tuple[BaseException | None, RunStatus]:
    """Return the failure (None for none) and the status of a run that has raised this exception."""
    if isinstance(error, ParentCommand):
        return None, "done"  # it returned commands for an outer graph
    if isinstance(error, GraphInterrupt):
        return None, "interrupted"
    if isinstance(error, GraphDrained):
        return error, "drained"
    if isinstance(error, (anyio.get_cancelled_exc_class(), GeneratorExit)):
        return None, "cancelled"
    return error, "failed"


class ObservedUpdate:
    """Reports one edit of a thread."""

    def __init__(self, observers: Observers, run: UpdateStarted) -> None:
        self.observers = observers
        self.run = run

    async def observe(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work`, the edit, and report its start and end."""
        monotonic = self.observers.environment.monotonic
        began = monotonic()
        self.observers.notify(self.run)
        failure: BaseException | None = None
        try:
            return await work()
        except BaseException as error:
            failure = error
            raise
        finally:
            self.observers.notify(UpdateEnded(run=self.run, error=failure, seconds=monotonic() - began))
            self.observers.warn(failure)


class _MeasuredSaver:
    """Wraps a saver to measure its writes."""

    # All else is delegated by `__getattr__`: the saver is the user's object, and may be of any class.

    def __init__(self, saver: BaseCheckpointSaver, call: Observed | ObservedUpdate, *, waits: bool) -> None:
        self._saver = saver
        self._observers = call.observers
        self._run = call.run
        self._waits = waits
        self._waiting = False  # the wait has been reported

    def __getattr__(self, name: str) -> Any:
        return getattr(self._saver, name)

    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        try:
            return await self._saver.acquire(thread_id, owner, now=now, expires_at=expires_at)
        except ThreadBusyError as error:
            # A run that waits tries again and again: the conflict is reported once.
            if not self._waiting:
                self._waiting = True
                self._conflict("waiting" if self._waits else "rejected", error)
            raise

    async def commit(self, lease: Lease, commit: Commit) -> None:
        await self._stored(
            "commit",
            lambda: self._saver.commit(lease, commit),
            rows=[row for change in (*commit.others, commit) for row in change.rows],
            records=commit.records,
            events=commit.events,
        )

    async def record(self, lease: Lease, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        await self._stored("record", lambda: self._saver.record(lease, records, expires_at=expires_at), records=records)

    async def _stored(
        self,
        kind: Literal["commit", "record"],
        write: Callable[[], Awaitable[None]],
        *,
        rows: Sequence[CheckpointRow] = (),
        records: Sequence[TaskRecord] = (),
        events: Sequence[EventRow] = (),
    ) -> None:
        monotonic = self._observers.environment.monotonic
        began = monotonic()
        try:
            await write()
        # Not BaseException: after a cancellation, the transaction may be stored, so that nothing was refused.
        except Exception as error:
            refused = CheckpointRefused(run=self._run, kind=kind, error=error, seconds=monotonic() - began)
            self._observers.notify(refused)
            # The saver refuses a write whose fencing token is outdated: another run has acquired the thread since this
            # run's lease expired.
            if isinstance(error, ThreadBusyError):
                self._conflict("lost", error)
            raise
        written: list[CheckpointRow | TaskRecord] = [*records, *rows]
        self._observers.notify(
            CheckpointWritten(
                run=self._run,
                kind=kind,
                # A transaction may consist of stream events alone, which belong to the called graph.
                namespace=written[-1].ns if written else "",
                step=rows[-1].step if rows else None,
                checkpoints=len(rows),
                records=len(records),
                events=len(events),
                size=sum([len(row.frame) for row in written]) + sum([len(row.frame) for row in events]),
                seconds=monotonic() - began,
            )
        )

    def _conflict(self, kind: Literal["rejected", "waiting", "lost"], error: ThreadBusyError) -> None:
        self._observers.notify(ConflictMet(run=self._run, kind=kind, holder=error.holder))


def measure_writes(saver: BaseCheckpointSaver, call: Observed | ObservedUpdate, *, waits: bool) -> BaseCheckpointSaver:
    """Return the saver, wrapped to report the duration and size of its writes, and conflicts over the thread's lease.

    All writes of a run pass the wrapper, whatever its durability, so that neither runs nor savers measure themselves.

    Args:
        saver: the saver of the run or edit.
        call: the run or edit, whose observers are notified.
        waits: the run waits if another run has the thread's lease.
    """
    return cast("BaseCheckpointSaver", _MeasuredSaver(saver, call, waits=waits))
