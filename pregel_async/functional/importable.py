"""Functions that a worker process finds by their names: under its own name, a decorated one is what it was made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

FunctionName = tuple[str, str]
"""A module, and a qualified name in it."""


def picklable_call(run: Callable[[FunctionName, Any], Any], call: Callable[..., Any]) -> Callable[[Any], Any]:
    """What does the same as `run` with the function, and can be pickled: it holds the function's name."""
    return partial(run, (call.__module__, call.__qualname__))


def call_with_input(name: FunctionName, value: Any) -> Any:
    """Call the function with one argument."""
    return _find_function(name)(value)


def call_with_arguments(name: FunctionName, given: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """Call the function with the arguments of a call."""
    args, kwargs = given
    return _find_function(name)(*args, **kwargs)


def _find_function(name: FunctionName) -> Callable[..., Any]:
    module, path = name
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    made: Callable[..., Any] = getattr(found, "func", found)  # what a decorator has made of it keeps it there
    return made
