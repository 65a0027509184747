"""A service in a process of its own: `python live_service.py DIRECTORY`. It prints its port.

The node `held` reads from the pipe `gate` in the directory, and each node appends its name to the file `ran`.
"""

from __future__ import annotations

import operator
import os
import socket
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio
import uvicorn
from fastapi import FastAPI, Request
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Route

from checkpoint_savers import SqliteSaver
from pregel_async import END, START, StateGraph, StreamWriter
from pregel_async.serve import Limits, graph_endpoint, graph_lifespan

HERE = Path(os.environ.get("LIVE_SERVICE", "."))


class State(TypedDict):
    log: Annotated[list[str], operator.add]
    size: int


def ran(name: str) -> None:
    with (HERE / "ran").open("a") as file:
        file.write(f"{name}\n")


def first(state: State) -> dict[str, Any]:
    ran("first")
    return {"log": ["first"]}


def held(state: State, writer: StreamWriter) -> dict[str, Any]:
    ran("held")
    writer("before")
    (HERE / "gate").read_text()
    writer("behind")
    return {"log": ["held"]}


def last(state: State) -> dict[str, Any]:
    ran("last")
    return {"log": ["last"]}


async def flood(state: State, writer: StreamWriter) -> dict[str, Any]:
    """Write so many megabytes to the stream."""
    try:
        for number in range(state.get("size", 0) * 16):
            await writer({"number": number, "text": "x" * 65536})
    except BaseException:
        ran("flood cancelled")
        raise
    ran("flood done")
    return {"log": ["flood"]}


def eight() -> Any:
    """A graph of eight supersteps, each of which streams two words. If its input says so, the sixth waits after its
    first word, the first time it runs for its user."""

    async def step(state: State, writer: StreamWriter) -> dict[str, Any]:
        at, name = len(state["log"]), f"waits {state['size']}"
        waits = at == 5 and state["size"] and name not in (HERE / "ran").read_text().split("\n")
        if waits:
            ran(name)
        await say(writer, 2 * at)
        if waits:
            await anyio.sleep_forever()
        await say(writer, 2 * at + 1)
        ran(f"step {at}")
        return {"log": [f"step {at}"]}

    async def say(writer: StreamWriter, word: int) -> None:
        await writer.message(
            {"type": "AIMessageChunk", "role": "assistant", "id": f"m{word // 2}", "content": f"{word} "}
        )
        await writer(word)

    builder = StateGraph(State).add_node(step).add_edge(START, "step")
    return builder.add_conditional_edges("step", lambda state: END if len(state["log"]) == 8 else "step").compile()


def thread(request: Request) -> str | None:
    return request.headers.get("user") or request.query_params.get("user")


holding = StateGraph(State).add_sequence([first, held, last]).add_edge(START, "first").compile(name="holding")
flooding = StateGraph(State).add_node(flood).add_edge(START, "flood").compile(name="flooding")
talking = StateGraph(State).add_node("talks", eight()).add_edge(START, "talks").compile(name="talking")
quick = StateGraph(State).add_sequence([first, last]).add_edge(START, "first").compile(name="quick")

app = FastAPI(
    routes=[
        Route("/holding", graph_endpoint(holding, thread=thread)),
        Route("/talking", graph_endpoint(talking, thread=thread)),
        Route("/quick", graph_endpoint(quick, thread=thread, limits=Limits(body=100_000))),
        Route("/flood", graph_endpoint(flooding, thread=thread, limits=Limits(write=0.3), stream_mode="custom")),
    ],
    lifespan=graph_lifespan(
        holding,
        flooding,
        quick,
        talking,
        saver=lambda: SqliteSaver.from_conn_string(str(HERE / "threads.db")),
        pick_up=bool(os.environ.get("LIVE_PICK_UP")),
        grace=float(os.environ.get("LIVE_GRACE", "30")),
    ),
)


class Passing(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["x-passed"] = "yes"
        return response


if os.environ.get("LIVE_MIDDLEWARE"):
    app.add_middleware(Passing)
    app.add_middleware(GZipMiddleware, minimum_size=1)
    app.add_middleware(CORSMiddleware, allow_origins=["https://there"], allow_headers=["user", "last-event-id"])


def main() -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    listener.bind(("127.0.0.1", 0))
    listener.listen(4096)
    print(listener.getsockname()[1], flush=True)
    # uvicorn gets a name, as from its command line: it imports the module when it already listens to signals.
    config = uvicorn.Config("live_service:app", log_level="error", lifespan="on", backlog=4096)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    os.environ["LIVE_SERVICE"] = sys.argv[1]
    main()
