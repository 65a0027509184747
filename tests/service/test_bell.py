"""The bell: followers elsewhere are notified of stored events, after the commit, and not once for each commit."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import anyio
import psycopg
import pytest

from checkpoint_savers import BaseCheckpointSaver, PostgresSaver
from checkpoint_savers.postgres import listening
from checkpoint_savers.postgres.listening import ANNOUNCE_EVERY
from checkpoint_savers.postgres.run_store import PostgresRuns
from checkpoint_savers.postgres.writing import CHANNEL
from pregel_async import START, StateGraph
from pregel_async.service import RunService
from tests.helpers.postgres_tools import conninfo, made_schema, unsynced

from .graphs import Log, steps

pytestmark = pytest.mark.anyio


async def test_a_burst_of_commits() -> None:
    """A process that stores events again and again sends at most one message in 20 ms."""
    with made_schema() as schema:
        async with PostgresSaver(unsynced(), schema=schema, setup=False) as saver:
            runs: Any = saver.runs
            payload = runs._payload_of("t")
            with psycopg.connect(conninfo(), autocommit=True) as listener:
                listener.execute(f"LISTEN {CHANNEL}".encode())
                begun = time.monotonic()
                for _ in range(200):
                    saver.runs.announce("t")
                    await anyio.sleep(0)
                while time.monotonic() - begun < 5 * ANNOUNCE_EVERY:
                    saver.runs.announce("t")
                    await anyio.sleep(0.001)
                took = time.monotonic() - begun
                receive(listener, {payload})
                received = [payload, *(each.payload for each in listener.notifies(timeout=0.1))]
    assert received.count(payload) <= took / ANNOUNCE_EVERY + 2


def receive(listener: psycopg.Connection[Any], payloads: set[str]) -> None:
    """Waits until each of these payloads was received; the channel also carries those of other schemas' tests."""
    missing = set(payloads)
    for each in listener.notifies(timeout=60):
        missing.discard(each.payload)
        if not missing:
            return
    raise AssertionError(f"{len(missing)} of {len(payloads)} payloads did not arrive")


async def test_messages_that_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a transaction announces is one message, and a cancellation is announced whatever was sent before."""
    ended = threading.Event()

    async def pause(seconds: float) -> None:
        while not ended.is_set():
            await asyncio.sleep(0.001)

    monkeypatch.setattr(listening, "asyncio", SimpleNamespace(sleep=pause))
    with made_schema() as schema:
        async with PostgresSaver(unsynced(), schema=schema, setup=False) as saver:
            runs: Any = saver.runs
            try:
                with psycopg.connect(conninfo(), autocommit=True) as listener:
                    listener.execute(f"LISTEN {CHANNEL}".encode())
                    runs.notify("t", ("run",))
                    receive(listener, {runs._payload_of("t"), runs._payloads["run"]})
                    runs.announce("t")  # waits
                    runs.notify("u", ("cancel",))
                    receive(listener, {runs._payload_of("t"), runs._payload_of("u"), runs._payloads["cancel"]})
            finally:
                ended.set()  # else closing the saver waits for the pause


async def never(self: PostgresRuns) -> bool:
    return False


async def test_events_of_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that waits for a thread is not woken by the events of another one."""
    monkeypatch.setattr(PostgresRuns, "has_changed_elsewhere", never)
    with made_schema() as schema:
        async with (
            PostgresSaver(unsynced(), schema=schema, setup=False, listen=True) as here,
            PostgresSaver(unsynced(), schema=schema, setup=False) as elsewhere,
        ):
            with here.runs.watch("t") as mine, here.runs.watch("other") as others:
                await here.runs.wait_for_thread(others)
                before = await here.runs.wait_for_thread(mine)
                with anyio.fail_after(30):
                    await here.runs.wait_for_thread(mine, before)  # the listener is connected, which wakes all
                number, seen = mine.number, others.number
                elsewhere.runs.announce("other")
                with anyio.fail_after(30):
                    assert await here.runs.wait_for_thread(others, seen) > seen
                assert mine.number == number


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_each_durability(durability: Any, saver: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower elsewhere sees each superstep although nothing but the bell would wake it, also if commits overlap."""
    assert saver.runs is not None
    monkeypatch.setattr(saver.runs, "look_at_thread_every", float("inf"))
    seen = [anyio.Event() for _ in range(4)]
    seen[0].set()

    def node(at: int) -> Any:
        async def work(state: Log) -> dict[str, Any]:
            await seen[at].wait()
            return {"log": [str(at)]}

        return work

    builder = StateGraph(Log)
    for at in range(3):
        builder.add_node(str(at), node(at)).add_edge(START if at == 0 else str(at - 1), str(at))
    graphs = {"agent": builder.compile()}
    async with RunService(graphs, saver), RunService({"agent": steps("0")}, saver, work=False) as web:
        run = await web.start("agent", {}, thread_id="t", stream_mode="updates", durability=durability)
        shown = 0
        with anyio.fail_after(30):
            async with web.follow(run.run_id, stream_mode="updates") as parts:
                async for _ in parts:
                    shown += 1
                    seen[shown].set()
    assert shown == 3
