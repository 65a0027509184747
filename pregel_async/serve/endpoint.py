"""An ASGI application that serves one graph on one route."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, cast, get_args
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from checkpoint_savers.abc import BaseCheckpointSaver

from .._api.compiled import Graph
from .._api.json_encoder import JsonEncoder
from ..errors import ConfigError, EmptyInputError
from .event_encoder import EventEncoder
from .failures import Refusal, failure_response, log
from .limits import Limits, RequestLimiter
from .readers import ReaderRegistry
from .request import (
    ClientAction,
    OnDisconnect,
    RunRequest,
    ServedMode,
    ThreadAccess,
    ThreadResolver,
    authorize_thread,
    check_modes,
    limit_body_size,
    read_run_request,
    run_with_deadline,
    select_thread,
)
from .response import DocumentResponse, EventsResponse, check_on_disconnect
from .run_metadata import RunMetadata, runtime_modes
from .run_reader import RunReader
from .service import Service, find_service

METHODS = ("GET", "POST")

ContextFactory = Callable[[Request], Awaitable[Any] | Any]
"""Maps a request to the context that its run's nodes get."""


class GraphEndpoint:
    """An ASGI application that runs a graph. `graph_endpoint` makes one, and documents the options.

    Attributes:
        graph: the graph, as it was passed.
    """

    def __init__(
        self,
        graph: Graph[Any, Any],
        thread: ThreadResolver | None,
        allow_any_thread: bool,
        allow_checkpoints: bool,
        accept: Collection[ClientAction],
        context: ContextFactory | None,
        stream_modes: list[str],
        on_disconnect: OnDisconnect,
        limits: Limits,
        encode: Callable[[Any], Any] | None,
        expose_errors: bool,
    ) -> None:
        self.graph = graph
        self._thread_resolver = thread
        self._allow_any_thread = allow_any_thread
        self._allow_checkpoints = allow_checkpoints
        self._accept = frozenset(accept)
        self._context_factory = context
        self._modes = stream_modes
        self._on_disconnect: OnDisconnect = on_disconnect
        self._limits = limits
        self._encode_json = JsonEncoder(encode)
        self._expose_errors = expose_errors
        self._limiter = RequestLimiter(limits.concurrency)
        self._readers = ReaderRegistry()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003, "reason": "server-sent events only"})
            return
        request = Request(scope, limit_body_size(receive, self._limits.body))
        try:
            # Around the whole response, and so around the run: the response ends after its run, even without a client.
            with self._limiter:
                response = await self._respond(request)
                await response(scope, receive, send)
        # The limiter refused: `_respond` turns other refusals into responses itself.
        except Refusal as error:
            await failure_response(error)(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        """Make the response to a request. Failures before the run starts become responses too."""
        try:
            if request.method not in METHODS:
                raise Refusal(405, "MethodNotAllowed", "GET or POST", {"allow": ", ".join(METHODS)})
            service = find_service(request)
            if service is not None and service.draining.is_set():
                raise Refusal(503, "Draining", "the service shuts down: try again soon", {"retry-after": "1"})
            access, run_request, context = await run_with_deadline(
                self._limits.read, lambda: self._read_request(request)
            )
            if run_request.position is not None and run_request.position.after_end:
                return Response(status_code=204)
            return await self._start_run(access, run_request, context, Service() if service is None else service)
        except Exception as error:
            return failure_response(error, expose_errors=self._expose_errors)

    async def _read_request(self, request: Request) -> tuple[ThreadAccess, RunRequest, Any]:
        """Read a request: its thread, what it asks for, and the run's context. Raises what refuses the request."""
        # Before the body is read: a client without access must not make the service read and decode it.
        access = await authorize_thread(request, self._thread_resolver, client_may_name=self._allow_any_thread)
        run_request = await read_run_request(request, self._limits)
        access = select_thread(access, request, run_request.body, allow_checkpoints=self._allow_checkpoints)
        for action in run_request.actions:
            if action not in self._accept:
                raise Refusal(403, "Forbidden", f"clients may not send {action} here")
        # A new thread has no events, no questions and no state.
        if access.thread_id is None and (run_request.after is not None or run_request.actions != ["input"]):
            raise Refusal(403, "Forbidden", "this request has no stored thread to reconnect to")
        context = run_request.body.context
        if self._context_factory is not None:
            if context is not None:
                raise Refusal(403, "Forbidden", "clients may not send a context here")
            context = self._context_factory(request)
            if inspect.isawaitable(context):
                context = await context
        return access, run_request, context

    async def _start_run(
        self, access: ThreadAccess, run_request: RunRequest, context: Any, service: Service
    ) -> Response:
        """Make the response that runs the graph, or resumes or joins a stored run."""
        graph, body = service.graph(self.graph), run_request.body
        stored = isinstance(graph.checkpointer, BaseCheckpointSaver)
        if not stored and (self._thread_resolver is not None or self._allow_any_thread):
            log.error(
                "graph %r is served with threads, and has no saver: give it one (compile(saver)), or name it in "
                "graph_lifespan(graph, saver=...) and pass that as the application's lifespan=",
                graph.name,
            )
            raise Refusal(500, "NotStored", "this service is not set up: it has no saver to store threads with")
        if not stored and access.thread_id is None and run_request.graph_input is None:
            raise EmptyInputError("there is no input, and no stored thread to resume")
        thread_id = access.thread_id or str(uuid4())
        # A resumed run continues as it was started: a client that reconnects sends none of its options again.
        previous = RunMetadata()
        if run_request.after is not None:
            if not stored:
                raise Refusal(404, "NotFound", "this service stores no runs to reconnect to")
            state = await graph.aget_state(thread_id)
            previous = RunMetadata.from_metadata({} if state.metadata is None else state.metadata)
        modes = ["values"] if run_request.wants_document else run_request.modes or previous.modes or self._modes
        subgraphs = previous.subgraphs if body.stream_subgraphs is None else body.stream_subgraphs
        run_metadata = RunMetadata(
            run_id=previous.run_id or str(uuid4()),
            attempt=previous.attempt if run_request.after is None else previous.attempt + 1,
            modes=modes,
            subgraphs=subgraphs,
            interrupt_before=body.interrupt_before if run_request.after is None else previous.interrupt_before,
            interrupt_after=body.interrupt_after if run_request.after is None else previous.interrupt_after,
            has_context=context is not None,
        )
        assembles_messages = "messages" in modes
        try:
            stream = graph.astream(
                run_request.graph_input,
                self._run_config(access, run_request, thread_id, run_metadata),
                context=context,
                stream_mode=runtime_modes(modes),
                subgraphs=subgraphs,
                interrupt_before=cast("Any", run_metadata.interrupt_before),
                interrupt_after=cast("Any", run_metadata.interrupt_after),
                on_conflict="wait"
                if run_request.after is not None or body.multitask_strategy == "enqueue"
                else "reject",
                control=service.control,
                # A document needs the last values only. Events must all be sent: a slow client slows the run.
                overflow="coalesce" if run_request.wants_document else "block",
                keep_events=stored and run_request.after is None,
                after=run_request.after,
                version="v2",
            )
        # `astream` checks the client's config: some checks raise a plain ValueError.
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise Refusal(422, "Invalid", str(error)) from error
        # Chunks of unfinished messages that this client has read come again, unsent, so that their sums are known.
        if run_request.after is not None:
            stream.recall()
        encoder = EventEncoder(
            self._encode_json,
            tuples=not assembles_messages,
            position=run_request.position,
            expose_errors=self._expose_errors,
        )
        # Only a client that may name threads learns the id. An id that `thread=` chose may be a secret, such as a
        # session.
        extra = {"thread_id": thread_id} if access.client_may_name and stored else {}
        registration = self._readers.new_registration(thread_id) if stored else None

        def make_reader() -> RunReader:
            return RunReader(
                stream,
                encoder,
                self._limits,
                service,
                run_id=run_metadata.run_id,
                attempt=previous.attempt,
                extra=extra,
                registration=registration,
                expose_errors=self._expose_errors,
            )

        policy = body.on_disconnect or self._on_disconnect
        if not run_request.wants_document:
            return EventsResponse(
                make_reader,
                service,
                self._limits,
                on_disconnect=policy,
                registration=registration,
                expose_errors=self._expose_errors,
            )

        async def make_document(reader: RunReader) -> bytes:
            return await self._document(graph, thread_id, reader, extra, stored=stored)

        return DocumentResponse(
            make_reader,
            service,
            self._limits,
            on_disconnect=policy,
            registration=registration,
            expose_errors=self._expose_errors,
            make_document=make_document,
        )

    def _run_config(
        self, access: ThreadAccess, run_request: RunRequest, thread_id: str, run_metadata: RunMetadata
    ) -> dict[str, Any]:
        """Return the run's config: the client's, overridden by the service's own, and that by the endpoint's."""
        body, client_config = run_request.body, run_request.body.config
        configurable: dict[str, Any] = {}
        config: dict[str, Any] = {}
        metadata: dict[str, Any] = dict(body.metadata)
        if client_config is not None:
            configurable.update(client_config.configurable)
            metadata.update(client_config.metadata)
            config = {
                "recursion_limit": client_config.recursion_limit,
                "max_concurrency": client_config.max_concurrency,
                "tags": client_config.tags,
            }
            config = {key: value for key, value in config.items() if value is not None}
        trusted = access.trusted_config
        return {
            **config,
            **{key: value for key, value in trusted.items() if key not in ("configurable", "metadata")},
            "configurable": {**configurable, **trusted.get("configurable", {}), "thread_id": thread_id},
            "metadata": {**metadata, **trusted.get("metadata", {}), **run_metadata.to_metadata(self.graph.name)},
            "run_id": run_metadata.run_id,
        }

    async def _document(
        self, graph: Graph[Any, Any], thread_id: str, reader: RunReader, extra: dict[str, Any], *, stored: bool
    ) -> bytes:
        """Return the JSON document of a run that has ended without a failure."""
        last = reader.last_values
        # Without a `values` part, for one when the run had ended before the client reconnected: read the thread's
        # state.
        if last is None and stored:
            state = await graph.aget_state(thread_id)
            output, interrupts = state.values, state.interrupts
        else:
            output, interrupts = (None, ()) if last is None else (last["data"], last["interrupts"])
        output_channels = graph.output_channels
        # Stored values include channels that are not in the graph's output schema.
        if isinstance(output, dict) and not isinstance(output_channels, str):
            output = {key: value for key, value in output.items() if key in output_channels}
        return self._encode_json(
            {
                "run_id": reader.run_id,
                **extra,
                "status": reader.status,
                "output": output,
                "interrupts": list(interrupts),
            }
        )


def graph_endpoint(
    graph: Graph[Any, Any],
    *,
    thread: ThreadResolver | None = None,
    allow_any_thread: bool = False,
    allow_checkpoints: bool = False,
    accept: Collection[ClientAction] = ("input", "resume", "update", "goto"),
    context: ContextFactory | None = None,
    stream_mode: ServedMode | Sequence[ServedMode] = "values",
    on_disconnect: OnDisconnect = "cancel",
    limits: Limits | None = None,
    encode: Callable[[Any], Any] | None = None,
    expose_errors: bool = False,
) -> GraphEndpoint:
    """Make a route for a compiled graph: an ASGI application, for `Route(path, ...)` of Starlette and FastAPI alike.

        app = FastAPI(
            routes=[Route("/chat", graph_endpoint(graph, thread=thread_of))],
            lifespan=graph_lifespan(graph, saver=SqliteSaver.from_conn_string("chats.db")),
        )

    POST sends an input or a command. The answer is the run's events, or one document when the run has ended, if the
    client accepts `application/json` and not `text/event-stream`. GET or POST with `Last-Event-ID` reconnects to a run:
    events that the client missed come first. GET without that header returns all events that are kept of the thread.

    Args:
        graph: a compiled graph, with a saver of its own or with the one that `graph_lifespan` opens for it.
        thread: maps a request to its thread's id, or refuses the request, see `ThreadResolver`. It is called for every
            request, reconnects included, before the body is read.
        allow_any_thread: used without `thread`. True lets clients name their threads (`config.configurable.thread_id`,
            or `thread_id` in path or query): any client that knows a thread's id can read and write the thread. False
            gives each request a new thread, to which no client can reconnect.
        allow_checkpoints: let clients continue from older checkpoints (`config.configurable.checkpoint_id`).
        accept: what clients may do: "input", "resume", "update", "goto".
        context: maps a request to the context of its run; it may be async. Without it, clients post the context.
        stream_mode: one stream mode or several, for requests that name none.
        on_disconnect: see `sse_response`. A request may override it. A run is not cancelled while another client reads
            it.
        limits: see `Limits`; None for the defaults.
        encode: see `sse_response`.
        expose_errors: see `sse_response`.

    Returns:
        The ASGI application.

    Raises:
        ConfigError: `graph` is not compiled, an option has a wrong type or value, or `thread` and `allow_any_thread`
            are both given.
    """
    if not isinstance(cast("object", graph), Graph):
        raise ConfigError(f"graph_endpoint serves a compiled graph, not a {type(graph).__name__}: call compile()")
    check_on_disconnect(on_disconnect)
    modes = check_modes(stream_mode)
    for name, function in (("thread", thread), ("context", context), ("encode", encode)):
        if function is not None and not callable(cast("object", function)):
            raise ConfigError(f"{name}= must be a function, not a {type(function).__name__}")
    for action in accept:
        if action not in get_args(ClientAction):
            raise ConfigError(f"accept= names {action!r}; known are {', '.join(get_args(ClientAction))}")
    if thread is not None and allow_any_thread:
        raise ConfigError("thread= and allow_any_thread=True both choose the thread of a request: give one of them")
    return GraphEndpoint(
        graph,
        thread,
        allow_any_thread,
        allow_checkpoints,
        accept,
        context,
        modes,
        on_disconnect,
        Limits() if limits is None else limits,
        encode,
        expose_errors,
    )
