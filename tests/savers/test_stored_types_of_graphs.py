"""P15: versions of stored classes in threads, on each saver, in stores and in caches."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import AsyncIterator
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from anyio import to_thread

from checkpoint_savers import (
    BaseCheckpointSaver,
    Codec,
    StoredObject,
    StoredTypeChangedError,
    SyncCallError,
    TypeVersionError,
    UpcastError,
    stored_type,
)
from checkpoint_savers.caches import InMemoryCache
from checkpoint_savers.stores import SqliteStore
from pregel_async import START, CachePolicy, Command, StateGraph, interrupt
from tests.savers.upkeep_graphs import opened

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    async with opened(request.param, tmp_path) as saver:
        yield saver


@stored_type("Item")
@dataclasses.dataclass
class Old:
    name: str
    cents: int


def to_price(fields: dict[str, Any]) -> dict[str, Any]:
    return {"name": fields["name"], "price": fields["cents"] / 100}


@stored_type("Item", version=2, upcast={1: to_price})
@dataclasses.dataclass
class New:
    name: str
    price: float


def order(cls: Any, saver: Any, bag: Any) -> Any:
    """A graph with an open question after a finished sibling: see the test."""
    schema: Any = TypedDict("schema", {"items": Annotated[list[cls], operator.add], "gift": cls}, total=False)

    def ask(state: Any) -> Any:
        return {"items": [bag] if interrupt("A bag?") else []}

    made: Any = StateGraph(schema).add_node("ask", ask).add_node("wrap", lambda state: {"gift": state["items"][0]})
    return made.add_edge(START, "ask").add_edge(START, "wrap").compile(saver, blocking=False)


async def test_a_class_gets_a_version_while_a_thread_is_open(saver: BaseCheckpointSaver) -> None:
    """State, history, recorded results of finished siblings, and what was stored incrementally are upcast; reading stores
    nothing; what the new code writes follows the old objects; and the old code refuses it before anything runs."""
    pens = [Old(f"pen {number}", 100 * number) for number in range(30)]  # enough to be stored incrementally
    old, new = order(Old, saver, Old("bag", 10)), order(New, saver, New("bag", 0.1))
    await old.ainvoke({"items": pens[:29]}, "t")
    await old.ainvoke({"items": pens[29:]}, "t")
    before = [state async for state in old.aget_state_history("t")]
    now = [New(pen.name, pen.cents / 100) for pen in pens]
    for _ in range(2):
        state = await new.aget_state("t")
        assert state.values["items"] == now
        (question,) = state.interrupts
        assert [task.result for task in state.tasks if task.name == "wrap"] == [{"gift": now[0]}]
    history = [state async for state in new.aget_state_history("t")]
    assert [state.config for state in history] == [state.config for state in before]
    assert (await old.aget_state("t")).values["items"] == pens  # nothing was stored

    done = await new.ainvoke(Command(resume={question.id: True}), "t")
    assert done == {"items": [*now, New("bag", 0.1)], "gift": now[0]}
    assert (await new.aget_state("t")).values == done
    for refused in (old.aget_state, lambda thread: old.ainvoke({"items": []}, thread)):
        with pytest.raises(TypeVersionError, match=r"'Item' \(version 2\) is newer than this code") as raised:
            await refused("t")
        assert (raised.value.newest, raised.value.__notes__) == (1, ["channel 'items' of thread 't' holds it"])
    earlier = before[1].config  # nothing of the new code is recorded there
    assert (await old.aget_state(earlier)).values["items"] == before[1].values["items"]

    fork = await new.ainvoke({"items": [New("cap", 1.0)]}, earlier)
    assert fork["items"] == [*now[: len(before[1].values["items"])], New("cap", 1.0)]


async def test_classes_of_others_are_declared_in_the_codec() -> None:
    """A class that its package does not declare has its versions in the saver's codec, under the default tag too."""

    def item(*fields: Any) -> Any:
        return dataclasses.make_dataclass("Item", fields, namespace={"__module__": __name__})

    one, two = item(("a", int)), item(("b", int))
    upcast = {1: lambda fields: {"b": fields["a"] + 1}}
    async with opened("memory", Path()) as saver:

        def graph(cls: Any, codec: Codec) -> Any:
            saver.codec = codec
            schema: Any = TypedDict("schema", {"item": cls}, total=False)
            made: Any = StateGraph(schema).add_node("node", lambda state: {}).add_edge(START, "node")
            return made.compile(saver, blocking=False)

        await graph(one, saver.codec).ainvoke({"item": one(1)}, "t")
        known = Codec().with_types(two, version=2, upcast=upcast)
        assert (await graph(two, known).aget_state("t")).values == {"item": two(2)}


@pytest.mark.one_loop
async def test_an_item_of_a_store_is_upcast(tmp_path: Path) -> None:
    """Items are upcast when they are read, and filters see the new fields. The three errors name the item."""
    path = tmp_path / "items.db"
    one, two = Codec().with_types(Old), Codec().with_types(New)
    async with SqliteStore.from_conn_string(path, codec=one) as store:
        for name in ("pen", "ink"):
            await store.aput(("a",), name, {"item": Old(name, 100)})
    async with SqliteStore.from_conn_string(path, codec=two) as store:
        found = await store.aget(("a",), "pen")
        assert found is not None and found.value == {"item": New("pen", 1.0)}
        (hit,) = await store.asearch(("a",), filter={"item": New("ink", 1.0)})
        assert hit.key == "ink"
        await store.aput(("a",), "new", {"item": New("new", 3.0)})
    async with SqliteStore.from_conn_string(path, codec=one) as store:
        with pytest.raises(TypeVersionError, match=r"^item 'new' of namespace \('a',\): a stored object") as newer:
            await store.aget(("a",), "new")
        assert (newer.value.version, newer.value.newest) == (2, 1)
        assert newer.value.where == "item 'new' of namespace ('a',)"
    broken = Codec().with_types(New, upcast={1: lambda fields: fields["no"]}, version=2)
    async with SqliteStore.from_conn_string(path, codec=broken) as store:
        with pytest.raises(UpcastError, match=r"^item 'pen' of namespace \('a',\): .*KeyError: 'no'") as failed:
            await store.aget(("a",), "pen")
        assert isinstance(failed.value.__cause__, KeyError) and failed.value.upcast == 1
    lacking = Codec().with_types(New, upcast={1: dict}, version=2)
    async with SqliteStore.from_conn_string(path, codec=lacking) as store:
        with pytest.raises(StoredTypeChangedError, match=r"^item 'ink'.*lacks field 'price'.*return from upcast\[1\]"):
            await store.asearch(("a",))


@pytest.mark.one_loop
async def test_a_store_is_checked_before_a_deployment(tmp_path: Path) -> None:
    """`acheck` returns the errors of all unreadable items of a namespace, and changes nothing."""
    path, clock = tmp_path / "items.db", [0.0]
    ttl: Any = {"default_ttl": 1}
    settings: Any = {"ttl": ttl, "clock": lambda: clock[0]}
    async with SqliteStore.from_conn_string(path, codec=Codec().with_types(Old), **settings) as store:
        for number in range(3):
            await store.aput(("a", "b"), f"pen {number}", {"item": Old("pen", 100)})
        await store.aput(("c",), "ink", {"item": Old("ink", 100)})
        await store.aput(("a",), "none", {"item": None})
    fails = {1: lambda fields: {"name": "", "price": 1} if fields["name"] == "ink" else fields}
    broken = Codec().with_types(New, version=2, upcast=fails)
    async with SqliteStore.from_conn_string(path, codec=broken, **settings) as store:
        errors = await store.acheck()
        assert sorted(str(error)[:12] for error in errors) == [f"item 'pen {n}'" for n in range(3)]
        assert {type(error) for error in errors} == {StoredTypeChangedError}
        assert len(await store.acheck(("a",), limit=2)) == 2
        assert await store.acheck(("c",)) == []
        assert len(await to_thread.run_sync(store.check)) == 3
        clock[0] = 59.0
        assert len(await store.acheck(limit=9)) == 3
        with pytest.raises(SyncCallError, match="acheck"):
            store.check()
        with pytest.raises(ValueError, match="limit"):
            await store.acheck(limit=-1)
    async with SqliteStore.from_conn_string(path, codec=Codec().with_types(New), **settings) as store:
        assert await store.acheck() == []
        assert len(await store.asearch((), refresh_ttl=False)) == 5
        clock[0] = 61.0  # the checks have refreshed no ttl
        assert await store.asearch(()) == []


MADE: ContextVar[tuple[Any, list[Any]]] = ContextVar("MADE")
"""What the node makes, and what it made. No closure: the fingerprint of its values would be part of the key."""


def make_item(state: Any) -> Any:
    item, ran = MADE.get()
    ran.append(item)
    return {"item": item}


@pytest.mark.one_loop
async def test_a_cached_result_is_upcast_or_computed_again() -> None:
    """A cached object of an earlier version is upcast. One that its class does not accept, whose upcaster fails, or that
    newer code has stored, is a miss, since a cache holds nothing that could be lost."""
    cache, ran = InMemoryCache(), list[Any]()

    @stored_type("Item", version=2, upcast={1: lambda fields: fields["no"]})
    @dataclasses.dataclass
    class Broken:
        name: str

    @stored_type("Item", version=2, upcast={1: dict})
    @dataclasses.dataclass
    class Needs:
        vat: int

    async def run(item: Any) -> Any:
        schema: Any = TypedDict("schema", {"item": type(item), "n": int}, total=False)
        made: Any = StateGraph(schema).add_node("make", make_item, cache_policy=CachePolicy(key_func=lambda state: "k"))
        graph = made.add_edge(START, "make").compile(cache=cache, blocking=False)
        token = MADE.set((item, ran))
        try:
            return (await graph.ainvoke({"n": 1}))["item"]
        finally:
            MADE.reset(token)

    await run(Old("pen", 100))
    assert await run(New("computed", 2.0)) == New("pen", 1.0)
    assert ran == [Old("pen", 100)]
    assert await run(Broken("broken")) == Broken("broken")
    assert await run(New("again", 4.0)) == New("again", 4.0)
    assert await run(Old("ink", 300)) == Old("ink", 300)
    assert await run(Needs(19)) == Needs(19)
    assert await run(Old("ink", 300)) == Old("ink", 300)
    assert ran[1:] == [Broken("broken"), New("again", 4.0), Old("ink", 300), Needs(19), Old("ink", 300)]
    assert await run(New("computed", 2.0)) == New("ink", 3.0)


async def test_unknown_keys_show_the_newest_form(saver: BaseCheckpointSaver) -> None:
    """A stored key that the graph does not have is shown in the newest form, and as data if newer code stored it."""
    await order(New, saver, None).ainvoke({"items": [New("pen", 1.0)]}, "new")
    await order(Old, saver, None).ainvoke({"items": [Old("pen", 100)]}, "old")
    for cls, thread, shown in [
        (New, "old", New("pen", 1.0)),
        (Old, "new", StoredObject("Item@2", {"name": "pen", "price": 1.0})),
    ]:
        schema: Any = TypedDict("schema", {"other": cls}, total=False)
        made: Any = StateGraph(schema).add_node("ask", lambda state: {}).add_node("wrap", lambda state: {})
        graph = made.add_edge(START, "ask").add_edge(START, "wrap").compile(saver, blocking=False)
        with pytest.warns(UserWarning):
            assert (await graph.aget_state(thread)).unknown == {"items": [shown]}
