"""Erasing a thread: nothing of it is left, in no listing and in no byte that the saver wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar

import pytest
from msgspec.structs import replace

from ....abc import BaseCheckpointSaver
from ....errors import ThreadBusyError
from ..scenarios import HEAD, WHOLE, fill
from ..suite import (
    LATER,
    MANY,
    OpenSaver,
    Suite,
    cid,
    commit,
    elsewhere,
    event,
    here,
    needs,
    record,
    refused,
    row,
    stored,
    take,
    written,
)

SECRET = "5ecre7-"
"""The text that the clause searches for. Everything that a thread can hold contains it."""


class Erasing(Suite):
    needed: ClassVar[tuple[str, ...]] = ("erase",)

    @pytest.fixture
    def files(self) -> Callable[[], Iterable[Path]] | None:
        """Return a function that lists the files and folders of the saver; None if it has no files of its own."""
        return None

    async def test_nothing_is_left(self, saver: BaseCheckpointSaver) -> None:
        """P6: after `erase` no verb returns anything of the thread, and other threads are unchanged."""
        await saver.release(await fill(saver, "other"))
        before = await stored(saver)
        lease = await fill(saver)
        await saver.erase(lease)
        assert await stored(saver) == before
        assert await saver.read("t") is None and await saver.read("t", "child") is None
        assert await saver.scan("t", None) == () and await saver.events("t", limit=MANY) == ()
        for base in (1, 3, 6, 7, 10):
            for ns in ("", "child"):
                assert await saver.segment("t", ns, cid(base)) == ((), ())

    @needs("dump", "threads")
    async def test_it_is_not_listed(self, saver: BaseCheckpointSaver) -> None:
        """P6: an erased thread has no dump and is not listed among threads."""
        lease = await fill(saver)
        await saver.erase(lease)
        assert await saver.dump("t") is None
        assert await saver.threads() == ()

    async def test_it_can_begin_anew(self, saver: BaseCheckpointSaver) -> None:
        """P6: a new thread of an erased thread's name starts from nothing: it accepts any id, and has no records and no
        events."""
        await saver.erase(await fill(saver))
        lease = await take(saver, run="run-2")
        assert (lease.epoch, lease.newest) == (1, None)
        await saver.commit(lease, commit(row(1), events=[event(1)]))
        chain = await saver.read("t")
        assert chain is not None and (chain.rows, chain.records) == ((row(1),), ())
        assert await saver.events("t") == (event(1),)

    async def test_its_lease_is_gone(self, saver: BaseCheckpointSaver) -> None:
        """P6: `erase` ends the lease: it is void, even on a new thread of that name with the same epoch."""
        lease = await fill(saver)
        await saver.erase(lease)
        await refused(saver.erase(lease))
        new = await take(saver, run="run-2")
        assert new.epoch == lease.epoch
        await refused(saver.commit(lease, commit(row(1))))
        await refused(saver.record(lease, [record(1, "a")], expires_at=LATER))
        await refused(saver.renew(lease, expires_at=LATER))
        await refused(saver.erase(lease))
        await saver.release(lease)
        await saver.commit(new, commit(row(1)))

    async def test_only_the_holder_erases(self, saver: BaseCheckpointSaver) -> None:
        """P6: an owner that was taken over, or has released its lease, deletes nothing, and the run that holds the
        lease continues."""
        lost = await fill(saver)
        winner = await saver.acquire("t", elsewhere("run-2"), now=LATER, expires_at=LATER + 30)
        before = await stored(saver)
        with pytest.raises(ThreadBusyError) as caught:
            await saver.erase(lost)
        assert caught.value.lost and caught.value.holder is not None and "run-2" in caught.value.holder
        assert await stored(saver) == before
        await saver.commit(winner, commit(row(20, HEAD), head=HEAD, releases=True))
        before = await stored(saver)
        await refused(saver.erase(winner))
        assert await stored(saver) == before

    async def test_a_thread_that_holds_nothing(self, saver: BaseCheckpointSaver) -> None:
        """P6: a thread without a checkpoint is erased with its lease and its records."""
        await written(saver, row(1), thread="other")
        before = await stored(saver)
        lease = await take(saver)
        await saver.record(lease, [record(1, "a")], expires_at=LATER)
        await saver.erase(lease)
        assert await stored(saver) == before
        lease = await saver.acquire("t", elsewhere("run-2"), now=0.0, expires_at=LATER)
        await saver.commit(lease, commit(row(1)))
        chain = await saver.read("t")
        assert chain is not None and chain.records == ()

    async def test_another_saver_does_not_see_it(self, open_saver: OpenSaver) -> None:
        """P4: when `erase` returns, the thread is gone for a second saver too, and after both were closed."""
        async with open_saver() as first, open_saver() as second:
            lease = await fill(first)
            chain = await second.read("t")
            assert chain is not None and chain.rows[-1] == WHOLE.rows[HEAD - 1]
            await first.erase(lease)
            assert await second.read("t") is None and await second.scan(None, None) == ()
        async with open_saver() as saver:
            assert await saver.scan(None, None) == ()
            assert (await take(saver)).epoch == 1

    async def test_no_byte_is_left(
        self, saver: BaseCheckpointSaver, files: Callable[[], Iterable[Path]] | None
    ) -> None:
        """P11: after `erase` no file of the open saver holds an id or value of the thread, in no row, free page or log,
        replaced and deleted values included; other threads stay."""
        if files is None:
            pytest.skip("this saver names no files of its own (fixture `files`)")
        await written(saver, *(row(n, n - 1 or None, base=1, frame=b"stays " * 100) for n in range(1, 20)), thread="u")
        lease = await saver.acquire(f"{SECRET}thread", here(f"{SECRET}run"), now=0.0, expires_at=LATER)
        for number in range(1, 60):
            text = SECRET * (1 + number % 7 * 90)
            await saver.commit(
                lease,
                commit(
                    row(number, number - 1 or None, base=1, metadata={text: text}, frame=text.encode()),
                    head=number - 1 or None,
                    records=[record(number, f"{SECRET}task", frame=text.encode())],
                    clears=[record(number - 1, f"{SECRET}task")] if number % 2 else [],
                    events=[replace(event(number, frame=text.encode()), checkpoint_id=f"{SECRET}{number}")],
                ),
            )
        await saver.commit(lease, commit(row(100, ns=f"{SECRET}ns")))
        assert any(SECRET.encode() in data for data in contents(files())), "the secret was never in these files"
        await saver.erase(lease)
        assert not any(SECRET.encode() in data for data in contents(files()))
        chain = await saver.read("u")
        assert chain is not None and len(chain.rows) == 19


def contents(paths: Iterable[Path]) -> Iterable[bytes]:
    """Read the contents of files, and of all files in folders.

    Args:
        paths: the files and folders.

    Yields:
        The bytes of each file.
    """
    for path in paths:
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (one.read_bytes() for one in found if one.is_file())
