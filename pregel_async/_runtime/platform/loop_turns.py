"""Yield to the event loop once at each barrier of one graph's run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable


class LoopTurns:
    """Notes whether the run has yielded to the event loop at the current barrier.

    A run yields once at each barrier: other tasks run, and a cancellation is noticed.

    Attributes:
        turn: yields to the event loop.
        is_taken: True if the run has yielded at this barrier.
    """

    # Noted, because publishing events may yield, too. That turn counts as the barrier's: a second one only costs time.

    __slots__ = ("is_taken", "turn")

    def __init__(self, turn: Callable[[], Awaitable[object]], *, is_taken: bool) -> None:
        self.turn = turn
        self.is_taken = is_taken
