"""`thread_response`: the log of a service's thread as server-sent events, over a socket."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
import uvicorn
from httpx_sse import EventSource, ServerSentEvent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from checkpoint_savers import InMemorySaver, ThreadNotFoundError
from pregel_async.serve import Limits, thread_response
from pregel_async.service import RunService

from .graphs import Gate, failing, gated, steps

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]  # uvicorn runs on asyncio alone


class Server:
    """A served service.

    Attributes:
        service: its runs.
        saver: where they are.
        http: a client.
        gate: holds the node `wait` of the graph "gated".
        uvicorn: the server.
    """

    def __init__(self, service: RunService, saver: InMemorySaver, gate: Gate, sock: socket.socket) -> None:
        self.service, self.saver, self.gate, self.sock = service, saver, gate, sock

        async def events(request: Request) -> Response:
            options: dict[str, Any] = {"until": request.query_params.get("until", "idle")}
            thread_id, modes = request.path_params["thread_id"], ["updates", "tasks"]
            return await thread_response(
                service, thread_id, request, stream_mode=modes, limits=Limits(heartbeat=0.05), **options
            )

        async def not_found(request: Request, error: Exception) -> Response:
            return JSONResponse({"error": type(error).__name__}, 404)

        app = Starlette(
            routes=[Route("/threads/{thread_id}/events", events)], exception_handlers={ThreadNotFoundError: not_found}
        )
        self.uvicorn = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
        host, port = sock.getsockname()
        self.http = httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=20)

    async def run(self, graph: str, thread_id: str = "t") -> None:
        """Execute a run to its end."""
        run = await self.service.start(graph, {}, thread_id=thread_id, stream_mode=["updates", "tasks"])
        await self.service.join(run.run_id)

    async def read(self, *, after: str = "", until: str = "idle", number: int = -1) -> list[ServerSentEvent]:
        """Read some events, or all, and disconnect."""
        found: list[ServerSentEvent] = []
        headers = {"last-event-id": after} if after else {}
        async with self.http.stream("GET", f"/threads/t/events?until={until}", headers=headers) as response:
            assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            async with aclosing(EventSource(response).aiter_sse()) as events:
                async for event in events:
                    if not event.data:
                        continue  # httpx-sse makes an event without data of a heartbeat, and browsers do not
                    found.append(event)
                    if len(found) == number:
                        break
        return found


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    saver, gate = InMemorySaver(), Gate()
    graphs = {"steps": steps("one", "two"), "gated": gated(gate), "failing": failing(LookupError("a secret"))}
    with socket.create_server(("127.0.0.1", 0)) as sock, anyio.fail_after(30):
        async with saver, RunService(graphs, saver) as service, anyio.create_task_group() as group:
            server = Server(service, saver, gate, sock)
            group.start_soon(server.uvicorn.serve, [sock])
            async with server.http:
                yield server
            server.uvicorn.should_exit = True


async def test_the_log_of_a_thread(server: Server) -> None:
    """Each event has its part's type, cursor and content; a client that continues behind one gets the rest, unchanged;
    after the end, the answer is 204."""
    await server.run("steps")
    await server.run("steps")
    events = await server.read()
    async with server.service.follow_thread("t", stream_mode=["updates", "tasks"]) as parts:
        expected = [part async for part in parts]
    assert [event.event for event in events] == [*[part["type"] for part in expected], "end"]
    assert [event.id for event in events[:-1]] == [part["cursor"] for part in expected]
    updates = [event.json() for event in events if event.event == "updates"]
    assert [part["data"] for part in updates] == [{"one": {"log": ["one"]}}, {"two": {"log": ["two"]}}] * 2
    assert len({part["run_id"] for part in updates}) == 2
    assert updates[0].keys() == expected[0].keys()
    for at in (0, 3, len(events) - 2):
        assert [event.data for event in await server.read(after=events[at].id)] == [
            event.data for event in events[at + 1 :]
        ]
    done = await server.http.get("/threads/t/events", headers={"last-event-id": events[-1].id})
    assert (done.status_code, done.content) == (204, b"")


async def test_requests_that_are_refused(server: Server) -> None:
    """An unknown thread is an error of its own, and a wrong id a 400, both before the response begins."""
    unknown = await server.http.get("/threads/unknown/events")
    assert (unknown.status_code, unknown.json()) == (404, {"error": "ThreadNotFoundError"})
    await server.run("steps")
    wrong = await server.http.get("/threads/t/events", headers={"last-event-id": "wrong"})
    assert wrong.status_code == 400


async def test_messages_of_errors_are_not_sent(server: Server) -> None:
    """As in the response of a run: a client sees the class of a failure, and not what a library says."""
    await server.run("failing")
    events = await server.read()
    assert "error" in [event.event for event in events]
    (ended,) = [event.json() for event in events if event.event == "run_ended"]
    assert (ended["data"]["status"], ended["data"]["error"]["type"]) == ("error", "LookupError")
    assert "a secret" not in json.dumps([event.data for event in events])


async def test_a_log_that_is_not_over(server: Server) -> None:
    """Comments keep the connection open while nothing happens. When the client has gone, the follower ends, and the run
    does not."""
    run = await server.service.start("gated", {}, thread_id="t", stream_mode="updates")
    await server.gate.begun.wait()
    heartbeats = 0
    async with server.http.stream("GET", "/threads/t/events?until=never") as response:
        async with aclosing(response.aiter_lines()) as lines:
            async for line in lines:
                heartbeats += line == ": heartbeat"
                if heartbeats == 2:
                    break
        assert is_followed(server)
    while is_followed(server):
        await anyio.lowlevel.checkpoint()
    server.gate.opened.set()
    assert (await server.service.join(run.run_id)).status == "success"
    events = await server.read(until="never", number=5)
    assert [event.event for event in events] == ["run_started", *["updates"] * 3, "run_ended"]


async def test_the_server_stops(server: Server) -> None:
    """A client that waits for more is disconnected at once when the server stops, and continues at another process."""
    await server.run("steps")
    async with server.http.stream("GET", "/threads/t/events?until=never") as response:
        async with aclosing(EventSource(response).aiter_sse()) as events:
            async for event in events:
                if event.event == "run_ended":
                    server.uvicorn.should_exit = True
    assert not is_followed(server)


def is_followed(server: Server) -> bool:
    return bool(server.saver.runs.watched._signals)
