"""Deleting checkpoints from threads so that the others read as before: by age, number and size, or by run.

`retention` decides what is deleted, and `rebasing` rewrites rows that were read with a deleted one. This module reads
and writes the thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property
from typing import Protocol

from ..chain import ChainReader
from ..errors import CorruptCheckpointError, ThreadBusyError
from ..lease import UpkeepLease
from ..records import CheckpointId, CheckpointRow, Lease, Rewrite
from ..saver_port import SaverPort
from .rebasing import rebased
from .retention import (
    Change,
    CheckpointKey,
    CheckpointTree,
    Pruned,
    PrunedThread,
    Retention,
    RetentionPlan,
    Stayed,
    Why,
    changes,
    made_since_input,
    moved_heads,
    rewrite_size,
    within_limits,
)
from .threads import headers_of, list_threads

SMALL_REWRITE = 64 * 1024
"""Bytes up to which a prune at the end of a run may rewrite rows, however little it frees."""

PREVIEW_ATTEMPTS = 20
"""Number of times that a thread is inspected without a lease when it changes meanwhile."""

_ALL = 2**31 - 1
"""A limit that no listing reaches."""


class AcceptedRuns(Protocol):
    """Knows the threads of accepted runs; a `RunStore`."""

    async def get_thread(self, thread_id: str) -> object | None:
        """Return the row of a thread; None if no run of it was ever accepted."""


async def delete_for_runs(saver: SaverPort, run_ids: Collection[str], accepted: AcceptedRuns | None) -> None:
    """Delete the checkpoints that these runs have made. See `BaseCheckpointSaver.adelete_for_runs`.

    Args:
        saver: stores the threads.
        run_ids: the runs.
        accepted: the saver's run store, whose threads remain when nothing is left of them; None if it has none.

    Raises:
        TypeError: `run_ids` is a single string.
        ThreadBusyError: a run holds one of the threads; those before it, in the order of their ids, are done.
    """
    if isinstance(run_ids, str):
        raise TypeError(f"run_ids is a collection of run ids, not {run_ids!r}")
    wanted = set(run_ids)
    threads: set[str] = set()
    for run_id in sorted(wanted):
        found = await saver.scan(None, None, limit=_ALL, filter={"run_id": run_id})
        threads |= {header.thread_id for header in found}
    for thread_id in sorted(threads):
        async with UpkeepLease(saver, thread_id) as lease:
            tree, retained = await _without(saver, thread_id, wanted)
            if not retained and (accepted is None or await accepted.get_thread(thread_id) is None):
                await saver.drop(lease.token)
            elif len(retained) < len(tree.rows):
                change = await _change(saver, thread_id, tree, retained, changes(tree, retained, forgotten=True))
                await lease.renew_if_due()
                await saver.rewrite(lease.token, change)


async def without_runs(saver: SaverPort, thread_id: str, run_ids: Collection[str]) -> Rewrite | None:
    """Return the change that deletes the checkpoints which runs have made of one thread.

    Args:
        saver: stores the thread.
        thread_id: the thread. Its lease must be held until the change is stored.
        run_ids: the runs.

    Returns:
        The change; None if there are no such checkpoints.
    """
    tree, retained = await _without(saver, thread_id, run_ids)
    if len(retained) == len(tree.rows):
        return None
    return await _change(saver, thread_id, tree, retained, changes(tree, retained, forgotten=True))


async def _without(
    saver: SaverPort, thread_id: str, run_ids: Collection[str]
) -> tuple[CheckpointTree, set[CheckpointKey]]:
    """Return the checkpoints of a thread, and those that these runs have not made."""
    tree = CheckpointTree(await headers_of(saver, thread_id))
    return tree, {key for key, row in tree.rows.items() if row.metadata.get("run_id") not in run_ids}


async def prune(
    saver: SaverPort,
    thread_ids: str | Sequence[str] | None,
    *,
    retention: Retention | None,
    strategy: str | None,
    dry_run: bool,
) -> Pruned:
    """Delete checkpoints that are no longer needed. See `BaseCheckpointSaver.aprune`.

    Args:
        saver: stores the threads.
        thread_ids: one or several threads; None for all.
        retention: the limits.
        strategy: instead of `retention`: "keep_latest" or "delete".
        dry_run: only report what would be deleted.

    Returns:
        What was deleted, or would be, and what was retained against the limits.

    Raises:
        ValueError: neither retention nor strategy was passed, or both; or the strategy is unknown.
        ThreadBusyError: a run holds one of the named threads; those before it are done.
    """
    if (retention is None) == (strategy is None):
        raise ValueError("aprune needs either retention= or strategy=, not both or neither")
    if strategy not in (None, "keep_latest", "delete"):
        raise ValueError(f"strategy is 'keep_latest' or 'delete', not {strategy!r}")
    limits = None if strategy == "delete" else retention or Retention(keep=1)
    done: list[PrunedThread] = []
    busy: list[str] = []
    if thread_ids is not None:
        names = dict.fromkeys([thread_ids] if isinstance(thread_ids, str) else thread_ids)
        do = _preview if dry_run else _prune
        done += [await do(saver, name, limits) for name in names]
    else:
        async with aclosing(list_threads(saver)) as threads:
            async for header in threads:
                # Inspect first without the lease: acquiring it for each of many threads, most of which need no change,
                # would cost a write per thread and would delay runs.
                report = await _preview(saver, header.thread_id, limits)
                if not dry_run and (limits is None or report.gone):
                    try:
                        report = await _prune(saver, header.thread_id, limits)
                    except ThreadBusyError:
                        busy.append(header.thread_id)
                        continue
                done.append(report)
    changed = [thread for thread in done if thread.gone or thread.stayed]
    return Pruned(threads=tuple(changed), busy=tuple(busy), dry_run=dry_run)


async def _preview(saver: SaverPort, thread_id: str, retention: Retention | None) -> PrunedThread:
    """Return what would be deleted, without the lease. Retry if the thread changes while it is read.

    Raises:
        CorruptCheckpointError: a listed checkpoint cannot be read, although the thread does not change.
        ThreadBusyError: the thread changes again and again.
    """
    for _ in range(PREVIEW_ATTEMPTS):
        with contextlib.suppress(ThreadBusyError):
            return (await _inspect(saver, thread_id, retention)).report
    before = await headers_of(saver, thread_id)
    try:
        return (await _inspect(saver, thread_id, retention)).report
    except ThreadBusyError:
        if await headers_of(saver, thread_id) != before:
            raise
    # Nothing was removed meanwhile, so that the missing row is damage, and no change by another owner.
    raise CorruptCheckpointError(f"thread {thread_id!r}", "a checkpoint is listed, and its rows cannot be found")


async def _prune(saver: SaverPort, thread_id: str, retention: Retention | None) -> PrunedThread:
    async with UpkeepLease(saver, thread_id) as lease:
        inspection = await _inspect(saver, thread_id, retention)
        if retention is None:
            await saver.drop(lease.token)
        elif inspection.report.gone:
            change = await inspection.change(saver)
            await lease.renew_if_due()
            await saver.rewrite(lease.token, change)
    return inspection.report


async def prune_with_lease(
    saver: SaverPort, lease: Lease, retention: Retention, *, now: float, since_input: bool = False
) -> None:
    """Prune a thread at the end of a run that holds its lease, if that is worth the bytes to rewrite.

    It is if these are at most `SMALL_REWRITE`, or at most half of the bytes that are freed.

    Args:
        saver: stores the thread.
        lease: the run's lease.
        retention: the limits.
        now: the current time, in unix seconds.
        since_input: True to retain, whatever the limits say, what was made since the last input, and its starting
            point.
    """
    inspection = await _inspect(saver, lease.thread_id, retention, now=now, since_input=since_input)
    if inspection.report.gone and (
        inspection.rewrite_size <= SMALL_REWRITE or 2 * inspection.rewrite_size <= inspection.report.freed
    ):
        await saver.rewrite(lease, await inspection.change(saver))


class _Inspection:
    """What a prune deletes from a thread, and what it retains.

    Attributes:
        report: the result for the caller.
    """

    def __init__(self, thread_id: str, tree: CheckpointTree, retained: Mapping[CheckpointKey, Why | None]) -> None:
        gone = tuple([key for key in tree.rows if key not in retained])
        self.report = PrunedThread(
            thread_id=thread_id,
            gone=gone,
            freed=sum([tree.rows[key].size for key in gone]),
            stayed=tuple([Stayed(*key, why) for key in tree.rows if (why := retained.get(key)) is not None]),
        )
        self._tree = tree
        self._retained = retained

    @cached_property
    def _due(self) -> list[Change]:
        return changes(self._tree, self._retained)

    @property
    def rewrite_size(self) -> int:
        """About how many bytes have to be written."""
        return rewrite_size(self._tree, self._due)

    async def change(self, saver: SaverPort) -> Rewrite:
        """Return the transaction that does it."""
        return await _change(saver, self.report.thread_id, self._tree, self._retained, self._due)


async def _inspect(
    saver: SaverPort,
    thread_id: str,
    retention: Retention | None,
    *,
    now: float | None = None,
    since_input: bool = False,
) -> _Inspection:
    """Return what these limits would delete; without limits, everything."""
    headers = await headers_of(saver, thread_id)
    tree = CheckpointTree(headers)
    if retention is None:
        return _Inspection(thread_id, tree, {})
    allowed = within_limits(retention, headers, saver.clock() if now is None else now)
    if since_input:
        allowed |= made_since_input(tree)
    if len(allowed) == len(tree.rows):
        return _Inspection(thread_id, tree, dict.fromkeys(allowed))
    chain = await saver.read(thread_id)
    plan = RetentionPlan(tree, allowed, None if chain is None else chain.head)
    tips: set[CheckpointKey] = set()
    if tree.has_stateful_subgraphs:
        roots = [key for key in plan.retained if key[0] == ""]
        reader = (await _readers(saver, thread_id, tree, roots))[""]
        for _, root in roots:
            tips |= {(ns, CheckpointId(tip)) for ns, tip in reader.state(root).tips.items()}
    plan.add_subgraphs(tips)
    return _Inspection(thread_id, tree, plan.retained)


async def _change(
    saver: SaverPort, thread_id: str, tree: CheckpointTree, retained: Collection[CheckpointKey], due: Sequence[Change]
) -> Rewrite:
    """Return the transaction after which only the retained checkpoints are left."""
    gone = [key for key in tree.rows if key not in retained]
    readers = await _readers(saver, thread_id, tree, [change.key for change in due])
    rows: list[CheckpointRow] = []
    for ns, reader in readers.items():
        rows += rebased(reader, tree, retained, [change for change in due if change.key[0] == ns])
    heads: dict[str, CheckpointId] = {}
    shrinking = {ns for ns, _ in gone}
    for ns in shrinking & {ns for ns, _ in retained}:
        chain = await saver.read(thread_id, ns)
        if chain is not None:
            heads[ns] = chain.head
    events = [checkpoint_id for ns, checkpoint_id in gone if ns == ""]
    if any(tree.rows["", checkpoint_id].parent_id is None for checkpoint_id in events):
        events.append(CheckpointId(""))  # events that were shown before the first checkpoint
    return Rewrite(
        gone=tuple(gone), rows=tuple(rows), heads=moved_heads(tree, retained, heads, shrinking), events=tuple(events)
    )


async def _readers(
    saver: SaverPort, thread_id: str, tree: CheckpointTree, keys: Sequence[CheckpointKey]
) -> dict[str, ChainReader]:
    """Return readers that can restore the states of these checkpoints, by namespace.

    Raises:
        ThreadBusyError: with `lost=True`: a checkpoint is missing, which only another owner of the thread can have
            done.
        CorruptCheckpointError, StorageError
    """
    newest: dict[CheckpointKey, CheckpointId] = {}
    for key in sorted(keys, key=lambda key: key[1]):
        newest[key[0], tree.rows[key].base_id] = key[1]  # the newest row's chain contains those of the others
    readers: dict[str, ChainReader] = {}
    for (ns, _), checkpoint_id in newest.items():
        chain = await saver.read(thread_id, ns, checkpoint_id)
        if chain is None:
            raise ThreadBusyError(thread_id, lost=True)
        readers.setdefault(ns, ChainReader(thread_id, ns, ())).add(chain.rows)
    if any(checkpoint_id not in readers[ns].rows for ns, checkpoint_id in keys):
        raise ThreadBusyError(thread_id, lost=True)
    return readers
