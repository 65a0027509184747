"""`SqliteCache`: entries in one SQLite file, for any number of processes on one machine.

A row's columns serve to find it. Its sealed frame is what counts: it holds expiry, namespace, key and value, so a row
of which any part is damaged is a miss, and is removed. Damage that SQLite itself finds is an error, as in a saver; the
advice differs, since a cache can be deleted.
"""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from struct import Struct
from typing import Final, Self, TypeVar

from ..codec import seal, unseal
from ..errors import CorruptCheckpointError, StorageReadOnlyError, UnsupportedFormatError
from ..sqlite.client import SqliteClient
from ..sqlite.schema import execute_with_retry, read_transaction, setup_transaction, use_wal
from ..sqlite.worker import ClientKind, Job
from .abc import BaseCache, CacheEntry, FullKey, Namespace, checked_entries, checked_keys, checked_namespaces

T = TypeVar("T")

APPLICATION_ID: Final = 0x50524743
"""`PRGC`, in the file's header: marks a cache of this package."""

VERSION: Final = 1
"""The version of this layout, in the file's header (`user_version`). A file with a greater one is refused and not
changed."""

SWEEP_LIMIT: Final = 1000
"""Number of expired rows that one write removes, at most, beyond the number that it adds, so that no writer waits long.
"""

# The namespace is the first column of the key, so that a namespace and all namespaces inside it are one range.
_TABLES: Final = (
    """
    CREATE TABLE entries (
        namespace BLOB NOT NULL,
        key BLOB NOT NULL,
        expires_at REAL,
        frame BLOB NOT NULL,
        PRIMARY KEY (namespace, key)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX entries_by_expiry ON entries (expires_at) WHERE expires_at IS NOT NULL",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)

_GET: Final = "SELECT frame FROM entries WHERE namespace = ? AND key = ?"
_PUT: Final = "INSERT OR REPLACE INTO entries (namespace, key, expires_at, frame) VALUES (?, ?, ?, ?)"
_REMOVE: Final = "DELETE FROM entries WHERE namespace = ? AND key = ? AND frame IS ?"
_REMOVE_EXPIRED: Final = (
    "DELETE FROM entries WHERE (namespace, key) IN "
    "(SELECT namespace, key FROM entries WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)"
)
_CLEAR: Final = "DELETE FROM entries WHERE namespace >= ? AND namespace < ?"

_ANOTHER_FILE: Final = "Choose another file"

_EXPIRY: Final = Struct(">d")


class SqliteCache(SqliteClient, BaseCache):
    """Stores entries in one SQLite file, which any number of processes on one machine may use at once.

        async with SqliteCache("cache.db") as cache:
            ...

    An entry that does not expire remains until it is cleared. A power loss may destroy the last entries, never part of
    one. SQLite's WAL mode is used, which needs a local disk. A cache has a file of its own: a saver's is refused.

    Args:
        path: a file, which is made if it is missing; `":memory:"`; or an SQLite URI (`file:cache.db?mode=ro`).
        busy_timeout: seconds to wait for another process's lock, before `StorageLockedError`.
        clock: returns the time in unix seconds, as for every cache.

    Raises:
        ValueError: `busy_timeout` is out of range.
    """

    _client_kind = ClientKind("SqliteCache", "cache", "in 'async with SqliteCache(...)'")

    def __init__(
        self, path: str | os.PathLike[str], *, busy_timeout: float = 5.0, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(clock=clock)
        self._configure(path, busy_timeout)

    async def __aenter__(self) -> Self:
        """Open the database, after a check which program made the file.

        Raises:
            CorruptCheckpointError: the file is damaged, or not a cache.
            UnsupportedFormatError: a later version of this package made it.
            StorageError: it cannot be opened; `StorageReadOnlyError`: it is new, and cannot be written.
            SaverClosedError: the cache is open already.
        """
        try:
            await self._connect(partial(_prepare, name=self.path, busy_timeout=self.busy_timeout))
        except CorruptCheckpointError as error:
            raise _with_cache_advice(error) from error.__cause__
        return self

    async def __aexit__(self, *error: object) -> None:
        """Finish what was begun, and close. May be called on any thread and event loop."""
        await self._disconnect()

    async def _run(self, work: Callable[[sqlite3.Cursor], T], *, writes: bool) -> T:
        try:
            return await self._connection.run(Job(work, writes=writes))
        except CorruptCheckpointError as error:
            raise _with_cache_advice(error) from error.__cause__

    async def aget(self, keys: Iterable[FullKey]) -> dict[FullKey, bytes]:
        wanted = checked_keys(keys)
        if not wanted:
            return {}
        rows = await self._run(partial(_get, keys=wanted), writes=False)
        now, found = self.clock(), dict[FullKey, bytes]()
        damaged = list[tuple[bytes, bytes, object]]()
        for key, frame in rows:
            try:
                entry = _read(key, frame)
            except CorruptCheckpointError:
                damaged.append((*_columns(key), frame))
            # A later version may want to read the row again: it is a miss here, and stays.
            except UnsupportedFormatError:
                continue
            else:
                if now < entry.expires_at:
                    found[key] = entry.value
        if damaged:
            await self._remove_damaged(damaged)
        return found

    async def _remove_damaged(self, damaged: list[tuple[bytes, bytes, object]]) -> None:
        """Remove rows, unless they have been written again meanwhile."""

        def forget(db: sqlite3.Cursor) -> None:
            db.executemany(_REMOVE, damaged)

        try:
            await self._run(forget, writes=True)
        except StorageReadOnlyError:
            return  # on a read-only file, they remain misses

    async def aset(self, pairs: Mapping[FullKey, tuple[bytes, float | None]]) -> None:
        now = self.clock()
        rows = [
            (*_columns(key), None if entry.expires_at == math.inf else entry.expires_at, _frame(key, entry))
            for key, entry in checked_entries(pairs, now).items()
        ]

        def put(db: sqlite3.Cursor) -> None:
            db.execute(_REMOVE_EXPIRED, (now, SWEEP_LIMIT + len(rows)))
            db.executemany(_PUT, rows)

        if rows:
            await self._run(put, writes=True)

    async def aclear(self, namespaces: Iterable[Namespace] | None = None) -> None:
        ranges = [_range(one) for one in checked_namespaces(namespaces)]

        def clear(db: sqlite3.Cursor) -> None:
            db.executemany(_CLEAR, ranges)

        if ranges:
            await self._run(clear, writes=True)


def _get(db: sqlite3.Cursor, *, keys: list[FullKey]) -> list[tuple[FullKey, object]]:
    rows = [(key, db.execute(_GET, _columns(key)).fetchone()) for key in keys]
    return [(key, row[0]) for key, row in rows if row is not None]


def _columns(key: FullKey) -> tuple[bytes, bytes]:
    namespace, name = key
    return _namespace(namespace), name.encode("utf-8", "surrogatepass")


def _namespace(namespace: Namespace) -> bytes:
    """Return a namespace's bytes: each part, followed by a zero byte.

    The bytes of all namespaces inside it begin with them. A zero in a part is followed by 0xff, which UTF-8 text never
    contains, so no part can look like the end of another.
    """
    return b"".join(part.encode("utf-8", "surrogatepass").replace(b"\0", b"\0\xff") + b"\0" for part in namespace)


def _range(namespace: Namespace) -> tuple[bytes, bytes]:
    """Return the range of a namespace and all inside it.

    Their bytes begin with its own, and continue with a part's first byte.
    """
    start = _namespace(namespace)
    return start, start + b"\xff"


def _frame(key: FullKey, entry: CacheEntry) -> bytes:
    return seal(b"".join((_EXPIRY.pack(entry.expires_at), *_columns(key), entry.value)))


def _read(key: FullKey, frame: object) -> CacheEntry:
    """Decode the entry of a stored frame.

    Raises:
        CorruptCheckpointError: it is damaged, or another key's.
        UnsupportedFormatError: a later version wrote it.
    """
    where = f"the cached value of {key!r}"
    if not isinstance(frame, bytes):
        raise CorruptCheckpointError(where, f"not bytes but {type(frame).__name__}")
    body, known = unseal(frame, where), b"".join(_columns(key))
    end = _EXPIRY.size + len(known)
    # The seal proves that the frame is whole, not that it belongs to this key: swapped rows are detected here.
    if body[_EXPIRY.size : end] != known:
        raise CorruptCheckpointError(where, "it is another key's")
    return CacheEntry(bytes(body[end:]), *_EXPIRY.unpack_from(body))


def _prepare(connection: sqlite3.Connection, name: str, *, busy_timeout: float) -> None:
    """Prepare a new connection: check which program made the file before any change; then set up an empty one."""
    deadline = time.monotonic() + busy_timeout
    with read_transaction(connection, deadline):
        is_ready = _is_ready(connection, name)
    if not is_ready:
        with setup_transaction(connection, deadline, f"{name}: the database is empty, and cannot be written"):
            # Checked again under the write lock: another process may have set the file up meanwhile.
            if not _is_ready(connection, name):
                for statement in _TABLES:
                    connection.execute(statement)
    use_wal(connection, deadline)
    # Not FULL, as for savers: what a power loss takes from a cache can be computed again.
    execute_with_retry(connection, "PRAGMA synchronous = NORMAL", deadline)


def _is_ready(connection: sqlite3.Connection, name: str) -> bool:
    """Return True if the file is a cache, False if it is empty. Raise if this cache must not use it."""
    application_id: int = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
    if application_id == APPLICATION_ID:
        if version > VERSION:
            raise UnsupportedFormatError(name, version, VERSION)
        missing = sorted({"entries", "entries_by_expiry"} - names)
        if version < 1 or missing:
            raise CorruptCheckpointError(name, f"its version is {version}, and these parts are missing: {missing}")
        return True
    if application_id or version or names:
        raise CorruptCheckpointError(name, "it is a database, and no cache", _ANOTHER_FILE)
    return False


def _with_cache_advice(error: CorruptCheckpointError) -> CorruptCheckpointError:
    """Return an error about the file with advice for a cache. A file of another program must not be deleted."""
    if error.advice == _ANOTHER_FILE:
        return error
    return CorruptCheckpointError(error.where, error.reason, "Delete it: what a cache holds can be computed again")
