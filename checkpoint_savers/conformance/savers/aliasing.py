"""P1 for storage: callers may change arguments after a call, and results belong to the caller."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from ...abc import BaseCheckpointSaver
from ...records import CheckpointId, Rewrite
from .scenarios import CHANGE, WHOLE, fill
from .suite import LATER, Suite, cid, commit, event, needs, offers, record, row, stored, take


def spoil(value: Any) -> None:
    """Change every container in place, at any depth."""
    if isinstance(value, dict):
        for inner in list(value.values()):
            spoil(inner)
        for key in list(value):
            del value[key]
        value["spoilt"] = True
    elif isinstance(value, list):
        for inner in value:
            spoil(inner)
        value[:] = ["spoilt"]
    elif isinstance(value, tuple):
        for inner in value:
            spoil(inner)
    elif hasattr(value, "__struct_fields__"):
        for name in value.__struct_fields__:
            spoil(getattr(value, name))


METADATA: dict[str, Any] = {"source": "loop", "parents": {"": "p"}, "tags": [1, [2, {"deep": []}]]}


class Aliasing(Suite):
    async def test_what_was_given_may_be_changed_afterwards(self, saver: BaseCheckpointSaver) -> None:
        """P1: rows, metadata, records and events that a caller changes after `commit` or `record` stay in storage as
        they were passed."""
        lease = await take(saver)
        records, events = [record(1, "a"), record(1, "b", 1)], [event(1)]
        first = commit(row(1, metadata=deepcopy(METADATA)), records=records, events=events)
        await saver.commit(lease, first)
        more = [record(1, "c", 2), record(1, "d", 3)]
        await saver.record(lease, more, expires_at=LATER)
        before = deepcopy(await stored(saver))
        spoil(first)
        records.clear()
        events.clear()
        more.reverse()
        more.pop()
        assert await stored(saver) == before
        (header,) = await saver.scan("t", "")
        assert header.metadata == METADATA

    async def test_what_is_returned_is_the_readers(self, saver: BaseCheckpointSaver) -> None:
        """P1: a reader that changes the result of a verb changes neither the storage nor results of other readers."""
        lease = await fill(saver)
        await saver.commit(lease, commit(row(12, 7, base=6, metadata=deepcopy(METADATA)), head=7))
        before = deepcopy(await stored(saver))

        async def everything() -> list[object]:
            found: list[object] = [
                await saver.read("t"),
                await saver.read("t", "", cid(12)),
                await saver.read("t", "child"),
                await saver.segment("t", "", cid(6)),
                await saver.scan("t", None),
                await saver.scan(None, None, filter={"source": "loop"}),
                await saver.events("t"),
            ]
            if offers(saver, "threads"):
                found += [await saver.threads(), await saver.threads(filter={"user": "Ada"})]
            if offers(saver, "dump"):
                found.append(await saver.dump("t"))
            return found

        first, second = await everything(), await everything()
        kept = deepcopy(second)
        spoil(first)
        assert first != second
        assert second == kept, "another reader's"
        assert await everything() == kept
        assert await stored(saver) == before
        await saver.commit(lease, commit(row(13, 12, base=6), head=12))

    async def test_a_filter_is_only_read(self, saver: BaseCheckpointSaver) -> None:
        """P1: a verb leaves its filter as it was, and later changes to the filter do not change what is stored."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1, metadata=deepcopy(METADATA)), metadata=deepcopy(METADATA)))
        filter: dict[str, Any] = {"tags": [1, [2, {"deep": []}]], "parents": {"": "p"}}
        given = deepcopy(filter)
        assert len(await saver.scan("t", None, filter=filter)) == 1
        if offers(saver, "threads"):
            assert len(await saver.threads(filter=filter)) == 1
        assert filter == given
        spoil(filter)
        assert len(await saver.scan("t", None, filter=filter)) == 0
        assert len(await saver.scan("t", None, filter=given)) == 1

    @needs("load", "dump")
    async def test_a_dump_is_the_callers(self, saver: BaseCheckpointSaver) -> None:
        """P1: changes to a dump, after it was loaded or returned, reach neither the storage nor another dump."""
        lease = await take(saver)
        dump = deepcopy(WHOLE)
        await saver.load(lease, dump)
        before = deepcopy(await stored(saver))
        spoil(dump)
        assert await stored(saver) == before
        made = await saver.dump("t")
        again = await saver.dump("t")
        assert made == WHOLE
        spoil(made)
        assert again == WHOLE
        assert await stored(saver) == before

    @needs("rewrite", "dump")
    async def test_a_change_is_the_callers(self, saver: BaseCheckpointSaver) -> None:
        """P1: the rows, heads and pins of a rewrite may be changed after the call; what is stored stays."""
        lease = await fill(saver)
        heads: dict[str, CheckpointId | None] = {"": cid(3), "child": None}
        change = Rewrite(
            gone=CHANGE.gone, rows=deepcopy(CHANGE.rows), heads=heads, events=CHANGE.events, pins=dict(CHANGE.pins)
        )
        await saver.rewrite(lease, change)
        before = deepcopy(await stored(saver))
        spoil(change)
        assert await stored(saver) == before
