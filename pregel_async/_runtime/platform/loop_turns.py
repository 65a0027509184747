"""The event loop's turns in one graph's run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable


class LoopTurns:
    """The event loop gets its turn, and a cancellation is noticed, once at each barrier.

    Attributes:
        turn: gives the event loop its turn.
        is_taken: it has had its turn at this barrier.
    """

    __slots__ = ("is_taken", "turn")

    def __init__(self, turn: Callable[[], Awaitable[object]], *, is_taken: bool) -> None:
        self.turn = turn
        self.is_taken = is_taken
