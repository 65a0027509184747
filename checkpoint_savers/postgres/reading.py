"""The reading verbs, each as one statement: its result is of one moment, and it costs one round trip."""

from __future__ import annotations

from ..errors import CorruptCheckpointError
from ..metadata import read_metadata
from ..records import Chain, CheckpointId, CheckpointRow, EventKey, EventRow, TaskRecord, ThreadDump
from .connections import PostgresCursor, fetch
from .escaping import escape, escape_or_none, unescape
from .rows import Raw, events_of, records_of, rows_of, to_checkpoint_id, to_checkpoint_id_or_none, where_of

# Parts of one answer, each with a number: 0 the head and the requested row's bases; 1 the rows from the keyframe to the
# snapshot, and those from the base to the requested row; 2 the requested row's records. One statement instead of four:
# it is one round trip, and no prune can come between its parts.
_READ = """
WITH asked AS MATERIALIZED (
    SELECT t.thread, h.ns, h.checkpoint_id AS head, c.checkpoint_id, c.base_id, b.base_id AS first_id
    FROM {s}.pregel_threads t
    JOIN {s}.pregel_heads h ON h.thread = t.thread AND h.ns = %b
    LEFT JOIN {s}.pregel_checkpoints c
        ON c.thread = h.thread AND c.ns = h.ns AND c.checkpoint_id = coalesce(%b::text, h.checkpoint_id)
    LEFT JOIN {s}.pregel_checkpoints b ON b.thread = h.thread AND b.ns = h.ns AND b.checkpoint_id = c.base_id
    WHERE t.thread_id = %b
)
SELECT 0, head, checkpoint_id, base_id, first_id, NULL::bigint, NULL, NULL::boolean, NULL::bytea FROM asked
UNION ALL
SELECT 1, c.ns, c.checkpoint_id, c.parent_id, c.base_id, c.step, c.metadata, c.pinned, c.frame
FROM asked a JOIN {s}.pregel_checkpoints c
    ON c.thread = a.thread AND c.ns = a.ns AND c.base_id = a.first_id AND c.checkpoint_id <= a.base_id
WHERE a.first_id <> a.base_id
UNION ALL
SELECT 1, c.ns, c.checkpoint_id, c.parent_id, c.base_id, c.step, c.metadata, c.pinned, c.frame
FROM asked a JOIN {s}.pregel_checkpoints c
    ON c.thread = a.thread AND c.ns = a.ns AND c.base_id = a.base_id AND c.checkpoint_id <= a.checkpoint_id
UNION ALL
SELECT 2, r.ns, r.checkpoint_id, r.task_id, r.kind, r.idx, NULL, NULL, r.frame
FROM asked a JOIN {s}.pregel_records r
    ON r.thread = a.thread AND r.ns = a.ns AND r.checkpoint_id = a.checkpoint_id
"""
_SEGMENT = """
WITH found AS MATERIALIZED (
    SELECT c.* FROM {s}.pregel_threads t JOIN {s}.pregel_checkpoints c ON c.thread = t.thread
    WHERE t.thread_id = %b AND c.ns = %b AND c.base_id = %b
)
SELECT 1, ns, checkpoint_id, parent_id, base_id, step, metadata, pinned, frame FROM found
UNION ALL
SELECT 2, r.ns, r.checkpoint_id, r.task_id, r.kind, r.idx, NULL, NULL, r.frame
FROM found f JOIN {s}.pregel_records r USING (thread, ns, checkpoint_id)
"""
_EVENTS = """
SELECT e.checkpoint_id, e.epoch, e.position, e.kind, e.frame
FROM {s}.pregel_threads t JOIN {s}.pregel_events e ON e.thread = t.thread
WHERE t.thread_id = %b AND (e.checkpoint_id, e.epoch, e.position) >= (%b, %b::bigint, %b::bigint)
ORDER BY e.checkpoint_id, e.epoch, e.position LIMIT %b
"""
_HEADER = """
SELECT t.thread_id, c.ns, c.checkpoint_id, c.parent_id, c.base_id, c.step, c.metadata, octet_length(c.frame), c.pinned
FROM {s}.pregel_threads t JOIN {s}.pregel_checkpoints c ON c.thread = t.thread
"""
# Keyset pagination: rows that are added or deleted meanwhile do not shift the pages, as they would with OFFSET.
_PAGE_OF_THREAD = f"""{_HEADER}
WHERE t.thread_id = %b AND (%b::text IS NULL OR (c.checkpoint_id, c.ns) < (%b, %b)) AND (%b::text IS NULL OR c.ns = %b)
ORDER BY c.checkpoint_id DESC, c.ns DESC LIMIT %b
"""
_PAGE_OF_ALL = f"""{_HEADER}
WHERE (%b::text IS NULL OR (c.checkpoint_id, t.thread_id, c.ns) < (%b, %b, %b)) AND (%b::text IS NULL OR c.ns = %b)
ORDER BY c.checkpoint_id DESC, t.thread_id DESC, c.ns DESC LIMIT %b
"""
_THREADS = """
SELECT t.thread_id, t.epoch, t.owner, t.expires_at, t.newest, h.checkpoint_id, t.metadata
FROM {s}.pregel_threads t LEFT JOIN {s}.pregel_heads h ON h.thread = t.thread AND h.ns = ''
WHERE %b::text IS NULL OR t.thread_id > %b
ORDER BY t.thread_id LIMIT %b
"""
_THREAD = "SELECT thread, metadata FROM {s}.pregel_threads WHERE thread_id = %b"
_ALL_HEADS = "SELECT ns, checkpoint_id FROM {s}.pregel_heads WHERE thread = %b ORDER BY ns"
_HEADS = """
SELECT h.ns, h.checkpoint_id FROM {s}.pregel_threads t JOIN {s}.pregel_heads h ON h.thread = t.thread
WHERE t.thread_id = %b AND (%b::text IS NULL OR h.ns = %b)
"""
_ALL_ROWS = """
SELECT ns, checkpoint_id, parent_id, base_id, step, metadata, pinned, frame FROM {s}.pregel_checkpoints
WHERE thread = %b
"""
_ALL_RECORDS = "SELECT ns, checkpoint_id, task_id, idx, kind, frame FROM {s}.pregel_records WHERE thread = %b"
_ALL_EVENTS = """
SELECT checkpoint_id, epoch, position, kind, frame FROM {s}.pregel_events
WHERE thread = %b ORDER BY checkpoint_id, epoch, position
"""

_FIRST = (CheckpointId(""), 0, 0)
"""Smaller than every row's key."""

_MOST = 2**63 - 1
"""The greatest bigint. A key to begin at may come from a remote reader, with numbers of any size."""


class ReadStatements:
    """The statements of one schema.

    Args:
        schema: quoted.
    """

    def __init__(self, schema: str) -> None:
        def of(text: str) -> bytes:
            return text.format(s=schema).encode()

        self._read = of(_READ)
        self._segment = of(_SEGMENT)
        self._events = of(_EVENTS)
        self._page_of_thread = of(_PAGE_OF_THREAD)
        self._page_of_all = of(_PAGE_OF_ALL)
        self._threads = of(_THREADS)
        self._thread = of(_THREAD)
        self._all_heads = of(_ALL_HEADS)
        self._heads = of(_HEADS)
        self._all_rows = of(_ALL_ROWS)
        self._all_records = of(_ALL_RECORDS)
        self._all_events = of(_ALL_EVENTS)

    async def read(
        self, cursor: PostgresCursor, thread_id: str, ns: str, checkpoint_id: CheckpointId | None
    ) -> Chain | None:
        """Read the chain of a checkpoint. See `SaverPort.read`.

        Args:
            cursor: of a connection in autocommit mode.
            thread_id: the thread.
            ns: the namespace.
            checkpoint_id: the checkpoint; None for the head.

        Returns:
            The chain, or None if there is no such checkpoint.

        Raises:
            CorruptCheckpointError: a row is damaged, or the chain's first row or the head is missing.
        """
        where = where_of(thread_id, ns)
        raw = await fetch(
            cursor, self._read, escape(ns), escape_or_none(checkpoint_id), escape(thread_id), prepare=None
        )
        places, rows, records = _parts(raw, where)
        if not places:
            return None
        head, asked, base, first = (to_checkpoint_id_or_none(text) for text in places[0][1:5])
        assert head is not None
        if asked is None:
            if checkpoint_id is None:
                raise CorruptCheckpointError(where, f"its head, checkpoint {head}, is missing")
            return None
        # A chain is complete only if it begins with its keyframe and ends with the requested row: a missing row is not
        # noticed otherwise.
        if not rows or rows[0].checkpoint_id != first or rows[-1].checkpoint_id != asked:
            raise CorruptCheckpointError(f"{where}, checkpoint {asked}", f"the base of its chain, {base}, is missing")
        return Chain(rows=rows, records=records, head=head)

    async def segment(
        self, cursor: PostgresCursor, thread_id: str, ns: str, base_id: CheckpointId
    ) -> tuple[tuple[CheckpointRow, ...], tuple[TaskRecord, ...]]:
        """Read the rows of a base, with their records. See `SaverPort.segment`.

        Args:
            cursor: of a connection in autocommit mode.
            thread_id: the thread.
            ns: the namespace.
            base_id: the base.

        Returns:
            The rows and the records, in order.

        Raises:
            CorruptCheckpointError: a row is damaged.
        """
        raw = await fetch(cursor, self._segment, escape(thread_id), escape(ns), escape(base_id), prepare=None)
        _, rows, records = _parts(raw, where_of(thread_id, ns))
        return rows, records

    async def events(
        self, cursor: PostgresCursor, thread_id: str, since: EventKey | None, limit: int
    ) -> tuple[EventRow, ...]:
        """Read rows of events. See `SaverPort.events`.

        Args:
            cursor: of a connection in autocommit mode.
            thread_id: the thread.
            since: the first key to read; None for the beginning.
            limit: number of rows, at most.

        Returns:
            The rows, in order.

        Raises:
            CorruptCheckpointError: a row is damaged.
        """
        checkpoint_id, *numbers = _FIRST if since is None else since
        bound = [min(max(number, -_MOST), _MOST) for number in numbers]
        raw = await fetch(
            cursor,
            self._events,
            escape(thread_id),
            escape(checkpoint_id),
            *bound,
            min(max(limit, 0), _MOST),
            prepare=None,
        )
        return events_of(raw, f"{where_of(thread_id)}, its events")

    async def page(
        self,
        cursor: PostgresCursor,
        thread_id: str | None,
        ns: str | None,
        before: tuple[str, str, str] | None,
        limit: int,
    ) -> list[Raw]:
        """Read a page of raw headers, newest first.

        Args:
            cursor: of a connection in autocommit mode.
            thread_id: the thread; None for all.
            ns: the namespace; None for all.
            before: the position after which the page begins (checkpoint id, thread id, namespace); None for the
                beginning.
            limit: number of headers, at most.

        Returns:
            The rows.
        """
        checkpoint_id, after_thread, after_ns = (None,) * 3 if before is None else map(escape, before)
        of_ns = (escape_or_none(ns), escape_or_none(ns))
        if thread_id is None:
            everywhere = (checkpoint_id, checkpoint_id, after_thread, after_ns)
            return await fetch(cursor, self._page_of_all, *everywhere, *of_ns, limit)
        within = (checkpoint_id, checkpoint_id, after_ns)
        return await fetch(cursor, self._page_of_thread, escape(thread_id), *within, *of_ns, limit)

    async def threads(self, cursor: PostgresCursor, after: str | None, limit: int) -> list[Raw]:
        """Read a page of raw thread headers, in the order of their ids.

        Args:
            cursor: of a connection in autocommit mode.
            after: the last id of the page before; None for the beginning.
            limit: number of headers, at most.

        Returns:
            The rows.
        """
        return await fetch(cursor, self._threads, escape_or_none(after), escape_or_none(after), limit)

    async def heads(self, cursor: PostgresCursor, thread_id: str, ns: str | None) -> dict[str, CheckpointId]:
        """Read the heads of a thread's namespaces. See `SaverPort.heads`.

        Args:
            cursor: of a connection in autocommit mode.
            thread_id: the thread.
            ns: the namespace; None for all.

        Returns:
            Checkpoint ids by namespace.

        Raises:
            CorruptCheckpointError: a row is damaged.
        """
        named = escape_or_none(ns)
        found = await fetch(cursor, self._heads, escape(thread_id), named, named, prepare=None)
        return {unescape(name): to_checkpoint_id(checkpoint_id) for name, checkpoint_id in found}

    async def dump(self, cursor: PostgresCursor, thread_id: str) -> ThreadDump | None:
        """Read everything that is stored of a thread. See `SaverPort.dump`.

        Args:
            cursor: of a connection in autocommit mode.
            thread_id: the thread.

        Returns:
            The dump, or None if the thread holds no checkpoint.

        Raises:
            CorruptCheckpointError: a row is damaged.
        """
        where = where_of(thread_id)
        # Several statements, unlike the other verbs: REPEATABLE READ gives them one snapshot all the same.
        await cursor.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        found = await fetch(cursor, self._thread, escape(thread_id))
        heads: list[Raw] = []
        rows: list[Raw] = []
        records: list[Raw] = []
        events: list[Raw] = []
        if found:
            heads = await fetch(cursor, self._all_heads, found[0][0])
            rows = await fetch(cursor, self._all_rows, found[0][0])
            records = await fetch(cursor, self._all_records, found[0][0])
            events = await fetch(cursor, self._all_events, found[0][0])
        await cursor.execute(b"COMMIT")
        if not rows:
            return None
        return ThreadDump(
            heads={unescape(ns): to_checkpoint_id(checkpoint_id) for ns, checkpoint_id in heads},
            rows=rows_of(rows, where),
            records=records_of(records, where),
            events=events_of(events, where),
            metadata=read_metadata(found[0][1], where),
        )


def _parts(raw: list[Raw], where: str) -> tuple[list[Raw], tuple[CheckpointRow, ...], tuple[TaskRecord, ...]]:
    places = [row for row in raw if row[0] == 0]
    rows = rows_of((row[1:] for row in raw if row[0] == 1), where)
    records = records_of(
        (
            (ns, checkpoint_id, task_id, index, kind, frame)
            for part, ns, checkpoint_id, task_id, kind, index, _, _, frame in raw
            if part == 2
        ),
        where,
    )
    return places, rows, records
