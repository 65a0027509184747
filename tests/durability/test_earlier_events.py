"""P12, P15: events that an earlier version has kept: one that stored them with the supersteps of the called graph alone, and
whose chunks said nothing of their tasks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.codec import seal, unseal
from checkpoint_savers.records import EventKey, EventRow
from tests.durability.durable_world import TestWorld
from tests.durability.streaming_graphs import graph_of, read, spelled
from tests.helpers.passing_saver import Through
from tests.helpers.stream_reader import kept_by_reader

pytestmark = pytest.mark.anyio

ASK: Any = {"stream_mode": ["messages", "custom", "updates", "values", "tasks"], "subgraphs": True, "version": "v2"}


class Earlier(Through):
    """A saver whose events of the first run are those that an earlier version would have stored."""

    async def events(self, thread_id: str, *, since: EventKey, limit: int) -> tuple[EventRow, ...]:
        rows = await super().events(thread_id, since=since, limit=limit)
        return tuple([row if row.epoch > 1 else as_earlier(row) for row in rows if row.epoch > 1 or is_commit(row)])


def is_commit(row: EventRow) -> bool:
    """Return True if a row came with a commit of the called graph, and not with one inside or with a record."""
    return row.kind == "tail" or row.position == 1


def as_earlier(row: EventRow) -> EventRow:
    frame = msgspec.msgpack.decode(unseal(row.frame, "here"))
    return msgspec.structs.replace(row, frame=seal(msgspec.msgpack.encode([event[:6] for event in frame[1]])))


async def test_a_run_of_an_earlier_version_was_cut_off() -> None:
    """A reader who comes back is told that all is void after the last commit, names of tasks or not; all before stays, and
    no word is there twice. (Those of work that it had recorded are lost, as it kept none of them.)"""
    whole: list[Any] = []
    await read(graph_of(InMemorySaver(), TestWorld()).astream({"log": []}, "t", keep_events=True, **ASK), whole)
    for most in range(3, 60, 7):
        inner, seen = InMemorySaver(), list[Any]()
        await read(graph_of(inner, TestWorld()).astream({"log": []}, "t", keep_events=True, **ASK), seen, most)
        for part in seen:
            part["task"] = None
        before, saver = list(seen), Earlier(inner)
        await read(graph_of(saver, TestWorld()).astream(None, "t", after=seen[-1]["cursor"], **ASK), seen)
        first = next(part for part in seen if part["type"] == "superstep_restarted")
        assert first["data"]["tasks"] is None
        kept = kept_by_reader(seen)
        assert [part for part in before if part["cursor"] <= first["data"]["after"]] == [
            part for part in kept if part in before
        ]
        assert not words_of(kept) - words_of(whole)


def words_of(parts: list[Any]) -> Counter[str]:
    """Without whole messages: one whose pieces are lost is shown."""
    return Counter(each for each in spelled(parts) if each.startswith("custom") or "AIMessageChunk" in each)
