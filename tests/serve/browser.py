"""A client of an ASGI application on the same event loop: it can disconnect at any time, and read as slowly as the
test needs."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio


class Event:
    """One server-sent event, or a comment."""

    def __init__(self, name: str, data: Any, id: str | None) -> None:
        self.name = name
        self.data = data
        self.id = id

    def __repr__(self) -> str:
        return f"{self.name} {self.data} [{self.id}]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and (self.name, self.data) == (other.name, other.data)


def parsed(text: str) -> list[Event]:
    """The events of a body; comments are events with the name ":"."""
    events = []
    for block in text.split("\n\n"):
        fields: dict[str, Any] = {}
        for line in block.split("\n"):
            if line.startswith(":"):
                events.append(Event(":", line[1:].strip(), None))
            elif line:
                key, _, value = line.partition(": ")
                fields[key] = value
        if fields:
            events.append(Event(fields["event"], json.loads(fields["data"]), fields.get("id")))
    return events


class Exchange:
    """One request and its response.

    Attributes:
        status: the response's status; 0 before it arrives.
        headers: the response's headers.
        content: the bytes of the body so far.
        error: the exception that the application raised, if any.
    """

    def __init__(self, body: bytes) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.content = b""
        self.whole = anyio.Event()  # the response is complete
        self.over = anyio.Event()  # the service has finished with the request
        self.error: BaseException | None = None
        self._body = [body[at : at + 65536] for at in range(0, len(body), 65536)] or [b""]
        self._scope = anyio.CancelScope()
        self._gone = anyio.Event()
        self._news = anyio.Event()
        self._read = 0
        self._stuck: anyio.Event | None = None

    async def receive(self) -> dict[str, Any]:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(0), "more_body": bool(self._body)}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if self._stuck is not None:
            await self._stuck.wait()
        if self._gone.is_set():
            return  # as uvicorn does
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.content += message.get("body", b"")
            if not message.get("more_body"):
                self.whole.set()
        self._notify()

    def _notify(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    def leave(self) -> None:
        """Close the connection."""
        self._gone.set()

    def cut(self) -> None:
        """Cancel the service's handling of the request, as a server does that has to end."""
        self._scope.cancel()

    def stall(self) -> None:
        """Stop reading, without disconnecting."""
        self._stuck = anyio.Event()

    def resume(self) -> None:
        """Continue reading."""
        assert self._stuck is not None
        self._stuck.set()
        self._stuck = None

    async def news(self) -> None:
        """Wait until more of the response arrives."""
        await self._news.wait()

    @property
    def events(self) -> list[Event]:
        whole = self.content[: self.content.rfind(b"\n\n") + 2]
        return parsed(whole.decode())

    async def next(self, name: str | None = None) -> Event:
        """Return the next event (of a name), skipping comments."""
        while True:
            events = [event for event in self.events if event.name != ":"]
            while self._read < len(events):
                self._read += 1
                if name is None or events[self._read - 1].name == name:
                    return events[self._read - 1]
            if self.over.is_set():
                raise EOFError(f"the response is over: {self.status} {self.content!r}")
            await self._news.wait()

    async def all(self) -> list[Event]:
        """Return all events when the response is complete."""
        while not (self.whole.is_set() or self.over.is_set()):
            await self._news.wait()
        return [event for event in self.events if event.name != ":"]

    @property
    def json(self) -> Any:
        return json.loads(self.content)


class Browser:
    """Sends requests to an application."""

    def __init__(self, app: Any, group: Any, state: dict[str, Any] | None) -> None:
        self._app = app
        self._group = group
        self._state = state
        self.exchanges: list[Exchange] = []

    def open(
        self,
        path: str = "/",
        json: Any = None,
        *,
        method: str | None = None,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        last: str | None = None,
    ) -> Exchange:
        """Send a request: POST if there is a body, else GET."""
        import msgspec

        path, _, query = path.partition("?")
        given = {} if headers is None else dict(headers)
        if json is not None:
            body = msgspec.json.encode(json)
            given.setdefault("content-type", "application/json")
        if last is not None:
            given["last-event-id"] = last
        exchange = Exchange(b"" if body is None else body)
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method or ("GET" if body is None else "POST"),
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("test", 80),
        }
        if self._state is not None:
            scope["state"] = dict(self._state)
        self.exchanges.append(exchange)

        async def serve() -> None:
            try:
                with exchange._scope:
                    await self._app(scope, exchange.receive, exchange.send)
            except Exception as error:
                exchange.error = error
            finally:
                exchange.over.set()
                exchange._notify()

        self._group.start_soon(serve)
        return exchange

    async def ask(self, *args: Any, **kwargs: Any) -> Exchange:
        """Send a request, and wait until the service has finished with it."""
        exchange = self.open(*args, **kwargs)
        await exchange.over.wait()
        if exchange.error is not None:
            raise exchange.error
        return exchange


@asynccontextmanager
async def browsing(app: Any, lifespan: Callable[[Any], Any] | None = None) -> AsyncGenerator[Browser, None]:
    """Run an application, and yield a browser of it; at the end all its connections are closed."""
    if lifespan is None and hasattr(app, "router"):
        lifespan = app.router.lifespan_context
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            if lifespan is None:
                browser = Browser(app, group, None)
                yield browser
                for exchange in browser.exchanges:
                    exchange.leave()
            else:
                async with lifespan(app) as state:
                    browser = Browser(app, group, None if state is None else dict(state))
                    yield browser
                    for exchange in browser.exchanges:
                        exchange.leave()
                        await exchange.over.wait()
