"""The lifespan opens and closes the saver, drains runs, and resumes interrupted ones."""

from __future__ import annotations

import subprocess
import sys
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from fastapi import FastAPI
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from checkpoint_savers import InMemorySaver, SqliteSaver
from checkpoint_savers.errors import SaverClosedError, StorageError
from checkpoint_savers.owner import this_process
from checkpoint_savers.records import RUN, Owner
from checkpoint_savers.saver_port import LEASE_SECONDS
from pregel_async import Runtime
from pregel_async.errors import ConfigError
from pregel_async.serve import graph_endpoint, graph_lifespan, last_event_id, service_of, sse_response
from pregel_async.serve.run_metadata import RunMetadata
from pregel_async.serve.service import Service
from pregel_async.testing import VirtualClock
from tests.serve.browser import browsing
from tests.serve.graphs import Gate, asking, chain, gated, logs

pytestmark = pytest.mark.anyio

DOCUMENT = {"accept": "application/json"}
BODY = {"input": {"log": []}, "stream_mode": ["updates"]}


def by_user(request: Request) -> str | None:
    return request.headers.get("user")


def application(kind: Any, *graphs: Any, **more: Any) -> Any:
    routes = [Route(f"/{graph.name}", graph_endpoint(graph, thread=by_user)) for graph in graphs]
    return kind(routes=routes, lifespan=graph_lifespan(*graphs, **more))


def service(app: Any) -> Service:
    found: Service = app.state.pregel_async
    return found


@pytest.mark.parametrize("kind", [Starlette, FastAPI])
async def test_the_saver_is_open_while_the_application_runs(kind: Any, tmp_path: Any) -> None:
    """It is opened once, and closed at the end; if a factory creates it, the application can be started again."""
    path = str(tmp_path / "threads.db")
    graph = asking().compile(name="ask")
    savers: list[Any] = []

    def make() -> Any:
        savers.append(SqliteSaver.from_conn_string(path))
        return savers[-1]

    app = application(kind, graph, saver=make)
    async with browsing(app) as browser:
        ada = {**DOCUMENT, "user": "ada"}
        assert (await browser.ask("/ask", json={"input": {"log": []}}, headers=ada)).json["status"] == "interrupted"
    with pytest.raises(SaverClosedError):
        await savers[0].read("ada")
    async with browsing(app) as browser:
        done = await browser.ask("/ask", json={"command": {"resume": "yes"}}, headers=ada)
        assert done.json["output"] == {"log": ["first", "yes"]}
    assert len(savers) == 2


async def test_inside_a_users_own_lifespan() -> None:
    """It is an async context manager; if the user's lifespan does not yield its state, it is found at the
    application."""
    graph = asking().compile(name="ask")
    seen: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Any) -> Any:
        async with graph_lifespan(graph, saver=InMemorySaver())(app):
            seen.append("open")
            yield
        seen.append("closed")

    app = Starlette(routes=[Route("/ask", graph_endpoint(graph, thread=by_user))], lifespan=lifespan)
    async with browsing(app) as browser:
        ada = {**DOCUMENT, "user": "ada"}
        for body in ({"input": {"log": []}}, {"command": {"resume": "yes"}}):
            done = await browser.ask("/ask", json=body, headers=ada)
        assert done.json["output"] == {"log": ["first", "yes"]}
    assert seen == ["open", "closed"]


async def test_a_users_own_routes() -> None:
    """`service_of` has the graph with its saver and the drain control; `sse_response` sends the stream."""
    graph = gated(gate := Gate()).compile(name="gated")

    async def route(request: Request) -> Response:
        mine = service_of(request)
        after = last_event_id(request)
        stream = mine.graph(graph).astream(
            None if after else {"log": []},
            "t",
            stream_mode=["updates", "custom"],
            control=mine.control,
            keep_events=after is None,
            after=after,
            version="v2",
        )
        return sse_response(stream, request, on_disconnect="continue")

    app = Starlette(routes=[Route("/", route)], lifespan=graph_lifespan(graph, saver=InMemorySaver()))
    async with browsing(app) as browser:
        first = browser.open()
        seen = [await first.next() for _ in range(3)]
        assert [event.name for event in seen] == ["metadata", "updates", "custom"]
        assert seen[0].data["run_id"]
        first.leave()
        second = browser.open(last=seen[1].id)
        assert (await second.next()).data["run_id"] == seen[0].data["run_id"]
        service(app).drain()
        gate.opened.set()
        events = await second.all()
        assert [event.name for event in events] == ["metadata", "custom", "custom", "updates", "end"]
        assert events[-1].data["status"] == "drained"
    with pytest.raises(ConfigError, match="v2"):
        sse_response(graph.astream({"log": []}), Request({"type": "http", "headers": []}))
    with pytest.raises(ConfigError, match="graph_lifespan"):
        service_of(Request({"type": "http", "headers": []}))


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
async def test_a_drain_stops_runs_at_a_barrier(accept: str) -> None:
    """The superstep is completed and stored, the client gets the status, new requests are refused; no node runs
    twice."""
    gate, ran = Gate(), []
    saver = InMemorySaver()
    graph = gated(gate, ran).compile(name="gated")
    app = application(Starlette, graph, saver=saver)
    async with browsing(app) as browser:
        ada = {"user": "ada", "accept": accept}
        exchange = browser.open("/gated", json=BODY, headers=ada)
        await gate.reached.wait()
        service(app).drain()
        refused = await browser.ask("/gated", json=BODY, headers={"user": "eve"})
        assert (refused.status, refused.json["error"], refused.headers["retry-after"]) == (503, "Draining", "1")
        gate.opened.set()
        await exchange.over.wait()
        if accept == "application/json":
            assert (exchange.status, exchange.json["status"], exchange.headers["retry-after"]) == (503, "drained", "1")
        else:
            assert [event.name for event in exchange.events] == ["metadata", "updates", "updates", "end"]
            assert (exchange.events[-1].data["status"], exchange.events[-1].id) == ("drained", None)
    async with browsing(application(Starlette, graph, saver=saver)) as browser:
        done = await browser.ask("/gated", json={"input": None}, headers={**ada, **DOCUMENT})
        assert done.json["output"] == {"log": ["first", "held", "last"]}
        assert ran == ["first", "held"]


async def test_a_drain_waits_for_the_grace_period() -> None:
    """Runs that do not reach a barrier in `grace` seconds are cancelled, those without a reader, too."""
    gate = Gate()
    app = application(Starlette, gated(gate).compile(name="gated"), saver=InMemorySaver(), grace=0.05)
    async with browsing(app) as browser:
        exchange = browser.open("/gated", json=BODY, headers={"user": "ada"})
        alone = browser.open("/gated", json={**BODY, "on_disconnect": "continue"}, headers={"user": "bob"})
        await gate.reached.wait()
        await alone.next("updates")
        alone.leave()
        await exchange.next("updates")
        service(app).drain()
        await exchange.over.wait()
        await alone.over.wait()
        assert (exchange.events[-1].data["status"], exchange.error, alone.error) == ("cancelled", None, None)


async def test_a_run_with_a_context_is_not_resumed_without_it(caplog: pytest.LogCaptureFixture) -> None:
    """Its nodes would get None and fail for no good reason; a client that reconnects passes the context again."""
    gate, contexts = Gate(), []
    saver = InMemorySaver()

    async def held(state: Any, runtime: Runtime[Any]) -> dict[str, list[str]]:
        contexts.append(runtime.context)
        await gate()
        return {"log": ["held"]}

    graph = chain(("held", held)).compile(name="held")
    async with browsing(application(Starlette, graph, saver=saver)) as browser:
        exchange = browser.open("/held", json={**BODY, "context": {"user": "ada"}}, headers={"user": "ada"})
        await gate.reached.wait()
        exchange.cut()
        await exchange.over.wait()
    gate.opened.set()
    with caplog.at_level("WARNING", logger="pregel_async.serve"):
        async with browsing(application(Starlette, graph, saver=saver, pick_up=True)):
            while not caplog.records:
                await anyio.sleep(0)
    assert "'ada' was cut off and is not resumed" in caplog.text
    assert (await graph.with_checkpointer(saver).aget_state("ada")).next == ("held",)
    assert contexts == [{"user": "ada"}]


async def test_interrupted_runs_are_resumed() -> None:
    """No other threads are: none with an open question, failed, stopped or done, none that was cancelled as its
    readers had left, and none that no endpoint has started."""
    gate, ran = Gate(), []
    saver = InMemorySaver()
    held = gated(gate, ran).compile(name="gated")
    ask = asking().compile(name="ask")

    async def fails(state: Any) -> None:
        ran.append("fails")
        raise ValueError("no")

    failing = chain(("fails", fails)).compile(name="failing")
    stopping = chain(("a", logs("a")), ("b", logs("b"))).compile(name="stopping", interrupt_before=["b"])
    graphs = (held, ask, failing, stopping)
    async with browsing(application(Starlette, *graphs, saver=saver)) as browser:
        exchange = browser.open("/gated", json=BODY, headers={"user": "cut"})
        seen = [await exchange.next() for _ in range(2)]
        await gate.reached.wait()
        exchange.cut()
        await exchange.over.wait()
        left = browser.open("/gated", json=BODY, headers={"user": "left"})
        await left.next("updates")
        left.leave()
        await left.over.wait()
        for path in ("ask", "failing", "stopping"):
            await browser.ask(f"/{path}", json=BODY, headers={"user": path})
    own = held.with_checkpointer(saver)
    gate.reached = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(own.ainvoke, {"log": []}, "own")
        await gate.reached.wait()
        group.cancel_scope.cancel()
    gate.opened.set()
    ran.clear()
    async with browsing(application(Starlette, *graphs, saver=saver, pick_up=True)) as browser:
        while (await own.aget_state("cut")).next:
            await anyio.sleep(0)
        again = await browser.ask("/gated", headers={"user": "cut"}, last=seen[-1].id)
        assert [event.name for event in again.events] == ["metadata", "updates", "updates", "end"]
        assert again.events[0].data == {**seen[0].data, "attempt": 2}
    assert ran == ["held"]
    assert (await own.aget_state("cut")).values == {"log": ["first", "held", "last"]}
    assert (await own.aget_state("own")).next == ("held",)
    assert (await own.aget_state("left")).next  # its readers had left
    assert (await ask.with_checkpointer(saver).aget_state("ask")).interrupts


@pytest.mark.parametrize("how", ["picked up", "come back to"])
@pytest.mark.parametrize(
    "stop", [{"interrupt_before": ["last"]}, {"interrupt_after": ["held"]}], ids=["before", "after"]
)
async def test_a_resumed_run_stops_at_its_breakpoints(how: str, stop: Any) -> None:
    """docs/serving.md: `interrupt_before`, `interrupt_after`: "nodes to stop at". An interrupted run that was
    resumed by its client's reconnecting, or by the restarted service, passed them."""
    gate = Gate()
    saver = InMemorySaver()
    graph = gated(gate).compile(name="gated")
    async with browsing(application(Starlette, graph, saver=saver)) as browser:
        exchange = browser.open("/gated", json={**BODY, **stop}, headers={"user": "cut"})
        await gate.reached.wait()
        exchange.cut()
        await exchange.over.wait()
    gate.opened.set()
    own = graph.with_checkpointer(saver)
    async with browsing(application(Starlette, graph, saver=saver, pick_up=how == "picked up")) as browser:
        while (await own.aget_state("cut")).next != ("last",):
            if how == "come back to":
                again = await browser.ask("/gated", headers={"user": "cut"})
                assert again.events[-1].data["status"] == "interrupted"
            await anyio.sleep(0)
        for _ in range(100):
            await anyio.sleep(0)
    assert (await own.aget_state("cut")).next == ("last",)


async def test_a_reader_joins_a_resumed_run() -> None:
    """A client that reconnects while the resumed run is in progress joins it."""
    gate = Gate()
    saver = InMemorySaver()
    graph = gated(gate).compile(name="gated")
    async with browsing(application(Starlette, graph, saver=saver)) as browser:
        exchange = browser.open("/gated", json=BODY, headers={"user": "cut"})
        seen = [await exchange.next() for _ in range(2)]
        await gate.reached.wait()
        exchange.cut()
        await exchange.over.wait()
    gate.reached = anyio.Event()
    async with browsing(application(Starlette, graph, saver=saver, pick_up=True)) as browser:
        await gate.reached.wait()
        again = browser.open("/gated", headers={"user": "cut"}, last=seen[-1].id)
        await again.next("metadata")
        again.leave()
        await again.over.wait()
        gate.opened.set()
        done = await browser.ask("/gated", headers={"user": "cut"}, last=seen[-1].id)
        assert done.events[-1].data["status"] == "success"
        assert gate.passed == ["held"]


async def test_a_resumed_run_gets_its_context_from_a_function() -> None:
    """A context is not stored: the function passes it again, or None to leave the thread alone. Resumed runs are
    drained, too."""
    gate, contexts = Gate(), []
    saver = InMemorySaver()

    async def held(state: Any, runtime: Runtime[Any]) -> dict[str, list[str]]:
        contexts.append(runtime.context)
        await gate()
        return {"log": ["held"]}

    graph = chain(("held", held), ("last", logs("last"))).compile(name="held")
    async with browsing(application(Starlette, graph, saver=saver)) as browser:
        for user in ("ada", "bob"):
            gate.reached = anyio.Event()
            exchange = browser.open("/held", json={**BODY, "context": {"user": user}}, headers={"user": user})
            await gate.reached.wait()
            exchange.cut()
            await exchange.over.wait()
    gate.reached = anyio.Event()

    async def again(thread_id: str) -> dict[str, Any] | None:
        return {"context": {"user": thread_id}} if thread_id == "bob" else None

    async with browsing(application(Starlette, graph, saver=saver, pick_up=again)):
        await gate.reached.wait()
        gate.opened.set()
    assert contexts == [{"user": "ada"}, {"user": "bob"}, {"user": "bob"}]
    state = await graph.with_checkpointer(saver).aget_state("bob")
    assert (state.values, state.next) in (({"log": ["held"]}, ("last",)), ({"log": ["held", "last"]}, ()))
    with pytest.raises(ConfigError, match="name"):
        graph_lifespan(asking().compile(name="a"), asking().compile(name="a"), pick_up=True)


async def cut_off(browser: Any, gate: Gate, user: str, path: str = "/gated") -> None:
    """Start a run, and cut its request off, as a process does that is killed."""
    gate.reached = anyio.Event()
    exchange = browser.open(path, json=BODY, headers={"user": user})
    await gate.reached.wait()
    exchange.cut()
    await exchange.over.wait()


async def turns(count: int = 200) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


class CountingSaver(InMemorySaver):
    """Counts the headers that a scan for interrupted runs reads, and fails on request."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock.now)
        self.scanned: list[Any] = []
        self.looks = 0
        self.fails = False

    async def threads(self, **options: Any) -> Any:
        self.looks += 1
        if self.fails:
            raise StorageError("the database is away")
        return await super().threads(**options)

    async def scan(self, thread_id: str | None, ns: str | None, **options: Any) -> Any:
        self.scanned.append(thread_id)
        return await super().scan(thread_id, ns, **options)


async def next_scan(saver: CountingSaver, clock: VirtualClock) -> None:
    """Wait for the end of the next scan; return the threads that it has resumed."""
    looks = saver.looks
    while saver.looks == looks:
        clock.advance(LEASE_SECONDS / 3 if clock.sleepers else 0)
        await anyio.lowlevel.checkpoint()
    await turns()


async def test_runs_of_another_process_are_resumed_later(caplog: pytest.LogCaptureFixture) -> None:
    """P6: a process that serves the same threads scans every third of a lease's duration for runs of other processes
    that were interrupted: after their lease was released or has expired, and not while they run there. After a
    failed scan there is another one, and a scan reads only what has changed."""
    clock, gate = VirtualClock(autojump=None), Gate()
    saver = CountingSaver(clock)
    graph = gated(gate).compile(name="gated", environment=clock)
    own = graph.with_checkpointer(saver)

    async with browsing(application(Starlette, graph, saver=saver, pick_up=True)):
        async with browsing(application(Starlette, graph, saver=saver)) as other:
            await cut_off(other, gate, "ada")
            await cut_off(other, gate, "bob")
        elsewhere = Owner(host="elsewhere", boot="", pid=1, started="", run_id="1")
        await saver.acquire("bob", elsewhere, now=clock.now(), expires_at=clock.now() + LEASE_SECONDS - 1)
        gate.opened.set()
        saver.fails = True
        await next_scan(saver, clock)
        assert (await own.aget_state("ada")).next == ("held",)
        assert "cannot be looked for" in caplog.text
        saver.fails = False
        await next_scan(saver, clock)
        assert (await own.aget_state("ada")).next == ()
        assert (await own.aget_state("bob")).next == ("held",), "the thread has a live lease"
        await next_scan(saver, clock)
        assert (await own.aget_state("bob")).next == ()
        await next_scan(saver, clock)
        saver.scanned.clear()
        await next_scan(saver, clock)
        assert "ada" not in saver.scanned and "bob" not in saver.scanned
    assert gate.passed == ["held", "held"]


async def test_a_process_of_this_host_that_dies_is_noticed_at_the_next_look() -> None:
    """P6: if a process that had a thread at the last scan has died on this host, the next look, a second later at most,
    resumes the thread, long before its lease would lapse or the next scan were due. No other look reads threads."""
    clock, gate = VirtualClock(autojump=None), Gate()
    saver = CountingSaver(clock)
    graph = gated(gate).compile(name="gated", environment=clock)
    own = graph.with_checkpointer(saver)
    async with browsing(application(Starlette, graph, saver=saver)) as other:
        await cut_off(other, gate, "ada")
    gate.opened.set()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        owner = replace(this_process("dies"), pid=process.pid, started="")
        await saver.acquire("ada", owner, now=clock.now(), expires_at=clock.now() + LEASE_SECONDS)
        async with browsing(application(Starlette, graph, saver=saver, pick_up=True)):
            await next_scan(saver, clock)
            looks = saver.looks
            for _ in range(3):
                while not clock.sleepers:
                    await anyio.lowlevel.checkpoint()
                clock.advance(1.0)
                await turns()
            assert saver.looks == looks
            process.kill()
            process.wait()
            while not clock.sleepers:
                await anyio.lowlevel.checkpoint()
            clock.advance(1.0)
            await turns()
            assert (await own.aget_state("ada")).next == ()


class FailingAcquires(CountingSaver):
    """Fails so many calls of `acquire`."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.refusals = 0

    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise StorageError("the database is away")
        return await super().acquire(thread_id, owner, now=now, expires_at=expires_at)


async def test_a_run_that_storage_prevented_from_resuming_is_resumed_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P6: if storage fails when an interrupted thread is resumed, the next scan finds the thread again."""
    clock, gate = VirtualClock(autojump=None), Gate()
    saver = FailingAcquires(clock)
    graph = gated(gate).compile(name="gated", environment=clock)
    own = graph.with_checkpointer(saver)
    async with browsing(application(Starlette, graph, saver=saver)) as other:
        await cut_off(other, gate, "ada")
    gate.opened.set()
    saver.refusals = 1
    async with browsing(application(Starlette, graph, saver=saver, pick_up=True)):
        while saver.refusals or not caplog.records:
            await anyio.lowlevel.checkpoint()
        await turns()
        assert (await own.aget_state("ada")).next == ("held",)
        await next_scan(saver, clock)
        assert (await own.aget_state("ada")).next == ()


async def test_a_services_data_on_a_run_are_not_thread_metadata() -> None:
    """P11: a thread has the metadata that its client passed, also under keys that the service uses, and nothing
    else."""
    saver, graph = InMemorySaver(), asking().compile(name="ask")
    given = {"user": "ada", "attempt": "x", "graph": "y", "has_context": 1, "__run__": "z"}
    async with browsing(application(Starlette, graph, saver=saver)) as browser:
        await browser.ask("/ask", json={**BODY, "config": {"metadata": given}}, headers={**DOCUMENT, "user": "ada"})
    (thread,) = [one async for one in saver.alist_threads()]
    assert thread.metadata == {key: value for key, value in given.items() if key != "__run__"}
    (newest,) = await saver.scan("ada", "", limit=1)
    assert (newest.metadata["attempt"], newest.metadata["__run__"]["attempt"]) == ("x", 1)


def test_a_services_data_on_a_run() -> None:
    """P4: they are what an endpoint has stored, and nothing of the user's own keys of the same names."""
    own = RunMetadata(attempt=2, modes=["updates"]).to_metadata("chat")
    known = RunMetadata.from_metadata({"run_id": "r", "user": "ada", **own})
    assert (known.run_id, known.graph, known.attempt, known.modes) == ("r", "chat", 2, ["updates"])
    known = RunMetadata.from_metadata({"run_id": "r", "user": "ada", **own[RUN]})
    assert (known.run_id, known.graph, known.attempt, known.modes) == ("r", "", 1, [])


async def test_scans_end_with_the_application() -> None:
    """A drain ends them at once: the application does not wait for the next one."""
    clock = VirtualClock(autojump=None)
    graph = gated(Gate()).compile(name="gated", environment=clock)
    with anyio.fail_after(30):
        async with browsing(application(Starlette, graph, saver=InMemorySaver(), pick_up=True, grace=300)):
            while not clock.sleepers:
                await anyio.lowlevel.checkpoint()
    assert not clock.sleepers


async def test_an_invalid_saver() -> None:
    """It is refused when the application starts."""
    with pytest.raises(ConfigError, match="saver="):
        async with graph_lifespan(saver=lambda: 3)(None):
            pass
