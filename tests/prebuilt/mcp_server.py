"""An MCP server with the tools that the tests call: `python -m tests.prebuilt.mcp_server stdio|http`.

With "http" it prints the port that it listens on.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from importlib import import_module
from typing import Any

import anyio

sdk: Any = import_module("mcp.server.mcpserver")
server: Any = sdk.MCPServer("test", log_level="CRITICAL")
waiting: list[anyio.Event] = []


@server.tool(annotations={"readOnlyHint": True})
def add(a: int, b: int) -> int:
    """Add numbers."""
    return a + b


@server.tool(name="dotted.name")
def dotted() -> str:
    return "dotted"


@server.tool()
def fail() -> str:
    raise sdk.exceptions.ToolError("bad luck") if hasattr(sdk, "exceptions") else ValueError("bad luck")


@server.tool(structured_output=False)
def picture() -> list[Any]:
    """Text and a picture."""
    return ["look", sdk.Image(data=b"PNG", format="png")]


@server.tool()
def several() -> list[str]:
    return ["a", "b"]


@server.tool()
def pid() -> int:
    return os.getpid()


@server.tool()
def die() -> str:
    """Die in mid-call."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "not reached"


@server.tool()
async def meet() -> str:
    """Return when two calls wait at the same time."""
    waiting.append(anyio.Event())
    if len(waiting) == 2:
        for event in waiting:
            event.set()
    await waiting[0].wait()
    return "met"


@server.tool()
async def hang() -> str:
    await anyio.sleep_forever()
    return "not reached"


def main() -> None:
    logging.disable(logging.CRITICAL)
    if sys.argv[1] == "stdio":
        server.run("stdio")
        return
    import uvicorn

    listening = socket.create_server(("127.0.0.1", int(sys.argv[2])))
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_level="critical")
    uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main()
