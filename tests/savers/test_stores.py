"""Rules for all stores that the conformance suite does not cover: damage, automatic sweeps, and backends of users."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.to_thread
import pytest

import checkpoint_savers
from checkpoint_savers import (
    BaseStore,
    CorruptCheckpointError,
    InMemoryStore,
    SaverClosedError,
    StorageError,
    UnsupportedFormatError,
    stores,
)
from checkpoint_savers.codec import frame as frames
from checkpoint_savers.codec import seal
from checkpoint_savers.conformance.caches.conformance import Clock
from checkpoint_savers.conformance.savers.suite import NOW
from checkpoint_savers.conformance.stores.suite import SPACE, BatchRecorder, keys, put, there, value
from checkpoint_savers.errors import VectorSearchError
from checkpoint_savers.stores import Batch, Done, GetOp, Item, Outcome, PutOp, SearchItem, SearchOp, Spaces
from checkpoint_savers.stores.abc import SWEEP_SPACING
from checkpoint_savers.stores.items import item_of
from checkpoint_savers.stores.memory import _StoredRow
from checkpoint_savers.stores.names import pack, pattern
from checkpoint_savers.stores.port import page_of_spaces
from pregel_async._core.isolation import isolate
from tests.savers.sqlite_tools import ENV

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> InMemoryStore:
    return InMemoryStore(clock=clock)


def change(store: InMemoryStore, key: str, **changed: Any) -> None:
    """Damage a stored row."""
    rows = store._spaces[pack(SPACE)]
    kept = rows[key.encode()]
    rows[key.encode()] = _StoredRow(kept.row._replace(**changed), kept.expires_at)


def frame(store: InMemoryStore, key: str, space: tuple[str, ...] = SPACE) -> bytes:
    return store._spaces[pack(space)][key.encode()].row.frame


async def test_a_damaged_item_is_never_a_value(store: InMemoryStore) -> None:
    """P11: whichever byte of an item's frame is wrong or missing, reading it raises an error that names the item;
    other items can be read."""
    await put(store, "a", "b")
    whole = frame(store, "a")
    damaged = [whole[:at] + bytes((whole[at] ^ 1 << at % 8,)) + whole[at + 1 :] for at in range(len(whole))]
    for one in [*damaged, whole[:-1], whole + b"x", b"", "text", None, seal(b""), seal(whole)]:
        change(store, "a", frame=one)
        with pytest.raises(CorruptCheckpointError, match="item 'a' of namespace"):
            await store.aget(SPACE, "a")
        with pytest.raises(CorruptCheckpointError, match="item 'a' of namespace"):
            await store.asearch(SPACE)
        assert await value(store, "b") == {"key": "b"}
    await put(store, "a")
    assert await there(store, "a", "b") == ["a", "b"]


async def test_a_damaged_item_fails_its_own_reader_only(store: InMemoryStore) -> None:
    """P9: other calls in the same batch get their results, and the item can be deleted."""
    await put(store, "a", "b")
    change(store, "a", frame=b"")
    got: list[Any] = []

    async def ask(key: str) -> None:
        try:
            got.append((await store.aget(SPACE, key)) is not None)
        except CorruptCheckpointError as error:
            got.append(type(error))

    async with anyio.create_task_group() as group:
        for key in "abab":
            group.start_soon(ask, key)
    assert sorted(map(str, got)) == ["<class 'checkpoint_savers.errors.CorruptCheckpointError'>"] * 2 + ["True"] * 2
    with pytest.raises(CorruptCheckpointError):  # it is unknown whether the item matches
        await store.asearch(SPACE, filter={"key": "b"})
    await store.adelete(SPACE, "a")
    assert await keys(store, filter={"key": "b"}) == ["b"]


@pytest.mark.parametrize(
    "changed",
    [
        {"created_at": 1e300},
        {"updated_at": "yesterday"},
        {"created_at": None},
        {"updated_at": float("nan")},
        {"namespace": b"\xff\x00"},
        {"namespace": b"a"},
        {"namespace": b""},
        {"namespace": "a"},
        {"namespace": None},
        {"namespace": b"\x00"},
        {"namespace": pack(("memories", "bob"))},
        {"key": b"\xff"},
        {"key": "a"},
        {"key": b"b"},
        {"key": None},
    ],
    ids=repr,
)
async def test_damaged_columns(store: InMemoryStore, changed: dict[str, Any]) -> None:
    """P11: the columns next to the frame are checked, too; a row under another key is not returned."""
    await put(store, "a")
    row = store._spaces[pack(SPACE)][b"a"].row
    assert item_of(row, store.codec, Item).value == {"key": "a"}
    with pytest.raises(CorruptCheckpointError):
        item_of(row._replace(**changed), store.codec, Item)


async def test_a_damaged_namespace_is_not_listed(store: InMemoryStore) -> None:
    """P11: a listing that reads it raises an error."""
    await put(store, "a")
    store._spaces[b"\xf0a\x00"] = store._spaces.pop(pack(SPACE))
    store._order = [b"\xf0a\x00"]
    with pytest.raises(CorruptCheckpointError, match="a stored namespace"):
        await store.alist_namespaces()


async def test_an_item_of_a_later_version(store: InMemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """P11: such an item is not read, and not reported as damage."""
    with monkeypatch.context() as later:
        later.setattr(frames, "FORMAT", frames.FORMAT + 1)
        await put(store, "a")
    with pytest.raises(UnsupportedFormatError):
        await store.aget(SPACE, "a")


async def test_a_value_that_is_not_a_dict(store: InMemoryStore) -> None:
    """P11: an intact frame with another type of value was never written by a store."""
    await put(store, "a")
    change(store, "a", frame=seal(b"".join((pack(SPACE), b"a\0", store.codec.encode([1], channel="x")))))
    with pytest.raises(CorruptCheckpointError, match="no dict but list"):
        await store.aget(SPACE, "a")


async def test_a_nodes_isolated_values_can_be_put(store: InMemoryStore) -> None:
    """P1: the copies of containers in a node's state are stored as plain containers, at any depth, and can be used
    in filters."""
    state = isolate({"profile": {"tags": ["a", {"b": [1]}]}, "tags": ["a"], "kinds": {1}})
    state["profile"]["tags"].append(2)
    await store.aput(SPACE, "all", state)
    await store.aput(SPACE, "part", {"given": state["profile"]["tags"], "set": state["kinds"]})
    got = await value(store, "all")
    assert got == {"profile": {"tags": ["a", {"b": [1]}, 2]}, "tags": ["a"], "kinds": {1}}
    assert type(got["profile"]) is dict and type(got["profile"]["tags"]) is list
    assert await value(store, "part") == {"given": ["a", {"b": [1]}, 2], "set": {1}}
    assert await keys(store, filter=isolate({"profile": {"tags": ["a", {"b": [1]}, 2]}})) == ["all"]
    state["profile"]["tags"].append(3)
    assert await value(store, "all") == got


def test_items() -> None:
    """Items are equal if all their fields are, can be elements of sets, and have a JSON form."""
    moment = datetime(2024, 1, 1, 12, tzinfo=UTC)
    facts: dict[str, Any] = {"key": "k", "namespace": ("a", "b"), "created_at": moment, "updated_at": moment}
    item, found = Item(value={"x": [1]}, **facts), SearchItem(value={"x": [1]}, **facts)
    assert item == Item(value={"x": [1]}, **facts) != Item(value={"x": []}, **facts)
    assert {item, Item(value={"x": [1]}, **facts)} == {item}
    assert item.dict() == {
        "namespace": ["a", "b"],
        "key": "k",
        "value": {"x": [1]},
        "created_at": "2024-01-01T12:00:00+00:00",
        "updated_at": "2024-01-01T12:00:00+00:00",
    }
    assert found.dict() == {**item.dict(), "score": None}
    assert json.loads(json.dumps(found.dict())) == found.dict()


def test_operations_are_constructed_as_in_langgraph() -> None:
    """Arguments are positional or named, and omitted ones have the methods' defaults."""
    assert GetOp(("a",), "k") == GetOp(namespace=("a",), key="k", refresh_ttl=None)
    assert PutOp(("a",), "k", {}) == PutOp(namespace=("a",), key="k", value={}, index=None, ttl=stores.NOT_PROVIDED)
    assert SearchOp(("a",), {"x": 1}, 5) == SearchOp(namespace_prefix=("a",), filter={"x": 1}, limit=5, offset=0)
    assert not stores.NOT_PROVIDED and repr(stores.NOT_PROVIDED) == "NOT_PROVIDED"


def test_a_store_is_true(store: InMemoryStore) -> None:
    """`if store:` checks for None, so an empty store is true."""
    assert store


@pytest.mark.parametrize(
    ("ttl", "error", "match"),
    [
        ({"default": 1}, ValueError, "no 'default'"),
        ({"omit_expired": False}, ValueError, "what has expired is never found"),
        ({"refresh_on_read": 1}, TypeError, "True or False"),
        ({"default_ttl": 0}, ValueError, "more than 0"),
        ({"sweep_interval_minutes": "1"}, TypeError, "minutes or None"),
        (5, TypeError, "is a dict"),
    ],
)
def test_an_invalid_ttl_configuration(ttl: Any, error: type[Exception], match: str) -> None:
    """It is refused when the store is created."""
    with pytest.raises(error, match=match):
        InMemoryStore(ttl=ttl)


def test_ttl_configurations() -> None:
    """LangGraph's configurations are accepted if this package can keep them."""
    given: stores.TTLConfig = {"default_ttl": None, "refresh_on_read": False, "omit_expired": True}
    assert InMemoryStore(ttl=given).ttl_config == given
    assert InMemoryStore(ttl={}).ttl_config == {}
    assert InMemoryStore.supports_ttl
    wrong: Any = {"dims": 3}
    with pytest.raises(VectorSearchError, match="index="):
        InMemoryStore(index=wrong)


class Ticking(Clock):
    """A clock that counts the calls of a sweeper's thread."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Semaphore(0)

    def __call__(self) -> float:
        if "sweeper" in threading.current_thread().name:
            self.asked.release()
        return self.now

    async def sweeps(self, number: int = 1) -> None:
        """Wait until so many sweeps have begun."""
        for _ in range(number):
            assert await anyio.to_thread.run_sync(self.asked.acquire, True, 30)


def sweepers() -> list[str]:
    return [one.name for one in threading.enumerate() if "sweeper" in one.name]


FAST = 0.0001
"""An interval between sweeps, in minutes."""


async def test_an_open_store_sweeps_by_itself() -> None:
    """While a store is open, expired items are removed automatically; the sweeper's thread ends when the store is
    closed."""
    clock = Ticking()
    async with InMemoryStore(clock=clock, ttl={"default_ttl": 1, "sweep_interval_minutes": FAST}) as store:
        await store.aput(SPACE, "a", {})
        clock.now += 60
        await clock.sweeps(2)
        await clock.sweeps(2)  # the sweep before the last has ended
        assert not store._spaces
        assert len(sweepers()) == 1
        with pytest.raises(SaverClosedError, match="open already"):
            await store.__aenter__()
    assert not sweepers()
    async with store:
        assert len(sweepers()) == 1
    assert not sweepers()


async def test_a_sweep_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """If storage is unreachable for a while, no error is raised, and sweeping continues afterwards."""
    clock = Ticking()
    async with InMemoryStore(clock=clock, ttl={"default_ttl": 1, "sweep_interval_minutes": FAST}) as store:
        await store.aput(SPACE, "a", {})
        clock.now += 60

        def fail(batch: Batch, done: Done) -> None:
            raise StorageError("the disk is gone")

        with monkeypatch.context() as broken:
            broken.setattr(store, "transact", fail)
            await clock.sweeps(3)
            assert store._spaces
        await clock.sweeps(4)
        assert not store._spaces


async def test_a_store_that_is_never_closed_is_freed() -> None:
    """The sweeper's thread does not keep the store alive."""
    clock = Ticking()
    store = InMemoryStore(clock=clock, ttl={"sweep_interval_minutes": FAST})
    await store.__aenter__()
    sweeper = store._sweeper
    assert sweeper is not None
    del store
    with anyio.fail_after(30):
        await sweeper._driver.join()
    assert not sweepers()


async def test_puts_sweep_once_a_minute(store: InMemoryStore, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """One put per minute also removes expired items; setting the clock back does not stop that."""
    watched = BatchRecorder(store, monkeypatch)
    for now in (0.0, 1.0, SWEEP_SPACING - 1, SWEEP_SPACING, SWEEP_SPACING + 1, -1000.0, -999.0):
        clock.now = NOW + now
        await put(store, "a")
        await store.aget(SPACE, "a")
    assert [bool(batch.sweeps) for batch in watched.batches] == [
        bool(part) for swept in (1, 0, 0, 1, 0, 1, 0) for part in (swept, 0)
    ]


async def test_a_store_does_not_leak_memory(store: InMemoryStore, clock: Clock) -> None:
    """Items that are put and read again and again, and deleted items, leave nothing behind."""
    for number in range(1000):
        await store.aput(SPACE, "k", {}, ttl=1000 + number)
        await store.aget(SPACE, "k")
    assert len(store._expiries) < 20
    for number in range(1000):
        await store.aput((str(number),), "k", {}, ttl=1)
        await store.adelete((str(number),), "k")
    await put(store, "last", ttl=1)
    assert len(store._expiries) < 20 and len(store._spaces) == len(store._order) == 1
    clock.now += 1e6
    assert await store.asweep_ttl() == 2
    assert not store._spaces and not store._order and not store._expiries and not store._expiring


class Yielding(dict[Any, Any]):
    """A dict that lets other threads run before each change."""

    def __setitem__(self, key: Any, value: Any) -> None:
        time.sleep(0)
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        time.sleep(0)
        super().__delitem__(key)


def test_threads_that_share_namespaces(store: InMemoryStore) -> None:
    """P13: threads that put and delete items in the same few namespaces lose none."""
    lost: list[object] = []
    store._spaces = Yielding()

    def use(number: int) -> None:
        try:
            for step in range(300):
                space = (str(step % 2),)
                store.put(space, str(number), {"n": step}, ttl=1)
                item = store.get(space, str(number))
                if item is None or item.value != {"n": step} or space not in store.list_namespaces():
                    lost.append(step)
                store.delete(space, str(number))
        except Exception as error:
            lost.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not lost and not store._spaces


def test_listing_skips_deeper_namespaces() -> None:
    """A listing cut to a depth makes one query for each namespace that it returns, however many are below it."""
    spaces = sorted(pack((first, str(number))) for first in "abc" for number in range(500))
    asked: list[bytes] = []

    def after(at: bytes) -> bytes | None:
        asked.append(at)
        return next((one for one in spaces if one >= at), None)

    start, end, shown = pattern((), 1)
    listed = page_of_spaces(after, Spaces(start=start, end=end, shown=shown, offset=0, limit=100))
    assert listed == [b"a\0", b"b\0", b"c\0"]
    assert len(asked) == 4


class Threaded(BaseStore):
    """A backend that answers from another thread."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.inner = InMemoryStore()

    def transact(self, batch: Batch, done: Done) -> None:
        threading.Thread(target=self.inner.transact, args=(batch, done)).start()


async def test_answers_from_another_thread() -> None:
    """P13: a backend may answer from any thread; a sync call waits for it, and an async call does not block its
    event loop."""
    store = Threaded()
    await put(store, "a", "b")
    assert sorted(await keys(store)) == ["a", "b"]
    item = await anyio.to_thread.run_sync(store.get, SPACE, "a")
    assert item is not None and item.value == {"key": "a"}


async def test_a_backend_that_answers_twice() -> None:
    """The first answer counts; a second one wakes no caller and is ignored."""

    class Twice(InMemoryStore):
        def transact(self, batch: Batch, done: Done) -> None:
            super().transact(batch, done)
            done(StorageError("after all"))
            raise StorageError("after all")

    store = Twice()
    await put(store, "a")
    assert await keys(store) == ["a"]
    assert await anyio.to_thread.run_sync(store.get, SPACE, "a") is not None


def failing(error: BaseException) -> Callable[[], float]:
    def clock() -> float:
        raise error

    return clock


async def test_every_error_reaches_the_callers() -> None:
    """An exception of a clock or a backend is raised for all callers of the batch; none waits for ever."""
    store = InMemoryStore(clock=failing(LookupError("no time")))
    with pytest.raises(LookupError, match="no time"):
        await put(store, "a")
    with pytest.raises(LookupError, match="no time"):
        await anyio.to_thread.run_sync(store.get, SPACE, "a")


async def test_a_batch_needs_one_answer_for_each_read(store: InMemoryStore) -> None:
    """A backend with too few answers causes an error at once."""

    class Short(BaseStore):
        def transact(self, batch: Batch, done: Done) -> None:
            done(Outcome([], 0))

    with pytest.raises(ValueError):
        await Short().aget(SPACE, "a")


def test_importing_the_stores_loads_no_driver() -> None:
    """SQLite is imported only when SqliteStore is used, and the public names of the package exist and are sorted."""
    code = "import sys, json, checkpoint_savers.stores; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENV)
    loaded = json.loads(ran.stdout)
    assert not [name for name in loaded if name.split(".")[0] in ("sqlite3", "aiosqlite", "trio")]
    assert not [name for name in loaded if "sqlite" in name]
    assert stores.__all__ == sorted(stores.__all__, key=lambda name: (not name.isupper(), name))
    assert all(getattr(stores, name) is not None for name in stores.__all__)
    for name in ("BaseStore", "InMemoryStore"):
        assert getattr(checkpoint_savers, name) is getattr(stores, name)
