"""The response that sends the log of a thread of a `RunService` as server-sent events.

Each event has the name of its part's type, with the namespace of a subgraph after it, as in the response of a run; its
data is the part, as JSON; its id is the part's cursor. The last event is `end`. Its id ends with "~": a reader that
reconnects after it is answered with 204, which stops a browser's EventSource.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, cast

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from checkpoint_savers.children import start_soon

from .._api.json_encoder import JsonEncoder
from .._runtime.platform.event_loops import task_group
from ..errors import RecordedFailureError
from ..service import RunService
from ..types import StreamMode
from .event_encoder import END, END_MARK, ERROR, encode_event, hide_failures
from .failures import describe_failure, log
from .limits import Limits
from .message_assembler import namespace_suffix
from .response import request_position, send_events
from .service import Service, find_service

END_SECONDS = 5.0
"""Seconds in which a response ends when the service drains; then it is cut off."""

OpenLog = Callable[[], AbstractAsyncContextManager[Any]]


class ThreadResponse(Response):
    """Sends the log of a thread, until it ends or the client disconnects.

    Args:
        open_log: opens the log, from where the client continues.
        encoder: encodes its parts.
        service: the application's service, which may start a drain.
        limits: `write` and `heartbeat` count here.
    """

    def __init__(self, open_log: OpenLog, encoder: LogEncoder, service: Service, limits: Limits) -> None:
        super().__init__()
        self._open_log = open_log
        self._encoder = encoder
        self._service = service
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given, taken = anyio.create_memory_object_stream[bytes](0)

        async def events() -> AsyncGenerator[bytes, None]:
            async for event in taken:
                yield event

        # The log is read in a child task, and not by the generator: a stream of parts must be left by the task that has
        # entered it.
        async with taken, task_group() as group:
            start_soon(group, self._read, given)
            await send_events(events(), self._service, self._limits, END_SECONDS, scope, receive, send)
            group.cancel_scope.cancel()

    async def _read(self, events: MemoryObjectSendStream[bytes]) -> None:
        """Read the log until its end, or until the service drains: the client continues at another process then."""
        async with events, anyio.create_task_group() as group:
            start_soon(group, self._cancel_when_draining, group.cancel_scope)
            await self._send_parts(events)
            group.cancel_scope.cancel()

    async def _cancel_when_draining(self, scope: anyio.CancelScope) -> None:
        await self._service.draining.wait()
        scope.cancel()

    async def _send_parts(self, events: MemoryObjectSendStream[bytes]) -> None:
        try:
            async with self._open_log() as parts:
                async for part in parts:
                    await events.send(self._encoder.encode_part(part))
        except Exception as error:
            report = describe_failure(error, expose_errors=self._encoder.expose_errors)
            if not report.is_expected:
                log.error("the log of a thread could not be read", exc_info=error)
            await events.send(self._encoder.encode_failure(report.error, report.message))
            return
        await events.send(self._encoder.encode_end())


class LogEncoder:
    """Encodes the parts of a thread's log for one connection.

    Attributes:
        expose_errors: see below.

    Args:
        encode_json: encodes values as JSON.
        cursor: of the last part that the client has read; None for a new reader.
        expose_errors: send the client every error's own message.
    """

    def __init__(self, encode_json: JsonEncoder, cursor: str | None, *, expose_errors: bool) -> None:
        self.expose_errors = expose_errors
        self._encode_json = encode_json
        self._cursor = cursor

    def encode_part(self, part: Mapping[str, Any]) -> bytes:
        """Encode one part.

        Args:
            part: a part of `RunService.follow_thread`.

        Returns:
            The event.
        """
        kind: str = part["type"]
        self._cursor = part["cursor"]
        shown = {**part, "data": part["data"] if self.expose_errors else _without_messages(kind, part["data"])}
        return encode_event(kind + namespace_suffix(part["ns"]), self._encode_json(shown), self._cursor)

    def encode_failure(self, error: str, message: str) -> bytes:
        """Encode the failure of a read. The event has no id: a client that reconnects tries again.

        Args:
            error: the error's name.
            message: why.

        Returns:
            The event `error`.
        """
        return encode_event(ERROR, self._encode_json({"type": ERROR, "data": {"error": error, "message": message}}))

    def encode_end(self) -> bytes:
        """Encode the last event.

        Returns:
            The event `end`.
        """
        id = None if self._cursor is None else self._cursor + END_MARK
        return encode_event(END, self._encode_json({"type": END, "data": {}}), id)


def _without_messages(kind: str, data: Any) -> Any:
    """Return the data of a part with messages of failures replaced that clients are not to see."""
    if kind in ("tasks", "checkpoints", "debug"):
        return hide_failures(kind, data)
    if kind == ERROR:
        return {**data, "message": describe_failure(RecordedFailureError(data["error"], data["message"])).message}
    if kind == "run_ended" and data["error"] is not None:
        failure = data["error"]
        message = describe_failure(RecordedFailureError(failure["type"], failure["message"])).message
        return {**data, "error": {**failure, "message": message}}
    return data


async def thread_response(
    service: RunService,
    thread_id: str,
    request: Request,
    *,
    stream_mode: StreamMode | Sequence[StreamMode] = ("values",),
    subgraphs: bool = False,
    until: Literal["idle", "never"] = "idle",
    limits: Limits | None = None,
    encode: Callable[[Any], Any] | None = None,
    expose_errors: bool = False,
) -> Response:
    """Make a response that sends the log of a thread as server-sent events, for a route of your own.

        @app.get("/threads/{thread_id}/events")
        async def events(thread_id: str, request: Request) -> Response:
            return await thread_response(service, thread_id, request, stream_mode="updates")

    It reads what `follow_thread` reads. The data of an event is its part, as JSON, with the run's id and the time; its
    id is the part's cursor. A client that sends the last id as `Last-Event-ID`, as a browser's EventSource does,
    continues behind that part. When the client disconnects, only the reading ends. A failure while reading is an event
    `error` without an id; the log's end is an event `end`.

    Args:
        service: has the thread.
        thread_id: the thread.
        request: the request to answer.
        stream_mode: the modes to show, of those that `start` was asked to store for each run.
        subgraphs: parts of subgraphs are shown, too.
        until: "idle" ends when no run of the thread is open; "never" waits for more runs.
        limits: `write` and `heartbeat` count here, in seconds; None for the defaults of `Limits`.
        encode: called with each value that is not JSON by nature. It returns something simpler, or raises `TypeError`.
        expose_errors: send clients the message of every error, and not only of those that they can act on.

    Returns:
        The response. It is empty, with status 204, if the client has read the event `end` already.

    Raises:
        ThreadNotFoundError: no run of this thread was ever accepted.
        HTTPException: 400: the request's `Last-Event-ID` is not the id of an event, or is given more than once.
    """
    position = request_position(request)
    await service.get_thread(thread_id)
    if position is not None and position.after_end:
        return Response(status_code=204)
    after = None if position is None else position.cursor
    found = find_service(request)
    return ThreadResponse(
        lambda: cast(
            "AbstractAsyncContextManager[Any]",
            service.follow_thread(thread_id, after=after, until=until, stream_mode=stream_mode, subgraphs=subgraphs),
        ),
        LogEncoder(JsonEncoder(encode), after, expose_errors=expose_errors),
        Service() if found is None else found,
        Limits() if limits is None else limits,
    )
