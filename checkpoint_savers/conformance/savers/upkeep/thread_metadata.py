"""Metadata of threads: commits add missing keys, `update_thread` changes keys, and a deleted thread has none."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Final

import pytest

from ....abc import BaseCheckpointSaver
from ....errors import StorageError, ThreadNotFoundError
from ....records import Rewrite
from ..scenarios import WHOLE, fill
from ..stored_bytes import HOSTILE
from ..stored_types import identical
from ..suite import Suite, cid, commit, in_threads, needs, record, refused, row, take, written

VALUES: Final[dict[str, Any]] = {
    **{f"text {number}": text for number, text in enumerate(HOSTILE)},
    **{text: number for number, text in enumerate(HOSTILE)},
    "int": 1,
    "float": 1.0,
    "bool": True,
    "other bool": False,
    "large": 2**53 + 1,
    "small": 5e-324,
    "minus": -0.0,
    "text": "1",
}


async def metadata_of(saver: BaseCheckpointSaver, thread: str = "t") -> dict[str, Any]:
    """Return the metadata of a thread."""
    (found,) = [one for one in await saver.threads() if one.thread_id == thread]
    return found.metadata


class ThreadMetadata(Suite):
    needed: ClassVar[tuple[str, ...]] = ("threads",)

    async def test_a_commit_sets_what_the_thread_lacks(self, saver: BaseCheckpointSaver) -> None:
        """P3: each key keeps the value of the first commit that set it; later commits add other keys and change
        none."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), metadata={"user": "ann", "n": 0}))
        assert await metadata_of(saver) == {"user": "ann", "n": 0}
        await saver.commit(lease, commit(row(2, 1), head=1, metadata={"user": "eve", "n": None, "plan": "free"}))
        await saver.commit(lease, commit(head=2, records=[record(2, "a")]))
        await saver.commit(lease, commit(moves=("", 1), head=2, metadata={"moved": True}))
        await saver.commit(lease, commit(records=[record(2, "b")], metadata={"alone": 1}, releases=True))
        assert await metadata_of(saver) == {"user": "ann", "n": 0, "plan": "free", "moved": True, "alone": 1}

    async def test_metadata_of_threads_come_back(self, saver: BaseCheckpointSaver) -> None:
        """P11: metadata of threads come back equal in value and type, with any key."""
        await written(saver, row(1), metadata=VALUES)
        assert identical(await metadata_of(saver), VALUES)

    async def test_metadata_are_stored_with_the_commit(self, saver: BaseCheckpointSaver) -> None:
        """P3: a commit that is refused sets no metadata: for a lost lease, for another head, or for a checkpoint that
        exists."""
        await written(saver, row(1), row(2, 1))
        lost = await take(saver, run="run-lost")
        await saver.release(lost)
        lease = await take(saver)
        await refused(saver.commit(lost, commit(row(3, 2), head=2, metadata={"a": 1})))
        await refused(saver.commit(lease, commit(row(3, 1), head=1, metadata={"a": 1})))
        with pytest.raises(StorageError):
            await saver.commit(lease, commit(row(2, 1), head=2, metadata={"a": 1}))
        assert await metadata_of(saver) == {}

    async def test_a_thread_without_checkpoints_leaves_no_metadata(self, saver: BaseCheckpointSaver) -> None:
        """P6: a new thread has no metadata of an earlier thread of its name, whether that was deleted or never stored a
        checkpoint."""
        lease = await take(saver)
        await saver.commit(lease, commit(metadata={"a": 1}))
        await saver.release(lease)
        assert await saver.threads() == ()
        await written(saver, row(1), metadata={"a": 1})
        await saver.adelete_thread("t")
        await written(saver, row(1))
        assert await metadata_of(saver) == {}

    @needs("update_thread")
    async def test_update_thread_sets_and_deletes(self, saver: BaseCheckpointSaver) -> None:
        """P3: `update_thread` sets new and existing keys, deletes those set to None, and changes no other key, thread
        or checkpoint."""
        await written(saver, row(1, metadata={"user": "bob"}), metadata={"user": "ann", "n": 1, "plan": "free"})
        await written(saver, row(1), thread="u", metadata={"user": "ann"})
        before = await saver.scan(None, None)
        await saver.update_thread("t", {"user": "eve", "n": None, "none": None, "more": True})
        assert await metadata_of(saver) == {"user": "eve", "plan": "free", "more": True}
        assert await metadata_of(saver, "u") == {"user": "ann"}
        assert await saver.scan(None, None) == before
        await saver.update_thread("t", VALUES)
        assert identical(await metadata_of(saver), {"user": "eve", "plan": "free", "more": True, **VALUES})
        await saver.update_thread("t", dict.fromkeys(await metadata_of(saver)))
        assert await metadata_of(saver) == {}

    @needs("update_thread")
    async def test_update_thread_needs_a_thread(self, saver: BaseCheckpointSaver) -> None:
        """P6: `update_thread` refuses an unknown thread and one without a checkpoint, and creates none."""
        with pytest.raises(ThreadNotFoundError):
            await saver.update_thread("t", {"a": 1})
        assert await saver.threads() == ()
        lease = await take(saver)
        with pytest.raises(ThreadNotFoundError):
            await saver.update_thread("t", {"a": 1})
        assert await metadata_of(saver) == {}
        await saver.release(lease)
        assert await saver.threads() == ()

    @needs("update_thread")
    async def test_update_thread_needs_no_lease(self, saver: BaseCheckpointSaver) -> None:
        """P6: `update_thread` works while a run holds the lease, and the run's next commit adds only missing keys."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), metadata={"user": "ann"}))
        await saver.update_thread("t", {"user": None, "title": "mine"})
        await saver.commit(lease, commit(row(2, 1), head=1, metadata={"user": "eve", "title": "other"}))
        assert await metadata_of(saver) == {"user": "eve", "title": "mine"}
        (header,) = await saver.threads()
        assert (header.epoch, header.owner, header.newest) == (lease.epoch, lease.owner, cid(2))

    @needs("update_thread")
    async def test_updates_at_the_same_time(self, saver: BaseCheckpointSaver) -> None:
        """P13: of many concurrent updates from several event loops, during commits of a run, none is lost."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1)))

        async def change(number: int) -> None:
            await saver.update_thread("t", {f"key {number}": number})

        async def run() -> None:
            for number in range(2, 8):
                await saver.commit(
                    lease, commit(row(number, number - 1), head=number - 1, metadata={f"run {number}": 1})
                )

        await in_threads(run, *(partial(change, number) for number in range(8)))
        expected = {f"key {number}": number for number in range(8)} | {f"run {number}": 1 for number in range(2, 8)}
        assert await metadata_of(saver) == expected

    async def test_given_metadata_may_be_changed_afterwards(self, saver: BaseCheckpointSaver) -> None:
        """P1: changing metadata after a commit, or metadata of a listing, does not change what is stored."""
        given = {"a": 1}
        await written(saver, row(1), metadata=given)
        given["a"] = 2
        (await metadata_of(saver))["a"] = 3
        assert await metadata_of(saver) == {"a": 1}

    @needs("rewrite")
    async def test_pruning_leaves_metadata_of_threads(self, saver: BaseCheckpointSaver) -> None:
        """P10: deleting the checkpoints of the commits that set them leaves a thread's metadata."""
        await written(saver, row(1), row(2, 1), metadata={"a": 1})
        await saver.rewrite(await take(saver), Rewrite(gone=(("", cid(1)),), heads={"": cid(2)}))
        assert await metadata_of(saver) == {"a": 1}

    @needs("dump", "load")
    async def test_metadata_of_threads_are_dumped_and_loaded(self, saver: BaseCheckpointSaver) -> None:
        """P11: `dump` and `load` keep a thread's metadata, equal in value and type."""
        await fill(saver)
        dumped = await saver.dump("t")
        assert dumped is not None
        assert dumped.metadata == await metadata_of(saver) == WHOLE.metadata
        await saver.load(await take(saver, "u", "run-2"), dumped)
        assert identical(await metadata_of(saver, "u"), WHOLE.metadata)
