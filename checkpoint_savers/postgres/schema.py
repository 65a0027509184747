"""The tables: their columns, how they are recognised, made and upgraded.

Opening a saver only checks them. `setup` runs what `script` prints, in one transaction, with whatever rights the role
has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import psycopg

from ..errors import CorruptCheckpointError, StorageError, UnsupportedFormatError
from .run_tables import RUN_MIGRATION, RUN_TABLES

TABLES: Mapping[str, Mapping[str, str]] = {
    "pregel_saver_version": {"version": "integer"},
    "pregel_threads": {
        "thread": "bigint",
        "thread_id": "text",
        "epoch": "bigint",
        "seq": "bigint",
        "run_id": "text",
        "owner": "text",
        "expires_at": "double precision",
        "newest": "text",
        "metadata": "text",
    },
    "pregel_heads": {"thread": "bigint", "ns": "text", "checkpoint_id": "text"},
    "pregel_checkpoints": {
        "thread": "bigint",
        "checkpoint_id": "text",
        "ns": "text",
        "base_id": "text",
        "parent_id": "text",
        "step": "bigint",
        "pinned": "boolean",
        "metadata": "text",
        "frame": "bytea",
    },
    "pregel_records": {
        "thread": "bigint",
        "ns": "text",
        "checkpoint_id": "text",
        "task_id": "text",
        "idx": "bigint",
        "kind": "text",
        "frame": "bytea",
    },
    "pregel_events": {
        "thread": "bigint",
        "checkpoint_id": "text",
        "epoch": "bigint",
        "position": "bigint",
        "kind": "text",
        "frame": "bytea",
    },
    **RUN_TABLES,
}
"""The columns of the tables, with their types. Other tables of a schema, and columns added to these, are ignored."""

# Rows refer to their thread by a number: a thread's id may be long, and would be stored in every row and twice in every
# index.
# Ids sort by code points, as in Python, whatever the database's own collation is: in UTF-8, that is collation "C".
# A commit updates the rows of its thread and of its head. The fillfactor leaves room in their pages, so that an update
# needs no new entry in an index (HOT).
# The first index of checkpoints finds the row of an id and lists a thread by age; the second finds chains.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE {s}.pregel_saver_version (version integer NOT NULL)",
        """
        CREATE TABLE {s}.pregel_threads (
            thread bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            thread_id text COLLATE "C" NOT NULL UNIQUE,
            epoch bigint NOT NULL,
            seq bigint NOT NULL,
            run_id text COLLATE "C",
            owner text,
            expires_at double precision,
            newest text COLLATE "C",
            metadata text NOT NULL DEFAULT '{{}}'
        ) WITH (fillfactor = 60)
        """,
        """
        CREATE TABLE {s}.pregel_heads (
            thread bigint NOT NULL,
            ns text COLLATE "C" NOT NULL,
            checkpoint_id text COLLATE "C" NOT NULL,
            PRIMARY KEY (thread, ns)
        ) WITH (fillfactor = 60)
        """,
        """
        CREATE TABLE {s}.pregel_checkpoints (
            thread bigint NOT NULL,
            checkpoint_id text COLLATE "C" NOT NULL,
            ns text COLLATE "C" NOT NULL,
            base_id text COLLATE "C" NOT NULL,
            parent_id text COLLATE "C",
            step bigint NOT NULL,
            pinned boolean NOT NULL,
            metadata text NOT NULL,
            frame bytea NOT NULL,
            PRIMARY KEY (thread, checkpoint_id, ns)
        )
        """,
        """
        CREATE INDEX pregel_checkpoints_by_base ON {s}.pregel_checkpoints (thread, ns, base_id, checkpoint_id)
        """,
        """
        CREATE TABLE {s}.pregel_records (
            thread bigint NOT NULL,
            ns text COLLATE "C" NOT NULL,
            checkpoint_id text COLLATE "C" NOT NULL,
            task_id text COLLATE "C" NOT NULL,
            idx bigint NOT NULL,
            kind text NOT NULL,
            frame bytea NOT NULL,
            PRIMARY KEY (thread, ns, checkpoint_id, task_id)
        )
        """,
        """
        CREATE TABLE {s}.pregel_events (
            thread bigint NOT NULL,
            checkpoint_id text COLLATE "C" NOT NULL,
            epoch bigint NOT NULL,
            position bigint NOT NULL,
            kind text NOT NULL,
            frame bytea NOT NULL,
            PRIMARY KEY (thread, checkpoint_id, epoch, position)
        )
        """,
        "INSERT INTO {s}.pregel_saver_version (version) VALUES (1)",
    ),
    RUN_MIGRATION,
)
"""Statements that upgrade tables of version n to n + 1, at index n."""


class Layout(NamedTuple):
    """The tables of one kind of client. Different kinds may share a schema.

    Attributes:
        kind: "saver" or "store".
        class_name: the class that makes the tables.
        version_table: the table whose one row has the version.
        tables, migrations: as `TABLES` and `MIGRATIONS`.
    """

    kind: str
    class_name: str
    version_table: str
    tables: Mapping[str, Mapping[str, str]]
    migrations: tuple[tuple[str, ...], ...]

    @property
    def version(self) -> int:
        """The version of this layout. Tables of a greater one are refused and not changed."""
        return len(self.migrations)


SAVER = Layout("saver", "PostgresSaver", "pregel_saver_version", TABLES, MIGRATIONS)

_COLUMNS = b"""
    SELECT c.relname, a.attname, format_type(a.atttypid, NULL)
    FROM pg_catalog.pg_namespace n
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid
    LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE n.nspname = %b AND c.relname = ANY(%b)
"""
_HAS_SCHEMA = b"SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %b"


def quoted(schema: str) -> str:
    """Quote a schema's name as an identifier, for statements with parameters.

    Args:
        schema: the name; it may contain any character but NUL.

    Returns:
        The quoted name, with "%" doubled.

    Raises:
        ValueError: PostgreSQL has no such names: it is empty, has NUL or half of a surrogate pair, or is longer than 63
            bytes, of which the server would use the first 63. Or it begins with `pg_`, which PostgreSQL reserves.
    """
    if not schema or "\x00" in schema or len(schema.encode()) > 63:
        raise ValueError(f"schema is a name of 1 to 63 bytes, without NUL, not {schema!r}")
    # Refused here and not by the server, which accepts some of these: tables in pg_temp end with the connection.
    if schema.startswith("pg_"):
        raise ValueError(
            f"PostgreSQL reserves names of schemas that begin with 'pg_', such as {schema!r}: choose another"
        )
    name = schema.replace('"', '""').replace("%", "%%")
    return f'"{name}"'


def statements(schema: str, found: int, layout: Layout = SAVER) -> tuple[str, ...]:
    """Return the statements that upgrade tables. The schema must exist.

    Args:
        schema: name of the schema.
        found: version of the existing tables; 0 for none.
        layout: the tables.

    Returns:
        The statements, in order.

    Raises:
        ValueError: `schema` cannot be a schema's name.
    """
    name = quoted(schema).replace("%%", "%")  # these have no parameters
    return tuple(
        "\n".join(line.removeprefix("        ") for line in statement.strip("\n ").splitlines()).format(s=name)
        for migration in layout.migrations[found:]
        for statement in migration
    )


def script(schema: str, found: int = 0, layout: Layout = SAVER) -> str:
    """Return the statements of a setup as a file for psql, which a database's owner can read, keep and run.

    Args:
        schema: name of the schema.
        found: version of the existing tables; 0 for none.
        layout: the tables.

    Returns:
        The script.

    Raises:
        ValueError: `schema` cannot be a schema's name.
    """
    name = quoted(schema).replace("%%", "%")
    lines = [
        "BEGIN",
        f"SELECT pg_advisory_xact_lock({_lock(schema)})",
        f"CREATE SCHEMA IF NOT EXISTS {name}",
        *statements(schema, found, layout),
        "COMMIT",
    ]
    return "".join(f"{line};\n" for line in lines)


async def setup(cursor: psycopg.AsyncCursor[Any], schema: str, name: str, layout: Layout = SAVER) -> None:
    """Make or upgrade the tables, in one transaction.

    Of several processes that try at the same time, the first does it, and the others see that it is done.

    Args:
        cursor: of a connection in autocommit mode.
        schema: name of the schema.
        name: how messages name the database.
        layout: the tables.

    Raises:
        StorageError: the database's or the connection's encoding is not UTF-8.
        CorruptCheckpointError: tables of these names are another program's, or some are missing.
        UnsupportedFormatError: a later version made them.
    """
    await cursor.execute(b"BEGIN ISOLATION LEVEL READ COMMITTED")
    # An advisory lock, as there is no table yet whose lock could order the processes. It ends with the transaction.
    await cursor.execute(b"SELECT pg_advisory_xact_lock(%b)", (_lock(schema),))
    found = await read_version(cursor, schema, name, layout)
    if found < layout.version:
        await cursor.execute(_HAS_SCHEMA, (schema,))
        # Checked first: CREATE SCHEMA IF NOT EXISTS needs the right to create a schema even if it exists.
        if await cursor.fetchone() is None:
            await cursor.execute(f"CREATE SCHEMA {quoted(schema).replace('%%', '%')}".encode())
        for statement in statements(schema, found, layout):
            await cursor.execute(statement.encode())
    await cursor.execute(b"COMMIT")


async def check(cursor: psycopg.AsyncCursor[Any], schema: str, name: str, layout: Layout = SAVER) -> None:
    """Check that the tables exist and are current.

    Args:
        cursor: of a connection in autocommit mode.
        schema: name of the schema.
        name: how messages name the database.
        layout: the tables.

    Raises:
        StorageError: the tables are missing or older, or the database's or the connection's encoding is not UTF-8.
        CorruptCheckpointError: tables of these names are another program's, or some are missing.
        UnsupportedFormatError: a later version made them.
    """
    found = await read_version(cursor, schema, name, layout)
    if found < layout.version:
        what = "there are no tables"
        if found:
            what = f"the tables are of version {found}, and this is version {layout.version}"
        class_name = layout.class_name
        raise StorageError(
            f"{name}: {what}. Make them once, when you deploy: 'await {class_name}.from_conn_string(...).setup()', or "
            f"pass setup=True, or have the database's owner run what {class_name}.setup_script(...) returns."
        )


async def read_version(cursor: psycopg.AsyncCursor[Any], schema: str, name: str, layout: Layout = SAVER) -> int:
    """Return the version of the tables; 0 if there are none. Raise if this client must not use them.

    Args:
        cursor: of any connection.
        schema: name of the schema.
        name: how messages name the database.
        layout: the tables.

    Returns:
        The version.

    Raises:
        StorageError: the database's or the connection's encoding is not UTF-8.
        CorruptCheckpointError: tables of these names are another program's, or some are missing.
        UnsupportedFormatError: a later version made them.
    """
    client_encoding = cursor.connection.info.encoding
    if client_encoding != "utf-8":
        raise StorageError(
            f"{name}: the pool's connections have texts encoded as {client_encoding}, which lacks "
            "characters that an id may have. Let them have client_encoding=UTF8"
        )
    await cursor.execute(b"SELECT current_setting('server_encoding')")
    encoding = await cursor.fetchone()
    if encoding != ("UTF8",):
        raise StorageError(
            f"{name}: the database's encoding is {encoding}. Make one: CREATE DATABASE ... ENCODING 'UTF8'"
        )
    await cursor.execute(_COLUMNS, (schema, list(layout.tables)))
    there: dict[str, dict[str, str]] = {}
    for table, column, kind in await cursor.fetchall():
        there.setdefault(table, {})[column] = kind
    if not there:
        return 0
    if there.get(layout.version_table, {}).get("version") != "integer":
        raise CorruptCheckpointError(
            name, f"it has {sorted(there)}, which no {layout.kind} has made", "Choose another schema"
        )
    await cursor.execute(f"SELECT version FROM {quoted(schema)}.{layout.version_table}".encode(), ())
    rows = await cursor.fetchall()
    if len(rows) != 1 or rows[0][0] < 1:
        raise CorruptCheckpointError(name, f"its table {layout.version_table} holds {rows}, and not one version")
    version: int = rows[0][0]
    if version > layout.version:
        raise UnsupportedFormatError(name, version, layout.version)
    wrong = version == layout.version and sorted(
        f"{table}.{column}"
        for table, columns in layout.tables.items()
        for column, kind in columns.items()
        if there.get(table, {}).get(column) != kind
    )
    if wrong:
        raise CorruptCheckpointError(name, f"these columns are missing, or of another type: {wrong}")
    return version


def _lock(schema: str) -> int:
    """Return the key of the advisory lock under which the tables of a schema are made."""
    digest = hashlib.blake2b(b"pregel_saver\x00" + schema.encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)
