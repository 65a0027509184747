"""Functions that a worker process finds by their names: under its own name, a decorated one is what it was made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

Name = tuple[str, str]
"""A module, and a qualified name in it."""


def elsewhere(run: Callable[[Name, Any], Any], call: Callable[..., Any]) -> Callable[[Any], Any]:
    """What does the same as `run` with the function, and can be pickled: it holds the function's name."""
    return partial(run, (call.__module__, call.__qualname__))


def with_one(name: Name, value: Any) -> Any:
    """Call the function with one argument."""
    return _found(name)(value)


def with_several(name: Name, given: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """Call the function with the arguments of a call."""
    args, kwargs = given
    return _found(name)(*args, **kwargs)


def _found(name: Name) -> Callable[..., Any]:
    module, path = name
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    made: Callable[..., Any] = getattr(found, "func", found)  # what a decorator has made of it keeps it there
    return made
