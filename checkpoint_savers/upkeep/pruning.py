"""Taking checkpoints out of threads, so that what stays reads as before: by age, number and size, or by the run.

What may go is `retention`'s to say, and `rebase` makes rows anew that were read with one that goes. Here the thread is
read and written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property

from ..chain import ChainReader
from ..errors import ThreadBusyError
from ..lease import UpkeepLease
from ..records import CheckpointId, CheckpointRow, Lease, Rewrite
from ..saver_port import SaverPort
from .rebasing import rebased
from .retention import (
    Change,
    CheckpointTree,
    Key,
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
"""Bytes that are written anew at the end of a run whatever that frees."""

PREVIEW_ATTEMPTS = 20
"""How often a thread is looked at again that is changed meanwhile, where no lease keeps others from it."""

_ALL = 2**31 - 1
"""As many as there are."""


async def delete_for_runs(saver: SaverPort, run_ids: Collection[str]) -> None:
    """See `BaseCheckpointSaver.adelete_for_runs`."""
    if isinstance(run_ids, str):
        raise TypeError(f"run_ids is a collection of run ids, not {run_ids!r}")
    wanted = set(run_ids)
    threads: set[str] = set()
    for run_id in sorted(wanted):
        found = await saver.scan(None, None, limit=_ALL, filter={"run_id": run_id})
        threads |= {header.thread_id for header in found}
    for thread_id in sorted(threads):
        async with UpkeepLease(saver, thread_id) as lease:
            tree = CheckpointTree(await headers_of(saver, thread_id))
            retained = {key for key, row in tree.rows.items() if row.metadata.get("run_id") not in wanted}
            if not retained:
                await saver.drop(lease.token)
            elif len(retained) < len(tree.rows):
                change = await _change(saver, thread_id, tree, retained, changes(tree, retained, forgotten=True))
                await lease.renew_if_due()
                await saver.rewrite(lease.token, change)


async def prune(
    saver: SaverPort,
    thread_ids: str | Sequence[str] | None,
    *,
    retention: Retention | None,
    strategy: str | None,
    dry_run: bool,
) -> Pruned:
    """See `BaseCheckpointSaver.aprune`."""
    if (retention is None) == (strategy is None):
        raise ValueError("aprune is told either retention= or strategy=, to know what is to be kept")
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
    """What would go, seen without the lease: while somebody changes the thread, it is looked at again."""
    for _ in range(PREVIEW_ATTEMPTS):
        with contextlib.suppress(ThreadBusyError):
            return (await _inspect(saver, thread_id, retention)).report
    return (await _inspect(saver, thread_id, retention)).report


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
    """Prune a thread at the end of a run that owns it, if that is worth what has to be written anew: when it is little,
    or at most half of what goes.

    Args:
        now: in unix seconds.
        since_input: what was made since the last input stays, whatever the allowed say, and what that came from.
    """
    inspection = await _inspect(saver, lease.thread_id, retention, now=now, since_input=since_input)
    if inspection.report.gone and (
        inspection.rewrite_size <= SMALL_REWRITE or 2 * inspection.rewrite_size <= inspection.report.freed
    ):
        await saver.rewrite(lease, await inspection.change(saver))


class _Inspection:
    """What goes of a thread, and what stays.

    Attributes:
        told: for who has asked.
    """

    def __init__(self, thread_id: str, tree: CheckpointTree, retained: Mapping[Key, Why | None]) -> None:
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
        """What is to be done."""
        return await _change(saver, self.report.thread_id, self._tree, self._retained, self._due)


async def _inspect(
    saver: SaverPort,
    thread_id: str,
    retention: Retention | None,
    *,
    now: float | None = None,
    since_input: bool = False,
) -> _Inspection:
    """What would go by these allowed; without allowed, everything."""
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
    tips: set[Key] = set()
    if tree.has_stateful_subgraphs:
        roots = [key for key in plan.retained if key[0] == ""]
        reader = (await _readers(saver, thread_id, tree, roots))[""]
        for _, root in roots:
            tips |= {(ns, CheckpointId(tip)) for ns, tip in reader.state(root).tips.items()}
    plan.add_subgraphs(tips)
    return _Inspection(thread_id, tree, plan.retained)


async def _change(
    saver: SaverPort, thread_id: str, tree: CheckpointTree, retained: Collection[Key], due: Sequence[Change]
) -> Rewrite:
    """What has to be done so that nothing but some checkpoints of a thread stays."""
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
        events.append(CheckpointId(""))  # what was shown before there was a checkpoint
    return Rewrite(
        gone=tuple(gone), rows=tuple(rows), heads=moved_heads(tree, retained, heads, shrinking), events=tuple(events)
    )


async def _readers(
    saver: SaverPort, thread_id: str, tree: CheckpointTree, keys: Sequence[Key]
) -> dict[str, ChainReader]:
    """What can restore the states of checkpoints, by namespace.

    Raises:
        ThreadBusyError: with `lost=True`: one is not there any more, which only another owner of the thread can do.
        CorruptCheckpointError, StorageError
    """
    newest: dict[Key, CheckpointId] = {}
    for key in sorted(keys, key=lambda key: key[1]):
        newest[key[0], tree.rows[key].base_id] = key[1]  # what it is read with, all others of its base are
    readers: dict[str, ChainReader] = {}
    for (ns, _), checkpoint_id in newest.items():
        chain = await saver.read(thread_id, ns, checkpoint_id)
        if chain is None:
            raise ThreadBusyError(thread_id, lost=True)
        readers.setdefault(ns, ChainReader(thread_id, ns, ())).add(chain.rows)
    if any(checkpoint_id not in readers[ns].rows for ns, checkpoint_id in keys):
        raise ThreadBusyError(thread_id, lost=True)
    return readers
