"""Run `examples.chat_service` in a process of its own, and talk to it as browsers do."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
from httpx_sse import ServerSentEvent

from tests.helpers.example_server import ExampleServer
from tests.helpers.stream_reader import events_of, is_void

HANGS = "3600"
"""A pause in which the script stops after its first word."""


class ChatService(ExampleServer):
    """A running service, by default on a free port."""

    def __init__(self, folder: Path, port: str = "0", **env: str) -> None:
        keys = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY")
        own = {name: value for name, value in os.environ.items() if name not in keys}
        self._browsers: list[Browser] = []
        super().__init__("examples.chat_service", folder, port, "chat.db", {**own, **env})

    def browser(self, cookies: Any = None) -> Browser:
        """Return a browser with the cookies of an earlier one, or for a new user that opens the page."""
        browser = Browser(httpx.Client(base_url=self.url, timeout=60, cookies=cookies))
        self._browsers.append(browser)
        if cookies is None:
            assert browser.http.get("/").status_code == 200
        return browser

    def stop(self) -> None:
        for browser in self._browsers:
            browser.http.close()
        super().stop()


@contextmanager
def chat_service(folder: Path, port: str = "0", **env: str) -> Iterator[ChatService]:
    service = ChatService(folder, port, **{"CHAT_PAUSE": "0", **env})
    try:
        yield service
    finally:
        service.stop()


class Browser:
    """The browser of one user."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def new(self, title: str = "a conversation") -> str:
        return self.http.post("/api/chats", json={"title": title}).json()["id"]

    def load(self, chat: str) -> dict[str, Any]:
        """Return the conversation as it is stored."""
        done = self.http.get(f"/api/chats/{chat}")
        assert done.status_code == 200, done.text
        return done.json()

    @contextmanager
    def start(self, chat: str, **body: Any) -> Iterator[Iterator[ServerSentEvent]]:
        """Start a run, and return its events."""
        body = {**body, "stream_mode": "messages-tuple"}
        with self.http.stream("POST", f"/api/chats/{chat}/run", json=body) as response:
            assert response.status_code == 200, response.read()
            yield events_of(response)

    @contextmanager
    def follow(self, chat: str, after: str | None) -> Iterator[Iterator[ServerSentEvent]]:
        """Return the events after a given one, and those that follow live."""
        headers = {} if after is None else {"last-event-id": after}
        url = f"/api/chats/{chat}/run?stream_mode=messages-tuple"
        with self.http.stream("GET", url, headers=headers) as response:
            assert response.status_code == 200, response.read()
            yield events_of(response)

    def say(self, chat: str, text: str) -> list[ServerSentEvent]:
        with self.start(chat, input={"text": text}) as events:
            return list(events)

    def answer(self, chat: str, **answers: bool) -> list[ServerSentEvent]:
        with self.start(chat, command={"resume": answers}) as events:
            return list(events)

    def rest(self, chat: str, after: str | None) -> list[ServerSentEvent]:
        with self.follow(chat, after) as events:
            return list(events)

    def reload(self, chat: str) -> list[tuple[str, str]]:
        """Return all that a reload shows at the end: the stored messages, and the events after them."""
        stored = self.load(chat)
        return shown(self.rest(chat, stored["after"]), stored["messages"])


def shown(events: list[ServerSentEvent], stored: list[Any] = []) -> list[tuple[str, str]]:  # noqa: B006  # only read
    """Return roles and texts as the page derives them from events: chunks are summed, so that a duplicate would
    show."""
    messages = {message["id"]: (message["role"], message["content"], "", False) for message in stored}
    for event in events:
        data = event.json()
        if event.event == "messages":
            message = data[0]
            chunk = message.get("type") == "AIMessageChunk"
            role, before, since, _ = messages.get(message["id"], (message["role"], "", event.id, chunk))
            messages[message["id"]] = role, (before if chunk else "") + message["content"], since, chunk
        if event.event == "superstep_restarted":
            messages = {id: message for id, message in messages.items() if not is_void(message[2], data)}
        if event.event == "error":
            place = event.id.partition(".")[0]
            messages = {id: message for id, message in messages.items() if not (message[3] and message[2] > place)}
    return [(role, text) for role, text, *_ in messages.values()]


def tokens(events: list[ServerSentEvent]) -> list[str]:
    """Return the tokens of the model's text."""
    said = [event.json()[0] for event in events if event.event == "messages"]
    return [message["content"] for message in said if message.get("type") == "AIMessageChunk" and message["content"]]


def status(events: list[ServerSentEvent]) -> str:
    assert events[-1].event == "end"
    return json.loads(events[-1].data)["status"]


def until_token(events: Iterator[ServerSentEvent], count: int) -> list[ServerSentEvent]:
    """Return the events up to this number of tokens."""
    seen: list[ServerSentEvent] = []
    while len(tokens(seen)) < count:
        seen.append(next(events))
    return seen


@contextmanager
def provider(speak: Callable[[Any], list[dict[str, Any]]]) -> Iterator[tuple[str, list[Any]]]:
    """Run a server that streams like a provider, and record its requests."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for event in speak(asked[-1]):
                self.wfile.write(f"event: {event.get('type', 'message')}\ndata: {json.dumps(event)}\n\n".encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def breaking_off() -> Callable[[Any], list[dict[str, Any]]]:
    """Stream like OpenAI; the first time, break off in mid-answer as an overloaded server does."""
    times = iter(range(9))

    def speak(body: Any) -> list[dict[str, Any]]:
        time = next(times)

        def chunk(delta: dict[str, Any]) -> dict[str, Any]:
            choice = {"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}
            base = {"id": f"chatcmpl-{time}", "object": "chat.completion.chunk", "created": 1}
            return {**base, "model": body["model"], "choices": [choice]}

        one = chunk({"role": "assistant", "content": "One "})
        if time == 0:
            return [one, {"error": {"message": "overloaded", "type": "server_error", "code": None}}]
        return [one, chunk({"content": "two."}), chunk({})]

    return speak
