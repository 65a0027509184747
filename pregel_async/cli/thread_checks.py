"""Print the checks of threads, grouped by what does not fit, and migrations: `threads check` and `threads migrate`."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from checkpoint_savers import SqliteStore
from checkpoint_savers.errors import SaverClosedError, StoredTypeChangedError, UnknownTypeError
from checkpoint_savers.stores.abc import BaseStore

from .._api.checking import of_error
from ..types import Mismatch, ThreadCheck, ThreadMigration
from .database import database_exists
from .formatting import escape, format_columns, plural, print_json

MOST_ITEMS = 10_000
"""How many items of a store are reported, at most."""

EXAMPLES = 2
"""How many threads are named in a row of the table."""

RowKey = tuple[str, str, str, str]
"""Kind, reason, advice, and what is blocked: threads with an equal key are in one row."""


class _Row(msgspec.Struct):
    """Threads that do not fit for the same reason. Threads that load nevertheless are only counted."""

    mismatch: Mismatch | None
    count: int = 0
    thread_ids: list[str] = []


class Rows:
    """Threads, or items of a store, grouped by what does not fit.

    Args:
        noun: what is counted: "threads" or "items".
    """

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._rows: dict[RowKey, _Row] = {}

    def add(self, mismatch: Mismatch, which: str) -> None:
        """Add a reason of a thread or of an item to the rows."""
        self._add(_key_of(mismatch), mismatch, which)

    def add_damage(self, message: str, which: str) -> None:
        """Add a thread or an item that cannot be read, with the message of the error."""
        self._add(("damage", "it cannot be read", message, "all"), None, which)

    def add_check(self, check: ThreadCheck) -> None:
        """Add the reasons of a thread to the rows, each once."""
        if check.damage:
            self.add_damage(check.damage, check.thread_id)
        for each in {_key_of(each): each for each in check.mismatches}.values():
            self.add(each, check.thread_id)

    def _add(self, key: RowKey, mismatch: Mismatch | None, which: str) -> None:
        row = self._rows.setdefault(key, _Row(mismatch))
        row.count += 1
        if key[3] != "nothing":
            row.thread_ids.append(which)

    def as_json(self) -> list[dict[str, Any]]:
        """Return the rows with the ids of all threads that do not load."""
        return [_fields(key, row) for key, row in self._sorted()]

    def print(self) -> None:
        """Print the rows as a table, if there are any."""
        cells = [_cells(key, row) for key, row in self._sorted()]
        if cells:
            print("\n".join(format_columns((self._noun, "reason", "which", "advice"), cells)))

    def _sorted(self) -> list[tuple[RowKey, _Row]]:
        return sorted(self._rows.items(), key=lambda each: (each[0][3] == "nothing", -each[1].count, each[0]))


def _key_of(mismatch: Mismatch) -> RowKey:
    return mismatch.kind, mismatch.reason, mismatch.advice, mismatch.blocks


class Report:
    """What was found in all threads, and in the graph's store.

    Attributes:
        threads: the number of threads.
        loaded: the number of those that load.
        migrated: the number of those that load and that a declared rule changes.
        items: the number of items of the store that cannot be read.
    """

    def __init__(self) -> None:
        self.threads = self.loaded = self.migrated = self.items = 0
        self._rows = Rows("threads")
        self._of_store = Rows("items")

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
            self._rows.add_check(check)

    async def read_store(self, store: Any) -> None:
        """Check the items of a store.

        Args:
            store: the graph's store, open or not; None for none. One of another package is not checked, and a missing
                SQLite file is not created.
        """
        if not isinstance(store, BaseStore) or (isinstance(store, SqliteStore) and not database_exists(store.path)):
            return
        try:
            async with store:
                errors = await store.acheck(limit=MOST_ITEMS)
        except SaverClosedError:  # the module has opened it
            errors = await store.acheck(limit=MOST_ITEMS)
        for error in errors:
            self.items += 1
            if isinstance(error, (StoredTypeChangedError, UnknownTypeError)):
                self._of_store.add(of_error(error, ""), error.where)
            else:
                self._of_store.add_damage(str(error), "")

    def print(self, *, as_json: bool) -> None:
        """Print the number of threads, and a row for each reason: what blocks threads first, the most frequent first.

        Args:
            as_json: print a JSON document, which names all threads that do not load.
        """
        if as_json:
            print_json(
                {
                    "threads": self.threads,
                    "load": self.loaded,
                    "migrated": self.migrated,
                    "do_not_load": self.refused,
                    "mismatches": self._rows.as_json(),
                    "store": {"do_not_load": self.items, "mismatches": self._of_store.as_json()},
                },
                indent=2,
            )
            return
        by = f", {self.migrated} of them by a migration" if self.migrated else ""
        not_loaded = f", {self.refused} do not" if self.refused else ""
        print(f"{plural(self.threads, 'thread')}: {self.loaded} load{by}{not_loaded}")
        self._rows.print()
        if self.items:
            print(f"store: {plural(self.items, 'item')} cannot be read")
            self._of_store.print()


class MigrationReport:
    """What was done with all threads.

    Args:
        dry_run: nothing was stored.
    """

    def __init__(self, *, dry_run: bool) -> None:
        self._dry_run = dry_run
        self._ids: dict[str, list[str]] = {"migrated": [], "unchanged": [], "refused": [], "busy": []}
        self._reasons = Rows("threads")

    @property
    def is_incomplete(self) -> bool:
        """True if threads were refused, or were busy."""
        return bool(self._ids["refused"] or self._ids["busy"])

    async def read(self, migrations: AsyncIterator[ThreadMigration]) -> None:
        """Take all migrations.

        Args:
            migrations: what `Graph.amigrate_threads` returned.
        """
        async for each in migrations:
            self._ids[each.status].append(each.thread_id)
            if each.status == "refused":
                self._reasons.add_check(each.check)

    def print(self, *, as_json: bool) -> None:
        """Print how many threads are migrated, and why others are not.

        Args:
            as_json: print a JSON document, with the ids of all threads but the unchanged ones.
        """
        found = {status: len(ids) for status, ids in self._ids.items()}
        if as_json:
            ids = {f"{status}_ids": ids for status, ids in self._ids.items() if status != "unchanged"}
            counts = {"dry_run": self._dry_run, "threads": sum(found.values()), **found}
            print_json({**counts, **ids, "mismatches": self._reasons.as_json()}, indent=2)
            return
        done = f"{found['migrated']} {'would be ' if self._dry_run else ''}migrated, {found['unchanged']} unchanged"
        refused = f", {found['refused']} not loaded" if found["refused"] else ""
        busy = f", {found['busy']} busy" if found["busy"] else ""
        print(f"{plural(sum(found.values()), 'thread')}: {done}{refused}{busy}")
        self._reasons.print()
        if found["busy"]:
            print(f"passed over, as a run owns them: {', '.join(map(escape, self._ids['busy']))}", file=sys.stderr)


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
