"""Items of a store: values of many types, unusual namespaces and keys, items that expire, one put twice."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import msgspec

from checkpoint_savers.codec import Codec

PUT = 1_790_000_000.0
"""When the items were put, in unix seconds."""

WHOLE = PUT + 60.0
"""A time at which no item has expired."""

LATE = PUT + 3600.0
"""A time at which all items with a TTL have expired."""


class Preference(msgspec.Struct):
    """A registered type."""

    name: str
    weight: float


def codec() -> Codec:
    return Codec().with_types(Preference, tag="memories.Preference")


VALUES: dict[str, Any] = {
    "plain": {"text": "naïve 日本語 \x00", "n": 2**63, "f": -0.0, "none": None, "yes": True, "raw": b"\xff\x00"},
    "types": {
        "when": datetime(2026, 11, 22, 12, 30, tzinfo=UTC),
        "day": date(2026, 2, 28),
        "span": timedelta(days=-1, microseconds=7),
        "money": Decimal("1.10"),
        "id": UUID(int=7),
        "path": PurePosixPath("/a/b"),
        "pair": (1, [2, {"three": {4}}]),
        "big": 10**40,
    },
    "registered": {"likes": [Preference("tea", 0.5), Preference("rain", 1.0)]},
    "long": {"text": "word " * 300},
    "": {"key": "is empty"},
    "a'b\"c; DROP TABLE item --": {"key": "is odd"},
}

NAMESPACES: tuple[tuple[str, ...], ...] = (("users", "ann"), ("users", "ben"), ("users",), ("usersx",), ("ü", "%_*"))


async def fill(store: Any) -> None:
    for namespace in NAMESPACES:
        for key, value in VALUES.items():
            await store.aput(namespace, key, {**value, "at": list(namespace)})
    await store.aput(("users", "ann"), "plain", {"put": "again"})
    await store.aput(("users", "ben"), "soon", {"gone": "soon"}, ttl=10)
    await store.aput(("users", "ben"), "read", {"gone": "later"}, ttl=30)
    await store.adelete(("users",), "long")


async def read(store: Any) -> dict[str, Any]:
    """Return all that the store has, as JSON values."""
    namespaces = await store.alist_namespaces(limit=1000)
    return {
        "namespaces": [list(namespace) for namespace in namespaces],
        "items": [
            [list(item.namespace), item.key, repr(item.value), repr(item.created_at), repr(item.updated_at)]
            for item in await store.asearch((), limit=1000)
        ],
        "filtered": [
            item.key
            for item in await store.asearch(("users",), filter={"key": "is odd"}, limit=1000, refresh_ttl=False)
        ],
        "inside": len(await store.asearch(("users",), limit=1000)),
    }
