"""Table and statements of `PostgresStore`.

Several reads see one snapshot. Writes are a transaction of their own after them, which locks rows in the order of their
keys, so that two batches never deadlock. No search holds a lock.

If a connection breaks during a commit, the transaction's number later answers whether it was committed
(`pg_xact_status`). So nothing is done twice, and nothing that others did meanwhile is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Final

from ..postgres.connections import PostgresCursor, fetch
from ..postgres.outcomes import was_committed
from ..postgres.schema import Layout
from .port import Answer, Batch, Find, Outcome, Row, Scan, Spaces, Write, paging_of_spaces

# Namespaces and keys are bytes of UTF-8 (see `names.py`): they sort by code points whatever the database's collation
# is, and a search of a namespace is a range. The index by age holds everything by which a search finds and orders its
# rows.
LAYOUT: Final = Layout(
    kind="store",
    class_name="PostgresStore",
    version_table="pregel_store_version",
    tables={
        "pregel_store_version": {"version": "integer"},
        "pregel_items": {
            "namespace": "bytea",
            "key": "bytea",
            "created_at": "double precision",
            "updated_at": "double precision",
            "ttl": "double precision",
            "expires_at": "double precision",
            "frame": "bytea",
        },
    },
    migrations=(
        (
            "CREATE TABLE {s}.pregel_store_version (version integer NOT NULL)",
            """
        CREATE TABLE {s}.pregel_items (
            namespace bytea NOT NULL,
            key bytea NOT NULL,
            created_at double precision NOT NULL,
            updated_at double precision NOT NULL,
            ttl double precision,
            expires_at double precision,
            frame bytea NOT NULL,
            PRIMARY KEY (namespace, key)
        )
        """,
            """
        CREATE INDEX pregel_items_by_age ON {s}.pregel_items (namespace, updated_at DESC, key, expires_at)
        """,
            """
        CREATE INDEX pregel_items_by_expiry ON {s}.pregel_items (expires_at) WHERE expires_at IS NOT NULL
        """,
            "INSERT INTO {s}.pregel_store_version (version) VALUES (1)",
        ),
    ),
)
"""The table. It may share the schema of a saver's tables, and has a version of its own."""

SLICE: Final = 64
"""Rows that are read at a time if a filter checks them."""

SPACES: Final = 256
"""Namespaces that are read at a time."""

CHUNK: Final = 8_000_000
"""Payload of one statement, in bytes."""

_MOST: Final = 2**63 - 1

_NOT_EXPIRED: Final = "(i.expires_at IS NULL OR i.expires_at > %b)"
_COLUMNS: Final = "i.namespace, i.key, i.created_at, i.updated_at, i.ttl, i.frame"
_RANGE: Final = "i.namespace >= %b AND i.namespace < %b"
_KEYS: Final = "unnest(%b::bytea[], %b::bytea[]) AS r (namespace, key)"
_XID: Final = "RETURNING pg_current_xact_id_if_assigned()::text"

_FIND: Final = (
    "SELECT r.n::int, {c} FROM unnest(%b::bytea[], %b::bytea[]) WITH ORDINALITY AS r (namespace, key, n) "
    "JOIN {s}.pregel_items i ON i.namespace = r.namespace AND i.key = r.key WHERE {t}"
)
_HAS_INNER: Final = "SELECT EXISTS (SELECT FROM {s}.pregel_items WHERE namespace > %b AND namespace < %b)"
_OF_ONE: Final = (
    "SELECT {c} FROM {s}.pregel_items i WHERE i.namespace = %b AND {t} ORDER BY i.updated_at DESC, i.key "
    "LIMIT %b OFFSET %b"
)
_OF_ALL: Final = (
    "SELECT {c} FROM {s}.pregel_items i WHERE {r} AND {t} ORDER BY i.updated_at DESC, i.namespace, i.key "
    "LIMIT %b OFFSET %b"
)
_SPACES: Final = """
WITH RECURSIVE found (namespace) AS (
    (SELECT i.namespace FROM {s}.pregel_items i WHERE {r} AND {t} ORDER BY i.namespace LIMIT 1)
    UNION ALL
    SELECT (
        SELECT i.namespace FROM {s}.pregel_items i
        WHERE i.namespace > found.namespace AND i.namespace < %b AND {t} ORDER BY i.namespace LIMIT 1
    ) FROM found WHERE found.namespace IS NOT NULL
)
SELECT namespace FROM found WHERE namespace IS NOT NULL LIMIT %b
"""
_PUT: Final = """
INSERT INTO {s}.pregel_items AS i (namespace, key, created_at, updated_at, ttl, expires_at, frame)
SELECT r.namespace, r.key, n.now, n.now, r.ttl, n.now + r.ttl, r.frame
FROM unnest(%b::bytea[], %b::bytea[], %b::float8[], %b::bytea[]) AS r (namespace, key, ttl, frame),
    (SELECT %b::float8 AS now) AS n
ORDER BY r.namespace, r.key
ON CONFLICT (namespace, key) DO UPDATE SET
    created_at = CASE WHEN i.expires_at <= excluded.updated_at THEN excluded.updated_at ELSE i.created_at END,
    updated_at = excluded.updated_at, ttl = excluded.ttl, expires_at = excluded.expires_at, frame = excluded.frame
{x}
"""
_REMOVE: Final = """
DELETE FROM {s}.pregel_items i USING (
    SELECT i.namespace, i.key FROM {s}.pregel_items i JOIN {k} ON i.namespace = r.namespace AND i.key = r.key
    ORDER BY i.namespace, i.key FOR UPDATE OF i
) AS held
WHERE i.namespace = held.namespace AND i.key = held.key {x}
"""
_REFRESH: Final = """
UPDATE {s}.pregel_items i SET expires_at = %b::float8 + i.ttl FROM (
    SELECT i.namespace, i.key FROM {s}.pregel_items i JOIN {k} ON i.namespace = r.namespace AND i.key = r.key
    ORDER BY i.namespace, i.key FOR UPDATE OF i
) AS held
WHERE i.namespace = held.namespace AND i.key = held.key AND i.ttl IS NOT NULL AND i.expires_at > %b {x}
"""
_SWEEP: Final = """
DELETE FROM {s}.pregel_items WHERE (namespace, key) IN (
    SELECT namespace, key FROM {s}.pregel_items WHERE expires_at <= %b
    ORDER BY expires_at LIMIT %b FOR UPDATE SKIP LOCKED
) {x}
"""

# True unless of each key the write or a later one is there. Without a frame, the write is a deletion.
_LACKS: Final = """
SELECT EXISTS (
    SELECT FROM unnest(%b::bytea[], %b::bytea[], %b::bytea[]) AS r (namespace, key, frame)
    LEFT JOIN {s}.pregel_items i ON i.namespace = r.namespace AND i.key = r.key
    WHERE CASE WHEN r.frame IS NULL THEN i.updated_at < %b::float8
        ELSE i.frame IS DISTINCT FROM r.frame AND coalesce(i.updated_at < %b::float8, true) END
)
"""

ItemKey = tuple[bytes, bytes]
"""A row's namespace and key."""


class BatchAttempt:
    """State of the attempts at one batch.

    Attributes:
        outcome: the outcome of its transaction; None before it is about to be committed.
        xid: the number of that transaction; None if it writes nothing.
    """

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self.xid: str | None = None


class StoreStatements:
    """The statements of one schema.

    Args:
        schema: quoted.
        name: how messages name the database.
        busy_timeout: seconds to wait for a lock.
    """

    def __init__(self, schema: str, name: str, busy_timeout: float) -> None:
        def of(text: str) -> bytes:
            return text.format(s=schema, c=_COLUMNS, t=_NOT_EXPIRED, r=_RANGE, k=_KEYS, x=_XID).encode()

        self._name = name
        self._busy_timeout = busy_timeout
        self._lock_timeout = f"{max(round(busy_timeout * 1000), 1)}ms"  # 0 would mean no limit
        self._lacks = of(_LACKS)
        self._find = of(_FIND)
        self._has_inner = of(_HAS_INNER)
        self._of_one = of(_OF_ONE)
        self._of_all = of(_OF_ALL)
        self._spaces = of(_SPACES)
        self._put = of(_PUT)
        self._remove = of(_REMOVE)
        self._refresh = of(_REFRESH)
        self._sweep = of(_SWEEP)

    async def read(self, cursor: PostgresCursor, batch: Batch) -> tuple[list[Answer], list[ItemKey]]:
        """Execute a batch's reads.

        Args:
            cursor: of a connection in autocommit mode.
            batch: the batch.

        Returns:
            The answers, and the keys of the rows whose ttl starts again.
        """
        finds = [(n, one) for n, one in enumerate(batch.reads) if isinstance(one, Find)]
        answers: list[Answer] = [None] * len(batch.reads)
        in_transaction = len(finds) < len(batch.reads)
        if in_transaction:
            await cursor.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if finds:
            spaces, keys = [one.namespace for _, one in finds], [one.key for _, one in finds]
            for number, *columns in await fetch(cursor, self._find, spaces, keys, batch.now):
                answers[finds[number - 1][0]] = Row(*columns)
        for n, one in enumerate(batch.reads):
            match one:
                case Scan():
                    answers[n] = await self._scan(cursor, one, batch.now)
                case Spaces():
                    answers[n] = await self._list(cursor, one, batch.now)
                case Find():
                    pass
        if in_transaction:
            await cursor.execute(b"COMMIT")
        due: dict[ItemKey, None] = {}
        for one, answer in zip(batch.reads, answers, strict=True):
            if isinstance(one, Spaces) or not one.refresh or answer is None:
                continue
            rows = [answer] if isinstance(answer, Row) else answer
            due.update(((row.namespace, row.key), None) for row in rows if isinstance(row, Row) and row.ttl is not None)
        return answers, list(due)

    async def _scan(self, cursor: PostgresCursor, scan: Scan, now: float) -> list[Row]:
        if scan.limit <= 0:
            return []
        statement, where = self._of_all, [scan.start, scan.end]
        if scan.start and not (await fetch(cursor, self._has_inner, scan.start, scan.end))[0][0]:
            statement, where = self._of_one, [scan.start]
        if scan.accepts is None:
            page = min(scan.limit, _MOST), min(scan.offset, _MOST)
            return [Row(*raw) for raw in await fetch(cursor, statement, *where, now, *page)]
        # A server-side cursor: the rows are sorted once, and read only until enough of them match. It ends with the
        # transaction.
        await cursor.execute(b"DECLARE pregel_scan NO SCROLL CURSOR FOR " + statement, (*where, now, _MOST, 0))
        found = await _accepted(cursor, scan, scan.accepts)
        await cursor.execute(b"CLOSE pregel_scan")
        return found

    async def _list(self, cursor: PostgresCursor, spaces: Spaces, now: float) -> list[bytes]:
        paging = paging_of_spaces(spaces)
        known: Iterator[bytes] = iter(())
        name: bytes | None = None
        is_all = False
        try:
            at = next(paging)
            while True:
                while name is None or name < at:
                    name = next(known, None)
                    if name is not None:
                        continue
                    if is_all:
                        break
                    bound = (at, spaces.end, now, spaces.end, now, SPACES)
                    names = [raw[0] for raw in await fetch(cursor, self._spaces, *bound)]
                    is_all, known = len(names) < SPACES, iter(names)
                at = paging.send(name)
        except StopIteration as end:
            found: list[bytes] = end.value
            return found

    async def write(
        self, cursor: PostgresCursor, batch: Batch, answers: list[Answer], due: Sequence[ItemKey], attempt: BatchAttempt
    ) -> Outcome:
        """Execute a batch's writes in one transaction, unless an earlier attempt was committed.

        Args:
            cursor: of a connection in autocommit mode.
            batch: the batch.
            answers: the answers of its reads.
            due: keys of the rows whose ttl starts again.
            attempt: state of the attempts.

        Returns:
            The outcome.

        Raises:
            StorageError: the server has not ended an earlier attempt within the busy timeout.
        """
        if attempt.outcome is not None and (
            attempt.xid is None
            or await was_committed(
                cursor,
                attempt.xid,
                self._name,
                self._busy_timeout,
                lacks_writes=partial(self._lacks_writes, cursor, batch),
            )
        ):
            return attempt.outcome
        attempt.outcome = attempt.xid = None
        await cursor.execute(
            f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '{self._lock_timeout}'".encode()
        )
        xid: str | None = None
        written = {(one.namespace, one.key) for one in batch.writes}
        todo: list[tuple[ItemKey, Write | None]] = [(key, None) for key in due if key not in written]
        todo += [((one.namespace, one.key), one) for one in batch.writes]
        # All batches lock rows in this order, so no two wait for each other. Neighbours of one kind are then one
        # statement.
        todo.sort(key=lambda each: each[0])
        for kind, group in groupby(todo, key=lambda each: "refresh" if each[1] is None else each[1].frame is not None):
            for part in _parts(group):
                keys = [key[0] for key, _ in part], [key[1] for key, _ in part]
                writes = [one for _, one in part if one is not None]
                if kind == "refresh":
                    raw = await fetch(cursor, self._refresh, batch.now, *keys, batch.now)
                elif kind:
                    ttls = [None if one.ttl is None else float(one.ttl) for one in writes]
                    raw = await fetch(cursor, self._put, *keys, ttls, [one.frame for one in writes], batch.now)
                else:
                    raw = await fetch(cursor, self._remove, *keys)
                xid = raw[0][0] if raw else xid
        swept = 0
        if batch.sweeps:
            raw = await fetch(cursor, self._sweep, batch.now, batch.sweeps)
            swept = len(raw)
            xid = raw[0][0] if raw else xid
        # Before COMMIT: if the connection breaks during it, only the number can answer whether it was committed.
        attempt.outcome, attempt.xid = Outcome(answers, swept), xid
        await cursor.execute(b"COMMIT")
        return attempt.outcome

    async def _lacks_writes(self, cursor: PostgresCursor, batch: Batch) -> bool:
        """Return True if a write of a batch is not stored, nor a later one of its key."""
        writes = batch.writes
        keys = [one.namespace for one in writes], [one.key for one in writes], [one.frame for one in writes]
        return bool((await fetch(cursor, self._lacks, *keys, batch.now, batch.now))[0][0])


async def _accepted(cursor: PostgresCursor, scan: Scan, accepts: Callable[[Row], bool]) -> list[Row]:
    """Return the answer to a scan, from the cursor `pregel_scan`."""
    found: list[Row] = []
    left = scan.offset
    while True:
        raw = await fetch(cursor, f"FETCH FORWARD {SLICE} FROM pregel_scan".encode())
        for row in filter(accepts, (Row(*columns) for columns in raw)):
            if left:
                left -= 1
                continue
            found.append(row)
            if len(found) == scan.limit:
                return found
        if len(raw) < SLICE:
            return found


def _parts(todo: Iterable[tuple[ItemKey, Write | None]]) -> Iterator[list[tuple[ItemKey, Write | None]]]:
    """Split writes into parts of which none is much too large for a statement."""
    part: list[tuple[ItemKey, Write | None]] = []
    size = 0
    for key, one in todo:
        length = 0 if one is None or one.frame is None else len(one.frame)
        if part and size + length > CHUNK:
            yield part
            part, size = [], 0
        part.append((key, one))
        size += length
    if part:
        yield part
