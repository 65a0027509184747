"""Tools of MCP servers, with the extra `[mcp]`: `async with mcp_tools({"files": {"command": "serve"}}) as tools`."""

from __future__ import annotations

from ..errors import McpToolError
from .servers import HttpServer, McpServer, StdioServer
from .tools import McpServerError, mcp_tools

__all__ = ["HttpServer", "McpServer", "McpServerError", "McpToolError", "StdioServer", "mcp_tools"]
