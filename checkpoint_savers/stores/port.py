"""The port of a store's backend: one batch of operations, over bytes, in one transaction.

`BaseStore` checks arguments, encodes them, batches concurrent operations, and decodes the answers. A backend finds,
writes and removes rows. A row's columns:

    namespace   bytes: see `names.py`; all namespaces inside one lie in one range of bytes
    key         bytes
    created_at  float: unix seconds; when the row was first written
    updated_at  float: unix seconds; when it was last written
    ttl         float or nothing: seconds that the row lives, from its last write or refresh on
    expires_at  float or nothing: unix seconds; from then on no read returns the row
    frame       bytes: sealed

No read returns an expired row, and a row written in its place is a new one, with a `created_at` of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Final, NamedTuple, TypeAlias

import msgspec

SWEEP_LIMIT: Final = 1000
"""Number of expired rows that one batch removes, at most, so that other writers do not wait long for it."""


class Row(NamedTuple):
    """A row, as it was found. `BaseStore` checks it: a backend returns what the database contains."""

    namespace: bytes
    key: bytes
    created_at: float
    updated_at: float
    ttl: float | None
    frame: bytes


class Find(msgspec.Struct, frozen=True):
    """Find the row of a key. Its answer: a `Row`, or None.

    Attributes:
        refresh: if the row has a ttl, set its expiry to `now` plus that ttl.
    """

    namespace: bytes
    key: bytes
    refresh: bool


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """Find rows of a range of namespaces. Its answer: a list of `Row`s.

    The last written row comes first, rows of the same time are ordered by namespace and key.

    Attributes:
        start, end: the range of namespaces: `start` included, `end` excluded.
        accepts: returns True for the rows that count; None if all do. It raises nothing.
        offset, limit: of the rows that count, skip `offset` and return `limit`, at most.
        refresh: for each returned row that has a ttl, set its expiry to `now` plus that ttl.
    """

    start: bytes
    end: bytes
    accepts: Callable[[Row], bool] | None
    offset: int
    limit: int
    refresh: bool


class Spaces(msgspec.Struct, frozen=True, kw_only=True):
    """List namespaces that hold rows, in order. Its answer: a list of bytes.

    Attributes:
        start, end: the range, as of `Scan`.
        shown: maps a namespace to what is listed for it: itself, an outer namespace (listed once), or None to skip it.
        offset, limit: of what is listed, skip `offset` and return `limit`, at most.
    """

    start: bytes
    end: bytes
    shown: Callable[[bytes], bytes | None]
    offset: int
    limit: int


Read: TypeAlias = Find | Scan | Spaces
"""One read that a store's `transact` answers."""


class Write(msgspec.Struct, frozen=True):
    """Put a row, or remove it. A row that exists already keeps its `created_at`.

    Attributes:
        frame: the new payload; None removes the row, if there is one.
        ttl: seconds that the row lives; None for ever.
    """

    namespace: bytes
    key: bytes
    frame: bytes | None
    ttl: float | None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The operations of one transaction. Reads see what was stored before it.

    Attributes:
        now: the time of the whole batch, in unix seconds.
        reads: no two are equal.
        writes: no two are of the same row.
        sweeps: remove up to this number of expired rows, those first that expired first.
    """

    now: float
    reads: tuple[Read, ...] = ()
    writes: tuple[Write, ...] = ()
    sweeps: int = 0


Answer: TypeAlias = Row | list[Row] | list[bytes] | None


class Outcome(NamedTuple):
    """The outcome of a batch.

    Attributes:
        answers: one per read, in their order.
        swept: number of expired rows that were removed.
    """

    answers: list[Answer]
    swept: int


Done: TypeAlias = Callable[[Outcome | BaseException], None]
"""Called once with the outcome of a batch, or with the reason why nothing of it was stored. Any thread may call it."""


def page_of_rows(rows: Iterable[Row], scan: Scan) -> list[Row]:
    """Return the answer to a scan.

    Args:
        rows: the range's rows, in the order of the scan. No more of them are taken than are needed, so they may be
            lazy.
        scan: the scan.

    Returns:
        The rows that count, from `offset` on, `limit` at most.
    """
    found = list[Row]()
    left = scan.offset
    if scan.limit > 0:
        for row in rows:
            if scan.accepts is None or scan.accepts(row):
                if left:
                    left -= 1
                    continue
                found.append(row)
                if len(found) == scan.limit:
                    break
    return found


def page_of_spaces(after: Callable[[bytes], bytes | None], spaces: Spaces) -> list[bytes]:
    """Return the answer to a listing of namespaces.

    Args:
        after: returns the first namespace that holds rows and is not smaller than its argument, or None.
        spaces: the listing.

    Returns:
        What is listed, in order.
    """
    paging = paging_of_spaces(spaces)
    try:
        at = next(paging)
        while True:
            at = paging.send(after(at))
    except StopIteration as end:
        found: list[bytes] = end.value
        return found


def paging_of_spaces(spaces: Spaces) -> Generator[bytes, bytes | None, list[bytes]]:
    """Run `page_of_spaces` as a generator, for a backend that has to await its database.

    Args:
        spaces: the listing.

    Yields:
        The argument for `after`; send what `after` returns.

    Returns:
        What is listed, in order.
    """
    found = list[bytes]()
    left, at, last = spaces.offset, spaces.start, None
    while len(found) < spaces.limit:
        name = yield at
        if name is None or name >= spaces.end:
            break
        shown = spaces.shown(name)
        # Jump from namespace to namespace instead of reading all rows: a listing costs one lookup per namespace.
        at = name + b"\0"  # the smallest name after this one
        if shown is None:
            continue
        if shown != name or shown == last:
            at = shown + b"\xff"  # skip all namespaces inside: they would be listed as the same
        if shown != last:
            last = shown
            if left:
                left -= 1
            else:
                found.append(shown)
    return found
