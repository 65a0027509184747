"""Read the tables of langgraph-checkpoint-sqlite and langgraph-checkpoint-postgres, without decoding values.

Both are opened for reading only: LangGraph's own savers would create and migrate tables when they are opened, so their
tables are read directly. Each thread is read in one transaction.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from .stored import EncodedValue, LangGraphCheckpoint, NotLangGraphError, StoredThread, StoredWrite, ThreadSource

_POSTGRES: Final = ("postgres://", "postgresql://")


def open_source(source: str) -> ThreadSource:
    """Open a database of LangGraph's for reading.

    Args:
        source: the path of an SQLite file, or the URL of a PostgreSQL database.

    Returns:
        The open database. Use it in one thread at a time.

    Raises:
        NotLangGraphError: there is no such file or database, or LangGraph's tables are not in it.
    """
    return PostgresSource(source) if source.startswith(_POSTGRES) else SqliteSource(source)


def branch_of(newest: str, parents: Mapping[str, str | None]) -> list[str]:
    """Return the ids of a checkpoint and of those before it on its branch, oldest first.

    Args:
        newest: the last checkpoint of the branch.
        parents: the parent of each stored checkpoint.
    """
    branch: list[str] = []
    left, at = {**parents}, newest
    while at in left:
        branch.append(at)
        at = left.pop(at) or ""
    return branch[::-1]


class SqliteSource:
    """A file of langgraph-checkpoint-sqlite.

    Args:
        path: the file.
    """

    def __init__(self, path: str) -> None:
        if not Path(path).is_file():
            raise NotLangGraphError(path, "there is no such file")
        try:
            # `isolation_level=None`: transactions begin and end where `_reading` says so.
            self._connection = sqlite3.connect(
                f"file:{quote(path)}?mode=ro", uri=True, check_same_thread=False, isolation_level=None
            )
            columns = self._columns("checkpoints"), self._columns("writes")
        except sqlite3.Error as error:
            raise NotLangGraphError(path, f"SQLite says: {error}") from error
        needed = {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "type", "checkpoint"}
        if not needed <= columns[0] or not {"task_id", "idx", "channel", "value"} <= columns[1]:
            self._connection.close()
            raise NotLangGraphError(path, "it has no tables of LangGraph's")
        self._path = "task_path" if "task_path" in columns[1] else "''"  # versions before 2026 have no such column

    def _columns(self, table: str) -> set[str]:
        return {str(row[1]) for row in self._connection.execute(f"PRAGMA table_info({table})")}

    def thread_ids(self) -> list[str]:
        """Return the ids of all threads, sorted."""
        found = self._connection.execute("SELECT DISTINCT thread_id FROM checkpoints ORDER BY thread_id")
        return [str(row[0]) for row in found]

    def thread(self, thread_id: str, *, history: bool) -> StoredThread | None:
        """Read a thread; see `ThreadSource.thread`."""
        with self._reading() as connection:
            listed = connection.execute(
                "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM checkpoints WHERE thread_id = ?",
                (thread_id,),
            ).fetchall()
            return _thread(thread_id, listed, self._checkpoint, history=history)

    def _checkpoint(self, thread_id: str, ns: str, checkpoint_id: str) -> LangGraphCheckpoint:
        key = (thread_id, ns, checkpoint_id)
        kind, body, metadata = self._connection.execute(
            "SELECT type, checkpoint, metadata FROM checkpoints "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
            key,
        ).fetchone()
        writes = self._connection.execute(
            f"SELECT task_id, {self._path}, channel, type, value FROM writes "
            f"WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ? ORDER BY {self._path}, task_id, idx",
            key,
        )
        return LangGraphCheckpoint(
            checkpoint_id=checkpoint_id,
            body=EncodedValue(kind, body),
            metadata={} if metadata is None else json.loads(metadata),
            writes=_writes(writes),
        )

    @contextmanager
    def _reading(self) -> Generator[sqlite3.Connection]:
        self._connection.execute("BEGIN")
        try:
            yield self._connection
        finally:
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


class PostgresSource:
    """A database of langgraph-checkpoint-postgres.

    Args:
        url: the database's URL. `?options=-csearch_path=NAME` names a schema.
    """

    def __init__(self, url: str) -> None:
        where = url.rpartition("@")[2]  # without a password
        try:
            psycopg: Any = import_module("psycopg")
        except ImportError as error:
            raise NotLangGraphError(where, "PostgreSQL needs psycopg: pip install 'pregel-async[postgres]'") from error
        try:
            self._connection = psycopg.connect(url)
            # Refused by the server itself, whatever this code does.
            self._connection.read_only = True
            self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            found = self._rows(
                "SELECT to_regclass('checkpoints'), to_regclass('checkpoint_blobs'), to_regclass('checkpoint_writes')"
            )
            writes = self._rows(
                "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('checkpoint_writes') AND attnum > 0"
            )
            self._connection.rollback()
        except psycopg.Error as error:
            raise NotLangGraphError(where, f"PostgreSQL says: {error}") from error
        if None in found[0]:
            self._connection.close()
            raise NotLangGraphError(where, "it has no tables of LangGraph's")
        self._path = "task_path" if ("task_path",) in writes else "''"

    def _rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(sql, parameters)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def thread_ids(self) -> list[str]:
        """Return the ids of all threads, sorted."""
        try:
            return sorted([str(row[0]) for row in self._rows("SELECT DISTINCT thread_id FROM checkpoints")])
        finally:
            self._connection.rollback()

    def thread(self, thread_id: str, *, history: bool) -> StoredThread | None:
        """Read a thread; see `ThreadSource.thread`."""
        try:
            listed = self._rows(
                "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM checkpoints WHERE thread_id = %s",
                (thread_id,),
            )
            return _thread(thread_id, listed, self._checkpoint, history=history)
        finally:
            self._connection.rollback()

    def _checkpoint(self, thread_id: str, ns: str, checkpoint_id: str) -> LangGraphCheckpoint:
        key = (thread_id, ns, checkpoint_id)
        ((document, metadata),) = self._rows(
            "SELECT checkpoint, metadata FROM checkpoints "
            "WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s",
            key,
        )
        blobs = self._rows(
            "SELECT b.channel, b.type, b.blob FROM checkpoints c "
            "CROSS JOIN LATERAL jsonb_each_text(c.checkpoint -> 'channel_versions') AS v "
            "JOIN checkpoint_blobs b ON b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns "
            "AND b.channel = v.key AND b.version = v.value "
            "WHERE c.thread_id = %s AND c.checkpoint_ns = %s AND c.checkpoint_id = %s AND b.type <> 'empty'",
            key,
        )
        writes = self._rows(
            f"SELECT task_id, {self._path}, channel, type, blob FROM checkpoint_writes "
            f"WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s ORDER BY {self._path}, task_id, idx",
            key,
        )
        return LangGraphCheckpoint(
            checkpoint_id=checkpoint_id,
            document=document,
            blobs={channel: EncodedValue(kind, bytes(blob or b"")) for channel, kind, blob in blobs},
            metadata=metadata,
            writes=_writes(writes),
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _thread(
    thread_id: str,
    listed: Iterable[tuple[str, str, str | None]],
    read: Callable[[str, str, str], LangGraphCheckpoint],
    *,
    history: bool,
) -> StoredThread | None:
    """Read a thread, given the namespace, id and parent of all of its checkpoints."""
    namespaces: dict[str, list[str]] = {}
    parents: dict[str, str | None] = {}
    for ns, checkpoint_id, parent in listed:
        if ns:
            namespaces.setdefault(ns, []).append(checkpoint_id)
        else:
            parents[checkpoint_id] = parent
    if not parents:
        return None
    # LangGraph's ids sort by creation, and it continues a thread from the greatest one.
    branch = branch_of(max(parents), parents)
    kept: dict[str, LangGraphCheckpoint] = {}
    for ns, ids in namespaces.items():
        # The namespace of a subgraph that keeps its state has no task ids.
        for checkpoint_id in sorted(ids, reverse=True) if not _has_task(ns) else ():
            found = read(thread_id, ns, checkpoint_id)
            # A state that the open superstep has made is left out: its node runs again, and makes it again.
            if found.metadata.get("parents", {}).get("") != branch[-1]:
                kept[ns] = found
                break
    return StoredThread(
        thread_id=thread_id,
        checkpoints=[read(thread_id, "", each) for each in (branch if history else branch[-1:])],
        others=len(parents) - len(branch),
        namespaces={ns: len(ids) for ns, ids in sorted(namespaces.items())},
        kept=kept,
    )


def _has_task(ns: str) -> bool:
    return ":" in ns or "|" in ns


def _writes(rows: Iterable[tuple[Any, ...]]) -> list[StoredWrite]:
    return [
        StoredWrite(task_id=task, path=path, channel=channel, value=EncodedValue(kind or "null", bytes(data or b"")))
        for task, path, channel, kind, data in rows
    ]
