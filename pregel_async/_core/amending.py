"""Apply a call's update to a superstep that is open: change its state, and let triggered nodes join it."""

from __future__ import annotations

from collections.abc import Sequence

from . import superstep
from .board import Board
from .program import SENDS, Program, Write


def amend(program: Program, board: Board, writes: Sequence[Write], *, scope: superstep.Scope, number: int) -> None:
    """Fold a call's writes into a board whose superstep is open. The superstep's tasks see them and keep their ids.

    Nodes that the writes trigger join the superstep.

    Args:
        program: the graph.
        board: the board; changed in place.
        writes: the writes.
        scope: as in `superstep.update`.
        number: the update's number among those to the superstep, from 0.
    """
    # Writing a send replaces the pending ones, as a superstep's sends do. So those that wait are written again before.
    ran, updated, sends = board.ran, board.updated, board.channels.get(SENDS)
    waiting = [] if sends is None or not sends.is_available() else [(SENDS, send) for send in sends.get()]
    sent = any(name == SENDS for name, _ in writes)
    everything = [*waiting, *writes] if sent else writes
    superstep.update(program, board, (), [everything], step=board.step, scope=scope, edit=1 + number)
    board.ran = ran
    # The next `update` adds these to `changed`, so that its checkpoint stores them.
    board.amended = frozenset(board.changed)
    available = {name for name in (*updated, *board.updated) if board.channels[name].is_available()}
    board.updated = tuple(sorted(available))
