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
from .audience import Seat
from .failures import Refusal, failure_response
from .limits import Limits
from .plain import Writer
from .reading import Reading
from .request import OnDisconnect, last_event_id_of
from .service import Service, find_service
from .wire import Seen, Wire, seen

HEARTBEAT = "heartbeat"

NEVER = 1_000_000_000
"""Seconds."""

PATIENCE = 5.0
"""Seconds until a status is sent, where there are no heartbeats."""


class RunResponse(Response):
    """Answers a request with a run.

    Until the run has begun, or has been refused, no status is sent; for as long as between two heartbeats at most.
    """

    def __init__(
        self,
        reading: Callable[[], Reading],
        service: Service,
        limits: Limits,
        *,
        on_disconnect: OnDisconnect,
        seat: Seat | None = None,
        expose: bool = False,
    ) -> None:
        super().__init__()
        self._make = reading
        self._service = service
        self._limits = limits
        self._on_disconnect = on_disconnect
        self._seat = seat
        self._expose = expose

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reading = self._make()
        try:
            async with anyio.create_task_group() as group:
                start_soon(group, reading.drive)
                start_soon(group, self._watch, reading)
                await self._answer(reading, scope, receive, send)
                if not reading.over.is_set():
                    start_soon(group, self._leave, reading)
                    await reading.over.wait()
                group.cancel_scope.cancel()
        except BaseExceptionGroup as several:
            raise alone(several) from None
        finally:
            reading.events.close()
            if self._seat is not None:
                self._seat.leave()

    async def _answer(self, reading: Reading, scope: Scope, receive: Receive, send: Send) -> None:
        with anyio.move_on_after(self._limits.heartbeat or PATIENCE):
            await reading.started.wait()
        reading.promised = reading.refused is None
        if reading.refused is not None:
            await failure_response(reading.refused, expose=self._expose)(scope, receive, send)
            return
        await self._tell(reading, scope, receive, send)

    async def _tell(self, reading: Reading, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError

    async def _leave(self, reading: Reading) -> None:
        """The client has left."""
        if self._on_disconnect == "cancel":
            if self._seat is not None:
                self._seat.leave()
            if self._seat is not None and self._seat.others:
                reading.events.close()
                await self._seat.nobody()
            reading.stop(for_good=True)
        reading.events.close()

    async def _watch(self, reading: Reading) -> None:
        """When the service shuts down, the run has some time to get to its next barrier."""
        await self._service.draining.wait()
        self._service.control.request_drain()
        await anyio.sleep(self._service.grace)
        reading.stop()


class EventsResponse(RunResponse):
    """As server-sent events."""

    async def _tell(self, reading: Reading, scope: Scope, receive: Receive, send: Send) -> None:
        async def events() -> AsyncGenerator[bytes, None]:
            # Not the channel itself, which would be closed with the response: that says that the reader is gone.
            async for event in reading.events:
                yield event + reading.waiting()

        told = events()
        response = EventSourceResponse(
            told,
            sep="\n",
            ping=self._limits.heartbeat or NEVER,
            ping_message_factory=lambda: ServerSentEvent(comment=HEARTBEAT, sep="\n"),
            # It looks for the server's shutdown by itself, and cuts the stream off when this time has passed. The run's
            # own time is over before.
            shutdown_event=self._service.draining,
            shutdown_grace_period=self._service.grace + 5,
        )
        # Around every message, the last and the heartbeats too: a client that takes nothing holds each of them up. One
        # scope for all of them, with a deadline while something is on its way.
        write = float("inf") if self._limits.write is None else self._limits.write
        sending, gone = 0, False

        async def bounded(message: Message) -> None:
            nonlocal sending, gone
            if sending == 0:
                patience.deadline = anyio.current_time() + write
            sending += 1
            try:
                await send(message)
            except OSError:
                gone = True
                raise
            finally:
                sending -= 1
                if sending == 0:
                    patience.deadline = float("inf")

        with anyio.CancelScope() as patience:
            try:
                async with aclosing(told):
                    await response(scope, receive, bounded)
            except Exception:
                if not gone:
                    raise


class DocumentResponse(RunResponse):
    """As one document, when the run has ended."""

    def __init__(self, *args: Any, finish: Callable[[Reading], Any], **more: Any) -> None:
        super().__init__(*args, **more)
        self._finish = finish

    async def _answer(self, reading: Reading, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as group:

            async def listen() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            async def take() -> None:
                async for _ in reading.events:
                    pass

            start_soon(group, listen)
            start_soon(group, take)
            await reading.over.wait()
            group.cancel_scope.cancel()
        if reading.over.is_set():
            response = await self._document(reading)
            with anyio.move_on_after(self._limits.write):
                await response(scope, receive, send)

    async def _document(self, reading: Reading) -> Response:
        try:
            if reading.refused is not None:
                return failure_response(reading.refused, expose=self._expose)
            more: dict[str, Any] = {"run_id": reading.run_id, "status": reading.status}
            if reading.failure is not None:
                return failure_response(reading.failure, expose=self._expose, is_logged=True, **more)
            if reading.status == "timeout":
                words = "the run has taken as long as a run may; come back to it, or go on with its thread"
                return failure_response(Refusal(504, "Timeout", words), **more)
            if reading.status == "cancelled":
                return failure_response(Refusal(503, "Cancelled", "the run was cancelled"), **more)
            content = await self._finish(reading)
            return Response(content, media_type="application/json", headers={"cache-control": "no-store"})
        except Exception as error:
            return failure_response(error, expose=self._expose)


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
    check(stream)
    check_on_disconnect(on_disconnect)
    limits = Limits() if limits is None else limits
    found = find_service(request)
    service = Service() if found is None else found
    place = _place(request)
    if place is not None:
        if place.over:
            return Response(status_code=204)  # an EventSource stops at that
        stream.recall()
    wire = Wire(Writer(encode), tuples=tuples, seen=place, expose=expose_errors)
    return EventsResponse(
        lambda: Reading(stream, wire, limits, service, expose=expose_errors),
        service,
        limits,
        on_disconnect=on_disconnect,
        expose=expose_errors,
    )


def check_on_disconnect(policy: OnDisconnect) -> None:
    """Raises `ConfigError`."""
    if cast("object", policy) not in get_args(OnDisconnect):
        raise ConfigError(f"on_disconnect is one of {', '.join(get_args(OnDisconnect))}, not {policy!r}")


def check(stream: GraphStream[Any]) -> None:
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
    place = _place(request)
    return None if place is None else place.cursor


def _place(request: Request) -> Seen | None:
    try:
        given = last_event_id_of(request)
        return None if given is None else seen(given)
    except (InvalidCursorError, Refusal) as error:
        raise HTTPException(400, str(error)) from error


def event_id(state: StateSnapshot) -> str | None:
    """After which event to read on for who has a thread's state: for `Last-Event-ID`, or `astream(after=...)`.

    What was shown since that state was stored comes first, also of a superstep that is under way. So a client needs to
    remember nothing: it takes the state, and reads on. None where nothing is stored: it reads from the beginning.
    """
    checkpoint_id = state.config.get("configurable", {}).get("checkpoint_id")
    return None if checkpoint_id is None else str(Cursor(checkpoint_id, 0, 0))
