"""Checkpoint ids as SqliteSaver stores them: they come back unchanged, and the stored form keeps their order (P11)."""

from __future__ import annotations

import sqlite3
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from checkpoint_savers import SqliteSaver
from checkpoint_savers.conformance.savers.suite import commit, row, take
from checkpoint_savers.records import CheckpointId
from checkpoint_savers.sqlite.ids import AFTER_ALL, read_id, write_id

ONE = "0193a1b2-c3d4-7000-8000-00000000000f"
NONE = (
    ONE.upper(),
    f"{{{ONE}}}",
    f"{ONE} ",
    ONE.replace("-", ""),
    ONE[:-1],
    f"{ONE[:-1]}g",
    f"-{ONE[:8]}{ONE[9:]}",
    "x",
)

uuids = st.one_of(
    st.integers(0, 2**128 - 1), st.integers(0, 300), st.integers(2**128 - 300, 2**128 - 1), st.integers(0, 31).map(lambda n: 16**n)
).map(lambda number: str(UUID(int=number)))  # fmt: skip


@given(uuids)
def test_ids_come_back_unchanged(text: str) -> None:
    """P10, P11: each id comes back unchanged, from 16 bytes instead of 36."""
    stored = write_id(text)
    assert stored == UUID(text).bytes and read_id(stored) == text


@given(st.sets(uuids, max_size=30))
def test_sqlite_keeps_their_order(texts: set[str]) -> None:
    """P11: in a table like the saver's, ids sort as their texts, after the empty text that only events have."""
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE t (id ANY NOT NULL PRIMARY KEY) STRICT, WITHOUT ROWID")
        connection.executemany("INSERT INTO t VALUES (?)", [(write_id(text),) for text in texts | {""}])
        found = [
            read_id(row[0]) for row in connection.execute("SELECT id FROM t WHERE id < ? ORDER BY id", (AFTER_ALL,))
        ]
    connection.close()
    assert found == sorted(texts | {""})


@pytest.mark.parametrize("stored", [None, 5, 1.5, b"", b"x" * 15, b"x" * 17, bytes(17), "g", ONE, AFTER_ALL], ids=repr)
def test_bytes_that_are_no_stored_id(stored: object) -> None:
    """P11: decoding such bytes raises ValueError, and never returns some id."""
    with pytest.raises(ValueError):
        read_id(stored)


@pytest.mark.anyio
@pytest.mark.parametrize("text", NONE)
async def test_texts_that_are_no_id(text: str) -> None:
    """P11: a row with such an id would sort in the wrong place: writing it is refused, and a query for it finds
    nothing."""
    async with SqliteSaver(":memory:") as saver:
        lease = await take(saver)
        await saver.commit(lease, commit(row(1)))
        id = CheckpointId(text)
        with pytest.raises(ValueError, match="is a UUID in lower case"):
            await saver.commit(lease, commit(replace(row(2, 1), checkpoint_id=id, base_id=id), head=1))
        assert await saver.read("t", "", id) is None and await saver.segment("t", "", id) == ((), ())
        place = {"configurable": {"thread_id": "t", "checkpoint_id": text}}
        assert await saver.aget_tuple(place) is None and [one async for one in saver.alist(place)] == []
        assert len(await saver.scan("t", "")) == 1
