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
from .failures import Refusal
from .limits import Limits
from .wire import Seen, seen

OnDisconnect: TypeAlias = Literal["cancel", "continue"]
"""What becomes of a run whose reader is gone: it is cancelled, or goes on to its end."""

Verb: TypeAlias = Literal["input", "resume", "update", "goto"]
"""What a client may bring."""

ThreadOf: TypeAlias = Callable[[Request], Awaitable[Any] | Any]
"""Maps a request to a thread: its id; or a config that has one, whose settings count more than the client's. None, or a
`PermissionError`, refuses."""

ServedMode: TypeAlias = StreamMode | Literal["messages-tuple"]
"""A mode of an endpoint's stream: one of `astream`'s, or messages as pairs with where they come from."""

MODES = (*get_args(StreamMode), "messages-tuple")

DEEP: Final = 200
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


class Asked(msgspec.Struct, kw_only=True):
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
    given: Any
    after: str | None
    seen: Seen | None
    document: bool
    modes: list[str] | None

    @property
    def brings(self) -> list[Verb]:
        """What it brings to its thread."""
        command = self.body.command
        if command is None:
            return [] if self.after is not None else ["input"]
        fields: tuple[Verb, ...] = ("resume", "update", "goto")
        return [name for name in fields if getattr(command, name) is not None]


def bounded(receive: Receive, limit: int | None) -> Receive:
    """A request's messages, of no more bytes than the limit.

    Raises:
        Refusal: there are more.
    """
    taken = 0

    async def counted() -> Message:
        nonlocal taken
        message = await receive()
        if message["type"] == "http.request":
            taken += len(message.get("body", b""))
            if limit is not None and taken > limit:
                refuse_size(limit)
        return message

    return counted


def refuse_size(limit: int) -> NoReturn:
    raise Refusal(413, "TooLarge", f"the body has more than {limit} bytes", {"connection": "close"})


async def read(request: Request, limits: Limits) -> Asked:
    """What a request asks for.

    Raises:
        Refusal: 400, 408, 413, 415, 422.
    """
    last = last_event_id_of(request)
    if request.method == "GET":
        last = last or "-1"
        body = Body(
            stream_mode=request.query_params.getlist("stream_mode") or None,
            stream_subgraphs=_flag(request, "stream_subgraphs"),
        )
    else:
        body = await _posted(request, limits, empty=last is not None)
    place = _seen(last)
    after = None if place is None else place.cursor
    accepted = _accepted(request)
    return Asked(
        body=body,
        given=None if after is not None else _given(body),
        after=after,
        seen=place,
        document="application/json" in accepted and "text/event-stream" not in accepted,
        modes=_modes(body.stream_mode),
    )


def last_event_id_of(request: Request) -> str | None:
    """Return the id of the last event that the client has read, from the header or else the query; None for neither.

    The query counts for a POST too: a client that cannot send the header posts its input again, and it must not run
    again.

    Raises:
        Refusal: 400: the client names several.
    """
    for given in (request.headers.getlist("last-event-id"), request.query_params.getlist("last_event_id")):
        if len(given) > 1:
            raise Refusal(400, "Malformed", "Last-Event-ID, or last_event_id in the query, is given once")
        if given and given[0]:
            return given[0]
    return None


def _flag(request: Request, name: str) -> bool | None:
    given = request.query_params.getlist(name)
    if not given:
        return None
    known = {"true": True, "1": True, "false": False, "0": False}
    if len(given) > 1 or given[0].lower() not in known:
        raise Refusal(422, "Invalid", f"{name} is true or false (or 1 or 0), once")
    return known[given[0].lower()]


def _accepted(request: Request) -> frozenset[str]:
    """Return the media types that the client names in `Accept`, in small letters, without those of weight 0.

    Source: RFC 9110, 12.5.1.
    """
    ranges = ",".join(request.headers.getlist("accept")).lower().split(",")
    named = [[each.strip() for each in one.split(";")] for one in ranges]
    return frozenset(kind for kind, *parameters in named if not any(_NO_WEIGHT.fullmatch(each) for each in parameters))


_NO_WEIGHT = re.compile(r"q=0(\.0{0,3})?")


def check_modes(given: object) -> list[str]:
    """Return the stream modes that a request or an endpoint names, one or several, as a list.

    Raises:
        ConfigError: one is not known, or is named twice, or there is none.
    """
    modes: list[Any] = [given] if isinstance(given, str) else list(given) if isinstance(given, Sequence) else []
    for mode in modes:
        if not isinstance(mode, str) or mode not in MODES:
            raise ConfigError(f"stream_mode {str(mode)[:40]!r} is not known; known are {', '.join(MODES)}")
    if not modes or len(set(modes)) < len(modes):
        raise ConfigError("stream_mode names each mode once, and at least one")
    if {"messages", "messages-tuple"} <= set(modes):
        raise ConfigError("stream_mode shows messages as they grow (messages) or as pairs (messages-tuple)")
    return modes


def _modes(given: str | list[str] | None) -> list[str] | None:
    try:
        return check_modes(given) if given or given == "" else None
    except ConfigError as error:
        raise Refusal(422, "Invalid", str(error)) from None


def _seen(last: str | None) -> Seen | None:
    if last is None:
        return None
    if last == "-1":  # from the beginning
        return Seen(str(Cursor("", 0, 0)))
    try:
        return seen(last)
    except (InvalidCursorError, ValueError):
        raise Refusal(400, "Malformed", "Last-Event-ID is no id of an event that was sent") from None


async def _posted(request: Request, limits: Limits, *, empty: bool) -> Body:
    length = request.headers.get("content-length", "")
    if limits.body is not None and length.isdecimal() and int(length[:20]) > limits.body:
        refuse_size(limits.body)
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
        _refuse_depth()
    except (msgspec.DecodeError, UnicodeError, ValueError) as error:
        raise Refusal(400, "Malformed", f"the body is no JSON: {error}") from None
    if _is_deep(body):
        _refuse_depth()
    return body


def _is_deep(body: Body) -> bool:
    """Return True if a body has more than `DEEP` levels. No recursion: it would have a limit of its own."""
    level: list[Any] = [body]
    for _ in range(DEEP):
        level = [each for outer in level for each in _inside(outer) if type(each) in _LEVELS]
        if not level:
            return False
    return True


_LEVELS = frozenset((dict, list, tuple, CommandBody, ConfigBody, SendBody))


def _inside(outer: Any) -> Iterable[Any]:
    if type(outer) is dict:
        return cast("dict[str, Any]", outer).values()
    return cast("Iterable[Any]", msgspec.structs.astuple(outer) if isinstance(outer, msgspec.Struct) else outer)


def _refuse_depth() -> NoReturn:
    raise Refusal(422, "Invalid", f"the body is nested more than {DEEP} levels deep")


def _given(body: Body) -> Any:
    command = body.command
    if command is None:
        return body.input
    if body.input is not None:
        raise Refusal(422, "Invalid", "a request brings an input or a command, not both")
    goto = command.goto or ()
    return Command(
        resume=command.resume,
        update=command.update,
        goto=_target(goto) if isinstance(goto, (str, SendBody)) else [_target(each) for each in goto],
    )


def _target(given: str | SendBody) -> str | Send:
    return Send(given.node, given.input) if isinstance(given, SendBody) else given


PLACE = ("checkpoint_id", "checkpoint_ns", "checkpoint_map")


class Address(msgspec.Struct):
    """Where a request's run is.

    Attributes:
        thread_id: None for a thread of its own that has no id yet.
        trusted: the service's own config.
        named: the client may name threads, and be told their names.
    """

    thread_id: str | None
    trusted: dict[str, Any]
    named: bool


async def address(request: Request, thread: ThreadOf | None, *, anything: bool) -> Address:
    """The thread that the service says a request has.

    Raises:
        Refusal: 403: it has none.
        Exception: what the service's own function has raised.
    """
    if thread is None:
        return Address(None, {}, anything)
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
        return Address(check_thread_id(answer), trusted, False)
    except ConfigError:
        raise TypeError(
            f"thread= gave a {type(answer).__name__}, and not a thread's id: give a string, or None to refuse"
        ) from None


def settle(where: Address, request: Request, body: Body, *, checkpoints: bool) -> Address:
    """The address, once it is known which thread the client has named, if any.

    Raises:
        Refusal: 403: another than its own; or it may name none.
        ConfigError: what it has named is no thread's id.
    """
    configurable = {} if body.config is None else body.config.configurable
    named = [*request.query_params.getlist("thread_id"), configurable.get("thread_id")]
    if where.thread_id is None:
        named.append(request.path_params.get("thread_id"))
    for key in PLACE:
        if key in configurable and not checkpoints:
            raise Refusal(403, "Forbidden", f"clients do not choose {key} here")
    for key in configurable:
        if key.startswith("__"):
            raise Refusal(403, "Forbidden", f"clients do not set {key[:40]!r}")
    given = {check_thread_id(each) for each in named if each is not None}
    if not given:
        return where
    if where.thread_id is None and where.named and len(given) == 1:
        return Address(given.pop(), where.trusted, True)
    if given != {where.thread_id}:
        raise Refusal(403, "Forbidden", "this is not a thread of this request's")
    return where


async def in_time(seconds: float | None, work: Callable[[], Awaitable[Any]]) -> Any:
    """Let a request arrive.

    Raises:
        Refusal: 408.
    """
    with anyio.move_on_after(seconds):
        return await work()
    raise Refusal(408, "TooSlow", "the request has not come in time", {"connection": "close"})
