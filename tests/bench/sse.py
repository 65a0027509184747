"""Many clients of one service process at once: memory, and times to the first chunk and to the end.

    python tests/bench/sse.py                          1000 clients, all connected at the same time
    python tests/bench/sse.py --clients 200 --saver sqlite

Each client posts, reads a first chunk, and is held until all are there; then a node speaks 20 tokens to each. The
service runs in a process of its own (uvicorn, asyncio), the clients in this one, so that both have a core at best.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TOKENS = 20


def serve(clients: int, saver: str) -> None:
    """Run the service. It prints its port."""
    import socket
    from typing import TypedDict

    import anyio
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from checkpoint_savers import InMemorySaver, SqliteSaver
    from pregel_async import START, StateGraph, StreamWriter
    from pregel_async.serve import Limits, graph_endpoint, graph_lifespan

    class State(TypedDict):
        text: str

    there, all_there = 0, anyio.Event()

    async def speak(state: State, writer: StreamWriter) -> dict[str, str]:
        nonlocal there
        await writer("first")
        there += 1
        if there == clients:
            all_there.set()
        await all_there.wait()
        for _ in range(TOKENS):
            await writer.message({"role": "assistant", "type": "AIMessageChunk", "content": "token ", "id": "m"})
            await anyio.sleep(0.01)
        return {"text": "said"}

    async def memory(request: Request) -> JSONResponse:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return JSONResponse({key: int(status[key].split()[0]) * 1024 for key in ("VmRSS", "VmHWM")})

    graph = StateGraph(State).add_node(speak).add_edge(START, "speak").compile(name="speak")
    opened = InMemorySaver if saver == "memory" else lambda: SqliteSaver.from_conn_string("sse.db")
    endpoint = graph_endpoint(graph, thread=lambda request: request.headers["user"], limits=Limits(concurrency=None))
    app = Starlette(
        routes=[Route("/speak", endpoint), Route("/memory", memory)], lifespan=graph_lifespan(graph, saver=opened)
    )
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(8192)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="error", backlog=8192, loop="asyncio")
    uvicorn.Server(config).run(sockets=[listener])


async def client(port: int, number: int, places: asyncio.Semaphore) -> dict[str, float]:
    """Read a stream without an HTTP library, whose cost is not to be measured."""
    body = json.dumps({"input": {"text": ""}, "stream_mode": ["custom", "messages", "updates"]})
    head = f"POST /speak HTTP/1.1\r\nhost: x\r\nuser: {number}\r\ncontent-type: application/json\r\n"
    async with places:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    begun = time.perf_counter()
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
    times: dict[str, float] = {}
    partials = 0
    while True:
        line = (await reader.readline()).strip()
        assert line or not reader.at_eof(), f"client {number} was cut off"
        if line == b"event: custom":
            times["first"] = time.perf_counter() - begun
        elif line == b"event: messages/partial":
            partials += 1
        elif line == b"event: end":
            break
    assert b'"success"' in (await reader.readline())
    assert partials == TOKENS
    times["end"] = time.perf_counter() - begun
    writer.close()
    return times


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


async def memory(port: int) -> dict[str, int]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /memory HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    found: dict[str, int] = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
    writer.close()
    return found


async def measure(port: int, clients: int) -> dict[str, Any]:
    before = await memory(port)
    places = asyncio.Semaphore(100)  # that are connecting at once
    begun = time.perf_counter()
    times = await asyncio.gather(*(client(port, number, places) for number in range(clients)))
    took = time.perf_counter() - begun
    after = await memory(port)
    return {
        "clients": clients,
        "seconds": round(took, 2),
        "events_per_second": round(clients * (TOKENS + 6) / took),
        **{
            f"{what}_{name}_ms": round(percentile([each[what] for each in times], part) * 1000)
            for what in ("first", "end")
            for name, part in (("p50", 0.5), ("p99", 0.99))
        },
        "rss_before_mb": round(before["VmRSS"] / 2**20, 1),
        "rss_peak_mb": round(after["VmHWM"] / 2**20, 1),
        "kb_per_client": round((after["VmHWM"] - before["VmRSS"]) / 1024 / clients, 1),
    }


def bench(clients: int, saver: str) -> dict[str, Any]:
    """Run service and clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = clients + 200
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard) if hard > 0 else needed, hard))
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    command = [sys.executable, str(Path(__file__).resolve()), "--serve", "--clients", str(clients), "--saver", saver]
    with tempfile.TemporaryDirectory() as folder:
        with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True) as service:
            try:
                assert service.stdout is not None
                return {"saver": saver, **asyncio.run(measure(int(service.stdout.readline()), clients))}
            finally:
                service.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--saver", choices=["memory", "sqlite"], default="memory")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.clients, given.saver)
    else:
        print(json.dumps(bench(given.clients, given.saver), indent=1))


if __name__ == "__main__":
    main()
