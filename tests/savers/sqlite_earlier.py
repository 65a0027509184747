"""Files as earlier versions of SqliteSaver made them, and what those versions do to a file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from checkpoint_savers import SqliteSaver
from checkpoint_savers.metadata import write_metadata

_TABLES = """
    CREATE TABLE threads (
        thread_id TEXT NOT NULL PRIMARY KEY,
        epoch INTEGER NOT NULL,
        run_id TEXT,
        owner TEXT,
        expires_at REAL,
        newest TEXT
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE heads (
        thread_id TEXT NOT NULL,
        ns TEXT NOT NULL,
        checkpoint_id TEXT NOT NULL,
        PRIMARY KEY (thread_id, ns)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE checkpoints (
        thread_id TEXT NOT NULL,
        ns TEXT NOT NULL,
        base_id TEXT NOT NULL,
        checkpoint_id TEXT NOT NULL,
        parent_id TEXT,
        step INTEGER NOT NULL,
        metadata TEXT NOT NULL,
        frame BLOB NOT NULL,
        PRIMARY KEY (thread_id, ns, base_id, checkpoint_id)
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX checkpoints_by_id ON checkpoints (thread_id, checkpoint_id, ns, base_id);
    CREATE TABLE records (
        thread_id TEXT NOT NULL,
        ns TEXT NOT NULL,
        checkpoint_id TEXT NOT NULL,
        task_id TEXT NOT NULL,
        idx INTEGER NOT NULL,
        kind TEXT NOT NULL,
        frame BLOB NOT NULL,
        PRIMARY KEY (thread_id, ns, checkpoint_id, task_id)
    ) STRICT, WITHOUT ROWID;
"""

_EVENTS = """
    CREATE TABLE events (
        thread_id TEXT NOT NULL,
        checkpoint_id TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        position INTEGER NOT NULL,
        kind TEXT NOT NULL,
        frame BLOB NOT NULL,
        PRIMARY KEY (thread_id, checkpoint_id, epoch, position)
    ) STRICT, WITHOUT ROWID;
    CREATE TRIGGER events_go_with_their_thread AFTER DELETE ON threads BEGIN
        DELETE FROM events WHERE thread_id = OLD.thread_id;
    END;
"""

LAYOUTS = {
    1: f"{_TABLES} PRAGMA application_id = 1347568967; PRAGMA user_version = 1; PRAGMA journal_mode = WAL;",
    2: f"{_TABLES}{_EVENTS} PRAGMA application_id = 1347568967; PRAGMA user_version = 2; PRAGMA journal_mode = WAL;",
}
"""What each version made of an empty file, to the letter. It never changes any more."""

TABLES = {
    1: ("threads", "heads", "checkpoints", "records"),
    2: ("threads", "heads", "checkpoints", "records", "events"),
}

OPENINGS = {
    "claim": "SELECT epoch, owner, expires_at, newest FROM threads WHERE thread_id = ?",
    "renew, record": "UPDATE threads SET expires_at = ? WHERE thread_id = ? AND epoch = ? AND run_id = ?",
    "commit": "UPDATE threads SET expires_at = ?, newest = max(ifnull(newest, ''), ?) "
    "WHERE thread_id = ? AND epoch = ? AND run_id = ?",
    "release": "UPDATE threads SET run_id = NULL, owner = NULL, expires_at = NULL "
    "WHERE thread_id = ? AND epoch = ? AND run_id = ?",
    "read": "SELECT h.checkpoint_id, c.base_id FROM heads AS h "
    "LEFT JOIN checkpoints AS c INDEXED BY checkpoints_by_id "
    "ON c.thread_id = h.thread_id AND c.checkpoint_id = ifnull(?, h.checkpoint_id) AND c.ns = h.ns "
    "WHERE h.thread_id = ? AND h.ns = ?",
    "segment": "SELECT checkpoint_id, parent_id, base_id, step, metadata, frame FROM checkpoints "
    "WHERE thread_id = ? AND ns = ? AND base_id = ? ORDER BY checkpoint_id",
    "scan": "SELECT thread_id, ns, checkpoint_id, parent_id, base_id, step, metadata "
    "FROM checkpoints INDEXED BY checkpoints_by_id "
    "WHERE thread_id = ? AND (checkpoint_id, ns) < (?, ?) AND ns = ifnull(?, ns) "
    "ORDER BY checkpoint_id DESC, ns DESC LIMIT ?",
    "scan of all": "SELECT c.thread_id, c.ns, c.checkpoint_id, c.parent_id, c.base_id, c.step, c.metadata FROM ("
    "SELECT thread_id, ns, base_id, checkpoint_id FROM checkpoints INDEXED BY checkpoints_by_id "
    "WHERE (checkpoint_id, thread_id, ns) < (?, ?, ?) AND ns = ifnull(?, ns) "
    "ORDER BY checkpoint_id DESC, thread_id DESC, ns DESC LIMIT ?"
    ") AS k CROSS JOIN checkpoints AS c USING (thread_id, ns, base_id, checkpoint_id) "
    "ORDER BY c.checkpoint_id DESC, c.thread_id DESC, c.ns DESC",
    "events": "SELECT checkpoint_id, epoch, position, kind, frame FROM events "
    "WHERE thread_id = ? AND (checkpoint_id, epoch, position) >= (?, ?, ?) "
    "ORDER BY checkpoint_id, epoch, position LIMIT ?",
}
"""The first statement on a table that each verb of versions 1 and 2 executes, in a transaction of its own.
(`adelete_thread` begins as `claim` does.)"""


@contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


async def write_earlier(version: int, source: Path, path: Path) -> None:
    """A file of an earlier version, with all that is in a file of this one (pins, and in version 1 events, excepted)."""
    async with SqliteSaver.from_conn_string(f"file:{source}?mode=ro") as saver:
        headers = await saver.threads(limit=1000)
        dumps = [await saver.dump(one.thread_id) for one in headers]
    with connected(path) as connection:
        connection.executescript(LAYOUTS[version])
        connection.execute("BEGIN")

        def add(table: str, *values: object) -> None:
            connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)

        for header, dump in zip(headers, dumps, strict=True):
            owner = header.owner
            claim = (None,) * 3 if owner is None else (owner.run_id, _json(owner), header.expires_at)
            thread_id = header.thread_id
            add("threads", thread_id, header.epoch, *claim, header.newest)
            if dump is None:
                continue
            for ns, head in dump.heads.items():
                add("heads", thread_id, ns, head)
            for row in dump.rows:
                metadata = write_metadata(row.metadata)
                key = (thread_id, row.ns, row.base_id, row.checkpoint_id)
                add("checkpoints", *key, row.parent_id, row.step, metadata, row.frame)
            for record in dump.records:
                key = (thread_id, record.ns, record.checkpoint_id, record.task_id)
                add("records", *key, record.index, record.kind, record.frame)
            for event in dump.events if version > 1 else ():
                add("events", thread_id, *event.key, event.kind, event.frame)
        connection.execute("COMMIT")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
