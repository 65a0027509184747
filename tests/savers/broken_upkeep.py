"""Savers with one defect each in exporting, importing, pruning or deleting. The conformance suite must detect them."""

from __future__ import annotations

import time
from typing import Any

from msgspec.structs import replace

from checkpoint_savers import InMemorySaver
from checkpoint_savers.errors import StorageError
from checkpoint_savers.memory import _StoredThread
from checkpoint_savers.metadata import text_row
from checkpoint_savers.records import Commit, Header, Lease, Rewrite, ThreadDump
from tests.savers.defects import caught_by


@caught_by("test_all_of_a_thread_goes", "test_deleting")
class DeletesNoEvents(InMemorySaver):
    """Keeps the events of a deleted thread, and returns them when the thread exists again."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._left: dict[str, Any] = {}

    async def adelete_thread(self, thread_id: str) -> None:
        thread = self._threads.get(thread_id)
        await super().adelete_thread(thread_id)
        if thread is not None:
            self._left[thread_id] = (
                list(thread.events.values()),
                [r for of in thread.records.values() for r in of.values()],
            )

    async def commit(self, lease: Lease, commit: Commit) -> None:
        events, records = self._left.pop(lease.thread_id, ((), ()))
        for event in events:
            self._held(lease).add_event(event)
        self._held(lease).put_records(records)
        await super().commit(lease, commit)


@caught_by("test_a_dump_is_loaded_byte_for_byte", "test_between_two_savers", "test_another_saver_sees_what_was_loaded")
class LoadsNoEvents(InMemorySaver):
    async def load(self, lease: Lease, dump: ThreadDump) -> None:
        await super().load(lease, replace(dump, events=()))


@caught_by("test_between_two_savers")
class LoadsNoPins(InMemorySaver):
    async def load(self, lease: Lease, dump: ThreadDump) -> None:
        await super().load(lease, replace(dump, rows=tuple(replace(one, pinned=False) for one in dump.rows)))


@caught_by("test_what_cannot_be_loaded")
class LoadsUntilItFails(InMemorySaver):
    async def load(self, lease: Lease, dump: ThreadDump) -> None:
        try:
            await super().load(lease, dump)
        except StorageError:
            thread = self._held(lease)
            for event in dump.events:
                if event.key not in thread.events:
                    thread.add_event(event)
            thread.put_records(dump.records)
            raise


@caught_by("test_a_value_that_cannot_be_loaded")
class LoadsRowByRow(InMemorySaver):
    async def load(self, lease: Lease, dump: ThreadDump) -> None:
        thread = self._held(lease)
        if thread.rows:
            raise StorageError("it holds something already")
        for one in dump.rows:
            thread.insert(text_row(one, pinned=one.pinned))
        thread.heads = dict(dump.heads)
        thread.put_records(dump.records)
        for event in dump.events:
            thread.add_event(event)


@caught_by("test_a_thread_that_holds_something")
class LoadsOverWhatIsThere(InMemorySaver):
    async def load(self, lease: Lease, dump: ThreadDump) -> None:
        thread = self._held(lease)
        for table in (thread.rows, thread.chains, thread.order, thread.records, thread.events, thread.event_order):
            table.clear()
        await super().load(lease, dump)


@caught_by("test_a_dump_may_replace_what_a_thread_holds")
class ReplacesNothing(InMemorySaver):
    async def load(self, lease: Lease, dump: ThreadDump) -> None:
        await super().load(lease, replace(dump, replaces=False))


@caught_by("test_a_dump_may_replace_what_a_thread_holds")
class ReplacesBeforeItChecks(InMemorySaver):
    async def load(self, lease: Lease, dump: ThreadDump) -> None:
        if dump.replaces:
            await super().load(lease, ThreadDump(heads={}, rows=(), records=(), events=(), replaces=True))
        await super().load(lease, dump)


@caught_by("test_newest_stays_if_a_thread_is_replaced")
class ReplacesTheNewest(InMemorySaver):
    async def load(self, lease: Lease, dump: ThreadDump) -> None:
        await super().load(lease, dump)
        if dump.replaces:
            self._held(lease).newest = max(row.checkpoint_id for row in dump.rows)


@caught_by("test_only_the_holder_loads", "test_a_lost_lease_changes_nothing")
class LoadsWithoutALease(InMemorySaver):
    async def load(self, lease: Lease, dump: ThreadDump) -> None:
        thread = self._threads[lease.thread_id]
        if thread.owner is not None:
            lease = replace(lease, epoch=thread.epoch, owner=thread.owner)
        await super().load(lease, dump)


@caught_by("test_newest_is_of_what_was_loaded")
class LoadsNoNewest(InMemorySaver):
    async def load(self, lease: Lease, dump: ThreadDump) -> None:
        await super().load(lease, dump)
        self._held(lease).newest = dump.heads.get("")


@caught_by("test_a_dump_is_all_that_is_stored", "test_between_two_savers")
class DumpsTheRootGraphOnly(InMemorySaver):
    async def dump(self, thread_id: str) -> ThreadDump | None:
        dump = await super().dump(thread_id)
        return dump and replace(dump, rows=tuple(one for one in dump.rows if not one.ns))


@caught_by("test_a_dump_is_all_that_is_stored", "test_an_id_of_any_text", "test_a_dump_comes_in_its_order")
class DumpsByNamespace(InMemorySaver):
    async def dump(self, thread_id: str) -> ThreadDump | None:
        dump = await super().dump(thread_id)
        return dump and replace(
            dump,
            rows=tuple(sorted(dump.rows, key=lambda one: (one.ns, one.checkpoint_id))),
            records=tuple(sorted(dump.records, key=lambda one: (one.ns, one.checkpoint_id, one.task_id))),
        )


@caught_by("test_a_dump_is_of_one_moment")
class DumpsInTwoParts(InMemorySaver):
    async def dump(self, thread_id: str) -> ThreadDump | None:
        first = await super().dump(thread_id)
        second = first
        for _ in range(50_000):  # until a commit happens in between
            if second != first:
                break
            time.sleep(0.0002)
            second = await super().dump(thread_id)
        return first and second and replace(second, rows=first.rows)


@caught_by("test_a_dump_of_nothing")
class DumpsLeases(InMemorySaver):
    async def dump(self, thread_id: str) -> ThreadDump | None:
        dump = await super().dump(thread_id)
        if dump is None and thread_id in self._threads:
            return ThreadDump(heads={}, rows=(), records=(), events=())
        return dump


@caught_by("test_what_is_refused")
class RewritesUntilItFails(InMemorySaver):
    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        try:
            await super().rewrite(lease, change)
        except StorageError:
            await super().rewrite(lease, Rewrite(events=change.events))
            raise


@caught_by("test_what_is_refused")
class RewritesWhatIsThere(InMemorySaver):
    """Ignores rows and pins that are not stored, where it should refuse them."""

    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        there = self._held(lease).rows.keys() - set(change.gone)
        rows = tuple(one for one in change.rows if (one.ns, one.checkpoint_id) in there)
        pins = {key: pin for key, pin in change.pins.items() if key in there}
        await super().rewrite(lease, replace(change, rows=rows, pins=pins))


@caught_by("test_what_is_refused")
class LeavesNoHead(InMemorySaver):
    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        heads = self._held(lease).heads
        gone = {ns: None for ns, head in heads.items() if (ns, head) in change.gone and ns not in change.heads}
        rest = {(ns, id) for ns, id in self._held(lease).rows if ns in gone}
        await super().rewrite(lease, replace(change, gone=(*change.gone, *rest), heads={**change.heads, **gone}))


@caught_by("test_checkpoints_go")
class LeavesRecords(InMemorySaver):
    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        thread = self._held(lease)
        records = [one for key in change.gone for one in thread.records_of(*key)]
        await super().rewrite(lease, change)
        thread.put_records(records)


@caught_by("test_checkpoints_go", "test_events_go")
class TakesEventsAlong(InMemorySaver):
    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        await super().rewrite(lease, replace(change, events=(*change.events, *(id for _, id in change.gone))))


@caught_by("test_what_stays_reads_as_before", "test_rows_stand_in_the_place_of_others")
class ReplacesRowsWithTheirRecords(InMemorySaver):
    """Deletes a row before inserting its replacement, as a database may, so that dependent records are deleted, too."""

    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        await super().rewrite(lease, change)
        for one in change.rows:
            self._held(lease).records.pop((one.ns, one.checkpoint_id), None)


@caught_by("test_checkpoints_go")
class ComparesIdsAlone(InMemorySaver):
    """Deletes a checkpoint id in all namespaces instead of one."""

    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        ids = {id for _, id in change.gone}
        gone = tuple(key for key in self._held(lease).rows if key[1] in ids)
        await super().rewrite(lease, replace(change, gone=gone))


@caught_by("test_what_is_deleted_was_the_newest")
class ForgetsTheNewest(InMemorySaver):
    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        await super().rewrite(lease, change)
        thread = self._held(lease)
        thread.newest = max((id for _, id in thread.rows), default=None)


@caught_by("test_rows_stand_in_the_place_of_others")
class LeavesRowsInTheirChain(InMemorySaver):
    """Indexes a rewritten row under its old base."""

    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        thread = self._held(lease)
        chains = {key: list(ids) for key, ids in thread.chains.items()}
        await super().rewrite(lease, change)
        if not change.gone:
            thread.chains = chains


@caught_by("test_rows_stand_in_the_place_of_others", "test_pins")
class RowsKeepTheirPins(InMemorySaver):
    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        stored = self._held(lease).rows
        rows = [
            replace(one, pinned=stored[one.ns, one.checkpoint_id].pinned)
            if (one.ns, one.checkpoint_id) in stored
            else one
            for one in change.rows
        ]
        await super().rewrite(lease, replace(change, rows=tuple(rows)))


@caught_by("test_pins")
class CommitsPins(InMemorySaver):
    async def commit(self, lease: Lease, commit: Commit) -> None:
        await super().commit(lease, commit)
        pins = {(one.ns, one.checkpoint_id): True for one in commit.rows if one.pinned}
        if pins and not commit.releases:
            await self.rewrite(lease, Rewrite(pins=pins))


@caught_by("test_rows_stand_in_the_place_of_others")
class KnowsNoSizes(InMemorySaver):
    async def scan(self, thread_id: str | None, ns: str | None, **options: Any) -> tuple[Header, ...]:
        return tuple(replace(one, size=0) for one in await super().scan(thread_id, ns, **options))


@caught_by("test_only_the_holder_rewrites", "test_a_lost_lease_changes_nothing")
class RewritesWithoutALease(InMemorySaver):
    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        thread = self._threads[lease.thread_id]
        if thread.owner is not None:
            lease = replace(lease, epoch=thread.epoch, owner=thread.owner)
        await super().rewrite(lease, change)


@caught_by("test_only_the_holder_rewrites")
class RewritesNothingWithoutALease(InMemorySaver):
    """Skips the lease check if there is nothing to change."""

    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        if change.gone or change.rows or change.heads or change.pins or change.events:
            await super().rewrite(lease, change)


@caught_by("test_readers_of_a_rewrite")
class RewritesInTwoParts(InMemorySaver):
    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        await super().rewrite(lease, replace(change, pins={}, heads={}))
        time.sleep(0.0005)
        await super().rewrite(lease, replace(change, gone=(), rows=(), events=()))


@caught_by("test_nothing_is_left", "test_it_can_begin_anew")
class ErasesNoEvents(InMemorySaver):
    async def erase(self, lease: Lease) -> None:
        events = self._held(lease).events
        await super().erase(lease)
        left = self._threads[lease.thread_id] = _StoredThread()
        for event in events.values():
            left.add_event(event)


@caught_by("test_it_can_begin_anew", "test_its_lease_is_gone")
class ErasesAllButTheLease(InMemorySaver):
    async def erase(self, lease: Lease) -> None:
        thread = self._held(lease)
        owner, epoch, newest = thread.owner, thread.epoch, thread.newest
        await super().erase(lease)
        left = await super().acquire(lease.thread_id, lease.owner, now=0.0, expires_at=thread.expires_at)
        made = self._held(left)
        made.owner, made.epoch, made.newest = owner, epoch, newest


@caught_by("test_only_the_holder_erases", "test_a_lost_lease_changes_nothing")
class ErasesWithoutALease(InMemorySaver):
    async def erase(self, lease: Lease) -> None:
        if self._threads.pop(lease.thread_id, None) is None:
            self._held(lease)
