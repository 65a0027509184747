"""Read a stream to its end for a client that may disconnect: the run's side of a response.

A task of its own reads the run (`read_to_end`), within the request that the run answers. The client's side receives the
encoded events from a small channel, so that a slow client slows the run. When the client's side closes the channel, the
run is cancelled, or continues and no longer waits for the client.
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
"""How a run has ended, as the event `end` says:

    success      nothing is left to run
    interrupted  it waits for an answer, or has stopped at a breakpoint
    error        it has failed
    drained      the service shuts down; a client that reconnects resumes the run
    timeout      it has taken longer than `Limits.run`
    cancelled    the service cancelled it, or its clients have disconnected
"""


BUFFERED_EVENTS = 16
"""Number of events that the channel holds, in addition to the parts in the stream's buffer. They are sent together."""


REDUCER_NOTE_PREFIX = "raised by the reducer of "
"""The beginning of the note that the runtime adds to an exception which a reducer has raised."""


def _was_raised_by_reducer(error: Exception) -> bool:
    """Return True if a reducer raised the exception, as its notes say."""
    return any(note.startswith(REDUCER_NOTE_PREFIX) for note in getattr(error, "__notes__", ()))


class RunReader:
    """Reads one run's stream, and encodes its parts as events.

    Attributes:
        started: set when the run has begun or is refused.
        finished: set when the run has ended, and all its events are in the channel.
        refusal: why the run is refused; None if it is not. A refused run has sent no event.
        response_started: set by the client's side before it sends the status 200. From then on, a run that cannot begin
            sends an `error` event, and is not refused.
        status: how the run has ended.
        failure: the exception that ended the run; None if it did not fail.
        last_values: the newest `values` part of the called graph; None before the first.
        run_id: the run's id.
        events: the channel's receiving side: encoded events. Closing it means that the client has disconnected.

    Args:
        stream: the run's stream, not read yet.
        encoder: encodes its parts.
        limits: `run` counts here.
        service: the application's service.
        run_id: the run's id, if the run is started or resumed here.
        attempt: the number of the attempt that is read, from 1.
        extra: entries of the event `metadata` besides the run's id and attempt.
        registration: is registered when the run has begun; None if the run has no stored thread.
        expose_errors: send the client every error's own message.
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
        """Take the events that are in the channel, without waiting.

        Returns:
            The encoded events, joined; empty if there are none.
        """
        events: list[bytes] = []
        with contextlib.suppress(anyio.WouldBlock, anyio.EndOfStream):
            while len(events) < BUFFERED_EVENTS:
                events.append(self.events.receive_nowait())
        return b"".join(events)

    def cancel(self, *, for_good: bool = False) -> None:
        """Cancel the run. If it has not begun, it never begins.

        Args:
            for_good: also record that no service is to resume the run.
        """
        self._cancel_requested = True
        if for_good:
            self._stream.dismiss()
        if self._scope is not None:
            self._scope.cancel()

    async def read_to_end(self) -> None:
        """Read the run to its end.

        The run's exceptions are not raised: `refusal`, `failure` and `status` hold the outcome. If the call is
        cancelled, so is the run.
        """
        try:
            await self._read_to_end()
        finally:
            # Also when this task is cancelled: the client's side waits for these.
            self._sender.close()
            self.started.set()
            self.finished.set()

    async def _read_to_end(self) -> None:
        seconds = self._limits.run
        deadline = float("inf") if seconds is None else anyio.current_time() + seconds
        with anyio.CancelScope(deadline=deadline) as self._scope:
            if self._cancel_requested:  # by `cancel`, before there was a scope
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
        """Note the exception that ended the run: as a refusal if the run has not begun, and else as a failure."""
        self.failure = error
        if isinstance(error, GraphDrained):
            self.status = "drained"
        elif isinstance(error, RunCancelledError):
            self.status = "cancelled"
        elif not self.started.is_set() and not self.response_started and not isinstance(error, RecordedFailureError):
            self.refusal = error
            if isinstance(error, EmptyInputError) and self._encoder.last_cursor is not None:
                self.refusal = Refusal(404, "NotFound", "this thread has no run to reconnect to")
            elif isinstance(error, (InvalidUpdateError, UnstorableValueError)):
                # No node has run, so the value is the client's own, and the message says nothing of the service.
                self.refusal = Refusal(422, type(error).__name__, str(error))
            elif _was_raised_by_reducer(error):
                # The value is the client's own here too, but the message is the service's code: hide it.
                self.refusal = Refusal(422, type(error).__name__, "what was sent does not fit the graph's state")
        elif not isinstance(error, RecordedFailureError) and not describe_failure(error).is_expected:
            log.error("run %s has failed", self.run_id, exc_info=error)

    async def _send_parts(self) -> None:
        """Send the event `metadata`, and then the events of each part."""
        stream, encoder = self._stream, self._encoder
        await stream.begin()
        # The stream may have joined a run that was started elsewhere, after the metadata was read.
        if stream.run_id is not None and stream.run_id != self.run_id:
            self.run_id, self._attempt = stream.run_id, 1
        if encoder.last_cursor is None:
            encoder.last_cursor = stream.cursor
        self.started.set()
        # Not before: a request that is refused, or waits for its thread, must not keep the thread's present run alive.
        if self._registration is not None:
            self._registration.register()
        has_client = await self._send_metadata()
        async for part in stream:
            if part["type"] == "error":
                self._failure_is_new = part["seq"] > 0  # 0: the client read it before it reconnected
            elif part["type"] == "values" and not part["ns"]:
                self.last_values = part
            events = encoder.encode_part(part)
            if has_client and not await self._send(events):
                # Let the run continue without waiting for anyone. If it is to be cancelled, `cancel` does that.
                await stream.finish()
                return

    async def _send_metadata(self) -> bool:
        """Send the event `metadata`. Return False if the client has disconnected."""
        self._metadata_sent = True
        return await self._send([self._encoder.encode_metadata(self.run_id, self._attempt, **self._extra)])

    async def _send(self, events: list[bytes]) -> bool:
        """Put events into the channel. Return False if the client has disconnected."""
        try:
            for event in events:
                await self._sender.send(event)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return False
        return True

    async def _send_final_events(self) -> None:
        """Send the events of a run that has ended: its failure, its last messages, and `end`."""
        encoder, failure = self._encoder, self.failure
        if not self._metadata_sent:
            await self._send_metadata()
        events: list[bytes] = []
        # The encoder holds the event of a recorded failure back. It is sent here instead, made of the exception that
        # ended the run, which says more than its record. A client that reconnects after that event does not get it
        # again.
        already_sent = isinstance(failure, RecordedFailureError) and not self._failure_is_new
        if self.status == "error" and failure is not None and not already_sent:
            events.append(encoder.encode_failure(describe_failure(failure, expose_errors=self._expose_errors)))
        await self._send(
            [*events, *encoder.encode_final_messages(self.status), encoder.encode_end(self.run_id, self.status)]
        )
