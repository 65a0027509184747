"""Known rows: which changes of runs may be stored with a superstep, and the rows after a transaction."""

from __future__ import annotations

from msgspec.structs import replace

from checkpoint_savers.conformance.runs.suite import request
from checkpoint_savers.owner import this_process
from checkpoint_savers.records import Lease
from checkpoint_savers.runs.decisions import Changes, Found
from checkpoint_savers.runs.known_rows import KnownRows, LeasedRows, RunChange
from checkpoint_savers.runs.rows import RunRow, RunThreadRow

THREAD = RunThreadRow(thread_id="t", created_at=1.0, updated_at=1.0, activation="active", epoch=3)
FIRST, SECOND = (
    RunRow(request=request(run_id), thread_id="t", seq=seq, status="running", created_at=1.0)
    for seq, run_id in enumerate("ab", 1)
)
FOUND = Found("t", THREAD, (FIRST, SECOND), FIRST, 2.0)
BEGUN = replace(FIRST, begun=True)


def lease(epoch: int) -> Lease:
    return Lease(thread_id="t", epoch=epoch, owner=this_process("w"), newest=None)


def test_a_change_of_one_run() -> None:
    """A superstep is stored with the change of its run, and of the thread's row."""
    ended = replace(THREAD, activation="none")
    assert RunChange.of(FOUND, Changes(None, runs=(BEGUN,))) == (FIRST, BEGUN, THREAD, None)
    assert RunChange.of(FOUND, Changes(None, ended, (BEGUN,))) == (FIRST, BEGUN, THREAD, ended)


def test_a_change_of_more_than_one_run() -> None:
    """P16: any other change is left to the ordinary transaction."""
    for changes in (
        Changes(None),
        Changes(None, THREAD),
        Changes(None, runs=(BEGUN, SECOND)),
        Changes(None, runs=(SECOND,)),
        Changes(None, runs=(BEGUN,), metadata={"n": 1}),
    ):
        assert RunChange.of(FOUND, changes) is None
    for found in (FOUND._replace(named=None), FOUND._replace(thread=None)):
        assert RunChange.of(found, Changes(None, runs=(BEGUN,))) is None


def test_what_a_transaction_leaves() -> None:
    """P16: the next decision under the lease finds the rows as the transaction has left them, with open runs only."""
    changed, released = list[tuple[object, ...]](), list[object]()
    known = LeasedRows(
        lambda *_: None, now=lambda: 5.0, notify=lambda *change: changed.append(change), released=released.append
    )
    after = KnownRows.after(FOUND, Changes(None, runs=(BEGUN, replace(SECOND, status="success"))), lease(3))
    known.note("t", after, ("run",), None)
    assert changed == [("t", ("run",))] and released == []
    assert known._pop(lease(4)) is None
    left = known._pop(lease(3))
    assert left is not None and known._pop(lease(3)) is None
    assert left.found("a", 5.0) == Found("t", THREAD, (BEGUN,), BEGUN, 5.0)
    assert left.found("b", 5.0).named is None


def test_open_runs_are_in_order() -> None:
    """A decision gets the open runs in the order in which they are taken."""
    urgent = replace(SECOND, request=request("b", priority=5))
    left = KnownRows.after(FOUND, Changes(None, runs=(urgent,)), lease(3))
    assert left is not None and left.found("a", 5.0).open == (urgent, FIRST)
