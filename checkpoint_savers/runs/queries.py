"""Searches for runs and threads: what is asked for, what a filter means, and pages.

Pages are found by the key of their first row (keyset pagination): rows that are added meanwhile neither shift the rows
of later pages nor repeat those of earlier ones. A search by `updated_at` may miss a thread that is changed meanwhile,
as the change moves it.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from .rows import RunRow, RunStatus, RunThreadRow, ThreadStatus

T = TypeVar("T")


class RunQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to find: those that fit all fields. Runs that were rolled back are never found.

    Attributes:
        thread_id: of this thread; None for all threads.
        assistant: of this assistant; None for all assistants.
        status: with one of these; empty for all.
        metadata: the run's metadata contain this; see `contains`.
    """

    thread_id: str | None = None
    assistant: str | None = None
    status: tuple[RunStatus, ...] = ()
    metadata: dict[str, Any] = {}

    def matches(self, run: RunRow) -> bool:
        """Return True if a run is found by this query.

        Args:
            run: the run.
        """
        return (
            not run.hidden
            and self.thread_id in (None, run.thread_id)
            and self.assistant in (None, run.request.assistant)
            and (not self.status or run.status in self.status)
            and contains(run.request.metadata, self.metadata)
        )


class ThreadQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which threads to find, and in which order. Only threads with a row in the run store are found.

    Attributes:
        thread_ids: one of these; empty for all.
        status: with one of these; empty for all.
        assistant: whose first run was of this assistant; None for all assistants.
        metadata: the thread's metadata contain this; see `contains`.
        values: the thread's `values` contain this. A thread without values contains only `{}`.
        sort_by: the time by which threads are sorted, and then by id.
        descending: True for the latest first.
    """

    thread_ids: tuple[str, ...] = ()
    status: tuple[ThreadStatus, ...] = ()
    assistant: str | None = None
    metadata: dict[str, Any] = {}
    values: dict[str, Any] = {}
    sort_by: Literal["updated_at", "created_at"] = "updated_at"
    descending: bool = True

    def matches(self, thread: RunThreadRow) -> bool:
        """Return True if a thread is found by this query.

        Args:
            thread: the thread.
        """
        return (
            (not self.thread_ids or thread.thread_id in self.thread_ids)
            and (not self.status or thread.status in self.status)
            and self.assistant in (None, thread.assistant)
            and contains(thread.metadata, self.metadata)
            and contains(thread.values or {}, self.values)
        )

    def position(self, thread: RunThreadRow) -> RowPosition:
        """Return the position of a thread in this query's order.

        Args:
            thread: the thread.
        """
        return RowPosition(thread.updated_at if self.sort_by == "updated_at" else thread.created_at, thread.thread_id)

    def is_behind(self, thread: RunThreadRow, position: RowPosition) -> bool:
        """Return True if a thread comes after a position in this query's order.

        Args:
            thread: the thread.
            position: the position.
        """
        return self.position(thread) < position if self.descending else self.position(thread) > position

    @property
    def order(self) -> str:
        """The name of the order, which cursors carry: a cursor of another order is refused."""
        return f"{self.sort_by} {'descending' if self.descending else 'ascending'}"


RUN_ORDER = "runs"
"""The name of the order of runs, as `ThreadQuery.order`."""


class RowPosition(NamedTuple):
    """A position in a listing: the key of the last row of a page. Tuples compare as rows are sorted.

    Attributes:
        at: the row's time, in unix seconds.
        id: the row's id. Texts are ordered by code points.
    """

    at: float
    id: str


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A page of a listing.

    Attributes:
        items: the rows.
        next: pass it as `after` for the next page; None on the last page.
    """

    items: tuple[T, ...]
    next: str | None


def run_position(run: RunRow) -> RowPosition:
    """Return the position of a run: runs are listed newest first.

    Args:
        run: the run.
    """
    return RowPosition(run.created_at, run.run_id)


def page_of(rows: Sequence[T], limit: int, order: str, position: Callable[[T], RowPosition]) -> Page[T]:
    """Return a page of the rows that a store has found.

    Args:
        rows: up to `limit + 1` rows: the last one only shows that there are more.
        limit: maximum number of rows of the page.
        order: the name of the listing's order.
        position: returns a row's position.
    """
    items = tuple(rows[: max(limit, 0)])
    return Page(items, write_cursor(order, position(items[-1])) if items and len(rows) > len(items) else None)


def write_cursor(order: str, position: RowPosition) -> str:
    """Return a position as text.

    Args:
        order: the name of the listing's order.
        position: the position.
    """
    return urlsafe_b64encode(msgspec.json.encode((order, *position))).decode().rstrip("=")


def read_cursor(text: str | None, order: str) -> RowPosition | None:
    """Return the position of a cursor.

    Args:
        text: what `write_cursor` returned; None for the beginning.
        order: the name of the order of the present listing.

    Raises:
        ValueError: the text is no cursor, or one of a listing in another order.
    """
    if text is None:
        return None
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        made_in, at, id = msgspec.json.decode(raw, type=tuple[str, float, str])
        if write_cursor(made_in, RowPosition(at, id)) != text:  # base64 ignores foreign characters
            raise ValueError("it was changed")
    except ValueError as error:  # msgspec's, base64's and Unicode's errors are subclasses
        raise ValueError(f"the cursor {text!r} is malformed: pass `next` of the page before") from error
    if made_in != order:
        raise ValueError(f"the cursor {text!r} is malformed: it is of a listing by {made_in}, and this is by {order}")
    return RowPosition(at, id)


def contains(found: Any, wanted: Any) -> bool:
    """Return True if a JSON value contains another, as PostgreSQL's `jsonb @>` defines it for objects.

    An object contains another if it has each of its keys, with a value that contains the other's. A list contains
    another if each element of the other is contained in one of its elements, in any order. Other values are equal; a
    bool never equals a number.

    Args:
        found: the value that is stored.
        wanted: the value that it is to contain.
    """
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            key in found and contains(found[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list | tuple):
        return isinstance(found, list | tuple) and all(any(contains(one, value) for one in found) for value in wanted)
    return bool(found == wanted) and isinstance(found, bool) is isinstance(wanted, bool)
