"""How a file of an earlier version becomes one of version 4, inside the transaction that marks it as such.

Version 3 has the same tables, but no metadata of threads: a column is added, and gets what the user gave of the
metadata of the checkpoint at which each thread stands. A program of version 3 that has the file open may finish
the runs that it has begun: it does not name the column. It is refused a claim of another, if it looks for the version.

Of versions 1 and 2 everything is copied into the new tables, which have other names, and the old ones are dropped:
their pages are free then, and `SqliteSaver.vacuum` gives them back. Nothing that was there is left out, not even what
damage has left without a thread.

A program of version 1 or 2 that has the file open at that moment asked for its version when it opened it, and is not
stopped. Each of its verbs begins with a statement on one of the old tables, and those are views now that nobody can
read or change. So whatever it does is refused, with an error of SQLite's that says why: it has stored what it was told
is stored, and stores no more. What it was running can be resumed by this version, once its claim has lapsed.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from ..errors import CorruptCheckpointError
from ..metadata import read_metadata, users_part, write_metadata
from .ids import StoredId, write_id
from .rows import Row, Text, write_text
from .writing import add_row

_PARTS_1 = frozenset({"threads", "heads", "checkpoints", "checkpoints_by_id", "records"})

SAME_TABLES = 3
"""The first version whose tables have today's names."""

EARLIER = {1: _PARTS_1, 2: _PARTS_1 | {"events", "events_go_with_their_thread"}}
"""What a file of an earlier version has, by name."""

_NAMED = {
    1: "SELECT thread_id FROM threads UNION SELECT thread_id FROM heads UNION SELECT thread_id FROM checkpoints "
    "UNION SELECT thread_id FROM records",
    2: "SELECT thread_id FROM threads UNION SELECT thread_id FROM heads UNION SELECT thread_id FROM checkpoints "
    "UNION SELECT thread_id FROM records UNION SELECT thread_id FROM events",
}
_THREADS = {
    version: "INSERT INTO thread (id, epoch, run_id, owner, expires_at, newest, head) "
    "SELECT n.thread_id, ifnull(t.epoch, 1), t.run_id, t.owner, t.expires_at, "
    "stored_id(t.newest), stored_id(h.checkpoint_id) "
    f"FROM ({named}) AS n LEFT JOIN threads AS t ON t.thread_id = n.thread_id "
    "LEFT JOIN heads AS h ON h.thread_id = n.thread_id AND h.ns = '' ORDER BY n.thread_id"
    for version, named in _NAMED.items()
}
_SPACES = (
    "INSERT INTO space (thread, ns, head) SELECT t.key, n.ns, stored_id(h.checkpoint_id) "
    "FROM (SELECT thread_id, ns FROM heads UNION SELECT thread_id, ns FROM checkpoints "
    "UNION SELECT thread_id, ns FROM records) AS n CROSS JOIN thread AS t ON t.id = n.thread_id "
    "LEFT JOIN heads AS h ON h.thread_id = n.thread_id AND h.ns = n.ns WHERE n.ns <> '' ORDER BY t.key, n.ns"
)
_CHECKPOINTS = (
    "SELECT t.key, ifnull(s.key, 0), c.ns, c.checkpoint_id, c.parent_id, c.base_id, c.step, c.metadata, c.frame "
    "FROM checkpoints AS c INDEXED BY checkpoints_by_id CROSS JOIN thread AS t ON t.id = c.thread_id "
    "LEFT JOIN space AS s ON s.thread = t.key AND s.ns = c.ns ORDER BY c.thread_id, c.checkpoint_id"
)
_RECORDS = (
    "INSERT INTO record (thread, space, checkpoint, task_id, place, kind, frame) "
    "SELECT t.key, ifnull(s.key, 0), stored_id(r.checkpoint_id), r.task_id, r.idx, r.kind, r.frame "
    "FROM records AS r CROSS JOIN thread AS t ON t.id = r.thread_id "
    "LEFT JOIN space AS s ON s.thread = t.key AND s.ns = r.ns"
)
_EVENTS = (
    "INSERT INTO event (thread, checkpoint, epoch, position, kind, frame) "
    "SELECT t.key, stored_id(e.checkpoint_id), e.epoch, e.position, e.kind, e.frame "
    "FROM events AS e CROSS JOIN thread AS t ON t.id = e.thread_id"
)

_ADD_METADATA = "ALTER TABLE thread ADD COLUMN metadata TEXT NOT NULL DEFAULT '{}'"
_AT_HEADS = (
    "SELECT t.key, m.text FROM thread AS t "
    "JOIN checkpoint AS c INDEXED BY checkpoint_by_id ON c.thread = t.key AND c.id = t.head AND c.space = 0 "
    "JOIN metadata AS m ON m.thread = c.thread AND m.key = c.metadata"
)
_SET_METADATA = "UPDATE thread SET metadata = ? WHERE key = ?"

_NOTICE = "this file was upgraded by a later version of pregel-async: restart this program with that version"

BARRIERS = {
    # A column of that name is nowhere, which is found when a statement names the view. In brackets: what is quoted
    # otherwise may be a text.
    **{name: f"CREATE VIEW {name} AS SELECT [{_NOTICE}]" for name in ("threads", "heads", "checkpoints", "events")},
    # Else an update would be refused because the table is a view, which does not say why.
    "threads_are_elsewhere": "CREATE TRIGGER threads_are_elsewhere INSTEAD OF UPDATE ON threads BEGIN SELECT 1; END",
}
"""What keeps programs of earlier versions out, by name."""


def upgrade(connection: sqlite3.Connection, found: int) -> None:
    """Args: found: the file's version."""
    if found < SAME_TABLES:
        _copy(connection, found)
    else:
        connection.execute(_ADD_METADATA)
    for thread, text in connection.execute(_AT_HEADS).fetchall():
        metadata = _users_part(text)
        if metadata:
            connection.execute(_SET_METADATA, (write_metadata(metadata), thread))


def _users_part(text: Any) -> dict[str, Any]:
    """Of a checkpoint's metadata; nothing of damaged ones, which stay as they are."""
    try:
        return users_part(read_metadata(text, ""))
    except (CorruptCheckpointError, TypeError):
        return {}


def _copy(connection: sqlite3.Connection, found: int) -> None:
    connection.create_function("stored_id", 1, _stored_id, deterministic=True)
    try:
        connection.execute(_THREADS[found])
        connection.execute(_SPACES)
        db = connection.cursor()
        for thread, space, *row in connection.execute(_CHECKPOINTS):
            add_row(db, thread, space, _row(*row))
        connection.execute(_RECORDS)
        if found > 1:
            connection.execute(_EVENTS)
            connection.execute("DROP TABLE events")
    finally:
        connection.create_function("stored_id", 1, None)
    for table in ("threads", "heads", "checkpoints", "records"):
        connection.execute(f"DROP TABLE {table}")
    for statement in BARRIERS.values():
        connection.execute(statement)


def _stored_id(text: str | None) -> StoredId | None:
    return None if text is None else write_id(text)


def _row(ns: str, id: str, parent: str | None, base: str, step: int, metadata: str, frame: bytes) -> Row:
    return Row(
        ns=ns,
        id=write_id(id),
        parent=_stored_id(parent),
        base=write_id(base),
        step=step,
        metadata=_text(metadata, step),
        pinned=False,
        frame=frame,
    )


def _text(text: str, step: int) -> Text:
    try:
        metadata: dict[str, Any] = read_metadata(text, "")
    except CorruptCheckpointError:
        return Text(False, text)  # it stays what it is
    made = write_text(metadata, step)
    return made if made.counts else Text(False, text)
