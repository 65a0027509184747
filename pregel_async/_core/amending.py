"""What a call brings to a superstep that is open: an update of its state, and nodes that join it."""

from __future__ import annotations

from collections.abc import Sequence

from . import superstep
from .board import Board
from .program import SENDS, Program, Write


def amend(program: Program, board: Board, writes: Sequence[Write], *, scope: superstep.Scope, number: int) -> None:
    """Fold writes that a call brings into a board whose superstep is open: its tasks see them, and stay the same.

    Nodes that the writes trigger join the superstep. The next `update` tells what changed here with what it changes.

    Args:
        scope: as in `superstep.update`.
        number: which of the updates to the superstep it is, from 0.
    """
    ran, updated, sends = board.ran, board.updated, board.channels.get(SENDS)
    waiting = [] if sends is None or not sends.is_available() else [(SENDS, send) for send in sends.get()]
    sent = any(name == SENDS for name, _ in writes)
    everything = [*waiting, *writes] if sent else writes
    superstep.update(program, board, (), [everything], step=board.step, scope=scope, edit=1 + number)
    board.ran = ran
    board.amended = set(board.changed)
    board.updated = sorted({name for name in (*updated, *board.updated) if board.channels[name].is_available()})
