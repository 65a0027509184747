"""pregel-async on the cell's event loop. Savers are imported on use, as a program would do."""

from __future__ import annotations

from typing import Any

from pregel_async import END, START, Send, StateGraph

from ..workloads import answered, postgres, search
from .state_graph import StateGraphDriver


class Driver(StateGraphDriver):
    graph, start, end, send = StateGraph, START, END, Send

    def memory(self) -> Any:
        from checkpoint_savers import InMemorySaver

        return InMemorySaver()

    async def sqlite(self, path: str) -> Any:
        from checkpoint_savers import SqliteSaver

        return await self.stack.enter_async_context(SqliteSaver.from_conn_string(path))

    async def postgres(self) -> Any:
        from checkpoint_savers import PostgresSaver

        url, schema = postgres(self.stack)
        saver = PostgresSaver.from_conn_string(url, schema=schema, setup=True)
        return await self.stack.enter_async_context(saver)

    def react_agent(self, turns: int, saver: Any) -> Any:
        from pregel_async.prebuilt import create_react_agent

        async def model(messages: list[Any], tools: list[Any]) -> dict[str, Any]:
            return answered(len(messages), turns)

        return create_react_agent(model, [search], checkpointer=saver)
