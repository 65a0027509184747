"""P1 and P11 for stores: an item comes back as it was put, under its own name, and is shared with no other caller."""

from __future__ import annotations

import dataclasses
import datetime
from collections import OrderedDict
from decimal import Decimal
from types import MappingProxyType
from typing import Any, cast
from uuid import UUID

import anyio
import pytest

from ...codec import Codec
from ...errors import InvalidKeyError, InvalidNamespaceError, UnknownTypeError, UnstorableItemError, VectorSearchError
from ...stores.abc import BaseStore
from ...stores.names import LONGEST
from ...stores.ops import GetOp, Item, ListNamespacesOp, MatchCondition, PutOp, SearchItem, SearchOp
from ..caches.conformance import Clock
from ..savers.stored_bytes import HOSTILE
from ..savers.suite import NOW
from .suite import SPACE, OpenStore, StoreSuite, facts, keys, put, there, value, while_changing


@dataclasses.dataclass
class Dish:
    name: str
    parts: list[Any]


VALUES: tuple[dict[str, Any], ...] = (
    {},
    {"text": "", "none": None, "yes": True, "int": 2**70, "float": -0.0, "bytes": bytes(range(256))},
    {"": 1, ".": 2, "$eq": 3, "a.b": {"": []}, "\x00": "\x00"},
    {"list": [1, [2, (3, {"a": {4}})]], "frozen": frozenset({1, 2})},
    {"when": datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC), "day": datetime.date(1, 1, 1)},
    {"decimal": Decimal("1.10"), "id": UUID(int=7), "delta": datetime.timedelta(-1, 1, 1)},
    OrderedDict({"b": 1, "a": 2}),
    {"long": "x" * 1_000_000},
)

NO_NAMESPACES: tuple[Any, ...] = (
    (),
    ("",),
    ("a", ""),
    ("a.b",),
    ("a", "."),
    ("langgraph",),
    ("langgraph", "a"),
    ("a\x00",),
    ("a", "\ud800"),
    ("a", 1),
    (None,),
    "a",
    ["a"],
    None,
)

LABELS = tuple(text for text in HOSTILE if text and "." not in text and "\x00" not in text and len(text) < 500)
KEYS = tuple(text for text in HOSTILE if "\x00" not in text and len(text) < 500)


class Items(StoreSuite):
    @pytest.mark.parametrize("given", VALUES, ids=range(len(VALUES)))
    async def test_a_value_comes_back(self, store: BaseStore, given: dict[str, Any]) -> None:
        """P11: a value comes back equal in value and exact type, at any depth."""
        await store.aput(SPACE, "k", given)
        item = await store.aget(SPACE, "k")
        (found,) = await store.asearch(SPACE)
        assert type(item) is Item and type(found) is SearchItem
        assert found.score is None
        for got in (item.value, found.value):
            assert got == given and repr(got) == repr(given)
            assert _types(got) == _types(given)

    async def test_types_of_ones_own(self, open_store: OpenStore) -> None:
        """P11: objects of a registered class come back; an unregistered class is refused, and the error names the
        item."""
        async with open_store(codec=Codec().with_types(Dish, tag="dish")) as store:
            await store.aput(SPACE, "k", {"dish": Dish("soup", [1])})
            assert await value(store, "k") == {"dish": Dish("soup", [1])}
            assert await keys(store, filter={"dish": Dish("soup", [1])}) == ["k"]
            store.codec, known = Codec(), store.codec
            with pytest.raises(UnknownTypeError, match=r"item 'k' of namespace .*'dish'"):
                await store.aget(SPACE, "k")
            with pytest.raises(UnknownTypeError):  # a filter cannot be applied to a value that cannot be decoded
                await store.asearch(SPACE, filter={"name": "soup"})
            store.codec = known
            assert await value(store, "k") == {"dish": Dish("soup", [1])}

    async def test_what_cannot_be_stored(self, store: BaseStore) -> None:
        """P11: a value that cannot be stored is refused by the put, with item and path, and nothing of the call takes
        effect."""
        await put(store, "k")
        with pytest.raises(
            UnstorableItemError, match=r"item 'k' of namespace .*'ann'.*, at value\['a'\]\[1\]"
        ) as caught:
            await store.aput(SPACE, "k", {"a": [1, object()]})
        assert (caught.value.namespace, caught.value.key, caught.value.path) == (SPACE, "k", "['a'][1]")
        with pytest.raises(UnstorableItemError):
            await store.abatch([PutOp(SPACE, "other", {}), PutOp(SPACE, "k", {"a": Dish("soup", [])})])
        assert await keys(store) == ["k"]
        assert await value(store, "k") == {"key": "k"}

    @pytest.mark.parametrize("given", ["text", 1, ["a"], [("a", 1)], Dish("soup", [])], ids=ascii)
    async def test_a_value_is_a_dict(self, store: BaseStore, given: Any) -> None:
        """A value that is not a dict is refused, and the stored item stays."""
        await put(store, "k")
        with pytest.raises(TypeError, match="an item's value is a dict"):
            await store.aput(SPACE, "k", given)
        assert await value(store, "k") == {"key": "k"}

    async def test_other_mappings(self, store: BaseStore) -> None:
        """A value that is another mapping is stored as a dict."""
        await store.aput(SPACE, "k", MappingProxyType({"a": 1}))
        assert await value(store, "k") == {"a": 1}

    async def test_nothing_that_is_passed_or_returned_is_shared(self, store: BaseStore) -> None:
        """P1: changing a value after a put, or a returned value, changes neither what is stored nor what others got."""
        given: dict[str, Any] = {"list": [1], "dict": {"a": 1}}

        def change() -> None:
            given["list"].append(2)
            given["dict"].clear()

        await while_changing(lambda: store.aput(SPACE, "k", given), change)
        kept = {"list": [1], "dict": {"a": 1}}
        given.clear()
        assert await value(store, "k") == kept
        got: list[Any] = []

        async def read() -> None:
            got.append(await store.aget(SPACE, "k"))
            got.extend(await store.asearch(SPACE))

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            group.start_soon(read)
        assert len(got) == 4
        for item in got:
            assert item.value == kept
            item.value["list"].append(3)
            item.value["dict"]["b"] = 2
        assert await value(store, "k") == kept

    async def test_what_is_not_there(self, store: BaseStore) -> None:
        """A key without an item returns None, and deleting it does nothing."""
        assert await store.aget(SPACE, "k") is None
        assert await store.asearch(()) == []
        assert await store.alist_namespaces() == []
        assert await store.abatch([]) == []
        await store.adelete(SPACE, "k")
        await put(store, "k")
        assert await there(store, "k", "other") == ["k"]
        assert await store.aget(("memories",), "k") is None
        assert await store.aget(("langgraphs",), "k") is None

    async def test_the_times_of_an_item(self, store: BaseStore, clock: Clock) -> None:
        """created_at is the time of the first put, and updated_at that of the last."""
        await put(store, "k")
        assert facts(await store.aget(SPACE, "k")) == (SPACE, "k", NOW, NOW)
        clock.now = NOW + 1.5
        await put(store, "k", "later")
        clock.now = NOW + 3
        item = await store.aget(SPACE, "k")
        assert facts(item) == (SPACE, "k", NOW, NOW + 1.5)
        assert item is not None and item.created_at.tzinfo is datetime.UTC
        assert [facts(one) for one in await store.asearch(SPACE)] == [
            (SPACE, "k", NOW, NOW + 1.5),
            (SPACE, "later", NOW + 1.5, NOW + 1.5),
        ]
        await store.adelete(SPACE, "k")
        assert await there(store, "k", "later") == ["later"]
        await put(store, "k")
        assert facts(await store.aget(SPACE, "k")) == (SPACE, "k", NOW + 3, NOW + 3)

    async def test_none_deletes(self, store: BaseStore) -> None:
        """Putting None deletes the item."""
        await put(store, "k", "other")
        await store.aput(SPACE, "k", cast("Any", None))
        assert await keys(store) == ["other"]

    async def test_every_text_is_a_name(self, store: BaseStore) -> None:
        """P11: labels and keys may be any text, two different ones are never confused, and none becomes part of a
        query."""
        spaces = (
            [(label,) for label in LABELS] + [("a", label) for label in LABELS] + [(label, "a") for label in LABELS]
        )
        names = [(space, KEYS[number % len(KEYS)]) for number, space in enumerate(spaces)]
        names += [(("a",), key) for key in KEYS]
        names = list(dict.fromkeys(names))
        await store.abatch([PutOp(space, key, {"name": [*space, key]}) for space, key in names])
        found = await store.abatch([GetOp(space, key) for space, key in names])
        assert [cast("Item", item).value for item in found] == [{"name": [*space, key]} for space, key in names]
        assert [(cast("Item", item).namespace, cast("Item", item).key) for item in found] == names
        assert await store.alist_namespaces(limit=1000) == sorted({space for space, _ in names})
        for space, key in names[::7]:
            await store.adelete(space, key)
        left = await store.asearch((), limit=1000)
        assert {(item.namespace, item.key) for item in left} == set(names) - set(names[::7])

    @pytest.mark.parametrize("namespace", NO_NAMESPACES, ids=ascii)
    async def test_what_is_no_namespace(self, store: BaseStore, namespace: Any) -> None:
        """An invalid namespace is refused by every verb that names an item, and nothing changes."""
        await put(store, "k")
        for verb in (
            lambda: store.aput(namespace, "k", {}),
            lambda: store.aget(namespace, "k"),
            lambda: store.adelete(namespace, "k"),
            lambda: store.abatch([PutOp(SPACE, "other", {}), GetOp(namespace, "k")]),
        ):
            with pytest.raises(InvalidNamespaceError) as caught:
                await verb()
            assert caught.value.namespace == namespace
        if namespace not in ((), ("langgraph",), ("langgraph", "a")):
            for ask in (
                lambda: store.asearch(namespace),
                lambda: store.abatch([SearchOp(namespace)]),
                lambda: store.abatch([ListNamespacesOp((MatchCondition("prefix", namespace),))]),
                lambda: store.abatch([ListNamespacesOp((MatchCondition("suffix", namespace),))]),
            ):
                with pytest.raises(InvalidNamespaceError):
                    await ask()
        assert await keys(store) == ["k"]

    async def test_what_is_no_key(self, store: BaseStore) -> None:
        """A key that some database cannot hold is refused by every store."""
        for key in ("a\x00", "\ud800"):
            with pytest.raises(InvalidKeyError):
                await store.aput(SPACE, key, {})
            with pytest.raises(InvalidKeyError):
                await store.aget(SPACE, key)
        for no_text in (1, None, b"k", ("k",)):
            with pytest.raises(TypeError, match="an item's key is a text"):
                await store.aput(SPACE, cast("Any", no_text), {})
        assert await keys(store) == []

    async def test_how_long_a_name_may_be(self, store: BaseStore) -> None:
        """Every store allows the same number of bytes for namespace and key together."""
        for space, key in (
            (("é" * 511, "a"), "k" * (LONGEST - 1025)),
            (("a",), "é" * ((LONGEST - 2) // 2)),
            (("a" * (LONGEST - 1),), ""),
        ):
            await store.aput(space, key, {"key": key})
            assert await value(store, key, space) == {"key": key}
            assert await keys(store, space) == [key]
            with pytest.raises(InvalidKeyError, match=f"takes {LONGEST + 1} bytes; {LONGEST} are allowed"):
                await store.aput(space, key + "a", {})

    async def test_vector_search_is_refused(self, store: BaseStore) -> None:
        """There is no vector search: passing `query`, or `index` other than False, raises an error instead of being
        ignored."""
        with pytest.raises(VectorSearchError, match=r"query= was passed.*no vector search"):
            await store.asearch(SPACE, query=cast("Any", "food"))
        for index in (["text"], [], True):
            with pytest.raises(VectorSearchError, match="index="):
                await store.aput(SPACE, "k", {}, index=cast("Any", index))
        with pytest.raises(NotImplementedError):
            await store.abatch([PutOp(SPACE, "k", {}), SearchOp((), query=cast("Any", ""))])
        assert await keys(store) == []
        await store.aput(SPACE, "k", {}, index=False)  # it asks for no index, which is what every item gets
        await store.aput(SPACE, "l", {}, None)
        assert sorted(await keys(store)) == ["k", "l"]

    async def test_what_is_no_operation(self, store: BaseStore) -> None:
        """A batch with an object that is not an operation is refused, and does nothing."""
        with pytest.raises(TypeError, match="an operation is"):
            await store.abatch([PutOp(SPACE, "k", {}), cast("Any", (SPACE, "k"))])
        assert await keys(store) == []


def _types(value: Any) -> Any:
    """Return the types of a value at any depth, in a form that can be compared."""
    if isinstance(value, dict):
        return type(value), [(_types(key), _types(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [_types(one) for one in value]
    return type(value)
