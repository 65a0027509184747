"""Threads of accepted runs, by their status: the list of what waits for a person, for `threads list` and `show`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from checkpoint_savers import BaseCheckpointSaver
from checkpoint_savers.runs.queries import Page, ThreadQuery
from checkpoint_savers.runs.rows import RunThreadRow

from ..service import ThreadInfo
from .database import Database, runs_of
from .formatting import escape, format_columns, print_json

MOST = 100
"""How many threads are listed if no limit is given."""


class ThreadStatusChoice(StrEnum):
    """The statuses of threads."""

    idle = "idle"
    busy = "busy"
    interrupted = "interrupted"
    error = "error"


class Order(StrEnum):
    """The times by which threads are sorted."""

    updated_at = "updated_at"
    created_at = "created_at"


def thread_query(
    status: Sequence[ThreadStatusChoice], graph: str | None, order: Order, metadata: dict[str, Any]
) -> ThreadQuery:
    """Return the search of a listing.

    Args:
        status: only threads with one of these; empty for all.
        graph: only threads whose first run was of this graph; None for all.
        order: the time to sort by.
        metadata: only threads whose metadata contain this.
    """
    return ThreadQuery(
        status=tuple(each.value for each in status), assistant=graph, metadata=metadata, sort_by=order.value
    )


def print_threads(
    database: Database, query: ThreadQuery, *, limit: int | None, after: str | None, count: bool, as_json: bool
) -> None:
    """Print a page of threads on standard output, the latest first.

    Args:
        database: where they are.
        query: which threads.
        limit: how many at most; None for 100.
        after: the cursor that the page before has printed.
        count: print only their number.
        as_json: print JSON.

    Raises:
        UsageError: the database stores no runs.
        ValueError: the cursor is malformed.
    """
    if count:
        print(database.run(lambda saver: runs_of(saver).count_threads(query)))
        return

    async def read(saver: BaseCheckpointSaver) -> Page[RunThreadRow]:
        return await runs_of(saver).search_threads(query, limit=limit or MOST, after=after)

    page = database.run(read)
    found = [ThreadInfo.from_row(row) for row in page.items]
    if as_json:
        print_json(found, indent=2)
    else:
        head = ("thread", "status", "graph", "updated", "notes")
        print("\n".join(format_columns(head, [_row(info) for info in found])))
    if page.next is not None:
        print(escape(f"there are more: --after {page.next}"), file=sys.stderr)


async def threads_of_graph(saver: BaseCheckpointSaver, graph: str | None) -> list[str] | None:
    """Return the ids of the threads whose first run was of a graph; None (for all threads) if `graph` is None.

    Raises:
        UsageError: the database stores no runs.
    """
    if graph is None:
        return None
    found: list[str] = []
    query, after = ThreadQuery(assistant=graph, sort_by="created_at", descending=False), None
    while True:
        page = await runs_of(saver).search_threads(query, limit=MOST, after=after)
        found += [row.thread_id for row in page.items]
        if page.next is None:
            return found
        after = page.next


async def status_fields(saver: BaseCheckpointSaver, thread_id: str) -> dict[str, Any]:
    """Return what `threads show` adds for a thread with accepted runs; nothing for other threads.

    Args:
        saver: stores the thread.
        thread_id: the thread.
    """
    row = None if saver.runs is None else await saver.runs.get_thread(thread_id)
    if row is None:
        return {}
    fields: dict[str, Any] = {"status": row.status, "graph": row.assistant, "runs": row.runs}
    if row.interrupts:
        fields["questions"] = row.interrupts
    if row.error is not None:
        fields["error"] = f"{row.error.type}: {row.error.message}"
    return fields


def _row(info: ThreadInfo) -> tuple[str, ...]:
    notes = "" if info.error is None else f"{info.error.type}: {info.error.message}"
    if info.interrupts:
        notes = "; ".join(repr(each["value"]) for questions in info.interrupts.values() for each in questions)
    updated = info.updated_at.astimezone().isoformat(" ", "seconds")
    return info.thread_id, info.status, info.graph, updated, notes
