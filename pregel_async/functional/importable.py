"""Calls of functions in worker processes, which import the function by its name.

The function itself cannot be pickled: pickle refers to it by name, and finds the object that the decorator has put in
its place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

FunctionName = tuple[str, str]
"""The name of a module, and a qualified name in it."""


def picklable_call(run: Callable[[FunctionName, Any], Any], call: Callable[..., Any]) -> Callable[[Any], Any]:
    """Make a picklable function of one argument that calls a function by its name.

    Args:
        run: `call_with_input` or `call_with_arguments`.
        call: the function, which must be importable.

    Returns:
        A partial of `run` with the name of the function.
    """
    return partial(run, (call.__module__, call.__qualname__))


def call_with_input(name: FunctionName, value: Any) -> Any:
    """Call a function with one argument.

    Args:
        name: the function's name.
        value: the argument.

    Returns:
        What the function returns.
    """
    return _find_function(name)(value)


def call_with_arguments(name: FunctionName, given: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """Call a function with several arguments.

    Args:
        name: the function's name.
        given: the positional arguments and the keyword arguments.

    Returns:
        What the function returns.
    """
    args, kwargs = given
    return _find_function(name)(*args, **kwargs)


def _find_function(name: FunctionName) -> Callable[..., Any]:
    module, path = name
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    # The decorators `task` and `entrypoint` keep the original function as `func`.
    made: Callable[..., Any] = getattr(found, "func", found)
    return made
