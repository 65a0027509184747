"""Responses that send a run to the client, as server-sent events or as one JSON document."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, cast, get_args

import anyio
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from checkpoint_savers.children import start_soon

from .._api.json_encoder import JsonEncoder
from .._runtime.platform.event_loops import task_group
from .._runtime.streaming.parts import Cursor
from .._runtime.streaming.stream import GraphStream
from ..errors import ConfigError, InvalidCursorError
from ..types import StateSnapshot
from .event_encoder import EventEncoder, ReaderPosition, parse_event_id
from .failures import Refusal, failure_response
from .limits import Limits
from .readers import ReaderRegistration
from .request import OnDisconnect, last_event_id_of
from .run_reader import RunReader
from .service import Service, find_service

HEARTBEAT = "heartbeat"

NO_HEARTBEAT_SECONDS = 1_000_000_000
"""The ping interval in seconds when there are no heartbeats. None would mean sse-starlette's default of 15 seconds."""

FIRST_BYTE_SECONDS = 5.0
"""Seconds to wait for the run to begin before the status is sent, when there are no heartbeats."""


class RunResponse(Response):
    """Answers a request with a run.

    The run is read in a child task, so that it does not depend on the connection. The response ends when the run has
    ended, also after its client has disconnected.

    Args:
        make_reader: makes the run's reader; called once, when the response starts.
        service: the application's service, which may start a drain.
        limits: `run`, `write` and `heartbeat` count here.
        on_disconnect: "cancel" or "continue", see `sse_response`.
        registration: counts this client among the thread's readers; None if the run has no stored thread.
        expose_errors: send the client every error's own message.
    """

    def __init__(
        self,
        make_reader: Callable[[], RunReader],
        service: Service,
        limits: Limits,
        *,
        on_disconnect: OnDisconnect,
        registration: ReaderRegistration | None = None,
        expose_errors: bool = False,
    ) -> None:
        super().__init__()
        self._make_reader = make_reader
        self._service = service
        self._limits = limits
        self._on_disconnect = on_disconnect
        self._registration = registration
        self._expose_errors = expose_errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reader = self._make_reader()
        try:
            # The child tasks handle their failures, so the group can only hold what was raised in this task.
            async with task_group() as group:
                start_soon(group, reader.read_to_end)
                start_soon(group, self._cancel_after_grace, reader)
                await self._respond(reader, scope, receive, send)
                if not reader.finished.is_set():
                    start_soon(group, self._handle_disconnect, reader)
                    await reader.finished.wait()
                group.cancel_scope.cancel()
        finally:
            reader.events.close()
            if self._registration is not None:
                self._registration.unregister()

    async def _respond(self, reader: RunReader, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a response: a refusal if the run is refused in time, and the run's events otherwise."""
        # Waiting lets a refusal have a status of its own: once events are sent, the status is 200. But a run may wait
        # for its thread for long, and a proxy may close a connection on which nothing arrives. So wait no longer than
        # between two heartbeats.
        with anyio.move_on_after(self._limits.heartbeat or FIRST_BYTE_SECONDS):
            await reader.started.wait()
        reader.response_started = reader.refusal is None
        if reader.refusal is not None:
            await failure_response(reader.refusal, expose_errors=self._expose_errors)(scope, receive, send)
            return
        await self._send_events(reader, scope, receive, send)

    async def _send_events(self, reader: RunReader, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the run's events, until the run has ended or the client has disconnected."""
        raise NotImplementedError

    async def _handle_disconnect(self, reader: RunReader) -> None:
        """Cancel the run, or let it continue without a client, as `on_disconnect` says."""
        if self._on_disconnect == "cancel":
            # Unregister first: else this client counts among the others.
            if self._registration is not None:
                self._registration.unregister()
            if self._registration is not None and self._registration.has_others:
                # Close the channel before waiting: events that this client does not take would block the run that the
                # others read.
                reader.events.close()
                await self._registration.wait_until_unread()
            # For good: the client wants the run no more, so that `pick_up` must not resume it.
            reader.cancel(for_good=True)
        reader.events.close()

    async def _cancel_after_grace(self, reader: RunReader) -> None:
        """Wait until the service drains, then cancel the run if it has not stopped within the grace period."""
        await self._service.draining.wait()
        # sse-starlette may have set the event by itself, when it saw that the server stops: see `shutdown_event` below.
        self._service.control.request_drain()
        await anyio.sleep(self._service.grace)
        reader.cancel()


class EventsResponse(RunResponse):
    """Sends a run as server-sent events."""

    async def _send_events(self, reader: RunReader, scope: Scope, receive: Receive, send: Send) -> None:
        async def events() -> AsyncGenerator[bytes, None]:
            # Do not hand sse-starlette the channel itself: it closes its iterator with the response, and a closed
            # channel means to the run that the client has disconnected.
            async for event in reader.events:
                yield event + reader.take_buffered()

        # The response is cut off after its grace period: longer than the service's own, so that the run's last events
        # are sent before.
        await send_events(events(), self._service, self._limits, self._service.grace + 5, scope, receive, send)


async def send_events(
    event_stream: AsyncGenerator[bytes, None],
    service: Service,
    limits: Limits,
    grace: float,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Send encoded events, with heartbeats between them, until they end or the client has disconnected.

    Args:
        event_stream: the events. It is closed at the end.
        service: the application's service, which may start a drain.
        limits: `write` and `heartbeat` count here.
        grace: seconds after the start of a drain at which the response ends.
        scope: of the request, as for an ASGI application.
        receive: the same.
        send: the same.
    """
    response = EventSourceResponse(
        event_stream,
        sep="\n",
        ping=limits.heartbeat or NO_HEARTBEAT_SECONDS,
        ping_message_factory=lambda: ServerSentEvent(comment=HEARTBEAT, sep="\n"),
        # sse-starlette watches for the server's shutdown by itself, sets the event, and cuts the stream off after the
        # grace period.
        shutdown_event=service.draining,
        shutdown_grace_period=grace,
    )
    # A client that reads nothing blocks every `send`, heartbeats and the last message included. One scope covers
    # them all, with a deadline only while at least one is being sent: a scope and a timer for each event cost more.
    # Heartbeats and events are sent by two tasks, hence a count and not a flag.
    write = float("inf") if limits.write is None else limits.write
    sending, connection_lost = 0, False

    async def send_with_deadline(message: Message) -> None:
        nonlocal sending, connection_lost
        if sending == 0:
            write_scope.deadline = anyio.current_time() + write
        sending += 1
        try:
            await send(message)
        except OSError:
            connection_lost = True
            raise
        finally:
            sending -= 1
            if sending == 0:
                write_scope.deadline = float("inf")

    with anyio.CancelScope() as write_scope:
        try:
            async with aclosing(event_stream):
                await response(scope, receive, send_with_deadline)
        # A lost connection is a disconnect, not a failure. Any other exception is a bug, here or in a middleware.
        except Exception:
            if not connection_lost:
                raise


class DocumentResponse(RunResponse):
    """Sends a run as one JSON document, when it has ended.

    Args:
        make_document: makes the document of a run that succeeded or was interrupted, as JSON.
    """

    def __init__(self, *args: Any, make_document: Callable[[RunReader], Any], **options: Any) -> None:
        super().__init__(*args, **options)
        self._make_document = make_document

    async def _respond(self, reader: RunReader, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as group:

            async def wait_for_disconnect() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            # The run waits while its channel is full: read the events, though the document needs none of them.
            async def discard_events() -> None:
                async for _ in reader.events:
                    pass

            start_soon(group, wait_for_disconnect)
            start_soon(group, discard_events)
            await reader.finished.wait()
            group.cancel_scope.cancel()
        if reader.finished.is_set():
            response = await self._document(reader)
            with anyio.move_on_after(self._limits.write):
                await response(scope, receive, send)

    async def _document(self, reader: RunReader) -> Response:
        """Make the response to a run that has ended."""
        try:
            if reader.refusal is not None:
                return failure_response(reader.refusal, expose_errors=self._expose_errors)
            extra: dict[str, Any] = {"run_id": reader.run_id, "status": reader.status}
            if reader.failure is not None:
                return failure_response(reader.failure, expose_errors=self._expose_errors, is_logged=True, **extra)
            if reader.status == "timeout":
                message = "the run has taken longer than a run may; reconnect to it, or resume its thread"
                return failure_response(Refusal(504, "Timeout", message), **extra)
            if reader.status == "cancelled":
                return failure_response(Refusal(503, "Cancelled", "the run was cancelled"), **extra)
            content = await self._make_document(reader)
            return Response(content, media_type="application/json", headers={"cache-control": "no-store"})
        except Exception as error:
            return failure_response(error, expose_errors=self._expose_errors)


def sse_response(
    stream: GraphStream[Any],
    request: Request,
    on_disconnect: OnDisconnect = "cancel",
    *,
    limits: Limits | None = None,
    encode: Callable[[Any], Any] | None = None,
    expose_errors: bool = False,
    tuples: bool = False,
) -> Response:
    """Make a response that sends a run as server-sent events, for a route of your own.

        @app.post("/chat/{thread_id}")
        async def chat(thread_id: str, message: Message, request: Request) -> Response:
            stream = graph.astream({"messages": [message.text]}, thread_id, stream_mode="messages", version="v2")
            return sse_response(stream, request)

    A run that is refused before it has begun is answered with a status and a JSON document instead.

    Args:
        stream: the stream of `astream(..., version="v2")`, not read yet. The response reads and closes it. To let
            clients reconnect, make it with `keep_events=True`, and with `after=last_event_id(request)` if that is not
            None.
        request: the request to answer.
        on_disconnect: "cancel" cancels the run when its client has disconnected: when the client has closed the
            connection, or has not accepted a chunk for `limits.write` seconds. "continue" lets the run finish without
            its client. In both cases the request ends after the run.
        limits: `run`, `write` and `heartbeat` count here, all in seconds; None for the defaults of `Limits`.
        encode: called with each value that is not JSON by nature. It returns something simpler, or raises `TypeError`.
        expose_errors: send clients the message of every error, and not only of those that they can act on.
        tuples: send messages as pairs with their metadata (event `messages`), instead of adding up their chunks (events
            `messages/partial` and `messages/complete`).

    Returns:
        The response. It is empty, with status 204, if the client has read the run's last event already.

    Raises:
        ConfigError: the stream is not one of version "v2", or `on_disconnect` is not known.
        HTTPException: 400: the request's `Last-Event-ID` is not the id of an event, or is given more than once.
    """
    check_stream(stream)
    check_on_disconnect(on_disconnect)
    limits = Limits() if limits is None else limits
    found = find_service(request)
    service = Service() if found is None else found
    position = request_position(request)
    if position is not None:
        if position.after_end:
            # A browser's EventSource reconnects whenever a stream ends; 204 stops it.
            return Response(status_code=204)
        # Chunks of unfinished messages that this client has read come again, unsent, so that their sums are known.
        stream.recall()
    encoder = EventEncoder(JsonEncoder(encode), tuples=tuples, position=position, expose_errors=expose_errors)
    return EventsResponse(
        lambda: RunReader(stream, encoder, limits, service, expose_errors=expose_errors),
        service,
        limits,
        on_disconnect=on_disconnect,
        expose_errors=expose_errors,
    )


def check_on_disconnect(policy: OnDisconnect) -> None:
    """Check a disconnect policy.

    Args:
        policy: the policy.

    Raises:
        ConfigError: it is neither "cancel" nor "continue".
    """
    if cast("object", policy) not in get_args(OnDisconnect):
        raise ConfigError(f"on_disconnect is one of {', '.join(get_args(OnDisconnect))}, not {policy!r}")


def check_stream(stream: GraphStream[Any]) -> None:
    """Check that a stream's chunks say of which type they are.

    Args:
        stream: the stream.

    Raises:
        ConfigError: it is not a stream of `astream(..., version="v2")`.
    """
    given: object = stream
    if not isinstance(given, GraphStream) or not stream.is_labelled:
        raise ConfigError("sse_response takes a stream of astream(..., version='v2')")


def last_event_id(request: Request) -> str | None:
    """Return the cursor from which a reconnecting client continues: pass it to `astream(after=...)`.

    An event's id may contain more than a cursor. This returns the cursor alone.

    Args:
        request: the client's request.

    Returns:
        The cursor, or None if the client does not reconnect.

    Raises:
        HTTPException: 400: the request's `Last-Event-ID` is not the id of an event, or is given more than once.
    """
    position = request_position(request)
    return None if position is None else position.cursor


def request_position(request: Request) -> ReaderPosition | None:
    """Return the position that a reconnecting client has reached; None if the client does not reconnect.

    Args:
        request: the client's request.

    Raises:
        HTTPException: 400: the request's `Last-Event-ID` is not the id of an event, or is given more than once.
    """
    try:
        given = last_event_id_of(request)
        return None if given is None else parse_event_id(given)
    except (InvalidCursorError, Refusal) as error:
        raise HTTPException(400, str(error)) from error


def event_id(state: StateSnapshot) -> str | None:
    """Return the event id after which a client that has a thread's state continues reading.

    Send it as `Last-Event-ID`, or pass it to `astream(after=...)`. The client gets the events since that state was
    stored, those of a superstep that is running included. So a client need not remember anything: it fetches the state,
    and reads on.

    Args:
        state: a snapshot of the thread, as `aget_state` returns it.

    Returns:
        The id, or None if nothing is stored: then the client reads from the beginning.
    """
    checkpoint_id = state.config.get("configurable", {}).get("checkpoint_id")
    return None if checkpoint_id is None else str(Cursor(checkpoint_id, 0, 0))
