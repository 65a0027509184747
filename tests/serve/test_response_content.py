"""The content of responses: values as JSON, messages that grow, failures without their messages."""

from __future__ import annotations

import dataclasses
import datetime
import json
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from checkpoint_savers import InMemorySaver
from pregel_async import START, Interrupt, StateGraph, StreamWriter, add_messages, interrupt
from pregel_async._api.json_encoder import JsonEncoder
from pregel_async.errors import InvalidCursorError
from pregel_async.serve import graph_endpoint, sse_response
from pregel_async.serve.event_encoder import EventEncoder, ReaderPosition, parse_event_id
from pregel_async.serve.failures import log
from tests.serve.browser import Event, browsing, parsed
from tests.serve.graphs import CHUNK, Log, asking, chain, logs

AT = "00000000-0000-7000-8000-000000000001"

pytestmark = pytest.mark.anyio


@dataclasses.dataclass
class Point:
    x: int
    y: Any


class Colour(Enum):
    RED = "red"


class Model(pydantic.BaseModel):
    when: datetime.date
    point: Point


class Opaque:
    secret = "1234"

    def __repr__(self) -> str:
        return "Opaque(1234)"


class Broken:
    def model_dump(self) -> Any:
        raise RuntimeError("1234")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [1, 2.5, None, True, "x"]}, {"a": [1, 2.5, None, True, "x"]}),
        (Point(1, Point(2, {3})), {"x": 1, "y": {"x": 2, "y": [3]}}),
        (Interrupt("really?", "id"), {"value": "really?", "id": "id", "response_schema": None}),
        (Model(when=datetime.date(2025, 1, 2), point=Point(1, 2)), {"when": "2025-01-02", "point": {"x": 1, "y": 2}}),
        (UUID(int=0), "00000000-0000-0000-0000-000000000000"),
        (Decimal("1.10"), "1.10"),
        (Colour.RED, "red"),
        (b"\x00", "AA=="),
        ((1, 2), [1, 2]),
        ({1: "a"}, {"1": "a"}),
        ({(1, 2): "a"}, {"[1, 2]": "a"}),
        (float("nan"), None),
        (2**70, 2**70),
        ("\ud800", "?"),
        ({"\ud800": {"deep": Opaque()}}, {"?": {"deep": {"__unserializable__": "Opaque"}}}),
        (Opaque(), {"__unserializable__": "Opaque"}),
        ([Opaque, object()], [{"__unserializable__": "type"}, {"__unserializable__": "object"}]),
        (Broken(), {"__unserializable__": "Broken"}),
        (ValueError("1234"), "ValueError"),
    ],
    ids=[str(number) for number in range(19)],
)
async def test_values(value: Any, says: Any) -> None:
    """Each value of a state is sent as JSON; one without a JSON form is sent as its type's name only."""
    assert json.loads(JsonEncoder()(value)) == says
    assert b"1234" not in JsonEncoder()({"in": [value]})


async def test_values_that_contain_themselves() -> None:
    """They are cut off at some depth."""
    endless: list[Any] = []
    endless.append(endless)
    assert b"__unserializable__" in JsonEncoder()(endless)


async def test_values_of_a_users_types() -> None:
    """`encode` is called first; a `TypeError` means that it does not know the type either."""

    def encode(value: Any) -> Any:
        if isinstance(value, Opaque):
            return {"opaque": [UUID(int=0)]}
        raise TypeError

    write = JsonEncoder(encode)
    assert json.loads(write([Opaque(), ValueError()])) == [{"opaque": [str(UUID(int=0))]}, "ValueError"]
    assert json.loads(write({(): Opaque()})) == {"[]": {"opaque": [str(UUID(int=0))]}}


async def test_event_ids() -> None:
    """Ids are texts that increase; they distinguish the halves of a part, later completions, and the end from
    cursors."""
    encoder = EventEncoder(JsonEncoder(), tuples=False)
    part: Any = {
        "type": "messages",
        "ns": (),
        "seq": 4,
        "step": 1,
        "committed": 0,
        "cursor": f"{AT}.000002.00000007.00000004",
        "task": {"id": "t1", "ns": (), "name": "says"},
    }
    part["data"] = ({"role": "assistant", "content": "x", "id": "m"}, {})
    half, whole = parsed(b"".join(encoder.encode_part(part)).decode())
    part = {**part, "seq": 5, "cursor": f"{AT}.000002.00000008.00000005"}
    parsed(b"".join(encoder.encode_part(part)).decode())
    (complete,) = parsed(b"".join(encoder.encode_final_messages("success")).decode())
    (end,) = parsed(encoder.encode_end("r", "success").decode())
    assert half.id is not None
    assert whole.id is not None
    assert complete.id is not None
    assert end.id is not None
    assert f"{AT}.000002.00000006.00000003" < half.id < whole.id < f"{AT}.000002.00000008.+00000005"
    assert f"{AT}.000002.00000008.00000005" < complete.id < end.id < f"{AT}.000002.00000009.+00000006"
    assert parse_event_id(half.id) == ReaderPosition(f"{AT}.000002.00000006.00000003", mid_part=True)
    assert parse_event_id(whole.id) == ReaderPosition(f"{AT}.000002.00000007.00000004")
    assert parse_event_id(complete.id) == ReaderPosition(f"{AT}.000002.00000008.00000005", completions=1)
    assert parse_event_id(end.id) == ReaderPosition(f"{AT}.000002.00000008.00000005", after_end=True)
    for bad in (
        f"{AT}.000002.00000008.00000005-",
        f"{AT}.000002.00000008.00000005-x",
        f"{AT}.000002.00000008-1.00000005",
    ):
        with pytest.raises(InvalidCursorError):
            parse_event_id(bad)


async def streamed_events(node: Any, modes: Any, **more: Any) -> list[Any]:
    async with browsing(graph_endpoint(chain(("node", node)).compile(), **more)) as browser:
        done = await browser.ask(json={"input": {"log": []}, "stream_mode": modes})
        assert done.events[-1].data["status"] == "success"
        return [(event.name, event.data) for event in done.events[1:-1]]


async def test_langchain_chunks() -> None:
    """They are added by their own rules, and sent as messages of their class; a whole message is complete."""
    messages = pytest.importorskip("langchain_core.messages", reason="langchain-core is not installed: nox -s adapters")

    async def speak(state: Log, writer: StreamWriter) -> None:
        await writer.message(messages.AIMessageChunk(content="He", id="m"), {"model": "x"})
        await writer.message(messages.AIMessageChunk(content="llo", id="m", chunk_position="last"))
        await writer.message(messages.AIMessage(content="whole", id="n"))
        await writer.message({"role": "assistant", "content": "no id"})

    events = await streamed_events(speak, "messages")
    assert [name for name, _ in events] == [
        "messages/metadata",
        "messages/partial",
        "messages/complete",
        "messages/metadata",
        "messages/complete",
        "messages/complete",
    ]
    assert events[0][1]["m"]["metadata"]["model"] == "x"
    assert [(data[0]["type"], data[0]["content"]) for _, data in events[1:3]] == [("ai", "He"), ("ai", "Hello")]
    assert events[4][1][0]["content"] == "whole"
    assert events[5][1] == [{"role": "assistant", "content": "no id"}]
    pairs = await streamed_events(speak, "messages-tuple")
    assert [name for name, _ in pairs] == ["messages"] * 4
    assert [pair[0]["content"] for _, pair in pairs] == ["He", "llo", "whole", "no id"]
    assert pairs[0][1][1]["langgraph_node"] == "node"


async def test_chunks_of_adapters() -> None:
    """Texts and tool calls are joined; the chunk with the finish reason completes the message, calls included."""

    async def speak(state: Log, writer: StreamWriter) -> dict[str, Any]:
        for more in (
            {"content": "", "reasoning": "hm"},
            {"content": "", "reasoning": "m"},
            {"content": "I "},
            {"content": "call", "tool_call_chunks": [{"index": 0, "id": "c", "name": "f", "args": '{"x"'}]},
            {"content": "", "tool_call_chunks": [{"index": 0, "args": ": 1}"}, {"index": 2, "id": "d", "args": "["}]},
            {"content": "", "finish_reason": "tool_calls", "usage": {"total_tokens": 3}},
        ):
            await writer.message({**CHUNK, "id": "m", **more})
        return {"log": ["said"]}

    events = await streamed_events(speak, "messages")
    assert [name for name, _ in events] == ["messages/metadata", *["messages/partial"] * 5, "messages/complete"]
    assert [data[0].get("reasoning") for _, data in events[1:3]] == ["hm", "hmm"]
    assert events[5][1][0]["tool_call_chunks"] == [
        {"index": 0, "id": "c", "name": "f", "args": '{"x": 1}'},
        {"index": 2, "id": "d", "args": "["},
    ]
    (whole,) = events[6][1]
    (invalid,) = whole.pop("invalid_tool_calls")
    assert (invalid["id"], invalid["args"]) == ("d", "[")
    assert whole == {
        "role": "assistant",
        "id": "m",
        "content": "I call",
        "reasoning": "hmm",
        "tool_calls": [{"type": "tool_call", "id": "c", "name": "f", "args": {"x": 1}}],
        "finish_reason": "tool_calls",
        "usage": {"total_tokens": 3},
    }


async def test_messages_that_nodes_return() -> None:
    """They are sent in one piece, and are complete."""

    class Chat(TypedDict):
        messages: Annotated[list[Any], add_messages]

    async def answer(state: Chat) -> dict[str, Any]:
        return {"messages": [{"role": "assistant", "content": "hello", "id": "m"}]}

    graph = StateGraph(Chat).add_node(answer).add_edge(START, "answer").compile()
    async with browsing(graph_endpoint(graph)) as browser:
        done = await browser.ask(json={"input": {"messages": ["hi"]}, "stream_mode": "messages"})
    assert [event.name for event in done.events[1:-1]] == ["messages/metadata", "messages/complete"]
    assert done.events[2].data == [{"role": "assistant", "content": "hello", "id": "m"}]


async def test_chunks_of_all_kinds() -> None:
    """Dicts, objects with a content, lists of blocks, and frozen objects: those that are not marked as chunks are
    added all the same, if more comes with their id; and are sent as complete once more at the end."""

    @dataclasses.dataclass
    class Said:
        id: str
        content: Any
        role: str = "assistant"

    class Frozen(msgspec.Struct, frozen=True):
        id: str
        content: str
        role: str = "assistant"

    async def speak(state: Log, writer: StreamWriter) -> None:
        for chunk in (
            *({"role": "assistant", "content": text, "id": "a"} for text in ("x", "y")),
            *(Said("b", text) for text in ("x", "y")),
            *(Said("c", [text]) for text in ("x", "y")),
            *(Said("d", text) for text in ("x", None)),
            *(Frozen("e", text) for text in ("x", "y")),
        ):
            await writer.message(chunk)

    events = await streamed_events(speak, "messages")
    grown = [data[0]["content"] for name, data in events if name != "messages/metadata"]
    assert grown == ["x", "xy", "x", "xy", ["x"], ["x", "y"], "x", "x", "x", "y", "xy", "xy", ["x", "y"], "x", "y"]
    assert [name for name, _ in events[-5:]] == ["messages/complete"] * 5


def sends_messages(*names: str) -> Any:
    """A node that sends messages in turn, as sources do that never mark the end of one."""

    async def speak(state: Log, writer: StreamWriter) -> dict[str, list[str]]:
        for text in ("He", "llo"):
            for name in names:
                await writer.message({**CHUNK, "content": text, "id": name})
        return {"log": list(names)}

    return speak


def completed(events: list[Event]) -> list[tuple[str, Any]]:
    """The events of messages: the kind of each, and its id."""
    return [
        (event.name.rpartition("/")[2].partition("|")[0], event.data[0]["id"])
        for event in events
        if event.name.startswith(("messages/partial", "messages/complete"))
    ]


@pytest.mark.parametrize("saver", ["kept", "stored", "none"])
async def test_messages_without_an_end_mark(saver: str) -> None:
    """Each is sent as complete when its superstep is over, before any event of the next, or with the run; not while
    another task of that superstep sends more. This holds with stored events, with a saver alone, and without one."""
    builder = StateGraph(Log).add_node("first", sends_messages("a", "b")).add_node("parallel", sends_messages("c"))
    builder.add_node("last", sends_messages("d")).add_edge(START, "first").add_edge(START, "parallel")
    graph = builder.add_edge(["first", "parallel"], "last").compile(None if saver == "none" else InMemorySaver())
    modes: Any = ["messages", "updates", "values"]

    async def route(request: Request) -> Response:
        return sse_response(graph.astream({"log": []}, "t", stream_mode=modes, version="v2"), request)

    app = Starlette(routes=[Route("/", route, methods=["POST"])]) if saver == "stored" else graph_endpoint(graph)
    async with browsing(app) as browser:
        done = await browser.ask(json={"input": {"log": []}, "stream_mode": modes})
    received = completed(done.events)
    assert sorted(received[:6]) == [("partial", name) for name in "aabbcc"]
    assert sorted(received[6:9]) == [("complete", name) for name in "abc"]
    assert received[9:] == [("partial", "d"), ("partial", "d"), ("complete", "d")]
    whole = [event.data[0] for event in done.events if event.name == "messages/complete"]
    assert whole[-1] == {"role": "assistant", "content": "Hello", "id": "d"}
    assert done.events[-1].name == "end"
    if saver != "none":  # events with the superstep's commit come after them
        at = [event.name for event in done.events].index("messages/complete")
        assert [event.name for event in done.events[at + 3 :] if event.name == "values"] == ["values", "values"]


@pytest.mark.parametrize("epoch", [1, 2])
async def test_a_void_message_is_never_complete(epoch: int) -> None:
    """A message of a superstep that starts again is sent anew: its chunks from before are dropped."""
    encoder = EventEncoder(JsonEncoder(), tuples=False)
    part: Any = {
        "type": "messages",
        "ns": (),
        "seq": 1,
        "step": 1,
        "committed": 0,
        "cursor": "c.000001.00000001.00000001",
        "task": {"id": "t1", "ns": (), "name": "says"},
    }
    part["data"] = ({**CHUNK, "content": "He", "id": "m"}, {})
    encoder.encode_part(part)
    void: Any = {"type": "superstep_restarted", "cursor": f"c.00000{epoch}.00000001.00000002", "task": None}
    void["data"] = {"step": 1, "checkpoint_id": "c", "after": "c.000000.00000000.00000000", "tasks": [part["task"]]}
    received = [
        *encoder.encode_part({**part, **void, "seq": 2}),
        *encoder.encode_part({**part, "seq": 3, "cursor": "c.000002.00000002.00000003"}),
        *encoder.encode_final_messages("success"),
    ]
    events = parsed(b"".join(received).decode())
    assert [event.name for event in events] == [
        *("superstep_restarted", "messages/metadata", "messages/partial", "messages/complete")
    ]
    assert events[-1].data[0]["content"] == "He"


@pytest.mark.parametrize("stops", ["question", "breakpoint"])
async def test_messages_are_complete_when_the_run_stops(stops: str) -> None:
    """For a question or at a breakpoint, the messages so far are sent as complete, and once to a reader that
    reconnects after the run has continued."""

    async def asks(state: Log) -> dict[str, list[str]]:
        return {"log": [interrupt("go on?")]}

    builder = StateGraph(Log).add_node("first", sends_messages("a")).add_node("asks", asks).add_edge(START, "first")
    builder.add_edge(START if stops == "question" else "first", "asks")
    app = graph_endpoint(builder.compile(InMemorySaver()), allow_any_thread=True)
    body: Any = {"stream_mode": "messages", "config": {"configurable": {"thread_id": "t"}}}
    more = {"interrupt_before": ["asks"]} if stops == "breakpoint" else {}
    async with browsing(app) as browser:
        stopped = await browser.ask(json={"input": {"log": []}, **body, **more})
        assert stopped.events[-1].data["status"] == "interrupted"
        assert completed(stopped.events) == [("partial", "a"), ("partial", "a"), ("complete", "a")]
        again = await browser.ask("/?thread_id=t", last=stopped.events[2].id)
        assert again.events[1:] == stopped.events[3:]
        if stops == "question":
            await browser.ask(json={"command": {"resume": "yes"}, **body})
            later = await browser.ask("/?thread_id=t", last=stopped.events[2].id)
            assert completed(later.events) == [("partial", "a"), ("complete", "a")]


@pytest.mark.parametrize("kept", [True, False])
async def test_messages_of_subgraphs_are_completed_in_their_superstep(kept: bool) -> None:
    """The end of a subgraph's superstep completes its messages, with the namespace after the name; the end of the
    called graph's superstep completes the rest."""
    inner = chain(("one", sends_messages("a")), ("two", sends_messages("b"))).compile()
    graph = chain(("in", inner), ("out", sends_messages("c")), ("more", sends_messages("d"))).compile(
        InMemorySaver() if kept else None
    )
    async with browsing(graph_endpoint(graph)) as browser:
        done = await browser.ask(json={"input": {"log": []}, "stream_mode": "messages", "stream_subgraphs": True})
    received = completed(done.events)
    assert received[:5] == [("partial", "a"), ("partial", "a"), ("complete", "a"), ("partial", "b"), ("partial", "b")]
    later = [
        ("partial", "c"),
        ("partial", "c"),
        ("complete", "c"),
        ("partial", "d"),
        ("partial", "d"),
        ("complete", "d"),
    ]
    later.insert(0 if kept else 2, ("complete", "b"))  # without a saver it is sent when it is certainly complete
    assert received[5:] == later
    inside = [event.name for event in done.events if "|in:" in event.name]
    assert [name.partition("|")[0] for name in inside].count("messages/complete") == 2


async def test_each_mode_and_subgraphs() -> None:
    """One event per part, named by its mode, followed by the namespace for subgraphs."""

    class Outer(TypedDict):
        log: list[str]

    inner = StateGraph(Outer).add_node("in", logs("in")).add_edge(START, "in").compile()
    graph = StateGraph(Outer).add_node("out", inner).add_edge(START, "out").compile(InMemorySaver())
    modes = ["values", "updates", "custom", "tasks", "checkpoints", "debug"]
    async with browsing(graph_endpoint(graph)) as browser:
        done = await browser.ask(json={"input": {"log": []}, "stream_mode": modes, "stream_subgraphs": True})
    names = {event.name.partition("|")[0] for event in done.events}
    assert names == {"metadata", "values", "updates", "tasks", "checkpoints", "debug", "end"}
    inside = {event.name.partition("|")[2].partition(":")[0] for event in done.events}
    assert inside == {"", "out"}


async def test_questions() -> None:
    """In `values` and in `updates`, with the id for the answer."""
    for mode in ("values", "updates"):
        async with browsing(graph_endpoint(asking().compile(InMemorySaver()))) as browser:
            done = await browser.ask(json={"input": {"log": []}, "stream_mode": mode})
        (question,) = done.events[-2].data["__interrupt__"]
        assert (question["value"], len(question["id"])) == ("go on?", 32)
        assert done.events[-1].data["status"] == "interrupted"


@pytest.mark.parametrize("expose", [False, True])
async def test_failures_in_tasks(expose: bool) -> None:
    """They are named in `tasks` and `debug`, and their messages are sent only if the service allows it; live and
    stored alike."""

    async def fails(state: Log) -> None:
        raise ValueError("the password is swordfish")

    graph = chain(("fails", fails)).compile(InMemorySaver())
    app = graph_endpoint(graph, allow_any_thread=True, expose_errors=expose)
    body = {"input": {"log": []}, "stream_mode": ["tasks", "debug", "checkpoints"]}
    async with browsing(app) as browser:
        live = await browser.ask(json={**body, "config": {"configurable": {"thread_id": "t"}}})
        kept = await browser.ask("/?thread_id=t", last=live.events[0].id)
        again = await browser.ask(json={"input": None, **body, "config": {"configurable": {"thread_id": "t"}}})
        for done in (live, kept, again):
            assert (b"swordfish" in done.content) == expose
            failed = next(event for event in done.events if event.name == "tasks" and event.data.get("error"))
            assert failed.data["error"].startswith("ValueError")
            assert done.events[-2].name == "error"


async def test_a_failure_that_cannot_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure whose message raises, or is no text, is sent all the same."""
    monkeypatch.setattr(log, "disabled", True)  # what captures it here cannot print it either

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    for error in (Mute(), ValueError("\ud800")):

        async def fails(state: Log, error: Exception = error) -> None:
            raise error

        async with browsing(graph_endpoint(chain(("fails", fails)).compile(), expose_errors=True)) as browser:
            done = await browser.ask(json={"input": {"log": []}})
            assert done.events[-2].data["error"] == type(error).__name__
