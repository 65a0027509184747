"""Every stored format: its number, its golden file, and how that file is written and compared."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NamedTuple

from checkpoint_savers import InMemorySaver, PostgresSaver, PostgresStore, SqliteSaver, SqliteStore
from checkpoint_savers.caches.sqlite import VERSION as CACHE_VERSION
from checkpoint_savers.caches.sqlite import SqliteCache
from checkpoint_savers.postgres.schema import SAVER, Layout
from checkpoint_savers.postgres.schema import script as sql_script
from checkpoint_savers.records import FORMAT
from checkpoint_savers.sqlite.schema import TABLES
from checkpoint_savers.sqlite.schema import VERSION as FILE_VERSION
from checkpoint_savers.stores.postgres_rows import LAYOUT
from checkpoint_savers.stores.sqlite_rows import TABLES as STORE_TABLES
from checkpoint_savers.stores.sqlite_rows import VERSION as STORE_VERSION
from checkpoint_savers.upkeep.export import EXPORT_FORMAT, export_threads
from tests.helpers.postgres_tools import conninfo, execute, new_schema
from tests.savers.golden import memories_items, sample, sample_runs

HERE: Final = Path(__file__).parent

SCHEMA: Final = "golden"
"""The name of the PostgreSQL schema in golden files."""


class Format(NamedTuple):
    """A stored format.

    Attributes:
        kind: the name of the format, and the start of its golden files' names.
        number: the number of the layout that this version writes.
        set_in: where the code sets the number.
        suffix: the suffix of its golden files.
        write: writes a file of the sample.
        layout: returns a text of what depends on the layout alone, so that equal layouts have equal texts.
    """

    kind: str
    number: int
    set_in: str
    suffix: str
    write: Callable[[Path], Awaitable[None]]
    layout: Callable[[Path], str]

    @property
    def golden(self) -> Path:
        return HERE / f"{self.kind}-{self.number}{self.suffix}"


async def write_threads(path: Path) -> None:
    async with SqliteSaver.from_conn_string(path, codec=sample.CODEC) as saver:
        await sample.fill(saver)
        await sample_runs.fill(saver)


def _put_at() -> float:
    return memories_items.PUT


async def write_items(path: Path) -> None:

    async with SqliteStore.from_conn_string(path, codec=memories_items.codec(), clock=_put_at) as store:
        await memories_items.fill(store)


async def write_cache(path: Path) -> None:
    async with SqliteCache(path, clock=lambda: sample.NOW) as cache:
        await cache.aset(sample.CACHED)


def tables_of(
    path: Path,
    names: Iterable[str],
    where: dict[str, str],
    marks: Sequence[str] = ("application_id", "user_version"),
) -> str:
    """The statements that made a database's tables, and their rows.

    Args:
        where: by table, an SQL condition for the sample's rows; all rows if a table is missing.
        marks: the numbers of the file's header that belong to the format.
    """
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as db:
        numbers = [db.execute(f"PRAGMA {mark}").fetchone()[0] for mark in marks]
        made = dict(db.execute("SELECT name, sql FROM sqlite_schema").fetchall())
        lines = [repr(numbers)]
        for name in names:
            lines.append(" ".join(made[name].split()))
            if made[name].lstrip().startswith("CREATE TABLE"):
                rows = db.execute(f"SELECT * FROM {name} {where.get(name, '')}").fetchall()
                lines += sorted(map(repr, rows))
        return "\n".join(lines)


_OF_SAMPLE: Final = f"WHERE thread <= {len(sample.THREADS)}"
_ROWS_OF_SAMPLE: Final = {
    **dict.fromkeys(("space", "checkpoint", "metadata", "record", "event"), _OF_SAMPLE),
    "thread": f"WHERE key <= {len(sample.THREADS)}",
    "frame": f"WHERE key IN (SELECT frame FROM checkpoint {_OF_SAMPLE})",
}


async def write_schema(path: Path) -> None:
    with new_schema() as schema:
        async with PostgresSaver.from_conn_string(conninfo(), schema=schema, codec=sample.CODEC, setup=True) as saver:
            await sample.fill(saver)
        execute(f'UPDATE "{schema}".pregel_threads SET seq = 0')  # the counter starts at the process's clock
        path.write_text(sql_of(schema, SAVER), encoding="utf-8")


async def write_store_schema(path: Path) -> None:
    with new_schema() as schema:
        async with PostgresStore(
            conninfo(), schema=schema, codec=memories_items.codec(), clock=_put_at, setup=True
        ) as store:
            await memories_items.fill(store)
        path.write_text(sql_of(schema, LAYOUT), encoding="utf-8")


def sql_of(schema: str, layout: Layout) -> str:
    """Statements that create the tables and their rows, in a schema called `golden`."""
    lines = [sql_script(SCHEMA, layout=layout)]
    for table in sorted(layout.tables.keys() - {layout.version_table}):
        rows = execute(f'SELECT * FROM "{schema}".{table}')
        lines += sorted(
            f'INSERT INTO "{SCHEMA}".{table} OVERRIDING SYSTEM VALUE VALUES ({", ".join(map(_literal, row))});'
            for row in rows
        )
    return "\n".join(lines) + "\n"


def load_sql(path: Path, schema: str) -> None:
    """Create the tables of a golden file in another schema."""
    execute(path.read_text(encoding="utf-8").replace(f'"{SCHEMA}"', f'"{schema}"'))


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'"
    return "'" + str(value).replace("'", "''") + "'"


async def write_export(path: Path) -> None:
    saver, file = InMemorySaver(codec=sample.CODEC), BytesIO()
    await sample.fill(saver)
    await export_threads(saver, sample.THREADS, file)
    path.write_bytes(file.getvalue())


async def write_frames(path: Path) -> None:
    frames = {name: frame.hex() for name, frame in sample.FRAMES.items()}
    path.write_text(json.dumps(frames, indent=1) + "\n", encoding="utf-8")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


FORMATS: Final = (
    Format("frames", FORMAT, "FORMAT in checkpoint_savers/records.py", ".json", write_frames, _text),
    Format(
        "threads",
        FILE_VERSION,
        "UPGRADES in checkpoint_savers/sqlite/schema.py",
        ".db",
        write_threads,
        partial(tables_of, names=TABLES, where=_ROWS_OF_SAMPLE),
    ),
    Format(
        "items",
        STORE_VERSION,
        "VERSION in checkpoint_savers/stores/sqlite_rows.py",
        ".db",
        write_items,
        partial(tables_of, names=STORE_TABLES, where={}, marks=("application_id",)),  # the version is the saver's
    ),
    Format(
        "cache",
        CACHE_VERSION,
        "VERSION in checkpoint_savers/caches/sqlite.py",
        ".db",
        write_cache,
        partial(tables_of, names=("entries", "entries_by_expiry"), where={}),
    ),
    Format(
        "postgres", SAVER.version, "MIGRATIONS in checkpoint_savers/postgres/schema.py", ".sql", write_schema, _text
    ),
    Format(
        "postgres-store",
        LAYOUT.version,
        "LAYOUT in checkpoint_savers/stores/postgres_rows.py",
        ".sql",
        write_store_schema,
        _text,
    ),
    Format(
        "export",
        EXPORT_FORMAT,
        "EXPORT_FORMAT in checkpoint_savers/upkeep/export.py",
        ".threads",
        write_export,
        lambda path: path.read_bytes().hex(),
    ),
)


def expected_of(golden: Path) -> dict[str, Any]:
    """Return what was read of a golden file when it was made."""
    expected: dict[str, Any] = json.loads(golden.with_suffix(".json").read_text(encoding="utf-8"))
    return expected
