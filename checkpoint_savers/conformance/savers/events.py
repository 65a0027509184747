"""P4: stream events are stored with their commit, in order, and not stored if the commit is refused."""

from __future__ import annotations

import threading

import anyio
import anyio.lowlevel
import pytest

from ...abc import BaseCheckpointSaver
from ...errors import StorageError, ThreadBusyError
from ...records import CheckpointId, EventKey, EventRow, Lease
from ...saver_port import PAGE
from .loops.cancellation import TURNS
from .stored_bytes import HOSTILE, noise
from .suite import (
    LATER,
    NOW,
    OpenSaver,
    Suite,
    cid,
    commit,
    elsewhere,
    event,
    everything,
    head_of,
    here,
    in_threads,
    record,
    refused,
    repeated,
    row,
    take,
    written,
)


async def keys_of(
    saver: BaseCheckpointSaver, since: tuple[int, int, int] | None = None, limit: int = PAGE
) -> list[tuple[int, int, int]]:
    """Return the keys of the events of thread `t`, with checkpoints as numbers.

    Args:
        saver: the saver.
        since: the key to start at; None for all.
        limit: the maximal number of rows.
    """
    start = None if since is None else (cid(since[0]), *since[1:])
    found = await saver.events("t", since=start, limit=limit)
    return [(int(one.checkpoint_id.split("-")[0]), one.epoch, one.position) for one in found]


async def expires_at(saver: BaseCheckpointSaver, lease: Lease) -> float | None:
    """Return the expiry of a live lease, in unix seconds, as a rival sees it."""
    with pytest.raises(ThreadBusyError) as caught:
        await saver.acquire(lease.thread_id, elsewhere("run-rival"), now=NOW, expires_at=LATER)
    return caught.value.expires_at


class StreamEvents(Suite):
    async def test_events_come_back_in_the_order_of_their_keys(self, saver: BaseCheckpointSaver) -> None:
        """P4: events are read by checkpoint, epoch and position, compared as numbers, whatever the order of their
        commits."""
        lease = await take(saver)
        keys = [(2, 10, 1), (1, 2, 10), (2, 9, 1), (1, 2, 9), (1, 1, 100), (3, 1, 1), (1, 10, 2), (1, 10, 1)]
        rows = [event(number, position, epoch=epoch) for number, epoch, position in keys]
        await saver.commit(lease, commit(row(1), events=rows[:3]))
        await saver.commit(lease, commit(row(2, 1, base=1), head=1, events=rows[3:6]))
        await saver.commit(lease, commit(events=rows[6:]))
        assert await keys_of(saver) == sorted(keys)
        assert await saver.events("t") == tuple(sorted(rows, key=lambda one: one.key))

    async def test_every_kind_of_event_comes_back(self, saver: BaseCheckpointSaver) -> None:
        """P4: every field of a row of events comes back as it was stored."""
        lease = await take(saver)
        kept = (event(1), event(1, 4, "part"), event(1, 5, "tail"), event(1, 7, "tail", epoch=2**40, frame=b""))
        await saver.commit(lease, commit(row(1), events=kept))
        assert await saver.events("t") == kept

    async def test_events_of_nothing(self, saver: BaseCheckpointSaver) -> None:
        """P4: reading events of an unknown thread, or of one without events, returns none and leaves no trace."""
        assert await saver.events("t") == await saver.events("t", since=event(1).key) == ()
        await written(saver, row(1))
        assert await saver.events("t") == ()
        assert (await saver.acquire("u", here("run-1"), now=NOW, expires_at=LATER)).epoch == 1

    async def test_from_a_key_on(self, saver: BaseCheckpointSaver) -> None:
        """P4: `since` starts at the row with that key, or else at the next row; after the last row there is nothing."""
        lease = await take(saver)
        keys = [(1, 1, 1), (1, 1, 4), (1, 3, 1), (3, 1, 1), (3, 1, 2)]
        rows = [event(number, position, epoch=epoch) for number, epoch, position in keys]
        await saver.commit(lease, commit(row(1), events=rows))
        for number in (0, 1, 2, 3, 4):
            for epoch in (0, 1, 2, 3, 4):
                for position in (0, 1, 2, 4, 5):
                    since = (number, epoch, position)
                    assert await keys_of(saver, since) == [key for key in keys if key >= since]
        assert await keys_of(saver, None) == keys

    async def test_any_number_is_a_number_to_begin_at(self, saver: BaseCheckpointSaver) -> None:
        """P4, P11: `since` accepts numbers of any size, as keys come from clients."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), events=[event(1), event(1, 2**53 + 1, epoch=2**53 + 1)]))
        least, most = (-(2**63), -(2**64), -(10**40)), (2**63 - 1, 2**63, 10**40)
        for number in least:
            assert len(await saver.events("t", since=(cid(1), number, 1))) == 2
            assert len(await saver.events("t", since=(cid(1), 1, number))) == 2
        for number in most:
            assert len(await saver.events("t", since=(cid(1), number, 1))) == 0
            assert len(await saver.events("t", since=(cid(1), 1, number))) == 1
        assert len(await saver.events("t", since=(cid(1), 2**53 + 1, 2**53 + 1))) == 1
        assert len(await saver.events("t", since=(cid(1), 2**53 + 1, 2**53 + 2))) == 0
        assert len(await saver.events("t", since=(CheckpointId(""), 1, 1))) == 2

    async def test_page_by_page(self, saver: BaseCheckpointSaver) -> None:
        """P4: a page holds at most `limit` rows, and successive pages hold each row once."""
        lease = await take(saver)
        count = PAGE + 10
        for number in range(1, 4):
            rows = [event(number, position, epoch=epoch) for epoch in (1, 2) for position in range(1, count // 4)]
            await saver.commit(lease, commit(events=rows))
        whole = await saver.events("t", limit=10_000)
        assert len(whole) > PAGE and [one.key for one in whole] == sorted(one.key for one in whole)
        assert await saver.events("t") == whole[:PAGE]
        for limit in (1, 7, PAGE):
            pages: list[EventRow] = []
            since: EventKey | None = None
            while page := await saver.events("t", since=since, limit=limit):
                assert len(page) <= limit
                assert since is None or page[0].key >= since, "a page repeats earlier results"
                pages += page
                checkpoint, epoch, position = page[-1].key
                since = (checkpoint, epoch, position + 1)
            assert tuple(pages) == whole
        assert await saver.events("t", limit=0) == await saver.events("t", limit=-1) == ()

    async def test_another_saver_sees_them_at_once(self, open_saver: OpenSaver) -> None:
        """P4: a second saver reads events as soon as the commit returns, and still after the saver was closed."""
        kept = (event(1), event(1, 3, "tail"))
        async with open_saver() as first, open_saver() as second:
            lease = await take(first)
            await first.commit(lease, commit(row(1), events=kept[:1]))
            assert await second.events("t") == kept[:1]
            await first.commit(lease, commit(events=kept[1:]))
            assert await second.events("t") == kept
        async with open_saver() as saver:
            assert await saver.events("t") == kept

    async def test_a_refused_commit_stores_no_events(self, saver: BaseCheckpointSaver) -> None:
        """P3: a commit that is refused for its head, or for a checkpoint id that exists, stores no events."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), events=[event(1)]))
        await saver.commit(lease, commit(row(2, 1, base=1), head=1))
        before = await everything(saver)
        new = [event(2)]
        for attempt in (
            commit(row(3, 2), head=1, events=new),
            commit(row(3, 2), head=None, events=new),
            commit(head=1, moves=("", 1), events=new),
            commit(head=2, moves=("", 9), events=new),
            commit(row(3, 2), row(2, 1, base=1), head=2, events=new),
        ):
            with pytest.raises((ThreadBusyError, StorageError)):
                await saver.commit(lease, attempt)
            assert await everything(saver) == before
        await saver.commit(lease, commit(row(3, 2), head=2, events=new))
        assert await saver.events("t") == (event(1), event(2))

    async def test_an_owner_that_was_taken_over_stores_none(self, saver: BaseCheckpointSaver) -> None:
        """P6: a run that lost or released its lease stores no events."""

        async def is_refused(lease: Lease) -> None:
            before = await everything(saver)
            for attempt in (
                commit(events=[event(1, 2, "tail")]),
                commit(row(2, 1), head=1, events=[event(2)]),
                commit(head=1, moves=("", 1), events=[event(2)]),
            ):
                await refused(saver.commit(lease, attempt))
                assert await everything(saver) == before

        lost = await take(saver)
        await saver.commit(lost, commit(row(1), events=[event(1)]))
        winner = await saver.acquire("t", elsewhere("run-2"), now=LATER, expires_at=LATER + 30)
        await is_refused(lost)
        await saver.commit(winner, commit(events=[event(1, 1, "tail", epoch=2)], releases=True))
        await is_refused(winner)
        assert await saver.events("t") == (event(1), event(1, 1, "tail", epoch=2))

    async def test_what_was_shown_is_not_replaced(self, saver: BaseCheckpointSaver) -> None:
        """P4, P3: if a row of events has the key of a stored row, or of another row in its commit, the commit fails and
        stores nothing."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), records=[record(1, "a")], events=[event(1), event(1, 2, "part")]))
        before = await everything(saver)
        taken = event(1, 2, "tail", frame=b"other")
        for rows in ([event(1, 3), taken], [event(1, 2, "part")], [event(2), event(2, frame=b"other")]):
            for attempt in (
                commit(row(2, 1), head=1, events=rows, records=[record(2, "b")], releases=True),
                commit(events=rows, clears=[record(1, "a")], expires_at=LATER + 9),
                commit(head=1, moves=("", 1), events=rows, records=[record(1, "b")]),
            ):
                with pytest.raises(StorageError):
                    await saver.commit(lease, attempt)
                assert await everything(saver) == before
                assert await expires_at(saver, lease) == LATER
        await saver.commit(lease, commit(row(2, 1), head=1, events=[event(1, 3), event(1, 2, epoch=2), event(2)]))
        assert await keys_of(saver) == [(1, 1, 1), (1, 1, 2), (1, 1, 3), (1, 2, 2), (2, 1, 1)]

    async def test_only_events(self, saver: BaseCheckpointSaver) -> None:
        """P4, P6: a commit of events alone needs no head; it moves the expiry, and may store records and release the
        lease."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1)))
        await saver.commit(lease, commit(events=[event(1, 1, "part")], expires_at=LATER + 10))
        assert await expires_at(saver, lease) == LATER + 10
        await saver.commit(lease, commit(events=[event(1, 2, "part")], records=[record(1, "a")]))
        assert await expires_at(saver, lease) == LATER
        chain = await saver.read("t")
        assert chain is not None and (chain.head, chain.records) == (cid(1), (record(1, "a"),))
        await saver.commit(lease, commit(events=[event(1, 3, "tail")], clears=[record(1, "a")], releases=True))
        assert [one.kind for one in await saver.events("t")] == ["part", "part", "tail"]
        again = await take(saver, run="run-2")
        assert again.newest == cid(1), "events are not checkpoints"

    async def test_a_reader_of_a_checkpoint_finds_its_events(
        self, saver: BaseCheckpointSaver, open_saver: OpenSaver
    ) -> None:
        """P3: a reader that sees a superstep sees its events, and a reader that sees events sees their superstep."""
        steps, ended = 40, threading.Event()
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), events=[event(1)]))

        async def write() -> None:
            try:
                for number in range(2, steps):
                    shown = [event(number - 1, 2, "tail"), event(number)]
                    await saver.commit(lease, commit(row(number, number - 1, base=1), head=number - 1, events=shown))
            finally:
                ended.set()

        async def look(other: BaseCheckpointSaver) -> None:
            while True:
                last = ended.is_set()
                before = await head_of(other)
                found = await other.events("t", limit=10_000)
                after = await head_of(other)
                assert before is not None and after is not None
                newest = found[-1]
                assert before <= newest.checkpoint_id <= after
                assert len(found) == 2 * int(newest.checkpoint_id.split("-")[0]) - 1, "a commit's events come together"
                if last:
                    return

        async def look_there() -> None:
            async with open_saver() as other:
                await look(other)

        await in_threads(write, lambda: look(saver), look_there)

    async def test_a_cancelled_commit(self, saver: BaseCheckpointSaver) -> None:
        """P7: after a commit was cancelled, both its checkpoint and its events are stored, or neither; nothing is
        stored later."""
        for turns in range(TURNS):
            thread = f"t{turns}"
            lease = await take(saver, thread)
            await saver.commit(lease, commit(row(1), events=[event(1)]))
            async with anyio.create_task_group() as group:
                shown = [event(1, 2, "tail"), event(2)]
                group.start_soon(saver.commit, lease, commit(row(2, 1), head=1, events=shown))
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            found = await saver.events(thread)
            assert len(found) == (3 if await head_of(saver, thread) == cid(2) else 1)
            await written(
                saver, row(1), thread=f"{thread}-other"
            )  # an abandoned write would be stored before these later ones
            assert await saver.events(thread) == found

    async def test_frames_of_events_come_back_byte_for_byte(self, saver: BaseCheckpointSaver) -> None:
        """P11: frames of events of any size and with any byte come back unchanged."""
        frames = [noise(size) for size in (0, 1, 255, 4095, 4096, 4097, 65_536, 1_000_000)]
        frames += [bytes(range(256)), b"\x00" * 100, b"\xff" * 100, b"text"]
        lease = await take(saver)
        rows = [event(1, position, "part", frame=frame) for position, frame in enumerate(frames, 1)]
        await saver.commit(lease, commit(row(1), events=rows))
        found = await saver.events("t")
        assert [one.frame for one in found] == frames
        assert all(type(one.frame) is bytes for one in found)

    async def test_every_text_is_a_threads_id_for_events(self, saver: BaseCheckpointSaver) -> None:
        """P11: events belong to exactly one thread id, whatever text the id is."""
        for thread in HOSTILE:
            lease = await take(saver, thread)
            shown = [event(number, frame=thread.encode()) for number in (1, 2)]
            await saver.commit(lease, commit(row(1), events=shown, releases=True))
        for thread in HOSTILE:
            assert [one.frame for one in await saver.events(thread)] == [thread.encode()] * 2
        gone = "'; DROP TABLE checkpoints; --"
        await saver.adelete_thread(gone)
        assert [one for one in HOSTILE if not await saver.events(one)] == [gone]

    async def test_a_thread_has_one_row_of_events(self, saver: BaseCheckpointSaver) -> None:
        """P4: a thread has one sequence of events for all its namespaces; a key is unique in the thread."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), events=[event(1)]))
        await saver.commit(lease, commit(row(2, ns="child"), events=[event(1, 2, "part")]))
        await saver.commit(lease, commit(row(3, 2, base=2, ns="child"), head=2, events=[event(1, 3, "part")]))
        await saver.commit(lease, commit(row(4, 1, base=1), head=1, events=[event(1, 4, "tail"), event(4)]))
        assert await keys_of(saver) == [(1, 1, 1), (1, 1, 2), (1, 1, 3), (1, 1, 4), (4, 1, 1)]
        with pytest.raises(StorageError):  # keys are unique in the thread, and not in the namespace
            await saver.commit(lease, commit(row(5, ns="other"), events=[event(4)]))

    async def test_of_many_threads_at_once(self, saver: BaseCheckpointSaver) -> None:
        """P13: twenty OS threads, on asyncio and trio, store events of twenty threads at once, and none gets another
        thread's events."""

        async def run(number: int) -> None:
            lease = await take(saver, f"t{number}", f"run-{number}")
            await saver.commit(lease, commit(row(1), events=[event(1, frame=b"%d" % number)]))
            for step in range(2, 6):
                closes = event(step - 1, 2, "tail", frame=b"%d" % number)
                opens = event(step, frame=b"%d" % number)
                await saver.commit(lease, commit(row(step, step - 1, base=1), head=step - 1, events=[closes, opens]))
                assert len(await saver.events(f"t{number}")) == 2 * step - 1
            await saver.release(lease)

        await in_threads(*repeated(run, 20))
        for number in range(20):
            found = await saver.events(f"t{number}")
            assert len(found) == 9 and {one.frame for one in found} == {b"%d" % number}

    async def test_deleting(self, saver: BaseCheckpointSaver) -> None:
        """P6: events are deleted with their thread only, never under a live lease, and a new thread of that name has
        none."""
        for thread in ("t", "other"):
            lease = await take(saver, thread)
            await saver.commit(lease, commit(row(1), events=[event(1)]))
            await saver.commit(lease, commit(events=[event(1, 2, "tail")]))
            with pytest.raises(ThreadBusyError):
                await saver.adelete_thread(thread)
            assert len(await saver.events(thread)) == 2
            await saver.release(lease)
        await saver.adelete_thread("t")
        assert await saver.events("t") == ()
        assert len(await saver.events("other")) == 2
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), events=[event(1, frame=b"new")]))
        assert await saver.events("t") == (event(1, frame=b"new"),)

    async def test_a_thread_without_checkpoints_has_shown_nothing(self, saver: BaseCheckpointSaver) -> None:
        """P6: the events of a thread that never stored a checkpoint are removed when its lease is released."""
        for releases in (True, False):
            lease = await take(saver)
            assert lease.epoch == 1
            await saver.commit(lease, commit(events=[event(1)], releases=releases))
            await saver.release(lease)
            assert await saver.events("t") == ()

    async def test_a_read_that_is_cancelled(self, saver: BaseCheckpointSaver) -> None:
        """P7: reading events may be cancelled at any moment, and the saver keeps working."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), events=[event(1)]))
        for turns in range(TURNS):
            async with anyio.create_task_group() as group:
                group.start_soon(saver.events, "t")
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
        await saver.commit(lease, commit(events=[event(1, 2, "tail")]))
        assert len(await saver.events("t")) == 2
