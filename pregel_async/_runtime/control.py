"""Stopping runs from outside, where they can be gone on with."""

from __future__ import annotations


class RunControl:
    """Stops the runs that it was given to (`ainvoke(..., control=control)`), at their next barrier.

    A superstep that is under way is finished and stored; if there is work left, the call raises `GraphDrained`. Graphs
    that nodes run stop at their own barriers. Any thread may call it, a signal handler too.

    Attributes:
        drain_requested: whether the runs are to stop.
        drain_reason: why; None while they are not to.
    """

    def __init__(self) -> None:
        self._reason: str | None = None

    def request_drain(self, reason: str = "shutdown") -> None:
        """Let the runs stop. The first reason counts."""
        if self._reason is None:
            self._reason = reason

    @property
    def drain_requested(self) -> bool:
        return self._reason is not None

    @property
    def drain_reason(self) -> str | None:
        return self._reason
