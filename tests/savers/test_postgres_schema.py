"""PostgresSaver's tables are created explicitly and once, and other programs' tables are refused (P11)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint_savers import CorruptCheckpointError, PostgresSaver, StorageError, UnsupportedFormatError
from checkpoint_savers.conformance.savers.stored_bytes import HOSTILE
from checkpoint_savers.conformance.savers.suite import (
    LATER,
    cid,
    commit,
    everything,
    head_of,
    record,
    row,
    take,
    written,
)
from checkpoint_savers.postgres.escaping import escape, unescape
from checkpoint_savers.postgres.schema import MIGRATIONS, SAVER, TABLES
from checkpoint_savers.records import CheckpointId, CheckpointRow, TaskId, TaskRecord
from tests.helpers.postgres_tools import ENV, conninfo, execute, new_schema

pytestmark = pytest.mark.anyio


@pytest.fixture
def schema() -> Iterator[str]:
    """The name of a schema that does not exist."""
    with new_schema() as schema:
        yield schema


def saver_of(schema: str, **options: bool) -> PostgresSaver:
    return PostgresSaver.from_conn_string(conninfo(), schema=schema, **options)


def made_of(schema: str) -> list[tuple[object, ...]]:
    """The tables, columns, types, collations and indexes of a schema."""
    columns = execute(
        "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, l.collname, a.attidentity "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid "
        "LEFT JOIN pg_collation l ON l.oid = a.attcollation WHERE n.nspname = %s AND a.attnum > 0 ORDER BY 1, 2",
        schema,
    )
    indexes = execute("SELECT indexdef FROM pg_indexes WHERE schemaname = %s ORDER BY 1", schema)
    return columns + [(definition.replace(schema, "S"),) for (definition,) in indexes]


async def test_opening_creates_no_tables(schema: str) -> None:
    """A saver does not open without its tables: the error says what to do, and nothing was changed."""
    with pytest.raises(StorageError, match="setup_script") as caught:
        async with saver_of(schema):
            pass
    assert "there are no tables" in str(caught.value) and "setup=True" in str(caught.value)
    plain: Any = saver_of(schema)
    with pytest.raises(TypeError, match="PostgresSaver is opened with 'async with'"), plain:
        pass
    assert made_of(schema) == []


async def test_three_ways_to_create_the_tables(schema: str) -> None:
    """The method `setup`, the argument of the constructor, and the printed script create the same tables."""
    await saver_of(schema).setup()
    async with saver_of(schema) as saver:
        await written(saver, row(1))
        await saver.setup()
        assert await head_of(saver) == cid(1), "the tables existed, so nothing happens"
    with new_schema() as by_argument:
        async with saver_of(by_argument, setup=True) as saver:
            await written(saver, row(1))
        async with saver_of(by_argument, setup=True) as saver:
            assert await head_of(saver) == cid(1)
        assert made_of(by_argument) == made_of(schema)
    with new_schema() as by_script:
        with psycopg.connect(conninfo(), autocommit=True) as connection:
            connection.execute(PostgresSaver.setup_script(schema=by_script))
        async with saver_of(by_script) as saver:
            await written(saver, row(1))
        assert made_of(by_script) == made_of(schema)


def test_the_script_needs_no_server() -> None:
    """The script is one transaction, takes the lock of `setup`, and skips what exists."""
    script = PostgresSaver.setup_script(schema="app")
    lines = script.splitlines()
    assert lines[0] == "BEGIN;" and "pg_advisory_xact_lock" in lines[1] and lines[-1] == "COMMIT;"
    assert all(f'CREATE TABLE "app".{table} (' in script for table in TABLES)
    assert f"SET version = {SAVER.version}" in lines[-2]
    assert "CREATE TABLE" not in PostgresSaver.setup_script(schema="app", version=SAVER.version)
    assert script != PostgresSaver.setup_script(schema="other")


class LaterSaver(PostgresSaver):
    """A saver as a later version of this package may have it."""

    _layout = SAVER._replace(
        tables={**TABLES, "pregel_threads": {**TABLES["pregel_threads"], "later": "text"}},
        migrations=(
            *MIGRATIONS,
            (
                "ALTER TABLE {s}.pregel_threads ADD COLUMN later text NOT NULL DEFAULT 'new'",
                f"UPDATE {{s}}.pregel_saver_version SET version = {SAVER.version + 1}",
            ),
        ),
    )


async def test_a_later_version_upgrades_the_tables(schema: str) -> None:
    """P4, P15: only `setup` upgrades them, and all that is stored stays. The earlier version refuses them from then
    on."""
    await saver_of(schema).setup()
    async with saver_of(schema) as saver:
        await written(saver, row(1), row(2, 1))
        rows = await saver.scan(None, None)
    later = LaterSaver.from_conn_string(conninfo(), schema=schema)
    with pytest.raises(StorageError, match=f"version {SAVER.version}, and this is version {SAVER.version + 1}"):
        await later.__aenter__()
    script = LaterSaver.setup_script(schema=schema, version=SAVER.version)
    assert "ADD COLUMN later" in script and "CREATE TABLE" not in script
    await later.setup()
    assert execute(f'SELECT thread_id, later FROM "{schema}".pregel_threads') == [("t", "new")]
    async with LaterSaver.from_conn_string(conninfo(), schema=schema) as saver:
        assert await saver.scan(None, None) == rows
    with pytest.raises(UnsupportedFormatError):
        await saver_of(schema).__aenter__()


async def test_a_failed_setup_creates_nothing(schema: str) -> None:
    """P3: `setup` is one transaction: if it fails, no table was created."""
    execute(f'CREATE SCHEMA "{schema}"')
    execute(f'CREATE VIEW "{schema}".pregel_checkpoints_by_base AS SELECT 1')  # conflicts with the name of an index
    before = made_of(schema)
    with pytest.raises(CorruptCheckpointError, match="pregel_checkpoints_by_base"):
        await saver_of(schema).setup()
    assert made_of(schema) == before
    execute(f'DROP VIEW "{schema}".pregel_checkpoints_by_base')
    await saver_of(schema).setup()


async def test_a_role_without_permission(schema: str) -> None:
    """A role that may create tables can use an existing schema; for one that may not, the error says what to ask
    for."""
    role = schema.replace("test", "role")
    execute(f'CREATE ROLE "{role}" LOGIN')
    try:
        url = psycopg.conninfo.make_conninfo(conninfo(), user=role)
        weak = PostgresSaver.from_conn_string(url, schema=schema)
        with pytest.raises(StorageError, match="may not do that"):
            await weak.setup()
        execute(f'CREATE SCHEMA "{schema}" AUTHORIZATION "{role}"')
        await weak.setup()
        async with weak:
            await written(weak, row(1))
        execute(f'REVOKE INSERT ON ALL TABLES IN SCHEMA "{schema}" FROM "{role}"')
        async with weak:
            with pytest.raises(StorageError, match="GRANT"):
                await take(weak, "new")
    finally:
        execute(f'DROP OWNED BY "{role}" CASCADE')
        execute(f'DROP ROLE "{role}"')


MIGRATING = """if True:
    import anyio, sys
    from checkpoint_savers import PostgresSaver
    from checkpoint_savers.conformance.savers.suite import commit, row, take

    async def main():
        async with PostgresSaver.from_conn_string(sys.argv[1], schema=sys.argv[2], setup=True) as saver:
            claim = await take(saver, sys.argv[3])
            await saver.commit(claim, commit(row(1), releases=True))

    print("ready", flush=True)
    sys.stdin.readline()
    anyio.run(main)
"""


@pytest.mark.slow
def test_ten_workers_start_together(schema: str) -> None:
    """P13: ten processes create the tables at the same moment: one of them does, and each stores its thread."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", MIGRATING, conninfo(), schema, f"t{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=ENV,
        )
        for number in range(10)
    ]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline().strip() == b"ready"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(b"\n")
        worker.stdin.flush()
    for worker in workers:
        worker.communicate(timeout=120)
    assert [worker.returncode for worker in workers] == [0] * 10
    assert execute(f'SELECT count(*) FROM "{schema}".pregel_saver_version') == [(1,)]
    assert execute(f'SELECT count(*) FROM "{schema}".pregel_threads') == [(10,)]


async def test_tables_of_a_later_version(schema: str) -> None:
    """P11: they are not changed, neither by opening nor by `setup`."""
    await saver_of(schema).setup()
    execute(f'UPDATE "{schema}".pregel_saver_version SET version = {SAVER.version + 1}')
    before = made_of(schema)
    for attempt in (saver_of(schema).setup, saver_of(schema).__aenter__, saver_of(schema, setup=True).__aenter__):
        with pytest.raises(UnsupportedFormatError) as caught:
            await attempt()
        assert (caught.value.found, caught.value.supported) == (SAVER.version + 1, SAVER.version)
    assert made_of(schema) == before
    assert execute(f'SELECT version FROM "{schema}".pregel_saver_version') == [(SAVER.version + 1,)]


async def test_an_upgrade_while_the_saver_is_open(schema: str) -> None:
    """P11: each acquire detects the upgrade, on new and on known threads, alone and in a batch, and nothing is
    written. A run that holds its lease finishes: an upgrade waits for locks, not for runs."""
    async with saver_of(schema, setup=True) as saver:
        lease = await take(saver)
        await written(saver, row(1), thread="u")
        execute(f'UPDATE "{schema}".pregel_saver_version SET version = version + 1')
        before = execute(f'SELECT * FROM "{schema}".pregel_threads ORDER BY 1')
        refused: list[UnsupportedFormatError] = []

        async def attempt(thread: str) -> None:
            try:
                await take(saver, thread)
            except UnsupportedFormatError as error:
                refused.append(error)

        for threads in (["u"], ["new"], ["u", "t", *map(str, range(5))]):
            async with anyio.create_task_group() as group:
                for thread in threads:
                    group.start_soon(attempt, thread)
        assert {(one.found, one.supported) for one in refused} == {(SAVER.version + 1, SAVER.version)} and len(
            refused
        ) == 9
        for write in (saver.update_thread("u", {"a": 1}), saver.adelete_thread("u")):
            with pytest.raises(UnsupportedFormatError):  # these need no lease
                await write
        assert execute(f'SELECT * FROM "{schema}".pregel_threads ORDER BY 1') == before
        await saver.commit(lease, commit(row(1)))
        execute(f'UPDATE "{schema}".pregel_saver_version SET version = version - 1')
        await take(saver, "u")


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        ("CREATE TABLE {s}.pregel_threads (id integer)", "no saver has made"),
        # As before the first release.
        (
            "CREATE TABLE {s}.pregel_saver (version) AS VALUES (1); CREATE TABLE {s}.pregel_heads (ns text)",
            "no saver has made",
        ),
        ("CREATE TABLE {s}.pregel_saver_version (version text)", "no saver has made"),
        ("CREATE VIEW {s}.pregel_heads AS SELECT 1", "no saver has made"),
        ("CREATE TABLE {s}.pregel_saver_version (version integer)", "not one version"),
        ("CREATE TABLE {s}.pregel_saver_version (version) AS VALUES (1), (1)", "not one version"),
        ("CREATE TABLE {s}.pregel_saver_version (version) AS VALUES (0)", "not one version"),
        (f"CREATE TABLE {{s}}.pregel_saver_version (version) AS VALUES ({SAVER.version})", "pregel_threads.thread_id"),
    ],
)
async def test_tables_of_another_program(schema: str, theirs: str, reason: str) -> None:
    """P11: tables that no saver has created are neither read nor changed."""
    execute(f'CREATE SCHEMA "{schema}"')
    execute(theirs.format(s=f'"{schema}"'))
    before = made_of(schema)
    for attempt in (saver_of(schema).setup, saver_of(schema).__aenter__, saver_of(schema, setup=True).__aenter__):
        with pytest.raises(CorruptCheckpointError, match=reason):
            await attempt()
    assert made_of(schema) == before


async def test_additional_tables_and_columns(schema: str) -> None:
    """Other tables, and columns that were added to the saver's, are ignored."""
    execute(f'CREATE SCHEMA "{schema}"')
    execute(f'CREATE TABLE "{schema}".checkpoints (id integer)')
    await saver_of(schema).setup()
    execute(f"ALTER TABLE \"{schema}\".pregel_threads ADD COLUMN team text DEFAULT 'ours'")
    async with saver_of(schema) as saver:
        await written(saver, row(1))
        assert await head_of(saver) == cid(1)


async def test_tables_that_are_dropped(schema: str) -> None:
    """P11: an open saver says that its tables are not as they were created."""
    async with saver_of(schema, setup=True) as saver:
        await written(saver, row(1))
        execute(f'DROP TABLE "{schema}".pregel_heads')
        with pytest.raises(CorruptCheckpointError, match="not as a saver made them"):
            await saver.read("t")
        lease = await take(saver)
        with pytest.raises(CorruptCheckpointError, match="not as a saver made them"):
            await saver.commit(lease, commit(row(2, 1), head=1))
    with pytest.raises(CorruptCheckpointError, match="pregel_heads.ns"):
        async with saver_of(schema):
            pass


async def test_damaged_rows(schema: str) -> None:
    """P11: rows that no saver has written, where the columns' types allow them, raise an error that names the place."""
    async with saver_of(schema, setup=True) as saver:
        await written(saver, row(1))
        lease = await take(saver)
        await saver.record(lease, [record(1, "a")], expires_at=LATER)
        for damage, repair in (
            (
                "UPDATE {s}.pregel_checkpoints SET metadata = '{{'",
                "UPDATE {s}.pregel_checkpoints SET metadata = '{{}}'",
            ),
            ("UPDATE {s}.pregel_records SET kind = 'other'", "UPDATE {s}.pregel_records SET kind = 'error'"),
            (
                "UPDATE {s}.pregel_checkpoints SET base_id = 'x'",
                "UPDATE {s}.pregel_checkpoints SET base_id = checkpoint_id",
            ),
            (
                "UPDATE {s}.pregel_heads SET checkpoint_id = 'x'",
                f"UPDATE {{s}}.pregel_heads SET checkpoint_id = '{cid(1)}'",
            ),
            (
                r"UPDATE {s}.pregel_checkpoints SET parent_id = E'\x01x'",
                "UPDATE {s}.pregel_checkpoints SET parent_id = NULL",
            ),
        ):
            execute(damage.format(s=f'"{schema}"'))
            with pytest.raises(CorruptCheckpointError):
                await saver.read("t")
            execute(repair.format(s=f'"{schema}"'))
            assert await saver.read("t") is not None
        execute(f"UPDATE \"{schema}\".pregel_threads SET owner = '[]'")
        for call in (take(saver, run="run-2"), saver.threads(), saver.adelete_thread("t")):
            with pytest.raises(CorruptCheckpointError, match="owner"):
                await call


@pytest.mark.parametrize(
    "name",
    [
        'x"; DROP SCHEMA public CASCADE; --',
        "x'; DROP TABLE pregel_threads; --",
        "%s",
        "%(x)b %b %%",
        "{s}",
        "a.b",
        "Ω ≈ ç",
        "$$",
        "select",
        "\\",
        " ",
    ],
)
async def test_hostile_schema_names(name: str) -> None:
    """P11: any text works as a schema name, in every method and in the script."""
    name = f"{name}{new_name()}"
    try:
        async with saver_of(name, setup=True) as saver:
            await written(saver, row(1), row(2, 1, base=1))
            assert len((await everything(saver))[0]) == 2
            assert await saver.threads() and await saver.dump("t") and await saver.size() > 0
            await saver.vacuum()
            await saver.vacuum(full=True)
            await saver.adelete_thread("t")
        assert execute("SELECT count(*) FROM pg_namespace WHERE nspname = %s", name) == [(1,)]
        with psycopg.connect(conninfo(), autocommit=True) as connection:
            with pytest.raises(psycopg.errors.DuplicateTable):
                connection.execute(PostgresSaver.setup_script(schema=name))
    finally:
        with psycopg.connect(conninfo(), autocommit=True) as connection:
            connection.execute(psycopg.sql.SQL("DROP SCHEMA {} CASCADE").format(psycopg.sql.Identifier(name)))


def new_name() -> str:
    with new_schema() as name:
        return name[-20:]


@pytest.mark.parametrize("name", ["", "a\x00b", "x" * 64, "é" * 32, "\ud800", "pg_x", "pg_temp", "pg_catalog"])
def test_invalid_schema_names(name: str) -> None:
    """PostgreSQL does not allow these names, would truncate them, or reserves them (pg_)."""
    with pytest.raises(ValueError):
        saver_of(name)
    with pytest.raises(ValueError):
        PostgresSaver.setup_script(schema=name)


texts = st.text(st.one_of(st.sampled_from("\x00\x01\x02\x03aé"), st.characters(exclude_categories=["Cs"])), max_size=8)


@given(texts, texts)
def test_escaped_texts_come_back_and_keep_their_order(one: str, other: str) -> None:
    """P11: texts with NUL, too; the stored form never holds NUL."""
    assert unescape(escape(one)) == one and "\x00" not in escape(one)
    assert (escape(one) < escape(other)) == (one < other)


@contextmanager
def database(options: str) -> Iterator[str]:
    """Create a database, yield its connection string, and drop it."""
    with new_schema() as name:
        execute(f'CREATE DATABASE "{name}" TEMPLATE template0 {options}')
        try:
            yield psycopg.conninfo.make_conninfo(conninfo(), dbname=name)
        finally:
            execute(f'DROP DATABASE "{name}"')


@pytest.mark.slow
def test_ids_sort_on_the_server_as_in_python() -> None:
    """P11: ids sort by code points and stay distinct, in a database with another default collation."""
    if execute("SELECT current_setting('server_version_num')::int >= 150000") == [(False,)]:
        pytest.skip("databases with a collation of their own, on every system, are of PostgreSQL 15 on")
    with database("ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'en'") as url:
        assert execute("SELECT 'a' < 'B'", url=url) == [(True,)]
        anyio.run(sorts, url)


async def sorts(url: str) -> None:
    ids = [text[:500] for text in HOSTILE]
    ids += ["\x00", "\x01", "\x02", "\x00\x00", "\x01\x01", "\x01\x02", "a\x01", "A", "Z", "z"]
    async with PostgresSaver.from_conn_string(url, setup=True) as saver:
        for text in set(ids):
            lease = await take(saver, text)
            id = CheckpointId(text)
            one = CheckpointRow(
                ns=text, checkpoint_id=id, parent_id=id, base_id=id, step=0, metadata={text: text}, frame=b""
            )
            kept = TaskRecord(ns=text, checkpoint_id=id, task_id=TaskId(text), index=0, kind="result", frame=b"")
            await saver.commit(lease, commit(one, records=[kept]))
            await saver.release(lease)
        assert [one.thread_id for one in await saver.threads()] == sorted(set(ids))
        assert [one.thread_id for one in await saver.scan(None, None)] == sorted(set(ids), reverse=True)
        for number, text in enumerate(sorted(set(ids))):
            after = await saver.threads(after=text)
            assert [one.thread_id for one in after] == sorted(set(ids))[number + 1 :]
            chain = await saver.read(text, text, CheckpointId(text))
            assert chain is not None and chain.records[0].task_id == text and chain.rows[0].parent_id == text
        lease = await take(saver)
        await saver.commit(lease, commit(checkpoint("B"), checkpoint("a")))
        await saver.commit(lease, commit(checkpoint("C", ns="other")))
        assert [one.checkpoint_id for one in await saver.scan("t", None)] == ["a", "C", "B"]
        await saver.release(lease)
        assert (await take(saver)).newest == "a"


def checkpoint(id: str, ns: str = "") -> CheckpointRow:
    return CheckpointRow(
        ns=ns,
        checkpoint_id=CheckpointId(id),
        parent_id=None,
        base_id=CheckpointId(id),
        step=0,
        metadata={},
        frame=b"",
    )


@pytest.mark.slow
def test_a_database_with_another_encoding() -> None:
    """P11: a database whose encoding is not UTF8 could not store every id: opening is refused."""
    with database("ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'") as url:
        with pytest.raises(StorageError, match="UTF8"):
            anyio.run(PostgresSaver.from_conn_string(url).setup)
