"""The methods for upkeep in `InMemorySaver`; the conformance suite checks those of other savers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.chain import ChainWriter
from checkpoint_savers.conformance.savers.suite import (
    LATER,
    NOW,
    cid,
    commit,
    elsewhere,
    event,
    everything,
    here,
    record,
    row,
    take,
    written,
)
from checkpoint_savers.deltas import Delta
from checkpoint_savers.errors import StorageError, ThreadBusyError
from checkpoint_savers.memory import InMemorySaver
from checkpoint_savers.records import Rewrite, ThreadDump
from pregel_async.testing import FaultySaver
from pregel_async.testing.saver import PassingSaver
from tests.savers.upkeep_graphs import KINDS, opened

pytestmark = pytest.mark.anyio


def frames() -> tuple[bytes, bytes]:
    """The frames of a keyframe, and of a delta that changes nothing."""
    chain = ChainWriter.start("")
    made = [
        chain.append(
            Delta(
                keyframe=False,
                ts=0.0,
                clock=1,
                values={},
                emptied=(),
                kinds={},
                versions={},
                seen={},
                ran=(),
                results={},
            ),
            checkpoint_id=cid(number),
            step=0,
            metadata={},
        )
        for number in (1, 2)
    ]
    return made[0].frame, made[1].frame


FRAMES = frames()


@pytest.fixture(params=KINDS)
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    async with opened(request.param, tmp_path) as saver:
        yield saver


async def grown() -> InMemorySaver:
    """A thread of four checkpoints, one of them in another namespace, with records and events."""
    saver = InMemorySaver()
    await written(saver, row(1), row(2, 1, base=1), row(3, 2, base=1), row(4, ns="child"))
    lease = await take(saver)
    await saver.record(lease, [record(3, "a"), record(4, "b", ns="child")], expires_at=LATER)
    await saver.commit(lease, commit(head=3, moves=("", 3), events=[event(2), event(3)], releases=True))
    return saver


async def test_a_dump_is_loaded_byte_for_byte() -> None:
    """P11: a dump of one thread, loaded in another, reads the same, pins and events included."""
    saver = await grown()
    lease = await take(saver)
    await saver.rewrite(lease, Rewrite(pins={("", cid(2)): True}))
    dump = await saver.dump("t")
    assert dump is not None
    other = FaultySaver(InMemorySaver())
    await other.load(await take(other, "u"), dump)
    assert await other.dump("u") == dump
    assert [one.pinned for one in await other.scan("u", "")] == [False, True, False]
    assert [one.size for one in await other.scan("u", "")] == [len(one.frame) for one in (row(3), row(2), row(1))]
    assert (await take(other, "u")).newest == cid(4)
    with pytest.raises(StorageError, match="holds something"):
        await other.load(await take(other, "u"), dump)
    assert await other.dump("u") == dump


async def test_a_thread_without_checkpoints() -> None:
    """A leased thread without checkpoints is listed, and has no dump."""
    saver = InMemorySaver()
    await take(saver, "empty")
    (header,) = await saver.threads()
    assert (header.thread_id, header.newest, header.head, header.metadata) == ("empty", None, None, {})
    assert header.owner == here("run-1") and header.expires_at == LATER
    assert await saver.dump("empty") is None is await saver.dump("unknown")


async def test_threads_are_listed_by_id() -> None:
    """Pages are ordered by thread id, and the filter applies to the threads' metadata."""
    saver = InMemorySaver()
    for name in ("b", "a", "é", "c"):
        await written(saver, row(1), thread=name, metadata={"user": "eve" if name < "c" else "bob"})
    assert [one.thread_id for one in await saver.threads()] == ["a", "b", "c", "é"]
    assert [one.thread_id for one in await saver.threads(after="a", limit=2)] == ["b", "c"]
    assert [one.thread_id for one in await saver.threads(after="bb")] == ["c", "é"]
    assert [one.thread_id for one in await saver.threads(filter={"user": "bob"}, limit=1)] == ["c"]


async def test_a_rewrite() -> None:
    """Removed rows go with their records, rewritten rows replace stored ones, and `newest` stays."""
    saver = await grown()
    lease = await take(saver)
    change = Rewrite(
        gone=(("", cid(1)), ("", cid(2)), ("child", cid(4)), ("", cid(99))),
        rows=(row(3),),
        heads={"child": None},
        events=(cid(2),),
        pins={("", cid(3)): True},
    )
    await saver.rewrite(lease, change)
    dump = await saver.dump("t")
    assert dump is not None
    assert [(one.checkpoint_id, one.parent_id, one.base_id, one.pinned) for one in dump.rows] == [
        (cid(3), None, cid(3), True)
    ]
    assert (dump.heads, dump.records, dump.events) == ({"": cid(3)}, (record(3, "a"),), (event(3),))
    chain = await saver.read("t")
    assert chain is not None and chain.rows == dump.rows
    await saver.release(lease)
    assert (await take(saver)).newest == cid(4)


@pytest.mark.parametrize(
    "change",
    [
        Rewrite(gone=(("", cid(3)),)),
        Rewrite(gone=(("child", cid(4)),)),
        Rewrite(heads={"child": None}),
        Rewrite(heads={"other": cid(1)}),
        Rewrite(rows=(row(9),)),
        Rewrite(gone=(("", cid(2)),), rows=(row(2),)),
        Rewrite(pins={("child", cid(3)): True}),
    ],
)
async def test_a_rewrite_that_is_refused(change: Rewrite) -> None:
    """P3: a refused rewrite changes nothing."""
    saver = await grown()
    lease = await take(saver)
    before = await everything(saver)
    with pytest.raises(StorageError):
        await saver.rewrite(lease, change)
    assert await everything(saver) == before


async def test_a_lease_is_required() -> None:
    """P6: none of these methods has an effect for an owner whose lease was taken over."""
    saver = await grown()
    lost = await take(saver)
    dump = await saver.dump("t")
    await saver.acquire("t", here("run-2"), now=LATER, expires_at=LATER + 1)
    before = await everything(saver)
    assert dump is not None
    for verb in (
        lambda: saver.rewrite(lost, Rewrite(pins={("", cid(3)): True})),
        lambda: saver.erase(lost),
        lambda: saver.load(lost, dump),
    ):
        with pytest.raises(ThreadBusyError) as caught:
            await verb()
        assert caught.value.lost
    assert await everything(saver) == before


async def test_an_erased_thread() -> None:
    """Nothing of it is left, and the thread can start anew."""
    saver = await grown()
    await saver.erase(await take(saver))
    assert await saver.threads() == () == await saver.scan(None, None) == await saver.events("t")
    lease = await saver.acquire("t", here("run-2"), now=NOW, expires_at=LATER)
    assert (lease.epoch, lease.newest) == (1, None)


@pytest.mark.parametrize(
    "dump",
    [
        ThreadDump(heads={}, rows=(row(1),), records=(), events=()),
        ThreadDump(heads={"": cid(2)}, rows=(row(1),), records=(), events=()),
        ThreadDump(heads={"": cid(1)}, rows=(row(1), row(1)), records=(), events=()),
        ThreadDump(heads={"": cid(1)}, rows=(row(1),), records=(record(1, "a"), record(1, "a", 2)), events=()),
        ThreadDump(heads={"": cid(1)}, rows=(row(1),), records=(), events=(event(1), event(1))),
    ],
)
async def test_an_inconsistent_dump(dump: ThreadDump) -> None:
    """P3: nothing of it is stored."""
    saver = InMemorySaver()
    lease = await take(saver)
    with pytest.raises(StorageError):
        await saver.load(lease, dump)
    await saver.release(lease)
    assert await saver.threads() == ()


class WithoutUpkeep(PassingSaver):
    """A saver that lacks the optional methods for upkeep."""

    rewrite = BaseCheckpointSaver.rewrite
    load = BaseCheckpointSaver.load
    erase = BaseCheckpointSaver.erase
    threads = BaseCheckpointSaver.threads
    dump = BaseCheckpointSaver.dump


async def test_a_saver_without_upkeep() -> None:
    """Runs work without them; upkeep raises an error that names the missing method, and releases the lease."""
    saver = WithoutUpkeep(InMemorySaver())
    await written(saver, row(1))
    for call, verb in (
        (saver.apin("t"), "rewrite"),
        (saver.aerase_thread("t"), "erase"),
        (saver.acopy_thread("t", "u"), "dump"),
        (saver.acount_threads(), "threads"),
    ):
        with pytest.raises(NotImplementedError, match=rf"WithoutUpkeep does not offer {verb}\(\)"):
            await call
    await take(saver)


async def test_dropping_a_thread(saver: BaseCheckpointSaver) -> None:
    """P6: only the holder of its lease can drop a thread; nothing of it can be read afterwards, and it can start
    anew."""
    await written(saver, row(1), thread="other")
    lease = await take(saver)
    await saver.commit(lease, commit(row(1), records=[record(1, "a")], events=[event(1)]))
    winner = await saver.acquire("t", elsewhere("run-2"), now=LATER, expires_at=LATER + 30)
    before = await everything(saver)
    with pytest.raises(ThreadBusyError) as caught:
        await saver.drop(lease)
    assert caught.value.lost and await everything(saver) == before
    await saver.drop(winner)
    assert [one.thread_id for one in await saver.threads()] == ["other"]
    assert await saver.events("t") == () == await saver.scan("t", None)
    with pytest.raises(ThreadBusyError):
        await saver.drop(winner)
    assert (await take(saver)).newest is None


async def test_one_checkpoint_is_listed(saver: BaseCheckpointSaver) -> None:
    """P11: a config with a checkpoint id lists that checkpoint, in each namespace that has it, whatever is newer;
    and `limit` and `before` apply as for other configs."""
    await written(saver, *(row(n, n - 1 or None, base=1, frame=FRAMES[n > 1]) for n in range(1, 9)))
    await written(saver, row(4, ns="child", frame=FRAMES[0]))

    async def listed(known: dict[str, str], **more: Any) -> list[tuple[str, str]]:
        config = {"configurable": {"thread_id": "t", **known}}
        found = [one.config["configurable"] async for one in saver.alist(config, **more)]
        return [(one["checkpoint_ns"], one["checkpoint_id"]) for one in found]

    both = [("child", cid(4)), ("", cid(4))]
    for limit in (None, 2, 3):
        assert await listed({"checkpoint_id": cid(4)}, limit=limit) == both
    assert await listed({"checkpoint_id": cid(4)}, limit=1) == both[:1]
    assert await listed({"checkpoint_id": cid(4), "checkpoint_ns": ""}, limit=1) == both[1:]
    assert await listed({"checkpoint_id": cid(4)}, limit=0) == []
    assert await listed({"checkpoint_id": "000004-between"}, limit=5) == []
    assert await listed({"checkpoint_id": cid(4).replace("7000", "7001")}, limit=5) == []
    for number, found in ((4, []), (5, both), (9, both)):
        assert await listed({"checkpoint_id": cid(4)}, before={"configurable": {"checkpoint_id": cid(number)}}) == found


@pytest.mark.one_loop
async def test_a_commit_that_has_an_id_twice() -> None:
    """P3: a commit is refused and changes nothing if a checkpoint of it is stored, or if it has one twice."""
    saver = InMemorySaver()
    lease = await take(saver)
    await saver.commit(lease, commit(row(1)))
    before = await everything(saver)
    for rows in ((row(2, 1), row(1)), (row(2, 1), row(2, 1))):
        with pytest.raises(StorageError, match="one of these ids"):
            await saver.commit(lease, commit(*rows, head=1))
        assert await everything(saver) == before
