"""Listing checkpoints (P11: filters are compared, never executed)."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, Final

from ....abc import BaseCheckpointSaver
from ....records import Header
from ..stored_bytes import HOSTILE
from ..suite import Suite, cid, row, written

COMPARED: Final[list[tuple[Any, Any, bool]]] = [
    (1, 1, True),
    (1, 1.0, True),
    (1.0, 1, True),
    (1, True, False),
    (True, 1, False),
    (0, False, False),
    (True, True, True),
    (False, False, True),
    (None, None, True),
    (None, False, False),
    (0, None, False),
    ("", None, False),
    ("1", 1, False),
    (1, "1", False),
    ("a", "a", True),
    ("a", "A", False),
    ("a", "a ", False),
    ("\u00e9", "e\u0301", False),
    ("true", True, False),
    ("null", None, False),
    (0.1, 0.1, True),
    (0.1, 0.1000000001, False),
    (2**63, 2**63, True),
    (2**63, 2**63 + 1, False),
    (2**53, 2**53 + 1, False),
    ([1, 2], [1, 2], True),
    ([1, 2], [2, 1], False),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
    ({"a": 1}, {"a": 1, "b": 2}, False),
    ("[1, 2]", [1, 2], False),
    ([1, 2], (1, 2), False),
    ([1], [1.0], True),
    ([True], [True], True),
    ([True], [1], False),
    ([0], [False], False),
    ({"a": [{"b": 1}]}, {"a": [{"b": 1.0}]}, True),
    ({"a": [{"b": 1}]}, {"a": [{"b": True}]}, False),
    ({"a": {"b": False}}, {"a": {"b": 0}}, False),
    (1, Decimal(1), True),
    ("a", b"a", False),
    (1, 10**40, False),
    (1, math.nan, False),
    (1e300, math.inf, False),
    ("a", str, False),
]
"""A stored value, a value of a filter, and whether they are equal."""


def places(headers: tuple[Header, ...]) -> list[tuple[str, str, int]]:
    """Return thread, namespace and number of each header."""
    return [(one.thread_id, one.ns, one.step + 1) for one in headers]


class CheckpointListing(Suite):
    async def test_newest_first(self, saver: BaseCheckpointSaver) -> None:
        """P11: headers come by descending checkpoint id, of all threads and namespaces or of one; thread and namespace
        are compared exactly."""
        await written(saver, row(1), row(4, 1, base=1), row(6, ns="child"), row(8, 4, base=1), thread="t1")
        await written(saver, row(2), row(5, 2, base=2), row(7, 5, base=2), thread="t2")
        assert [one.checkpoint_id for one in await saver.scan(None, None)] == [cid(n) for n in (8, 7, 6, 5, 4, 2, 1)]
        assert places(await saver.scan("t1", None)) == [("t1", "", 8), ("t1", "child", 6), ("t1", "", 4), ("t1", "", 1)]
        assert places(await saver.scan("t1", "")) == [("t1", "", 8), ("t1", "", 4), ("t1", "", 1)]
        assert places(await saver.scan("t1", "child")) == [("t1", "child", 6)]
        assert places(await saver.scan(None, "child")) == [("t1", "child", 6)]
        assert await saver.scan("t1", "other") == await saver.scan("t3", None) == await saver.scan(None, "other") == ()

    async def test_before_and_limit(self, saver: BaseCheckpointSaver) -> None:
        """P11: a page starts below `before`, whether a checkpoint of that id exists or not, and holds at most `limit`
        headers."""
        await written(saver, row(1), *(row(n, n - 1, base=1) for n in range(2, 8)))
        for thread in ("t", None):

            async def listed(before: int | None = None, limit: int = 100, thread: str | None = thread) -> list[int]:
                bound = None if before is None else cid(before)
                return [one.step + 1 for one in await saver.scan(thread, "", before=bound, limit=limit)]

            assert await listed() == [7, 6, 5, 4, 3, 2, 1]
            assert await listed(before=5) == [4, 3, 2, 1]
            assert await listed(before=99) == [7, 6, 5, 4, 3, 2, 1]
            assert await listed(before=1) == []
            assert await listed(limit=3) == [7, 6, 5]
            assert await listed(before=5, limit=2) == [4, 3]
            assert await listed(limit=0) == []

    async def test_pages_add_up(self, saver: BaseCheckpointSaver) -> None:
        """P11: successive pages, each before the last id of the previous one, hold each checkpoint once."""
        await written(saver, row(1), *(row(n, n - 1, base=1, metadata={"odd": n % 2}) for n in range(2, 30)))
        for filter, expected in ((None, list(range(29, 0, -1))), ({"odd": 0}, list(range(28, 0, -2)))):
            found: list[int] = []
            before = None
            while page := await saver.scan("t", None, before=before, limit=4, filter=filter):
                assert before is None or page[0].checkpoint_id < before, "a page repeats earlier results"
                found += [one.step + 1 for one in page]
                before = page[-1].checkpoint_id
            assert found == expected

    async def test_a_filter_that_few_pass(self, saver: BaseCheckpointSaver) -> None:
        """P11: the limit counts headers that match the filter, however many others lie between."""
        await written(saver, row(1), *(row(n, n - 1, base=1, metadata={"rare": n % 50 == 0}) for n in range(2, 120)))
        assert [one.step + 1 for one in await saver.scan("t", "", filter={"rare": True}, limit=2)] == [100, 50]
        assert [one.step + 1 for one in await saver.scan(None, None, filter={"rare": True}, limit=1)] == [100]

    async def test_a_filter_compares_values(self, saver: BaseCheckpointSaver) -> None:
        """P11: a filter compares as Python does, but a bool never equals a number, at any depth, and a missing key
        equals nothing."""
        stored = {f"key {number}": there for number, (there, _, _) in enumerate(COMPARED)}
        await written(saver, row(1, metadata=stored), row(2, 1, metadata={"other": 1}))
        for number, (there, wanted, matches) in enumerate(COMPARED):
            found = await saver.scan("t", "", filter={f"key {number}": wanted})
            assert places(found) == ([("t", "", 1)] if matches else []), (there, wanted)

    async def test_all_entries_have_to_match(self, saver: BaseCheckpointSaver) -> None:
        """P11: a checkpoint must match all entries of a filter; a filter without entries matches every checkpoint."""
        await written(saver, row(1, metadata={"a": 1, "b": 1}), row(2, 1, metadata={"a": 1, "b": 2}))
        assert len(await saver.scan("t", "", filter={"a": 1})) == 2
        assert places(await saver.scan("t", "", filter={"a": 1, "b": 2})) == [("t", "", 2)]
        assert await saver.scan("t", "", filter={"a": 2, "b": 2}) == ()
        assert len(await saver.scan("t", "", filter={})) == 2

    async def test_hostile_filters(self, saver: BaseCheckpointSaver) -> None:
        """P11: keys and values of filters are data, whatever text they are."""
        one = row(1, metadata={text: text for text in HOSTILE})
        await written(saver, one, row(2, 1, metadata={"a": {"b": 1}, "c": [1]}))
        for text in HOSTILE:
            assert places(await saver.scan("t", "", filter={text: text})) == [("t", "", 1)]
            assert await saver.scan("t", "", filter={text: f"{text}x"}) == ()
            assert await saver.scan("t", "", filter={f"{text}x": text}) == ()
        for key in ("a.b", "$.a.b", "c[0]", "$.c[0]", "a.b' OR '1'='1", "x') OR 1=1 --"):
            assert await saver.scan("t", "", filter={key: 1}) == ()
        assert places(await saver.scan("t", "", filter={"a": {"b": 1}})) == [("t", "", 2)]
        assert len(await saver.scan("t", "")) == 2
