"""`mcp_tools` with real server processes, by stdio and by streamable HTTP, some of which are killed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import open_sync
from pregel_async.errors import GraphValidationError, OutsideRunError
from pregel_async.prebuilt import InvalidToolError, ToolNode, create_agent
from pregel_async.prebuilt.mcp import McpServerError, McpToolError, mcp_tools
from pregel_async.prebuilt.mcp.connection import Connection
from tests.helpers.code_blocks import ROOT
from tests.prebuilt.calls import asking, call, contents
from tests.prebuilt.scripted import Script

needs_mcp = pytest.mark.skipif(
    importlib.util.find_spec("mcp") is None, reason="mcp is not installed here: nox -s adapters installs it"
)
pytestmark = pytest.mark.anyio

STDIO: dict[str, Any] = {
    "command": sys.executable,
    "args": ["-m", "tests.prebuilt.mcp_server", "stdio"],
    "cwd": str(ROOT),
    "transport": "stdio",
}


@contextmanager
def http_server(port: int = 0) -> Generator[tuple[str, subprocess.Popen[str]]]:
    """Start a server; it listens when this returns."""
    command = [sys.executable, "-m", "tests.prebuilt.mcp_server", "http", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp", process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with http_server() as (found, _):
        yield found


async def run(tools: list[Any], *calls: Any) -> list[Any]:
    """Run calls in a `ToolNode`, and return the messages."""
    made: Any = await ToolNode(tools).ainvoke({"messages": [asking(*calls)]})
    return list(made["messages"])


@needs_mcp
@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_results(url: str, kind: str) -> None:
    """Texts, pictures and structured content; errors of the server are shown to the model."""
    async with mcp_tools({"test": STDIO if kind == "stdio" else {"url": url, "headers": {"x-key": "k"}}}) as tools:
        by_name = {tool.name: tool for tool in tools}
        assert by_name["add"].description == "Add numbers."
        assert by_name["add"].args_schema["properties"]["a"] == {"title": "A", "type": "integer"}  # as it was sent
        assert by_name["add"].metadata == {"server": "test", "tool": "add", "annotations": {"readOnlyHint": True}}
        assert by_name["dotted_name"].metadata["tool"] == "dotted.name"  # providers refuse the dot
        calls = [call("add", "1", a=1, b=2), call("picture", "2"), call("several", "3"), call("fail", "4")]
        calls += [call("dotted_name", "5"), call("add", "6", a="x")]
        added, picture, several, failed, dotted, invalid = await run(tools, *calls)
    assert added["content"] == "3" and added["artifact"] == {"structured_content": {"result": 3}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,UE5H"}}
    assert picture["content"] == [{"type": "text", "text": "look"}, image]
    assert several["content"] == "a\nb" and dotted["content"] == "dotted"
    assert failed["status"] == "error" and failed["content"].startswith(
        "The call of 'fail' on the server 'test' failed"
    )
    assert invalid["status"] == "error" and "validation error" in invalid["content"]


@needs_mcp
async def test_a_server_is_killed_in_mid_call() -> None:
    """The call is answered by an error, the run continues, and the next call starts the server again."""
    model = Script(
        asking(call("pid", "1")),
        asking(call("die", "2"), call("hang", "3")),
        asking(call("add", "4", a=2, b=2), call("pid", "5")),
        "done",
    )
    async with mcp_tools(STDIO) as tools:
        agent = create_agent(model, tools, checkpointer=InMemorySaver())
        state = await agent.ainvoke({"messages": ["go"]}, "t")
    first, died, hung, added, second = [each for each in state["messages"] if each["role"] == "tool"]
    why = "the connection was lost during the call, which may have been carried out or not"
    assert died["content"] == f"The call of 'die' on the server 'mcp' failed: {why}" and died["status"] == "error"
    assert why in hung["content"] and hung["status"] == "error"
    assert added["content"] == "4" and second["content"] != first["content"]
    for each in (first, second):  # both have ended with the block
        with pytest.raises(ProcessLookupError):
            os.kill(int(each["content"]), 0)


@needs_mcp
async def test_a_server_of_http_is_killed_in_mid_call() -> None:
    """The same; while it is away, calls are answered by errors, and after it is back by results."""
    with http_server() as (url, process):
        async with mcp_tools(url, timeout=60) as tools:
            (died,) = await run(tools, call("die"))
            assert died["status"] == "error" and "the connection was lost during the call" in died["content"]
            process.wait()
            (away,) = await run(tools, call("add", a=1, b=1))
            assert away["status"] == "error"
            with http_server(int(url.split(":")[2].partition("/")[0])):
                (added,) = await run(tools, call("add", a=1, b=1))
                assert added["content"] == "2"


@needs_mcp
@pytest.mark.one_loop  # on trio, the SDK's HTTP client warns of generators that it leaves open in this protocol
async def test_a_restarted_server_does_not_know_the_session() -> None:
    """Servers of the protocol before 2026 have sessions: one call fails, and the next one begins another session."""
    sdk: Any = import_module("mcp")
    async with anyio.create_task_group() as group:
        with http_server() as (url, _):
            connection = Connection("test", lambda: sdk.Client(url, mode="legacy"), group)
            await connection.call("add", {"a": 1, "b": 1}, None)
        with http_server(int(url.split(":")[2].partition("/")[0])):
            with pytest.raises(McpToolError, match="the server does not know this session"):
                await connection.call("add", {"a": 1, "b": 1}, 20)
            assert (await connection.call("add", {"a": 1, "b": 1}, 20)).structured_content == {"result": 2}
            connection.close()


@needs_mcp
async def test_several_runs_share_a_session(url: str) -> None:
    """Two runs wait for each other in one server: calls of one do not block those of another."""
    async with mcp_tools(url) as tools:
        agent = create_agent(Script(asking(call("meet")), "done"), tools)
        found: list[Any] = []

        async def one() -> None:
            found.append(await agent.ainvoke({"messages": ["go"]}))

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)
    assert [contents(state)[2] for state in found] == ["met", "met"]


@needs_mcp
async def test_a_late_answer_and_a_cancelled_call(url: str) -> None:
    async with mcp_tools(url, timeout=0.05) as tools:
        (late,) = await run(tools, call("hang"))
        assert "has not answered within 0.05 seconds" in late["content"]
    async with mcp_tools(url) as tools:
        with anyio.move_on_after(0.05) as scope:
            await run(tools, call("hang"))
        assert scope.cancelled_caught
        assert (await run(tools, call("add", a=1, b=1)))[0]["content"] == "2"


@needs_mcp
@pytest.mark.one_loop
async def test_names_that_collide(url: str) -> None:
    with pytest.raises(InvalidToolError, match="the MCP servers 'one' and 'two' have a tool of this name each"):
        async with mcp_tools({"one": url, "two": url}):
            pass
    async with mcp_tools({"one": url, "two": url}, tool_name_prefix=True) as tools:
        one, two = await run(tools, call("one_add", "1", a=1, b=1), call("two_add", "2", a=2, b=2))
    assert (one["content"], two["content"]) == ("2", "4")


@needs_mcp
async def test_errors_of_the_block_are_not_wrapped(url: str) -> None:
    """And tools are of no use after it, or on another event loop."""
    kept: list[Any] = []
    with pytest.raises(ZeroDivisionError):
        async with mcp_tools(url) as tools:
            kept += tools
            with pytest.raises(OutsideRunError, match="on another event loop"):
                await anyio.to_thread.run_sync(anyio.run, tools[0].arun, call("add", a=1, b=1))
            raise ZeroDivisionError
    with pytest.raises(OutsideRunError, match="has ended"):
        await kept[0].arun(call("add", a=1, b=1))


@needs_mcp
@pytest.mark.one_loop
async def test_errors_may_be_raised(url: str) -> None:
    async with mcp_tools(url) as tools:
        node = ToolNode(tools, handle_tool_errors=False)
        with pytest.raises(McpToolError, match="bad luck") as caught:
            await node.ainvoke({"messages": [asking(call("fail"))]})
    assert (caught.value.server, caught.value.tool_name) == ("mcp", "fail")


@needs_mcp
def test_without_async(url: str) -> None:
    with open_sync(mcp_tools(url)) as tools:
        agent = create_agent(Script(asking(call("add", a=1, b=2)), "done"), tools)
        assert contents(agent.invoke({"messages": ["go"]}))[2:] == ["3", "done"]


@needs_mcp
@pytest.mark.one_loop
async def test_a_server_that_cannot_be_used() -> None:
    for server, why in (
        ({"command": "no-such-program"}, "no-such-program"),
        ({"command": sys.executable, "args": ["-c", ""]}, "closed"),
        ("http://127.0.0.1:9/mcp", ""),
    ):
        with pytest.raises(McpServerError, match=f"MCP server 'files' cannot be used: .*{why}"):
            async with mcp_tools({"files": server}):
                pass


@needs_mcp
def test_bad_input_is_refused() -> None:
    servers: list[tuple[Any, str]] = [
        ({"a": 1}, "1 is no server"),
        ({"a": {"transport": "stdio"}}, "needs 'command' for a process, or 'url'"),
        ({"url": "http://x", "transport": "sse"}, "has the transport 'sse'"),
        ({"a": {"command": "x", "session_kwargs": {}}}, "has a key 'session_kwargs'"),
    ]
    for given, why in servers:
        with pytest.raises(GraphValidationError, match=why):
            mcp_tools(given)


@pytest.mark.skipif(importlib.util.find_spec("mcp") is not None, reason="mcp is installed here")
def test_without_the_sdk() -> None:
    with pytest.raises(GraphValidationError, match=r"pip install 'pregel-async\[mcp\]'"):
        mcp_tools("http://x")
