"""Tools of an MCP server, which dies in mid-call: the model is shown an error, and the next call starts it again.

The server is this file, too. Needs `pip install 'pregel-async[mcp]'`. The model is a script. With AGENT_MODEL, such as
"openai:gpt-5", and that provider's SDK and key, it is that model.

python examples/18_mcp_tools.py
"""

from __future__ import annotations

import os
import sys
from typing import Any

import anyio

from pregel_async.prebuilt import create_agent
from pregel_async.prebuilt.mcp import StdioServer, mcp_tools


def count(article: str) -> int:
    """Count the pieces of an article in the warehouse."""
    return {"kettle": 12, "toaster": 0}[article]


def recount() -> str:
    """Count everything again, which takes long."""
    os._exit(1)  # the server crashes


def serve() -> None:
    """Run the server: a process that reads calls and writes results."""
    from mcp.server.mcpserver import MCPServer  # pyright: ignore[reportMissingImports]  # in nox's session adapters

    server = MCPServer("stock", log_level="ERROR")
    server.add_tool(count)
    server.add_tool(recount)
    server.run("stdio")


async def script(messages: list[Any], tools: list[Any]) -> Any:
    """Ask for a number, crash the server, ask again, and answer."""
    calls: list[tuple[str, dict[str, str]]] = [("count", {"article": "kettle"}), ("recount", {})]
    calls.append(("count", {"article": "toaster"}))
    results = [message for message in messages if message["role"] == "tool"]
    if len(results) == len(calls):
        return f"{results[0]['content']} kettles, and {results[-1]['content']} toasters."
    name, args = calls[len(results)]
    return {"role": "assistant", "tool_calls": [{"id": str(len(results)), "name": name, "args": args}]}


async def main() -> None:
    server: StdioServer = {"command": sys.executable, "args": [__file__, "serve"]}
    async with mcp_tools({"stock": server}) as tools:
        print(f"the server's tools: {[tool.name for tool in tools]}")
        agent = create_agent(os.environ.get("AGENT_MODEL", script), tools)
        state: Any = await agent.ainvoke({"messages": ["How many kettles and toasters are there?"]})
        for message in state["messages"][1:]:
            called = [call["name"] for call in message.get("tool_calls", ())]
            print(f"{message['role']}: {called or message['content']}")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        anyio.run(main)
