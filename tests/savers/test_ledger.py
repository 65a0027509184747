"""How states are laid out in rows: what a row takes, and that the rows of a chain give the state."""

from __future__ import annotations

from checkpoint_savers.ledger import SMALL, Entry, Ledger, Reader
from checkpoint_savers.records import CheckpointId, CheckpointRow

LARGE = bytes(50_000)


def entry(clock: int, values: dict[str, bytes]) -> Entry:
    return Entry(
        full=False,
        ts=0.0,
        clock=clock,
        values=values,
        emptied=(),
        kinds={},
        versions={},
        seen={},
        ran=("n",),
        results={},
    )


def chain_of(steps: int) -> list[CheckpointRow]:
    """A large value that is written once, and a small one in each superstep."""
    ledger = Ledger.start("")
    return [
        ledger.append(
            entry(at + 1, {"small": bytes([at % 256]) * 100} | ({} if at else {"large": LARGE})),
            checkpoint_id=CheckpointId(f"{at:06}"),
            step=at,
            metadata={},
        )
        for at in range(steps)
    ]


def test_rows_take_what_is_new() -> None:
    """P10: a value that does not change is not stored again with each superstep."""
    rows = chain_of(300)
    assert sum(len(row.frame) for row in rows) < 2 * len(LARGE) + 300 * 500
    assert len(rows[0].frame) > len(LARGE)
    assert all(len(row.frame) < 500 for row in rows[1:200])


def test_a_chain_does_not_grow_for_ever() -> None:
    """P10: what has to be read for a state is at most about twice what the state takes."""
    rows = chain_of(2000)
    for at in (500, 1000, 1999):
        read = [row for row in rows if row.base_id == rows[at].base_id and row.step <= at]
        assert sum(len(row.frame) for row in read) < 2 * (len(LARGE) + SMALL)


def test_a_chain_gives_its_state() -> None:
    """P10: whichever row is asked for, the values are those of its superstep."""
    rows = chain_of(600)
    for at in (0, 1, 299, 300, 301, 599):
        chain = [row for row in rows if row.base_id == rows[at].base_id and row.step <= at]
        state = Reader("t", "", chain).state(rows[at].checkpoint_id)
        assert state.values == {"large": LARGE, "small": bytes([at % 256]) * 100}
        assert state.clock == at + 1
