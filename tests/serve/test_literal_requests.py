"""Values in a request are used as they are, or refused: none is converted to another value."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from checkpoint_savers import InMemorySaver
from pregel_async import StateGraph, StreamWriter
from pregel_async.errors import ConfigError
from pregel_async.serve import Limits, graph_endpoint, graph_lifespan, last_event_id, sse_response
from pregel_async.serve.service import Service
from tests.serve.browser import Browser, browsing
from tests.serve.graphs import asking, chain, logs

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

JSON = {"content-type": "application/json"}
INPUT = {"input": {"log": []}}


def steps() -> StateGraph[Any]:
    return chain(("a", logs("a")), ("b", logs("b")))


def user_of(request: Request) -> str | None:
    return request.headers.get("user")


async def refused(browser: Browser, status: int, says: str, **asked: Any) -> None:
    done = await browser.ask(**asked)
    assert (done.status, says in done.json["message"]) == (status, True), done.content


async def test_an_endpoint_with_several_stream_modes() -> None:
    """`graph_endpoint(stream_mode=[...])` takes a list, as `astream` does, for requests without stream modes."""

    async def node(state: Any, writer: StreamWriter) -> dict[str, list[str]]:
        await writer("half")
        return {"log": ["node"]}

    for modes in (["updates", "custom"], ("updates", "custom")):
        graph = chain(("node", node)).compile(InMemorySaver())
        async with browsing(graph_endpoint(graph, thread=user_of, stream_mode=modes)) as browser:
            done = await browser.ask(json=INPUT, headers={"user": "ada"})
            assert [event.name for event in done.events] == ["metadata", "custom", "updates", "end"]
            back = await browser.ask(headers={"user": "ada"})
            assert [event.name for event in back.events] == ["metadata", "custom", "updates", "end"]
            named = await browser.ask(json={**INPUT, "stream_mode": "values"}, headers={"user": "eve"})
            assert {event.name for event in named.events} == {"metadata", "values", "end"}


async def test_an_endpoint_with_messages_as_pairs() -> None:
    """`stream_mode="messages-tuple"` is one of an endpoint's modes, alone and in a list."""

    async def node(state: Any, writer: StreamWriter) -> None:
        await writer.message({"role": "assistant", "content": "hi", "id": "1"})

    for modes in ("messages-tuple", ["messages-tuple", "custom"]):
        async with browsing(graph_endpoint(chain(("node", node)).compile(), stream_mode=modes)) as browser:
            done = await browser.ask(json=INPUT)
            assert [event.name for event in done.events] == ["metadata", "messages", "end"]


@pytest.mark.parametrize(
    "modes",
    ["tokens", ["updates", "tokens"], [], ["values", "values"], ["messages", "messages-tuple"], [["values"]], None, 5],
)
async def test_unknown_stream_modes_of_an_endpoint(modes: Any) -> None:
    """They are refused when the endpoint is created, with an error that lists the known ones."""
    with pytest.raises(ConfigError, match="stream_mode"):
        graph_endpoint(steps().compile(), stream_mode=modes)
    if modes != ["messages", "messages-tuple"] and modes is not None:
        with pytest.raises(ConfigError, match="stream_mode"):
            steps().compile().astream({"log": []}, stream_mode=modes)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("levels", [201, 500, 995, 100_000])
@pytest.mark.parametrize(
    "body",
    [
        '{"input": {"log": [%s]}}',
        '{"command": {"resume": %s}}',
        '{"command": {"update": {"log": [%s]}}}',
        '{"command": {"goto": {"node": "ask", "input": %s}}}',
        '{"input": {"log": []}, "context": %s}',
        '{"input": {"log": []}, "metadata": {"a": %s}}',
        '{"input": {"log": []}, "config": {"configurable": {"a": %s}}}',
    ],
)
async def test_a_body_that_is_nested_too_deeply(body: str, levels: int, stored: bool) -> None:
    """A body of more than 200 levels is refused for its nesting, whatever is nested, and however deep the service's
    own stack is; the error does not say that the value contains itself."""
    around = body.partition("%s")[0]
    more = levels - sum(around.count(each) for each in "{[") + sum(around.count(each) for each in "}]")
    saver = InMemorySaver()
    graph = asking().compile(saver if stored else None)
    async with browsing(graph_endpoint(graph, thread=user_of if stored else None)) as browser:
        asks = {"body": (body % ("[" * more + "]" * more)).encode(), "headers": {**JSON, "user": "ada"}}
        await refused(browser, 422, "nested more than 200 levels deep", **asks)
    assert await saver.scan(None, None) == ()


async def test_brackets_in_texts_do_not_count_as_nesting() -> None:
    """A message may quote code, with escapes and quotation marks; and 200 levels are served if they are not stored."""
    deep: Any = []
    for _ in range(196):
        deep = [deep]
    async with browsing(graph_endpoint(chain(("a", logs("a"))).compile())) as browser:
        for log in (
            ["[" * 1000 + '\\"{{[' * 300],
            ['"' + "[" * 500],
            ["\\", "[" * 300],
            [[[]] for _ in range(500)],
            [deep],
        ):
            done = await browser.ask(json={"input": {"log": log}})
            assert (done.status, done.events[-1].data["status"]) == (200, "success")
        await refused(browser, 422, "200 levels", json={"input": {"log": [[deep]]}})


class Order(BaseModel):
    amount: int


async def test_an_input_that_a_model_refuses() -> None:
    """An input that the graph's pydantic state refuses is a 422 that names the path, and not a failed run."""
    saver = InMemorySaver()
    made: Any = StateGraph(Order).add_node("n", lambda state: None).add_edge("__start__", "n")
    async with browsing(graph_endpoint(made.compile(saver), allow_any_thread=True)) as browser:
        asks = {"config": {"configurable": {"thread_id": "t"}}}
        await refused(browser, 422, "input 'amount'", json={"input": {"amount": "many"}, **asks})
        await refused(browser, 422, "'amount'", json={"command": {"update": {"amount": "x"}, "goto": "n"}, **asks})
    assert await saver.scan(None, None) == ()


@pytest.mark.parametrize("named", [{"a": 1}, ["a"], [], {}, True, False, 1.5, 0.0, ""])
async def test_invalid_thread_ids(named: Any) -> None:
    """A client's thread id is text or a whole number: any other value is a 422, and its text form is not used as an
    id."""
    saver = InMemorySaver()
    async with browsing(graph_endpoint(steps().compile(saver), allow_any_thread=True)) as browser:
        asks = {**INPUT, "config": {"configurable": {"thread_id": named}}}
        await refused(browser, 422, "thread_id", json=asks)
        await refused(browser, 422, "thread_id", json=asks, path="/?thread_id=t")
    assert await saver.scan(None, None) == ()
    async with browsing(graph_endpoint(steps().compile(saver), thread=lambda request: str(named) or "x")) as browser:
        await refused(browser, 422, "thread_id", json=asks)


async def test_valid_thread_ids() -> None:
    """Text of any kind, and a number, which is the same thread as its digits; null is no id."""
    graph = steps().compile(InMemorySaver())
    async with browsing(graph_endpoint(graph, allow_any_thread=True)) as browser:
        for named in ("ada", "True", "a b/ü", 5, "5", 0):
            done = await browser.ask(json={**INPUT, "config": {"configurable": {"thread_id": named}}})
            assert done.events[0].data["thread_id"] == str(named)
        assert len((await graph.aget_state("5")).values["log"]) == 4
        done = await browser.ask(json={**INPUT, "config": {"configurable": {"thread_id": None}}})
        assert len(done.events[0].data["thread_id"]) == 36


async def test_threads_named_twice() -> None:
    """A query with two thread ids is refused, in whatever order, as a proxy may have checked the other one."""
    async with browsing(graph_endpoint(steps().compile(InMemorySaver()), allow_any_thread=True)) as browser:
        for query in ("thread_id=a&thread_id=b", "thread_id=b&thread_id=a", "thread_id=&thread_id=a"):
            done = await browser.ask(json=INPUT, path=f"/?{query}")
            assert done.status in (403, 422), query
        assert (await browser.ask(json=INPUT, path="/?thread_id=a&thread_id=a")).status == 200


@pytest.mark.parametrize("thread_id", [True, False, 1.5, b"t", {"a": 1}, ["t"], ("t",), {"t"}, object()])
async def test_invalid_thread_ids_in_python(thread_id: Any) -> None:
    """In a Python call, too, a thread's id is text, a whole number or a UUID, and `str()` of any other value is not
    used."""
    saver = InMemorySaver()
    graph = steps().compile(saver)
    config = {"configurable": {"thread_id": thread_id}}
    with pytest.raises(
        ConfigError, match=f"thread_id is text, a whole number or a UUID, and not a {type(thread_id).__name__}"
    ):
        await graph.ainvoke({"log": []}, config)
    with pytest.raises(ConfigError, match="thread_id"):
        await graph.aget_state(config)
    assert await saver.scan(None, None) == ()


@pytest.mark.parametrize(
    "place", [{"checkpoint_id": 5}, {"checkpoint_id": True}, {"checkpoint_ns": {}}, {"checkpoint_ns": 0}]
)
async def test_invalid_checkpoint_ids(place: dict[str, Any]) -> None:
    """With `allow_checkpoints`, a checkpoint id that is not text is refused."""
    endpoint = graph_endpoint(steps().compile(InMemorySaver()), thread=user_of, allow_checkpoints=True)
    async with browsing(endpoint) as browser:
        asks = {"input": None, "config": {"configurable": place}}
        await refused(browser, 422, "strings", json=asks, headers={"user": "ada"})


@pytest.mark.parametrize("map", [{"": 5}, {"": {"a": 1}}, {"": "x", "n:1": True}, [["", "x"]], "x", {}])
async def test_invalid_checkpoint_maps(map: Any) -> None:
    """A map of checkpoints with a value that is not text is refused, too."""
    endpoint = graph_endpoint(steps().compile(InMemorySaver()), thread=user_of, allow_checkpoints=True)
    async with browsing(endpoint) as browser:
        place = {"checkpoint_id": "x", "checkpoint_ns": "n:1", "checkpoint_map": map}
        asks = {"input": None, "config": {"configurable": place}}
        await refused(browser, 422, "checkpoint_", json=asks, headers={"user": "ada"})


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"config": {"recursion_limit": 10.0}}, "recursion_limit"),
        ({"config": {"recursion_limit": True}}, "recursion_limit"),
        ({"config": {"recursion_limit": "10"}}, "recursion_limit"),
        ({"config": {"recursion_limit": -1}}, "recursion_limit"),
        ({"config": {"max_concurrency": 0}}, "max_concurrency"),
        ({"config": {"max_concurrency": False}}, "max_concurrency"),
        ({"config": {"tags": "a"}}, "tags"),
        ({"config": {"tags": [1]}}, "tags"),
        ({"stream_subgraphs": "false"}, "stream_subgraphs"),
        ({"stream_subgraphs": 0}, "stream_subgraphs"),
        ({"interrupt_before": "a"}, "interrupt_before"),
        ({"interrupt_after": [True]}, "interrupt_after"),
        ({"metadata": []}, "metadata"),
        ({"metadata": "x"}, "metadata"),
        ({"config": []}, "config"),
    ],
)
async def test_settings_of_the_wrong_type(more: dict[str, Any], says: str) -> None:
    """A setting of the wrong type is refused, and not converted."""
    async with browsing(graph_endpoint(steps().compile(InMemorySaver()), thread=user_of)) as browser:
        await refused(browser, 422, says, json={**INPUT, **more}, headers={"user": "ada"})


@pytest.mark.parametrize("flag", ["yes", "on", "", "banana", "2", "true&stream_subgraphs=false", "tru\u0065 "])
async def test_an_invalid_flag(flag: str) -> None:
    """`?stream_subgraphs=` is true or false, 1 or 0, once: any other value is refused, and not taken as false."""
    async with browsing(graph_endpoint(steps().compile(InMemorySaver()), thread=user_of)) as browser:
        await browser.ask(json=INPUT, headers={"user": "ada"})
        await refused(browser, 422, "stream_subgraphs", path=f"/?stream_subgraphs={flag}", headers={"user": "ada"})
        for good in ("true", "True", "1", "false", "FALSE", "0"):
            assert (await browser.ask(path=f"/?stream_subgraphs={good}", headers={"user": "ada"})).status == 200


async def test_last_event_id_in_the_query_of_a_post() -> None:
    """A client that cannot send the header and repeats its POST with `?last_event_id=` reconnects: its input is not
    a new one, and no node runs a second time."""
    graph = steps().compile(InMemorySaver())
    async with browsing(graph_endpoint(graph, thread=user_of, stream_mode="updates")) as browser:
        ada = {"user": "ada"}
        first = await browser.ask(json=INPUT, headers=ada)
        back = await browser.ask(json=INPUT, headers=ada, path=f"/?last_event_id={first.events[0].id}")
        assert back.events[1:] == first.events[1:]
        assert (await graph.aget_state("ada")).values == {"log": ["a", "b"]}
        twice = f"/?last_event_id={first.events[0].id}&last_event_id=-1"
        await refused(browser, 400, "last_event_id", json=INPUT, headers=ada, path=twice)
        assert (await graph.aget_state("ada")).values == {"log": ["a", "b"]}


@pytest.mark.parametrize(
    "asked",
    [
        {"last": "nonsense"},
        {"last": "a.1_0.1.1"},
        {"last": "a.1.1.\N{SUPERSCRIPT TWO}"},
        {"path": "/?last_event_id=x"},
        {"path": "/?last_event_id=a.1.1.1&last_event_id=a.1.1.2"},
    ],
)
async def test_an_invalid_event_id_in_a_users_own_route(asked: dict[str, Any]) -> None:
    """`sse_response` answers it with 400, as for `last_event_id`, and not as a failure of the service."""

    async def route(request: Request) -> Response:
        with pytest.raises(HTTPException):
            last_event_id(request)
        return sse_response(steps().compile().astream({"log": []}, version="v2"), request)

    async with browsing(Starlette(routes=[Route("/", route)])) as browser:
        assert (await browser.ask(**asked)).status == 400


@pytest.mark.parametrize(
    ("accept", "document"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/json, text/event-stream;q=0", True),
        ("application/json;q=0.5 , */*;q=0.1", True),
        ("text/event-stream", False),
        ("application/json, text/event-stream", False),
        ("application/json, Text/Event-Stream", False),
        ("application/json;q=0", False),
        ("application/json; q=0.000, */*", False),
        ("application/json-patch+json", False),
        ("application/jsonlines", False),
        ("x-application/json", False),
        ("text/plain; note=application/json", False),
        ("*/*", False),
        ("", False),
    ],
)
async def test_the_accept_header(accept: str, document: bool) -> None:
    """A client gets one document if it accepts `application/json` and not `text/event-stream`: by whole media types,
    in either case of letters, and not if it excludes the type (`q=0`)."""
    async with browsing(graph_endpoint(steps().compile())) as browser:
        done = await browser.ask(json=INPUT, headers={"accept": accept})
        kind = "application/json" if document else "text/event-stream"
        assert (done.status, done.headers["content-type"].partition(";")[0]) == (200, kind)


async def test_the_content_encoding() -> None:
    """`Content-Encoding: Identity`, in either case of letters, is plain JSON; other encodings are a 415."""
    async with browsing(graph_endpoint(steps().compile())) as browser:
        body = b'{"input": {"log": []}}'
        for more in (
            {"content-type": "Application/JSON; charset=utf-8"},
            {**JSON, "content-encoding": "Identity"},
            {**JSON, "content-encoding": ""},
        ):
            assert (await browser.ask(body=body, headers=more)).status == 200
        for more in (
            {**JSON, "content-encoding": "identity, gzip"},
            {"content-type": "application/jsonl"},
        ):
            assert (await browser.ask(body=body, headers=more)).status == 415, more


@pytest.mark.parametrize(
    "limits",
    [
        {"body": 0},
        {"body": -1},
        {"body": 1.5},
        {"body": True},
        {"body": "1000"},
        {"concurrency": 0},
        {"concurrency": 2.0},
        {"read": 0},
        {"read": -1.0},
        {"read": float("nan")},
        {"read": "30"},
        {"run": float("-inf")},
        {"run": True},
        {"run": 10**400},
        {"write": 0.0},
        {"heartbeat": -1},
        {"heartbeat": None},
        {"heartbeat": float("nan")},
    ],
)
async def test_invalid_limits(limits: dict[str, Any]) -> None:
    """A limit that no request could meet, or that is not a number, is refused when it is created."""
    with pytest.raises(ConfigError, match=f"Limits\\({next(iter(limits))}="):
        Limits(**limits)


@pytest.mark.parametrize("grace", [-1, math.nan, 10**400, True, "30", None], ids=lambda grace: repr(grace)[:9])
def test_an_invalid_grace_period(grace: Any) -> None:
    """It is refused when the lifespan is created, and not by the shutdown that needs it."""
    with pytest.raises(ConfigError, match=r"^grace is "):
        graph_lifespan(grace=grace)
    with pytest.raises(ConfigError, match=r"^grace is "):
        Service(grace=grace)


async def test_limits() -> None:
    """None removes a limit, and seconds may be whole numbers."""
    assert Limits(body=None, concurrency=None, read=None, run=None, write=None, heartbeat=0).run is None
    assert Limits(body=1, concurrency=1, read=1, run=0.5, write=float("inf"), heartbeat=2.5).read == 1


@pytest.mark.parametrize(
    "more", [{"thread": "ada"}, {"thread": {"thread_id": "t"}}, {"context": {"user": 1}}, {"encode": "json"}]
)
async def test_arguments_that_are_not_functions(more: dict[str, Any]) -> None:
    """The arguments that are called for each request are functions: another value is refused when the endpoint is
    created."""
    with pytest.raises(ConfigError, match=f"{next(iter(more))}= must be a function"):
        graph_endpoint(steps().compile(InMemorySaver()), **more)


async def test_numbers_without_a_json_form() -> None:
    """NaN and the infinities are sent as null, as in JavaScript; whole numbers of any size as they are."""

    async def node(state: Any) -> dict[str, Any]:
        return {"log": [float("nan"), float("inf"), 2**80, 0.1]}

    async with browsing(graph_endpoint(chain(("node", node)).compile())) as browser:
        done = await browser.ask(json=INPUT, headers={"accept": "application/json"})
        assert done.json["output"]["log"] == [None, None, 2**80, 0.1]
        assert b"NaN" not in done.content
