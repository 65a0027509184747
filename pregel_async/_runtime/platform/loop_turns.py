"""Yield to the event loop once at each barrier of one graph's run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec


# `gc=False`: every waiting run holds one, which Python's collector would visit again and again.
class LoopTurns(msgspec.Struct, gc=False):
    """Notes whether the run has yielded to the event loop at the current barrier.

    A run yields once at each barrier: other tasks run, and a cancellation is noticed.

    Attributes:
        turn: yields to the event loop.
        is_taken: True if the run has yielded at this barrier.
    """

    # Noted, because publishing events may yield, too. That turn counts as the barrier's: a second one only costs time.

    turn: Callable[[], Awaitable[object]]
    is_taken: bool
