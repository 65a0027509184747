"""What may be given as an MCP server, and how a client connects to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any, Final, Literal, NotRequired, TypeAlias, TypedDict, cast

from ...errors import GraphValidationError


class StdioServer(TypedDict):
    """A server that is started as a process, and talks over its standard input and output.

    Keys:
        command: the program.
        args: its arguments.
        env: environment variables, in addition to a few harmless ones such as PATH.
        cwd: its working directory.
        transport: "stdio", or absent.
    """

    command: str
    args: NotRequired[list[str]]
    env: NotRequired[dict[str, str] | None]
    cwd: NotRequired[str]
    transport: NotRequired[Literal["stdio"]]


class HttpServer(TypedDict):
    """A server that is reached by streamable HTTP.

    Keys:
        url: where it is.
        headers: headers of each request, such as one with a key.
        transport: "streamable_http" or "http", or absent.
    """

    url: str
    headers: NotRequired[dict[str, str] | None]
    transport: NotRequired[Literal["streamable_http", "streamable-http", "http"]]


McpServer: TypeAlias = "StdioServer | HttpServer | str | Callable[[], Any] | Any"
"""A server: a `StdioServer` or `HttpServer`, a URL, or the SDK's `StdioServerParameters`; or a function without
arguments that returns a transport of the SDK, for all that these cannot say, such as OAuth."""

_HTTP: Final = ("streamable_http", "streamable-http", "http")
_SECONDS: Final = 30.0
_SECONDS_OF_READ: Final = 300.0  # a server may be silent that long while a tool runs


def connector(name: str, server: McpServer) -> Callable[[], Any]:
    """Return a function that makes a client of a server, not yet connected. It may be called again after a loss.

    Args:
        name: the server's name, for errors.
        server: the server.

    Raises:
        GraphValidationError: it is no server, or the SDK is not installed.
    """
    try:
        sdk: Any = import_module("mcp")
    except ModuleNotFoundError as error:
        if error.name != "mcp":
            raise
        raise GraphValidationError("tools of MCP servers need the SDK: pip install 'pregel-async[mcp]'") from error
    if not hasattr(sdk, "Client"):
        raise GraphValidationError("tools of MCP servers need version 2 of the package mcp: pip install 'mcp>=2'")
    if isinstance(server, (str, sdk.StdioServerParameters)):
        return lambda: sdk.Client(server)
    if callable(server):
        make = cast("Callable[[], Any]", server)
        return lambda: sdk.Client(make())
    if isinstance(server, Mapping):
        return _of_mapping(name, cast("Mapping[str, Any]", server), sdk)
    raise GraphValidationError(
        f"MCP server {name!r}: {server!r} is no server. Pass a URL, {{'command': ..., 'args': [...]}}, {{'url': ...}}, "
        "or a function that returns a transport of the SDK"
    )


def _of_mapping(name: str, given: Mapping[str, Any], sdk: Any) -> Callable[[], Any]:
    kind = StdioServer if "command" in given else HttpServer
    transports = ("stdio",) if kind is StdioServer else _HTTP
    allowed = kind.__annotations__
    unknown = [key for key in given if key not in allowed]
    if unknown:
        raise GraphValidationError(
            f"MCP server {name!r} has a key {unknown[0]!r}; known are {', '.join(allowed)}. For anything else pass a "
            "function that returns a transport of the SDK"
        )
    if kind is HttpServer and not isinstance(given.get("url"), str):
        raise GraphValidationError(f"MCP server {name!r} needs 'command' for a process, or 'url' for streamable HTTP")
    if given.get("transport", transports[0]) not in transports:
        raise GraphValidationError(
            f"MCP server {name!r} has the transport {given['transport']!r}, and not one of {', '.join(transports)}"
        )
    if kind is StdioServer:
        parameters = sdk.StdioServerParameters(
            **{key: value for key, value in given.items() if key != "transport" and value is not None}
        )
        return lambda: sdk.Client(parameters)
    url, headers = given["url"], given.get("headers")
    return lambda: sdk.Client(_with_headers(url, headers) if headers else url)


@asynccontextmanager
async def _with_headers(url: str, headers: Mapping[str, str]) -> AsyncGenerator[Any]:
    """Open a transport whose requests have headers."""
    http: Any = import_module("httpx2")  # the SDK needs it
    client: Any = import_module("mcp.client.streamable_http")
    timeout = http.Timeout(_SECONDS, read=_SECONDS_OF_READ)
    async with (
        http.AsyncClient(headers=dict(headers), timeout=timeout) as requests,
        client.streamable_http_client(url, http_client=requests) as streams,
    ):
        yield streams
