"""Events of a superstep that ends while a reader elsewhere is between two pages of its rows."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.conformance.savers.suite import event
from checkpoint_savers.records import EventKey, EventRow
from checkpoint_savers.saver_port import PAGE
from pregel_async import START, StateGraph, get_stream_writer
from pregel_async._runtime.streaming import event_window
from tests.helpers.passing_saver import Through

pytestmark = pytest.mark.anyio

QUICK = 5
"""Number of nodes that end while the slow one runs. Each has a row of events."""


class State(TypedDict):
    log: Annotated[list[str], operator.add]


class EndsAfterPage(Through):
    """A saver whose thread's run ends after a reader has read a page.

    Args:
        inner: the saver.
        number: which page, from 1 on.
        end: ends the run.
    """

    def __init__(self, inner: BaseCheckpointSaver, number: int, end: Callable[[], Awaitable[object]]) -> None:
        super().__init__(inner)
        self.pages = 0
        self._number = number
        self._end = end

    async def events(self, *args: Any, **options: Any) -> tuple[EventRow, ...]:
        rows = await super().events(*args, **options)
        self.pages += 1
        if self.pages == self._number:
            await self._end()
        return rows


def says(*texts: str) -> Callable[[State], Awaitable[dict[str, Any]]]:
    async def node(state: State) -> dict[str, Any]:
        for text in texts:
            await get_stream_writer()(text)
        return {"log": list(texts)}

    return node


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("has_first", [False, True], ids=["one superstep", "a superstep before"])
@pytest.mark.parametrize("has_last", [False, True], ids=["the last", "a superstep after"])
async def test_a_superstep_that_ends_between_two_pages(
    monkeypatch: pytest.MonkeyPatch, limit: int, number: int, has_first: bool, has_last: bool
) -> None:
    """P12: the row of the slowest node, with a smaller key than those of the page before, is read, too."""
    monkeypatch.setattr(event_window, "PAGE", limit)
    may_end, ended = anyio.Event(), anyio.Event()
    turns = [anyio.Event() for _ in range(QUICK + 1)]
    saver = InMemorySaver()

    async def slow(state: State) -> dict[str, Any]:
        await get_stream_writer()("slow begins")
        turns[0].set()
        await may_end.wait()
        await get_stream_writer()("slow ends")
        return {"log": ["slow"]}

    def quick(at: int) -> Callable[[State], Awaitable[dict[str, Any]]]:
        async def node(state: State) -> dict[str, Any]:
            await turns[at].wait()
            await get_stream_writer()(f"quick {at}")
            turns[at + 1].set()
            return {"log": [f"quick {at}"]}

        return node

    names = ["slow", *(f"quick{at}" for at in range(QUICK))]
    builder = StateGraph(State).add_node(slow)
    for at in range(QUICK):
        builder.add_node(f"quick{at}", quick(at))
    if has_first:
        builder.add_node("first", says("first")).add_edge(START, "first")
    for name in names:
        builder.add_edge("first" if has_first else START, name)
    if has_last:
        builder.add_node("last", says("last")).add_edge(names, "last")

    async def end() -> None:
        may_end.set()
        await ended.wait()

    async def finish() -> None:
        async with stream:
            async for _ in stream:
                pass
        ended.set()

    run, reader = builder.compile(saver), builder.compile(EndsAfterPage(saver, number, end))
    said: list[Any] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            stream = run.astream({"log": []}, "t", keep_events=True, stream_mode=["custom"], version="v2")
            await stream.begin()
            start = stream.cursor
            group.start_soon(finish)
            while not any(f"quick {QUICK - 1}".encode() in row.frame for row in await saver.events("t")):
                await anyio.lowlevel.checkpoint()
            ask: dict[str, Any] = {"stream_mode": ["custom"], "version": "v2", "on_conflict": "wait"}
            async with reader.astream(None, "t", after=start, **ask) as parts:
                said += [part["data"] async for part in parts if part["type"] == "custom"]
    all_of_them = ["slow begins", *(f"quick {at}" for at in range(QUICK)), "slow ends"]
    assert said == ["first"] * has_first + all_of_them + ["last"] * has_last


class Grows(Through):
    """A saver of a thread with one checkpoint, to which rows of events are added while a reader reads pages of them.

    Args:
        stored: the positions of the rows that are stored before a page is read, by the number of that page.
    """

    def __init__(self, stored: dict[int, list[int]]) -> None:
        super().__init__(InMemorySaver())
        self.pages = 0
        self._stored = stored

    async def events(self, *args: Any, since: EventKey | None = None, limit: int = PAGE) -> tuple[EventRow, ...]:
        self.pages += 1
        stored = sorted(at for page, positions in self._stored.items() if page <= self.pages for at in positions)
        return tuple([event(1, at) for at in stored if since is None or event(1, at).key >= since][:limit])


async def test_rows_that_are_stored_while_pages_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """P12: a row that is found shows that others before it may have been stored since their page was read again."""
    monkeypatch.setattr(event_window, "PAGE", 2)
    monkeypatch.setattr(event_window, "read_row", lambda *_: SimpleNamespace(events=[SimpleNamespace(offset=0)]))
    saver = Grows({1: [3, 5, 7, 9], 5: [1, 8]})
    window = event_window.EventWindow(saver, "t")
    await window.advance("")
    while not window.is_complete:
        await window.advance("")
    assert [each.row.position for each in window.rows()] == [1, 3, 5, 7, 8, 9]
    before = saver.pages
    assert not await window.advance("")
    assert saver.pages - before < 6
