"""Check operations and capture their arguments, before anything is awaited.

A caller may change a dict that it passed as soon as the call has returned control to the event loop. So values and
filters are encoded here, synchronously, and a backend sees bytes only.
"""

from __future__ import annotations

import math
from typing import Any, Final, cast

import msgspec

from ..codec import Codec
from ..durations import read_number
from ..errors import CheckpointError, VectorSearchError
from .batching import Request
from .items import compile_row_filter, error_of, frame_of, item_of, namespace_of
from .names import checked_address, checked_labels, pattern, span
from .ops import (
    NOT_PROVIDED,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchItem,
    SearchOp,
    StoreNamespace,
    TTLConfig,
)
from .port import Find, Row, Scan, Spaces, Write

_MOST: Final = 2**60
"""Upper bound for limits and offsets: databases can count to it, and no store holds as many items."""


class Lifetimes(msgspec.Struct, frozen=True, kw_only=True):
    """A `TTLConfig`, checked and in seconds.

    Attributes:
        default: seconds for which an item lives when `aput` has no `ttl`; None for ever.
        refreshes: True if reading an item starts its ttl again.
        sweep_every: seconds between two sweeps; None for no sweeper.
    """

    default: float | None = None
    refreshes: bool = True
    sweep_every: float | None = None


def read_ttl_config(config: TTLConfig | None) -> Lifetimes:
    """Check a ttl configuration.

    Args:
        config: the configuration; None for one that keeps items for ever.

    Returns:
        The lifetimes, in seconds.

    Raises:
        TypeError, ValueError: it is not a valid configuration.
    """
    if config is None:
        return Lifetimes()
    if not isinstance(config, dict):
        raise TypeError(f"a ttl configuration is a dict, like {{'default_ttl': 60}}, not {config!r}")
    unknown = sorted(map(str, config.keys() - TTLConfig.__annotations__.keys()))
    if unknown:
        raise ValueError(f"a ttl configuration has {', '.join(TTLConfig.__annotations__)}, and no {unknown[0]!r}")
    if config.get("omit_expired", True) is not True:
        raise ValueError("omit_expired can only be True: what has expired is never found")
    refreshes = config.get("refresh_on_read", True)
    if not isinstance(refreshes, bool):
        raise TypeError(f"refresh_on_read is True or False, not {refreshes!r}")
    return Lifetimes(
        default=_seconds("default_ttl", config.get("default_ttl")),
        refreshes=refreshes,
        sweep_every=_seconds("sweep_interval_minutes", config.get("sweep_interval_minutes")),
    )


def request_of(op: object, codec: Codec, lifetimes: Lifetimes) -> Request:
    """Make a backend request of an operation.

    Args:
        op: the operation.
        codec: encodes values and filters now, and decodes items later.
        lifetimes: defaults of the store.

    Returns:
        The request, which holds nothing that the caller can still change.

    Raises:
        InvalidNamespaceError, InvalidKeyError, VectorSearchError: as the verbs of `BaseStore` raise them.
        UnstorableValueError, TypeError, ValueError: as the verbs of `BaseStore` raise them.
    """
    match op:
        case GetOp():
            return _get(op, codec, lifetimes)
        case PutOp():
            return _put(op, codec, lifetimes)
        case SearchOp():
            return _search(op, codec, lifetimes)
        case ListNamespacesOp():
            return _list(op)
        case _:
            raise TypeError(f"an operation is a GetOp, PutOp, SearchOp or ListNamespacesOp, not {op!r}")


def list_operation(
    prefix: StoreNamespace | None, suffix: StoreNamespace | None, max_depth: int | None, limit: int, offset: int
) -> ListNamespacesOp:
    """Make the operation of `alist_namespaces`.

    Args:
        prefix: labels with which namespaces begin.
        suffix: labels with which namespaces end.
        max_depth: number of labels to return, at most.
        limit: number of namespaces to return, at most.
        offset: number of namespaces to skip.

    Returns:
        The operation.
    """
    conditions = list[MatchCondition]()
    if prefix is not None:
        conditions.append(MatchCondition("prefix", prefix))
    if suffix is not None:
        conditions.append(MatchCondition("suffix", suffix))
    return ListNamespacesOp(tuple(conditions), max_depth, limit, offset)


def _get(op: GetOp, codec: Codec, lifetimes: Lifetimes) -> Request:
    refresh = _refresh(op.refresh_ttl, lifetimes)
    read = Find(*checked_address(op.namespace, op.key), refresh)

    def answer(row: Row | None) -> Item | None:
        return None if row is None else item_of(row, codec, Item)

    return Request(read=read, identity=read, answer=answer)


def _put(op: PutOp, codec: Codec, lifetimes: Lifetimes) -> Request:
    if op.index is not None and op.index is not False:
        raise VectorSearchError("index=")
    address = checked_address(op.namespace, op.key)
    ttl = lifetimes.default if op.ttl is NOT_PROVIDED else _seconds("ttl", op.ttl)
    frame = None if op.value is None else frame_of(op.namespace, op.key, op.value, address, codec)
    return Request(write=Write(*address, frame, ttl), answer=_nothing)


def _search(op: SearchOp, codec: Codec, lifetimes: Lifetimes) -> Request:
    if op.query is not None:
        raise VectorSearchError("query=")
    start, end = span(checked_labels(op.namespace_prefix))
    limit, offset = _count("limit", op.limit), _count("offset", op.offset)
    refresh = _refresh(op.refresh_ttl, lifetimes)
    # The encoded filter identifies the search: two equal searches of one batch are executed once.
    known, accepts = (b"", None) if op.filter is None else compile_row_filter(op.filter, codec)
    read = Scan(start=start, end=end, accepts=accepts, offset=offset, limit=limit, refresh=refresh)

    def answer(rows: list[Row]) -> list[SearchItem]:
        return [item_of(row, codec, SearchItem) for row in rows]

    return Request(read=read, identity=(start, known, offset, limit, refresh), answer=answer)


def check_of(namespace_prefix: StoreNamespace, limit: int, codec: Codec) -> Request:
    """Make the request of `acheck`.

    Args:
        namespace_prefix: which items to read.
        limit: number of errors to return, at most.
        codec: decodes the items.

    Returns:
        The request.

    Raises:
        InvalidNamespaceError, TypeError, ValueError: as `BaseStore.acheck` raises them.
    """
    start, end = span(checked_labels(namespace_prefix))
    limit = _count("limit", limit)

    def is_unreadable(row: Row) -> bool:
        return error_of(row, codec) is not None

    def answer(rows: list[Row]) -> list[CheckpointError | None]:
        return [error_of(row, codec) for row in rows]

    read = Scan(start=start, end=end, accepts=is_unreadable, offset=0, limit=limit, refresh=False)
    return Request(read=read, identity=("check", start, limit), answer=answer)


def _list(op: ListNamespacesOp) -> Request:
    conditions = tuple(op.match_conditions or ())
    if op.max_depth is not None and (not _is_int(op.max_depth) or op.max_depth < 1):
        raise ValueError(f"max_depth is 1 or more, or None, not {op.max_depth!r}")
    limit, offset = _count("limit", op.limit), _count("offset", op.offset)
    start, end, shown = pattern(conditions, op.max_depth)
    read = Spaces(start=start, end=end, shown=shown, offset=offset, limit=limit)

    def answer(found: list[bytes]) -> list[StoreNamespace]:
        return [namespace_of(one) for one in found]

    return Request(read=read, identity=(conditions, op.max_depth, offset, limit), answer=answer)


def _nothing(_: Any) -> None:
    return None


def _refresh(given: object, lifetimes: Lifetimes) -> bool:
    if given is None:
        return lifetimes.refreshes
    if not isinstance(given, bool):
        raise TypeError(f"refresh_ttl is True, False or None, not {given!r}")
    return given


def _seconds(name: str, minutes: object) -> float | None:
    if minutes is None:
        return None
    seconds = read_number(name, minutes, "a number of minutes or None") * 60.0
    if not 0 < seconds < math.inf:
        raise ValueError(f"{name} is a number of minutes, more than 0 and finite, not {minutes!r}")
    return seconds


def _count(name: str, value: object) -> int:
    if not _is_int(value):
        raise TypeError(f"{name} is a number, not {value!r}")
    number = cast("int", value)
    if number < 0:
        raise ValueError(f"{name} is 0 or more, not {number}")
    return min(number, _MOST)


def _is_int(value: object) -> bool:
    # Python counts True as 1; as a limit it is a mistake.
    return isinstance(value, int) and not isinstance(value, bool)
