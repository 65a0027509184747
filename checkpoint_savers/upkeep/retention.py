"""Decides which checkpoints of a thread may be deleted. Nothing here reads or writes storage.

    allowed = within_limits(retention, headers, now)     what the limits retain
    tree = CheckpointTree(headers)                       which checkpoint was made from which
    plan = RetentionPlan(tree, allowed, head)            what else must be retained of the root graph
    plan.add_subgraphs(tips)                             and of subgraphs
    changes(tree, plan.retained)                         what to change in the retained rows

What is retained, whatever the limits say
    - the head, and the tip of each branch: a checkpoint whose superstep is still open, with its records and open
      questions;
    - pinned checkpoints; the checkpoints of outer graphs that they were made on; and the checkpoint that followed each
    of
      these, which has the results of their tasks;
    - of subgraphs: for each retained checkpoint, the latest state that each subgraph reached on it; and the states that
      the root's checkpoint refers to, or that the tasks of its open superstep have made.

Fork points that nothing else needs are deleted: the branches are rewritten so that they are read without them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import msgspec

from ..records import BRANCHED, CALLER, CLOSED, FOLLOWED, CheckpointId, Header

CheckpointKey: TypeAlias = tuple[str, CheckpointId]
"""The key of a checkpoint in its thread: namespace and id."""

Why = Literal["head", "tip", "pinned", "around", "follows", "inside"]
"""Why a checkpoint is retained against the limits: it is the root graph's head; a branch's tip; pinned; a pinned
checkpoint of a subgraph was made on it ("around"); it has the results of the tasks planned on one of these ("follows");
it is the state of a subgraph that a retained checkpoint needs ("inside")."""


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a thread to retain.

    A checkpoint is retained if all given limits allow it, or if a retained one needs it.

        Retention(keep=20)
        Retention(max_age=timedelta(days=30), max_bytes=10_000_000)

    Attributes:
        keep: number of checkpoints to retain in each namespace, the newest first.
        max_age: the greatest age of a retained checkpoint.
        max_bytes: total bytes of retained frames, as they are stored; the newest first, of all namespaces.

    Raises:
        ValueError: no limit is given, or one is too small.
        TypeError: a limit is no number, or no timedelta.
    """

    keep: int | None = None
    max_age: timedelta | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.keep is None and self.max_age is None and self.max_bytes is None:
            raise ValueError("a Retention says how much is kept: pass keep=, max_age= or max_bytes=")
        for name, least in (("keep", 1), ("max_bytes", 0)):
            value: Any = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name} is a whole number, not {value!r}")
            if value < least:
                raise ValueError(
                    f"{name} is at least {least}, not {value}: to delete a thread there is aerase_thread()"
                )
        age: Any = self.max_age
        if age is not None and not isinstance(age, timedelta):
            raise TypeError(f"max_age is a timedelta, not {age!r}")
        if age is not None and age < timedelta():
            raise ValueError(f"max_age is 0 or more, not {age!r}")


class Stayed(msgspec.Struct, frozen=True):
    """A checkpoint that is retained against the limits.

    Attributes:
        ns: its namespace.
        checkpoint_id: its id.
        why: the reason.
    """

    ns: str
    checkpoint_id: CheckpointId
    why: Why


class PrunedThread(msgspec.Struct, frozen=True, kw_only=True):
    """What was deleted from one thread, or would be.

    Attributes:
        thread_id: the thread.
        gone: the deleted checkpoints, oldest first, as (namespace, id).
        freed: bytes of their frames. Rewritten rows are not subtracted.
        stayed: checkpoints that are retained against the limits, oldest first.
    """

    thread_id: str
    gone: tuple[CheckpointKey, ...]
    freed: int
    stayed: tuple[Stayed, ...] = ()


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """What a call of `aprune` has done, or would do.

    Attributes:
        threads: threads of which checkpoints were deleted, or retained against the limits.
        busy: threads that were skipped since a run held them, when all threads were to be pruned.
        dry_run: True if nothing was deleted.
    """

    threads: tuple[PrunedThread, ...] = ()
    busy: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def checkpoints(self) -> int:
        """The number of deleted checkpoints."""
        return sum([len(thread.gone) for thread in self.threads])

    @property
    def freed(self) -> int:
        """The bytes of their frames."""
        return sum([thread.freed for thread in self.threads])


def created(checkpoint_id: str) -> float | None:
    """Return when a checkpoint was made, according to its id.

    Source: RFC 9562, 5.7.

    Args:
        checkpoint_id: the id.

    Returns:
        Unix seconds; None if the id is not a UUID of version 7.
    """
    if len(checkpoint_id) != 36 or checkpoint_id[14] != "7":
        return None
    try:
        return int(checkpoint_id[:8] + checkpoint_id[9:13], 16) / 1000
    except ValueError:
        return None


def within_limits(retention: Retention, headers: Sequence[Header], now: float) -> set[CheckpointKey]:
    """Return the checkpoints that the limits retain.

    Args:
        retention: the limits.
        headers: all headers of one thread, newest first.
        now: the current time, in unix seconds. A checkpoint of unknown age is not too old.
    """
    counts: dict[str, int] = {}
    taken = 0
    retained: set[CheckpointKey] = set()
    oldest = None if retention.max_age is None else now - retention.max_age.total_seconds()
    for header in headers:
        taken += header.size
        count = counts[header.ns] = counts.get(header.ns, 0) + 1
        if retention.keep is not None and count > retention.keep:
            continue
        if retention.max_bytes is not None and taken > retention.max_bytes:
            continue
        made = None if oldest is None else created(header.checkpoint_id)
        if oldest is not None and made is not None and made < oldest:
            continue
        retained.add((header.ns, header.checkpoint_id))
    return retained


class CheckpointTree:
    """The checkpoints of a thread, and which was made from which.

    Args:
        headers: all headers of the thread.

    Attributes:
        rows: header by key, oldest first.
    """

    def __init__(self, headers: Sequence[Header]) -> None:
        ordered = sorted(headers, key=lambda header: (header.checkpoint_id, header.ns))
        self.rows: dict[CheckpointKey, Header] = {(header.ns, header.checkpoint_id): header for header in ordered}
        self._children: dict[CheckpointKey, list[CheckpointKey]] = {}
        for key, header in self.rows.items():
            if header.parent_id is not None:
                self._children.setdefault((header.ns, header.parent_id), []).append(key)

    def children(self, key: CheckpointKey) -> list[CheckpointKey]:
        """Return the checkpoints that were made from a checkpoint, oldest first.

        Args:
            key: the checkpoint.
        """
        return self._children.get(key, [])

    def closing(self, key: CheckpointKey) -> list[CheckpointKey]:
        """Return the children that closed a checkpoint's superstep. (A fork is a copy of its parent.)

        Args:
            key: the checkpoint.
        """
        return [child for child in self.children(key) if self.rows[child].metadata.get("source") != "fork"]

    def is_tip(self, key: CheckpointKey) -> bool:
        """Return True if a checkpoint's superstep is still open.

        Args:
            key: the checkpoint.
        """
        return self.rows[key].metadata.get(FOLLOWED) != CLOSED and not self.closing(key)

    def outer_checkpoints(self, key: CheckpointKey) -> list[CheckpointKey]:
        """Return the checkpoints of outer graphs that a checkpoint was made on.

        Args:
            key: the checkpoint.
        """
        parents = self.rows[key].metadata.get("parents")
        if not isinstance(parents, dict):
            return []
        return [(str(ns), CheckpointId(str(checkpoint_id))) for ns, checkpoint_id in parents.items()]

    @property
    def has_stateful_subgraphs(self) -> bool:
        """True if the thread has subgraphs that keep their state from call to call."""
        return any(CALLER in header.metadata for header in self.rows.values())


class RetentionPlan:
    """The checkpoints of a thread to retain.

    Args:
        tree: the thread's checkpoints.
        allowed: the checkpoints that the limits retain.
        head: the root graph's head; None if it has none.

    Attributes:
        retained: key -> why it is retained against the limits; None if the limits retain it.
    """

    def __init__(self, tree: CheckpointTree, allowed: Collection[CheckpointKey], head: CheckpointId | None) -> None:
        self.retained: dict[CheckpointKey, Why | None] = {}
        self._tree = tree
        self._allowed = allowed
        for key, header in tree.rows.items():
            if header.pinned:
                self._with_what_followed(key, "pinned")
                for outer in tree.outer_checkpoints(key):
                    self._with_what_followed(outer, "around")
        if head is not None:
            self._retain(("", head), "head")
        for key in tree.rows:
            if key[0] == "" and (key in allowed or tree.is_tip(key)):
                self._retain(key, "tip")

    def add_subgraphs(self, tips: Collection[CheckpointKey]) -> None:
        """Add the checkpoints of subgraphs that the retained checkpoints need.

        Args:
            tips: the current states of stateful subgraphs, according to the retained checkpoints of the root.
        """
        tree = self._tree
        rows = [(tree.outer_checkpoints(key), key) for key in tree.rows if key[0] != ""]
        newest: dict[tuple[str, tuple[CheckpointKey, ...], Any], CheckpointKey] = {}
        moved: dict[
            tuple[str, CheckpointKey], CheckpointKey
        ] = {}  # by root checkpoint: latest states made by its tasks
        for outer, key in rows:  # oldest first
            caller = tree.rows[key].metadata.get(CALLER)
            newest[key[0], tuple(outer), caller] = key
            if caller is not None:
                moved.update([((key[0], root), key) for root in outer if root[0] == ""])
        for key in (*tips, *[key for (_, root), key in moved.items() if root in self.retained and tree.is_tip(root)]):
            self._retain(key, "inside")
        latest = set(newest.values())
        # Outer graphs first: whether a subgraph's checkpoint is retained depends on theirs.
        for outer, key in sorted(rows, key=lambda row: len(row[0])):
            reached = outer and all(each in self.retained for each in outer)
            if reached and (key in self._allowed or key in latest or tree.is_tip(key)):
                self._retain(key, "inside")

    def _with_what_followed(self, key: CheckpointKey, why: Why) -> None:
        self._retain(key, why)
        for child in self._tree.closing(key):
            self._retain(child, "follows")

    def _retain(self, key: CheckpointKey, why: Why) -> None:
        if key in self._tree.rows and self.retained.get(key, "follows") == "follows":
            self.retained[key] = None if key in self._allowed else why


def made_since_input(tree: CheckpointTree) -> set[CheckpointKey]:
    """Return the checkpoints that were made since the thread's last input, and the one on which that input was made.

    Args:
        tree: the thread's checkpoints.
    """
    inputs = [row for (ns, _), row in tree.rows.items() if ns == "" and row.metadata.get("source") == "input"]
    since = inputs[-1].parent_id if inputs else None
    return {key for key in tree.rows if since is None or key[1] >= since}


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What to change in a retained row, since others are deleted.

    Attributes:
        key: the row.
        orphaned: True if a row that it may be read with is deleted.
        parent_id: its parent, if that is retained.
        followed: the new value of `FOLLOWED` in its metadata; None if it does not change.
    """

    key: CheckpointKey
    orphaned: bool
    parent_id: CheckpointId | None
    followed: str | None


def changes(tree: CheckpointTree, retained: Collection[CheckpointKey], *, forgotten: bool = False) -> list[Change]:
    """Return what to change in the retained rows when all others are deleted.

    Args:
        tree: the thread's checkpoints.
        retained: the checkpoints to retain.
        forgotten: True if the deleted checkpoints are to be as if they had never been made: their parents become tips
            again.
    """
    found: list[Change] = []
    for key in retained:
        row = tree.rows[key]
        parent = None if row.parent_id is None or (row.ns, row.parent_id) not in retained else row.parent_id
        followed = None if forgotten else _followed(tree, key, retained)
        orphaned = not _is_readable(tree, key, retained)
        if orphaned or parent != row.parent_id or followed is not None:
            found.append(Change(key=key, orphaned=orphaned, parent_id=parent, followed=followed))
    return found


def _followed(tree: CheckpointTree, key: CheckpointKey, retained: Collection[CheckpointKey]) -> str | None:
    """Return the new value of `FOLLOWED` of a checkpoint, if all its children of a kind are deleted; else None."""
    before = tree.rows[key].metadata.get(FOLLOWED)
    closing, children = tree.closing(key), tree.children(key)
    if closing and before != CLOSED and not any(child in retained for child in closing):
        return CLOSED
    if children and before is None and not any(child in retained for child in children):
        return BRANCHED
    return None


def _is_readable(tree: CheckpointTree, key: CheckpointKey, retained: Collection[CheckpointKey]) -> bool:
    """Return True if all rows that a row may be read with are retained: its ancestors back to a keyframe."""
    at = key
    while True:
        row = tree.rows.get(at)
        if row is None or at not in retained:
            return False
        if row.base_id == row.checkpoint_id:
            return True
        if row.parent_id is None:
            return False
        at = (row.ns, row.parent_id)


def rewrite_size(tree: CheckpointTree, due: Collection[Change]) -> int:
    """Return about how many bytes the changes have to write, as far as headers show.

    Args:
        tree: the thread's checkpoints.
        due: the changes.
    """
    total = 0
    for change in due:
        row = tree.rows[change.key]
        total += row.size
        # A row with no retained ancestor becomes a keyframe. That takes at most about what the rows take with which it
        # was read.
        if change.orphaned and change.parent_id is None:
            for key in ancestors(tree, change.key):
                if row.base_id == row.checkpoint_id or key not in tree.rows:
                    break
                row = tree.rows[key]
                total += row.size
    return total


def ancestors(tree: CheckpointTree, key: CheckpointKey) -> list[CheckpointKey]:
    """Return a checkpoint's ancestors, the nearest first.

    Args:
        tree: the thread's checkpoints.
        key: the checkpoint.
    """
    found: list[CheckpointKey] = []
    row = tree.rows.get(key)
    while row is not None and row.parent_id is not None:
        found.append((row.ns, row.parent_id))
        row = tree.rows.get(found[-1])
    return found


def moved_heads(
    tree: CheckpointTree,
    retained: Collection[CheckpointKey],
    heads: Mapping[str, CheckpointId],
    namespaces: Collection[str],
) -> dict[str, CheckpointId | None]:
    """Return the new heads of the namespaces of which checkpoints are deleted; only those that change.

    A new head is the nearest retained ancestor of the old one, or else the newest retained checkpoint.

    Args:
        tree: the thread's checkpoints.
        retained: the checkpoints to retain.
        heads: current heads of the namespaces of which a checkpoint is retained.
        namespaces: the namespaces of which checkpoints are deleted.

    Returns:
        Head by namespace; None for a namespace of which nothing is retained.
    """
    newest = {
        ns: checkpoint_id for ns, checkpoint_id in tree.rows if (ns, checkpoint_id) in retained
    }  # rows are oldest first, so the newest one wins
    moved: dict[str, CheckpointId | None] = {}
    for ns in namespaces:
        head = heads.get(ns)
        if ns not in newest:
            moved[ns] = None
        elif head is None or (ns, head) not in retained:
            nearest = [] if head is None else [key for key in ancestors(tree, (ns, head)) if key in retained]
            moved[ns] = nearest[0][1] if nearest else newest[ns]
    return moved
