"""Read what a request asks for, within limits, and check it before anything runs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NoReturn, TypeAlias, cast, get_args

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from .._checks.config import check_thread_id
from .._runtime.streaming.parts import Cursor
from ..errors import ConfigError, InvalidCursorError
from ..types import Command, Send, StreamMode
from .event_encoder import ReaderPosition, parse_event_id
from .failures import Refusal
from .limits import Limits

OnDisconnect: TypeAlias = Literal["cancel", "continue"]
"""What happens to a run when its client disconnects: it is cancelled, or continues to its end."""

ClientAction: TypeAlias = Literal["input", "resume", "update", "goto"]
"""What a client does to a thread: give an input, answer questions, edit the state, or say where to continue."""

ThreadResolver: TypeAlias = Callable[[Request], Awaitable[Any] | Any]
"""Maps a request to the id of its thread, or to a config that has one, which overrides the client's config. It refuses
a request by returning None, or by raising `PermissionError` or an `HTTPException`."""

ServedMode: TypeAlias = StreamMode | Literal["messages-tuple"]
"""A mode of an endpoint's stream: one of `astream`'s, or messages as pairs with their metadata."""

MODES = (*get_args(StreamMode), "messages-tuple")

MAX_DEPTH: Final = 200
"""Number of levels of objects and arrays that a body may have.

msgspec decodes about 1000 levels, and the runtime copies half of that; the exact number depends on how deep the stack
is at that moment. A limit below both gives a body the same answer each time. Savers store 100 levels.
"""


class SendBody(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON form of `Send`: start `node` with `input`."""

    node: str
    input: Any = None


class CommandBody(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON form of `Command`."""

    resume: Any = None
    update: dict[str, Any] | list[tuple[str, Any]] | None = None
    goto: str | SendBody | list[str | SendBody] | None = None


class ConfigBody(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON form of a run's config. Keys that a client may not set are refused by `select_thread`."""

    configurable: dict[str, Any] = {}
    recursion_limit: int | None = None
    max_concurrency: int | None = None
    metadata: dict[str, Any] = {}
    tags: list[str] = []


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON document that a client posts. The names are those of LangGraph's platform.

    Attributes:
        input: the graph's input, as its input schema says; null resumes the thread.
        command: given instead of an input: answers questions, edits the state, or says where to continue.
        config: the run's config.
        context: the context that nodes get.
        metadata: entries of the metadata of the run's checkpoints.
        stream_mode: one stream mode or several; "messages-tuple" sends messages as pairs with their metadata.
        stream_subgraphs: true to send the events of subgraphs too.
        interrupt_before: nodes to stop before, "*" for all.
        interrupt_after: nodes to stop after, "*" for all.
        on_disconnect: overrides the endpoint's policy.
        multitask_strategy: what to do while another run uses the thread: "reject" answers 409, "enqueue" waits.
    """

    input: Any = None
    command: CommandBody | None = None
    config: ConfigBody | None = None
    context: Any = None
    metadata: dict[str, Any] = {}
    stream_mode: str | list[str] | None = None
    stream_subgraphs: bool | None = None
    interrupt_before: str | list[str] | None = None
    interrupt_after: str | list[str] | None = None
    on_disconnect: OnDisconnect | None = None
    multitask_strategy: Literal["reject", "enqueue"] = "reject"


class RunRequest(msgspec.Struct, kw_only=True):
    """What a request asks for.

    Attributes:
        body: the posted document, with defaults for what was left out.
        graph_input: the run's input; None to resume, and for a client that reconnects.
        after: the cursor from which a reconnecting client continues; None to start a run.
        position: the position that this client has reached; None to start a run.
        wants_document: True to answer with one JSON document instead of events.
        modes: the stream modes; None if the request names none.
    """

    body: Body
    graph_input: Any
    after: str | None
    position: ReaderPosition | None
    wants_document: bool
    modes: list[str] | None

    @property
    def actions(self) -> list[ClientAction]:
        """What the client does to the thread with this request; empty if it only reconnects."""
        command = self.body.command
        if command is None:
            return [] if self.after is not None else ["input"]
        fields: tuple[ClientAction, ...] = ("resume", "update", "goto")
        return [name for name in fields if getattr(command, name) is not None]


def limit_body_size(receive: Receive, limit: int | None) -> Receive:
    """Limit the size of a request's body, however it is sent.

    `Content-Length` alone is no limit: a chunked body has none.

    Args:
        receive: receives the request's messages.
        limit: number of bytes; None for no limit.

    Returns:
        A function to use instead of `receive`. It raises `Refusal` (413) when the body is larger.
    """
    received = 0

    async def receive_counted() -> Message:
        nonlocal received
        message = await receive()
        if message["type"] == "http.request":
            received += len(message.get("body", b""))
            if limit is not None and received > limit:
                refuse_large_body(limit)
        return message

    return receive_counted


def refuse_large_body(limit: int) -> NoReturn:
    """Refuse a request whose body is too large.

    Args:
        limit: the number of bytes that a body may have.

    Raises:
        Refusal: 413. The connection is closed, because the rest of the body is not read.
    """
    raise Refusal(413, "TooLarge", f"the body has more than {limit} bytes", {"connection": "close"})


async def read_run_request(request: Request, limits: Limits) -> RunRequest:
    """Read what a request asks for.

    Args:
        request: a GET or POST request.
        limits: `body` counts here, in bytes.

    Returns:
        What the request asks for.

    Raises:
        Refusal: 400, 413, 415 or 422.
    """
    last = last_event_id_of(request)
    if request.method == "GET":
        last = last or "-1"
        body = Body(
            stream_mode=request.query_params.getlist("stream_mode") or None,
            stream_subgraphs=_query_flag(request, "stream_subgraphs"),
        )
    else:
        body = await _read_body(request, limits, empty=last is not None)
    position = _position(last)
    after = None if position is None else position.cursor
    accepted = _accepted_media_types(request)
    return RunRequest(
        body=body,
        graph_input=None if after is not None else _graph_input(body),
        after=after,
        position=position,
        wants_document="application/json" in accepted and "text/event-stream" not in accepted,
        modes=_requested_modes(body.stream_mode),
    )


def last_event_id_of(request: Request) -> str | None:
    """Return the id of the last event that the client has read.

    It is in the header `Last-Event-ID`, or else in the query as `last_event_id`. The query counts for a POST too: a
    client that cannot send the header posts its input again when it reconnects, and that input must not run again.

    Args:
        request: the client's request.

    Returns:
        The id, or None if the request names none.

    Raises:
        Refusal: 400: the request names several.
    """
    for values in (request.headers.getlist("last-event-id"), request.query_params.getlist("last_event_id")):
        if len(values) > 1:
            raise Refusal(400, "Malformed", "give Last-Event-ID, or last_event_id in the query, once")
        if values and values[0]:
            return values[0]
    return None


def _query_flag(request: Request, name: str) -> bool | None:
    """Return a boolean of the query; None if it is not given. Raises `Refusal` (422)."""
    values = request.query_params.getlist(name)
    if not values:
        return None
    meanings = {"true": True, "1": True, "false": False, "0": False}
    if len(values) > 1 or values[0].lower() not in meanings:
        raise Refusal(422, "Invalid", f"{name} must be given once, as true or false (or 1 or 0)")
    return meanings[values[0].lower()]


def _accepted_media_types(request: Request) -> frozenset[str]:
    """Return the media types that the client names in `Accept`, in lower case, without those of weight 0.

    Source: RFC 9110, 12.5.1.
    """
    ranges = ",".join(request.headers.getlist("accept")).lower().split(",")
    parsed = [[each.strip() for each in one.split(";")] for one in ranges]
    return frozenset(
        kind for kind, *parameters in parsed if not any(_ZERO_WEIGHT.fullmatch(each) for each in parameters)
    )


_ZERO_WEIGHT = re.compile(r"q=0(\.0{0,3})?")


def check_modes(requested: object) -> list[str]:
    """Check the stream modes that a request or an endpoint names.

    Args:
        requested: one mode, or a sequence of modes.

    Returns:
        The modes, as a list.

    Raises:
        ConfigError: a mode is unknown or is named twice, there is none, or both forms of messages are named.
    """
    modes: list[Any] = (
        [requested] if isinstance(requested, str) else list(requested) if isinstance(requested, Sequence) else []
    )
    for mode in modes:
        if not isinstance(mode, str) or mode not in MODES:
            raise ConfigError(f"stream_mode {str(mode)[:40]!r} is not known; known are {', '.join(MODES)}")
    if not modes or len(set(modes)) < len(modes):
        raise ConfigError("stream_mode names each mode once, and at least one")
    if {"messages", "messages-tuple"} <= set(modes):
        raise ConfigError("stream_mode names messages (sums of chunks) or messages-tuple (pairs), not both")
    return modes


def _requested_modes(requested: str | list[str] | None) -> list[str] | None:
    """Return the stream modes of a request; None if it names none. Raises `Refusal` (422)."""
    try:
        return check_modes(requested) if requested or requested == "" else None
    except ConfigError as error:
        raise Refusal(422, "Invalid", str(error)) from None


def _position(last: str | None) -> ReaderPosition | None:
    """Return the position that an event id says; None for no id. Raises `Refusal` (400)."""
    if last is None:
        return None
    if last == "-1":  # from the beginning: a GET without an id, see `read_run_request`
        return ReaderPosition(str(Cursor("", 0, 0)))
    try:
        return parse_event_id(last)
    except (InvalidCursorError, ValueError):
        raise Refusal(400, "Malformed", "Last-Event-ID is not the id of an event of this service") from None


async def _read_body(request: Request, limits: Limits, *, empty: bool) -> Body:
    """Read and decode the posted document. Raises `Refusal` (400, 413, 415, 422).

    Args:
        empty: an empty body is allowed.
    """
    # Refuse a large body before it is read, if the client says its size. `limit_body_size` catches the others. The
    # slice keeps `int` from a number of any length.
    length = request.headers.get("content-length", "")
    if limits.body is not None and length.isdecimal() and int(length[:20]) > limits.body:
        refuse_large_body(limits.body)
    try:
        data = await request.body()
    except ClientDisconnect:
        raise Refusal(400, "Malformed", "the connection was closed before the whole body had arrived") from None
    if not data:
        if empty:
            return Body()
        raise Refusal(400, "Malformed", 'the body is empty: post a JSON document, such as {"input": ...}')
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if kind != "application/json" or encoding not in ("", "identity"):
        raise Refusal(415, "NotJson", "the body must be application/json, without a content encoding")
    try:
        body = msgspec.json.decode(data, type=Body)
    except msgspec.ValidationError as error:
        raise Refusal(422, "Invalid", str(error)) from None
    except RecursionError:
        _refuse_deep_body()
    except (msgspec.DecodeError, UnicodeError, ValueError) as error:
        raise Refusal(400, "Malformed", f"the body is not JSON: {error}") from None
    if _exceeds_max_depth(body):
        _refuse_deep_body()
    return body


def _exceeds_max_depth(body: Body) -> bool:
    """Return True if a body has more than `MAX_DEPTH` levels."""
    # One level after the other, and no recursion: that would have a limit of its own.
    level: list[Any] = [body]
    for _ in range(MAX_DEPTH):
        level = [each for outer in level for each in _children(outer) if type(each) in _CONTAINER_TYPES]
        if not level:
            return False
    return True


_CONTAINER_TYPES = frozenset((dict, list, tuple, CommandBody, ConfigBody, SendBody))


def _children(outer: Any) -> Iterable[Any]:
    """Return the values directly inside of a container."""
    if type(outer) is dict:
        return cast("dict[str, Any]", outer).values()
    return cast("Iterable[Any]", msgspec.structs.astuple(outer) if isinstance(outer, msgspec.Struct) else outer)


def _refuse_deep_body() -> NoReturn:
    """Raise the `Refusal` (422) of a body that is nested too deeply."""
    raise Refusal(422, "Invalid", f"the body is nested more than {MAX_DEPTH} levels deep")


def _graph_input(body: Body) -> Any:
    """Return the graph's input: a document's input, or its command. Raises `Refusal` (422)."""
    command = body.command
    if command is None:
        return body.input
    if body.input is not None:
        raise Refusal(422, "Invalid", "a request has an input or a command, not both")
    goto = command.goto or ()
    return Command(
        resume=command.resume,
        update=command.update,
        goto=_goto_target(goto) if isinstance(goto, (str, SendBody)) else [_goto_target(each) for each in goto],
    )


def _goto_target(target: str | SendBody) -> str | Send:
    """Return a target of `goto` as the runtime takes it."""
    return Send(target.node, target.input) if isinstance(target, SendBody) else target


CHECKPOINT_KEYS = ("checkpoint_id", "checkpoint_ns", "checkpoint_map")


class ThreadAccess(msgspec.Struct):
    """Which thread a request uses, and what it may do there.

    Attributes:
        thread_id: the thread's id; None if the request has a new thread that has no id yet.
        trusted_config: the config that the service's own function returned.
        client_may_name: True if the client may choose the thread, and may see its id.
    """

    thread_id: str | None
    trusted_config: dict[str, Any]
    client_may_name: bool


async def authorize_thread(request: Request, thread: ThreadResolver | None, *, client_may_name: bool) -> ThreadAccess:
    """Ask the service which thread a request may use.

    Args:
        request: the request. Its body is not read.
        thread: the service's own function; None if it has none.
        client_may_name: what the result says, if the service has no function: whether the client may choose the thread.

    Returns:
        The thread. Its id is None if the service has no function.

    Raises:
        Refusal: 403: the service's function refused by its result.
        TypeError: the service's function returned something that is not a thread's id.
        Exception: any other exception that the service's function raised.
    """
    if thread is None:
        return ThreadAccess(None, {}, client_may_name)
    answer: Any = thread(request)
    if inspect.isawaitable(answer):
        answer = await answer
    trusted: dict[str, Any] = {}
    if isinstance(answer, Mapping):
        trusted = dict(cast("Mapping[str, Any]", answer))
        answer = trusted.get("configurable", {}).get("thread_id")
    if answer is None or answer is False or answer == "":
        raise Refusal(403, "Forbidden", "this request may use no thread here")
    try:
        return ThreadAccess(check_thread_id(answer), trusted, False)
    except ConfigError:
        raise TypeError(
            f"thread= returned a {type(answer).__name__}, and not a thread's id: return a string, or None to refuse"
        ) from None


def select_thread(access: ThreadAccess, request: Request, body: Body, *, allow_checkpoints: bool) -> ThreadAccess:
    """Check which thread the client names, if it names one, and choose the thread.

    Args:
        access: what the service allows.
        request: the request; its path and query may name a thread.
        body: the posted document; its config may name a thread or a checkpoint.
        allow_checkpoints: the client may name a checkpoint.

    Returns:
        The access, with the thread's id if the client chose a thread.

    Raises:
        Refusal: 403: the client names a thread or checkpoint, or sets a reserved key, that it may not.
        ConfigError: the name is not a thread's id.
    """
    configurable = {} if body.config is None else body.config.configurable
    candidates = [*request.query_params.getlist("thread_id"), configurable.get("thread_id")]
    if access.thread_id is None:
        candidates.append(request.path_params.get("thread_id"))
    for key in CHECKPOINT_KEYS:
        if key in configurable and not allow_checkpoints:
            raise Refusal(403, "Forbidden", f"clients may not choose {key} here")
    for key in configurable:
        if key.startswith("__"):  # reserved for the runtime
            raise Refusal(403, "Forbidden", f"clients may not set {key[:40]!r}")
    thread_ids = {check_thread_id(each) for each in candidates if each is not None}
    if not thread_ids:
        return access
    if access.thread_id is None and access.client_may_name and len(thread_ids) == 1:
        return ThreadAccess(thread_ids.pop(), access.trusted_config, True)
    if thread_ids != {access.thread_id}:
        raise Refusal(403, "Forbidden", "this request may not use that thread")
    return access


async def run_with_deadline(seconds: float | None, work: Callable[[], Awaitable[Any]]) -> Any:
    """Run an async function that reads a request, within a time limit.

    Args:
        seconds: the limit in seconds; None for no limit.
        work: the function.

    Returns:
        The function's result.

    Raises:
        Refusal: 408: the limit has passed. The function was cancelled.
    """
    with anyio.move_on_after(seconds):
        return await work()
    raise Refusal(408, "TooSlow", "the request did not arrive in time", {"connection": "close"})
