"""Stopping runs from outside, where they can be gone on with."""

from __future__ import annotations


class RunControl:
    """Stops the runs that it was given to (`ainvoke(..., control=control)`), where they can be resumed.

    Tasks that have begun finish, and their results are stored. No further task begins: neither one of the next
    superstep nor one that waits its turn in this one, for a slot of `max_concurrency` or for a worker thread. If work
    is left, the call raises `GraphDrained`, and a resume runs only that. Graphs that nodes run, and tasks that nodes
    call, stop in the same way. Any thread may call it, a signal handler too.

    Attributes:
        drain_requested: whether the runs are to stop.
        drain_reason: why; None while they are not to.
    """

    def __init__(self) -> None:
        self._requested = False
        self._reason: str | None = None

    def request_drain(self, reason: str = "shutdown") -> None:
        """Ask the runs to stop. The first reason counts."""
        if not self._requested:
            self._reason = reason
            self._requested = True

    @property
    def drain_requested(self) -> bool:
        return self._requested

    @property
    def drain_reason(self) -> str | None:
        return self._reason
