"""What a request asks for: read within limits, and checked before anything runs."""

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
"""What becomes of a run whose reader is gone: it is cancelled, or goes on to its end."""

ClientAction: TypeAlias = Literal["input", "resume", "update", "goto"]
"""What a client may bring."""

ThreadResolver: TypeAlias = Callable[[Request], Awaitable[Any] | Any]
"""Maps a request to a thread: its id; or a config that has one, whose settings count more than the client's. None, or a
`PermissionError`, refuses."""

ServedMode: TypeAlias = StreamMode | Literal["messages-tuple"]
"""A mode of an endpoint's stream: one of `astream`'s, or messages as pairs with where they come from."""

MODES = (*get_args(StreamMode), "messages-tuple")

MAX_DEPTH: Final = 200
"""Levels of objects and arrays that a body may have.

msgspec decodes about 1000, and the runtime copies half of that: how many depends on the stack that the service has at
that moment. A limit below both gives a body one answer, wherever it arrives. Savers store 100.
"""


class SendBody(msgspec.Struct, forbid_unknown_fields=True):
    node: str
    input: Any = None


class CommandBody(msgspec.Struct, forbid_unknown_fields=True):
    resume: Any = None
    update: dict[str, Any] | list[tuple[str, Any]] | None = None
    goto: str | SendBody | list[str | SendBody] | None = None


class ConfigBody(msgspec.Struct, forbid_unknown_fields=True):
    configurable: dict[str, Any] = {}
    recursion_limit: int | None = None
    max_concurrency: int | None = None
    metadata: dict[str, Any] = {}
    tags: list[str] = []


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """The document that a client posts. Names are LangGraph's platform's.

    Attributes:
        input: as the graph's input schema says; null goes on with what is stored.
        command: instead of an input: answers questions, edits the state, says where to go on.
        stream_mode: one or several; "messages-tuple" shows messages as pairs.
        stream_subgraphs: show the graphs inside too.
        multitask_strategy: "reject" answers 409 when the thread is in use, "enqueue" waits.
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
        body: with the defaults of what was left out.
        given: the run's input; None comes back to a run, or goes on.
        after: the place that a reader comes back from; None for a run of its own.
        seen: what that reader was told there.
        document: the answer is to be one JSON document.
        modes: of the stream; None when it names none.
    """

    body: Body
    graph_input: Any
    after: str | None
    position: ReaderPosition | None
    wants_document: bool
    modes: list[str] | None

    @property
    def actions(self) -> list[ClientAction]:
        """What it brings to its thread."""
        command = self.body.command
        if command is None:
            return [] if self.after is not None else ["input"]
        fields: tuple[ClientAction, ...] = ("resume", "update", "goto")
        return [name for name in fields if getattr(command, name) is not None]


def limit_body_size(receive: Receive, limit: int | None) -> Receive:
    """A request's messages, of no more bytes than the limit.

    Raises:
        Refusal: there are more.
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
    raise Refusal(413, "TooLarge", f"the body has more than {limit} bytes", {"connection": "close"})


async def read_run_request(request: Request, limits: Limits) -> RunRequest:
    """What a request asks for.

    Raises:
        Refusal: 400, 408, 413, 415, 422.
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
    """Return the id of the last event that the client has read, from the header or else the query; None for neither.

    The query counts for a POST too: a client that cannot send the header posts its input again, and it must not run
    again.

    Raises:
        Refusal: 400: the client names several.
    """
    for values in (request.headers.getlist("last-event-id"), request.query_params.getlist("last_event_id")):
        if len(values) > 1:
            raise Refusal(400, "Malformed", "Last-Event-ID, or last_event_id in the query, is given once")
        if values and values[0]:
            return values[0]
    return None


def _query_flag(request: Request, name: str) -> bool | None:
    values = request.query_params.getlist(name)
    if not values:
        return None
    meanings = {"true": True, "1": True, "false": False, "0": False}
    if len(values) > 1 or values[0].lower() not in meanings:
        raise Refusal(422, "Invalid", f"{name} is true or false (or 1 or 0), once")
    return meanings[values[0].lower()]


def _accepted_media_types(request: Request) -> frozenset[str]:
    """Return the media types that the client names in `Accept`, in small letters, without those of weight 0.

    Source: RFC 9110, 12.5.1.
    """
    ranges = ",".join(request.headers.getlist("accept")).lower().split(",")
    parsed = [[each.strip() for each in one.split(";")] for one in ranges]
    return frozenset(
        kind for kind, *parameters in parsed if not any(_ZERO_WEIGHT.fullmatch(each) for each in parameters)
    )


_ZERO_WEIGHT = re.compile(r"q=0(\.0{0,3})?")


def check_modes(requested: object) -> list[str]:
    """Return the stream modes that a request or an endpoint names, one or several, as a list.

    Raises:
        ConfigError: one is not known, or is named twice, or there is none.
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
        raise ConfigError("stream_mode shows messages as they grow (messages) or as pairs (messages-tuple)")
    return modes


def _requested_modes(requested: str | list[str] | None) -> list[str] | None:
    try:
        return check_modes(requested) if requested or requested == "" else None
    except ConfigError as error:
        raise Refusal(422, "Invalid", str(error)) from None


def _position(last: str | None) -> ReaderPosition | None:
    if last is None:
        return None
    if last == "-1":  # from the beginning
        return ReaderPosition(str(Cursor("", 0, 0)))
    try:
        return parse_event_id(last)
    except (InvalidCursorError, ValueError):
        raise Refusal(400, "Malformed", "Last-Event-ID is no id of an event that was sent") from None


async def _read_body(request: Request, limits: Limits, *, empty: bool) -> Body:
    length = request.headers.get("content-length", "")
    if limits.body is not None and length.isdecimal() and int(length[:20]) > limits.body:
        refuse_large_body(limits.body)
    try:
        data = await request.body()
    except ClientDisconnect:
        raise Refusal(400, "Malformed", "the body has not come whole") from None
    if not data:
        if empty:
            return Body()
        raise Refusal(400, "Malformed", 'the body is empty: post a JSON document, such as {"input": ...}')
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if kind != "application/json" or encoding not in ("", "identity"):
        raise Refusal(415, "NotJson", "the body is to be plain application/json")
    try:
        body = msgspec.json.decode(data, type=Body)
    except msgspec.ValidationError as error:
        raise Refusal(422, "Invalid", str(error)) from None
    except RecursionError:
        _refuse_deep_body()
    except (msgspec.DecodeError, UnicodeError, ValueError) as error:
        raise Refusal(400, "Malformed", f"the body is no JSON: {error}") from None
    if _exceeds_max_depth(body):
        _refuse_deep_body()
    return body


def _exceeds_max_depth(body: Body) -> bool:
    """Return True if a body has more than `DEEP` levels. No recursion: it would have a limit of its own."""
    level: list[Any] = [body]
    for _ in range(MAX_DEPTH):
        level = [each for outer in level for each in _children(outer) if type(each) in _CONTAINER_TYPES]
        if not level:
            return False
    return True


_CONTAINER_TYPES = frozenset((dict, list, tuple, CommandBody, ConfigBody, SendBody))


def _children(outer: Any) -> Iterable[Any]:
    if type(outer) is dict:
        return cast("dict[str, Any]", outer).values()
    return cast("Iterable[Any]", msgspec.structs.astuple(outer) if isinstance(outer, msgspec.Struct) else outer)


def _refuse_deep_body() -> NoReturn:
    raise Refusal(422, "Invalid", f"the body is nested more than {MAX_DEPTH} levels deep")


def _graph_input(body: Body) -> Any:
    command = body.command
    if command is None:
        return body.input
    if body.input is not None:
        raise Refusal(422, "Invalid", "a request brings an input or a command, not both")
    goto = command.goto or ()
    return Command(
        resume=command.resume,
        update=command.update,
        goto=_goto_target(goto) if isinstance(goto, (str, SendBody)) else [_goto_target(each) for each in goto],
    )


def _goto_target(target: str | SendBody) -> str | Send:
    return Send(target.node, target.input) if isinstance(target, SendBody) else target


CHECKPOINT_KEYS = ("checkpoint_id", "checkpoint_ns", "checkpoint_map")


class ThreadAccess(msgspec.Struct):
    """Where a request's run is.

    Attributes:
        thread_id: None for a thread of its own that has no id yet.
        trusted: the service's own config.
        named: the client may name threads, and be told their names.
    """

    thread_id: str | None
    trusted_config: dict[str, Any]
    client_may_name: bool


async def authorize_thread(request: Request, thread: ThreadResolver | None, *, client_may_name: bool) -> ThreadAccess:
    """The thread that the service says a request has.

    Raises:
        Refusal: 403: it has none.
        Exception: what the service's own function has raised.
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
        raise Refusal(403, "Forbidden", "this request has no thread here")
    try:
        return ThreadAccess(check_thread_id(answer), trusted, False)
    except ConfigError:
        raise TypeError(
            f"thread= gave a {type(answer).__name__}, and not a thread's id: give a string, or None to refuse"
        ) from None


def select_thread(access: ThreadAccess, request: Request, body: Body, *, allow_checkpoints: bool) -> ThreadAccess:
    """The address, once it is known which thread the client has named, if any.

    Raises:
        Refusal: 403: another than its own; or it may name none.
        ConfigError: what it has named is no thread's id.
    """
    configurable = {} if body.config is None else body.config.configurable
    candidates = [*request.query_params.getlist("thread_id"), configurable.get("thread_id")]
    if access.thread_id is None:
        candidates.append(request.path_params.get("thread_id"))
    for key in CHECKPOINT_KEYS:
        if key in configurable and not allow_checkpoints:
            raise Refusal(403, "Forbidden", f"clients do not choose {key} here")
    for key in configurable:
        if key.startswith("__"):
            raise Refusal(403, "Forbidden", f"clients do not set {key[:40]!r}")
    thread_ids = {check_thread_id(each) for each in candidates if each is not None}
    if not thread_ids:
        return access
    if access.thread_id is None and access.client_may_name and len(thread_ids) == 1:
        return ThreadAccess(thread_ids.pop(), access.trusted_config, True)
    if thread_ids != {access.thread_id}:
        raise Refusal(403, "Forbidden", "this is not a thread of this request's")
    return access


async def run_with_deadline(seconds: float | None, work: Callable[[], Awaitable[Any]]) -> Any:
    """Let a request arrive.

    Raises:
        Refusal: 408.
    """
    with anyio.move_on_after(seconds):
        return await work()
    raise Refusal(408, "TooSlow", "the request has not come in time", {"connection": "close"})
