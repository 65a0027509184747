"""Savers with one defect each in reading, listing or comparing. The conformance suite must detect them."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from checkpoint_savers import InMemorySaver
from checkpoint_savers.errors import CorruptCheckpointError, ThreadNotFoundError
from checkpoint_savers.records import (
    Chain,
    CheckpointId,
    Commit,
    EventKey,
    EventRow,
    Header,
    Lease,
    Owner,
    ThreadDump,
    ThreadHeader,
)
from checkpoint_savers.saver_port import PAGE
from tests.savers.defects import caught_by


@caught_by("test_records_are_kept_in_plan_order", "test_records_come_in_their_order")
class RecordsByTask(InMemorySaver):
    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        chain = await super().read(thread_id, ns, checkpoint_id)
        return chain and replace(chain, records=tuple(sorted(chain.records, key=lambda one: one.task_id)))


@caught_by("test_records_are_the_asked_checkpoints", "test_records_are_the_asked_rows")
class RecordsOfTheWholeChain(InMemorySaver):
    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        chain = await super().read(thread_id, ns, checkpoint_id)
        if chain is None:
            return None
        thread = self._threads[thread_id]
        found = [record for row in chain.rows for record in thread.records_of(ns, row.checkpoint_id)]
        return replace(chain, records=tuple(found))


@caught_by("test_a_chain_starts_at_its_base", "test_every_chain_is_whole")
class ReadsEverything(InMemorySaver):
    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        chain = await super().read(thread_id, ns, checkpoint_id)
        if chain is None:
            return None
        stored = self._threads[thread_id].rows
        ids = sorted(id for space, id in stored if space == ns and id <= chain.rows[-1].checkpoint_id)
        return replace(chain, rows=tuple(stored[ns, id].row() for id in ids))


@caught_by("test_every_chain_is_whole", "test_namespaces_have_chains_of_their_own")
class IgnoresSnapshotRows(InMemorySaver):
    """Reads the rows since the nearest base, as a saver with a single level of bases would."""

    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        chain = await super().read(thread_id, ns, checkpoint_id)
        if chain is None:
            return None
        base = chain.rows[-1].base_id
        return replace(chain, rows=tuple(one for one in chain.rows if base in (one.base_id, one.checkpoint_id)))


@caught_by("test_every_chain_is_whole")
class LeavesOutRowsOfOtherBranches(InMemorySaver):
    """Returns only the snapshot rows of a keyframe, although the deltas of a branch may depend on the rows that are
    left out."""

    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        chain = await super().read(thread_id, ns, checkpoint_id)
        if chain is None:
            return None
        base = chain.rows[-1].base_id
        rows = [one for one in chain.rows if b"milestone" in one.frame or base in (one.base_id, one.checkpoint_id)]
        return replace(chain, rows=tuple(rows))


@caught_by("test_what_leads_to_no_full_row", "test_a_chain_through_what_was_deleted")
class ReturnsAPartOfAChain(InMemorySaver):
    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        try:
            return await super().read(thread_id, ns, checkpoint_id)
        except CorruptCheckpointError:
            thread = self._threads[thread_id]
            asked = thread.rows[ns, checkpoint_id or thread.heads[ns]]
            return Chain(rows=tuple(one.row() for one in thread.rows_up_to(asked)), records=(), head=thread.heads[ns])


@caught_by("test_segments_of_milestones")
class SegmentsWithTheirSnapshotRow(InMemorySaver):
    async def segment(self, thread_id: str, ns: str, base_id: CheckpointId) -> Any:
        rows, records = await super().segment(thread_id, ns, base_id)
        base = self._threads[thread_id].rows.get((ns, base_id)) if rows else None
        if base is not None and base.base_id != base_id:
            rows = (base.row(), *rows)
        return rows, records


@caught_by("test_segments", "test_records_come_in_their_order")
class SegmentsRecordsByTask(InMemorySaver):
    async def segment(self, thread_id: str, ns: str, base_id: CheckpointId) -> Any:
        rows, records = await super().segment(thread_id, ns, base_id)
        return rows, tuple(sorted(records, key=lambda one: (one.task_id, one.checkpoint_id)))


@caught_by("test_newest_first", "test_headers_come_newest_first")
class ListsByThread(InMemorySaver):
    async def scan(self, thread_id: str | None, ns: str | None, **options: Any) -> tuple[Header, ...]:
        found = await super().scan(thread_id, ns, **options)
        return tuple(sorted(found, key=lambda one: one.thread_id))


@caught_by("test_a_filter_that_few_pass")
class FiltersAfterTheLimit(InMemorySaver):
    async def scan(
        self,
        thread_id: str | None,
        ns: str | None,
        *,
        before: CheckpointId | None = None,
        limit: int = PAGE,
        filter: Mapping[str, Any] | None = None,
    ) -> tuple[Header, ...]:
        found = await super().scan(thread_id, ns, before=before, limit=limit)
        return tuple(one for one in found if all(one.metadata.get(key) == filter[key] for key in filter or {}))


@caught_by("test_a_filter_compares_values")
class TrueIsOne(InMemorySaver):
    async def scan(self, thread_id: str | None, ns: str | None, **options: Any) -> tuple[Header, ...]:
        filter = options.pop("filter", None) or {}
        found = await super().scan(thread_id, ns, **options)
        return tuple(
            one for one in found if all(key in one.metadata and one.metadata[key] == filter[key] for key in filter)
        )


@caught_by("test_a_filter_compares_values")
class TrueIsOneInside(InMemorySaver):
    """Distinguishes a bool from a number at the top level, but not in lists and dicts."""

    async def scan(self, thread_id: str | None, ns: str | None, **options: Any) -> tuple[Header, ...]:
        filter = options.pop("filter", None) or {}
        found = await super().scan(thread_id, ns, **options)
        return tuple(one for one in found if all(_same(one.metadata, key, filter[key]) for key in filter))


def _same(metadata: dict[str, Any], key: str, wanted: Any) -> bool:
    found = metadata.get(key)
    return key in metadata and found == wanted and isinstance(found, bool) is isinstance(wanted, bool)


@caught_by("test_a_filter_compares_values", "test_hostile_filters")
class ComparesTexts(InMemorySaver):
    """Compares the filter's text, as a query that is built from the text would, and treats keys as paths."""

    async def scan(self, thread_id: str | None, ns: str | None, **options: Any) -> tuple[Header, ...]:
        filter = options.pop("filter", None) or {}
        found = await super().scan(thread_id, ns, **options)
        return tuple(one for one in found if all(str(_at(one.metadata, key)) == str(filter[key]) for key in filter))


def _at(metadata: Any, path: str) -> Any:
    for key in path.split("."):
        metadata = metadata.get(key) if isinstance(metadata, dict) else None
    return metadata


@caught_by("test_nothing_that_is_passed_or_returned_is_shared", "test_what_is_returned_is_the_readers")
class SharesWhatItReturns(InMemorySaver):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._metadata: dict[tuple[str, str], dict[str, Any]] = {}

    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        chain = await super().read(thread_id, ns, checkpoint_id)
        if chain is None:
            return None
        rows = [
            replace(one, metadata=self._metadata.setdefault((ns, one.checkpoint_id), one.metadata))
            for one in chain.rows
        ]
        return replace(chain, rows=tuple(rows))


@caught_by("test_nothing_that_is_passed_or_returned_is_shared", "test_what_was_given_may_be_changed_afterwards")
class StoresArgumentsByReference(InMemorySaver):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._given: dict[tuple[str, str], dict[str, Any]] = {}

    async def commit(self, lease: Lease, commit: Commit) -> None:
        await super().commit(lease, commit)
        self._given.update({(one.ns, one.checkpoint_id): one.metadata for one in commit.rows})

    async def scan(self, thread_id: str | None, ns: str | None, **options: Any) -> tuple[Header, ...]:
        found = await super().scan(thread_id, ns, **options)
        return tuple(replace(one, metadata=self._given[one.ns, one.checkpoint_id]) for one in found)


@caught_by("test_metadata_come_back")
class NumbersAreFloats(InMemorySaver):
    async def scan(self, thread_id: str | None, ns: str | None, **options: Any) -> tuple[Header, ...]:
        found = await super().scan(thread_id, ns, **options)
        return tuple(
            replace(one, metadata={k: float(v) if type(v) is int else v for k, v in one.metadata.items()})
            for one in found
        )


@caught_by("test_frames_come_back_byte_for_byte", "test_frames_of_events_come_back_byte_for_byte")
class FramesAreTexts(InMemorySaver):
    """Strips trailing NUL bytes."""

    async def commit(self, lease: Lease, commit: Commit) -> None:
        rows = tuple(replace(one, frame=one.frame.rstrip(b"\0")) for one in commit.rows)
        events = tuple(replace(one, frame=one.frame.rstrip(b"\0")) for one in commit.events)
        await super().commit(lease, replace(commit, rows=rows, events=events))


class _Spelled(InMemorySaver):
    """Replaces each thread id by `spell(id)`."""

    def spell(self, text: str) -> str:
        return text

    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        return await super().acquire(self.spell(thread_id), owner, now=now, expires_at=expires_at)

    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        return await super().read(self.spell(thread_id), ns, checkpoint_id)


@caught_by("test_every_text_is_an_id")
class OneSpellingOfALetter(_Spelled):
    def spell(self, text: str) -> str:
        return unicodedata.normalize("NFC", text)


@caught_by("test_every_text_is_an_id")
class TrimsIds(_Spelled):
    def spell(self, text: str) -> str:
        return text.rstrip(" \n\r\t")


@caught_by("test_long_ids_are_distinct")
class IdsOf255(_Spelled):
    def spell(self, text: str) -> str:
        return text[:255]


@caught_by("test_nearly_equal_ids_are_distinct")
class IgnoresCase(_Spelled):
    def spell(self, text: str) -> str:
        return text.lower()


@caught_by("test_a_text_with_nul_is_taken_or_refused")
class IdsEndAtNul(_Spelled):
    def spell(self, text: str) -> str:
        return text.partition("\x00")[0]


@caught_by("test_half_a_character_is_refused")
class ReplacesWhatItCannotWrite(_Spelled):
    def spell(self, text: str) -> str:
        return text.encode("utf-8", "replace").decode()


@caught_by("test_every_json_value_comes_back", "test_metadata_come_back")
class WritesNumbersInBrief(InMemorySaver):
    """Fifteen digits, as C's `%.15g` does."""

    async def scan(self, thread_id: str | None, ns: str | None, **options: Any) -> tuple[Header, ...]:
        found = await super().scan(thread_id, ns, **options)
        return tuple(replace(one, metadata=_brief(one.metadata)) for one in found)


def _brief(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _brief(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_brief(inner) for inner in value]
    return value if type(value) not in (int, float) else type(value)(float(f"{value:.15g}"))


@caught_by("test_types_are_exact")
class FramesAreViews(InMemorySaver):
    async def events(self, thread_id: str, *, since: EventKey | None = None, limit: int = PAGE) -> tuple[EventRow, ...]:
        found = await super().events(thread_id, since=since, limit=limit)
        return tuple(replace(one, frame=bytearray(one.frame)) for one in found)


@caught_by("test_rows_come_in_their_order", "test_every_chain_is_whole")
class ChainsAsTheyWereStored(InMemorySaver):
    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        chain = await super().read(thread_id, ns, checkpoint_id)
        if chain is None:
            return None
        stored = [key for key in self._threads[thread_id].rows if key[0] == ns]
        return replace(chain, rows=tuple(sorted(chain.rows, key=lambda one: -stored.index((ns, one.checkpoint_id)))))


@caught_by("test_events_come_back_in_the_order_of_their_keys", "test_from_a_key_on", "test_events_come_in_their_order")
class EventsAsTheyCame(InMemorySaver):
    async def events(self, thread_id: str, *, since: EventKey | None = None, limit: int = PAGE) -> tuple[EventRow, ...]:
        thread = self._threads.get(thread_id)
        found = [] if thread is None else list(thread.events.values())
        return tuple(one for one in found if since is None or one.key > since)[: max(limit, 0)]


@caught_by("test_a_reader_of_a_checkpoint_finds_its_events", "test_readers_see_before_or_after")
class CommitsInTwoParts(InMemorySaver):
    """Leaves a moment at which a reader sees one half of the commit without the other."""

    async def commit(self, lease: Lease, commit: Commit) -> None:
        await super().commit(lease, replace(commit, events=(), records=(), clears=(), releases=False))
        time.sleep(0.0005)
        await super().commit(lease, replace(commit, rows=(), head=None))


@caught_by("test_what_is_said_of_a_thread")
class OmitsTheOwner(InMemorySaver):
    async def threads(self, **options: Any) -> tuple[ThreadHeader, ...]:
        return tuple(replace(one, owner=None) for one in await super().threads(**options))


@caught_by("test_in_the_order_of_their_ids", "test_after_and_limit")
class SortsAsUTF16(InMemorySaver):
    async def threads(
        self, *, after: str | None = None, limit: int = PAGE, filter: Mapping[str, Any] | None = None
    ) -> tuple[ThreadHeader, ...]:
        found = sorted(await super().threads(limit=10**6, filter=filter), key=lambda one: _utf16(one.thread_id))
        return tuple(one for one in found if after is None or _utf16(one.thread_id) > _utf16(after))[:limit]


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


@caught_by("test_pages_stay_while_threads_come_and_go")
class CountsPages(InMemorySaver):
    """Pages by offset instead of by id."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._places: dict[str, int] = {}

    async def threads(
        self, *, after: str | None = None, limit: int = PAGE, filter: Mapping[str, Any] | None = None
    ) -> tuple[ThreadHeader, ...]:
        found = await super().threads(limit=10**6, filter=filter)
        start = 0 if after is None else self._places.get(after, -1) + 1
        page = found[start : start + limit]
        self._places.update({one.thread_id: start + place for place, one in enumerate(page)})
        return page


@caught_by("test_pages_of_threads_add_up")
class FiltersAPageOfThreads(InMemorySaver):
    async def threads(
        self, *, after: str | None = None, limit: int = PAGE, filter: Mapping[str, Any] | None = None
    ) -> tuple[ThreadHeader, ...]:
        found = await super().threads(after=after, limit=limit)
        return tuple(one for one in found if all(one.metadata.get(key) == filter[key] for key in filter or {}))


@caught_by("test_a_filter_asks_the_threads_own_metadata")
class FiltersThreadsByTheirHeads(InMemorySaver):
    async def threads(self, **options: Any) -> tuple[ThreadHeader, ...]:
        filter = options.pop("filter", None) or {}
        found = await super().threads(**options)
        heads = {one.thread_id: (await self.scan(one.thread_id, "", limit=1))[0].metadata for one in found}
        return tuple(one for one in found if filter.items() <= heads[one.thread_id].items())


@caught_by("test_a_commit_sets_what_the_thread_lacks", "test_metadata_of_threads_come_back")
class ForgetsMetadataOfThreads(InMemorySaver):
    async def commit(self, lease: Lease, commit: Commit) -> None:
        await super().commit(lease, replace(commit, metadata={}))


@caught_by("test_a_commit_sets_what_the_thread_lacks", "test_update_thread_needs_no_lease")
class OverwritesMetadataOfThreads(InMemorySaver):
    async def commit(self, lease: Lease, commit: Commit) -> None:
        await super().commit(lease, commit)
        if self._threads.get(lease.thread_id) is not None and self._threads[lease.thread_id].newest is not None:
            await self.update_thread(lease.thread_id, commit.metadata)


@caught_by("test_metadata_are_stored_with_the_commit")
class StoresMetadataBeforeTheCommit(InMemorySaver):
    async def commit(self, lease: Lease, commit: Commit) -> None:
        if commit.metadata and commit.rows and lease.newest is not None:
            await self.update_thread(lease.thread_id, commit.metadata)
        await super().commit(lease, commit)


@caught_by("test_update_thread_sets_and_deletes")
class KeepsNones(InMemorySaver):
    async def update_thread(self, thread_id: str, changes: Mapping[str, Any]) -> None:
        kept = {key: "None" if value is None else value for key, value in changes.items()}
        await super().update_thread(thread_id, kept)


@caught_by("test_update_thread_needs_a_thread")
class CreatesThreadsToUpdate(InMemorySaver):
    async def update_thread(self, thread_id: str, changes: Mapping[str, Any]) -> None:
        try:
            await super().update_thread(thread_id, changes)
        except ThreadNotFoundError:
            pass


@caught_by("test_metadata_of_threads_are_dumped_and_loaded")
class LoadsNoMetadataOfThreads(InMemorySaver):
    async def load(self, lease: Lease, dump: ThreadDump) -> None:
        await super().load(lease, replace(dump, metadata={}))


@caught_by("test_whatever_happens_meanwhile_is_no_error", "test_it_can_be_left")
class NotifiesOfKnownThreadsOnly(InMemorySaver):
    async def wait_for_release(self, thread_id: str) -> None:
        epoch = self._threads[thread_id].epoch
        while self._threads[thread_id].epoch == epoch:
            await super().wait_for_release(thread_id)
