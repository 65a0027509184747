"""What a follower reads: each row of events once, in pages, however often it looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver
from pregel_async import START, StateGraph
from pregel_async._runtime.streaming import event_window
from pregel_async.service import RunService

from .graphs import Log, steps

pytestmark = pytest.mark.anyio

STEPS = 24


class Reads:
    """Counts what is read through a saver."""

    def __init__(self, saver: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows = self.pages = self.headers = 0
        events: Callable[..., Any] = saver.events
        scan: Callable[..., Any] = saver.scan

        async def counted_events(thread_id: str, *, since: Any, limit: int) -> Any:
            page = await events(thread_id, since=since, limit=limit)
            self.rows += len(page)
            self.pages += 1
            return page

        async def counted_scan(*args: Any, **kwargs: Any) -> Any:
            page = await scan(*args, **kwargs)
            self.headers += len(page)
            return page

        monkeypatch.setattr(saver, "events", counted_events)
        monkeypatch.setattr(saver, "scan", counted_scan)


async def stored_rows(saver: BaseCheckpointSaver) -> int:
    return len(await saver.events("t", limit=10_000))


def in_step() -> tuple[Any, list[anyio.Event]]:
    """A graph of which each node waits until a follower has seen the update of the node before."""
    seen = [anyio.Event() for _ in range(STEPS + 1)]
    seen[0].set()
    builder = StateGraph(Log)
    for at in range(STEPS):

        async def work(state: Log, at: int = at) -> dict[str, Any]:
            await seen[at].wait()
            return {"log": [str(at)]}

        builder.add_node(str(at), work)
        builder.add_edge(START if at == 0 else str(at - 1), str(at))
    return builder.compile(), seen


async def test_a_waiting_follower(saver: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """S5: a follower that looks after each superstep reads no row of events and no header again that it has read."""
    graph, seen = in_step()
    async with (
        RunService({"agent": graph}, saver) as worker,
        RunService({"agent": in_step()[0]}, saver, work=False) as web,
    ):
        run = await web.start("agent", {}, thread_id="t", stream_mode="updates")
        reads, shown = Reads(saver, monkeypatch), 0
        async with web.follow(run.run_id, stream_mode="updates") as parts:
            async for _ in parts:
                shown += 1
                seen[shown].set()
        monkeypatch.undo()
        await worker.join(run.run_id)
    assert shown == STEPS
    assert reads.pages >= STEPS  # it has looked that often
    assert reads.rows <= await stored_rows(saver)
    # The headers of the checkpoints since the last look, and of one page that ends with a known one.
    assert reads.headers <= 5 * STEPS


async def test_catching_up(saver: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """S5: a follower reads a long run in pages, each row once, and holds at most a page and a superstep."""
    monkeypatch.setattr(event_window, "PAGE", 4)
    async with RunService({"agent": steps(*map(str, range(STEPS)))}, saver) as service:
        run = await service.start("agent", {}, thread_id="t", stream_mode="updates")
        await service.join(run.run_id)
        held: list[int] = []
        rows = event_window.EventWindow.rows

        def counted(window: event_window.EventWindow) -> Any:
            held.append(len(window._rows))
            return rows(window)

        monkeypatch.setattr(event_window.EventWindow, "rows", counted)
        reads = Reads(saver, monkeypatch)
        async with service.follow(run.run_id, stream_mode="updates") as parts:
            shown = [name async for part in parts if part["type"] == "updates" for name in part["data"]]
        monkeypatch.undo()
    assert shown == list(map(str, range(STEPS)))
    stored = await stored_rows(saver)
    assert stored > 4 * 4
    assert reads.rows <= stored
    assert max(held) <= 2 * 4
