"""A local HTTP server that speaks the protocols of OpenAI and Anthropic, for the real SDKs.

It asks for the weather of Oslo in the first turn, and answers in the second one: what it says depends on the conversation in
the request, so that a repeated request gets the same.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

ARGUMENTS = '{"city": "Oslo"}'
ANSWER = "It is sunny in Oslo."
INPUT, OUTPUT, CACHED = 20, 5, 8
"""The tokens of each call, of which some input tokens are cached."""

Events = list[dict[str, Any]]


class ProviderServer:
    """The server.

    Attributes:
        url: where it is.
        requests: the path and the body of each request.
        next: what the next request gets: an answer, an error of the server, or an answer whose connection ends
            after its first events. Later ones get answers again.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.next: Literal["answer", "error", "break"] = "answer"


@contextmanager
def serve_provider() -> Iterator[ProviderServer]:
    """Serve while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            path = self.path.removeprefix("/v1")
            made.requests.append((path, request))
            how, made.next = made.next, "answer"
            if how == "error":
                self._send(500, "application/json", b'{"error": {"type": "api_error", "message": "busy"}}')
                return
            whole, events = _answer(path, request)
            if not request.get("stream"):
                self._send(200, "application/json", json.dumps(whole).encode())
                return
            named = path != "/chat/completions"
            lines = [(f"event: {one['type']}\n" if named else "") + f"data: {json.dumps(one)}\n\n" for one in events]
            lines = lines if named else [*lines, "data: [DONE]\n\n"]
            self._send(
                200, "text/event-stream", "".join(lines[:3] if how == "break" else lines).encode(), how == "break"
            )

        def _send(self, status: int, kind: str, body: bytes, breaks: bool = False) -> None:
            """Send a response; one that breaks is announced as longer than it is when the connection ends."""
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body) + 100 * breaks))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = ProviderServer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(path: str, request: dict[str, Any]) -> tuple[dict[str, Any], Events]:
    """Return the whole answer to a request, and the events of its stream."""
    if path == "/chat/completions":
        return _chat(request["messages"][-1]["role"] == "tool")
    if path == "/responses":
        return _response(request["input"][-1].get("type") == "function_call_output")
    content = request["messages"][-1]["content"]
    return _message(isinstance(content, list) and content[-1]["type"] == "tool_result")


def _chat(answers: bool) -> tuple[dict[str, Any], Events]:
    about = {"id": "chatcmpl-1" if answers else "chatcmpl-0", "created": 1, "model": "gpt-x-2026"}
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
    said = {"content": ANSWER} if answers else {"content": None, "tool_calls": [call]}
    usage = {
        "prompt_tokens": INPUT,
        "completion_tokens": OUTPUT,
        "total_tokens": INPUT + OUTPUT,
        "prompt_tokens_details": {"cached_tokens": CACHED},
    }
    finish = "stop" if answers else "tool_calls"
    message = {"index": 0, "message": {"role": "assistant", **said}, "finish_reason": finish}
    pieces = [ANSWER[:5], ANSWER[5:]] if answers else []
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": piece} for piece in pieces)]
    if not answers:
        deltas.append({"tool_calls": [{"index": 0, **call}]})
    chunk = {**about, "object": "chat.completion.chunk"}
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    events = [
        *({**chunk, "choices": [choice]} for choice in choices),
        {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {**chunk, "choices": [], "usage": usage},
    ]
    return {**about, "object": "chat.completion", "choices": [message], "usage": usage}, events


def _response(answers: bool) -> tuple[dict[str, Any], Events]:
    text = {"type": "output_text", "text": ANSWER, "annotations": []}
    item: dict[str, Any]
    if answers:
        item = {"id": "m1", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
        part = {"item_id": "m1", "output_index": 0, "content_index": 0}
        pieces = [
            {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
            {"type": "response.content_part.added", **part, "part": {**text, "text": ""}},
            *({"type": "response.output_text.delta", **part, "delta": piece} for piece in (ANSWER[:5], ANSWER[5:])),
        ]
    else:
        item = {"id": "f1", "type": "function_call", "call_id": "call_1", "name": "weather", "arguments": ARGUMENTS}
        place = {"item_id": "f1", "output_index": 0}
        pieces = [
            {"type": "response.output_item.added", "output_index": 0, "item": {**item, "arguments": ""}},
            {"type": "response.function_call_arguments.delta", **place, "delta": ARGUMENTS},
        ]
    usage = {
        "input_tokens": INPUT,
        "input_tokens_details": {"cached_tokens": CACHED, "cache_write_tokens": 0},
        "output_tokens": OUTPUT,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": INPUT + OUTPUT,
    }
    begun: dict[str, Any] = {
        "id": "resp_1" if answers else "resp_0",
        "object": "response",
        "created_at": 1,
        "model": "gpt-x-2026",
        "status": "in_progress",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    whole = {**begun, "status": "completed", "output": [item], "usage": usage}
    events = [
        {"type": "response.created", "response": begun},
        *pieces,
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return whole, [{**event, "sequence_number": number} for number, event in enumerate(events)]


def _message(answers: bool) -> tuple[dict[str, Any], Events]:
    about = {"id": "msg_1" if answers else "msg_0", "type": "message", "role": "assistant", "model": "claude-x-2026"}
    used = {"input_tokens": INPUT - CACHED, "cache_read_input_tokens": CACHED, "cache_creation_input_tokens": 0}
    tool = {"type": "tool_use", "id": "toolu_1", "name": "weather"}
    reason = "end_turn" if answers else "tool_use"
    block = {"type": "text", "text": ANSWER} if answers else {**tool, "input": json.loads(ARGUMENTS)}
    whole = {**about, "content": [block], "stop_reason": reason, "usage": {**used, "output_tokens": OUTPUT}}
    start = {"type": "text", "text": ""} if answers else {**tool, "input": {}}
    deltas = (
        [{"type": "text_delta", "text": piece} for piece in (ANSWER[:5], ANSWER[5:])]
        if answers
        else [{"type": "input_json_delta", "partial_json": ARGUMENTS}]
    )
    begun = {**about, "content": [], "stop_reason": None, "usage": {**used, "output_tokens": 1}}
    events = [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": start},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {**used, "output_tokens": OUTPUT}},
        {"type": "message_stop"},
    ]
    return whole, events
