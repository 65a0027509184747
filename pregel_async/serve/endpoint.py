"""One route for one graph."""

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
from ..errors import ConfigError, EmptyInputError
from .audience import Audience
from .failures import Refusal, failure_response, log
from .known import Known, modes_of
from .limits import Limits, Places
from .plain import Writer
from .reading import Reading
from .request import (
    Address,
    Asked,
    OnDisconnect,
    ServedMode,
    ThreadOf,
    Verb,
    address,
    bounded,
    check_modes,
    in_time,
    read,
    settle,
)
from .response import DocumentResponse, EventsResponse, check_on_disconnect
from .service import Service, find_service
from .wire import Wire

METHODS = ("GET", "POST")

ContextOf = Callable[[Request], Awaitable[Any] | Any]
"""Maps a request to what its run's nodes get as context."""


class GraphEndpoint:
    """An ASGI application that runs a graph; made by `graph_endpoint`."""

    def __init__(
        self,
        graph: Graph[Any, Any],
        thread: ThreadOf | None,
        allow_any_thread: bool,
        allow_checkpoints: bool,
        accept: Collection[Verb],
        context: ContextOf | None,
        stream_modes: list[str],
        on_disconnect: OnDisconnect,
        limits: Limits,
        encode: Callable[[Any], Any] | None,
        expose_errors: bool,
    ) -> None:
        self.graph = graph
        self._thread = thread
        self._any_thread = allow_any_thread
        self._checkpoints = allow_checkpoints
        self._accept = frozenset(accept)
        self._context = context
        self._modes = stream_modes
        self._on_disconnect: OnDisconnect = on_disconnect
        self._limits = limits
        self._write = Writer(encode)
        self._expose = expose_errors
        self._places = Places(limits.concurrency)
        self._audience = Audience()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003, "reason": "server-sent events only"})
            return
        request = Request(scope, bounded(receive, self._limits.body))
        try:
            with self._places:
                response = await self._respond(request)
                await response(scope, receive, send)
        except Refusal as error:
            await failure_response(error)(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        try:
            if request.method not in METHODS:
                raise Refusal(405, "MethodNotAllowed", "GET or POST", {"allow": ", ".join(METHODS)})
            service = find_service(request)
            if service is not None and service.draining.is_set():
                raise Refusal(503, "Draining", "the service shuts down: try again soon", {"retry-after": "1"})
            where, asked, context = await in_time(self._limits.read, lambda: self._ask(request))
            if asked.seen is not None and asked.seen.over:
                return Response(status_code=204)
            return await self._run(where, asked, context, Service() if service is None else service)
        except Exception as error:
            return failure_response(error, expose=self._expose)

    async def _ask(self, request: Request) -> tuple[Address, Asked, Any]:
        where = await address(request, self._thread, anything=self._any_thread)
        asked = await read(request, self._limits)
        where = settle(where, request, asked.body, checkpoints=self._checkpoints)
        for verb in asked.brings:
            if verb not in self._accept:
                raise Refusal(403, "Forbidden", f"clients bring no {verb} here")
        if where.thread_id is None and (asked.after is not None or asked.brings != ["input"]):
            raise Refusal(403, "Forbidden", "this request has no thread to come back to")
        context = asked.body.context
        if self._context is not None:
            if context is not None:
                raise Refusal(403, "Forbidden", "clients bring no context here")
            context = self._context(request)
            if inspect.isawaitable(context):
                context = await context
        return where, asked, context

    async def _run(self, where: Address, asked: Asked, context: Any, service: Service) -> Response:
        graph, body = service.graph(self.graph), asked.body
        stored = isinstance(graph.checkpointer, BaseCheckpointSaver)
        if not stored and (self._thread is not None or self._any_thread):
            log.error(
                "graph %r is served with threads, and has no saver: give it one (compile(saver)), or name it in "
                "graph_lifespan(graph, saver=...) and pass that as the application's lifespan=",
                graph.name,
            )
            raise Refusal(500, "NotStored", "this service is not set up: it has nowhere to keep threads")
        if not stored and where.thread_id is None and asked.given is None:
            raise EmptyInputError("there is no input, and no thread to go on with")
        thread_id = where.thread_id or str(uuid4())
        known = Known()
        if asked.after is not None:
            if not stored:
                raise Refusal(404, "NotFound", "this service keeps nothing to come back to")
            state = await graph.aget_state(thread_id)
            known = Known.of({} if state.metadata is None else state.metadata)
        shown = ["values"] if asked.document else asked.modes or known.modes or self._modes
        inside = known.subgraphs if body.stream_subgraphs is None else body.stream_subgraphs
        run = Known(
            run_id=known.run_id or str(uuid4()),
            attempt=known.attempt if asked.after is None else known.attempt + 1,
            modes=shown,
            subgraphs=inside,
            interrupt_before=body.interrupt_before if asked.after is None else known.interrupt_before,
            interrupt_after=body.interrupt_after if asked.after is None else known.interrupt_after,
            context=context is not None,
        )
        messages = "messages" in shown
        try:
            stream = graph.astream(
                asked.given,
                self._config(where, asked, thread_id, run),
                context=context,
                stream_mode=modes_of(shown),
                subgraphs=inside,
                interrupt_before=cast("Any", run.interrupt_before),
                interrupt_after=cast("Any", run.interrupt_after),
                on_conflict="wait" if asked.after is not None or body.multitask_strategy == "enqueue" else "reject",
                control=service.control,
                overflow="coalesce" if asked.document else "block",
                keep_events=stored and asked.after is None,
                after=asked.after,
                version="v2",
            )
        except ValueError as error:  # a config that says no more than its type
            if isinstance(error, ConfigError):
                raise
            raise Refusal(422, "Invalid", str(error)) from error
        if asked.after is not None:
            stream.recall()
        wire = Wire(self._write, tuples=not messages, seen=asked.seen, expose=self._expose)
        more = {"thread_id": thread_id} if where.named and stored else {}
        seat = self._audience.seat(thread_id) if stored else None

        def reading() -> Reading:
            return Reading(
                stream,
                wire,
                self._limits,
                service,
                run_id=run.run_id,
                attempt=known.attempt,
                more=more,
                seat=seat,
                expose=self._expose,
            )

        policy = body.on_disconnect or self._on_disconnect
        if not asked.document:
            return EventsResponse(reading, service, self._limits, on_disconnect=policy, seat=seat, expose=self._expose)

        async def finish(reading: Reading) -> bytes:
            return await self._document(graph, thread_id, reading, more, stored=stored)

        return DocumentResponse(
            reading, service, self._limits, on_disconnect=policy, seat=seat, expose=self._expose, finish=finish
        )

    def _config(self, where: Address, asked: Asked, thread_id: str, run: Known) -> dict[str, Any]:
        body, theirs = asked.body, asked.body.config
        configurable: dict[str, Any] = {}
        config: dict[str, Any] = {}
        metadata: dict[str, Any] = dict(body.metadata)
        if theirs is not None:
            configurable.update(theirs.configurable)
            metadata.update(theirs.metadata)
            config = {
                "recursion_limit": theirs.recursion_limit,
                "max_concurrency": theirs.max_concurrency,
                "tags": theirs.tags,
            }
            config = {key: value for key, value in config.items() if value is not None}
        trusted = where.trusted
        return {
            **config,
            **{key: value for key, value in trusted.items() if key not in ("configurable", "metadata")},
            "configurable": {**configurable, **trusted.get("configurable", {}), "thread_id": thread_id},
            "metadata": {**metadata, **trusted.get("metadata", {}), **run.metadata(self.graph.name)},
            "run_id": run.run_id,
        }

    async def _document(
        self, graph: Graph[Any, Any], thread_id: str, reading: Reading, more: dict[str, Any], *, stored: bool
    ) -> bytes:
        last = reading.last
        if last is None and stored:
            state = await graph.aget_state(thread_id)
            output, interrupts = state.values, state.interrupts
        else:
            output, interrupts = (None, ()) if last is None else (last["data"], last["interrupts"])
        shown = graph.output_channels
        if isinstance(output, dict) and not isinstance(shown, str):
            output = {key: value for key, value in output.items() if key in shown}
        return self._write(
            {
                "run_id": reading.run_id,
                **more,
                "status": reading.status,
                "output": output,
                "interrupts": list(interrupts),
            }
        )


def graph_endpoint(
    graph: Graph[Any, Any],
    *,
    thread: ThreadOf | None = None,
    allow_any_thread: bool = False,
    allow_checkpoints: bool = False,
    accept: Collection[Verb] = ("input", "resume", "update", "goto"),
    context: ContextOf | None = None,
    stream_mode: ServedMode | Sequence[ServedMode] = "values",
    on_disconnect: OnDisconnect = "cancel",
    limits: Limits | None = None,
    encode: Callable[[Any], Any] | None = None,
    expose_errors: bool = False,
) -> GraphEndpoint:
    """One route for a compiled graph: an ASGI application, for `Route(path, ...)` of Starlette and FastAPI alike.

        app = FastAPI(
            routes=[Route("/chat", graph_endpoint(graph, thread=thread_of))],
            lifespan=graph_lifespan(graph, saver=SqliteSaver.from_conn_string("chats.db")),
        )

    POST brings an input or a command, and is answered with the run's events; or, where the client accepts only
    `application/json`, with one document when the run has ended. GET, or POST, with `Last-Event-ID` comes back to a
    run: what was missed comes first. GET without it tells all that is kept of the thread.

    Args:
        graph: compiled; with a saver of its own, or with the one that `graph_lifespan` opens for it.
        thread: maps a request to its thread's id, or refuses: see `ThreadOf`. It is asked for every request, of
            whatever kind, before its body is read.
        allow_any_thread: without `thread`: clients name their threads (`config.configurable.thread_id`, or
            `thread_id` in path or query). Whoever knows an id reads that thread and writes it. Without both, each
            request has a thread of its own, to which nothing comes back.
        allow_checkpoints: clients go on from older checkpoints of their threads (`config.configurable.checkpoint_id`).
        accept: what clients may bring.
        context: maps a request to the context of its run. Without it, the context is what clients post.
        stream_mode: for requests that name none: one, or several.
        on_disconnect: see `sse_response`; a request may say otherwise. A run is not cancelled while another reader has
            come back to it.
        limits: see `Limits`.
        encode, expose_errors: see `sse_response`.
    """
    if not isinstance(cast("object", graph), Graph):
        raise ConfigError(f"graph_endpoint serves a compiled graph, not a {type(graph).__name__}: call compile()")
    check_on_disconnect(on_disconnect)
    modes = check_modes(stream_mode)
    for name, function in (("thread", thread), ("context", context), ("encode", encode)):
        if function is not None and not callable(cast("object", function)):
            raise ConfigError(f"{name}= is a function, and this is a {type(function).__name__}")
    for verb in accept:
        if verb not in get_args(Verb):
            raise ConfigError(f"accept names {verb!r}; clients may bring {', '.join(get_args(Verb))}")
    if thread is not None and allow_any_thread:
        raise ConfigError("thread= says whose thread a request has; allow_any_thread=True would let it name another")
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
