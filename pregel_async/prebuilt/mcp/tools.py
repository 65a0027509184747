"""`mcp_tools`: the tools of MCP servers, while a block runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, Final, cast

import anyio
from anyio.abc import TaskGroup

from checkpoint_savers.bridge import current_loop

from ..._runtime.persistence.shielded_task import ShieldedTask
from ..._runtime.platform.event_loops import loop
from ...adapters.fields import to_builtins
from ...errors import OutsideRunError, PregelError
from ..errors import InvalidToolError, McpToolError
from ..tools import Tool
from .connection import Connection
from .results import content_of_result, text_of_failure
from .servers import McpServer, connector

_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")
"""Characters that providers refuse in the names of tools, and MCP allows some of."""


class McpServerError(PregelError, ConnectionError):
    """An MCP server could not be started or reached, or did not list its tools. Nothing has run.

    Attributes:
        server: the server's name.
    """

    def __init__(self, server: str, why: str) -> None:
        self.server = server
        super().__init__(f"MCP server {server!r} cannot be used: {why}")


def mcp_tools(
    servers: Mapping[str, McpServer] | McpServer, *, tool_name_prefix: bool = False, timeout: float | None = None
) -> AbstractAsyncContextManager[list[Tool]]:
    """Connect to MCP servers, and return their tools: `async with mcp_tools(servers) as tools`.

    Servers that are processes are started, and end with the block. Any number of runs may use the tools at the same
    time, on the event loop of the block. If a server dies or refuses a call, the model is shown an error message as the
    result of the call, unless `handle_tool_errors` says otherwise; the next call connects again.

    Schemas are passed to the model as the servers write them; the servers check the arguments. A tool's `metadata` has
    `server`, `tool` (its name there) and `annotations`, such as `{"readOnlyHint": True}`: hints of the server, which
    `approve=` may read if you trust it.

    Args:
        servers: servers by name; or one server, whose name is then "mcp".
        tool_name_prefix: True puts the server's name and an underscore before the names of its tools.
        timeout: how long a call may take, in seconds; None for no limit.

    Returns:
        A context manager for `async with`, or for `open_sync` in programs without async.

    Raises:
        GraphValidationError: a server is given in a wrong form, or the SDK is not installed.
        McpServerError: on entering, a server could not be reached.
        InvalidToolError: on entering, two tools have the same name.
    """
    by_name = cast("Mapping[str, Any]", servers) if _is_by_name(servers) else {"mcp": servers}
    connects = {name: connector(name, server) for name, server in by_name.items()}
    return _McpTools(connects, prefix=tool_name_prefix, timeout=timeout)


def _is_by_name(servers: Any) -> bool:
    return isinstance(servers, Mapping) and not any(isinstance(servers.get(key), str) for key in ("command", "url"))


class _McpTools:
    """Opens connections, and closes them.

    Their tasks are in a group of a task of its own, so that the block may be entered and left by different tasks, as
    fixtures and `open_sync` do, and so that no cancel scope stays open in the task of the block.
    """

    def __init__(self, connects: Mapping[str, Any], *, prefix: bool, timeout: float | None) -> None:
        self._connects = connects
        self._prefix = prefix
        self._timeout = timeout
        self._connections: list[Connection] = []

    async def __aenter__(self) -> list[Tool]:
        self._end, ready = anyio.Event(), anyio.Event()
        groups: list[TaskGroup] = []

        async def host() -> None:
            async with anyio.create_task_group() as group:
                groups.append(group)
                ready.set()
                await self._end.wait()

        self._host = ShieldedTask(loop(), host)
        try:
            await ready.wait()
            group = groups.pop()
            tools: dict[str, Tool] = {}
            for name, connect in self._connects.items():
                self._connections.append(connection := Connection(name, connect, group))
                for tool in await self._tools_of(connection):
                    if tool.name in tools:
                        raise _same_name(tool.name, tools[tool.name].metadata["server"], name)
                    tools[tool.name] = tool
        except BaseException:
            await self._close()
            raise
        return list(tools.values())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        """Close the connections, and wait until the servers have ended: the SDK limits how long that takes."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._end.set()
        await self._host.wait_out()

    async def _tools_of(self, connection: Connection) -> list[Tool]:
        try:
            client = (await connection.open()).client
            listed: list[Any] = []
            cursor: str | None = None
            while True:
                page = await client.list_tools(cursor=cursor)
                listed += page.tools
                cursor = page.next_cursor
                if not cursor:
                    break
        except Exception as error:
            raise McpServerError(connection.name, str(error) or type(error).__name__) from error
        return [self._tool(connection, each) for each in listed]

    def _tool(self, connection: Connection, listed: Any) -> Tool:
        name = f"{connection.name}_{listed.name}" if self._prefix else listed.name
        annotations = {} if listed.annotations is None else to_builtins(listed.annotations)
        return Tool(
            name=_NOT_IN_NAMES.sub("_", name),
            description=listed.description or "",
            args_schema=listed.input_schema,
            response_format="content_and_artifact",
            metadata={"server": connection.name, "tool": listed.name, "annotations": annotations},
            source=listed,
            _run=partial(_run, connection, listed.name, self._timeout, current_loop()),
        )


async def _run(
    connection: Connection,
    tool: str,
    timeout: float | None,
    home: object,
    call: Mapping[str, Any],
    injected: dict[str, Any],
    config: Any,
) -> Any:
    if current_loop() is not home:
        raise OutsideRunError(
            f"the tool {tool!r} of the MCP server {connection.name!r} was called on another event loop than that of "
            "its `async with mcp_tools(...)`. In a program without async, enter `open_sync(mcp_tools(...))`"
        )
    result = await connection.call(tool, call["args"], timeout)
    if result.is_error:
        raise McpToolError(connection.name, tool, text_of_failure(result), None)
    return content_of_result(result)


def _same_name(name: str, first: str, second: str) -> InvalidToolError:
    return InvalidToolError(
        repr(name),
        f"the MCP servers {first!r} and {second!r} have a tool of this name each: pass tool_name_prefix=True",
    )
