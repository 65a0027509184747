"""P5, P12: each stream mode alone, with and without subgraphs, on every saver: after crashes and reloads a reader gets
in total what an undisturbed reader gets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.abc import BaseCheckpointSaver
from pregel_async.types import StreamMode
from tests.durability.durable_environment import places
from tests.durability.streaming_graphs import Crashing, check, died, graph_of, read
from tests.helpers.each_saver import SAVERS, Open, opener
from tests.helpers.environments import SeededEnvironment

pytestmark = pytest.mark.anyio

EVERYWHERE = os.environ.get("PREGEL_EVERY") == "1"


@pytest.fixture(params=SAVERS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    with opener(request.param, tmp_path) as opens:
        yield opens


class ReconnectingReader:
    """A reader of a thread that reconnects at its cursor.

    Attributes:
        seen: the parts.
        thread: the thread's id.
        cursor: the cursor of the last part; None before a run has begun.
        begins: the cursor at the start of the run.
    """

    def __init__(self, thread: str, ask: dict[str, Any]) -> None:
        self.seen: list[Any] = []
        self.thread = thread
        self._ask = ask
        self.cursor: str | None = None
        self.begins: str | None = None

    async def read(self, graph: Any, most: int = 10**6) -> bool:
        """Read on until the given number of parts were seen. Return True at the end of the run."""
        how: Any = {"keep_events": True} if self.cursor is None else {"after": self.cursor, "on_conflict": "wait"}
        stream = graph.astream({"log": []} if self.cursor is None else None, self.thread, **how, **self._ask)
        with anyio.fail_after(30):
            try:
                await stream.begin()
                self.begins = self.begins or stream.cursor
                return await read(stream, self.seen, most)
            finally:
                self.cursor = stream.cursor

    async def check(self) -> None:
        """Compare the parts with those of an undisturbed run."""
        other = ReconnectingReader(self.thread, self._ask)
        await other.read(graph_of(InMemorySaver(), SeededEnvironment()))
        check(self.seen, other.seen)


@pytest.mark.pairwise
@pytest.mark.one_loop
@pytest.mark.parametrize("subgraphs", [False, True], ids=["alone", "subgraphs"])
@pytest.mark.parametrize("mode", get_args(StreamMode))
async def test_each_mode_alone(mode: StreamMode, subgraphs: bool, opened: Open, request: pytest.FixtureRequest) -> None:
    """The process dies at a call of storage, its successor after the same number of calls, and so on; in another thread
    the reader disconnects, which cancels the run, reconnects, and disconnects the same number of chunks later."""
    ask: Any = {"stream_mode": mode, "subgraphs": subgraphs, "version": "v2"}
    async with opened() as saver:
        for at in places(request) if EVERYWHERE else (7 + next(places(request)),):
            crashes = await crashing(saver, f"crash {at}", at, ask)
            await reloading(saver, ReconnectingReader(f"reload {at}", ask), at)
            if not crashes:
                break


async def crashing(saver: BaseCheckpointSaver, thread: str, at: int, ask: dict[str, Any]) -> int:
    """Let two readers take turns: neither knows the void parts of the other. Return how many crashes there were."""
    environment, readers = SeededEnvironment(), [ReconnectingReader(thread, ask), ReconnectingReader(thread, ask)]
    for crashes in range(50):
        reader = readers[crashes % 2]
        try:
            await reader.read(graph_of(Crashing(saver, at, after=bool(crashes % 3)), environment))
        except BaseException as error:
            assert died(error), error
            environment.time += 100
            at += 1  # otherwise the run would never get past a call
            for each in readers:
                if reader.cursor is None:
                    each.thread += " again"  # send the input again, whether it is stored or not
                elif each.cursor is None:
                    each.cursor = reader.begins
        else:
            for each in readers:
                if each.cursor is not None:
                    await each.read(graph_of(saver, environment))
                    await each.check()
            return crashes
    raise AssertionError("it never got through")


async def reloading(saver: BaseCheckpointSaver, reader: ReconnectingReader, every: int) -> None:
    environment = SeededEnvironment()
    for _ in range(200):
        if await reader.read(graph_of(saver, environment), len(reader.seen) + every + len(reader.seen) // 20):
            await reader.check()
            return
    raise AssertionError("it never got through")
