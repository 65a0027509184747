"""Texts that would have an effect if they became part of a query, a pattern or a path, passed wherever a text is
accepted, on every saver (P11)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, PostgresSaver, SqliteSaver
from checkpoint_savers.conformance.savers.random_threads import STARTED_AT, RandomThread
from checkpoint_savers.conformance.savers.suite import LATER, MANY, NOW, here
from checkpoint_savers.errors import CheckpointError, ThreadExistsError
from checkpoint_savers.records import CheckpointId
from checkpoint_savers.upkeep.retention import Retention
from tests.helpers.postgres_tools import conninfo, new_schema, unsynced

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

QUERIES = (
    "'",
    "''",
    '"',
    "`",
    "\\",
    "\\'",
    "' OR '1'='1",
    "' OR 1=1 --",
    '" OR ""="',
    "'; DROP TABLE pregel_threads; --",
    "'; DELETE FROM thread; --",
    "x'); DELETE FROM checkpoint; --",
    "*/ DROP TABLE thread /*",
    "-- ",
    "/* */",
    "#",
    "' UNION SELECT * FROM sqlite_schema --",
    "$1",
    "$$; DROP SCHEMA public CASCADE; $$",
    ":name",
    "?",
    "?1",
    "@p",
    "%s",
    "%(x)s",
    "%",
    "%%",
    "_",
    "{}",
    "{0.__class__}",
    "[a-z]*",
    "E'\\x41'",
    "\\copy",
    "pg_sleep(10)",
)
PATHS = (
    "$",
    "$.a",
    '$."a"',
    "$[0]",
    "$.*",
    "a.b",
    "a,b",
    "{a,b}",
    "a->b",
    "a#>>b",
    "../../x",
    "file:x?mode=memory",
    "C:\\x",
)
TEXTS = (
    "\u202e' RO ;--",
    "\u05d0\u05d1\u05d2",
    "\u2028\u2029",
    "\ufeff",
    "\u0000",
    "a\u0000' OR '1'='1",
    "a\n;b",
    "x" * 3000,
    "",
)

ALL = (*QUERIES, *PATHS, *TEXTS)

NUL = frozenset(text for text in ALL if "\u0000" in text)


@pytest.fixture(scope="module")
def schema() -> Iterator[str]:
    with new_schema() as schema:
        with psycopg.connect(conninfo(), autocommit=True) as connection:
            connection.execute(PostgresSaver.setup_script(schema=schema))
        yield schema


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    opened: AbstractAsyncContextManager[BaseCheckpointSaver]
    if request.param == "memory":
        opened = nullcontext(InMemorySaver())
    elif request.param == "sqlite":
        opened = SqliteSaver(tmp_path / "threads.db", synchronous="NORMAL")
    else:
        opened = PostgresSaver.from_conn_string(unsynced(), schema=request.getfixturevalue("schema"))
    async with opened as saver:
        saver.clock = lambda: STARTED_AT
        yield saver
        for header in await saver.threads(limit=MANY):
            await saver.adelete_thread(header.thread_id)


async def stored_under_name(saver: BaseCheckpointSaver, thread: str, text: str, first: int = 0) -> None:
    """Create a thread whose run, namespaces and metadata have a text as their name."""
    memory = InMemorySaver()
    await RandomThread(memory, "t", 1, first=first).grow(4)
    dump = await memory.dump("t")
    assert dump is not None
    rows = [replace(row, metadata={**row.metadata, "run_id": text, text: text}) for row in dump.rows]
    inside = [replace(row, ns=text) for row in rows if text]
    heads = {**dump.heads, **({text: dump.rows[-1].checkpoint_id} if text else {})}
    rows = sorted([*rows, *inside], key=lambda row: (row.checkpoint_id, row.ns))
    lease = await saver.acquire(thread, here(text), now=NOW, expires_at=LATER)
    await saver.load(lease, replace(dump, rows=tuple(rows), heads=heads))
    await saver.release(lease)


async def query_every_method(saver: BaseCheckpointSaver, text: str) -> None:
    """Query every method that takes a text, with a text that names nothing."""
    place: dict[str, Any]
    for place in (
        {"thread_id": text},
        {"thread_id": "innocent", "checkpoint_ns": text},
        {"thread_id": "innocent", "checkpoint_id": text},
        {"thread_id": text, "checkpoint_ns": text, "checkpoint_id": text},
    ):
        if place.get("checkpoint_ns") == "":
            continue
        found = await saver.aget_tuple({"configurable": place})
        assert found is None or place == {"thread_id": "innocent", "checkpoint_id": ""}, place
        assert [one async for one in saver.alist({"configurable": place})] == []
    assert [one async for one in saver.alist(text)] == []
    for filter in ({text: text}, {"source": text}, {text: "loop"}, {text: {text: [text]}}, {"parents": {text: text}}):
        assert [one async for one in saver.alist(None, filter=filter)] == []
        assert [one async for one in saver.alist_threads(filter=filter)] == []
        assert await saver.acount_threads(filter=filter) == 0
    with pytest.raises(ValueError, match="a checkpoint's id is a UUID"):
        await anext(saver.alist("innocent", before={"configurable": {"checkpoint_id": text}}))
    assert [one.thread_id async for one in saver.alist_threads(after=text)] == (
        ["innocent"] if "innocent" > text else []
    )
    assert await saver.events(text) == ()
    await saver.events("innocent", since=(CheckpointId(text), 0, 0))
    assert await saver.dump(text) is None
    await saver.adelete_thread(text)
    await saver.aerase_thread(text)
    await saver.adelete_for_runs([text])
    assert (await saver.aprune(text, retention=Retention(keep=1))).threads == ()


@pytest.mark.parametrize("text", ALL, ids=ascii)
async def test_querying_for_a_text(saver: BaseCheckpointSaver, text: str) -> None:
    """P11: as a thread, namespace, checkpoint, run or filter, the text finds nothing, has no other effect, and
    causes no error, except for NUL where the database does not accept it."""
    await stored_under_name(saver, "innocent", "other")
    before = await saver.dump("innocent")
    try:
        await query_every_method(saver, text)
    except (CheckpointError, ValueError):
        assert text in NUL
    assert await saver.dump("innocent") == before
    assert [one.thread_id for one in await saver.threads()] == ["innocent"]


@pytest.mark.parametrize("text", ALL, ids=ascii)
async def test_a_text_as_a_name(saver: BaseCheckpointSaver, text: str) -> None:
    """P11: as the name of a thread, of its namespaces and its run, and in its metadata: the thread is found, copied,
    pruned, pinned and deleted under that name, and no other thread is changed."""
    await stored_under_name(saver, "innocent", "other", first=1000)
    before = await saver.dump("innocent")
    try:
        await stored_under_name(saver, text, text)
    except (CheckpointError, ValueError):
        assert text in NUL or len(text) > 2000
        assert await saver.dump("innocent") == before
        return
    rows = 2 if text else 1
    listed = [one async for one in saver.alist({"configurable": {"thread_id": text}}, filter={text: text})]
    assert listed and {one.config["configurable"]["thread_id"] for one in listed} == {text}
    assert {one.config["configurable"]["checkpoint_ns"] for one in listed} >= ({"", text} if rows == 2 else {""})
    await saver.update_thread(text, {text: text, "as value": text})
    assert [one.thread_id async for one in saver.alist_threads(filter={text: text})] == [text]
    assert await saver.acount_threads(filter={"as value": text}) == 1
    copy = f"{text} (copy)"
    await saver.acopy_thread(text, copy)
    with pytest.raises(ThreadExistsError):
        await saver.acopy_thread(text, copy)
    await saver.apin(listed[-1].config)
    pinned = [one for one in await saver.scan(text, None, limit=MANY) if one.pinned]
    assert [one.checkpoint_id for one in pinned] == [listed[-1].checkpoint["id"]]
    await saver.aprune(text, retention=Retention(keep=1))
    assert await saver.aget_tuple(listed[-1].config) is not None, "a pinned checkpoint stays"
    assert await saver.aget_tuple(text) is not None
    await saver.aerase_thread(copy)
    await saver.adelete_for_runs([text])
    assert await saver.dump(text) is None
    assert [one.thread_id for one in await saver.threads()] == ["innocent"]
    assert await saver.dump("innocent") == before
