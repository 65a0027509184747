"""P6 on machines whose clocks differ: `PostgresSaver` times leases by the server's clock."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import TypedDict

import anyio
import pytest

from checkpoint_savers import PostgresSaver, ThreadBusyError
from checkpoint_savers.conformance.runs.suite import request
from checkpoint_savers.lease import UpkeepLease
from checkpoint_savers.postgres.server_clock import ServerClock
from pregel_async import START, StateGraph
from pregel_async._runtime.persistence.lease import ThreadLease
from pregel_async._runtime.platform.environment import SystemEnvironment
from pregel_async.types import OnConflict
from tests.helpers.postgres_tools import unsynced

pytestmark = pytest.mark.anyio

MINUTES = [600.0, -600.0]
"""By how many seconds a machine's clock is wrong."""


@pytest.fixture
async def right(schema: str) -> AsyncIterator[PostgresSaver]:
    """The saver of a machine whose clock is right."""
    async with PostgresSaver.from_conn_string(unsynced(), schema=schema) as saver:
        yield saver


def set_wrong(patch: pytest.MonkeyPatch, wrong_by: float) -> None:
    """Let the clock of this machine be wrong."""
    real = time.time
    patch.setattr(time, "time", lambda: real() + wrong_by)
    patch.setattr(SystemEnvironment, "now", staticmethod(time.time))


class State(TypedDict, total=False):
    done: bool


def work(state: State) -> State:
    return {"done": True}


async def run(saver: PostgresSaver, thread_id: str, on_conflict: OnConflict = "reject") -> object:
    graph = StateGraph(State).add_node("work", work).add_edge(START, "work").compile(saver)
    return await graph.ainvoke({}, {"configurable": {"thread_id": thread_id}}, on_conflict=on_conflict)


@pytest.mark.parametrize("wrong_by", MINUTES)
async def test_a_run_of_a_machine_with_a_wrong_clock(
    wrong_by: float, right: PostgresSaver, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P6: a lease of a machine whose clock is minutes wrong is live as long as any other, also when it was renewed, and
    no longer: when it has lapsed, another machine acquires it."""
    thread_id, real = f"run {wrong_by}", time.time
    with monkeypatch.context() as patch:
        set_wrong(patch, wrong_by)
        async with PostgresSaver.from_conn_string(unsynced(), schema=schema) as wrong:
            held = await ThreadLease.acquire(wrong, SystemEnvironment(), thread_id, "reject")
            assert abs(wrong.clock() - real()) < 1
            patch.undo()
            with pytest.raises(ThreadBusyError) as busy:
                await run(right, thread_id)
            assert busy.value.expires_at == pytest.approx(real() + 30, abs=5)
            set_wrong(patch, wrong_by)
            await wrong.renew(held.token, expires_at=held.expiry())
            patch.undo()
            with pytest.raises(ThreadBusyError):
                async with UpkeepLease(right, thread_id):
                    raise AssertionError
            # Its process dies 0.1 s before the lease lapses.
            held.duration = 0.1
            set_wrong(patch, wrong_by)
            await wrong.renew(held.token, expires_at=held.expiry())
            patch.undo()
            with anyio.fail_after(30):
                assert await run(right, thread_id, "wait") == {"done": True}


@pytest.mark.parametrize("wrong_by", MINUTES)
async def test_a_machine_with_a_wrong_clock_waits(
    wrong_by: float, right: PostgresSaver, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P6: a machine whose clock is minutes wrong takes over no live lease, and each lease that has lapsed."""
    thread_id, real = f"waits {wrong_by}", time.time
    held = await ThreadLease.acquire(right, SystemEnvironment(), thread_id, "reject")
    monkeypatch.setattr(time, "time", lambda: real() + wrong_by)
    async with PostgresSaver.from_conn_string(unsynced(), schema=schema) as wrong:
        with pytest.raises(ThreadBusyError):
            await run(wrong, thread_id)
        held.duration = 0.1
        await right.renew(held.token, expires_at=held.expiry())
        with anyio.fail_after(30):
            assert await run(wrong, thread_id, "wait") == {"done": True}


@pytest.mark.one_loop
async def test_each_answer_has_the_time(right: PostgresSaver) -> None:
    """Acquiring and each write of a run correct the clock, also in a process that is open for months."""
    async with UpkeepLease(right, "answers") as lease:
        right._server_clock._offset = 0.0
        await right.renew(lease.token, expires_at=time.time() + 30)
        assert abs(right.clock() - time.time()) < 1
        right._server_clock._offset = 0.0
        await lease.advance_epoch(2)
        assert abs(right.clock() - time.time()) < 1


@pytest.mark.one_loop
@pytest.mark.parametrize("is_new", [True, False], ids=["new thread", "known thread"])
async def test_each_start_has_the_time(right: PostgresSaver, is_new: bool) -> None:
    """P16: accepting a run corrects the clock, also in a process that does nothing else. By this clock, the run of a new
    thread gets the time at which it was accepted. That time decides which thread has waited longest."""
    right._server_clock._offset = 0.0
    await right.runs.start(f"start {is_new}", request(f"run {is_new}"), is_new=is_new)
    assert abs(right.clock() - time.time()) < 1


@pytest.mark.one_loop
async def test_a_clock_follows_the_server() -> None:
    """The clock shows the server's time to half of the fastest answer: a slow answer does not change it, and an answer
    that it cannot have given, since the server's clock was set, does."""
    clock = ServerClock()
    assert abs(clock() - time.time()) < 1
    clock.update(10.0, 1000.0, 10.2)
    assert clock._offset == pytest.approx(989.9)
    clock.update(20.0, 1010.5, 24.0)  # read at most 4 s after it was sent
    assert clock._offset == pytest.approx(989.9)
    clock.update(30.0, 1021.0, 30.1)
    assert clock._offset == pytest.approx(990.9)
    clock.update(40.0, 1000.0, 40.1)
    assert clock._offset == pytest.approx(960.0)
