"""What a request asks for: read within limits, and checked before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NoReturn, TypeAlias, cast, get_args
from uuid import UUID

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from .._runtime.part import Cursor
from ..errors import InvalidCursorError
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

MODES = (*get_args(StreamMode), "messages-tuple")


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
    last = request.headers.get("last-event-id") or None
    if request.method == "GET":
        query = request.query_params
        last = last or query.get("last_event_id") or "-1"
        shown = query.get("stream_subgraphs")
        body = Body(
            stream_mode=query.getlist("stream_mode") or None,
            stream_subgraphs=None if shown is None else shown.lower() in ("true", "1"),
        )
    else:
        body = await _posted(request, limits, empty=last is not None)
    place = _seen(last)
    after = None if place is None else place.cursor
    accepts = request.headers.get("accept", "")
    return Asked(
        body=body,
        given=None if after is not None else _given(body),
        after=after,
        seen=place,
        document="application/json" in accepts and "text/event-stream" not in accepts,
        modes=_modes(body.stream_mode),
    )


def _modes(given: str | list[str] | None) -> list[str] | None:
    modes = [given] if isinstance(given, str) else given or None
    for mode in modes or ():
        if mode not in MODES:
            raise Refusal(422, "Invalid", f"stream_mode {mode[:40]!r} is not known; known are {', '.join(MODES)}")
    if modes is not None and len(set(modes)) < len(modes):
        raise Refusal(422, "Invalid", "stream_mode names each mode once")
    if modes is not None and {"messages", "messages-tuple"} <= set(modes):
        raise Refusal(422, "Invalid", "messages are shown as they grow (messages) or as pairs (messages-tuple)")
    return modes


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
    if kind != "application/json" or request.headers.get("content-encoding", "identity") != "identity":
        raise Refusal(415, "NotJson", "the body is to be plain application/json")
    try:
        return msgspec.json.decode(data, type=Body)
    except msgspec.ValidationError as error:
        raise Refusal(422, "Invalid", str(error)) from None
    except (msgspec.DecodeError, UnicodeError, ValueError, RecursionError) as error:
        raise Refusal(400, "Malformed", f"the body is no JSON: {error}") from None


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


# ---- whose thread ----------------------------------------------------------------------------------------------------

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
    if answer is True or not isinstance(answer, (str, int, UUID)):
        raise TypeError(
            f"thread= gave a {type(answer).__name__}, and not a thread's id: give a string, or None to refuse"
        )
    return Address(str(answer), trusted, False)


def settle(where: Address, request: Request, body: Body, *, checkpoints: bool) -> Address:
    """The address, once it is known which thread the client has named, if any.

    Raises:
        Refusal: 403: another than its own; or it may name none.
    """
    configurable = {} if body.config is None else body.config.configurable
    named = [request.query_params.get("thread_id"), configurable.get("thread_id")]
    if where.thread_id is None:
        named.append(request.path_params.get("thread_id"))
    for key in PLACE:
        if key in configurable and not checkpoints:
            raise Refusal(403, "Forbidden", f"clients do not choose {key} here")
    for key in configurable:
        if key.startswith("__"):
            raise Refusal(403, "Forbidden", f"clients do not set {key[:40]!r}")
    given = {str(each) for each in named if each is not None}
    if not given:
        return where
    if where.thread_id is None and where.named and len(given) == 1:
        (one,) = given
        if one:
            return Address(one, where.trusted, True)
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
