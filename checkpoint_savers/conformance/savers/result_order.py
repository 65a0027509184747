"""Results come in the order that the port documents, whatever the order in which they were stored."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from ...abc import BaseCheckpointSaver
from ...records import CheckpointId, CheckpointRow, EventRow, TaskId, TaskRecord
from .suite import LATER, MANY, Suite, commit, event, needs, record, row, take

IDS = tuple(
    CheckpointId(f"{first:08x}-{second:04x}-7000-8000-{last:012x}")
    for first in (0, 9, 10, 0x7FFF_FFFF, 0xFFFF_FFFF)
    for second in (0, 0xA000)
    for last in (0, 10, 2**48 - 1)
)
"""Checkpoint ids in ascending order. Their order as text equals that of the numbers which they spell."""

SEEDS = (1, 2)


def shuffled_ids(seed: int) -> list[CheckpointId]:
    """Return the ids in a random order that the seed determines."""
    ids = list(IDS)
    random.Random(seed).shuffle(ids)
    return ids


def one_row(checkpoint_id: CheckpointId, *, ns: str = "", base: CheckpointId | None = None) -> CheckpointRow:
    """Make a row with a given checkpoint id.

    Args:
        checkpoint_id: the id.
        ns: the checkpoint namespace.
        base: the id of the base; None for a keyframe.
    """
    new = row(1, ns=ns, frame=f"{ns} {checkpoint_id}".encode())
    return replace(new, checkpoint_id=checkpoint_id, base_id=base or checkpoint_id)


class ResultOrder(Suite):
    @pytest.mark.parametrize("seed", SEEDS)
    async def test_rows_come_in_their_order(self, saver: BaseCheckpointSaver, seed: int) -> None:
        """P11: the rows of a chain and of a segment come by id, compared by code points, whatever the order of their
        commits."""
        lease = await take(saver)
        head = None
        for checkpoint_id in shuffled_ids(seed):
            new = one_row(checkpoint_id, base=IDS[0])
            await saver.commit(lease, replace(commit(new), expected_head=head))
            head = checkpoint_id
        rows = tuple(one_row(checkpoint_id, base=IDS[0]) for checkpoint_id in IDS)
        assert (await saver.segment("t", "", IDS[0]))[0] == rows
        for place, checkpoint_id in enumerate(IDS, 1):
            chain = await saver.read("t", "", checkpoint_id)
            assert chain is not None and chain.rows == rows[:place] and chain.head == head
        await saver.release(lease)
        assert (await take(saver, run="run-2")).newest == IDS[-1]

    @pytest.mark.parametrize("seed", SEEDS)
    async def test_records_come_in_their_order(self, saver: BaseCheckpointSaver, seed: int) -> None:
        """P5: records of a checkpoint come by index, as a number; those of a segment by checkpoint, then by index."""
        lease = await take(saver)
        base, rest = IDS[0], IDS[1:6]
        head = None
        for checkpoint_id in (base, *rest):
            await saver.commit(lease, replace(commit(one_row(checkpoint_id, base=base)), expected_head=head))
            head = checkpoint_id
        tasks = [TaskId(f"{index:>4} {place}") for index, place in enumerate(shuffled_ids(seed))]
        records: list[TaskRecord] = [
            replace(record(1, task, index), checkpoint_id=checkpoint_id)
            for checkpoint_id in (base, *rest)
            for task, index in zip(reversed(tasks), (*range(12), 100, 1000, 2**31 - 1), strict=False)
        ]
        expected = sorted(records, key=lambda one: (one.checkpoint_id, one.index))
        random.Random(seed).shuffle(records)
        for start in range(0, len(records), 7):
            await saver.record(lease, records[start : start + 7], expires_at=LATER)
        assert (await saver.segment("t", "", base))[1] == tuple(expected)
        for checkpoint_id in (base, *rest):
            chain = await saver.read("t", "", checkpoint_id)
            assert chain is not None
            assert chain.records == tuple(one for one in expected if one.checkpoint_id == checkpoint_id)

    @pytest.mark.parametrize("seed", SEEDS)
    async def test_headers_come_newest_first(self, saver: BaseCheckpointSaver, seed: int) -> None:
        """P11: headers come by descending checkpoint id, across threads and namespaces, and each header comes once."""
        threads, spaces = ("\ue000", "\U0001f9f5"), ("", "\uffff", "\U00010000")
        places = [(thread, ns) for thread in threads for ns in spaces]
        random.Random(seed).shuffle(places)
        ids = shuffled_ids(seed)[::3]
        for thread, ns in places:
            lease = await take(saver, thread, f"run-{thread}")
            head = None
            for checkpoint_id in ids:
                await saver.commit(lease, replace(commit(one_row(checkpoint_id, ns=ns)), expected_head=head))
                head = checkpoint_id
        newest_first = sorted(ids, reverse=True)
        everywhere = await saver.scan(None, None, limit=MANY)
        assert [one.checkpoint_id for one in everywhere] == [one for one in newest_first for _ in places]
        assert len({(one.thread_id, one.ns, one.checkpoint_id) for one in everywhere}) == len(everywhere)
        for thread, ns in places:
            assert [one.checkpoint_id for one in await saver.scan(thread, ns)] == newest_first
        for thread in threads:
            assert [one.checkpoint_id for one in await saver.scan(thread, None, limit=MANY)] == [
                one for one in newest_first for _ in spaces
            ]
        for before in (*newest_first[::3], IDS[1]):
            found = await saver.scan(None, None, before=before, limit=MANY)
            assert found == tuple(one for one in everywhere if one.checkpoint_id < before)
            assert await saver.scan(None, None, before=before, limit=5) == found[:5]

    @pytest.mark.parametrize("seed", SEEDS)
    async def test_events_come_in_their_order(self, saver: BaseCheckpointSaver, seed: int) -> None:
        """P4: events come by checkpoint id, compared by code points, then by epoch and position, as numbers."""
        rows: list[EventRow] = [
            replace(event(1, position, epoch=epoch), checkpoint_id=checkpoint_id, frame=f"{epoch} {position}".encode())
            for checkpoint_id in (CheckpointId(""), *IDS)
            for epoch in (1, 2, 9, 10, 2**31)
            for position in (1, 9, 10, 2**32)
        ]
        expected = sorted(rows, key=lambda one: one.key)
        random.Random(seed).shuffle(rows)
        lease = await take(saver)
        for start in range(0, len(rows), 90):
            await saver.commit(lease, commit(events=rows[start : start + 90]))
        assert await saver.events("t", limit=MANY) == tuple(expected)
        for place in range(0, len(expected), 41):
            assert await saver.events("t", since=expected[place].key, limit=3) == tuple(expected[place : place + 3])

    @pytest.mark.parametrize("seed", SEEDS)
    @needs("dump")
    async def test_a_dump_comes_in_its_order(self, saver: BaseCheckpointSaver, seed: int) -> None:
        """P11: a dump has rows by id and namespace; records by checkpoint, namespace, index and task; events by key."""
        lease = await take(saver)
        spaces = ("\U00010000", "", "\uffff", "a")
        records: list[TaskRecord] = []
        for ns in spaces:
            head = None
            for checkpoint_id in shuffled_ids(seed):
                new = one_row(checkpoint_id, ns=ns)
                await saver.commit(lease, replace(commit(new), expected_head=head))
                head = checkpoint_id
                records += [
                    replace(record(1, task, index, ns=ns), checkpoint_id=checkpoint_id)
                    for index in (2, 10)
                    for task in (f"\ue000 {index}", f"\U0001f9f5 {index}", f"a {index}")
                ]
        random.Random(seed).shuffle(records)
        await saver.record(lease, records, expires_at=LATER)
        dump = await saver.dump("t")
        assert dump is not None
        assert [(one.checkpoint_id, one.ns) for one in dump.rows] == [(id, ns) for id in IDS for ns in sorted(spaces)]
        assert dump.records == tuple(
            sorted(records, key=lambda one: (one.checkpoint_id, one.ns, one.index, one.task_id))
        )
        assert dump.heads == dict.fromkeys(spaces, shuffled_ids(seed)[-1])
