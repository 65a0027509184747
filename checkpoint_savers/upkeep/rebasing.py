"""Rewrites retained rows whose base or ancestors are being pruned.

The oldest of them becomes a keyframe. Deltas that follow it hold the changes since their parents, and remain as they
are; a snapshot that holds the changes since a pruned one is rewritten on the nearest retained one. So pruning never
makes a thread larger.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from ..chain import ChainReader
from ..records import FOLLOWED, CheckpointId, CheckpointRow
from .retention import Change, CheckpointKey, CheckpointTree


def rebased(
    reader: ChainReader, tree: CheckpointTree, retained: Collection[CheckpointKey], due: Sequence[Change]
) -> list[CheckpointRow]:
    """Return the rows that replace stored ones.

    Args:
        reader: of one namespace, with the chains of all rows that change.
        tree: the thread's checkpoints.
        retained: the checkpoints that are not deleted.
        due: all changes of that namespace.

    Raises:
        CorruptCheckpointError: a frame is damaged.
    """
    rebase = _Rebase(reader, tree, retained)
    # Parents first: a row's new base depends on its parent's.
    for change in sorted(due, key=lambda change: change.key[1]):
        rebase.add(change)
    return [row for row in rebase.made.values() if row != reader.rows[row.checkpoint_id]]


class _Rebase:
    def __init__(self, reader: ChainReader, tree: CheckpointTree, retained: Collection[CheckpointKey]) -> None:
        self.made: dict[CheckpointId, CheckpointRow] = {}
        self._reader = reader
        self._tree = tree
        self._retained = retained
        self._deltas: set[CheckpointId] = set()  # rewritten rows that are deltas

    def add(self, change: Change) -> None:
        at = change.key[1]
        row = self._rebase(at, change.parent_id) if change.orphaned else self._reader.rows[at]
        metadata = row.metadata if change.followed is None else {**row.metadata, FOLLOWED: change.followed}
        self.made[at] = replace(row, parent_id=change.parent_id, metadata=metadata)

    def _rebase(self, at: CheckpointId, parent: CheckpointId | None) -> CheckpointRow:
        """Return a row that is read only with retained rows, or by itself."""
        reader = self._reader
        row, since = reader.rows[at], reader.stored(at).since
        if since and (reader.ns, since) in self._retained:
            return replace(row, base_id=self._keyframe_of(CheckpointId(since)))
        if parent is None:
            return reader.row(at, parent_id=None, base_id=at)
        base = self._base_of(parent)
        if since:
            return reader.row(at, parent_id=parent, base_id=self._keyframe_of(base), since=base)
        self._deltas.add(at)
        return replace(row, base_id=base)

    def _base_of(self, at: CheckpointId) -> CheckpointId:
        """Return the base of a row's children: the row itself if it is a keyframe or snapshot, else its base."""
        # A delta here was rewritten before: the retained parent of an orphaned row is orphaned too.
        return self.made[at].base_id if at in self._deltas else at

    def _keyframe_of(self, base: CheckpointId) -> CheckpointId:
        """Return the keyframe with which a keyframe or snapshot is read."""
        made = self.made.get(base)
        return self._tree.rows[self._reader.ns, base].base_id if made is None else made.base_id
