"""A connection to an MCP server, which is opened again after it was lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup, TaskStatus

from checkpoint_savers.children import start_soon

from ...errors import OutsideRunError
from ..errors import McpToolError

_CONNECTION_CLOSED: Final = -32000
_SESSION_ENDED: Final = (-32600, "Session terminated")
"""Errors of the SDK: it has lost the server, and a server that was restarted does not know the session."""


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
        try:
            link = await self.open()
        except OutsideRunError:
            raise
        except Exception as error:
            raise McpToolError(self.name, tool, f"the server cannot be reached: {_text(error)}", error) from error
        outcome = _CallResult()
        with anyio.move_on_after(timeout) as late:
            await link.while_open(lambda: outcome.run(link.client.call_tool(tool, dict(arguments))))
        if outcome.is_done:
            return outcome.result
        if late.cancelled_caught:
            why = f"the server has not answered within {timeout} seconds, and may still carry the call out"
            raise McpToolError(self.name, tool, why, None)
        failure = outcome.error
        known = (getattr(failure, "code", None), getattr(failure, "message", None))
        if known == _SESSION_ENDED:
            self._drop(link)
            raise McpToolError(self.name, tool, "the server was restarted: the call was not carried out", failure)
        if failure is None or link.closed.is_set() or known[0] == _CONNECTION_CLOSED:
            self._drop(link)
            why = "the connection was lost during the call, which may have been carried out or not"
            raise McpToolError(self.name, tool, why, failure or link.error)
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

    async def while_open(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run work that must not raise, until it ends or the link is closed, whichever is first."""
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                await self.closed.wait()
                group.cancel_scope.cancel()

            start_soon(group, watch)
            await work()
            group.cancel_scope.cancel()


class _CallResult:
    """What a call has come to, which is kept outside of the task group that runs it.

    Attributes:
        is_done: True if there is a result.
        result: the result.
        error: the error; None if there is none, because the call was cancelled.
    """

    def __init__(self) -> None:
        self.is_done = False
        self.result: Any = None
        self.error: Exception | None = None

    async def run(self, call: Awaitable[Any]) -> None:
        try:
            self.result = await call
            self.is_done = True
        except Exception as error:
            self.error = _cause(error)


def _cause(error: Exception) -> Exception:
    """Return the only error in groups of task groups; the group if there are several."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
