"""Rows that stay when others go with which they were read: made so that they are read without those.

The oldest of them becomes a full row. What came from it says what has changed since its parent, and stays as it is; a
milestone, which says what has changed since one that goes, says it since the nearest that stays. So a thread is not
larger after it was pruned than before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from ..chain import ChainReader
from ..records import FOLLOWED, CheckpointId, CheckpointRow
from .retention import Change, CheckpointTree, Key


def rebased(
    reader: ChainReader, tree: CheckpointTree, retained: Collection[Key], due: Sequence[Change]
) -> list[CheckpointRow]:
    """The rows that stand in the place of the stored ones.

    Args:
        reader: of one namespace, with all rows that those of the changes are read with.
        due: all changes of that namespace.

    Raises:
        CorruptCheckpointError: a frame is damaged.
    """
    rebase = _Rebase(reader, tree, retained)
    for change in sorted(due, key=lambda change: change.key[1]):  # what a row came from comes before it
        rebase.add(change)
    return [row for row in rebase.made.values() if row != reader.rows[row.checkpoint_id]]


class _Rebase:
    def __init__(self, reader: ChainReader, tree: CheckpointTree, retained: Collection[Key]) -> None:
        self.made: dict[CheckpointId, CheckpointRow] = {}
        self._reader = reader
        self._tree = tree
        self._retained = retained
        self._steps: set[CheckpointId] = set()  # of those that were made: neither full rows nor milestones

    def add(self, change: Change) -> None:
        at = change.key[1]
        row = self._rebase(at, change.parent_id) if change.orphaned else self._reader.rows[at]
        metadata = row.metadata if change.followed is None else {**row.metadata, FOLLOWED: change.followed}
        self.made[at] = replace(row, parent_id=change.parent_id, metadata=metadata)

    def _rebase(self, at: CheckpointId, parent: CheckpointId | None) -> CheckpointRow:
        """A row that is read with others that stay, or with none."""
        reader = self._reader
        row, since = reader.rows[at], reader.stored(at).since
        if since and (reader.ns, since) in self._retained:
            return replace(row, base_id=self._full(CheckpointId(since)))
        if parent is None:
            return reader.row(at, parent_id=None, base_id=at)
        mark = self._mark(parent)
        if since:
            return reader.row(at, parent_id=parent, base_id=self._full(mark), since=mark)
        self._steps.add(at)
        return replace(row, base_id=mark)

    def _mark(self, at: CheckpointId) -> CheckpointId:
        """The full row or milestone that what comes from a row is read with."""
        return self.made[at].base_id if at in self._steps else at  # it was made, as what comes from it is loose too

    def _full(self, mark: CheckpointId) -> CheckpointId:
        """The full row that a full row or milestone is read with."""
        made = self.made.get(mark)
        return self._tree.rows[self._reader.ns, mark].base_id if made is None else made.base_id
