"""The engines, by their names in the table.

Each is a class with a method per workload that it supports. A method is async, gets the row's parameters and returns a
`Case`; a workload without a method leaves its cell empty.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import Any

OURS, UVLOOP, TRIO = "asyncio", "uvloop", "trio"
PEER, PYDANTIC, MICROSOFT, LIMIT = "langgraph", "pydantic-graph", "agent-framework", "limit"


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How to load and name an engine.

    Attributes:
        name: what it is called on the command line; ours have the name of their event loop.
        title: its column.
        module: the module in this package that drives it.
        packages: the distributions that it is made of.
        imports: how a program that uses it begins.
        backend: anyio's name of the event loop.
        options: anyio's options of the event loop.
    """

    name: str
    title: str
    module: str
    packages: tuple[str, ...]
    imports: str
    backend: str = "asyncio"
    options: tuple[tuple[str, Any], ...] = ()

    def load(self) -> Callable[[AsyncExitStack], Any]:
        """Return the engine's class after importing its library; it closes its resources with the stack."""
        found: Callable[[AsyncExitStack], Any] = import_module(f".{self.module}", __name__).Driver
        return found


ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            name=OURS,
            title="pregel-async",
            module="ours",
            packages=("pregel-async", "anyio", "msgspec"),
            imports="from pregel_async import StateGraph",
        ),
        Engine(
            name=UVLOOP,
            title="on uvloop",
            module="ours",
            packages=("uvloop",),
            imports="import uvloop; from pregel_async import StateGraph",
            options=(("use_uvloop", True),),
        ),
        Engine(
            name=TRIO,
            title="on trio",
            module="ours",
            packages=("trio",),
            imports="import trio; from pregel_async import StateGraph",
            backend="trio",
        ),
        Engine(
            name=PEER,
            title="LangGraph",
            module="langgraph_peer",
            packages=("langgraph", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres"),
            imports="from langgraph.graph import StateGraph",
        ),
        Engine(
            name=PYDANTIC,
            title="pydantic-graph",
            module="pydantic_peer",
            packages=("pydantic-graph",),
            imports="from pydantic_graph import GraphBuilder",
        ),
        Engine(
            name=MICROSOFT,
            title="Agent Framework",
            module="microsoft_peer",
            packages=("agent-framework-core",),
            imports="from agent_framework import WorkflowBuilder",
        ),
        Engine(name=LIMIT, title="limit", module="limit", packages=(), imports="import anyio, msgspec"),
    )
}
