"""A connection to an MCP server, which is opened again after it was lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup, TaskStatus

from ...errors import OutsideRunError
from ..errors import McpToolError

_CONNECTION_CLOSED: Final = -32000
"""The code of the SDK's error for a lost server."""


class Connection:
    """A connection to one server, which any number of tasks of one event loop may use at the same time.

    A task of its own opens the client, and keeps it open. The SDK cancels the task that has opened a client if a
    transport fails: here that is no run, so a run sees an error of its call only.

    Args:
        name: the server's name.
        connect: makes a client, not yet connected.
        group: the task group of the task.

    Attributes:
        name: as the argument.
    """

    def __init__(self, name: str, connect: Callable[[], Any], group: TaskGroup) -> None:
        self.name = name
        self._connect = connect
        self._group = group
        self._opening = anyio.Lock()
        self._link: _Link | None = None
        self._has_ended = False

    async def open(self) -> _Link:
        """Return the open link to the server; connect if there is none.

        Raises:
            OutsideRunError: the connection was closed.
            Exception: the connection cannot be made.
        """
        async with self._opening:
            if self._has_ended:
                raise OutsideRunError(
                    f"a tool of the MCP server {self.name!r} was called after its `async with mcp_tools(...)` has ended"
                )
            if self._link is None or self._link.closed.is_set():
                link = _Link()
                await self._group.start(self._host, link)
                if link.error is not None:
                    raise link.error
                self._link = link
            return self._link

    async def _host(self, link: _Link, *, task_status: TaskStatus[None]) -> None:
        """Keep a client open until it is to be closed, or has failed."""
        try:
            async with self._connect() as client:
                link.client = client
                task_status.started()
                await link.closing.wait()
        except Exception as error:
            link.error = _cause(error)
        finally:
            link.closed.set()
            if link.client is None:
                with suppress(RuntimeError):  # the caller of `open` may be cancelled meanwhile
                    task_status.started()

    def close(self) -> None:
        """Let the task end, which waits until the server has ended. Nothing opens the connection again."""
        self._has_ended = True
        if self._link is not None:
            self._link.closing.set()

    async def call(self, tool: str, arguments: Mapping[str, Any], timeout: float | None) -> Any:
        """Call a tool.

        Args:
            tool: its name on the server.
            arguments: its arguments.
            timeout: how long the server may take, in seconds; None for no limit.

        Returns:
            The SDK's `CallToolResult`.

        Raises:
            McpToolError: the server cannot be reached, has died or has not answered, or has refused the call.
        """
        link, failure = _Link(), None
        with anyio.move_on_after(timeout):
            try:
                link = await self.open()
            except OutsideRunError:
                raise
            except Exception as error:
                raise McpToolError(self.name, tool, f"the server cannot be reached: {_text(error)}", error) from error
            try:
                # If the connection is lost, the SDK answers the calls that wait with an error.
                return await link.client.call_tool(tool, dict(arguments))
            except Exception as error:
                failure = _cause(error)
        if failure is None:
            why = f"the server has not answered within {timeout} seconds, and may still carry the call out"
            raise McpToolError(self.name, tool, why, None)
        code: int | None = getattr(failure, "code", None)  # an error of the protocol has one
        if code is not None and "session" in _text(failure).lower():
            # A server that was restarted does not know its earlier sessions. Servers say so in different words.
            self._drop(link)
            why = (
                "the server does not know this session, and has not carried the call out. The next call begins another"
            )
            raise McpToolError(self.name, tool, why, failure)
        if link.closed.is_set() or code == _CONNECTION_CLOSED:
            self._drop(link)
            why = "the connection was lost during the call, which may have been carried out or not"
            raise McpToolError(self.name, tool, why, failure)
        raise McpToolError(self.name, tool, _text(failure), failure) from failure

    def _drop(self, link: _Link) -> None:
        """Close a link that was lost, so that the next call opens another one. Another call may have done so."""
        link.closing.set()
        if self._link is link:
            self._link = None


class _Link:
    """An open client, until it is lost.

    Attributes:
        client: the SDK's client; None while it connects.
        closing: set to close it.
        closed: set when it is closed or lost.
        error: why it was lost; None if it was not.
    """

    def __init__(self) -> None:
        self.client: Any = None
        self.closing = anyio.Event()
        self.closed = anyio.Event()
        self.error: BaseException | None = None


def _cause(error: Exception) -> Exception:
    """Return the only error in groups of task groups; the group if there are several."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
