"""LangGraph, with its own savers."""

from __future__ import annotations

from typing import Any

from langgraph.graph import END, START, StateGraph  # pyright: ignore[reportMissingImports]  # in nox's bench session
from langgraph.types import Send  # pyright: ignore[reportMissingImports]  # in nox's bench session

from ..workloads import postgres
from .state_graph import StateGraphDriver


class Driver(StateGraphDriver):
    graph, start, end, send = StateGraph, START, END, Send

    def memory(self) -> Any:
        from langgraph.checkpoint.memory import InMemorySaver  # pyright: ignore[reportMissingImports]  # in nox's bench session

        return InMemorySaver()

    async def sqlite(self, path: str) -> Any:
        from langgraph.checkpoint.sqlite.aio import (  # pyright: ignore[reportMissingImports]  # in nox's bench session
            AsyncSqliteSaver,
        )

        saver = await self.stack.enter_async_context(AsyncSqliteSaver.from_conn_string(path))
        await saver.conn.execute("PRAGMA synchronous=FULL")
        return saver

    async def postgres(self) -> Any:
        from langgraph.checkpoint.postgres.aio import (  # pyright: ignore[reportMissingImports]  # in nox's bench session
            AsyncPostgresSaver,
        )
        from psycopg.rows import dict_row
        from psycopg_pool import AsyncConnectionPool

        url, schema = postgres(self.stack)
        options = {"autocommit": True, "row_factory": dict_row, "options": f"-c search_path={schema}"}
        pool: Any = AsyncConnectionPool(url, min_size=4, max_size=16, kwargs=options, open=False)
        saver = AsyncPostgresSaver(await self.stack.enter_async_context(pool))
        await saver.setup()
        return saver
