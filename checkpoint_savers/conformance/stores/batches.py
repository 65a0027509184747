"""P7 and P13 for stores: operations of one turn share a transaction, cancellation is per caller, on all event loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import anyio
import anyio.to_thread
import pytest

from ...errors import StorageError, SyncCallError
from ...stores.abc import BaseStore
from ...stores.ops import GetOp, Item, ListNamespacesOp, Op, PutOp, SearchOp
from ...stores.port import Batch, Done, Scan
from ..caches.conformance import Clock
from ..savers.loops.cancellation import TURNS
from ..savers.suite import cancelled_natively, in_a_loop_each, in_threads, repeated
from .suite import SPACE, BatchRecorder, OpenStore, StoreSuite, keys, put, there, turns, value

THREADS = 10


class Batches(StoreSuite):
    async def test_what_is_asked_in_one_turn_is_one_transaction(
        self, store: BaseStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Operations of several tasks in one turn of the event loop go to the backend as one batch."""
        await put(store, "a", "b")
        watched = BatchRecorder(store, monkeypatch)
        async with anyio.create_task_group() as group:
            for key in ("b", "c", "d"):
                group.start_soon(store.aput, SPACE, key, {"new": key})
            group.start_soon(store.adelete, SPACE, "a")
            group.start_soon(store.aget, SPACE, "a")
            group.start_soon(store.asearch, SPACE)
            group.start_soon(store.alist_namespaces)
            several: list[Op] = [GetOp(SPACE, "b"), PutOp(SPACE, "e", {})]
            group.start_soon(store.abatch, several)
        (batch,) = watched.batches
        assert len(batch.writes) == 5 and len(batch.reads) == 4
        assert sorted(await keys(store)) == ["b", "c", "d", "e"]

    async def test_reads_see_what_was_before(self, store: BaseStore) -> None:
        """Reads of a batch see the state before the puts of the batch, whatever their order."""
        await put(store, "old", "gone")
        answers = await store.abatch(
            [
                PutOp(SPACE, "old", {"new": 1}),
                PutOp(SPACE, "gone", None),
                PutOp(("other",), "new", {}),
                GetOp(SPACE, "old"),
                GetOp(SPACE, "gone"),
                GetOp(("other",), "new"),
                SearchOp((), filter={"key": "old"}),
                ListNamespacesOp(),
            ]
        )
        assert answers[:3] == [None, None, None]
        assert [cast("Item", one).value for one in answers[3:5]] == [{"key": "old"}, {"key": "gone"}]
        assert answers[5] is None
        assert [item.key for item in cast("list[Item]", answers[6])] == ["old"]
        assert answers[7] == [SPACE]
        assert await value(store, "old") == {"new": 1}
        assert sorted(await keys(store)) == ["new", "old"]

    async def test_the_last_put_of_a_batch_is_done(self, store: BaseStore) -> None:
        """Of several puts and deletes of one item in a batch, only the last takes effect."""
        await put(store, "a", "b", "c")
        await store.abatch(
            [
                *(PutOp(SPACE, "a", {"n": number}) for number in range(3)),
                PutOp(SPACE, "b", {"n": 1}),
                PutOp(SPACE, "b", None),
                PutOp(SPACE, "c", None),
                PutOp(SPACE, "c", {"n": 2}),
            ]
        )
        assert await value(store, "a") == {"n": 2}
        assert await value(store, "b") is None
        assert await value(store, "c") == {"n": 2}

    async def test_the_same_reads_are_done_once(self, store: BaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """P1: equal reads of one turn are done once, and each caller gets its own object."""
        await put(store, "a", "b")
        watched = BatchRecorder(store, monkeypatch)
        answers = await store.abatch(
            [
                *[GetOp(SPACE, "a"), GetOp(SPACE, "a"), GetOp(SPACE, "a", refresh_ttl=False)],
                *[SearchOp(SPACE, {"key": "a"}), SearchOp(SPACE, {"key": "a"}), SearchOp(SPACE, {"key": "b"})],
                *[SearchOp(SPACE), SearchOp(SPACE, {}), SearchOp(SPACE, {"key": True}), SearchOp(SPACE, {"key": 1})],
                *[ListNamespacesOp(), ListNamespacesOp(), ListNamespacesOp(max_depth=1)],
            ]
        )
        (batch,) = watched.batches
        assert len(batch.reads) == 2 + 2 + 4 + 2
        assert sum(isinstance(read, Scan) for read in batch.reads) == 6
        assert answers[0] == answers[1] == answers[2]
        values = [cast("Item", one).value for one in answers[:3]] + [cast("Any", one)[0].value for one in answers[3:5]]
        assert len({id(one) for one in values}) == 5
        assert [[item.key for item in cast("Any", one)] for one in answers[3:10]] == [
            *[["a"], ["a"], ["b"]],
            *[["a", "b"], ["a", "b"], [], []],
        ]
        assert answers[10] == answers[11] == [SPACE] and answers[12] == [SPACE[:1]]

    async def test_who_has_waited_sees_what_was_done(self, store: BaseStore) -> None:
        """An operation sees the effects of all operations that returned before it started, whatever others do."""

        async def work(number: int) -> None:
            for step in range(10):
                await store.aput(SPACE, str(number), {"step": step})
                assert await value(store, str(number)) == {"step": step}
                await store.adelete(SPACE, str(number))
                assert await there(store, str(number)) == []

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(work, number)

    async def test_a_failing_batch_fails_its_members_only(
        self, store: BaseStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P9: if a batch fails, each caller in it gets its own exception, and callers before and after are not
        affected."""
        await put(store, "a")
        transact, errors = store.transact, list[BaseException]()

        async def ask(work: Callable[[], Any]) -> None:
            try:
                await work()
            except StorageError as error:
                error.add_note("mine")
                errors.append(error)

        cause = OSError("the disk")
        # A backend reports a failure in either of two ways: it raises, or it passes the error to `done`.
        for refuses in (True, False):

            def fail(batch: Batch, done: Done, refuses: bool = refuses) -> None:
                error = StorageError("the disk is gone")
                error.__cause__ = cause
                if refuses:
                    raise error
                done(error)

            with monkeypatch.context() as broken:
                broken.setattr(store, "transact", fail)
                async with anyio.create_task_group() as group:
                    group.start_soon(ask, lambda: store.aput(SPACE, "a", {}))
                    group.start_soon(ask, lambda: store.aget(SPACE, "a"))
                    group.start_soon(ask, lambda: store.asearch(SPACE))
            assert store.transact == transact
            assert await value(store, "a") == {"key": "a"}
        assert len({id(error) for error in errors}) == 6
        for error in errors:
            assert str(error) == "the disk is gone" and error.__cause__ is cause
            assert error.__notes__ == ["mine"]

    async def test_cancelled_callers(self, store: BaseStore) -> None:
        """P7: if a caller is cancelled at any moment, all of its writes are stored or none, and other callers in its
        batch are not affected."""
        for round in range(TURNS):
            await put(store, "a", "b", "c")
            got, ended = list[Any](), list[Any]()

            async def other(got: list[Any] = got) -> None:
                got.append(await store.abatch([GetOp(SPACE, "a"), PutOp(SPACE, "c", {"other": 1})]))

            async with anyio.create_task_group() as outer:
                async with anyio.create_task_group() as group:
                    group.start_soon(store.abatch, [PutOp(SPACE, key, {"new": 1}) for key in "ab"])
                    outer.start_soon(other)
                    await turns(round)
                    group.cancel_scope.cancel()
                ended = [await value(store, key) for key in "ab"]
                assert ended in ([{"key": "a"}, {"key": "b"}], [{"new": 1}] * 2)
            assert [await value(store, key) for key in "ab"] == ended
            assert await value(store, "c") == {"other": 1}
            assert len(got) == 1 and got[0][0].value in ({"key": "a"}, {"new": 1})

    async def test_a_cancelled_task(self, store: BaseStore, anyio_backend_name: str) -> None:
        """P7: if an asyncio task is cancelled once or several times, all of its writes are stored or none, and the task
        ends as cancelled."""
        if anyio_backend_name != "asyncio":
            pytest.skip("trio has no cancellation of its own besides scopes")
        for round in range(TURNS):
            for again in range(3):
                await put(store, "a", "b")
                await cancelled_natively(store.abatch([PutOp(SPACE, key, {"new": 1}) for key in "ab"]), round, again)
                found = [await value(store, key) for key in "ab"]
                assert found in ([{"key": "a"}, {"key": "b"}], [{"new": 1}] * 2)
                await put(store, "c")
                assert [await value(store, key) for key in "ab"] == found

    async def test_in_a_cancelled_scope(self, store: BaseStore) -> None:
        """P7: in a scope that is cancelled already, no operation starts; within a shield, operations work as usual."""
        with anyio.CancelScope() as scope:
            scope.cancel()
            await put(store, "a")
        assert await there(store, "a") == []
        with anyio.CancelScope() as scope:
            scope.cancel()
            with anyio.CancelScope(shield=True):
                await put(store, "b")
        assert await there(store, "a", "b") == ["b"]

    async def test_one_store_in_many_threads(self, store: BaseStore) -> None:
        """P13: one open store serves ten OS threads at once, each with its own event loop, asyncio or trio."""

        async def run(number: int) -> None:
            space = ("thread", str(number))
            for step in range(10):
                async with anyio.create_task_group() as group:
                    for each in "abc":
                        group.start_soon(store.aput, space, f"{step}{each}", {"step": step})
                    group.start_soon(store.aput, SPACE, "shared", {"by": number})
                assert len(await store.asearch(space, limit=100)) == 3 * (step + 1)
                await store.adelete(SPACE, f"{number}")
            assert await value(store, "shared") is not None

        await in_threads(*repeated(run, THREADS))
        assert len(await keys(store)) == THREADS * 30 + 1

    async def test_opened_on_one_loop_and_closed_on_another(self, open_store: OpenStore) -> None:
        """P13: a store may be opened on one event loop, used on another and closed on a third, after the earlier ones
        have ended."""
        manager = open_store(ttl={"sweep_interval_minutes": 60})
        opened: list[BaseStore] = []

        async def enter() -> None:
            opened.append(await manager.__aenter__())
            await put(opened[0], "a")

        async def use() -> None:
            assert await keys(opened[0]) == ["a"]

        async def leave() -> None:
            await manager.__aexit__(None, None, None)

        await in_a_loop_each(enter, use, leave)

    async def test_without_async(self, store: BaseStore, clock: Clock) -> None:
        """Each verb has a variant without the `a`, for worker threads and programs without an event loop."""

        def work() -> None:
            store.put(SPACE, "a", {"n": 1})
            store.put(SPACE, "b", {"n": 2}, ttl=1)
            item = store.get(SPACE, "a")
            assert item is not None and item.value == {"n": 1}
            assert [one.key for one in store.search(SPACE, filter={"n": {"$gt": 1}})] == ["b"]
            assert store.list_namespaces(prefix=("*",)) == [SPACE]
            assert store.batch([PutOp(SPACE, "c", {}), GetOp(SPACE, "c")]) == [None, None]
            assert store.batch([]) == []
            store.delete(SPACE, "a")
            assert store.get(SPACE, "a", refresh_ttl=False) is None
            clock.now += 60
            assert store.sweep_ttl() == 1
            with pytest.raises(TypeError):
                store.put(SPACE, "d", cast("Any", 1))

        await anyio.to_thread.run_sync(work)
        assert await keys(store) == ["c"]

    async def test_without_async_in_many_threads(self, store: BaseStore) -> None:
        """P13: plain threads may call the store at the same time as event loops."""

        async def run(number: int) -> None:
            def work() -> None:
                for step in range(10):
                    store.put(("thread", str(number)), str(step), {})
                    assert len(store.search(("thread", str(number)), limit=100)) == step + 1

            if number % 2:
                await put(store, "x", space=("loop", str(number)))
            await anyio.to_thread.run_sync(work)

        await in_threads(*repeated(run, 6))
        assert len(await keys(store)) == 6 * 10 + 3

    async def test_without_async_where_a_loop_runs(self, store: BaseStore) -> None:
        """A verb without the `a` never blocks an event loop: on one it raises and does nothing, unless the store never
        waits."""
        verbs: list[Callable[[], Any]] = [
            lambda: store.put(SPACE, "a", {}),
            lambda: store.get(SPACE, "a"),
            lambda: store.search(SPACE),
            lambda: store.list_namespaces(),
            lambda: store.batch([GetOp(SPACE, "a")]),
            lambda: store.sweep_ttl(),
            lambda: store.delete(SPACE, "a"),
        ]
        for verb in verbs:
            if store.waits:
                with pytest.raises(SyncCallError, match=r"await store\.a"):
                    verb()
            else:
                verb()
        assert await keys(store) == []
