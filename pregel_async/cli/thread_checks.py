"""Group the checks of threads by what does not fit, and print them: `threads check`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from ..types import Mismatch, ThreadCheck
from .formatting import escape, format_columns, plural, print_json

EXAMPLES = 2
"""How many threads are named in a row of the table."""

RowKey = tuple[str, str, str, str]
"""Kind, reason, advice, and what is blocked: threads with an equal key are in one row."""


class _Row(msgspec.Struct):
    """Threads that do not fit for the same reason. Threads that load nevertheless are only counted."""

    mismatch: Mismatch | None
    count: int = 0
    thread_ids: list[str] = []


class Report:
    """What was found in all threads.

    Attributes:
        threads: the number of threads.
        loaded: the number of those that load.
        migrated: the number of those that load and that a declared rule changes.
    """

    def __init__(self) -> None:
        self.threads = self.loaded = self.migrated = 0
        self._rows: dict[RowKey, _Row] = {}

    @property
    def refused(self) -> int:
        """The number of threads that do not load."""
        return self.threads - self.loaded

    async def read(self, checks: AsyncIterator[ThreadCheck]) -> None:
        """Take all checks.

        Args:
            checks: what `Graph.acheck_threads` returned.
        """
        async for check in checks:
            self.threads += 1
            self.loaded += check.loads
            self.migrated += check.loads and check.migrated
            if check.damage:
                self._add(("damage", "it cannot be read", check.damage, "all"), None, check.thread_id)
            keys = {(each.kind, each.reason, each.advice, each.blocks): each for each in check.mismatches}
            for key, each in keys.items():
                self._add(key, each, check.thread_id)

    def _add(self, key: RowKey, mismatch: Mismatch | None, thread_id: str) -> None:
        row = self._rows.setdefault(key, _Row(mismatch))
        row.count += 1
        if key[3] != "nothing":
            row.thread_ids.append(thread_id)

    def print(self, *, as_json: bool) -> None:
        """Print the number of threads, and a row for each reason: what blocks threads first, the most frequent first.

        Args:
            as_json: print a JSON document, which names all threads that do not load.
        """
        rows = sorted(self._rows.items(), key=lambda each: (each[0][3] == "nothing", -each[1].count, each[0]))
        if as_json:
            print_json(
                {
                    "threads": self.threads,
                    "load": self.loaded,
                    "migrated": self.migrated,
                    "do_not_load": self.refused,
                    "mismatches": [_fields(key, row) for key, row in rows],
                },
                indent=2,
            )
            return
        by = f", {self.migrated} of them by a migration" if self.migrated else ""
        not_loaded = f", {self.refused} do not" if self.refused else ""
        print(f"{plural(self.threads, 'thread')}: {self.loaded} load{by}{not_loaded}")
        if rows:
            print("\n".join(format_columns(("threads", "reason", "which", "advice"), [_cells(*each) for each in rows])))


def _fields(key: RowKey, row: _Row) -> dict[str, Any]:
    kind, reason, advice, blocks = key
    return {
        "kind": kind,
        "name": None if row.mismatch is None else row.mismatch.name,
        "reason": reason,
        "advice": advice,
        "blocks": blocks,
        "count": row.count,
        "thread_ids": row.thread_ids,
    }


def _cells(key: RowKey, row: _Row) -> tuple[str, str, str, str]:
    _, reason, advice, blocks = key
    which = ", ".join(row.thread_ids[:EXAMPLES]) + (", ..." if row.count > EXAMPLES else "")
    return str(row.count), reason, "they load" if blocks == "nothing" else which, escape(advice)
