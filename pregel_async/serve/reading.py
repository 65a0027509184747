"""A stream that is read to its end for a client that may leave: the side of a response that belongs to the run.

The run is read in a task of its own (`drive`), inside the request that it answers. The client's side takes what is
told from a channel that holds little, so that a slow client slows the run. When that side is closed, the run is
cancelled, or goes on and nobody waits for its chunks.
"""

from __future__ import annotations

import contextlib
from typing import Any, Literal, TypeAlias

import anyio

from .._runtime.streaming.stream import GraphStream
from ..errors import (
    EmptyInputError,
    GraphDrained,
    InvalidUpdateError,
    RecordedFailureError,
    RunCancelledError,
    UnstorableValueError,
)
from .audience import Seat
from .failures import Refusal, log, told
from .limits import Limits
from .service import Service
from .wire import Wire

Status: TypeAlias = Literal["success", "interrupted", "error", "drained", "timeout", "cancelled"]
"""How a run has ended, as a client is told:

    success      nothing is left to run
    interrupted  it asks, or has stopped at a breakpoint
    error        it has failed
    drained      the service shuts down; come back, and it goes on
    timeout      it has taken as long as a run may
    cancelled    by the service, or because those who watched it have left
"""


UNREAD = 16
"""Events that wait for the client, beside the parts that wait in the stream's pipe. They go out together."""


FOLDING = "raised by the reducer of "
"""How the note begins that an exception has from the fold in which a reducer raised it."""


def _is_folding(error: Exception) -> bool:
    return any(note.startswith(FOLDING) for note in getattr(error, "__notes__", ()))


class Reading:
    """One stream, and what becomes of it.

    Attributes:
        started: set when it is known whether there is a run to tell of.
        over: set when the run has ended, and all was told.
        refused: why there is none.
        promised: the client has been told that there is one, though it is not known yet.
        status: how the run has ended.
        failure: what it has failed with.
        last: the newest `values` part.
        run_id: of the run.

    Args:
        more: entries of `metadata` beside the run's id and attempt.
        seat: where the reader sits once the run has begun.
        expose: tell the words of every error.
    """

    def __init__(
        self,
        stream: GraphStream[Any],
        wire: Wire,
        limits: Limits,
        service: Service,
        *,
        run_id: str | None = None,
        attempt: int = 1,
        more: dict[str, Any] | None = None,
        seat: Seat | None = None,
        expose: bool = False,
    ) -> None:
        self.started = anyio.Event()
        self.over = anyio.Event()
        self.refused: Exception | None = None
        self.promised = False
        self.status: Status = "error"
        self.failure: Exception | None = None
        self.last: Any = None
        self.run_id = run_id
        self._stream = stream
        self._wire = wire
        self._limits = limits
        self._service = service
        self._attempt = attempt
        self._more = {} if more is None else more
        self._seat = seat
        self._expose = expose
        self._introduced = False
        self._told_failure = False
        self._scope: anyio.CancelScope | None = None
        self._stopped = False
        self._sender, self.events = anyio.create_memory_object_stream[bytes](UNREAD)

    def waiting(self) -> bytes:
        """The events that can be told at once."""
        events: list[bytes] = []
        with contextlib.suppress(anyio.WouldBlock, anyio.EndOfStream):
            while len(events) < UNREAD:
                events.append(self.events.receive_nowait())
        return b"".join(events)

    def stop(self, *, for_good: bool = False) -> None:
        """Cancel the run.

        Args:
            for_good: nobody wants it any more: it is not to be picked up.
        """
        self._stopped = True
        if for_good:
            self._stream.dismiss()
        if self._scope is not None:
            self._scope.cancel()

    async def drive(self) -> None:
        """Read the run to its end. Raises nothing but a cancellation, which cancels the run."""
        try:
            await self._drive()
        finally:
            self._sender.close()
            self.started.set()
            self.over.set()

    async def _drive(self) -> None:
        seconds = self._limits.run
        deadline = float("inf") if seconds is None else anyio.current_time() + seconds
        with anyio.CancelScope(deadline=deadline) as self._scope:
            if self._stopped:
                self._scope.cancel()
            try:
                async with self._stream:
                    await self._read()
                self.status = "success" if self._stream.status == "done" else "interrupted"
            except Exception as error:
                self._fail(error)
        if self._scope.cancelled_caught:
            self.status = "cancelled" if self._stopped else "timeout"
            if not self.started.is_set() and not self.promised:
                self.refused = Refusal(503, "Busy", "the run could not begin in time", {"retry-after": "1"})
        if self.refused is None:
            self.started.set()
            await self._close()

    def _fail(self, error: Exception) -> None:
        self.failure = error
        if isinstance(error, GraphDrained):
            self.status = "drained"
        elif isinstance(error, RunCancelledError):
            self.status = "cancelled"
        elif not self.started.is_set() and not self.promised and not isinstance(error, RecordedFailureError):
            self.refused = error
            if isinstance(error, EmptyInputError) and self._wire.place is not None:
                self.refused = Refusal(404, "NotFound", "this thread has nothing to come back to")
            elif isinstance(error, (InvalidUpdateError, UnstorableValueError)):
                self.refused = Refusal(422, type(error).__name__, str(error))  # nothing has run: it is the client's own
            elif _is_folding(error):  # so it is here; but the words are the service's
                self.refused = Refusal(422, type(error).__name__, "what was sent does not fit the graph's state")
        elif not isinstance(error, RecordedFailureError) and not told(error).known:
            log.error("run %s has failed", self.run_id, exc_info=error)

    async def _read(self) -> None:
        stream, wire = self._stream, self._wire
        await stream.begin()
        if stream.run_id is not None and stream.run_id != self.run_id:
            self.run_id, self._attempt = stream.run_id, 1
        if wire.place is None:
            wire.place = stream.cursor
        self.started.set()
        if self._seat is not None:
            self._seat.take()
        read_along = await self._introduce()
        async for part in stream:
            if part["type"] == "error":
                self._told_failure = part["seq"] > 0  # else it was told before
            elif part["type"] == "values" and not part["ns"]:
                self.last = part
            events = wire.part(part)
            if read_along and not await self._tell(events):
                await stream.finish()
                return

    async def _introduce(self) -> bool:
        self._introduced = True
        return await self._tell([self._wire.metadata(self.run_id, self._attempt, **self._more)])

    async def _tell(self, events: list[bytes]) -> bool:
        """Hand events to the client's side. Whether it takes any."""
        try:
            for event in events:
                await self._sender.send(event)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return False
        return True

    async def _close(self) -> None:
        """The last events."""
        wire, failure = self._wire, self.failure
        if not self._introduced:
            await self._introduce()
        events: list[bytes] = []
        read_before = isinstance(failure, RecordedFailureError) and not self._told_failure
        if self.status == "error" and failure is not None and not read_before:
            events.append(wire.failure(told(failure, expose=self._expose)))
        await self._tell([*events, *wire.rest(self.status), wire.end(self.run_id, self.status)])
