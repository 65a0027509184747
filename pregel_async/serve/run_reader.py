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
from .event_encoder import EventEncoder
from .failures import Refusal, describe_failure, log
from .limits import Limits
from .readers import ReaderRegistration
from .service import Service

Status: TypeAlias = Literal["success", "interrupted", "error", "drained", "timeout", "cancelled"]
"""How a run has ended, as a client is told:

    success      nothing is left to run
    interrupted  it asks, or has stopped at a breakpoint
    error        it has failed
    drained      the service shuts down; come back, and it goes on
    timeout      it has taken as long as a run may
    cancelled    by the service, or because those who watched it have left
"""


BUFFERED_EVENTS = 16
"""Events that wait for the client, beside the parts that wait in the stream's pipe. They go out together."""


REDUCER_NOTE_PREFIX = "raised by the reducer of "
"""How the note begins that an exception has from the fold in which a reducer raised it."""


def _was_raised_by_reducer(error: Exception) -> bool:
    return any(note.startswith(REDUCER_NOTE_PREFIX) for note in getattr(error, "__notes__", ()))


class RunReader:
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
        encoder: EventEncoder,
        limits: Limits,
        service: Service,
        *,
        run_id: str | None = None,
        attempt: int = 1,
        extra: dict[str, Any] | None = None,
        registration: ReaderRegistration | None = None,
        expose_errors: bool = False,
    ) -> None:
        self.started = anyio.Event()
        self.finished = anyio.Event()
        self.refusal: Exception | None = None
        self.response_started = False
        self.status: Status = "error"
        self.failure: Exception | None = None
        self.last_values: Any = None
        self.run_id = run_id
        self._stream = stream
        self._encoder = encoder
        self._limits = limits
        self._service = service
        self._attempt = attempt
        self._extra = {} if extra is None else extra
        self._registration = registration
        self._expose_errors = expose_errors
        self._metadata_sent = False
        self._failure_is_new = False
        self._scope: anyio.CancelScope | None = None
        self._cancel_requested = False
        self._sender, self.events = anyio.create_memory_object_stream[bytes](BUFFERED_EVENTS)

    def take_buffered(self) -> bytes:
        """The events that can be told at once."""
        events: list[bytes] = []
        with contextlib.suppress(anyio.WouldBlock, anyio.EndOfStream):
            while len(events) < BUFFERED_EVENTS:
                events.append(self.events.receive_nowait())
        return b"".join(events)

    def cancel(self, *, for_good: bool = False) -> None:
        """Cancel the run.

        Args:
            for_good: nobody wants it any more: it is not to be picked up.
        """
        self._cancel_requested = True
        if for_good:
            self._stream.dismiss()
        if self._scope is not None:
            self._scope.cancel()

    async def read_to_end(self) -> None:
        """Read the run to its end. Raises nothing but a cancellation, which cancels the run."""
        try:
            await self._read_to_end()
        finally:
            self._sender.close()
            self.started.set()
            self.finished.set()

    async def _read_to_end(self) -> None:
        seconds = self._limits.run
        deadline = float("inf") if seconds is None else anyio.current_time() + seconds
        with anyio.CancelScope(deadline=deadline) as self._scope:
            if self._cancel_requested:
                self._scope.cancel()
            try:
                async with self._stream:
                    await self._send_parts()
                self.status = "success" if self._stream.status == "done" else "interrupted"
            except Exception as error:
                self._record_failure(error)
        if self._scope.cancelled_caught:
            self.status = "cancelled" if self._cancel_requested else "timeout"
            if not self.started.is_set() and not self.response_started:
                self.refusal = Refusal(503, "Busy", "the run could not begin in time", {"retry-after": "1"})
        if self.refusal is None:
            self.started.set()
            await self._send_final_events()

    def _record_failure(self, error: Exception) -> None:
        self.failure = error
        if isinstance(error, GraphDrained):
            self.status = "drained"
        elif isinstance(error, RunCancelledError):
            self.status = "cancelled"
        elif not self.started.is_set() and not self.response_started and not isinstance(error, RecordedFailureError):
            self.refusal = error
            if isinstance(error, EmptyInputError) and self._encoder.last_cursor is not None:
                self.refusal = Refusal(404, "NotFound", "this thread has nothing to come back to")
            elif isinstance(error, (InvalidUpdateError, UnstorableValueError)):
                self.refusal = Refusal(422, type(error).__name__, str(error))  # nothing has run: it is the client's own
            elif _was_raised_by_reducer(error):  # so it is here; but the words are the service's
                self.refusal = Refusal(422, type(error).__name__, "what was sent does not fit the graph's state")
        elif not isinstance(error, RecordedFailureError) and not describe_failure(error).is_expected:
            log.error("run %s has failed", self.run_id, exc_info=error)

    async def _send_parts(self) -> None:
        stream, encoder = self._stream, self._encoder
        await stream.begin()
        if stream.run_id is not None and stream.run_id != self.run_id:
            self.run_id, self._attempt = stream.run_id, 1
        if encoder.last_cursor is None:
            encoder.last_cursor = stream.cursor
        self.started.set()
        if self._registration is not None:
            self._registration.register()
        has_client = await self._send_metadata()
        async for part in stream:
            if part["type"] == "error":
                self._failure_is_new = part["seq"] > 0  # else it was told before
            elif part["type"] == "values" and not part["ns"]:
                self.last_values = part
            events = encoder.encode_part(part)
            if has_client and not await self._send(events):
                await stream.finish()
                return

    async def _send_metadata(self) -> bool:
        self._metadata_sent = True
        return await self._send([self._encoder.encode_metadata(self.run_id, self._attempt, **self._extra)])

    async def _send(self, events: list[bytes]) -> bool:
        """Hand events to the client's side. Whether it takes any."""
        try:
            for event in events:
                await self._sender.send(event)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return False
        return True

    async def _send_final_events(self) -> None:
        """The last events."""
        encoder, failure = self._encoder, self.failure
        if not self._metadata_sent:
            await self._send_metadata()
        events: list[bytes] = []
        already_sent = isinstance(failure, RecordedFailureError) and not self._failure_is_new
        if self.status == "error" and failure is not None and not already_sent:
            events.append(encoder.encode_failure(describe_failure(failure, expose_errors=self._expose_errors)))
        await self._send(
            [*events, *encoder.encode_final_messages(self.status), encoder.encode_end(self.run_id, self.status)]
        )
