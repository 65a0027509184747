"""Clauses about searches: filters, order, pages and counts, compared with the queries' own `matches`."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ...abc import BaseCheckpointSaver
from ...runs.decisions import Changes, Found
from ...runs.port import RunStore
from ...runs.queries import RowPosition, RunQuery, ThreadQuery, run_position, write_cursor
from ...runs.rows import RunRow, RunStatus, RunThreadRow, ThreadStatus
from ..caches.conformance import Clock
from .suite import RunSuite, request

METADATA: tuple[dict[str, Any], ...] = (
    {},
    {"n": 1, "user": "ada"},
    {"n": True, "user": "ada", "tags": ["a", "b", {"c": [1, 2]}]},
    {"n": 1.5, "user": "Ada", "nested": {"deep": {"a": 1, "b": None}, "x": "\x01'\"%_"}},
    {"user": "ä\U0001f600", "tags": [], "nested": {}},
)
"""Metadata of runs and threads."""

FILTERS: tuple[dict[str, Any], ...] = (
    *METADATA,
    {"n": 1.0},
    {"n": False},
    {"user": None},
    {"nested": {"deep": {"b": None}}},
    {"nested": {"deep": {}}},
    {"nested": []},
    {"tags": ["b"]},
    {"tags": [{"c": [2]}, "a", "a"]},
    {"tags": "a"},
    {"tags": {"0": "a"}},
    {"missing": {}},
)
"""Filters of metadata."""

RUN_STATUSES: tuple[tuple[RunStatus, ...], ...] = ((), ("success",), ("pending", "running"), ("error", "success"))
THREAD_STATUSES: tuple[tuple[ThreadStatus, ...], ...] = ((), ("idle",), ("busy", "error"))


class RunSearch(RunSuite):
    async def filled(self, runs: RunStore, clock: Clock) -> tuple[list[RunRow], list[RunThreadRow]]:
        """Store threads and runs of all kinds. Return the runs, newest first, and the threads, last changed first."""
        statuses: tuple[RunStatus, ...] = ("pending", "running", "success", "error")
        rests: tuple[ThreadStatus, ...] = ("idle", "busy", "interrupted", "error")
        for number in range(12):
            name, made = f"t{number}", clock.now - number % 5
            thread = RunThreadRow(
                thread_id=name,
                status=rests[number % 4],
                assistant=("graph", "other")[number % 2],
                values=None if number % 3 == 0 else METADATA[number % 5],
                interrupts={"task": [{"question": number}]} if number % 2 else {},
                created_at=made,
                updated_at=clock.now + number % 3,
                runs=4,
            )
            stored = [
                RunRow(
                    request=request(f"r{number}-{each}", assistant=thread.assistant, metadata=METADATA[each]),
                    thread_id=name,
                    seq=each + 1,
                    status=statuses[(number + each) % 4],
                    hidden=each == 3 and number % 2 == 0,
                    created_at=made + each,
                )
                for each in range(5)
            ]

            def write(
                found: Found, thread: RunThreadRow = thread, stored: list[RunRow] = stored, number: int = number
            ) -> Changes[None]:
                return Changes(None, thread, tuple(stored), METADATA[number % 5])

            await runs.transact(name, write)
        found = [await runs.get_run(f"r{number}-{each}") for number in range(12) for each in range(5)]
        threads = [await self.thread_of(runs, f"t{number}") for number in range(12)]
        order = ThreadQuery()
        return (
            sorted([run for run in found if run is not None], key=run_position, reverse=True),
            sorted(threads, key=order.position, reverse=True),
        )

    async def test_runs_are_found(self, saver: BaseCheckpointSaver, runs: RunStore, clock: Clock) -> None:
        """By thread, assistant, status and metadata, newest first; those that were rolled back are left out."""
        stored, _ = await self.filled(runs, clock)
        assert len(stored) == 60
        of = itertools.product((None, "t1", "nothing"), (None, "graph"), RUN_STATUSES, FILTERS)
        for thread_id, assistant, status, metadata in of:
            query = RunQuery(thread_id=thread_id, assistant=assistant, status=status, metadata=metadata)
            expected = [run for run in stored if query.matches(run)]
            page = await runs.search_runs(query, limit=7)
            assert list(page.items) == expected[:7], query
            assert (page.next is None) is (len(expected) <= 7)
            assert await runs.count_runs(query) == len(expected)
        assert len((await runs.search_runs(RunQuery())).items) == 54

    async def test_threads_are_found(self, saver: BaseCheckpointSaver, runs: RunStore, clock: Clock) -> None:
        """By id, status, assistant, metadata and values, in either order of either time."""
        _, stored = await self.filled(runs, clock)
        ids = ((), ("t1",), ("t2", "nothing", "t7", "t1"))
        for thread_ids, assistant, status in itertools.product(ids, (None, "other"), THREAD_STATUSES):
            for metadata, values in [*[(each, {}) for each in FILTERS], *[({}, each) for each in FILTERS]]:
                query = ThreadQuery(
                    thread_ids=thread_ids, assistant=assistant, status=status, metadata=metadata, values=values
                )
                expected = [row for row in stored if query.matches(row)]
                page = await runs.search_threads(query, limit=3)
                assert list(page.items) == expected[:3], query
                assert (page.next is None) is (len(expected) <= 3)
                assert await runs.count_threads(query) == len(expected)

    async def test_pages_of_runs(self, runs: RunStore, clock: Clock) -> None:
        """Pages are complete and without duplicates, also while runs are added and rows have equal times."""
        stored, _ = await self.filled(runs, clock)
        for limit, query in itertools.product(
            (1, 4, 54, 60), (RunQuery(), RunQuery(status=("error", "success")), RunQuery(thread_id="t1"))
        ):
            found: list[RunRow] = []
            after: str | None = None
            while True:
                page = await runs.search_runs(query, limit=limit, after=after)
                assert len(page.items) <= limit
                found += page.items
                if page.next is None:
                    break
                after = page.next
                clock.now += 100
                await runs.start("t1", request(f"new-{clock.now}-{limit}"))
            assert found == [run for run in stored if query.matches(run)]
            await self.withdraw(runs)

    async def withdraw(self, runs: RunStore) -> None:
        """Hide the runs that a test has added, and restore their thread's row."""
        for run in (await runs.search_runs(RunQuery(), limit=1000)).items:
            if run.run_id.startswith("new-"):
                await runs.cancel(run.run_id, action="rollback")

    @pytest.mark.parametrize("descending", [True, False])
    @pytest.mark.parametrize("sort_by", ["updated_at", "created_at"])
    async def test_pages_of_threads(self, runs: RunStore, clock: Clock, sort_by: Any, descending: bool) -> None:
        """Pages are complete and without duplicates, also while threads are added."""
        _, stored = await self.filled(runs, clock)
        for limit, status in itertools.product((1, 5, 12), THREAD_STATUSES):
            query = ThreadQuery(status=status, sort_by=sort_by, descending=descending)
            found: list[RunThreadRow] = []
            after: str | None = None
            while True:
                page = await runs.search_threads(query, limit=limit, after=after)
                found += page.items
                if page.next is None:
                    break
                after = page.next
                if len(found) < 4:  # not for ever: in ascending order, they are all found
                    clock.now += 100
                    await runs.start(f"new-{clock.now}-{limit}", request(f"new-{clock.now}-{limit}"))
            expected = sorted(filter(query.matches, stored), key=query.position, reverse=descending)
            assert [row for row in found if not row.thread_id.startswith("new-")] == expected
            assert len({row.thread_id for row in found}) == len(found)

    async def test_limits(self, runs: RunStore, clock: Clock) -> None:
        """A page has at most as many rows as are asked for, also none."""
        await self.filled(runs, clock)
        assert await runs.find_runs(RunQuery(), after=None, limit=0) == []
        for limit in (0, -1):
            assert (await runs.search_runs(RunQuery(), limit=limit)).items == ()
            assert (await runs.search_threads(ThreadQuery(), limit=limit)).items == ()

    async def test_a_malformed_cursor(self, runs: RunStore) -> None:
        """It is a ValueError that says so, also a cursor of another listing."""
        other = write_cursor(ThreadQuery(descending=False).order, RowPosition(1.0, "t"))
        good = write_cursor(ThreadQuery().order, RowPosition(1.0, "t"))
        for cursor in ("", "x", "ä", good[:-1], good + "!", good[1:], other, "bnVsbA"):
            with pytest.raises(ValueError, match="is malformed"):
                await runs.search_runs(RunQuery(), after=cursor)
            with pytest.raises(ValueError, match="is malformed"):
                await runs.search_threads(ThreadQuery(), after=cursor)
        assert (await runs.search_threads(ThreadQuery(), after=good)).items == ()
