"""P16: laws of what happens to the runs of a thread, over random histories of clients, workers, crashes and keepers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from checkpoint_savers.errors import IdempotencyConflictError, RunNotFoundError, RunOverError, ThreadBusyError
from checkpoint_savers.runs import decisions
from checkpoint_savers.runs.decisions import Changes, Found, RunOutcome, T
from checkpoint_savers.runs.rows import CancelAction, Multitask, RunRequest, RunRow, RunThreadRow

CREATED = 1000.0


class Rows:
    """The rows of one thread, and the epoch of its lease."""

    def __init__(self) -> None:
        self.thread: RunThreadRow | None = None
        self.runs: dict[str, RunRow] = {}
        self.now = CREATED
        self.epoch = 0

    def found(self, named: str | None = None, *, key: str | None = None) -> Found:
        of_key = [run for run in self.runs.values() if key is not None and run.request.idempotency_key == key]
        return Found(
            thread_id="t",
            thread=self.thread,
            open=tuple(sorted([run for run in self.runs.values() if run.is_open], key=lambda run: run.order)),
            named=self.runs.get(named or "") or (of_key[0] if of_key else None),
            now=self.now,
        )

    def apply(self, changes: Changes[T]) -> T:
        for run in changes.runs:
            before = self.runs.get(run.run_id)
            assert before is None or before.is_open, "the row of a run that has ended was changed"
            assert before is None or run.attempt >= before.attempt
            self.runs[run.run_id] = run
        if changes.thread is not None:
            self.thread = changes.thread
        return changes.result

    def start(self, id: str, multitask: Multitask = "enqueue", *, priority: int = 0, due: float = 0.0) -> RunRow:
        request = RunRequest(
            run_id=id, assistant="graph", payload=b"", multitask=multitask, priority=priority, due=due, max_stalls=3
        )
        return self.apply(decisions.start(self.found(), request))

    def acquire(self) -> int:
        self.epoch += 1
        return self.epoch

    def take(self) -> RunRow | None:
        assert self.thread is not None
        no = self.thread.activation_no
        return self.apply(decisions.take(self.found(), no, epoch=self.acquire(), worker="w"))


class Histories(RuleBasedStateMachine):
    """One thread. A worker that crashes leaves its run and its activation; the keeper queues the thread again."""

    @initialize()
    def begin(self) -> None:
        self.rows = Rows()
        self.accepted = 0
        self.running: RunRow | None = None  # of the worker that holds the lease
        self.late: list[tuple[str, int]] = []  # runs of workers that have lost the lease, with their epochs
        self.applied: Counter[str] = Counter()

    @rule(
        multitask=st.sampled_from(("enqueue", "reject", "interrupt", "rollback")),
        priority=st.integers(-1, 1),
        delay=st.sampled_from((0, 0, 5)),
    )
    def start(self, multitask: Multitask, priority: int, delay: int) -> None:
        id = f"run {self.accepted}"
        open_before = any(run.is_open for run in self.rows.runs.values())
        try:
            due = self.rows.now + delay if delay else 0.0
            run = self.rows.start(id, multitask, priority=priority, due=due)
        except ThreadBusyError:
            assert multitask == "reject" and open_before
            return
        assert run.status == "pending" and not (multitask == "reject" and open_before)
        self.accepted += 1
        assert run.seq == self.accepted

    @rule(
        index=st.integers(0, 9),
        action=st.sampled_from(("interrupt", "rollback")),
    )
    def cancel(self, index: int, action: CancelAction) -> None:
        id = f"run {index}"
        before = self.rows.runs.get(id)
        try:
            run = self.rows.apply(decisions.cancel(self.rows.found(id), id, action, "test"))
        except RunNotFoundError:
            assert before is None or before.hidden
        except RunOverError:
            assert before is not None and not before.is_open
        else:
            assert run.cancel is not None
            assert before is not None
            # A worker must stop a running run, and delete the checkpoints of one that has begun.
            needs_worker = before.status == "running" or (before.begun and run.cancel == "rollback")
            assert (run.status == "cancelled") != needs_worker
            assert run.cancel == "rollback" or "rollback" not in (action, before.cancel)

    @precondition(lambda self: self.running is None and self.rows.thread and self.rows.thread.activation == "queued")
    @rule()
    def take(self) -> None:
        self.running = self.rows.take()

    @precondition(lambda self: self.running is not None)
    @rule()
    def commit(self) -> None:
        assert self.running is not None
        run = self.rows.runs[self.running.run_id]
        if run.cancel is not None:
            return
        self.applied[run.run_id] += not run.begun
        self.rows.apply(decisions.begin(self.rows.found(run.run_id), epoch=self.rows.epoch))

    @precondition(lambda self: self.running is not None)
    @rule(status=st.sampled_from(("success", "interrupted", "error")))
    def end(self, status: str) -> None:
        assert self.running is not None
        run = self.rows.runs[self.running.run_id]
        if run.cancel is not None:
            back = run.cancel == "rollback"
            outcome = RunOutcome(status="cancelled", rest="idle" if back else "interrupted", rolled_back=back)
        else:
            assume(run.begun)
            outcome = {
                "success": RunOutcome(status="success", rest="idle"),
                "interrupted": RunOutcome(status="interrupted", rest="interrupted", interrupts={"task": ["?"]}),
                "error": RunOutcome(status="error", rest="error"),
            }[status]
        found = self.rows.found(run.run_id)
        self.rows.apply(decisions.end(found, outcome, epoch=self.rows.epoch))
        self.running = None
        assert self.rows.runs[run.run_id].status == outcome.status

    @precondition(lambda self: self.running is not None)
    @rule()
    def give_back(self) -> None:
        assert self.running is not None
        id, stalls = self.running.run_id, self.rows.runs[self.running.run_id].stalls
        self.rows.apply(decisions.give_back(self.rows.found(id), epoch=self.rows.epoch))
        assert self.rows.runs[id].stalls == max(0, stalls - 1)  # an attempt that a worker stops in order is no stall
        self.running = None

    @precondition(lambda self: self.running is not None)
    @rule()
    def crash(self) -> None:
        assert self.running is not None
        self.late.append((self.running.run_id, self.rows.epoch))
        self.running = None
        self.rows.acquire()

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def write_late(self, data: st.DataObject) -> None:
        """A worker that was stopped beyond its lease continues, and is refused."""
        id, epoch = data.draw(st.sampled_from(self.late))
        found = self.rows.found(id)
        for late in (
            lambda: decisions.begin(found, epoch=epoch),
            lambda: decisions.give_back(found, epoch=epoch),
            lambda: decisions.end(found, RunOutcome(status="success", rest="idle"), epoch=epoch),
        ):
            if self.rows.thread is not None and self.rows.thread.epoch == epoch:
                continue  # the run was not taken since: the store compares the lease itself
            with pytest.raises(ThreadBusyError):
                late()

    @precondition(lambda self: self.running is None and self.rows.thread is not None)
    @rule()
    def keep(self) -> None:
        """The keeper sees a thread whose worker is gone, whose wake-up is lost, or which is due."""
        assert self.rows.thread is not None
        seen = self.rows.thread
        outdated = replace(seen, activation_no=seen.activation_no - 1)
        assert not self.rows.apply(decisions.requeue(self.rows.found(), outdated))
        queued = self.rows.apply(decisions.requeue(self.rows.found(), seen))
        assert queued == (self.rows.thread.activation_no > seen.activation_no)
        if seen.activation == "active" and any(run.status == "running" for run in self.rows.runs.values()):
            assert queued

    @rule(seconds=st.sampled_from((1, 5)))
    def wait(self, seconds: int) -> None:
        self.rows.now += seconds

    @invariant()
    def rows_agree(self) -> None:
        thread = self.rows.thread
        open_runs = [run for run in self.rows.runs.values() if run.is_open]
        if thread is None:
            assert not open_runs
            return
        running = [run for run in open_runs if run.status == "running"]
        pending = [run for run in open_runs if run.status == "pending"]
        assert len(running) <= 1
        assert thread.pending == len(pending)
        assert (thread.status == "busy") == bool(open_runs)
        assert all(count == 1 for count in self.applied.values())
        if thread.activation == "none":
            assert not running
            ready = [run for run in pending if run.request.due <= self.rows.now or run.cancel is not None]
            assert not ready or 0 < thread.wake_at <= self.rows.now, "due work, and no activation"
            if pending and not ready:
                assert thread.wake_at == min(run.request.due for run in pending)

    def teardown(self) -> None:
        """Fair workers bring each accepted run to an end, in the order of priority and acceptance."""
        rows = self.rows
        if self.running is not None:
            self.crash()
        rows.now += 100
        order = []
        while rows.thread is not None and any(run.is_open for run in rows.runs.values()):
            if rows.thread.activation != "queued":
                assert rows.apply(decisions.requeue(rows.found(), rows.thread))
            run = rows.take()
            assert run is not None
            order.append(run.order)
            found = rows.found(run.run_id)
            refusal = decisions.refusal(run, rows.now)
            if run.cancel is not None:
                ending = RunOutcome(status="cancelled", rest="idle", rolled_back=True)
            elif refusal is not None:
                ending = RunOutcome(status=refusal[0], rest="error", error=refusal[1])
            else:
                self.applied[run.run_id] += not run.begun
                rows.apply(decisions.begin(found, epoch=rows.epoch))
                found, ending = rows.found(run.run_id), RunOutcome(status="success", rest="idle")
            rows.apply(decisions.end(found, ending, epoch=rows.epoch))
        assert order[1:] == sorted(order[1:])  # the first one may have been running already
        assert all(not run.is_open for run in rows.runs.values())
        assert len(rows.runs) == self.accepted
        if rows.thread is not None:
            assert (rows.thread.activation, rows.thread.pending) == ("none", 0)
        assert all(self.applied[run.run_id] == 1 for run in rows.runs.values() if run.status == "success")


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_the_same_key() -> None:
    """A key with the same digest is the same run, also when it has ended; with another digest it is refused."""
    rows = Rows()

    def start(id: str, digest: bytes) -> RunRow:
        request = RunRequest(run_id=id, assistant="graph", payload=b"", idempotency_key="k", digest=digest)
        return rows.apply(decisions.start(rows.found(key="k"), request))

    first = start("a", b"1")
    assert start("b", b"1") == first
    with pytest.raises(IdempotencyConflictError, match="belongs to run 'a'"):
        start("c", b"2")
    rows.apply(decisions.cancel(rows.found("a"), "a", "interrupt", "user"))
    assert start("d", b"1").status == "cancelled"
    assert list(rows.runs) == ["a"]


def test_a_run_that_kills_its_workers_ends() -> None:
    """After `max_stalls` attempts without a superstep a run is not executed again."""
    rows = Rows()
    rows.start("poison")
    for attempt in (1, 2, 3, 4):
        taken = rows.take()
        assert taken is not None and (taken.run_id, taken.attempt) == ("poison", attempt)
        refusal = decisions.refusal(taken, rows.now)
        assert (refusal is None) == (attempt < 4)
        assert refusal is None or (refusal[0], refusal[1].type) == ("error", "RunStalledError")
        assert rows.thread is not None
        assert rows.apply(decisions.requeue(rows.found(), rows.thread))
        assert rows.thread.stalls == attempt


def test_progress_resets_the_count_of_stalls() -> None:
    rows = Rows()
    rows.start("long")
    for _ in range(10):
        assert rows.take() is not None
        rows.apply(decisions.begin(rows.found("long"), epoch=rows.epoch))
        assert rows.thread is not None
        assert rows.apply(decisions.requeue(rows.found(), rows.thread))
    assert rows.runs["long"].attempt == 10


def test_a_greater_priority_wakes_a_worker_again() -> None:
    """The older wake-up is stale then."""
    rows = Rows()
    rows.start("low")
    rows.start("high", priority=5)
    assert rows.thread is not None and (rows.thread.activation_no, rows.thread.priority) == (2, 5)
    assert rows.apply(decisions.take(rows.found(), 1, epoch=1, worker="w")) is None
    taken = rows.take()
    assert taken is not None and taken.run_id == "high"


def test_a_time_limit_that_passes_without_a_worker() -> None:
    rows = Rows()
    request = RunRequest(run_id="a", assistant="graph", payload=b"", time_limit=10.0)
    rows.apply(decisions.start(rows.found(), request))
    assert rows.take() is not None
    rows.now += 11
    assert rows.thread is not None
    assert rows.apply(decisions.requeue(rows.found(), rows.thread))
    taken = rows.take()
    assert taken is not None
    refusal = decisions.refusal(taken, rows.now)
    assert refusal is not None and refusal[0] == "timeout"


def test_a_rollback_remains_one() -> None:
    """A run that is to be rolled back is not merely interrupted by a later request, and keeps the first reason."""
    rows = Rows()
    rows.start("a")
    assert rows.take() is not None
    requests: tuple[tuple[CancelAction, str], ...] = (("rollback", "first"), ("interrupt", "second"))
    for action, reason in requests:
        rows.apply(decisions.cancel(rows.found("a"), "a", action, reason))
    run = rows.runs["a"]
    assert (run.cancel, run.cancel_reason) == ("rollback", "first")


def test_a_route_is_kept_for_runs_of_its_assistant() -> None:
    """P16: a version is that of one assistant. It is known also for runs that are not due yet."""
    rows = Rows()

    def start(id: str, assistant: str, *, due: float = 0.0, priority: int = 0, route: str = "") -> str:
        request = RunRequest(run_id=id, assistant=assistant, payload=b"", due=due, priority=priority)
        rows.apply(decisions.start(rows.found(), request, route=route))
        assert rows.thread is not None
        return rows.thread.route

    start("a", "orders", due=CREATED + 5, route="orders@2")
    rows.now += 5
    assert rows.thread is not None and rows.thread.activation == "none"
    assert rows.apply(decisions.requeue(rows.found(), rows.thread)) and rows.thread.route == "orders@2"
    no = rows.thread.activation_no
    assert start("b", "mail", route="mail@7") == "orders@2"  # it is taken later
    assert rows.thread.activation_no == no  # nothing has changed for a worker
    assert start("c", "orders", route="orders@3") == "orders@3"
    assert rows.thread.activation_no == no + 1  # the wake-up for another route is stale
    assert start("d", "mail", priority=1) == "mail"
    assert start("e", "mail", priority=1, route="mail@7") == "mail@7"
    assert start("f", "orders", priority=2, route="mail@7") == "orders"
