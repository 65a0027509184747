"""The requests that are served, and the answers to all others."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict
from uuid import UUID

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from checkpoint_savers import InMemorySaver
from pregel_async import START, MessagesState, Runtime, StateGraph, entrypoint, interrupt, task
from pregel_async.errors import ConfigError, StorageError
from pregel_async.serve import Limits, graph_endpoint
from tests.serve.browser import Browser, browsing
from tests.serve.graphs import Gate, asking, chain, gated, logs

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}
DOCUMENT = {"accept": "application/json"}


def user_of(request: Request) -> str | None:
    return request.headers.get("user")


def user_endpoint(graph: Any, **more: Any) -> Any:
    return graph_endpoint(graph, thread=user_of, **more)


async def statuses(browser: Browser, *asked: dict[str, Any]) -> list[int]:
    return [(await browser.ask(**each)).status for each in asked]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "empty"),
        (b"{", 400, "truncated"),
        (b'{"input": NaN}', 400, "not JSON"),
        (b"\xff\xfe{}", 400, "not JSON"),
        (b'{"input": ' + b"[" * 100_000, 422, "levels deep"),
        (b"[]", 422, "object"),
        (b'"hello"', 422, "object"),
        (b'{"inputs": {}}', 422, "inputs"),
        (b'{"config": {"thread_id": "1"}}', 422, "thread_id"),
        (b'{"config": {"callbacks": []}}', 422, "callbacks"),
        (b'{"command": {"goto": 3}}', 422, "goto"),
        (b'{"command": {"graph": "parent"}}', 422, "graph"),
        (b'{"command": {}}', 422, "empty"),
        (b'{"command": {"goto": "nowhere"}}', 422, "nowhere"),
        (b'{"command": {"resume": 1}}', 422, "nothing is stored"),
        (b'{"command": {"resume": 1}, "input": {}}', 422, "not both"),
        (b'{"input": 3}', 422, "mapping"),
        (b'{"input": {"leg": []}}', 422, "leg"),
        (b'{"input": null}', 422, "no input"),
        (b'{"input": {"log": []}, "stream_mode": "events"}', 422, "events"),
        (b'{"input": {"log": []}, "stream_mode": ["values", "values"]}', 422, "once"),
        (b'{"input": {"log": []}, "stream_mode": ["messages", "messages-tuple"]}', 422, "messages"),
        (b'{"input": {"log": []}, "config": {"recursion_limit": 0}}', 422, "recursion_limit"),
        (b'{"input": {"log": []}, "interrupt_before": ["missing"]}', 422, "missing"),
        (b'{"input": {"log": []}, "multitask_strategy": "rollback"}', 422, "rollback"),
        (b'{"input": {"log": []}, "config": {"configurable": {"thread_id": "other"}}}', 403, "thread"),
        (b'{"input": {"log": []}, "config": {"configurable": {"checkpoint_id": "x"}}}', 403, "checkpoint_id"),
        (b'{"input": {"log": []}, "config": {"configurable": {"checkpoint_ns": "x"}}}', 403, "checkpoint_ns"),
        (b'{"input": {"log": []}, "config": {"configurable": {"__pregel": "x"}}}', 403, "__pregel"),
    ],
)
@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
async def test_bodies_that_are_refused(body: bytes, status: int, says: str, accept: str) -> None:
    """The answer is a status and a document that says what is wrong, with nothing but what the client sent. No node
    has run."""
    saver = InMemorySaver()
    async with browsing(user_endpoint(asking().compile(saver))) as browser:
        done = await browser.ask(body=body, headers={**JSON, "user": "ada", "accept": accept})
        assert (done.status, done.headers["content-type"]) == (status, "application/json")
        assert set(done.json) >= {"error", "message"}
        assert says in done.json["message"]
        assert "Traceback" not in str(done.content)
    assert await saver.scan(None, None) == ()


async def test_methods_and_types() -> None:
    """405 lists the allowed methods; 415 the content type that is expected."""
    async with browsing(user_endpoint(asking().compile(InMemorySaver()))) as browser:
        for method in ("PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"):
            done = await browser.ask(method=method)
            assert (done.status, done.headers["allow"]) == (405, "GET, POST")
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            done = await browser.ask(body=b'{"input": {"log": []}}', headers={"content-type": kind, "user": "ada"})
            assert done.status == 415
        packed = {**JSON, "user": "ada", "content-encoding": "gzip"}
        assert (await browser.ask(body=b"...", headers=packed)).status == 415


@pytest.mark.parametrize("key", ["input", "update", "resume"])
async def test_an_unstorable_input_is_a_client_error(key: str) -> None:
    """docs/serving.md: 422 is "an input, config, context or command that does not fit". JSON that is nested deeper
    than what can be stored was answered with 500, and a traceback for each in the log."""
    deep: Any = []
    for _ in range(150):
        deep = [deep]
    graph = asking().compile(InMemorySaver())
    async with browsing(graph_endpoint(graph, thread=lambda request: "t")) as browser:
        await browser.ask(json={"input": {"log": []}})
        body = {"input": {"log": [deep]}} if key == "input" else {"command": {key: {"log": [deep]}}}
        exchange = await browser.ask(json=body)
        assert exchange.status == 422
        assert "nested more than" in exchange.content.decode()


async def test_oversized_bodies() -> None:
    """413, whether the body's declared length is right, wrong, or missing; the body is not read to its end."""
    async with browsing(user_endpoint(asking().compile(InMemorySaver()), limits=Limits(body=100_000))) as browser:
        big = b'{"input": {"log": ["' + b"x" * 10_000_000 + b'"]}}'
        for length in (None, str(len(big)), "10", "9" * 5000, "nonsense"):
            headers = {**JSON, "user": "ada"} if length is None else {**JSON, "user": "ada", "content-length": length}
            exchange = await browser.ask(body=big, headers=headers)
            assert (exchange.status, exchange.json["error"]) == (413, "TooLarge")
            assert len(exchange._body) > 100


async def test_a_body_that_does_not_arrive() -> None:
    """408 after `Limits.read`; a body that is incomplete when its client leaves runs no node."""
    async with browsing(user_endpoint(asking().compile(InMemorySaver()), limits=Limits(read=0.01))) as browser:
        exchange = browser.open(body=b"x", headers={**JSON, "user": "ada"})
        exchange._body = []
        await exchange.over.wait()
        assert exchange.status == 408


async def test_other_protocols() -> None:
    """A WebSocket is closed, with the reason."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await user_endpoint(asking().compile())({"type": "websocket", "headers": []}, None, send)
    assert sent[0]["type"] == "websocket.close"


async def test_each_request_asks_for_its_thread() -> None:
    """Input, resume, update and reconnecting are all refused alike, before the body is read."""
    asked: list[str] = []

    async def thread(request: Request) -> str | None:
        asked.append(request.method)
        user = request.headers.get("user")
        if user == "banned":
            raise PermissionError("the ban list says so")
        if user == "stranger":
            raise HTTPException(401, "log in", {"www-authenticate": "Bearer"})
        return user

    async with browsing(graph_endpoint(asking().compile(InMemorySaver()), thread=thread)) as browser:
        brings: list[dict[str, Any]] = [
            {"json": {"input": {"log": []}}},
            {"json": {"command": {"resume": "yes"}}},
            {"json": {"command": {"update": {"log": ["x"]}}}},
            {"json": {"command": {"goto": "ask"}}},
            {"method": "GET"},
            {"method": "GET", "last": "a.1.1.1"},
        ]
        for bring in brings:
            assert (await browser.ask(**bring)).status == 403
            banned = await browser.ask(**bring, headers={"user": "banned"})
            assert (banned.status, b"ban list" in banned.content) == (403, False)
            stranger = await browser.ask(**bring, headers={"user": "stranger"})
            assert (stranger.status, stranger.headers["www-authenticate"]) == (401, "Bearer")
            assert stranger.json["message"] == "log in"
        assert len(asked) == 3 * len(brings)


@pytest.mark.parametrize(
    ("answer", "status"),
    [(False, 403), (True, 500), (object(), 500), ([], 500), (b"t", 500), (0, 200), (UUID(int=1), 200)],
    ids=["false", "true", "object", "list", "bytes", "int", "uuid"],
)
async def test_a_dependency_that_returns_no_id(answer: Any, status: int) -> None:
    """docs/serving.md: `thread=` "returns the thread's id", or refuses. One that returned False gave all users one
    thread, named "False"; so did one that identified users by True, or by an object."""
    graph = chain(("a", logs("a"))).compile(InMemorySaver())
    async with browsing(graph_endpoint(graph, thread=lambda request: answer)) as browser:
        exchange = await browser.ask(json={"input": {"log": []}})
    assert exchange.status == status
    threads = [] if status != 200 else [str(answer)]
    assert [(await graph.aget_state(name)).values for name in threads] == [{"log": ["a"]} for _ in threads]
    assert (await graph.aget_state(str(answer))).created_at is None or status == 200


async def test_foreign_threads() -> None:
    """A client that names another user's thread is refused, wherever it names it; it may name its own."""
    async with browsing(user_endpoint(asking().compile(InMemorySaver()))) as browser:
        ada, eve = {"user": "ada"}, {"user": "eve"}
        assert (await browser.ask(json={"input": {"log": ["secret"]}}, headers=ada)).status == 200
        named = {"configurable": {"thread_id": "ada"}}
        assert await statuses(
            browser,
            {"json": {"input": {"log": []}, "config": named}, "headers": eve},
            {"json": {"command": {"resume": "yes"}, "config": named}, "headers": eve},
            {"json": {"command": {"update": {"log": ["x"]}}, "config": named}, "headers": eve},
            {"path": "/?thread_id=ada", "headers": eve},
        ) == [403, 403, 403, 403]
        assert (await browser.ask(headers=eve)).status == 404
        assert b"secret" in (await browser.ask("/?thread_id=ada", headers=ada)).content
        assert (await browser.ask(json={"command": {"resume": "yes"}, "config": named}, headers=ada)).status == 200


async def test_without_a_thread_dependency() -> None:
    """Each request has a thread of its own, and ids from clients are refused wherever they are."""
    async with browsing(graph_endpoint(asking().compile(InMemorySaver()))) as browser:
        once, twice = [await browser.ask(json={"input": {"log": []}}) for _ in range(2)]
        assert [each.events[-2].data["log"] for each in (once, twice)] == [["first"], ["first"]]
        named = {"configurable": {"thread_id": "ada"}}
        assert (
            await statuses(
                browser,
                {"json": {"input": {"log": []}, "config": named}},
                {"json": {"command": {"resume": "yes"}, "config": named}},
                {"json": {"command": {"resume": "yes"}}},
                {"json": {"command": {"update": {"log": []}}}},
                {"path": "/?thread_id=ada"},
                {"last": once.events[0].id},
            )
            == [403] * 6
        )


async def test_any_thread() -> None:
    """With `allow_any_thread=True` clients choose their thread, and otherwise get the name of a new one."""
    async with browsing(graph_endpoint(asking().compile(InMemorySaver()), allow_any_thread=True)) as browser:
        started = await browser.ask(json={"input": {"log": []}})
        thread = started.events[0].data["thread_id"]
        named = {"configurable": {"thread_id": thread}}
        done = await browser.ask(json={"command": {"resume": "yes"}, "config": named}, headers=DOCUMENT)
        assert done.json["output"] == {"log": ["first", "yes"]}
        assert (done.json["status"], done.json["thread_id"]) == ("success", thread)
    with pytest.raises(ConfigError, match="give one of them"):
        graph_endpoint(asking().compile(), thread=user_of, allow_any_thread=True)
    with pytest.raises(ConfigError, match="compile"):
        graph_endpoint(asking())  # a builder


async def test_a_dependency_overrides_the_clients_settings() -> None:
    """It may return a config, which takes precedence over the client's; and `context=` replaces the client's
    context."""
    seen: list[Any] = []

    class Context:
        pass

    async def look(state: Any, config: Any, runtime: Runtime[Any]) -> None:
        seen.append((config["configurable"]["role"], config["configurable"]["theme"], runtime.context))

    graph = chain(("look", look)).compile(InMemorySaver())

    def thread(request: Request) -> dict[str, Any]:
        return {"configurable": {"thread_id": "t", "role": "guest"}}

    async def context(request: Request) -> str:
        return "ada"

    asks = {"input": {"log": []}, "config": {"configurable": {"role": "admin", "theme": "dark"}}}
    async with browsing(graph_endpoint(graph, thread=thread, context=context)) as browser:
        assert (await browser.ask(json=asks)).status == 200
        assert (await browser.ask(json={**asks, "context": {"user": "eve"}})).status == 403
    async with browsing(graph_endpoint(graph, thread=thread)) as browser:
        assert (await browser.ask(json={**asks, "context": {"user": "eve"}})).status == 200
    assert seen == [("guest", "dark", "ada"), ("guest", "dark", {"user": "eve"})]


async def test_what_clients_may_send() -> None:
    """`accept=` excludes the commands that could bypass an approval."""
    async with browsing(user_endpoint(asking().compile(InMemorySaver()), accept=("input", "resume"))) as browser:
        ada = {"user": "ada"}
        assert await statuses(
            browser,
            {"json": {"input": {"log": []}}, "headers": ada},
            {"json": {"command": {"goto": "first"}}, "headers": ada},
            {"json": {"command": {"update": {"log": ["x"]}, "resume": "yes"}}, "headers": ada},
            {"json": {"command": {"resume": "yes"}}, "headers": ada},
            {"headers": ada},
        ) == [200, 403, 403, 200, 200]


async def test_older_checkpoints() -> None:
    """With `allow_checkpoints=True` clients continue from an earlier checkpoint of their own thread."""
    graph = chain(("a", logs("a")), ("b", logs("b"))).compile(InMemorySaver())
    async with browsing(user_endpoint(graph, allow_checkpoints=True)) as browser:
        await browser.ask(json={"input": {"log": []}}, headers={"user": "ada"})
        states = [state async for state in graph.aget_state_history("ada")]
        before_b = next(state for state in states if state.next == ("b",)).config
        places = {key: value for key, value in before_b["configurable"].items() if value}
        asks = {"input": None, "config": {"configurable": places}, "stream_mode": "updates"}
        again = await browser.ask(json=asks, headers={"user": "ada"})
        assert [event.data for event in again.events[1:-1]] == [{"b": {"log": ["b"]}}]
        asks["config"] = {"configurable": {"checkpoint_id": "00000000-0000-7000-8000-000000000000"}}
        assert (await browser.ask(json=asks, headers={"user": "ada"})).status == 404


async def test_one_document() -> None:
    """For clients that accept only JSON: the output when the run has ended, or its questions; a failure as a status."""
    async with browsing(user_endpoint(asking().compile(InMemorySaver()))) as browser:
        ada = {**DOCUMENT, "user": "ada"}
        asked = (await browser.ask(json={"input": {"log": []}}, headers=ada)).json
        assert (asked["status"], asked["output"]) == ("interrupted", {"log": ["first"]})
        (question,) = asked["interrupts"]
        assert question["value"] == "go on?"
        answer = {"command": {"resume": {question["id"]: "yes"}}}
        done = (await browser.ask(json=answer, headers=ada)).json
        assert (done["status"], done["output"], done["interrupts"]) == ("success", {"log": ["first", "yes"]}, [])
        again = await browser.ask(json=answer, headers=ada)
        assert (again.status, again.json["error"]) == (422, "UnknownInterruptError")


async def test_commands() -> None:
    """Clients may send update and goto, with a Send's input."""
    async with browsing(user_endpoint(chain(("a", logs("a")), ("b", logs("b"))).compile(InMemorySaver()))) as browser:
        ada = {**DOCUMENT, "user": "ada"}
        await browser.ask(json={"input": {"log": []}}, headers=ada)
        for command, log in (
            ({"update": {"log": ["x"]}, "goto": "b"}, ["a", "b", "x", "b"]),
            (
                {"update": [["log", ["y"]]], "goto": [{"node": "b", "input": {"log": []}}]},
                ["a", "b", "x", "b", "y", "b"],
            ),
        ):
            done = await browser.ask(json={"command": command}, headers=ada)
            assert done.json["output"] == {"log": log}


async def test_a_graph_without_a_saver() -> None:
    """It runs; there are no event ids, and no reconnecting."""
    async with browsing(graph_endpoint(chain(("a", logs("a"))).compile())) as browser:
        done = await browser.ask(json={"input": {"log": []}, "stream_mode": "updates"})
        assert [event.name for event in done.events] == ["metadata", "updates", "end"]
        assert {event.id for event in done.events} == {None}
        assert (await browser.ask(json={"input": {"log": []}}, headers=DOCUMENT)).json["output"] == {"log": ["a"]}
        assert (await browser.ask(json={"input": None})).status == 422


async def test_breakpoints_and_failures_of_a_document() -> None:
    """A run that stops at a breakpoint is interrupted, and can be continued; one that fails is a 500 without its
    message."""

    async def fails(state: Any) -> None:
        raise ValueError("the password is swordfish")

    async with browsing(user_endpoint(chain(("a", logs("a")), ("fails", fails)).compile(InMemorySaver()))) as browser:
        ada = {**DOCUMENT, "user": "ada"}
        stopped = await browser.ask(json={"input": {"log": []}, "interrupt_before": ["fails"]}, headers=ada)
        assert (stopped.json["status"], stopped.json["output"]) == ("interrupted", {"log": ["a"]})
        failed = await browser.ask(json={"input": None}, headers=ada)
        assert (failed.status, failed.json["error"], failed.json["status"]) == (500, "ValueError", "error")
        assert b"swordfish" not in failed.content
    async with browsing(user_endpoint(chain(("fails", fails)).compile(InMemorySaver()), expose_errors=True)) as browser:
        failed = await browser.ask(json={"input": {"log": []}}, headers={"user": "ada"})
        assert failed.events[-2].data == {"error": "ValueError", "message": "the password is swordfish"}


async def test_a_busy_thread() -> None:
    """409 at once, without the owner's name; with "enqueue" the request waits for the thread."""
    gate = Gate()
    async with browsing(user_endpoint(gated(gate).compile(InMemorySaver()))) as browser:
        ada = {"user": "ada"}
        first = browser.open(json={"input": {"log": []}}, headers=ada)
        await gate.reached.wait()
        for accept in ("text/event-stream", "application/json"):
            busy = await browser.ask(json={"input": {"log": []}}, headers={**ada, "accept": accept})
            assert (busy.status, busy.json["error"]) == (409, "ThreadBusyError")
            assert b"process" not in busy.content
        queued = browser.open(json={"input": {"log": []}, "multitask_strategy": "enqueue"}, headers=ada)
        gate.opened.set()
        await first.over.wait()
        await queued.over.wait()
        assert [event.data["status"] for event in (first.events[-1], queued.events[-1])] == ["success", "success"]


async def test_concurrency() -> None:
    """One request more than `Limits.concurrency` is answered with 503 and when to try again; the others continue."""
    gate = Gate()
    async with browsing(user_endpoint(gated(gate).compile(InMemorySaver()), limits=Limits(concurrency=2))) as browser:
        asks = {"input": {"log": []}}
        inside = [browser.open(json=asks, headers={"user": str(n)}) for n in range(2)]
        for each in inside:
            await each.next("metadata")
        full = await browser.ask(json=asks, headers={"user": "3"})
        assert (full.status, full.headers["retry-after"]) == (503, "1")
        gate.opened.set()
        for each in inside:
            await each.over.wait()
        assert (await browser.ask(json=asks, headers={"user": "3"})).status == 200


async def test_the_time_limit_of_a_run() -> None:
    """A run that takes longer than `Limits.run` is cancelled, and says so; its thread can be continued."""
    gate = Gate()
    async with browsing(user_endpoint(gated(gate).compile(InMemorySaver()), limits=Limits(run=0.2))) as browser:
        ada = {"user": "ada"}
        done = await browser.ask(json={"input": {"log": []}, "stream_mode": "updates"}, headers=ada)
        assert [event.name for event in done.events] == ["metadata", "updates", "end"]
        assert done.events[-1].data["status"] == "timeout"
        assert gate.cancelled.is_set()
        document = await browser.ask(json={"input": None}, headers={**ada, **DOCUMENT})
        assert (document.status, document.json["status"]) == (504, "timeout")
        gate.opened.set()
        done = await browser.ask(json={"input": None, "stream_mode": "updates"}, headers=ada)
        assert [event.data for event in done.events[1:-1]] == [{"held": {"log": ["held"]}}, {"last": {"log": ["last"]}}]


class Failing(InMemorySaver):
    """Stores so many commits, and then fails."""

    left = 1

    async def commit(self, lease: Any, commit: Any) -> None:
        if self.left == 0:
            raise StorageError("disk /dev/sda1 is on fire")
        self.left -= 1
        await super().commit(lease, commit)


async def test_storage_fails_before_the_run(caplog: Any) -> None:
    """503, with the details in the log only."""

    class Down(InMemorySaver):
        async def read(self, *args: Any, **kwargs: Any) -> Any:
            raise StorageError("disk /dev/sda1 is on fire")

        acquire = read

    async with browsing(user_endpoint(asking().compile(Down()))) as browser:
        for asks in ({"json": {"input": {"log": []}}}, {"json": {"command": {"resume": 1}}}, {"method": "GET"}):
            done = await browser.ask(**asks, headers={"user": "ada"})
            assert (done.status, done.headers["retry-after"]) == (503, "1")
            assert b"sda1" not in done.content
    assert "sda1" in caplog.text


@pytest.mark.parametrize("commits", [0, 1, 2, 3])
async def test_storage_fails_during_a_stream(commits: int, caplog: Any) -> None:
    """The events that were sent are followed by `error` and `end`; what was sent as committed is stored; and the
    thread continues from there."""
    saver = Failing()
    saver.left = commits
    ran: list[str] = []
    gate = Gate()
    gate.opened.set()
    async with browsing(user_endpoint(gated(gate, ran).compile(saver))) as browser:
        ada = {"user": "ada"}
        done = await browser.ask(json={"input": {"log": []}, "stream_mode": ["values", "updates"]}, headers=ada)
        if not commits:  # not even the input could be stored
            assert (done.status, done.json["error"], b"sda1" in done.content) == (503, "StorageError", False)
            return
        received = [event.data for event in done.events if event.name == "updates"]
        assert [event.name for event in done.events[-2:]] == ["error", "end"]
        assert done.events[-2].data["error"] == "StorageError"
        assert done.events[-1].data["status"] == "error"
        assert b"sda1" not in done.content
        saver.left = 100
        await browser.ask(json={"input": None, "stream_mode": ["updates"]}, headers=ada)
        assert [ran.count(list(update)[0]) for update in received if list(update)[0] in ("first", "held")] == [1] * len(
            [update for update in received if list(update)[0] in ("first", "held")]
        )


async def test_messages_that_a_reducer_refuses() -> None:
    """422: an input that the state's reducer refuses is refused before any node runs, and nothing of it is stored."""
    builder = StateGraph(MessagesState).add_node("a", lambda state: None).add_edge(START, "a")
    graph = builder.compile(InMemorySaver())
    async with browsing(user_endpoint(graph)) as browser:
        for bad in (5, [{"text": "x"}]):
            done = await browser.ask(json={"input": {"messages": bad}}, headers={"user": "ada"})
            assert (done.status, done.json["error"]) == (422, "InvalidMessageError")
        assert not [row async for row in graph.aget_state_history("ada")]
        done = await browser.ask(json={"input": {"messages": ["hi"]}}, headers={"user": "ada"})
        assert done.events[-1].data["status"] == "success"


def join(old: list[str], new: Any) -> list[str]:
    if not isinstance(new, list):
        raise TypeError("the password is swordfish")
    return [*old, *new]


class Joined(TypedDict):
    log: Annotated[list[str], join]


@pytest.mark.parametrize("brings", ["input", "update"])
@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
async def test_inputs_that_a_users_reducer_refuses(brings: str, accept: str, caplog: Any) -> None:
    """422, for plain exceptions of a reducer, too: no node has run, and nothing is stored. The reducer's message
    belongs to the service, and is not sent."""
    ran: list[str] = []

    def node(state: Joined) -> None:
        ran.append("node")

    saver = InMemorySaver()
    builder = StateGraph(Joined).add_node(node).add_edge(START, "node")
    bad = {"input": {"log": 5}} if brings == "input" else {"command": {"update": {"log": 5}, "goto": "node"}}
    async with browsing(user_endpoint(builder.compile(saver))) as browser:
        done = await browser.ask(json=bad, headers={"user": "ada", "accept": accept})
        assert (done.status, done.json["error"]) == (422, "TypeError")
        assert "does not fit" in done.json["message"]
        assert "swordfish" not in done.content.decode() + caplog.text
        assert ran == []
        assert await saver.scan(None, None) == ()
        assert await saver.events("ada") == ()
        done = await browser.ask(json={"input": {"log": ["x"]}}, headers={"user": "ada"})
        assert done.events[-1].data["status"] == "success"


async def test_node_writes_that_a_reducer_refuses(caplog: Any) -> None:
    """The same exception, on a node's write, is a failed run."""

    graph = StateGraph(Joined).add_node("node", lambda state: {"log": 5}).add_edge(START, "node").compile()
    async with browsing(graph_endpoint(graph)) as browser:
        done = await browser.ask(json={"input": {"log": []}}, headers=DOCUMENT)
        assert (done.status, done.json["error"], done.json["status"]) == (500, "TypeError", "error")
    assert [record.message for record in caplog.records] == [f"run {done.json['run_id']} has failed"]


async def test_threads_without_a_saver(caplog: Any) -> None:
    """500, and the log says what is missing: a service with threads does not run without a saver unnoticed."""
    async with browsing(user_endpoint(asking().compile())) as browser:
        done = await browser.ask(json={"input": {"log": []}}, headers={"user": "ada"})
        assert (done.status, done.json["error"]) == (500, "NotStored")
    assert "graph_lifespan(graph, saver=...)" in caplog.text


def test_invalid_endpoints() -> None:
    """An error of an endpoint is raised when it is created, and not sent to its clients."""
    graph = asking().compile(InMemorySaver())
    for wrong in ({"on_disconnect": "keep"}, {"stream_mode": "tokens"}, {"accept": ("inputs",)}):
        with pytest.raises(ConfigError):
            graph_endpoint(graph, **wrong)


async def test_errors_of_dependencies(caplog: Any) -> None:
    """500, and the message stays in the log; the same holds for a context's dependency."""

    def broken(request: Request) -> str:
        raise RuntimeError("postgres://user:swordfish@db")

    for endpoint in (
        graph_endpoint(asking().compile(InMemorySaver()), thread=broken),
        graph_endpoint(asking().compile(InMemorySaver()), context=broken),
    ):
        async with browsing(endpoint) as browser:
            done = await browser.ask(json={"input": {"log": []}})
            assert (done.status, done.json["error"], b"swordfish" in done.content) == (500, "RuntimeError", False)
    assert "postgres" in caplog.text


async def test_a_workflow() -> None:
    """An entrypoint is served like any graph: its input and its output are its function's argument and result."""

    @task
    async def double(number: int) -> int:
        return 2 * number

    @entrypoint()
    async def work(numbers: list[int]) -> dict[str, Any]:
        return {"doubled": [await double(number) for number in numbers], "asked": interrupt("sure?")}

    async with browsing(user_endpoint(work.with_checkpointer(InMemorySaver()))) as browser:
        ada = {**DOCUMENT, "user": "ada"}
        asked = await browser.ask(json={"input": [1, 2]}, headers=ada)
        assert (asked.json["status"], asked.json["interrupts"][0]["value"]) == ("interrupted", "sure?")
        done = await browser.ask(json={"command": {"resume": "yes"}}, headers=ada)
        assert done.json["output"] == {"doubled": [2, 4], "asked": "yes"}
        received = await browser.ask(json={"input": [3], "stream_mode": "updates"}, headers={"user": "eve"})
        assert [event.name for event in received.events] == ["metadata", "updates", "updates", "end"]
