"""Stop runs from outside, at points where they can be resumed."""

from __future__ import annotations


class RunControl:
    """Stops the runs to which it was passed (`ainvoke(..., control=control)`), so that they can be resumed.

    Tasks that have begun finish, and their results are stored. No further task begins: neither one of the next
    superstep, nor one of this superstep that waits for a slot of `max_concurrency` or for a worker thread. If work is
    left, the call raises `GraphDrained`, and a resume runs only that work. Subgraphs, and tasks that nodes call, stop
    in the same way. All methods may be called in any thread, and in a signal handler.

    Attributes:
        drain_requested: True if a drain was requested.
        drain_reason: the reason of the request; None before it.
    """

    # Two attributes and no lock: a signal handler may interrupt this very thread while it holds a lock, and would wait
    # for itself.
    def __init__(self) -> None:
        self._requested = False
        self._reason: str | None = None

    def request_drain(self, reason: str = "shutdown") -> None:
        """Request that the runs stop. The first request decides the reason; later ones do nothing.

        Args:
            reason: the reason, which `GraphDrained` carries.
        """
        if not self._requested:
            # The reason first: a thread that sees the request must find it.
            self._reason = reason
            self._requested = True

    @property
    def drain_requested(self) -> bool:
        """True if a drain was requested."""
        return self._requested

    @property
    def drain_reason(self) -> str | None:
        """The reason of the first request; None if no drain was requested."""
        return self._reason
