"""Listings, newest first or by id: pages of headers, what a filter lets through, and rows that are missing.

A filter is applied here and not in a query: by the one definition that all savers share (SQL and jsonb have other ideas
of numbers and bools, and of NUL), and no text of a filter can ever become text of a query.
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
"""Rows that a filtered listing looks at in one go. Commits of others come in between."""

Cursor = tuple[str, str, str]
"""Where a listing of checkpoints stands: checkpoint id, thread id, namespace."""


def cursor_before(before: CheckpointId | None) -> Cursor | None:
    """Where a listing begins that shows what is older than a checkpoint."""
    return None if before is None else (str(before), "", "")


def cursor_of(header: Header) -> Cursor:
    return str(header.checkpoint_id), header.thread_id, header.ns


async def list_headers(
    page: Callable[[_AnyCursor | None, int], Awaitable[Sequence[_AnyHeader]]],
    cursor: _AnyCursor | None,
    position: Callable[[_AnyHeader], _AnyCursor],
    limit: int,
    filter: Mapping[str, Any] | None,
) -> tuple[_AnyHeader, ...]:
    """Return the first headers after a place that a filter lets through.

    Args:
        page: the next so many after a place; fewer when there are no more.
        place: where to begin; None for the beginning.
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
    """A row that is not where it should be.

    Attributes:
        checkpoint_id: the row whose parent it is; None if it is the namespace's head.
        parent_id: the missing row.
    """

    thread_id: str
    ns: str
    checkpoint_id: CheckpointId | None
    parent_id: CheckpointId

    def error(self) -> CorruptCheckpointError:
        where = f"thread {self.thread_id!r}{f', namespace {self.ns!r}' if self.ns else ''}"
        if self.checkpoint_id is None:
            return CorruptCheckpointError(where, f"its head, checkpoint {self.parent_id}, is missing in listings")
        return CorruptCheckpointError(
            f"{where}, checkpoint {self.checkpoint_id}", f"its parent, checkpoint {self.parent_id}, is missing"
        )


class GapFinder:
    """Finds gaps in a listing, newest first: a row's parent is stored in the same namespace and comes after it.

    No checksum covers a row's keys, and a row whose key is damaged is missing from every query. Retention keeps the
    rule: where it deletes a parent, it sets the child's `parent_id` to None.
    """

    def __init__(self) -> None:
        # (thread, ns) -> parent -> child, or None for the head.
        self._expected: dict[tuple[str, str], dict[CheckpointId, CheckpointId | None]] = {}

    def expect_head(self, thread_id: str, ns: str, head: CheckpointId) -> None:
        """Take what a namespace's head was before the listing began. It is the parent of none, or of a later row."""
        self._expected.setdefault((thread_id, ns), {})[head] = None

    def add(self, header: Header) -> list[Gap]:
        """Take the next header; return the gaps that it shows: parents that are newer and did not come."""
        key = header.thread_id, header.ns
        expected = self._expected.setdefault(key, {})
        expected.pop(header.checkpoint_id, None)
        overdue = [parent for parent in expected if parent > header.checkpoint_id]
        gaps = [Gap(*key, expected.pop(parent), parent) for parent in overdue]
        if header.parent_id is not None:
            expected.setdefault(header.parent_id, header.checkpoint_id)
        return gaps

    def end(self) -> list[Gap]:
        """Return the gaps that the end of the listing shows: all parents that did not come."""
        return [Gap(*key, child, parent) for key, found in self._expected.items() for parent, child in found.items()]


async def is_listed(saver: SaverPort, thread_id: str, ns: str, checkpoint_id: CheckpointId) -> bool:
    """Return True if a listing of the namespace from its beginning has a row: where a database's index is damaged, a
    query for the row itself may find nothing."""
    before: CheckpointId | None = None
    while True:
        page = await saver.scan(thread_id, ns, before=before)
        if any(header.checkpoint_id == checkpoint_id for header in page):
            return True
        if not page or page[-1].checkpoint_id < checkpoint_id or page[-1].checkpoint_id == before:
            return False
        before = page[-1].checkpoint_id


async def check_gaps(saver: SaverPort, gaps: Iterable[Gap]) -> None:
    """Raise for the first gap that a second read finds too: a row that is pruned between two pages of a listing looks
    like one that is missing.

    Raises:
        CorruptCheckpointError: a row's parent is missing, and the row still names it.
    """
    for gap in gaps:
        chain = await saver.read(gap.thread_id, gap.ns, gap.checkpoint_id)
        if chain is None:
            if gap.checkpoint_id is not None and await is_listed(saver, gap.thread_id, gap.ns, gap.checkpoint_id):
                raise gap.error()
            continue
        if gap.parent_id == (chain.head if gap.checkpoint_id is None else chain.rows[-1].parent_id):
            raise gap.error()


def check_parents(thread_id: str, rows: Collection[CheckpointRow]) -> None:
    """Check all rows of a thread, as of one moment: the parents of all of them are among them.

    Raises:
        CorruptCheckpointError: one is missing.
    """
    parents = {(row.ns, row.parent_id): row for row in rows if row.parent_id is not None}
    missing = parents.keys() - {(row.ns, row.checkpoint_id) for row in rows}
    if missing:
        ns, parent_id = min(missing)
        raise Gap(thread_id, ns, parents[ns, parent_id].checkpoint_id, parent_id).error()
