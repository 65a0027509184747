"""Checkpoint ids as SqliteSaver stores them: they come back, and in the order of their code points (P11)."""

from __future__ import annotations

import sqlite3
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint_savers.sqlite.ids import AFTER_ALL, StoredId, read_id, write_id

LEAST, GREATEST = str(UUID(int=0)), str(UUID(int=2**128 - 1))

uuids = st.one_of(
    st.integers(0, 2**128 - 1), st.integers(0, 300), st.integers(2**128 - 300, 2**128 - 1), st.integers(0, 31).map(lambda n: 16**n)
).map(lambda number: str(UUID(int=number)))  # fmt: skip

letters = st.characters(codec="utf-8") | st.sampled_from("0129afAFg-./:`\x00\uffff\U0010ffff")


@st.composite
def near_uuids(draw: st.DrawFn) -> str:
    """A text that is a UUID as far as it goes, or all but a few letters."""
    text = draw(uuids)
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(text)))
        kind = draw(st.sampled_from(["cut", "insert", "replace", "append"]))
        letter = draw(letters)
        if kind == "cut":
            text = text[:place]
        elif kind == "insert":
            text = text[:place] + letter + text[place:]
        elif kind == "replace":
            text = text[:place] + letter + text[place + 1 :]
        else:
            text += letter
    return text


ids = uuids | near_uuids() | st.text(letters)


def rank(stored: StoredId) -> tuple[int, bytes]:
    """How SQLite orders texts and blobs."""
    return (1, stored) if isinstance(stored, bytes) else (0, stored.encode())


@given(st.lists(ids, max_size=20))
def test_stored_ids_are_in_the_order_of_the_texts(texts: list[str]) -> None:
    """P11: whatever texts are in one thread."""
    assert sorted(texts, key=lambda text: rank(write_id(text))) == sorted(texts)


@given(ids)
def test_ids_come_back(text: str) -> None:
    """P11: each as it was, and no two are stored alike."""
    stored = write_id(text)
    assert read_id(stored) == text
    assert rank(stored) < rank(AFTER_ALL)


@given(uuids)
def test_a_run_s_ids_are_short(text: str) -> None:
    """P10: 16 bytes, in place of 36."""
    assert len(write_id(text)) == 16


@given(st.sets(ids, max_size=30))
def test_sqlite_orders_them_so(texts: set[str]) -> None:
    """P11: in a table as the saver's."""
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE t (id ANY NOT NULL PRIMARY KEY) STRICT, WITHOUT ROWID")
        connection.executemany("INSERT INTO t VALUES (?)", [(write_id(text),) for text in texts])
        found = [
            read_id(row[0]) for row in connection.execute("SELECT id FROM t WHERE id < ? ORDER BY id", (AFTER_ALL,))
        ]
    connection.close()
    assert found == sorted(texts)


def test_neighbours() -> None:
    """P11: the places where a rule of spelling ends."""
    one = "0193a1b2-c3d4-7000-8000-00000000000f"
    assert write_id(one) == bytes.fromhex(one.replace("-", ""))
    before = "0193a1b2-c3d4-7000-8000-00000000000e"
    for text, prefix in (
        (one.upper(), "01939fff-ffff-ffff-ffff-ffffffffffff"),
        (f"{{{one}}}", GREATEST),
        (f"{one} ", one),
        (one.replace("-", ""), "0193a1b2-ffff-ffff-ffff-ffffffffffff"),
        (f"{before}x", before),
        ("0", None),
        ("1", "0fffffff-ffff-ffff-ffff-ffffffffffff"),
        ("0193a1b2", "0193a1b1-ffff-ffff-ffff-ffffffffffff"),
        ("0193a1b2/", "0193a1b2-ffff-ffff-ffff-ffffffffffff"),
        ("0193a1b2,", "0193a1b1-ffff-ffff-ffff-ffffffffffff"),
        ("", None),
        ("-", None),
        (LEAST[:-1], None),
        (f"{LEAST}0", LEAST),
        ("g", GREATEST),
    ):
        stored = write_id(text)
        assert stored == (text if prefix is None else bytes.fromhex(prefix.replace("-", "")) + text.encode()), text


@pytest.mark.parametrize(
    "stored", [None, 5, 1.5, b"", b"x" * 15, b"x" * 17, bytes(17), bytes(16) + b"\xff", "g", LEAST, AFTER_ALL]
)
def test_what_is_no_stored_id(stored: object) -> None:
    """P11: a ValueError, and never some id."""
    with pytest.raises(ValueError):
        read_id(stored)


def test_half_a_pair() -> None:
    """P11: it is refused, as in every other text that goes to a database."""
    with pytest.raises(UnicodeEncodeError):
        write_id("g\ud800")
    with sqlite3.connect(":memory:") as connection, pytest.raises(UnicodeEncodeError):
        connection.execute("SELECT ?", (write_id("0\ud800"),))
    connection.close()
