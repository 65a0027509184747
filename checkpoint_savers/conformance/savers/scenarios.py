"""A thread that holds something of every kind, and scenarios for every verb that writes to such a thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from ...abc import BaseCheckpointSaver
from ...records import CheckpointRow, Lease, Rewrite, ThreadDump
from .suite import LATER, change, cid, commit, event, offers, record, row, take

HEAD: Final = 7
"""The number of the checkpoint that is the root head of `WHOLE`."""

WHOLE: Final = ThreadDump(
    heads={"": cid(HEAD), "child": cid(9)},
    rows=(
        row(1, metadata={"source": "input", "step": 0, "user": "Ada"}),
        row(2, 1, base=1),
        row(3, 2, base=1, frame=b"a milestone"),
        row(4, 3, base=3),
        row(5, 2, base=1),
        row(6, 5, base=1, frame=b"a milestone of another branch"),
        row(7, 6, base=6, metadata={"source": "loop", "step": 6, "user": "Ada"}),
        row(7, ns="child", metadata={"source": "loop", "parents": {"": "6"}}),
        row(9, 7, base=7, ns="child"),
        row(10, 4),
        row(11, 10, base=10),
    ),
    records=(
        record(4, "a", 0),
        record(4, "b", 1, "error", frame=b"failed"),
        record(7, "", 0, "error"),
        record(7, "c", 1, "interrupt", frame=b"asks"),
        record(7, "c", 0, ns="child"),
        record(9, "d", 0, ns="child"),
    ),
    events=(event(1), event(1, 2, "tail"), event(4, 1, "part"), event(4, 2, "part"), event(7), event(7, 1, epoch=2)),
    metadata={"user": "Ada", "plan": 3},
)
"""A thread with two branches, snapshots, a nested namespace, records and events of each kind, and metadata."""


async def fill(saver: BaseCheckpointSaver, thread: str = "t", run: str = "run-1") -> Lease:
    """Store `WHOLE`: by one `load` if the saver offers it, else by commits.

    Args:
        saver: the saver.
        thread: the thread's id.
        run: the id of the run that acquires the lease.

    Returns:
        The lease, which is live.
    """
    if not offers(saver, "load"):
        return await fill_by_commits(saver, thread, run)
    lease = await take(saver, thread, run)
    await saver.load(lease, WHOLE)
    return lease


async def fill_by_commits(saver: BaseCheckpointSaver, thread: str = "t", run: str = "run-1") -> Lease:
    """Store `WHOLE` by one commit for each row, and one that moves the head.

    Args:
        saver: the saver.
        thread: the thread's id.
        run: the id of the run that acquires the lease.

    Returns:
        The lease, which is live.
    """
    lease = await take(saver, thread, run)
    for step in fill_commits():
        await step(saver, lease)
    return lease


def fill_commits() -> list[Callable[[BaseCheckpointSaver, Lease], Awaitable[None]]]:
    """Return the calls of `fill_by_commits`, in order. Each is one commit."""

    def add(new: CheckpointRow) -> Callable[[BaseCheckpointSaver, Lease], Awaitable[None]]:
        before = [one.step + 1 for one in WHOLE.rows if one.ns == new.ns and one.checkpoint_id < new.checkpoint_id]
        records = [one for one in WHOLE.records if (one.ns, one.checkpoint_id) == (new.ns, new.checkpoint_id)]
        events = [one for one in WHOLE.events if not new.ns and one.checkpoint_id == new.checkpoint_id]
        head = before[-1] if before else None
        one = commit(new, head=head, records=records, events=events, metadata=WHOLE.metadata)
        return lambda saver, lease: saver.commit(lease, one)

    return [
        *(add(one) for one in WHOLE.rows),
        lambda saver, lease: saver.commit(lease, commit(head=11, moves=("", HEAD))),
    ]


class WriteScenario(NamedTuple):
    """One call of a verb that writes, with everything that the verb can write.

    Attributes:
        name: what the call does.
        verb: the name of the verb; `commits_others` for a commit of several namespaces.
        act: calls the verb under a lease.
        empty: whether the call needs an empty thread instead of `WHOLE`.
    """

    name: str
    verb: str
    act: Callable[[BaseCheckpointSaver, Lease], Awaitable[None]]
    empty: bool = False

    async def prepare(self, saver: BaseCheckpointSaver, thread: str = "t", run: str = "run-1") -> Lease:
        """Make a thread on which the call succeeds, and acquire its lease.

        Args:
            saver: the saver.
            thread: the thread's id.
            run: the id of the run that acquires the lease.
        """
        return await (take if self.empty else fill)(saver, thread, run)


NEXT: Final = commit(
    row(12, HEAD, base=6, metadata={"source": "loop", "step": 11, "note": "new"}),
    row(13, 12, base=6),
    head=HEAD,
    records=[record(13, "e"), record(7, "f", 2)],
    clears=[record(7, "c"), record(4, "a")],
    events=[event(7, 2, "tail", epoch=2), event(13)],
    expires_at=LATER + 9,
    metadata={"user": "Eve", "since": 2026},
)

CHANGE: Final = Rewrite(
    gone=(("", cid(4)), ("", cid(10)), ("", cid(11)), ("child", cid(7)), ("child", cid(9))),
    rows=(row(6, 5, frame=b"a full row now", metadata={"source": "fork"}), row(3, None, base=1, frame=b"")),
    heads={"": cid(3), "child": None},
    events=(cid(1), cid(4)),
    pins={("", cid(2)): True, ("", cid(7)): True},
)
"""Deletes a branch and a namespace, replaces two rows, moves the head, deletes events, and sets pins."""

MOVE: Final = commit(head=HEAD, moves=("", 4), records=[record(4, "a", 3, frame=b"new")], clears=[record(4, "b")])

SEVERAL: Final = commit(
    row(14, HEAD, base=6),
    head=HEAD,
    records=[record(14, "e"), record(12, "e", ns="child")],
    clears=[record(9, "d", ns="child")],
    events=[event(14)],
    others=[change(row(12, 9, base=7, ns="child"), head=9), change(row(13, ns="new"), row(15, 13, base=13, ns="new"))],
)
"""Adds checkpoints to three namespaces, one of which is new."""

OTHER: Final = ThreadDump(
    heads={"new": cid(8)}, rows=(row(8, ns="new"),), records=(), events=(event(8),), replaces=True
)
"""Replaces all of a thread by one checkpoint of another namespace."""

WRITE_SCENARIOS: Final = (
    WriteScenario("renew", "renew", lambda saver, lease: saver.renew(lease, expires_at=LATER + 9)),
    WriteScenario("commit", "commit", lambda saver, lease: saver.commit(lease, NEXT)),
    WriteScenario("commit namespaces", "commits_others", lambda saver, lease: saver.commit(lease, SEVERAL)),
    WriteScenario("move the head", "commit", lambda saver, lease: saver.commit(lease, MOVE)),
    WriteScenario(
        "commit and release",
        "commit",
        lambda saver, lease: saver.commit(lease, commit(row(12, HEAD), head=HEAD, releases=True)),
    ),
    WriteScenario(
        "record",
        "record",
        lambda saver, lease: saver.record(
            lease, [record(7, "", 0, "error", frame=b"again"), record(7, "g", 4)], expires_at=LATER + 9
        ),
    ),
    WriteScenario("release", "release", lambda saver, lease: saver.release(lease)),
    WriteScenario("rewrite", "rewrite", lambda saver, lease: saver.rewrite(lease, CHANGE)),
    WriteScenario("load", "load", lambda saver, lease: saver.load(lease, WHOLE), empty=True),
    WriteScenario("replace", "load", lambda saver, lease: saver.load(lease, OTHER)),
    WriteScenario("erase", "erase", lambda saver, lease: saver.erase(lease)),
)
"""Calls that all change the thread. Under a lost lease `release` does nothing, and the others raise."""
