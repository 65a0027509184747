"""A run as it is observed. Where nobody observes, none of this is made: each place that tells asks one attribute."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from decimal import Decimal
from typing import Any, Literal, Protocol, TypeVar, cast

import anyio

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.errors import ThreadBusyError, annotate
from checkpoint_savers.records import CheckpointRow, Claim, Commit, EventRow, Owner, TaskRecord

from ..._core.superstep import names_of
from ..._core.task import Cancelled, Failed, Finished, NotStarted, Outcome, Paused, Task
from ...errors import GraphDrained, GraphInterrupt, ObserverWarning, ParentCommand
from ...types import RunStatus
from ..platform.environment import World
from .error_text import described
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

T = TypeVar("T")


class Ends(Protocol):
    """How a run has ended that did not fail."""

    @property
    def done(self) -> bool: ...

    @property
    def interrupts(self) -> Sequence[object]: ...


EndsT = TypeVar("EndsT", bound=Ends)


class Spends(Protocol):
    """What a call spends."""

    @property
    def run(self) -> Mapping[str, int | Decimal]: ...


class Observers:
    """Those who watch a call, and what they have failed with.

    Attributes:
        each: all of them, each once.
        world: its clock measures.
    """

    def __init__(self, each: tuple[Observer, ...], world: World, failures: dict[int, _Failure] | None = None) -> None:
        self.each = each
        self.world = world
        self._surrounding = [observer for observer in each if type(observer).around is not Observer.around]
        self._failures: dict[int, _Failure] = {} if failures is None else failures

    def and_also(self, each: tuple[Observer, ...]) -> Observers:
        """These and more, for a graph inside; whoever fails is told of with the call."""
        return self if each == self.each else Observers(each, self.world, self._failures)

    def tell(self, event: Event) -> None:
        for observer in self.each:
            try:
                observer.observe(event)
            except BaseException as error:
                self.failed(observer, f"on {type(event).__name__}", error)

    def around(self, started: AttemptStarted) -> list[_Entered]:
        """Enter what the observers want around an attempt."""
        entered: list[_Entered] = []
        for observer in self._surrounding:
            try:
                manager = observer.around(started)
                manager.__enter__()
            except BaseException as error:
                self.failed(observer, "in around()", error)
            else:
                entered.append(_Entered(self, observer, manager))
        return entered

    def failed(self, observer: Observer, where: str, error: BaseException) -> None:
        """An observer has raised: that is kept until the call ends. What ends the process goes on."""
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error
        known = self._failures.get(id(observer))
        if known is None:
            self._failures[id(observer)] = _Failure(observer, where, error)
        else:
            known.count += 1

    def warn(self, error: BaseException | None) -> None:
        """The call has ended: tell whose observers have failed.

        Args:
            error: what the call raises. Where warnings are errors, they become notes of it.
        """
        failures = list(self._failures.values())
        self._failures.clear()
        raised: ObserverWarning | None = None
        for failure in failures:
            try:
                warnings.warn(failure.warning(), stacklevel=2)
            except ObserverWarning as warning:
                if error is None:
                    warning.__cause__ = failure.error
                    error = raised = warning
                else:
                    annotate(error, str(warning))
        if raised is not None:
            raise raised


class _Failure:
    """What an observer has failed with first, and how often."""

    def __init__(self, observer: Observer, where: str, error: BaseException) -> None:
        self.error = error
        self.count = 1
        self._who = repr(observer)
        self._where = where

    def warning(self) -> ObserverWarning:
        kind, message = described(self.error)
        more = f", and failed {self.count - 1} times more" if self.count > 1 else ""
        return ObserverWarning(
            f"observer {self._who} raised {kind}: {message} {self._where}{more}. The run was not changed by that, and "
            "the observer may have missed something"
        )


class _Entered:
    """What one observer has put around an attempt."""

    __slots__ = ("_manager", "_observer", "_observers")

    def __init__(self, observers: Observers, observer: Observer, manager: AbstractContextManager[object]) -> None:
        self._observers = observers
        self._observer = observer
        self._manager = manager

    def leave(self, error: BaseException | None) -> None:
        try:  # whether it would suppress the error does not matter
            if error is None:
                self._manager.__exit__(None, None, None)
            else:
                self._manager.__exit__(type(error), error, error.__traceback__)
        except BaseException as second:
            if second is not error:
                self._observers.failed(self._observer, "in around()", second)


class Attempt:
    """An attempt that is under way.

    Attributes:
        started: as it was told.
    """

    __slots__ = ("_began", "_entered", "_observed", "started")

    def __init__(self, observed: Observed, started: AttemptStarted) -> None:
        self.started = started
        self._observed = observed
        self._began = observed.observers.world.monotonic()
        observed.observers.tell(started)
        self._entered = observed.observers.around(started)

    def end(self, outcome: Outcome | None) -> None:
        """It has ended, and all that it had started: leave what was entered around it, in the same context, and tell.

        Args:
            outcome: None when something is being raised instead.
        """
        error = _raised(outcome)
        while self._entered:
            self._entered.pop().leave(error)
        how: Literal["finished", "failed", "paused", "cancelled"] = "failed"
        if isinstance(outcome, Finished):
            how = "finished"
        elif isinstance(outcome, Paused):
            how = "paused"
        elif isinstance(outcome, NotStarted) or isinstance(error, (anyio.get_cancelled_exc_class(), GeneratorExit)):
            how, error = "cancelled", None
        observers = self._observed.observers
        seconds = observers.world.monotonic() - self._began
        observers.tell(
            AttemptEnded(run=self.started.run, started=self.started, outcome=how, error=error, seconds=seconds)
        )


def _raised(outcome: Outcome | None) -> BaseException | None:
    """What an attempt has raised; without an outcome, what is on its way through the code that asks."""
    if outcome is None:
        return sys.exc_info()[1]
    return outcome.error if isinstance(outcome, Failed) else None


class Observed:
    """One graph's run.

    Attributes:
        run: as it was told.
        superstep: that is under way; None between two.
        spending: what the call spends; None while nobody counts, and for a graph inside.
    """

    def __init__(self, observers: Observers, run: RunStarted) -> None:
        self.observers = observers
        self.run = run
        self.superstep: SuperstepStarted | None = None
        self.spending: Spends | None = None
        self._supersteps = 0
        self._superstep_began = 0.0

    async def over(self, work: Callable[[], Awaitable[EndsT]]) -> EndsT:
        """Run, and tell when it begins and how it ends; and at the end of the call, whose observers have failed."""
        monotonic = self.observers.world.monotonic
        began = monotonic()
        self.observers.tell(self.run)
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
            if self.superstep is not None:
                self._end_superstep("failed" if status == "failed" else "cancelled", ())
            self.observers.tell(
                RunEnded(
                    run=self.run,
                    status=status,
                    supersteps=self._supersteps,
                    seconds=monotonic() - began,
                    error=failure,
                    spent={} if self.spending is None else dict(self.spending.run),
                )
            )
            if self.run.around is None:
                self.observers.warn(raised)

    # ---- supersteps --------------------------------------------------------------------------------------------------

    def superstep_started(self, tasks: Sequence[Task]) -> None:
        """The tasks are about to run; those of the hidden start are no superstep."""
        if not tasks[0].node.hidden:
            self._supersteps += 1
            self.superstep = SuperstepStarted(run=self.run, step=tasks[0].step, nodes=names_of(tasks))
            self._superstep_began = self.observers.world.monotonic()
            self.observers.tell(self.superstep)

    def superstep_ended(self, status: Literal["done", "interrupted", "failed"], outcomes: Sequence[Outcome]) -> None:
        """What is to be stored of it has been handed to storage."""
        if self.superstep is not None:
            self._end_superstep(status, outcomes)

    def _end_superstep(
        self, status: Literal["done", "interrupted", "failed", "cancelled"], outcomes: Sequence[Outcome]
    ) -> None:
        started, self.superstep = self.superstep, None
        assert started is not None
        replayed = sum(isinstance(outcome, Finished) and outcome.replayed for outcome in outcomes)
        cached = sum(isinstance(outcome, Finished) and outcome.cached for outcome in outcomes)
        self.observers.tell(
            SuperstepEnded(
                run=self.run,
                started=started,
                status=status,
                finished=_count(outcomes, Finished) - replayed - cached,
                replayed=replayed,
                cached=cached,
                failed=_count(outcomes, Failed),
                paused=_count(outcomes, Paused),
                cancelled=_count(outcomes, Cancelled) + _count(outcomes, NotStarted),
                seconds=self.observers.world.monotonic() - self._superstep_began,
            )
        )

    # ---- tasks -------------------------------------------------------------------------------------------------------

    def attempt(self, task: Task, *, number: int, caller: Attempt | None, handles: bool, routes: bool) -> Attempt:
        """An attempt begins; in the context of its code."""
        return Attempt(
            self,
            AttemptStarted(
                run=self.run,
                superstep=self.superstep,
                node=task.node.name,
                task_id=task.id,
                number=number,
                caller=None if caller is None else caller.started,
                handles=handles,
                routes=routes,
            ),
        )

    def retried(self, task: Task, failed: Failed, number: int) -> None:
        """A failed attempt will be followed by another."""
        self.observers.tell(
            AttemptRetried(
                run=self.run, node=task.node.name, task_id=task.id, step=task.step, number=number, error=failed.error
            )
        )

    def handled(self, task: Task, error: BaseException, handler: str | None) -> None:
        """A failure does not fail the superstep."""
        self.observers.tell(
            FailureHandled(
                run=self.run, node=task.node.name, task_id=task.id, step=task.step, handler=handler, error=error
            )
        )

    # ---- streams -----------------------------------------------------------------------------------------------------

    def filled(self, mode: str, depth: int) -> None:
        """A part was put in a stream's queue, and so many wait now."""
        if depth:
            self.observers.tell(StreamFilled(run=self.run, mode=mode, depth=depth))


def _count(outcomes: Sequence[Outcome], kind: type[Outcome]) -> int:
    return sum(isinstance(outcome, kind) for outcome in outcomes)


def _failure_of(error: BaseException) -> tuple[BaseException | None, RunStatus]:
    """What a run failed with that has raised this, if it failed; and how it has ended."""
    if isinstance(error, ParentCommand):
        return None, "done"  # with commands for a graph around it
    if isinstance(error, GraphInterrupt):
        return None, "interrupted"
    if isinstance(error, GraphDrained):
        return error, "drained"
    if isinstance(error, (anyio.get_cancelled_exc_class(), GeneratorExit)):
        return None, "cancelled"
    return error, "failed"


class ObservedUpdate:
    """One edit of a thread."""

    def __init__(self, observers: Observers, run: UpdateStarted) -> None:
        self.observers = observers
        self.run = run

    async def over(self, work: Callable[[], Awaitable[T]]) -> T:
        """Edit, and tell when it begins and how it ends."""
        monotonic = self.observers.world.monotonic
        began = monotonic()
        self.observers.tell(self.run)
        failure: BaseException | None = None
        try:
            return await work()
        except BaseException as error:
            failure = error
            raise
        finally:
            self.observers.tell(UpdateEnded(run=self.run, error=failure, seconds=monotonic() - began))
            self.observers.warn(failure)


class _Measured:
    """A saver whose writes are measured. Everything else is the saver's own."""

    def __init__(self, saver: BaseCheckpointSaver, call: Observed | ObservedUpdate, *, waits: bool) -> None:
        self._saver = saver
        self._observers = call.observers
        self._run = call.run
        self._waits = waits
        self._waiting = False  # that has been told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._saver, name)

    async def claim(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Claim:
        try:
            return await self._saver.claim(thread_id, owner, now=now, expires_at=expires_at)
        except ThreadBusyError as error:
            if not self._waiting:
                self._waiting = True
                self._conflict("waiting" if self._waits else "rejected", error)
            raise

    async def commit(self, claim: Claim, commit: Commit) -> None:
        await self._stored(
            "commit",
            lambda: self._saver.commit(claim, commit),
            rows=commit.rows,
            records=commit.records,
            events=commit.events,
        )

    async def record(self, claim: Claim, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        await self._stored("record", lambda: self._saver.record(claim, records, expires_at=expires_at), records=records)

    async def _stored(
        self,
        kind: Literal["commit", "record"],
        write: Callable[[], Awaitable[None]],
        *,
        rows: Sequence[CheckpointRow] = (),
        records: Sequence[TaskRecord] = (),
        events: Sequence[EventRow] = (),
    ) -> None:
        monotonic = self._observers.world.monotonic
        began = monotonic()
        try:
            await write()
        except Exception as error:
            refused = CheckpointRefused(run=self._run, kind=kind, error=error, seconds=monotonic() - began)
            self._observers.tell(refused)
            if isinstance(error, ThreadBusyError):
                self._conflict("lost", error)
            raise
        written: list[CheckpointRow | TaskRecord] = [*rows, *records]
        self._observers.tell(
            CheckpointWritten(
                run=self._run,
                kind=kind,
                namespace=written[0].ns if written else "",
                step=rows[-1].step if rows else None,
                checkpoints=len(rows),
                records=len(records),
                events=len(events),
                size=sum([len(row.frame) for row in written]) + sum([len(row.frame) for row in events]),
                seconds=monotonic() - began,
            )
        )

    def _conflict(self, kind: Literal["rejected", "waiting", "lost"], error: ThreadBusyError) -> None:
        self._observers.tell(ConflictMet(run=self._run, kind=kind, holder=error.holder))


def measured(saver: BaseCheckpointSaver, call: Observed | ObservedUpdate, *, waits: bool) -> BaseCheckpointSaver:
    """The saver, telling the call's observers how long its writes take, how large they are, and who is in the way.

    It comes between a run and its storage, and not into either: whatever the run writes, in whichever mode, passes it.
    """
    return cast("BaseCheckpointSaver", _Measured(saver, call, waits=waits))
