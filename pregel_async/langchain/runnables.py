"""Graphs as runnables of langchain-core: steps of chains, tools, and members of whatever composes runnables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from typing import Any, Final

from .._api.compiled import Graph

__all__ = ["GraphRunnable"]

# Imported by name, and so untyped: type-checking this package must not require langchain-core.
Runnable: Final[Any] = import_module("langchain_core.runnables").Runnable


class GraphRunnable(Runnable):  # type: ignore[misc]  # a class without types, see above
    """A `Runnable` that runs a graph. `graph.as_runnable()` makes one.

    Its methods are those of langchain-core's `Runnable`, and take the options of the graph's methods as keywords.

    Attributes:
        graph: the graph.
    """

    def __init__(self, graph: Graph[Any, Any]) -> None:
        self.graph = graph
        self.name = graph.get_name()

    @property
    def InputType(self) -> Any:  # noqa: N802  # langchain-core's name
        return self.graph.InputType

    @property
    def OutputType(self) -> Any:  # noqa: N802  # langchain-core's name
        return self.graph.OutputType

    def get_input_schema(self, config: Any = None) -> Any:
        return self.graph.get_input_schema(config)

    def get_output_schema(self, config: Any = None) -> Any:
        return self.graph.get_output_schema(config)

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return self.graph.invoke(input, config, **kwargs)

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return await self.graph.ainvoke(input, config, **kwargs)

    def stream(self, input: Any, config: Any = None, **kwargs: Any) -> Iterator[Any]:
        with self.graph.stream(input, config, **kwargs) as chunks:
            yield from chunks

    async def astream(self, input: Any, config: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
        async with self.graph.astream(input, config, **kwargs) as chunks:
            async for chunk in chunks:
                yield chunk

    def __repr__(self) -> str:
        return f"GraphRunnable({self.graph!r})"


Runnable.register(Graph)
