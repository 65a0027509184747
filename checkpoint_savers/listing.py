"""Listings in pages: headers after a cursor, filters, and the detection of missing rows.

A filter is applied in Python and not in a query, by the one definition that all savers share: SQL and jsonb compare
numbers, bools and NUL differently. So the text of a filter can never become text of a query, either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from .errors import CorruptCheckpointError
from .metadata import metadata_matches
from .records import CheckpointId, CheckpointRow, Header, ThreadHeader
from .saver_port import SaverPort

_AnyHeader = TypeVar("_AnyHeader", Header, ThreadHeader)
_AnyCursor = TypeVar("_AnyCursor")

SLICE = 1024
"""Number of rows that a filtered listing reads in one query. Commits of other callers run in between."""

Cursor = tuple[str, str, str]
"""The position of a listing of checkpoints: checkpoint id, thread id, namespace."""


def cursor_before(before: CheckpointId | None) -> Cursor | None:
    """Return the cursor of a listing that shows checkpoints older than a given one.

    Args:
        before: the checkpoint; None for a listing of all.

    Returns:
        The cursor; None for the beginning.
    """
    return None if before is None else (str(before), "", "")


def cursor_of(header: Header) -> Cursor:
    """Return the cursor after a header.

    Args:
        header: the last header of a page.
    """
    return str(header.checkpoint_id), header.thread_id, header.ns


async def list_headers(
    page: Callable[[_AnyCursor | None, int], Awaitable[Sequence[_AnyHeader]]],
    cursor: _AnyCursor | None,
    position: Callable[[_AnyHeader], _AnyCursor],
    limit: int,
    filter: Mapping[str, Any] | None,
) -> tuple[_AnyHeader, ...]:
    """Return the first headers after a cursor that match a filter.

    Args:
        page: returns up to a number of headers after a cursor; fewer at the end of the list.
        cursor: where to begin; None for the beginning.
        position: returns the cursor after a header.
        limit: maximum number of headers.
        filter: metadata entries, all of which must be equal; None for no filter.
    """
    found: list[_AnyHeader] = []
    while len(found) < limit:
        size = SLICE if filter else limit - len(found)
        headers = await page(cursor, size)
        found += [header for header in headers if metadata_matches(header.metadata, filter)]
        if len(headers) < size:
            break
        cursor = position(headers[-1])
    return tuple(found[: max(limit, 0)])


class Gap(NamedTuple):
    """A missing row.

    Attributes:
        thread_id: its thread.
        ns: its namespace.
        checkpoint_id: the row whose parent it is; None if it is the namespace's head.
        parent_id: the missing row.
    """

    thread_id: str
    ns: str
    checkpoint_id: CheckpointId | None
    parent_id: CheckpointId

    def error(self) -> CorruptCheckpointError:
        """Return the error that reports the gap."""
        where = f"thread {self.thread_id!r}{f', namespace {self.ns!r}' if self.ns else ''}"
        if self.checkpoint_id is None:
            return CorruptCheckpointError(where, f"its head, checkpoint {self.parent_id}, is missing in listings")
        return CorruptCheckpointError(
            f"{where}, checkpoint {self.checkpoint_id}", f"its parent, checkpoint {self.parent_id}, is missing"
        )


class GapFinder:
    """Finds gaps in a listing, newest first: a row's parent is in the same namespace and must come after it.

    A row's keys have no checksum, and a row whose key is damaged is missing from every query. Retention preserves this
    invariant: where it deletes a parent, it sets the child's `parent_id` to None.
    """

    def __init__(self) -> None:
        # (thread, ns) -> parent -> child, or None for the head.
        self._expected: dict[tuple[str, str], dict[CheckpointId, CheckpointId | None]] = {}

    def expect_head(self, thread_id: str, ns: str, head: CheckpointId) -> None:
        """Expect a namespace's head, as it was before the listing began.

        The head is the parent of no row, or of a newer one.

        Args:
            thread_id: the thread.
            ns: the namespace.
            head: the head's checkpoint id.
        """
        self._expected.setdefault((thread_id, ns), {})[head] = None

    def add(self, header: Header) -> list[Gap]:
        """Process the next header.

        Args:
            header: the next header of the listing.

        Returns:
            The gaps that it shows: expected parents that are newer and were not listed.
        """
        key = header.thread_id, header.ns
        expected = self._expected.setdefault(key, {})
        expected.pop(header.checkpoint_id, None)
        overdue = [parent for parent in expected if parent > header.checkpoint_id]
        gaps = [Gap(*key, expected.pop(parent), parent) for parent in overdue]
        if header.parent_id is not None:
            expected.setdefault(header.parent_id, header.checkpoint_id)
        return gaps

    def end(self) -> list[Gap]:
        """Return the gaps that the end of the listing shows: all expected parents that were not listed."""
        return [Gap(*key, child, parent) for key, found in self._expected.items() for parent, child in found.items()]


async def is_listed(saver: SaverPort, thread_id: str, ns: str, checkpoint_id: CheckpointId) -> bool:
    """Return True if a listing of the namespace has a row.

    Args:
        saver: stores the thread.
        thread_id: the thread.
        ns: the namespace.
        checkpoint_id: the row.
    """
    # Scans, rather than reading the row by its key: with a damaged database index, a query by key may find nothing.
    before: CheckpointId | None = None
    while True:
        page = await saver.scan(thread_id, ns, before=before)
        if any(header.checkpoint_id == checkpoint_id for header in page):
            return True
        if not page or page[-1].checkpoint_id < checkpoint_id or page[-1].checkpoint_id == before:
            return False
        before = page[-1].checkpoint_id


async def check_gaps(saver: SaverPort, gaps: Iterable[Gap]) -> None:
    """Raise for the first gap that a second read confirms.

    Args:
        saver: stores the threads.
        gaps: the gaps that a listing has shown.

    Raises:
        CorruptCheckpointError: a row's parent is missing, and the row still names it.
    """
    # A row that is pruned between two pages of a listing looks like a missing one. So each gap is read again.
    for gap in gaps:
        chain = await saver.read(gap.thread_id, gap.ns, gap.checkpoint_id)
        if chain is None:
            if gap.checkpoint_id is not None and await is_listed(saver, gap.thread_id, gap.ns, gap.checkpoint_id):
                raise gap.error()
            continue
        if gap.parent_id == (chain.head if gap.checkpoint_id is None else chain.rows[-1].parent_id):
            raise gap.error()


def check_parents(thread_id: str, rows: Collection[CheckpointRow]) -> None:
    """Check that the parents of all rows of a thread are among them.

    Args:
        thread_id: the thread.
        rows: all its rows, read as of one moment.

    Raises:
        CorruptCheckpointError: a parent is missing.
    """
    parents = {(row.ns, row.parent_id): row for row in rows if row.parent_id is not None}
    missing = parents.keys() - {(row.ns, row.checkpoint_id) for row in rows}
    if missing:
        ns, parent_id = min(missing)
        raise Gap(thread_id, ns, parents[ns, parent_id].checkpoint_id, parent_id).error()
