"""P11: stored bytes are data: they come back unchanged, and neither stored values nor filters are executed."""

from __future__ import annotations

import hashlib
from copy import deepcopy
from typing import Any, Final

from ...abc import BaseCheckpointSaver
from ...records import TaskId, TaskRecord
from .suite import LATER, NOW, Suite, cid, commit, everything, here, record, row, take, written

HOSTILE = (
    "",
    " ",
    "'",
    '"',
    "'; DROP TABLE checkpoints; --",
    "%",
    "_",
    "a.b",
    "$.a",
    '$."a"',
    "a[0]",
    "\\",
    "\\u0000",
    "\n\r\t",
    "\u00e9",
    "e\u0301",
    "日本語",
    "🧵",
    "\uffff",
    "\U0010ffff",
    "NULL",
    "0",
    "x" * 2000,
)
"""Texts that have broken other software: quotes, patterns, paths, two spellings of a letter, the ends of Unicode."""


JSON: Final[list[Any]] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2**53 + 1,
    2**63 - 1,
    2**64,
    -(2**70),
    0.1,
    1e300,
    5e-324,
    1.0,
    "",
    "1",
    [],
    [1, [2.5, None]],
    {},
    {"": {"a.b": [True]}},
]
"""Values of every JSON type."""


def noise(size: int) -> bytes:
    """Return bytes that do not compress, the same for each call of one size.

    Args:
        size: the number of bytes.
    """
    return hashlib.shake_256(str(size).encode()).digest(size)


class StoredBytes(Suite):
    async def test_frames_come_back_byte_for_byte(self, saver: BaseCheckpointSaver) -> None:
        """P11: frames of any size and with any byte come back unchanged, as bytes."""
        sizes = (0, 1, 2, 255, 256, 999, 1000, 4095, 4096, 4097, 65_536, 1_000_000, 5_000_000)
        frames = [noise(size) for size in sizes] + [bytes(range(256)), b"\x00" * 100, b"\xff" * 100]
        lease = await take(saver)
        head = None
        for number, frame in enumerate(frames, 1):
            kept = record(number, "a", frame=frame)
            await saver.commit(lease, commit(row(number, head, frame=frame), head=head, records=[kept]))
            head = number
        for number, frame in enumerate(frames, 1):
            chain = await saver.read("t", "", cid(number))
            assert chain is not None
            assert type(chain.rows[-1].frame) is bytes and chain.rows[-1].frame == frame
            assert type(chain.records[0].frame) is bytes and chain.records[0].frame == frame

    async def test_every_text_is_an_id(self, saver: BaseCheckpointSaver) -> None:
        """P11: threads, namespaces and tasks may have any name, and two different names are never confused."""
        for text in HOSTILE:
            lease = await take(saver, text)
            for ns in ("", f"ns {text}"):
                kept = tuple(record(1, f"{name}{text}", i, ns=ns) for i, name in enumerate(("a", "b")))
                await saver.commit(lease, commit(row(1, ns=ns, metadata={"name": text}), records=kept))
            await saver.release(lease)
        for text in HOSTILE:
            for ns in ("", f"ns {text}"):
                chain = await saver.read(text, ns)
                assert chain is not None
                assert [one.metadata for one in chain.rows] == [{"name": text}]
                assert [one.task_id for one in chain.records] == [f"a{text}", f"b{text}"]
            headers = await saver.scan(text, None)
            assert [(one.thread_id, one.ns) for one in headers] == [(text, f"ns {text}"), (text, "")]
        assert len(await saver.scan(None, None, limit=1000)) == 2 * len(HOSTILE)
        assert [one.thread_id for one in await saver.scan(None, "ns '")] == ["'"]
        await saver.adelete_thread("'; DROP TABLE checkpoints; --")
        assert len(await saver.scan(None, None, limit=1000)) == 2 * len(HOSTILE) - 2

    async def test_metadata_come_back(self, saver: BaseCheckpointSaver) -> None:
        """P11: a JSON value in metadata comes back equal in value and type."""
        await written(saver, *(row(number, metadata={"value": value}) for number, value in enumerate(JSON, 1)))
        found = await saver.scan("t", "")
        for header, value in zip(reversed(found), JSON, strict=True):
            assert header.metadata == {"value": value}
            assert type(header.metadata["value"]) is type(value)

    async def test_nothing_that_is_passed_or_returned_is_shared(self, saver: BaseCheckpointSaver) -> None:
        """P11, P1: changing arguments after a call, or results of a call, does not change what is stored."""
        metadata: dict[str, Any] = {"source": "loop", "parents": {"": "p"}, "tags": [1]}
        records = [record(1, "a")]
        lease = await take(saver)
        await saver.commit(lease, commit(row(1, metadata=metadata), records=records))
        await saver.record(lease, records, expires_at=LATER)
        before = deepcopy(await everything(saver))
        metadata["parents"]["x"] = "y"
        metadata["tags"].append(2)
        metadata["new"] = 1
        records.clear()
        assert await everything(saver) == before
        chain = await saver.read("t")
        rows, _ = await saver.segment("t", "", cid(1))
        (header,) = await saver.scan("t", "")
        assert chain is not None
        for one in (chain.rows[0], rows[0], header):
            one.metadata["parents"].clear()
            one.metadata["tags"].append(3)
            del one.metadata["source"]
        assert await everything(saver) == before

    async def test_many_records(self, saver: BaseCheckpointSaver) -> None:
        """P11: a commit stores a thousand records of one superstep, and they come back in plan order."""
        kept = tuple(
            TaskRecord(
                ns="", checkpoint_id=cid(1), task_id=TaskId(f"{-i % 1000:04d}"), index=i, kind="result", frame=noise(i)
            )
            for i in range(1000)
        )
        lease = await saver.acquire("t", here("run"), now=NOW, expires_at=LATER)
        await saver.commit(lease, commit(row(1), records=kept))
        chain = await saver.read("t")
        assert chain is not None and chain.records == kept
