"""Run marks: the first and the last superstep of a run are stored with the run's rows, without reading these rows.

If another process has changed the rows, the ordinary transaction reads them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest

from checkpoint_savers import PostgresSaver, SqliteSaver, ThreadBusyError
from checkpoint_savers.conformance.runs.suite import SUCCESS, request
from checkpoint_savers.conformance.savers.suite import LATER, NOW, commit, here, record, row
from checkpoint_savers.postgres.run_transactions import RunTransactions
from checkpoint_savers.records import Lease
from checkpoint_savers.runs.decisions import RunOutcome, WantedLease
from checkpoint_savers.sqlite import runs as sqlite_runs
from tests.helpers.postgres_tools import conninfo, made_schema

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

RunSaver: TypeAlias = SqliteSaver | PostgresSaver
OpenSaver: TypeAlias = Callable[[float], RunSaver]


@pytest.fixture(params=["sqlite", "postgres"])
def open_saver(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A function that makes a saver of one database, with a clock that stands at a time."""
    if request.param == "sqlite":
        yield lambda now: SqliteSaver(tmp_path / "runs.db", synchronous="NORMAL", clock=lambda: now)
        return
    with made_schema() as schema:
        yield lambda now: PostgresSaver(conninfo(), schema=schema, clock=lambda: now)


@pytest.fixture
async def saver(open_saver: OpenSaver) -> AsyncIterator[RunSaver]:
    async with open_saver(NOW) as saver:
        yield saver


@pytest.fixture
async def other(open_saver: OpenSaver, saver: object) -> AsyncIterator[RunSaver]:
    """The saver of another process: another connection, which shares nothing with the first one."""
    async with open_saver(NOW) as other:
        yield other


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the transactions that lock and read rows of runs."""
    found: list[int] = []
    execute, transact = RunTransactions._execute, sqlite_runs.transact

    async def counted(self: RunTransactions, connection: Any, attempts: Any) -> None:
        found.append(len(attempts))
        await execute(self, connection, attempts)

    def transacted(*args: Any) -> Any:
        found.append(1)
        return transact(*args)

    monkeypatch.setattr(RunTransactions, "_execute", counted)
    monkeypatch.setattr(sqlite_runs, "transact", transacted)
    return found


async def taken(saver: RunSaver, run_id: str = "a", thread_id: str = "t") -> Lease:
    """Start a run, and take it."""
    await saver.runs.start(thread_id, request(run_id))
    found = await saver.runs.acquire_and_take(thread_id, 1, WantedLease(here("worker"), NOW, LATER), worker="w")
    assert found is not None and found.run.run_id == run_id
    return found.lease


async def status_of(saver: RunSaver, run_id: str = "a") -> tuple[str, bool]:
    run = await saver.runs.get_run(run_id)
    assert run is not None
    return run.status, run.begun


@pytest.mark.parametrize("at_once", [False, True], ids=["taken", "taken at once"])
async def test_a_run_without_interference(
    saver: RunSaver, other: RunSaver, transactions: list[int], at_once: bool
) -> None:
    """P16: the first and the last superstep of a run are stored with its rows, without reading them."""
    if at_once:
        wanted = WantedLease(here("worker"), NOW, LATER)
        started = await saver.runs.start_and_take("t", request("a"), wanted, worker="w")
        assert started.taken is not None
        lease = started.taken.lease
    else:
        lease = await taken(saver)
    del transactions[:]
    await saver.runs.begin(lease, "a", commit(row(1)), first_event="first")
    assert await status_of(other) == ("running", True)
    await saver.commit(lease, commit(row(2, 1), head=1))
    assert await saver.runs.end(lease, "a", SUCCESS, commit(row(3, 2), head=2))
    assert transactions == []
    run, thread = await other.runs.get_run("a"), await other.runs.get_thread("t")
    assert run is not None and thread is not None
    assert (run.status, run.begun, run.first_event, run.stalls) == ("success", True, "first", 0)
    assert (thread.status, thread.activation, thread.values) == ("idle", "none", {"x": 1})
    (header,) = await other.threads()
    assert header.owner is None and header.newest == row(3).checkpoint_id
    assert saver._held_leases == {}


async def test_a_run_that_pauses(saver: RunSaver, other: RunSaver, transactions: list[int]) -> None:
    """P16: a run that pauses at a question ends with the record of the question, and its lease is released."""
    lease = await taken(saver)
    await saver.runs.begin(lease, "a", commit(row(1)))
    del transactions[:]
    paused = RunOutcome(status="interrupted", rest="interrupted", interrupts={"a": [1]})
    assert await saver.runs.end(lease, "a", paused, commit(records=[record(1, "a")], head=1))
    assert transactions == []
    chain, thread = await other.read("t"), await other.runs.get_thread("t")
    assert chain is not None and len(chain.records) == 1
    assert thread is not None and (thread.status, thread.interrupts) == ("interrupted", {"a": [1]})
    (header,) = await other.threads()
    assert header.owner is None


async def test_rows_that_were_changed(saver: RunSaver, other: RunSaver, transactions: list[int]) -> None:
    """P16: a request to cancel, a follower and another run of the thread, which come while the run is executed, are
    neither overwritten nor missed."""
    lease = await taken(saver)
    await other.runs.cancel("a", action="rollback")
    del transactions[:]
    await saver.runs.begin(lease, "a", commit(row(1)))
    run = await other.runs.get_run("a")
    assert run is not None and run.begun and run.cancel == "rollback"
    await other.runs.follow(run, 5.0)
    await other.runs.start("t", request("b"))
    assert transactions == [1, 1, 1]
    cancelled = RunOutcome(status="cancelled", rest="idle")
    assert not await saver.runs.end(lease, "a", cancelled), "its checkpoints are to be deleted first"
    assert await saver.runs.end(lease, "a", SUCCESS, commit(row(2, 1), head=1))
    run, thread = await other.runs.get_run("a"), await other.runs.get_thread("t")
    assert run is not None and thread is not None
    assert run.status == "success" and run.cancel == "rollback" and run.followed_until > NOW
    assert (thread.activation, thread.activation_no, thread.pending) == ("queued", 2, 1)


async def test_a_cancellation_before_the_end(saver: RunSaver, other: RunSaver, transactions: list[int]) -> None:
    """P16: a run that is cancelled by another process between its first and its last superstep ends with the
    request."""
    lease = await taken(saver)
    await saver.runs.begin(lease, "a", commit(row(1)))
    await other.runs.cancel("a", reason="them")
    del transactions[:]
    assert await saver.runs.end(lease, "a", SUCCESS, commit(row(2, 1), head=1))
    assert transactions == [1]
    run = await other.runs.get_run("a")
    assert run is not None and (run.status, run.cancel, run.cancel_reason) == ("success", "interrupt", "them")
    (header,) = await other.threads()
    assert header.owner is None and header.newest == row(2).checkpoint_id


async def test_another_run_of_the_thread(saver: RunSaver, other: RunSaver, transactions: list[int]) -> None:
    """P16: a run that is accepted while the one before is executed queues the thread when that ends."""
    lease = await taken(saver)
    await saver.runs.begin(lease, "a", commit(row(1)))
    await other.runs.start("t", request("b"))
    del transactions[:]
    assert await saver.runs.end(lease, "a", SUCCESS, commit(row(2, 1), head=1))
    assert transactions == [1]
    thread = await other.runs.get_thread("t")
    assert thread is not None and (thread.activation, thread.runs, thread.pending) == ("queued", 2, 1)


async def test_a_lost_lease(saver: RunSaver, other: RunSaver) -> None:
    """P5: a worker whose lease was taken over changes neither the thread nor the run."""
    lease = await taken(saver)
    await other.acquire("t", here("rival"), now=LATER + 1, expires_at=LATER + 30)
    before = await saver.runs.get_thread("t")
    with pytest.raises(ThreadBusyError) as error:
        await saver.runs.end(lease, "a", SUCCESS, commit(row(1)))
    assert error.value.lost
    assert await status_of(saver) == ("running", False)
    assert await saver.runs.get_thread("t") == before
    assert await saver.read("t") is None


async def test_a_thread_that_was_deleted(saver: RunSaver, open_saver: OpenSaver) -> None:
    """P5: a worker whose thread was deleted after its lease had expired stores nothing."""
    lease = await taken(saver)
    async with open_saver(LATER + 1) as later:
        await later.adelete_thread("t")
        with pytest.raises(ThreadBusyError) as error:
            await saver.runs.begin(lease, "a", commit(row(1)))
        assert error.value.lost
        assert await later.runs.get_run("a") is None
        assert await later.runs.get_thread("t") is None
        assert await later.threads() == ()


async def test_a_head_that_does_not_fit(saver: RunSaver) -> None:
    """P3: a superstep that is refused leaves the run's rows as they are."""
    lease = await taken(saver)
    with pytest.raises(ThreadBusyError):
        await saver.runs.begin(lease, "a", commit(row(2, 1), head=1))
    assert await status_of(saver) == ("running", False)
    await saver.runs.begin(lease, "a", commit(row(1)))
    assert await status_of(saver) == ("running", True)


async def test_two_threads_at_once(saver: RunSaver, other: RunSaver) -> None:
    """A mark changes the rows of its own thread alone, regardless of what else is stored with it."""
    leases = [await taken(saver), await taken(saver, "b", "u")]
    await other.runs.cancel("b")
    async with anyio.create_task_group() as group:
        for lease, run_id in zip(leases, "ab", strict=True):
            group.start_soon(saver.runs.begin, lease, run_id, commit(row(1)))
    assert await status_of(other) == await status_of(other, "b") == ("running", True)
    run = await other.runs.get_run("b")
    assert run is not None and run.cancel == "interrupt"


@pytest.mark.parametrize("how", ["release", "commit", "end", "end without a commit", "drop"])
async def test_rows_are_known_while_the_lease_is_held(saver: RunSaver, how: str) -> None:
    """P14: a process remembers the rows of runs that it executes, and of no others."""
    lease = await taken(saver)
    await saver.runs.begin(lease, "a", commit(row(1)))
    known = saver.runs._known._known
    assert list(known) == ["t"]
    await {
        "release": lambda: saver.release(lease),
        "commit": lambda: saver.commit(lease, commit(row(2, 1), head=1, releases=True)),
        "end": lambda: saver.runs.end(lease, "a", SUCCESS, commit(row(2, 1), head=1)),
        "end without a commit": lambda: saver.runs.end(lease, "a", SUCCESS),
        "drop": lambda: saver.drop(lease),
    }[how]()
    assert known == {}


async def test_rows_of_a_later_lease(saver: RunSaver, transactions: list[int]) -> None:
    """P16: when a worker releases a lease that it has lost, the rows that the next owner has written stay known."""
    old = await taken(saver)
    thread = await saver.runs.get_thread("t")
    assert thread is not None and await saver.runs.requeue(thread)
    wanted = WantedLease(here("successor"), LATER + 1, LATER + 30)
    new = await saver.runs.acquire_and_take("t", 2, wanted, worker="w")
    assert new is not None
    await saver.release(old)
    del transactions[:]
    await saver.runs.begin(new.lease, "a", commit(row(1)))
    assert transactions == []
