"""P3: what a commit changes in several namespaces is one transaction."""

from __future__ import annotations

import threading
from typing import ClassVar

import pytest

from ...abc import BaseCheckpointSaver
from ...errors import StorageError, ThreadBusyError
from .suite import (
    LATER,
    OpenSaver,
    Suite,
    change,
    cid,
    commit,
    elsewhere,
    event,
    everything,
    head_of,
    in_threads,
    needs,
    record,
    refused,
    row,
    take,
    written,
)

START = (row(1), row(2, ns="child"), row(3, 2, ns="child"), row(4, ns="kept"))
"""The rows of the thread that the commits change."""


class SeveralNamespaces(Suite):
    needed: ClassVar[tuple[str, ...]] = ("commits_others",)

    async def test_all_namespaces_are_stored(self, saver: BaseCheckpointSaver, open_saver: OpenSaver) -> None:
        """P3: when a commit of several namespaces returns, the rows and heads of all of them are stored, with its
        records and events, and its cleared records are gone."""
        assert saver.commits_others
        await written(saver, *START)
        lease = await take(saver)
        await saver.record(lease, [record(3, "a", ns="child")], expires_at=LATER)
        new = row(6, 3, base=3, ns="child"), row(7, ns="new"), row(8, 7, base=7, ns="new")
        what = commit(
            row(5, 1, base=1),
            head=1,
            records=[record(5, "b"), record(8, "c", ns="new")],
            clears=[record(3, "a", ns="child")],
            events=[event(5)],
            others=[change(new[0], head=3), change(*new[1:])],
            releases=True,
        )
        await saver.commit(lease, what)
        async with open_saver() as other:
            heads = [await head_of(other, ns=ns) for ns in ("", "child", "new", "kept")]
            assert heads == [cid(5), cid(6), cid(8), cid(4)]
            chains = [await other.read("t", ns) for ns in ("", "child", "new")]
            assert [chain and chain.rows for chain in chains] == [
                (row(1), row(5, 1, base=1)),
                (row(3, 2, ns="child"), new[0]),
                new[1:],
            ]
            assert [chain and chain.records for chain in chains] == [(record(5, "b"),), (), (record(8, "c", ns="new"),)]
            before = await other.read("t", "child", cid(3))
            assert before is not None and before.records == ()
            assert await other.events("t") == (event(5),)
        assert (await take(saver, run="run-2")).newest == cid(8), "the lease is released, and knows the greatest id"

    async def test_only_other_namespaces(self, saver: BaseCheckpointSaver) -> None:
        """P3: a commit may leave the root's head, or the whole root, as it is; a thread that holds only other
        namespaces is none without a checkpoint."""
        await written(saver, row(1))
        lease = await take(saver)
        await saver.commit(lease, commit(records=[record(1, "a")], others=[change(row(2, ns="child"))]))
        assert (await head_of(saver), await head_of(saver, ns="child")) == (cid(1), cid(2))
        empty = await take(saver, "empty")
        await saver.commit(empty, commit(others=[change(row(1, ns="one")), change(row(2, ns="two"))], releases=True))
        assert [await head_of(saver, "empty", ns) for ns in ("", "one", "two")] == [None, cid(1), cid(2)]
        assert (await take(saver, "empty", "run-2")).newest == cid(2)

    async def test_heads_move_together(self, saver: BaseCheckpointSaver) -> None:
        """P3, P5: a commit may move the heads of some namespaces and add checkpoints to others, and the lease is
        released with them."""
        await written(saver, *START)
        lease = await take(saver)
        await saver.commit(lease, commit(row(5, 1), head=1, others=[change(head=3, moves=("child", 2))]))
        assert [await head_of(saver, ns=ns) for ns in ("", "child")] == [cid(5), cid(2)]
        others = [change(head=2, moves=("child", 3)), change(row(6, 4, ns="kept"), head=4)]
        await saver.commit(lease, commit(head=5, moves=("", 1), others=others, releases=True))
        assert [await head_of(saver, ns=ns) for ns in ("", "child", "kept")] == [cid(1), cid(3), cid(6)]
        assert (await take(saver, run="run-2")).newest == cid(6)

    async def test_a_refused_namespace_changes_nothing(self, saver: BaseCheckpointSaver) -> None:
        """P3, P6: if the head of one namespace is not the expected one, or would move to a missing checkpoint, nothing
        of the commit is stored in any namespace, and the lease is neither released nor renewed."""
        await written(saver, *START)
        lease = await take(saver)
        await saver.record(lease, [record(1, "a")], expires_at=LATER)
        before = await everything(saver)
        good = change(row(6, 3, ns="child"), head=3)
        for head, others in (
            (None, [good]),
            (4, [good]),
            (1, [change(row(6, 3, ns="child"), head=2)]),
            (1, [change(row(6, 3, ns="child"))]),
            (1, [good, change(row(7, ns="new"), head=1)]),
            (1, [good, change(row(7, 4, ns="kept"), head=3)]),
            (1, [change(row(7, 4, ns="kept"), head=3), good]),
            (1, [good, change(head=3, moves=("kept", 4))]),
            (1, [good, change(head=4, moves=("kept", 9))]),
            (1, [good, change(head=4, moves=("kept", 3))]),
        ):
            what = commit(
                row(5, 1),
                head=head,
                records=[record(5, "b")],
                clears=[record(1, "a")],
                events=[event(5)],
                others=others,
                releases=True,
                expires_at=LATER + 9,
            )
            await refused(saver.commit(lease, what))
            assert await everything(saver) == before
        with pytest.raises(ThreadBusyError) as busy:
            await saver.acquire("t", elsewhere("run-2"), now=LATER - 1, expires_at=LATER + 60)
        assert busy.value.expires_at == LATER
        await saver.commit(lease, commit(row(5, 1), head=1, others=[good]))

    async def test_a_namespace_that_fails_changes_nothing(self, saver: BaseCheckpointSaver) -> None:
        """P3: if a checkpoint of one namespace is stored already, nothing of the commit is stored in any namespace."""
        await written(saver, *START)
        lease = await take(saver)
        before = await everything(saver)
        good, taken = change(row(6, 4, ns="kept"), head=4), change(row(2, 3, ns="child"), head=3)
        for others in ([good, taken], [taken, good]):
            with pytest.raises(StorageError):
                await saver.commit(lease, commit(row(5, 1), head=1, others=others, releases=True))
            assert await everything(saver) == before
        with pytest.raises(StorageError):
            await saver.commit(lease, commit(row(1), head=1, others=[good]))
        assert await everything(saver) == before
        await saver.commit(lease, commit(row(5, 1), head=1, others=[good]))

    async def test_a_lost_lease_writes_no_namespace(self, saver: BaseCheckpointSaver) -> None:
        """P6: under a lost lease, nothing of a commit is stored in any namespace."""
        await written(saver, *START)
        lost = await take(saver)
        await saver.release(lost)
        lease = await take(saver, run="run-2")
        before = await everything(saver)
        what = commit(row(5, 1), head=1, others=[change(row(6, 3, ns="child"), head=3)])
        await refused(saver.commit(lost, what))
        await refused(saver.commit(lost, commit(others=what.others)))
        assert await everything(saver) == before
        await saver.commit(lease, what)

    @needs("dump")
    async def test_readers_see_all_namespaces_or_none(self, saver: BaseCheckpointSaver, open_saver: OpenSaver) -> None:
        """P3: during commits of several namespaces, every reader sees the heads of one commit."""
        steps, ended = 30, threading.Event()
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), others=[change(row(1, ns="child"))]))

        async def write() -> None:
            try:
                for number in range(2, steps):
                    inner = change(row(number, number - 1, base=1, ns="child"), head=number - 1)
                    await saver.commit(lease, commit(row(number, number - 1, base=1), head=number - 1, others=[inner]))
            finally:
                ended.set()

        async def look() -> None:
            async with open_saver() as other:
                while True:
                    last = ended.is_set()
                    found = await other.dump("t")
                    assert found is not None
                    assert found.heads[""] == found.heads["child"] and len(found.rows) % 2 == 0
                    if last:
                        assert found.heads[""] == cid(steps - 1)
                        return

        await in_threads(write, look, look)
