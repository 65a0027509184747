"""Savers with one defect each in leases, in writes under a lease, or in commits. The conformance suite must detect
them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio.lowlevel
from msgspec.structs import replace

from checkpoint_savers import InMemorySaver
from checkpoint_savers.conformance import OpenSaver
from checkpoint_savers.errors import StorageError, ThreadBusyError
from checkpoint_savers.memory import _lost
from checkpoint_savers.metadata import text_row
from checkpoint_savers.records import Commit, Lease, Owner, TaskRecord
from tests.savers.defects import caught_by


@caught_by(
    "test_its_own_run_may_acquire_again", "test_a_lost_lease_changes_nothing", "test_a_lease_of_another_run_or_thread"
)
class IgnoresTheEpoch(InMemorySaver):
    def _held(self, lease: Lease) -> Any:
        thread = self._threads.get(lease.thread_id)
        if thread is None or thread.owner != lease.owner:
            raise _lost(lease.thread_id, thread)
        return thread


@caught_by(
    "test_epoch_and_owner_are_both_compared",
    "test_its_lease_is_gone",
    "test_a_lost_lease_changes_nothing",
    "test_a_lease_of_another_run_or_thread",
)
class IgnoresTheOwner(InMemorySaver):
    def _held(self, lease: Lease) -> Any:
        thread = self._threads.get(lease.thread_id)
        if thread is None or thread.epoch != lease.epoch:
            raise _lost(lease.thread_id, thread)
        return thread


@caught_by("test_a_refused_commit_changes_nothing", "test_the_head_is_compared")
class IgnoresTheHead(InMemorySaver):
    async def commit(self, lease: Lease, commit: Commit) -> None:
        thread = self._threads.get(lease.thread_id)
        if thread is not None and commit.rows:
            commit = replace(commit, expected_head=thread.heads.get(commit.rows[-1].ns))
        await super().commit(lease, commit)


@caught_by("test_the_head_is_compared_before_it_moves")
class MovesHeadFromAnywhere(InMemorySaver):
    async def commit(self, lease: Lease, commit: Commit) -> None:
        thread = self._threads.get(lease.thread_id)
        if thread is not None and commit.head is not None:
            commit = replace(commit, expected_head=thread.heads.get(commit.head[0]))
        await super().commit(lease, commit)


@caught_by("test_a_checkpoint_that_is_missing", "test_namespaces_have_heads_of_their_own")
class MovesHeadToAnywhere(InMemorySaver):
    async def commit(self, lease: Lease, commit: Commit) -> None:
        if commit.head is None or commit.head in self._held(lease).rows:
            await super().commit(lease, commit)
        else:
            self._held(lease).heads[commit.head[0]] = commit.head[1]


@caught_by("test_another_saver_sees_what_was_acknowledged", "test_what_is_stored_outlives_the_saver")
class ForgetsWhenClosed(InMemorySaver):
    """Starts empty each time it is opened."""

    @classmethod
    def opener(cls, folder: Path) -> OpenSaver:
        return lambda: nullcontext(cls())


@caught_by("test_a_live_lease_refuses_others", "test_one_of_many_leases_wins", "test_a_run_owns_the_thread")
class AcceptsEveryOwner(InMemorySaver):
    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        try:
            return await super().acquire(thread_id, owner, now=now, expires_at=expires_at)
        except ThreadBusyError:
            self._threads[thread_id].owner = None
            return await super().acquire(thread_id, owner, now=now, expires_at=expires_at)

    async def adelete_thread(self, thread_id: str) -> None:
        self._threads.pop(thread_id, None)


@caught_by("test_a_lease_lapses_at_its_expiry", "test_a_lease_lapses_when_its_process_is_gone")
class NeverExpires(InMemorySaver):
    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        thread = self._threads.get(thread_id)
        if thread is not None and thread.owner not in (None, owner):
            raise ThreadBusyError(thread_id, holder=str(thread.owner), expires_at=thread.expires_at)
        return await super().acquire(thread_id, owner, now=now, expires_at=expires_at)


@caught_by("test_a_live_lease_refuses_others")
class OmitsTheHolder(InMemorySaver):
    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        try:
            return await super().acquire(thread_id, owner, now=now, expires_at=expires_at)
        except ThreadBusyError:
            raise ThreadBusyError(thread_id) from None


@caught_by(
    "test_an_owner_that_was_taken_over", "test_epoch_and_owner_are_both_compared", "test_a_lost_lease_changes_nothing"
)
class ReleasesLeasesOfOthers(InMemorySaver):
    async def release(self, lease: Lease) -> None:
        thread = self._threads.get(lease.thread_id)
        if thread is not None:
            self._release(lease.thread_id, thread)


@caught_by("test_renewing")
class RenewsNothing(InMemorySaver):
    async def renew(self, lease: Lease, *, expires_at: float) -> None:
        self._held(lease)


@caught_by("test_a_lapsed_lease_is_held_until_it_is_taken_over")
class ComparesWithTheClock(InMemorySaver):
    def _held(self, lease: Lease) -> Any:
        thread = super()._held(lease)
        if thread.expires_at <= 4_000_000_000.0:
            raise _lost(lease.thread_id, thread)
        return thread


@caught_by("test_a_lease", "test_newest_is_of_what_was_loaded")
class ReadsNewestOfRootGraphOnly(InMemorySaver):
    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        lease = await super().acquire(thread_id, owner, now=now, expires_at=expires_at)
        newest = max((row.checkpoint_id for row in self._threads[thread_id].rows.values() if not row.ns), default=None)
        return replace(lease, newest=newest)


@caught_by("test_a_thread_without_checkpoints_leaves_no_trace")
class LeavesATrace(InMemorySaver):
    def _release(self, thread_id: str, thread: Any) -> None:
        thread.owner = None


@caught_by("test_a_commit_that_fails_half_way_changes_nothing")
class CommitsRowByRow(InMemorySaver):
    async def commit(self, lease: Lease, commit: Commit) -> None:
        head = commit.expected_head
        for one in commit.rows[:-1]:
            await super().commit(
                lease, replace(commit, rows=(one,), expected_head=head, records=(), clears=(), events=())
            )
            head = one.checkpoint_id
        await super().commit(lease, replace(commit, rows=commit.rows[-1:], expected_head=head))


@caught_by("test_all_namespaces_are_stored", "test_only_other_namespaces", "test_heads_move_together")
class DropsOtherNamespaces(InMemorySaver):
    async def commit(self, lease: Lease, commit: Commit) -> None:
        await super().commit(lease, replace(commit, others=()))


@caught_by(
    "test_a_refused_namespace_changes_nothing",
    "test_a_namespace_that_fails_changes_nothing",
    "test_readers_see_all_namespaces_or_none",
)
class CommitsNamespaceByNamespace(InMemorySaver):
    async def commit(self, lease: Lease, commit: Commit) -> None:
        for each in commit.others:
            head, before = each.head, each.expected_head
            part = Commit(rows=each.rows, expected_head=before, head=head, expires_at=commit.expires_at)
            await super().commit(lease, part)
            time.sleep(0.002)  # so that a reader of another thread runs in between
        await super().commit(lease, replace(commit, others=()))


@caught_by("test_a_refused_namespace_changes_nothing")
class ComparesOneHead(InMemorySaver):
    async def commit(self, lease: Lease, commit: Commit) -> None:
        heads = self._held(lease).heads
        found = [
            replace(each, expected_head=heads.get(each.rows[-1].ns)) if each.rows else each for each in commit.others
        ]
        await super().commit(lease, replace(commit, others=tuple(found)))


@caught_by("test_a_lost_lease_writes_no_namespace")
class ChecksTheLeaseOfOneNamespace(InMemorySaver):
    async def commit(self, lease: Lease, commit: Commit) -> None:
        thread = self._threads[lease.thread_id]
        for each in commit.others:
            for one in each.rows:
                thread.insert(text_row(one, pinned=False))
            thread.heads.update({one.ns: one.checkpoint_id for one in each.rows})
        await super().commit(lease, replace(commit, others=()))


@caught_by("test_what_was_shown_is_not_replaced", "test_a_refused_commit_stores_no_events")
class StoresEventsFirst(InMemorySaver):
    async def commit(self, lease: Lease, commit: Commit) -> None:
        thread = self._held(lease)
        for event in commit.events:
            if event.key not in thread.events:
                thread.add_event(event)
        await super().commit(lease, replace(commit, events=()))


@caught_by("test_a_later_record_replaces_the_earlier", "test_clearing")
class StoresTheFirstRecord(InMemorySaver):
    async def record(self, lease: Lease, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        known = self._held(lease).records
        new = [one for one in records if one.task_id not in known.get((one.ns, one.checkpoint_id), {})]
        await super().record(lease, new, expires_at=expires_at)

    async def commit(self, lease: Lease, commit: Commit) -> None:
        await super().commit(lease, replace(commit, clears=()))


@caught_by("test_records_are_kept_in_plan_order", "test_many_records")
class LosesARecord(InMemorySaver):
    async def record(self, lease: Lease, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        await super().record(lease, records[1:] if len(records) > 1 else records, expires_at=expires_at)

    async def commit(self, lease: Lease, commit: Commit) -> None:
        await super().commit(lease, replace(commit, records=commit.records[:999]))


@caught_by("test_a_commit_in_a_cancelled_scope", "test_each_verb_is_cancelled_at_each_await")
class WaitsInTheMiddle(InMemorySaver):
    """Can be cancelled between the rows and the records of a commit."""

    async def commit(self, lease: Lease, commit: Commit) -> None:
        await super().commit(lease, replace(commit, records=(), clears=(), events=(), releases=False))
        await anyio.lowlevel.checkpoint()
        await super().commit(lease, replace(commit, rows=(), head=None))


@caught_by("test_a_cancelled_acquire_holds_no_lease", "test_an_acquire_cancelled_at_each_await")
class LeaksACancelledLease(InMemorySaver):
    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        lease = await super().acquire(thread_id, owner, now=now, expires_at=expires_at)
        await anyio.lowlevel.checkpoint()
        return lease


@caught_by("test_one_saver_in_twenty_threads", "test_opened_on_one_loop_and_closed_on_another")
class BelongsToOneLoop(InMemorySaver):
    """Works on one event loop only, as an asyncio lock or connection does."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._loop: object = None

    async def commit(self, lease: Lease, commit: Commit) -> None:
        try:
            loop: object = asyncio.get_running_loop()
        except RuntimeError:
            loop = anyio.lowlevel.current_token()
        self._loop = self._loop or loop
        if loop is not self._loop:
            raise StorageError("this saver is attached to a different loop")
        await super().commit(lease, commit)


@caught_by("test_a_failure_is_its_callers_alone")
class FailsTogether(InMemorySaver):
    """Fails all concurrent commits when one of them fails."""

    _failed = 0

    async def commit(self, lease: Lease, commit: Commit) -> None:
        if self._failed:
            self._failed -= 1
            raise StorageError("another's commit has failed")
        try:
            await super().commit(lease, commit)
        except Exception:
            self._failed = 1
            raise


@caught_by("test_times_are_exact")
class CountsMilliseconds(InMemorySaver):
    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        return await super().acquire(thread_id, owner, now=now, expires_at=round(expires_at, 3))


@caught_by("test_an_owner_of_any_text")
class IdentifiesOwnersByRunId(InMemorySaver):
    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        thread = self._threads.get(thread_id)
        if thread is not None and thread.owner is not None and thread.owner.run_id == owner.run_id:
            thread.owner = owner
        return await super().acquire(thread_id, owner, now=now, expires_at=expires_at)


@caught_by("test_one_of_many_leases_wins")
class ChecksThenAcquires(InMemorySaver):
    """Lets two callers both find the thread free before either acquires it."""

    def __init__(self) -> None:
        super().__init__()
        self._found_free = 0
        self._both_found_free = threading.Event()
        self._acquiring = threading.Lock()

    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        with self._acquiring:
            thread = self._threads.get(thread_id)
            if thread is not None and thread.owner not in (None, owner):
                raise ThreadBusyError(thread_id, holder=str(thread.owner), expires_at=thread.expires_at)
            self._found_free += 1
            if self._found_free == 2:
                self._both_found_free.set()
        self._both_found_free.wait(10)
        with self._acquiring:
            if thread_id in self._threads:
                self._threads[thread_id].owner = None
            return await super().acquire(thread_id, owner, now=now, expires_at=expires_at)
