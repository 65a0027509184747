"""Registry of the modules outside the kernel that the kernel calls. `pregel_async/__init__.py` registers them by name.

The kernel does not import these modules itself, so that it can be tested and changed without them. A module is imported
at its first use: a program that draws nothing loads no renderer.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["renderers", "model tokens", "message types", "tracing", "runnables"]
"""The role of a plugin: a package of renderers that draw graphs; a module that streams the tokens of langchain-core's
models; a module that stores langchain-core's messages; a module that shows runs to langchain-core's callbacks; and one
that makes runnables of graphs."""

RUNNABLES = "langchain_core.runnables"
"""Without this module in the process, nothing can see a run by callbacks, or use a graph as a runnable."""

_registered: dict[Role, str] = {}


def register(role: Role, module: str) -> None:
    """Register the module of a role without importing it."""
    _registered[role] = module


@cache
def plugin(role: Role, part: str = "") -> ModuleType:
    """Import and return the module that is registered for a role.

    Args:
        role: the role.
        part: the name of a module in it, if a package is registered.
    """
    name = _registered[role]
    return import_module(f"{name}.{part}" if part else name)
