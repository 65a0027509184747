"""What a backend of stores does: one batch of operations, over bytes, in one transaction.

`BaseStore` checks what users pass, makes bytes of it, gathers what is asked at the same time, and makes items of the
answer. What is left to a backend are rows, which it finds, writes and removes. A row's columns:

    namespace   bytes: see `names.py`; all namespaces inside one lie in one range of bytes
    key         bytes
    created_at  float: unix seconds; when the row was first written
    updated_at  float: unix seconds; when it was last written
    ttl         float or nothing: seconds that the row lives, from its last write or refresh on
    expires_at  float or nothing: unix seconds; from then on the row is not there for anybody
    frame       bytes: sealed

A row that has expired is not there: no read finds it, and one that is written in its place is a new one, with a
`created_at` of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Final, NamedTuple, TypeAlias

import msgspec

SWEEP_LIMIT: Final = 1000
"""Expired rows that one batch removes at most, so that nobody waits long for it."""


class Row(NamedTuple):
    """A row, as it was found. Its reader checks it: a backend hands on what the database gives."""

    namespace: bytes
    key: bytes
    created_at: float
    updated_at: float
    ttl: float | None
    frame: bytes


class Find(msgspec.Struct, frozen=True, gc=False):
    """The row of a key. Its answer: a `Row`, or None.

    Attributes:
        refresh: if it has a ttl, it lives that long from now on.
    """

    namespace: bytes
    key: bytes
    refresh: bool


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a range of namespaces, the last written first, and by namespace and key where that is the same. Its
    answer: a list of `Row`s.

    Attributes:
        start, end: namespaces from the first of these on, and before the second.
        accepts: says which rows count; None stands for all. It raises nothing.
        offset, limit: of the rows that count, leave out so many, and answer at most so many.
        refresh: those that are answered live for their ttl from now on.
    """

    start: bytes
    end: bytes
    accepts: Callable[[Row], bool] | None
    offset: int
    limit: int
    refresh: bool


class Spaces(msgspec.Struct, frozen=True, kw_only=True):
    """Namespaces in which there are rows, in order. Its answer: a list of bytes.

    Attributes:
        start, end: as of `Scan`.
        shown: what to answer for a namespace: itself, or one around it, which is answered once; None to leave it out.
        offset, limit: of what is answered.
    """

    start: bytes
    end: bytes
    shown: Callable[[bytes], bytes | None]
    offset: int
    limit: int


Read: TypeAlias = Find | Scan | Spaces


class Write(msgspec.Struct, frozen=True, gc=False):
    """Put a row, or remove it. A row that is there already keeps its `created_at`.

    Attributes:
        frame: None removes the row, if there is one.
        ttl: seconds that it is to live; None for ever.
    """

    namespace: bytes
    key: bytes
    frame: bytes | None
    ttl: float | None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What one transaction does. Reads see what was stored before it.

    Attributes:
        now: the time, in unix seconds, for all of it.
        reads: no two are the same.
        writes: no two are of the same row.
        sweeps: remove up to so many rows that have expired, those first that expired first.
    """

    now: float
    reads: tuple[Read, ...] = ()
    writes: tuple[Write, ...] = ()
    sweeps: int = 0


Answer: TypeAlias = Row | list[Row] | list[bytes] | None


class Outcome(NamedTuple):
    """What came of a batch.

    Attributes:
        answers: one per read, in their order.
        swept: how many rows were removed as they had expired.
    """

    answers: list[Answer]
    swept: int


Done: TypeAlias = Callable[[Outcome | BaseException], None]
"""Told what came of a batch, once: the outcome, or why nothing of it was stored. Any thread may call it."""


def page_of_rows(rows: Iterable[Row], scan: Scan) -> list[Row]:
    """The answer to a scan, of its rows in their order. No more of them are taken than are needed."""
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
    """The answer to a listing of namespaces.

    Args:
        after: the first namespace in which there are rows, of those that are this one or greater.
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
    """As `page_of_spaces`, for a backend that has to wait for its database: it yields what `after` is to be asked, and
    is sent what that gives; it returns the answer."""
    found = list[bytes]()
    left, at, last = spaces.offset, spaces.start, None
    while len(found) < spaces.limit:
        name = yield at
        if name is None or name >= spaces.end:
            break
        shown = spaces.shown(name)
        at = name + b"\0"  # the next that there could be
        if shown is None:
            continue
        if shown != name or shown == last:
            at = shown + b"\xff"  # behind all those inside it: the same would be shown of them
        if shown != last:
            last = shown
            if left:
                left -= 1
            else:
                found.append(shown)
    return found
