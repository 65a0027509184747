"""Searching items and listing namespaces: filters, order and pages."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any, cast

import pytest

from ...errors import InvalidNamespaceError, UnstorableValueError
from ...stores.abc import BaseStore
from ...stores.ops import ListNamespacesOp, MatchCondition, PutOp
from ..caches.conformance import Clock
from ..savers.stored_bytes import HOSTILE
from ..savers.suite import NOW
from .suite import SPACE, StoreSuite, keys, put, while_changing

NOON = datetime.datetime(2024, 1, 1, 12)
NOON_UTC = NOON.replace(tzinfo=datetime.UTC)

DISHES: dict[str, dict[str, Any]] = {
    "soup": {"kind": "dish", "stars": 5, "cook": {"name": "Ann", "age": 30}, "tags": ["hot", "red"], "cold": False},
    "cake": {"kind": "dish", "stars": 4.5, "cook": {"name": "Bob"}, "tags": ["sweet"], "cold": True},
    "wine": {"kind": "drink", "stars": None, "tags": (), "price": Decimal("7.50"), "since": NOON},
    "nan": {"stars": math.nan, "since": NOON_UTC, "kind": b"dish"},
    "text": {"stars": "5", "kind": 1, "cold": 0, "tags": {"a": 1}},
}
ALL = set(DISHES)

FILTERS: list[tuple[dict[str, Any], set[str]]] = [
    ({}, ALL),
    ({"kind": "dish"}, {"soup", "cake"}),
    ({"kind": "dish", "stars": 5}, {"soup"}),
    ({"stars": 5.0}, {"soup"}),
    ({"stars": Decimal(5)}, {"soup"}),
    ({"stars": Fraction(9, 2)}, {"cake"}),
    ({"stars": "5"}, {"text"}),
    ({"stars": None}, {"wine"}),
    ({"missing": None}, ALL),
    ({"missing": 1}, set()),
    ({"stars": math.nan}, set()),
    ({"cold": False}, {"soup"}),
    ({"cold": 0}, {"text"}),
    ({"kind": True}, set()),
    ({"kind": b"dish"}, {"nan"}),
    ({"cook": {"name": "Ann"}}, {"soup"}),
    ({"cook": {}}, {"soup", "cake"}),
    ({"cook": {"name": "Ann", "age": 31}}, set()),
    ({"cook": {"age": {"$gt": 29}}}, {"soup"}),
    ({"cook": {"$eq": {"name": "Ann"}}}, set()),
    ({"cook": {"$eq": {"age": 30, "name": "Ann"}}}, {"soup"}),
    ({"cook": {"$ne": {"name": "Bob"}}}, ALL - {"cake"}),
    ({"tags": ["hot", "red"]}, {"soup"}),
    ({"tags": ("hot", "red")}, {"soup"}),
    ({"tags": ["red", "hot"]}, set()),
    ({"tags": ["hot"]}, set()),
    ({"tags": []}, {"wine"}),
    ({"tags": [{"$gt": "a"}]}, {"cake"}),
    ({"tags": {"a": 1}}, {"text"}),
    ({"stars": {"$eq": 5}}, {"soup"}),
    ({"stars": {"$ne": 5}}, ALL - {"soup"}),
    ({"stars": {"$ne": None}}, ALL - {"wine"}),
    ({"missing": {"$ne": None}}, set()),
    ({"missing": {"$ne": 1}}, ALL),
    ({"stars": {"$gt": 4.5}}, {"soup"}),
    ({"stars": {"$gte": 4.5}}, {"soup", "cake"}),
    ({"stars": {"$lt": 5}}, {"cake"}),
    ({"stars": {"$lte": Decimal("5.0")}}, {"soup", "cake"}),
    ({"stars": {"$gt": 4, "$lt": 5}}, {"cake"}),
    ({"stars": {"$gt": 4, "$ne": 5}}, {"cake"}),
    ({"stars": {"$gt": "4"}}, {"text"}),
    ({"stars": {"$gte": None}}, set()),
    ({"stars": {"$lt": math.nan}}, set()),
    ({"stars": {"$gt": True}}, set()),
    ({"cold": {"$gte": False}}, set()),
    ({"cold": {"$gte": 0}}, {"text"}),
    ({"kind": {"$gt": "d"}}, {"soup", "cake", "wine"}),
    ({"kind": {"$gt": b"d"}}, {"nan"}),
    ({"price": {"$lt": 8}}, {"wine"}),
    ({"price": {"$lt": Decimal("sNaN")}}, set()),
    ({"price": {"$lt": Fraction(8)}}, {"wine"}),
    ({"since": {"$lte": NOON}}, {"wine"}),
    ({"since": {"$lte": NOON_UTC}}, {"nan"}),
    ({"since": {"$lte": NOON.date()}}, set()),
    ({"tags": {"$gt": ["a"]}}, set()),
    ({"missing": {"$lt": 1}}, set()),
    ({"stars": {"$gt": {"a": 1}}}, set()),
]

NO_FILTERS: list[tuple[Any, type[Exception]]] = [
    ({"stars": {"$in": [1]}}, ValueError),
    ({"stars": {"$gt": 1, "a": 2}}, ValueError),
    ({"cook": {"age": {"$GT": 1}}}, ValueError),
    ({"tags": [{"$regex": "."}]}, ValueError),
    ({"$or": [{"a": 1}]}, ValueError),
    ({"$eq": 1}, ValueError),
    ({1: 2}, TypeError),
    ("kind", TypeError),
    ([("kind", "dish")], TypeError),
    ({"stars": object()}, UnstorableValueError),
]

SPACES = [("a",), ("a", "b"), ("a", "b", "c"), ("a", "c"), ("ab",), ("b", "b", "c"), ("*", "b"), ("a-", "b"), ("é",)]

LISTINGS: list[tuple[dict[str, Any], list[tuple[str, ...]]]] = [
    ({}, sorted(SPACES)),
    ({"limit": 2}, sorted(SPACES)[:2]),
    ({"limit": 3, "offset": 2}, sorted(SPACES)[2:5]),
    ({"offset": 8}, sorted(SPACES)[8:]),
    ({"offset": 9}, []),
    ({"limit": 0}, []),
    ({"prefix": ("a",)}, [("a",), ("a", "b"), ("a", "b", "c"), ("a", "c")]),
    ({"prefix": ()}, sorted(SPACES)),
    ({"prefix": ("a", "b")}, [("a", "b"), ("a", "b", "c")]),
    ({"prefix": ("a", "*")}, [("a", "b"), ("a", "b", "c"), ("a", "c")]),
    ({"prefix": ("*", "b")}, [("*", "b"), ("a", "b"), ("a", "b", "c"), ("a-", "b"), ("b", "b", "c")]),
    ({"prefix": ("*", "b", "c")}, [("a", "b", "c"), ("b", "b", "c")]),
    ({"prefix": ("a", "b", "c", "*")}, []),
    ({"prefix": ("%",)}, []),
    ({"suffix": ("c",)}, [("a", "b", "c"), ("a", "c"), ("b", "b", "c")]),
    ({"suffix": ("b", "c")}, [("a", "b", "c"), ("b", "b", "c")]),
    ({"suffix": ("b", "*")}, [("a", "b", "c"), ("b", "b", "c")]),
    ({"suffix": ("*", "*", "*")}, [("a", "b", "c"), ("b", "b", "c")]),
    ({"suffix": ()}, sorted(SPACES)),
    ({"prefix": ("a",), "suffix": ("c",)}, [("a", "b", "c"), ("a", "c")]),
    ({"prefix": ("a",), "suffix": ("a",)}, [("a",)]),
    ({"max_depth": 1}, [("*",), ("a",), ("a-",), ("ab",), ("b",), ("é",)]),
    ({"max_depth": 1, "limit": 2, "offset": 1}, [("a",), ("a-",)]),
    ({"max_depth": 2, "prefix": ("a",)}, [("a",), ("a", "b"), ("a", "c")]),
    ({"max_depth": 1, "suffix": ("c",)}, [("a",), ("b",)]),
    ({"max_depth": 2, "suffix": ("c",)}, [("a", "b"), ("a", "c"), ("b", "b")]),
    ({"max_depth": 9}, sorted(SPACES)),
]


class Search(StoreSuite):
    async def test_filters(self, store: BaseStore) -> None:
        """Filters compare values by equality and operators, inside dicts and lists too; values that cannot be compared
        do not match."""
        await store.abatch([PutOp(SPACE, key, given) for key, given in DISHES.items()])
        for filter, matching in FILTERS:
            assert (filter, set(await keys(store, filter=filter))) == (filter, matching)

    async def test_what_is_no_filter(self, store: BaseStore) -> None:
        """An invalid filter is refused, also by an empty store, instead of finding nothing."""
        for filter, error in NO_FILTERS:
            with pytest.raises(error):
                await store.asearch((), filter=filter)

    async def test_a_filter_is_captured(self, store: BaseStore) -> None:
        """P1: changing a filter while a search waits does not change what the search finds."""
        await store.aput(SPACE, "a", {"tags": [1]})
        await store.aput(SPACE, "b", {"tags": [1, 2]})
        tags = [1]
        for filter in ({"tags": tags}, {"tags": {"$eq": tags}}):
            found = await while_changing(partial(store.asearch, SPACE, filter=filter), partial(tags.append, 2))
            assert [item.key for item in found] == ["a"]
            del tags[1]

    async def test_texts_in_filters_are_texts(self, store: BaseStore) -> None:
        """P11: keys and values of filters never become part of a query."""
        texts = [text for text in HOSTILE if not text.startswith("$")]
        await store.abatch([PutOp(SPACE, str(at), {text: text}) for at, text in enumerate(texts)])
        for at, text in enumerate(texts):
            assert await keys(store, filter={text: text}) == [str(at)]
            assert await keys(store, filter={text: {"$gte": text}}) == [str(at)]
            assert await keys(store, filter={text: [text]}) == []

    async def test_a_prefix_is_of_labels(self, store: BaseStore) -> None:
        """A namespace prefix matches whole labels: the namespace itself and those inside it, not names that start with
        its letters."""
        await store.abatch([PutOp(space, "/".join(space), {}) for space in SPACES])
        for prefix in [(), *SPACES, ("b",), ("a", "b", "c", "d"), ("%",), ("_",), ("\U0010ffff",), ("langgraph",)]:
            found = [space for space in SPACES if space[: len(prefix)] == prefix]
            assert sorted(await keys(store, prefix)) == sorted("/".join(space) for space in found)

    async def test_what_was_put_last_comes_first(self, store: BaseStore, clock: Clock) -> None:
        """A search returns the items put last first, then by namespace and key, in every store."""
        for second, names in enumerate((("b", "a"), ("c",), ("b2", "b3"))):
            clock.now = NOW + second
            await put(store, *names)
        await put(store, "z", space=("a",))
        assert await keys(store) == ["z", "b2", "b3", "c", "a", "b"]
        assert await keys(store, SPACE) == ["b2", "b3", "c", "a", "b"]
        clock.now = NOW + 0.5
        await put(store, "b3")
        assert await keys(store) == ["z", "b2", "c", "b3", "a", "b"]
        clock.now = NOW + 10
        await store.aget(SPACE, "a")
        await put(store, "b")
        assert await keys(store) == ["b", "z", "b2", "c", "b3", "a"]

    async def test_pages(self, store: BaseStore, clock: Clock) -> None:
        """Limit and offset count items that match: pages of any size hold each item once, in order."""
        for number in range(30):
            clock.now = NOW + number % 7
            await store.aput(("a", "b") if number % 3 else ("c",), f"{number:02}", {"even": 1 - number % 2})
        for prefix, filter, count in (
            ((), None, 30),
            ((), {"even": 1}, 15),
            (("a",), None, 20),
            (("a", "b"), None, 20),
            (("a", "b"), {"even": 1}, 10),
        ):
            everything = await keys(store, prefix, filter=filter)
            assert len(everything) == count
            for size in (1, 4, 7, 30, 1000):
                pages = list[str]()
                for offset in range(0, count + 1, size):
                    pages += await keys(store, prefix, filter=filter, limit=size, offset=offset)
                assert pages == everything
            assert await keys(store, prefix, filter=filter, limit=0) == []
            assert await keys(store, prefix, filter=filter, offset=1000) == []
            assert [item.key for item in await store.asearch(prefix, filter=filter)] == everything[:10]
            assert await keys(store, prefix, filter=filter, limit=10**30) == everything
            assert await keys(store, prefix, filter=filter, limit=10**30, offset=10**30) == []

    async def test_many(self, store: BaseStore) -> None:
        """A store searches and lists thousands of items."""
        await store.abatch([PutOp((f"{number % 50:02}",), str(number), {"n": number}) for number in range(3000)])
        assert len(await keys(store)) == 3000
        assert len(await keys(store, ("07",))) == 60
        assert await keys(store, filter={"n": 2999}) == ["2999"]
        assert len(await store.alist_namespaces()) == 50

    @pytest.mark.parametrize("mistake", [-1, 1.5, "1", None, True], ids=repr)
    async def test_what_is_no_number(self, store: BaseStore, mistake: Any) -> None:
        """Limits and offsets must be integers of at least zero."""
        for asked in ({"limit": mistake}, {"offset": mistake}):
            with pytest.raises((TypeError, ValueError)):
                await store.asearch((), **asked)
            with pytest.raises((TypeError, ValueError)):
                await store.alist_namespaces(**asked)
        if mistake is not None:
            with pytest.raises(ValueError, match="max_depth"):
                await store.alist_namespaces(max_depth=0 if mistake is True else mistake)

    async def test_listing_namespaces(self, store: BaseStore) -> None:
        """A listing has the namespaces with items, sorted by label, filtered by prefix, suffix and wildcards; cut to a
        depth, each comes once."""
        await store.abatch([PutOp(space, key, {}) for space in SPACES for key in "kl"])
        for asked, listed in LISTINGS:
            assert (asked, await store.alist_namespaces(**asked)) == (asked, listed)

    async def test_several_conditions(self, store: BaseStore) -> None:
        """A namespace must match all conditions of an operation."""
        await store.abatch([PutOp(space, "k", {}) for space in SPACES])
        conditions = (MatchCondition("prefix", ("*", "b")), MatchCondition("prefix", ("a",)))
        assert await store.abatch([ListNamespacesOp(conditions)]) == [[("a", "b"), ("a", "b", "c")]]
        with pytest.raises(ValueError, match="match_type"):
            await store.abatch([ListNamespacesOp((MatchCondition(cast("Any", "infix"), ("a",)),))])

    async def test_a_namespace_goes_with_its_last_item(self, store: BaseStore) -> None:
        """A namespace is listed until its last item is deleted."""
        await put(store, "k", "l")
        await store.adelete(SPACE, "k")
        assert await store.alist_namespaces() == [SPACE]
        await store.adelete(SPACE, "l")
        assert await store.alist_namespaces() == []

    async def test_patterns_are_checked(self, store: BaseStore) -> None:
        """A text instead of a namespace is refused, and not read as a tuple of its letters."""
        for mistake in ("a", ["a"], ("a", ""), ("a.b",)):
            with pytest.raises(InvalidNamespaceError):
                await store.alist_namespaces(prefix=cast("Any", mistake))
            with pytest.raises(InvalidNamespaceError):
                await store.alist_namespaces(suffix=cast("Any", mistake))
