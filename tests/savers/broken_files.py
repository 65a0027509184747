"""Savers that store threads in files, each with one defect that shows when a process is killed. The conformance
suite must detect them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from msgspec.structs import replace

from checkpoint_savers import InMemorySaver
from checkpoint_savers.conformance import Cell, OpenSaver
from checkpoint_savers.errors import CorruptCheckpointError
from checkpoint_savers.records import Commit, Header, Lease, Owner, Rewrite, TaskRecord, ThreadDump
from tests.savers.defects import caught_by


class Filed(InMemorySaver):
    """Loads all threads from the file when opened, and writes all threads to the file after every change."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    @classmethod
    def opener(cls, folder: Path) -> OpenSaver:
        return partial(cls, folder)

    async def __aenter__(self) -> Self:
        self.get()
        return self

    def get(self) -> None:
        path = self.folder / "threads"
        if path.exists():
            self._threads = pickle.loads(path.read_bytes())

    def put(self) -> None:
        new = self.folder / "new"
        with new.open("wb") as file:
            file.write(pickle.dumps(self._threads))
        new.replace(self.folder / "threads")

    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        lease = await super().acquire(thread_id, owner, now=now, expires_at=expires_at)
        self.put()
        return lease

    async def commit(self, lease: Lease, commit: Commit) -> None:
        await super().commit(lease, commit)
        self.put()

    async def record(self, lease: Lease, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        await super().record(lease, records, expires_at=expires_at)
        self.put()

    async def release(self, lease: Lease) -> None:
        await super().release(lease)
        self.put()

    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        await super().rewrite(lease, change)
        self.put()

    async def load(self, lease: Lease, dump: ThreadDump) -> None:
        await super().load(lease, dump)
        self.put()

    async def erase(self, lease: Lease) -> None:
        await super().erase(lease)
        self.put()

    async def adelete_thread(self, thread_id: str) -> None:
        await super().adelete_thread(thread_id)
        self.put()


def linger(folder: Path) -> None:
    """Sleep long enough that a kill at a random moment often falls into this one."""
    for _ in range(300):
        folder.exists()


@caught_by("test_killed_in_the_midst")
class WritesInPlace(Filed):
    """Leaves a moment at which the file is empty."""

    def put(self) -> None:
        with (self.folder / "threads").open("wb") as file:
            linger(self.folder)
            file.write(pickle.dumps(self._threads))


@caught_by("test_killed_in_the_midst")
class WritesTwoFiles(Filed):
    """Leaves a moment at which one file is new and the other is old."""

    def get(self) -> None:
        super().get()
        path = self.folder / "events"
        for name, events in pickle.loads(path.read_bytes()).items() if path.exists() else ():
            if name in self._threads:
                self._threads[name].events, self._threads[name].event_order = events

    def put(self) -> None:
        events: dict[str, Any] = {name: (one.events, one.event_order) for name, one in self._threads.items()}
        new = self.folder / "new events"
        new.write_bytes(pickle.dumps(events))
        new.replace(self.folder / "events")
        linger(self.folder)
        for one in self._threads.values():
            one.events, one.event_order = {}, []
        super().put()
        for name, (kept, order) in events.items():
            self._threads[name].events, self._threads[name].event_order = kept, order


@caught_by("test_killed_in_the_midst")
class WritesWhenItIsClosed(Filed):
    """Loses acknowledged writes with the process, as only closing writes the file."""

    def put(self) -> None:
        pass

    async def __aexit__(self, *error: object) -> None:
        super().put()


@caught_by("test_killed_in_the_midst")
class RewritesStepByStep(Filed):
    """Stores each change of a rewrite on its own, instead of all in one transaction."""

    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        await super().rewrite(lease, Rewrite(gone=change.gone, heads=change.heads))
        for row in change.rows:
            await super().rewrite(lease, Rewrite(rows=(row,)))
        await super().rewrite(lease, Rewrite(events=change.events))
        await super().rewrite(lease, Rewrite(pins=change.pins))


@caught_by("test_no_byte_is_left")
class KeepsTheLastFile(Filed):
    """Stores the state before the last change."""

    def put(self) -> None:
        path = self.folder / "threads"
        if path.exists():
            path.replace(self.folder / "threads.bak")
        super().put()


class Damageable(Filed):
    """Gives the conformance suite access to the stored values, to damage them."""

    def cells(self) -> list[Cell]:
        found: list[Cell] = []
        for thread in self._threads.values():
            for key in thread.rows:
                found += [_cell(thread.rows, key, name) for name in ("metadata", "frame")]
        return found


def _cell(rows: dict[Any, Any], key: object, name: str) -> Cell:
    def put(value: object) -> None:
        if type(value) is not type(getattr(rows[key], name)):
            raise TypeError(name)
        rows[key] = replace(rows[key], **{name: value})

    return Cell(name, lambda: getattr(rows[key], name), put)


@caught_by("test_whatever_a_cell_holds")
class TrustsItsMetadata(Damageable):
    async def scan(self, thread_id: str | None, ns: str | None, **options: Any) -> tuple[Header, ...]:
        try:
            return await super().scan(thread_id, ns, **options)
        except CorruptCheckpointError as error:
            raise KeyError("metadata") from error
