"""What stores are asked, and what they answer: operations, items, settings."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Any, Final, Literal, TypeAlias, TypedDict

import msgspec

Namespace: TypeAlias = tuple[str, ...]
"""Where items stand, from the outside inwards: ("memories", "ann").

At least one label. A label is a text that is not empty and has no "." and no NUL; the first is not "langgraph".
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
"""Stands for an argument that was not given, where None says something."""


class TTLConfig(TypedDict, total=False):
    """How long a store keeps its items. Minutes everywhere.

    Attributes:
        default_ttl: for items that are put without a `ttl`; None, the default, keeps them.
        refresh_on_read: whether reading an item begins its time anew; True by default.
        omit_expired: that expired items are not found even before they are swept away. They never are: True is all
            that it can be.
        sweep_interval_minutes: remove expired items this often while the store is open; None, the default, only now
            and then as others are put.
    """

    default_ttl: float | None
    refresh_on_read: bool
    omit_expired: bool
    sweep_interval_minutes: float | None


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """An item, as it was when it was read. It is the reader's own: changing its value changes nothing that is stored.

    Attributes:
        value: what was put.
        key: unique in the namespace.
        namespace: where it stands.
        created_at: when it was first put, in UTC. Later puts leave it.
        updated_at: when it was last put, in UTC.
    """

    value: ItemValue
    key: str
    namespace: Namespace
    created_at: datetime
    updated_at: datetime

    def __hash__(self) -> int:
        return hash((self.namespace, self.key))

    def dict(self) -> ItemValue:
        """As JSON has it: times as ISO texts, the namespace as a list. The value is the item's own."""
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
        score: None: how near it is to what was asked is said by vector search only.
    """

    score: float | None = None

    def dict(self) -> ItemValue:
        return {**super().dict(), "score": self.score}


class GetOp(msgspec.Struct, frozen=True):
    """Read an item. See `BaseStore.aget`. Its answer: the item, or None."""

    namespace: Namespace
    key: str
    refresh_ttl: bool | None = None


class SearchOp(msgspec.Struct, frozen=True):
    """Find items. See `BaseStore.asearch`. Its answer: a list of what was found."""

    namespace_prefix: Namespace
    filter: Mapping[str, Any] | None = None
    limit: int = 10
    offset: int = 0
    query: None = None
    refresh_ttl: bool | None = None


class PutOp(msgspec.Struct, frozen=True):
    """Put an item, or delete it, if `value` is None. See `BaseStore.aput`. Its answer: None."""

    namespace: Namespace
    key: str
    value: Mapping[str, Any] | None
    index: Literal[False] | None = None
    ttl: float | NotProvided | None = NOT_PROVIDED


class MatchCondition(msgspec.Struct, frozen=True):
    """How namespaces begin or end.

    Attributes:
        match_type: "prefix" or "suffix".
        path: labels; "*" stands for any label.
    """

    match_type: NamespaceMatchType
    path: Namespace


class ListNamespacesOp(msgspec.Struct, frozen=True):
    """List namespaces. See `BaseStore.alist_namespaces`. Its answer: a list of namespaces."""

    match_conditions: tuple[MatchCondition, ...] | None = None
    max_depth: int | None = None
    limit: int = 100
    offset: int = 0


Op: TypeAlias = GetOp | SearchOp | PutOp | ListNamespacesOp

Result: TypeAlias = Item | list[SearchItem] | list[Namespace] | None
