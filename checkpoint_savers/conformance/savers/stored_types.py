"""P11: stored values come back equal in value and type, and texts that are nearly equal stay distinct."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from ...abc import BaseCheckpointSaver
from ...errors import CheckpointError
from ...records import Owner, Rewrite
from .scenarios import fill
from .stored_bytes import noise
from .suite import LATER, NOW, Suite, cid, commit, event, here, needs, offers, record, row, stored, take

VALUES: dict[str, Any] = {
    "ints": [0, 1, -1, 2**31, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**70), 10**30],
    "floats": [0.0, -0.0, 1.0, -1.0, 0.1, 1e300, -1e-300, 5e-324, 1.7976931348623157e308, 2.0**53, 1e15, 1e16, 1e22],
    "bools": [True, False, {"true": True, "1": 1, "1.0": 1.0, "null": None}],
    "texts": ["", "0", "1", "true", "null", "{}", "[]", '"', "\\", "\\u0041", "/", "\x01\x1f\x7f\x80\x9f", "\ufeff"],
    "empty": [None, {}, [], [[]], [{}], {"": {}}, {"": None}],
    "deep": {"a": [{"b": [[{"c": {"d": [1, 1.0, True, None, "x"]}}]]}]},
    "names": {"a.b": 1, "a": {"b": 2}, "$": 3, "[0]": 4, "A": 5, "\u00e9": 6, "e\u0301": 7, "": 8, "null": 9},
}
"""JSON values that databases and encoders have been known to change."""

NEARLY_EQUAL: tuple[tuple[str, str], ...] = (
    ("a", "A"),
    ("i", "\u0131"),
    ("I", "\u0130"),
    ("ss", "\u00df"),
    ("\u00e9", "e\u0301"),
    ("\u212b", "\u00c5"),
    ("\ufb01", "fi"),
    ("a", "a "),
    ("a", " a"),
    ("a", "a\n"),
    ("a", "a\u200b"),
    ("a", "a\u00a0"),
    ("a b", "a  b"),
    ("1", "01"),
    ("1", "1.0"),
    ("1", "+1"),
    ("0", "-0"),
    ("1e2", "100"),
    ("null", ""),
    ("true", "1"),
    ("\\", "\\\\"),
    ("'", "''"),
    ("a%", "ab"),
    ("a_", "ab"),
    ("\u0430", "a"),
    ("\u202ea", "a\u202e"),
    ("\ud7ff", "\ue000"),
    ("\U0001f469\u200d\U0001f4bb", "\U0001f469\U0001f4bb"),
)
"""Texts that software confuses: other cases, spellings, spaces, numbers, patterns, letters of other scripts."""

ALL_CHARACTERS = "".join(
    chr(code) for code in (*range(1, 0xD800), *range(0xE000, 0x11000), *range(0x1F000, 0x20000), 0x10FFFF)
)
"""All characters of the planes in use, noncharacters too, but for NUL and surrogates."""

NULS = ("a\x00b", "a\x00", "\x00", "\x00a")

LONE_SURROGATES = ("\ud800", "a\udfff", "\udc00\ud800")
"""Halves of surrogate pairs, which no Unicode encoding can represent."""

LENGTHS = (255, 256, 257, 400)


def identical(found: Any, wanted: Any) -> bool:
    """Return True if two JSON values are equal in value and type: 1, 1.0 and True differ, and so do 0.0 and -0.0.

    Args:
        found: one value.
        wanted: the other value.
    """
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(identical(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(
            identical(one, other) for one, other in zip(found, wanted, strict=True)
        )
    if isinstance(wanted, float):
        return found == wanted and math.copysign(1.0, found) == math.copysign(1.0, wanted)
    return bool(found == wanted)


async def metadata_of(saver: BaseCheckpointSaver) -> list[dict[str, Any]]:
    """Return the metadata of the only checkpoint of thread `t`, once from each verb that reads it."""
    chain = await saver.read("t")
    rows, _ = await saver.segment("t", "", cid(1))
    assert chain is not None
    found = [chain.rows[0].metadata, rows[0].metadata, *(one.metadata for one in await saver.scan("t", ""))]
    found += [one.metadata for one in await saver.scan(None, None)]
    if offers(saver, "dump"):
        dump = await saver.dump("t")
        assert dump is not None
        found.append(dump.rows[0].metadata)
    return found


async def store_under(saver: BaseCheckpointSaver, text: str, frame: bytes) -> None:
    """Store a thread that uses one text as its id, namespace, task id, run id, and as key and value of metadata.

    Args:
        saver: the saver.
        text: the text.
        frame: the bytes of its row, record and event.
    """
    lease = await take(saver, text, text)
    new = row(1, ns=text, metadata={text: text}, frame=frame)
    kept = record(1, text, ns=text, frame=frame)
    await saver.commit(lease, commit(new, records=[kept], events=[event(1, frame=frame)]))


async def delete_threads(saver: BaseCheckpointSaver, *threads: str) -> None:
    """Delete threads that `store_under` has stored.

    Args:
        saver: the saver.
        threads: their ids, which are also the ids of their runs.
    """
    for thread in threads:
        lease = await take(saver, thread, thread)
        await saver.release(lease)
        await saver.adelete_thread(thread)


async def check_stored_under(saver: BaseCheckpointSaver, text: str, frame: bytes) -> None:
    """Check that a thread of `store_under` is read under its text and under no other.

    Args:
        saver: the saver.
        text: the text.
        frame: the bytes that were stored.
    """
    chain = await saver.read(text, text)
    assert chain is not None and chain.head == cid(1)
    (found,), (kept,) = chain.rows, chain.records
    assert (found.ns, found.frame, found.metadata) == (text, frame, {text: text})
    assert (kept.ns, kept.task_id, kept.frame) == (text, text, frame)
    (shown,) = await saver.events(text)
    assert shown.frame == frame
    (header,) = await saver.scan(text, text)
    assert (header.thread_id, header.ns) == (text, text)
    (listed,) = await saver.scan(None, text, filter={text: text})
    assert listed == header
    if offers(saver, "dump"):
        dump = await saver.dump(text)
        assert dump is not None and dump.heads == {text: cid(1)} and dump.records == (kept,)


class StoredTypes(Suite):
    async def test_every_json_value_comes_back(self, saver: BaseCheckpointSaver) -> None:
        """P11: every JSON value comes back equal in value and type from every verb that reads, and integers of any size
        are exact."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1, metadata=VALUES)))
        for found in await metadata_of(saver):
            assert identical(found, VALUES)

    @needs("rewrite", "load", "dump")
    async def test_every_json_value_comes_back_from_upkeep(self, saver: BaseCheckpointSaver) -> None:
        """P11: every JSON value comes back equal in value and type after `rewrite`, and after `dump` and `load`."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1)))
        await saver.rewrite(lease, Rewrite(rows=(row(1, metadata=VALUES),)))
        for found in await metadata_of(saver):
            assert identical(found, VALUES)
        dump = await saver.dump("t")
        assert dump is not None
        await saver.erase(lease)
        await saver.load(await take(saver), dump)
        for found in await metadata_of(saver):
            assert identical(found, VALUES)

    async def test_every_character_comes_back(self, saver: BaseCheckpointSaver) -> None:
        """P11: every character comes back in ids and in keys and values of metadata: controls, joiners, bidirectional
        marks, private use."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1, metadata={"text": ALL_CHARACTERS, ALL_CHARACTERS[:5000]: 1})))
        for found in await metadata_of(saver):
            assert found == {"text": ALL_CHARACTERS, ALL_CHARACTERS[:5000]: 1}
        assert len(await saver.scan(None, None, filter={"text": ALL_CHARACTERS})) == 1
        assert await saver.scan(None, None, filter={"text": ALL_CHARACTERS[:-1]}) == ()
        for start in range(0, len(ALL_CHARACTERS), 8009):
            text = ALL_CHARACTERS[start : start + 60]
            await store_under(saver, text, text.encode())
            await check_stored_under(saver, text, text.encode())

    async def test_nearly_equal_ids_are_distinct(self, saver: BaseCheckpointSaver) -> None:
        """P11: ids and metadata keys are equal only if Python calls them equal, so nearly equal texts name different
        threads."""
        known: set[str] = set()
        for pair in NEARLY_EQUAL:
            for one, other in (pair, pair[::-1]):
                if one not in known:
                    await store_under(saver, one, one.encode())
                    known.add(one)
                if other not in known:
                    assert await saver.read(other, other) is None and await saver.events(other) == (), pair
                    assert await saver.scan(other, None) == await saver.scan(None, other) == (), pair
                    assert await saver.scan(None, None, filter={other: other}) == (), pair
                assert await saver.scan(None, None, filter={one: other}) == (), pair
        for text in known:
            await check_stored_under(saver, text, text.encode())
        assert len(await saver.scan(None, None)) == len(known)

    async def test_nearly_equal_names_inside_a_thread_are_distinct(self, saver: BaseCheckpointSaver) -> None:
        """P11: within one thread, nearly equal texts name different namespaces, tasks and keys of metadata."""
        texts = sorted({text for pair in NEARLY_EQUAL for text in pair})
        lease = await take(saver)
        records = tuple(record(1, text, index, frame=text.encode()) for index, text in enumerate(texts))
        metadata = {text: index for index, text in enumerate(texts)}
        await saver.commit(lease, commit(row(1, metadata=metadata), records=records))
        chain = await saver.read("t")
        assert chain is not None and chain.records == records and chain.rows[0].metadata == metadata
        await saver.commit(lease, commit(clears=records[::2]))
        chain = await saver.read("t")
        assert chain is not None and chain.records == records[1::2]
        for number, text in enumerate(texts, 2):
            await saver.commit(lease, commit(row(number, ns=f"in {text}")))
        for number, text in enumerate(texts, 2):
            assert [header.checkpoint_id for header in await saver.scan("t", f"in {text}")] == [cid(number)]

    @pytest.mark.parametrize("length", LENGTHS)
    async def test_long_ids_are_distinct(self, saver: BaseCheckpointSaver, length: int) -> None:
        """P11: long ids are compared up to their last character."""
        text = noise(length).hex()[: length - 1]
        for last in "ab":
            await store_under(saver, text + last, last.encode())
        for last in "ab":
            await check_stored_under(saver, text + last, last.encode())
        assert await saver.read(text, text) is None
        assert len(await saver.scan(None, None)) == 2

    @pytest.mark.parametrize("text", [noise(size).hex() for size in (2_000, 50_000)], ids=len)
    async def test_an_id_that_is_too_long_is_refused(self, saver: BaseCheckpointSaver, text: str) -> None:
        """P11: a very long id is either stored and read back, or refused with an error of the package or a ValueError;
        then nothing has changed."""
        await self._check_stored_or_refused(saver, text)

    @pytest.mark.parametrize("text", NULS, ids=ascii)
    async def test_a_text_with_nul_is_taken_or_refused(self, saver: BaseCheckpointSaver, text: str) -> None:
        """P11: no text ends at a NUL: a text with NUL is either stored whole, or refused before anything has
        changed."""
        await self._check_stored_or_refused(saver, text)
        for other in {text.replace("\x00", ""), text.split("\x00")[0]} - {text}:
            assert await saver.read(other, other) is None

    async def _check_stored_or_refused(self, saver: BaseCheckpointSaver, text: str) -> None:
        """Store a text, and check that it was stored whole or that nothing has changed."""
        lease = await fill(saver)
        before = await stored(saver)
        try:
            await store_under(saver, text, b"frame")
        except (CheckpointError, ValueError):
            await self._check_each_place(saver, text)
            mine = await saver.scan("t", None)
            assert len(mine) == 11 and await saver.scan(None, None) == mine
            if offers(saver, "threads"):
                assert [one.thread_id for one in await saver.threads()] in (["t"], sorted(("t", text)))
        else:
            await check_stored_under(saver, text, b"frame")
            await delete_threads(saver, text)
            assert await stored(saver) == before
        await saver.commit(lease, commit(row(12, 7), head=7))

    async def _check_each_place(self, saver: BaseCheckpointSaver, text: str) -> None:
        """Store a text in each place alone, and check that it was stored or that nothing has changed."""
        places = (
            commit(row(20, ns=text, frame=b"")),
            commit(row(20, 7, metadata={"text": text}), head=7),
            commit(row(20, 7, metadata={text: 1}), head=7),
            commit(row(20, 7), head=7, records=[record(20, text)]),
        )
        for number, place in enumerate(places):
            thread = f"place {number}"
            lease = await fill(saver, thread, f"run-{number}")
            before = await stored(saver)
            try:
                await saver.commit(lease, place)
            except (CheckpointError, ValueError):
                assert await stored(saver) == before
            else:
                assert ascii(text)[1:-1] in ascii(await stored(saver))
            await saver.release(lease)
            await saver.adelete_thread(thread)

    @pytest.mark.parametrize("text", LONE_SURROGATES, ids=ascii)
    async def test_half_a_character_is_refused(self, saver: BaseCheckpointSaver, text: str) -> None:
        """P11: a lone surrogate in a thread id or in metadata is refused with a ValueError, and changes nothing;
        elsewhere it is refused or stored whole. A read with one finds nothing or raises a ValueError."""
        lease = await fill(saver)
        before = await stored(saver)
        with pytest.raises(ValueError):
            await take(saver, text)
        for metadata in ({"text": [text]}, {text: 1}):
            with pytest.raises(ValueError):
                await saver.commit(lease, commit(row(20, 7, metadata=metadata), head=7))
            assert await stored(saver) == before
        assert await finds_nothing_or_raises(saver.read(text)) and await finds_nothing_or_raises(saver.events(text))
        assert await finds_nothing_or_raises(saver.scan(text, None))
        assert await finds_nothing_or_raises(saver.scan(None, None, filter={text: text}))
        await self._check_each_place(saver, text)
        assert await stored(saver) == before
        await saver.commit(lease, commit(row(12, 7), head=7))

    async def test_types_are_exact(self, saver: BaseCheckpointSaver) -> None:
        """P11: ids and kinds are str, frames are bytes, numbers are int, and pins are bool: never subclasses or
        views."""
        lease = await fill(saver)
        chain = await saver.read("t", "", cid(4))
        rows, records = await saver.segment("t", "", cid(3))
        assert chain is not None
        row_of = {"ns": str, "checkpoint_id": str, "base_id": str, "step": int, "metadata": dict, "pinned": bool}
        for one in (*chain.rows, *rows):
            self._check_types(one, **row_of, frame=bytes)
        for kept in (*chain.records, *records):
            self._check_types(kept, ns=str, checkpoint_id=str, task_id=str, index=int, kind=str, frame=bytes)
        for header in await saver.scan("t", None):
            self._check_types(header, **row_of, thread_id=str, size=int)
        for shown in await saver.events("t"):
            self._check_types(shown, checkpoint_id=str, epoch=int, position=int, kind=str, frame=bytes)
        self._check_types(lease, thread_id=str, epoch=int)
        self._check_types(await saver.acquire("t", lease.owner, now=NOW, expires_at=LATER), newest=str, epoch=int)
        for listed in [chain, rows, records, await saver.scan("t", None), await saver.events("t")]:
            assert isinstance(listed, tuple) or type(listed) is type(chain)
        if offers(saver, "threads"):
            (thread,) = await saver.threads()
            self._check_types(thread, thread_id=str, epoch=int, owner=Owner, expires_at=float, newest=str, head=str)
        if offers(saver, "dump"):
            dump = await saver.dump("t")
            assert dump is not None
            for one in dump.rows:
                self._check_types(one, **row_of, frame=bytes)
            assert all(type(ns) is str and type(head) is str for ns, head in dump.heads.items())

    def _check_types(self, found: object, **types: type) -> None:
        for name, wanted in types.items():
            assert type(getattr(found, name)) is wanted, (name, found)

    @pytest.mark.parametrize("moment", [0.1 + 0.2, 1e9 + 1e-6, NOW + 0.123456, 2.0**40 + 2.0**-12, 1.0])
    async def test_times_are_exact(self, saver: BaseCheckpointSaver, moment: float) -> None:
        """P6, P11: a lease expires at exactly the given float, to the last bit."""
        owner = replace(here("run-1"), host="somewhere else")
        await saver.acquire("t", owner, now=0.0, expires_at=moment)
        if offers(saver, "threads"):
            (header,) = await saver.threads()
            assert header.expires_at == moment
        before = math.nextafter(moment, 0.0)
        with pytest.raises(CheckpointError) as caught:
            await saver.acquire("t", here("run-2"), now=before, expires_at=LATER)
        assert getattr(caught.value, "expires_at", None) == moment
        await saver.acquire("t", here("run-2"), now=moment, expires_at=LATER)

    @pytest.mark.parametrize("text", ["", "'\"\\{}%s", "日本\u202e", "\U0001f9f5" * 100, "null", "a|b@c:d"], ids=ascii)
    async def test_an_owner_of_any_text(self, saver: BaseCheckpointSaver, text: str) -> None:
        """P6, P11: host, boot, start and run of an owner may be any text; owners are compared and reported exactly."""
        owner = Owner(host=f"not here {text}", boot=text, pid=2**22, started=text, run_id=text)
        lease = await saver.acquire("t", owner, now=NOW, expires_at=LATER)
        assert lease.owner == owner
        if offers(saver, "threads"):
            (header,) = await saver.threads()
            assert header.owner == owner
        with pytest.raises(CheckpointError) as caught:
            await take(saver, run="another")
        assert str(owner) in str(caught.value)
        await saver.commit(lease, commit(row(1)))
        again = await saver.acquire("t", owner, now=NOW, expires_at=LATER)
        assert again.epoch == 2, "it is the same run"
        for different in ("host", "boot", "started"):
            other = replace(owner, **{different: f"{text}x not here"})
            with pytest.raises(CheckpointError):
                await saver.acquire("t", other, now=NOW, expires_at=LATER)


async def finds_nothing_or_raises(reading: Any) -> bool:
    """Return True if a read returned nothing or raised a ValueError.

    Args:
        reading: the awaitable of the read.
    """
    try:
        return not await reading
    except ValueError:
        return True
