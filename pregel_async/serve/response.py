"""Responses that tell a run while it goes on, as server-sent events; or its result, as one document."""

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

from .._runtime.platform.event_loops import alone
from .._runtime.streaming.parts import Cursor
from .._runtime.streaming.stream import GraphStream
from ..errors import ConfigError, InvalidCursorError
from ..types import StateSnapshot
from .event_encoder import EventEncoder, ReaderPosition, parse_event_id
from .failures import Refusal, failure_response
from .json_encoder import JsonEncoder
from .limits import Limits
from .readers import ReaderRegistration
from .request import OnDisconnect, last_event_id_of
from .run_reader import RunReader
from .service import Service, find_service

HEARTBEAT = "heartbeat"

NO_HEARTBEAT_SECONDS = 1_000_000_000
"""Seconds."""

FIRST_BYTE_SECONDS = 5.0
"""Seconds until a status is sent, where there are no heartbeats."""


class RunResponse(Response):
    """Answers a request with a run.

    Until the run has begun, or has been refused, no status is sent; for as long as between two heartbeats at most.
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
            async with anyio.create_task_group() as group:
                start_soon(group, reader.read_to_end)
                start_soon(group, self._cancel_after_grace, reader)
                await self._respond(reader, scope, receive, send)
                if not reader.finished.is_set():
                    start_soon(group, self._handle_disconnect, reader)
                    await reader.finished.wait()
                group.cancel_scope.cancel()
        except BaseExceptionGroup as group_error:
            raise alone(group_error) from None
        finally:
            reader.events.close()
            if self._registration is not None:
                self._registration.unregister()

    async def _respond(self, reader: RunReader, scope: Scope, receive: Receive, send: Send) -> None:
        with anyio.move_on_after(self._limits.heartbeat or FIRST_BYTE_SECONDS):
            await reader.started.wait()
        reader.response_started = reader.refusal is None
        if reader.refusal is not None:
            await failure_response(reader.refusal, expose_errors=self._expose_errors)(scope, receive, send)
            return
        await self._send_events(reader, scope, receive, send)

    async def _send_events(self, reader: RunReader, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError

    async def _handle_disconnect(self, reader: RunReader) -> None:
        """The client has left."""
        if self._on_disconnect == "cancel":
            if self._registration is not None:
                self._registration.unregister()
            if self._registration is not None and self._registration.has_others:
                reader.events.close()
                await self._registration.wait_until_unread()
            reader.cancel(for_good=True)
        reader.events.close()

    async def _cancel_after_grace(self, reader: RunReader) -> None:
        """When the service shuts down, the run has some time to get to its next barrier."""
        await self._service.draining.wait()
        self._service.control.request_drain()
        await anyio.sleep(self._service.grace)
        reader.cancel()


class EventsResponse(RunResponse):
    """As server-sent events."""

    async def _send_events(self, reader: RunReader, scope: Scope, receive: Receive, send: Send) -> None:
        async def events() -> AsyncGenerator[bytes, None]:
            # Not the channel itself, which would be closed with the response: that says that the reader is gone.
            async for event in reader.events:
                yield event + reader.take_buffered()

        event_stream = events()
        response = EventSourceResponse(
            event_stream,
            sep="\n",
            ping=self._limits.heartbeat or NO_HEARTBEAT_SECONDS,
            ping_message_factory=lambda: ServerSentEvent(comment=HEARTBEAT, sep="\n"),
            # It looks for the server's shutdown by itself, and cuts the stream off when this time has passed. The run's
            # own time is over before.
            shutdown_event=self._service.draining,
            shutdown_grace_period=self._service.grace + 5,
        )
        # Around every message, the last and the heartbeats too: a client that takes nothing holds each of them up. One
        # scope for all of them, with a deadline while something is on its way.
        write = float("inf") if self._limits.write is None else self._limits.write
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
            except Exception:
                if not connection_lost:
                    raise


class DocumentResponse(RunResponse):
    """As one document, when the run has ended."""

    def __init__(self, *args: Any, make_document: Callable[[RunReader], Any], **options: Any) -> None:
        super().__init__(*args, **options)
        self._make_document = make_document

    async def _respond(self, reader: RunReader, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as group:

            async def wait_for_disconnect() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

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
        try:
            if reader.refusal is not None:
                return failure_response(reader.refusal, expose_errors=self._expose_errors)
            extra: dict[str, Any] = {"run_id": reader.run_id, "status": reader.status}
            if reader.failure is not None:
                return failure_response(reader.failure, expose_errors=self._expose_errors, is_logged=True, **extra)
            if reader.status == "timeout":
                message = "the run has taken as long as a run may; come back to it, or go on with its thread"
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
    """Tell a run as server-sent events, in a route of your own.

        @app.post("/chat/{thread_id}")
        async def chat(thread_id: str, message: Message, request: Request) -> Response:
            stream = graph.astream({"messages": [message.text]}, thread_id, stream_mode="messages", version="v2")
            return sse_response(stream, request)

    A run that is refused before it has begun is answered with a status and a JSON document instead.

    Args:
        stream: of `astream(..., version="v2")`, not read yet. It is read and closed here. To let readers come back,
            make it with `keep_events=True`, and with `after=last_event_id(request)` where there is one.
        on_disconnect: "cancel" cancels the run when its reader is gone: has closed the connection, or has not taken a
            chunk for `limits.write` seconds. "continue" lets it go on to its end, and nobody waits for the reader; the
            request is not over before the run is.
        limits: `run`, `write` and `heartbeat` count here.
        encode: makes something simpler of what is not JSON by nature, or raises `TypeError`.
        expose_errors: tell clients the words of every error, and not only of those that they can act on.
        tuples: tell messages as pairs with where they come from (`messages`), and not as they grow.

    Raises:
        ConfigError: the stream is none of version "v2".
        HTTPException: 400: the request names no event's id where it names one, or several.
    """
    check_stream(stream)
    check_on_disconnect(on_disconnect)
    limits = Limits() if limits is None else limits
    found = find_service(request)
    service = Service() if found is None else found
    position = _request_position(request)
    if position is not None:
        if position.after_end:
            return Response(status_code=204)  # an EventSource stops at that
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
    """Raises `ConfigError`."""
    if cast("object", policy) not in get_args(OnDisconnect):
        raise ConfigError(f"on_disconnect is one of {', '.join(get_args(OnDisconnect))}, not {policy!r}")


def check_stream(stream: GraphStream[Any]) -> None:
    """Raises `ConfigError` for a stream that does not say of what type its parts are."""
    given: object = stream
    if not isinstance(given, GraphStream) or not stream.is_labelled:
        raise ConfigError("sse_response takes a stream of astream(..., version='v2')")


def last_event_id(request: Request) -> str | None:
    """Where a reader has got to that comes back: for `astream(after=...)`. None for a new one.

    The id of an event is not always a cursor; this gives the cursor in it.

    Raises:
        HTTPException: 400: it is no id of an event.
    """
    position = _request_position(request)
    return None if position is None else position.cursor


def _request_position(request: Request) -> ReaderPosition | None:
    try:
        given = last_event_id_of(request)
        return None if given is None else parse_event_id(given)
    except (InvalidCursorError, Refusal) as error:
        raise HTTPException(400, str(error)) from error


def event_id(state: StateSnapshot) -> str | None:
    """After which event to read on for who has a thread's state: for `Last-Event-ID`, or `astream(after=...)`.

    What was shown since that state was stored comes first, also of a superstep that is under way. So a client needs to
    remember nothing: it takes the state, and reads on. None where nothing is stored: it reads from the beginning.
    """
    checkpoint_id = state.config.get("configurable", {}).get("checkpoint_id")
    return None if checkpoint_id is None else str(Cursor(checkpoint_id, 0, 0))
