"""LangGraph, with its own savers."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from langgraph.graph import END, START, StateGraph  # pyright: ignore[reportMissingImports]  # in nox's bench session
from langgraph.types import Send  # pyright: ignore[reportMissingImports]  # in nox's bench session

from ..workloads import answered, postgres, search
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

    def react_agent(self, turns: int, saver: Any) -> Any:
        # Imported by name, and the class made by a call: type checkers see neither library.
        prebuilt: Any = import_module("langgraph.prebuilt")
        return prebuilt.create_react_agent(_scripted_model(turns), [search], checkpointer=saver)


def _scripted_model(turns: int) -> Any:
    """Return a chat model of langchain-core that answers from the script, on the event loop."""
    models: Any = import_module("langchain_core.language_models")
    messages: Any = import_module("langchain_core.messages")
    outputs: Any = import_module("langchain_core.outputs")

    def generate(self: Any, conversation: Any, *given: Any, **options: Any) -> Any:
        said = answered(len(conversation), turns)
        message = messages.AIMessage(said["content"], id=said["id"], tool_calls=said.get("tool_calls", []))
        return outputs.ChatResult(generations=[outputs.ChatGeneration(message=message)])

    async def generate_async(self: Any, conversation: Any, *given: Any, **options: Any) -> Any:
        return generate(self, conversation)

    def bind_tools(self: Any, tools: Any, **options: Any) -> Any:
        return self

    methods: dict[str, Any] = {
        "_llm_type": property(lambda self: "scripted"),
        "_generate": generate,
        "_agenerate": generate_async,
        "bind_tools": bind_tools,
    }
    return type("Scripted", (models.BaseChatModel,), methods)()
