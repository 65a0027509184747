"""Operations of stores, their results, and settings."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Any, Final, Literal, TypeAlias, TypedDict

import msgspec

StoreNamespace: TypeAlias = tuple[str, ...]
"""The path of labels under which items are stored, outermost first: ("memories", "ann").

At least one label. A label is a non-empty text without "." and NUL; the first is not "langgraph".
"""

ItemValue: TypeAlias = dict[str, Any]

NamespaceMatchType: TypeAlias = Literal["prefix", "suffix"]


class NotProvided(Enum):
    """The type of `NOT_PROVIDED`."""

    NOT_PROVIDED = "NOT_PROVIDED"

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        return self.name


NOT_PROVIDED: Final = NotProvided.NOT_PROVIDED
"""Marks an argument that was not passed, where None has a meaning."""


class TTLConfig(TypedDict, total=False):
    """How long a store keeps its items. All times are in minutes.

    Attributes:
        default_ttl: minutes, for items that are put without a `ttl`; None, the default, keeps them for ever.
        refresh_on_read: whether reading an item starts its ttl again; True by default.
        omit_expired: only True: expired items are never returned, even before they are removed.
        sweep_interval_minutes: minutes between two removals of expired items while the store is open; None, the
            default, removes them only now and then, as other items are put.
    """

    default_ttl: float | None
    refresh_on_read: bool
    omit_expired: bool
    sweep_interval_minutes: float | None


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """An item, as it was when it was read. Changing its value does not change what is stored.

    Attributes:
        value: the value that was put.
        key: unique in the namespace.
        namespace: the labels under which it is stored.
        created_at: when it was first put, in UTC. Later puts do not change it.
        updated_at: when it was last put, in UTC.
    """

    value: ItemValue
    key: str
    namespace: StoreNamespace
    created_at: datetime
    updated_at: datetime

    def __hash__(self) -> int:
        return hash((self.namespace, self.key))

    def dict(self) -> ItemValue:
        """Return the item as JSON-ready dict: times as ISO texts, the namespace as a list.

        Returns:
            A new dict. Its "value" is the item's own object, not a copy.
        """
        return {
            "namespace": list(self.namespace),
            "key": self.key,
            "value": self.value,
            "created_at": self.created_at.isoformat(),
            "updated_at": self.updated_at.isoformat(),
        }


class SearchItem(Item, frozen=True, kw_only=True):
    """An item that a search has found.

    Attributes:
        score: always None: only vector search has scores.
    """

    score: float | None = None

    def dict(self) -> ItemValue:
        return {**super().dict(), "score": self.score}


class GetOp(msgspec.Struct, frozen=True):
    """Read an item. See `BaseStore.aget`. Its result: the item, or None."""

    namespace: StoreNamespace
    key: str
    refresh_ttl: bool | None = None


class SearchOp(msgspec.Struct, frozen=True):
    """Find items. See `BaseStore.asearch`. Its result: a list of items."""

    namespace_prefix: StoreNamespace
    filter: Mapping[str, Any] | None = None
    limit: int = 10
    offset: int = 0
    query: None = None
    refresh_ttl: bool | None = None


class PutOp(msgspec.Struct, frozen=True):
    """Put an item, or delete it, if `value` is None. See `BaseStore.aput`. Its result: None."""

    namespace: StoreNamespace
    key: str
    value: Mapping[str, Any] | None
    index: Literal[False] | None = None
    ttl: float | NotProvided | None = NOT_PROVIDED


class MatchCondition(msgspec.Struct, frozen=True):
    """Labels with which namespaces begin or end.

    Attributes:
        match_type: "prefix" or "suffix".
        path: labels; "*" matches any label.
    """

    match_type: NamespaceMatchType
    path: StoreNamespace


class ListNamespacesOp(msgspec.Struct, frozen=True):
    """List namespaces. See `BaseStore.alist_namespaces`. Its result: a list of namespaces."""

    match_conditions: tuple[MatchCondition, ...] | None = None
    max_depth: int | None = None
    limit: int = 100
    offset: int = 0


Op: TypeAlias = GetOp | SearchOp | PutOp | ListNamespacesOp
"""One operation on a store, for `batch` and `abatch`."""

Result: TypeAlias = Item | list[SearchItem] | list[StoreNamespace] | None
"""The result of a `GetOp`, `SearchOp` or `ListNamespacesOp`. A `PutOp`, and a `GetOp` that finds nothing, give None."""
