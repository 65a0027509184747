"""Modules outside of the kernel that the kernel calls. `pregel_async/__init__.py` registers them by name.

The kernel imports none of them, so that it can be read, tested and changed without them. Each is imported when it is
first used: a program that draws nothing loads no renderer.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["renderers", "model tokens", "message types"]
"""What a plugin does: draw graphs (a package of renderers), stream the tokens of langchain-core's models, or store
langchain-core's messages."""

_registered: dict[Role, str] = {}


def register(role: Role, module: str) -> None:
    """Name the module of a role. It is not imported yet."""
    _registered[role] = module


@cache
def plugin(role: Role, part: str = "") -> ModuleType:
    """Return the module that is registered for a role.

    Args:
        part: the module in it, if a package is registered.
    """
    name = _registered[role]
    return import_module(f"{name}.{part}" if part else name)
