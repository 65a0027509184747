"""What of a thread may go, and what stays because something that stays needs it. Nothing here reads or writes storage.

    limits = within(retention, headers, now)     what the limits let stay
    kin = Kin(headers)                           who came from whom
    needed = Needed(kin, limits, head)           what has to stay besides, of the root graph
    plan.add_subgraphs(tips)                          and of the graphs inside
    changes(kin, plan.retained)                   what has to be done to the rows that stay

What stays, whatever the limits say
    - the head, and the tip of every branch: a checkpoint whose superstep nobody has closed. What is recorded on it, and
      the questions that are open on it, stay with it;
    - what is pinned; the checkpoints of the graphs around that it was made on; and the checkpoint that followed each of
      them, which says what their tasks gave;
    - of the graphs inside: for each checkpoint that stays, the state that each graph inside has got to on it, and the
      states that the root's says to go on from, or that the tasks of its open superstep have left.

Fork points that nothing else needs go: the branches are stored so that they are read without them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import msgspec

from ..records import BRANCHED, CALLER, CLOSED, FOLLOWED, CheckpointId, Header

Key: TypeAlias = tuple[str, CheckpointId]
"""A checkpoint in its thread: namespace and id."""

Why = Literal["head", "tip", "pinned", "around", "follows", "inside"]
"""Why a checkpoint stays that the limits would let go: the root graph stands there; it is a branch's tip; it is pinned;
a pinned one of a graph inside was made on it; it says what the tasks of one of these gave; a graph inside stands there,
for one that stays."""


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a thread is kept. A checkpoint stays when all limits that are given let it stay, or when something
    needs it that stays.

        Retention(keep=20)
        Retention(max_age=timedelta(days=30), max_bytes=10_000_000)

    Attributes:
        keep: the newest so many checkpoints of each namespace.
        max_age: those that were made no longer ago.
        max_bytes: the newest ones whose frames, as they are stored, take no more bytes together; of all namespaces.

    Raises:
        ValueError: no limit is given, or one that nothing could keep.
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
    """A checkpoint that the limits would let go, and that stays."""

    ns: str
    checkpoint_id: CheckpointId
    why: Why


class PrunedThread(msgspec.Struct, frozen=True, kw_only=True):
    """What of one thread went, or would go.

    Attributes:
        gone: the checkpoints, oldest first, as (namespace, id).
        freed: bytes of their frames. What is written anew, so that others can be read without them, is not taken off.
        stayed: those that the limits would let go, and that stay, oldest first.
    """

    thread_id: str
    gone: tuple[Key, ...]
    freed: int
    stayed: tuple[Stayed, ...] = ()


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """What a call to `aprune` has done, or would do.

    Attributes:
        threads: those of which something goes, or stays against the limits.
        busy: threads that were passed over as a run owned them, when all threads were asked for.
        dry_run: nothing was done.
    """

    threads: tuple[PrunedThread, ...] = ()
    busy: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def checkpoints(self) -> int:
        """How many went."""
        return sum([len(thread.gone) for thread in self.threads])

    @property
    def freed(self) -> int:
        """Bytes of their frames."""
        return sum([thread.freed for thread in self.threads])


def created(checkpoint_id: str) -> float | None:
    """When a checkpoint was made, in unix seconds, as its id says; None when the id is none of the runtime's.

    Source: RFC 9562, 5.7.
    """
    if len(checkpoint_id) != 36 or checkpoint_id[14] != "7":
        return None
    try:
        return int(checkpoint_id[:8] + checkpoint_id[9:13], 16) / 1000
    except ValueError:
        return None


def within_limits(retention: Retention, headers: Sequence[Header], now: float) -> set[Key]:
    """The checkpoints that the limits let stay.

    Args:
        headers: all of one thread, newest first.
        now: in unix seconds. A checkpoint whose age nobody knows is not too old.
    """
    counts: dict[str, int] = {}
    taken = 0
    retained: set[Key] = set()
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
    """The checkpoints of a thread, and who came from whom.

    Attributes:
        rows: by key, oldest first.
    """

    def __init__(self, headers: Sequence[Header]) -> None:
        ordered = sorted(headers, key=lambda header: (header.checkpoint_id, header.ns))
        self.rows: dict[Key, Header] = {(header.ns, header.checkpoint_id): header for header in ordered}
        self._children: dict[Key, list[Key]] = {}
        for key, header in self.rows.items():
            if header.parent_id is not None:
                self._children.setdefault((header.ns, header.parent_id), []).append(key)

    def children(self, key: Key) -> list[Key]:
        """Those that came from a checkpoint, oldest first."""
        return self._children.get(key, [])

    def closing(self, key: Key) -> list[Key]:
        """Those that closed its superstep. (A fork is a copy of its parent.)"""
        return [child for child in self.children(key) if self.rows[child].metadata.get("source") != "fork"]

    def is_tip(self, key: Key) -> bool:
        """Whether nobody has closed its superstep."""
        return self.rows[key].metadata.get(FOLLOWED) != CLOSED and not self.closing(key)

    def outer_checkpoints(self, key: Key) -> list[Key]:
        """The checkpoints of the graphs around that it was made on."""
        parents = self.rows[key].metadata.get("parents")
        if not isinstance(parents, dict):
            return []
        return [(str(ns), CheckpointId(str(checkpoint_id))) for ns, checkpoint_id in parents.items()]

    @property
    def has_stateful_subgraphs(self) -> bool:
        """Whether there are graphs inside that keep their state from call to call."""
        return any(CALLER in header.metadata for header in self.rows.values())


class RetentionPlan:
    """What stays of a thread.

    Args:
        limits: what the limits let stay.
        head: where the root graph stands; None when it stands nowhere.

    Attributes:
        stays: key -> why, for what stays against the limits; None for the others.
    """

    def __init__(self, tree: CheckpointTree, allowed: Collection[Key], head: CheckpointId | None) -> None:
        self.retained: dict[Key, Why | None] = {}
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

    def add_subgraphs(self, tips: Collection[Key]) -> None:
        """Go on with the graphs inside, when it is known which of the root's stay.

        Args:
            tips: where the root's states that stay say that graphs stand which keep their state from call to call.
        """
        tree = self._tree
        rows = [(tree.outer_checkpoints(key), key) for key in tree.rows if key[0] != ""]
        newest: dict[tuple[str, tuple[Key, ...], Any], Key] = {}
        moved: dict[tuple[str, Key], Key] = {}  # where the open superstep's tasks have left states that are kept
        for outer, key in rows:  # oldest first
            caller = tree.rows[key].metadata.get(CALLER)
            newest[key[0], tuple(outer), caller] = key
            if caller is not None:
                moved.update([((key[0], root), key) for root in outer if root[0] == ""])
        for key in (*tips, *[key for (_, root), key in moved.items() if root in self.retained and tree.is_tip(root)]):
            self._retain(key, "inside")
        stands = set(newest.values())
        for outer, key in sorted(rows, key=lambda row: len(row[0])):  # those around first
            reached = outer and all(each in self.retained for each in outer)
            if reached and (key in self._allowed or key in stands or tree.is_tip(key)):
                self._retain(key, "inside")

    def _with_what_followed(self, key: Key, why: Why) -> None:
        self._retain(key, why)
        for child in self._tree.closing(key):
            self._retain(child, "follows")

    def _retain(self, key: Key, why: Why) -> None:
        if key in self._tree.rows and self.retained.get(key, "follows") == "follows":
            self.retained[key] = None if key in self._allowed else why


def made_since_input(tree: CheckpointTree) -> set[Key]:
    """The checkpoints that were made since the thread's last input, and the one that this came to."""
    inputs = [row for (ns, _), row in tree.rows.items() if ns == "" and row.metadata.get("source") == "input"]
    since = inputs[-1].parent_id if inputs else None
    return {key for key in tree.rows if since is None or key[1] >= since}


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be done to a row, as others go.

    Attributes:
        key: whose.
        loose: a row goes that it may be read with.
        parent_id: what it came from, if that stays.
        followed: what its metadata has to say of its children (`FOLLOWED`); None when nothing changes there.
    """

    key: Key
    orphaned: bool
    parent_id: CheckpointId | None
    followed: str | None


def changes(tree: CheckpointTree, retained: Collection[Key], *, forgotten: bool = False) -> list[Change]:
    """What has to be done to the rows that stay when all others go.

    Args:
        forgotten: those that go are to be as if they had never been: what they came from is a tip again.
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


def _followed(tree: CheckpointTree, key: Key, retained: Collection[Key]) -> str | None:
    before = tree.rows[key].metadata.get(FOLLOWED)
    closing, children = tree.closing(key), tree.children(key)
    if closing and before != CLOSED and not any(child in retained for child in closing):
        return CLOSED
    if children and before is None and not any(child in retained for child in children):
        return BRANCHED
    return None


def _is_readable(tree: CheckpointTree, key: Key, retained: Collection[Key]) -> bool:
    """Whether all rows stay that a row may be read with: its ancestors, as far back as one that holds everything."""
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
    """About how many bytes have to be written for changes, by what is known without reading: a row that nothing before
    it is left of has to hold everything, which is at most about what the rows take that it was read with."""
    total = 0
    for change in due:
        row = tree.rows[change.key]
        total += row.size
        if change.orphaned and change.parent_id is None:
            for key in ancestors(tree, change.key):
                if row.base_id == row.checkpoint_id or key not in tree.rows:
                    break
                row = tree.rows[key]
                total += row.size
    return total


def ancestors(tree: CheckpointTree, key: Key) -> list[Key]:
    """A checkpoint's ancestors, the nearest first."""
    found: list[Key] = []
    row = tree.rows.get(key)
    while row is not None and row.parent_id is not None:
        found.append((row.ns, row.parent_id))
        row = tree.rows.get(found[-1])
    return found


def moved_heads(
    tree: CheckpointTree, retained: Collection[Key], heads: Mapping[str, CheckpointId], namespaces: Collection[str]
) -> dict[str, CheckpointId | None]:
    """Where the namespaces stand of which something goes: at the head, or the nearest of its ancestors that stays, or
    the newest checkpoint that stays; None for those of which nothing does. Only those that change.

    Args:
        heads: of those of which something stays.
        namespaces: of which something goes.
    """
    newest = {
        ns: checkpoint_id for ns, checkpoint_id in tree.rows if (ns, checkpoint_id) in retained
    }  # the last counts
    moved: dict[str, CheckpointId | None] = {}
    for ns in namespaces:
        head = heads.get(ns)
        if ns not in newest:
            moved[ns] = None
        elif head is None or (ns, head) not in retained:
            nearest = [] if head is None else [key for key in ancestors(tree, (ns, head)) if key in retained]
            moved[ns] = nearest[0][1] if nearest else newest[ns]
    return moved
