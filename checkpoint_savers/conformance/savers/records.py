"""P5: recorded work never runs again: a record is stored when `record` returns, until it is replaced or cleared."""

from __future__ import annotations

import pytest

from ...abc import BaseCheckpointSaver
from ...errors import ThreadBusyError
from ...records import TaskRecord
from .suite import LATER, Suite, cid, commit, elsewhere, record, row, take


async def records_of(saver: BaseCheckpointSaver, number: int = 1, ns: str = "") -> tuple[TaskRecord, ...]:
    """Return the records of a checkpoint of thread `t`."""
    chain = await saver.read("t", ns, cid(number))
    assert chain is not None
    return chain.records


class TaskRecords(Suite):
    async def test_records_are_kept_in_plan_order(self, saver: BaseCheckpointSaver) -> None:
        """P5: the records of a checkpoint are read in the order of their index, whatever the order in which tasks
        finish."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1)))
        for index in (10, 2, 0, 7):
            await saver.record(lease, [record(1, f"task-{index}", index)], expires_at=LATER)
        await saver.record(lease, [record(1, "b", 5), record(1, "a", 4)], expires_at=LATER)
        assert [one.index for one in await records_of(saver)] == [0, 2, 4, 5, 7, 10]

    async def test_a_later_record_replaces_the_earlier(self, saver: BaseCheckpointSaver) -> None:
        """P5: a task has one record: a later record replaces the earlier one and its index."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1)))
        await saver.record(lease, [record(1, "a", 0, "error", frame=b"1"), record(1, "b", 1)], expires_at=LATER)
        await saver.record(lease, [record(1, "a", 2, "result", frame=b"2")], expires_at=LATER)
        assert await records_of(saver) == (record(1, "b", 1), record(1, "a", 2, "result", frame=b"2"))

    async def test_every_kind_comes_back(self, saver: BaseCheckpointSaver) -> None:
        """P5: results, errors, interrupts, and the record of the superstep itself (with an empty task id) are read as
        stored."""
        lease = await take(saver)
        kept = (record(1, "", 0, "error"), record(1, "a", 1, "interrupt"), record(1, "b", 2, "result", frame=b""))
        await saver.commit(lease, commit(row(1), records=kept))
        assert await records_of(saver) == kept

    async def test_the_same_task_id_on_another_checkpoint_or_namespace(self, saver: BaseCheckpointSaver) -> None:
        """P5: a record belongs to one checkpoint: on another one or in another namespace its task id is another
        task."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), records=[record(1, "a", frame=b"1")]))
        await saver.commit(lease, commit(row(2, 1, base=1), head=1, records=[record(2, "a", frame=b"2")]))
        await saver.commit(lease, commit(row(3, ns="child"), records=[record(3, "a", ns="child", frame=b"3")]))
        assert await records_of(saver, 1) == (record(1, "a", frame=b"1"),)
        assert await records_of(saver, 2) == (record(2, "a", frame=b"2"),)
        assert await records_of(saver, 3, "child") == (record(3, "a", ns="child", frame=b"3"),)

    async def test_clearing(self, saver: BaseCheckpointSaver) -> None:
        """P5: a commit clears only the records that it names; it ignores missing ones, and its own records are stored
        after the clearing."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), records=[record(1, "a"), record(1, "b", 1), record(1, "c", 2)]))
        await saver.commit(
            lease,
            commit(
                row(2, 1, base=1),
                head=1,
                clears=[record(1, "a"), record(1, "c"), record(1, "missing"), record(9, "missing")],
                records=[record(1, "c", 2, frame=b"new")],
            ),
        )
        assert await records_of(saver) == (record(1, "b", 1), record(1, "c", 2, frame=b"new"))

    async def test_a_commit_without_rows(self, saver: BaseCheckpointSaver) -> None:
        """P5: a commit without rows can store records, clear records and release the lease."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), records=[record(1, "a")]))
        await saver.commit(lease, commit(records=[record(1, "b")], clears=[record(1, "a")], releases=True))
        assert await records_of(saver) == (record(1, "b"),)
        await take(saver, run="run-2")

    async def test_only_the_holder_records(self, saver: BaseCheckpointSaver) -> None:
        """P5, P6: a run that lost its lease cannot record, and the attempt stores nothing."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1)))
        await saver.acquire("t", elsewhere("run-2"), now=LATER, expires_at=LATER + 30)
        with pytest.raises(ThreadBusyError) as caught:
            await saver.record(lease, [record(1, "a")], expires_at=LATER + 60)
        assert caught.value.lost and caught.value.thread_id == "t"
        assert await records_of(saver) == ()
