"""A real service: uvicorn in a process of its own, sockets, signals. Recorded work does not run again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx_sse import EventSource, ServerSentEvent

from tests.helpers.stream_reader import events_of, is_void

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BODY = {"input": {"log": []}, "stream_mode": ["updates", "custom"]}


class LiveService:
    """A running service."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        if not (folder / "gate").exists():
            os.mkfifo(folder / "gate")
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        with (folder / "stderr").open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "live_service.py"), str(folder)],
                env={**os.environ, "PYTHONPATH": path, **env},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.process.stdout is not None
        self.output = self.process.stdout
        self.port = int(self.output.readline())
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)
        assert self.accepts(), (folder / "stderr").read_text()  # it has been listening since before it printed its port

    def accepts(self) -> bool:
        """Return True if it serves requests."""
        try:
            with httpx.Client(base_url=self.client.base_url, timeout=60) as client:
                return client.put("/quick").status_code == 405
        except httpx.TransportError:
            return False

    def open_gate(self) -> None:
        """Let the held node continue. Returns when the node has read that."""
        (self.folder / "gate").write_text("go on")

    @property
    def ran(self) -> list[str]:
        path = self.folder / "ran"
        return path.read_text().split("\n")[:-1] if path.exists() else []

    @property
    def errors(self) -> str:
        return (self.folder / "stderr").read_text()


@contextmanager
def running_service(folder: Path, **env: str) -> Iterator[LiveService]:
    live = LiveService(folder, **env)
    try:
        yield live
    finally:
        live.client.close()
        if live.process.poll() is None:
            live.process.kill()
        live.process.wait(60)
        live.output.close()


@contextmanager
def events(live: LiveService, path: str, *, user: str, last: str | None = None, **more: Any) -> Iterator[Any]:
    headers = {"user": user, **({} if last is None else {"last-event-id": last})}
    method = "GET" if "json" not in more else "POST"
    with live.client.stream(method, path, headers=headers, **more) as response:
        assert response.status_code == 200, response.read()
        yield events_of(response)


def names(received: list[ServerSentEvent]) -> list[str]:
    return [event.event for event in received]


@pytest.mark.parametrize("middleware", ["", "yes"], ids=["bare", "middleware"])
def test_sigterm_during_a_run(tmp_path: Path, middleware: str) -> None:
    """The superstep in progress is completed and stored, the client gets the status, the process ends; after the
    restart the client reconnects to the rest, and no node runs twice."""
    with running_service(tmp_path, LIVE_MIDDLEWARE=middleware) as live:
        with events(live, "/holding", user="ada", json=BODY) as stream:
            seen = [next(stream) for _ in range(3)]
            assert names(seen) == ["metadata", "updates", "custom"]
            live.process.send_signal(signal.SIGTERM)
            while live.accepts():
                pass
            live.open_gate()
            seen += list(stream)
        assert names(seen[3:]) == ["custom", "updates", "end"]
        assert json.loads(seen[-1].data)["status"] == "drained"
        assert live.process.wait(60) == -signal.SIGTERM
        assert live.ran == ["first", "held"]
        assert live.errors == ""
    with running_service(tmp_path, LIVE_MIDDLEWARE=middleware) as live:
        with events(live, "/holding", user="ada", last=seen[-1].id) as stream:
            rest = list(stream)
        assert names(rest) == ["metadata", "updates", "end"]
        assert json.loads(rest[0].data) == {**json.loads(seen[0].data), "attempt": 1}
        assert json.loads(rest[1].data) == {"last": {"log": ["last"]}}
        assert live.ran == ["first", "held", "last"]


def test_sigterm_and_a_run_that_does_not_stop(tmp_path: Path) -> None:
    """After `grace` the run is cancelled, also without a reader; the process ends, and the thread can be continued."""
    with running_service(tmp_path, LIVE_GRACE="0.2") as live:
        with events(live, "/flood", user="ada", json={"input": {"log": [], "size": 500}}) as stream:
            assert names([next(stream) for _ in range(2)]) == ["metadata", "custom"]
            live.process.send_signal(signal.SIGTERM)
            for event in stream:
                last = event
        assert last.event == "end"
        assert json.loads(last.data)["status"] == "cancelled"
        assert live.process.wait(60) == -signal.SIGTERM
        assert live.ran == ["flood cancelled"]


def test_sigkill_during_a_run(tmp_path: Path) -> None:
    """After the restart, committed events are not sent again, `superstep_restarted` names the void ones, and the
    rest follows."""
    with running_service(tmp_path) as live:
        with events(live, "/holding", user="ada", json=BODY) as stream:
            seen = [next(stream) for _ in range(3)]
            live.process.kill()
    with running_service(tmp_path) as live:
        with events(live, "/holding", user="ada", last=seen[-1].id) as stream:
            rest = [next(stream) for _ in range(3)]
            assert names(rest) == ["metadata", "superstep_restarted", "custom"]
            threading.Thread(target=live.open_gate).start()
            rest += list(stream)
        void = json.loads(rest[1].data)
        assert [event.event for event in seen if is_void(event.id, void)] == ["custom"]
        assert names(rest[3:]) == ["custom", "updates", "updates", "end"]
        assert live.ran == ["first", "held", "held", "last"]


def test_a_killed_run_is_resumed(tmp_path: Path) -> None:
    """It is resumed without any request."""
    with running_service(tmp_path) as live:
        with events(live, "/holding", user="ada", json=BODY) as stream:
            seen = [next(stream) for _ in range(3)]
            live.process.kill()
    with running_service(tmp_path, LIVE_PICK_UP="yes") as live:
        live.open_gate()
        with events(live, "/holding", user="ada", last=seen[-1].id) as stream:
            rest = list(stream)
        assert names(rest) == ["metadata", "superstep_restarted", "custom", "custom", "updates", "updates", "end"]
        assert live.ran == ["first", "held", "held", "last"]


def test_two_processes_on_one_database(tmp_path: Path) -> None:
    """A reader that reconnects to another process than the one that runs gets the events that the running process
    stores, to the end."""
    with running_service(tmp_path) as runs, running_service(tmp_path) as follows:
        with events(runs, "/holding", user="ada", json={**BODY, "on_disconnect": "continue"}) as stream:
            seen = [next(stream) for _ in range(3)]
        busy = follows.client.post("/holding", json=BODY, headers={"user": "ada"})
        assert (busy.status_code, busy.json()["error"]) == (409, "ThreadBusyError")
        with events(follows, "/holding", user="ada", last=seen[-1].id) as stream:
            rest = [next(stream)]
            runs.open_gate()
            rest += list(stream)
        assert names(rest) == ["metadata", "custom", "updates", "updates", "end"]
        assert json.loads(rest[0].data) == json.loads(seen[0].data)
        assert json.loads(rest[-1].data)["status"] == "success"
        ids = [event.id for event in [*seen, *rest[1:]]]
        assert ids == sorted(set(ids))
        assert runs.ran == ["first", "held", "last"]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    with running_service(tmp_path_factory.mktemp("live"), LIVE_MIDDLEWARE="yes") as live:
        yield live


def test_a_closed_connection_cancels_the_run(live: LiveService) -> None:
    """The run is cancelled through middleware, too; and the thread is free for a client that reconnects."""
    before = len(live.ran)
    with events(live, "/flood", user="gone", json={"input": {"log": [], "size": 100}}) as stream:
        seen = [next(stream) for _ in range(4)]
    while "flood cancelled" not in live.ran[before:]:
        assert live.accepts()
    received: list[str] = []
    for _ in range(50):  # a client that is back before the run has ended joins it, and reads what it still has
        with events(live, "/flood", user="gone", last=seen[-1].id) as stream:
            received = names(list(islice(stream, 3)))
        if received[1:2] != ["custom"]:
            break
    assert received == ["metadata", "superstep_restarted", "custom"]


@pytest.mark.parametrize("policy", ["cancel", "continue"])
def test_a_reader_that_stops_reading(live: LiveService, policy: str) -> None:
    """Its connection stays open and accepts no data: after `Limits.write` the reader counts as gone."""
    before = len(live.ran)
    body = json.dumps({"input": {"log": [], "size": 20}, "on_disconnect": policy}).encode()
    with socket.create_connection(("127.0.0.1", live.port), timeout=60) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"POST /flood?user=stuck-{policy} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        stuck.sendall(head.encode() + body)
        assert stuck.recv(12) == b"HTTP/1.1 200"
        expected = "flood cancelled" if policy == "cancel" else "flood done"
        with live.client.stream("GET", "/flood", headers={"user": "slow"}) as response:
            assert response.status_code == 404
        while expected not in live.ran[before:]:
            assert live.process.poll() is None


def test_bodies_in_chunks(live: LiveService) -> None:
    """Bodies without a length are counted as they arrive."""
    small = (part for part in (b'{"input": {"lo', b'g": []}}'))
    done = live.client.post("/quick", content=small, headers={"user": "s", "content-type": "application/json"})
    assert (done.status_code, done.headers["x-passed"]) == (200, "yes")
    assert "content-encoding" not in done.headers

    def endless() -> Iterator[bytes]:
        for _ in range(1000):
            yield b" " * 10_000

    try:
        done = live.client.post("/quick", content=endless(), headers={"user": "s", "content-type": "application/json"})
        assert done.status_code == 413
    except httpx.TransportError:
        pass  # the connection was closed before all was sent
    done = live.client.post("/quick", content=b"{", headers={"user": "s", "content-type": "application/json"})
    assert done.status_code == 400


def test_cors(live: LiveService) -> None:
    """CORS works through a middleware: the preflight request does not reach the endpoint."""
    asks = {
        "origin": "https://there",
        "access-control-request-method": "POST",
        "access-control-request-headers": "user",
    }
    assert live.client.options("/quick", headers=asks).headers["access-control-allow-origin"] == "https://there"
    done = live.client.post("/quick", json={"input": {"log": []}}, headers={"user": "c", "origin": "https://there"})
    assert done.headers["access-control-allow-origin"] == "https://there"


@pytest.mark.parametrize("clients", [100])
def test_many_clients_at_once(live: LiveService, clients: int) -> None:
    """All clients finish, and each gets its own run completely, in order."""

    async def one(client: httpx.AsyncClient, number: int) -> list[str]:
        body = {"input": {"log": [str(number)]}, "stream_mode": ["updates", "values"]}
        async with client.stream("POST", "/quick", json=body, headers={"user": f"many-{number}"}) as response:
            received = [event async for event in EventSource(response).aiter_sse() if event.data]
        ids = [event.id for event in received]
        assert ids == sorted(set(ids))
        assert json.loads(received[-2].data) == {"log": [str(number), "first", "last"]}
        return names(received)

    async def all_of_them() -> list[list[str]]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=live.client.base_url, limits=limits, timeout=60) as client:
            return await asyncio.gather(*(one(client, number) for number in range(clients)))

    received = asyncio.run(all_of_them())
    assert received == [["metadata", "values", "updates", "values", "updates", "values", "end"]] * clients
