"""Find the graphs that a function runs, by the names that its code uses.

LangGraph finds subgraphs in the same way, so programs written for it declare none. Observing runs instead would not do:
a process that only reads a thread has run no node, and needs the subgraphs to show the states that they stored.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any, TypeVar

from .fingerprints import cell_content

T = TypeVar("T")


def reachable(call: Any, kind: type[T]) -> Iterator[T]:
    """Yield the objects of a class that a function names, each once, in the order in which the code names them.

    The search covers the function's closure, globals, defaults and attribute paths, and the functions that it names.

    Args:
        call: the function.
        kind: the class.
    """
    # Functions of other modules are not searched: through a library, half of Python may be reachable.
    inmost = call
    while isinstance(inmost, functools.partial):  # a partial's own module is functools
        inmost = inmost.func
    module = getattr(inmost, "__module__", "")
    todo: list[Any] = [call]
    seen: dict[int, Any] = {}  # by id; the reference keeps the id from being reused
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, kind):
            yield value
        else:
            todo += reversed([*_named_by(value, module)])


def _named_by(value: Any, module: str) -> Iterator[Any]:
    match value:
        case list() | tuple():
            yield from value
        case functools.partial():
            yield from (value.func, *value.args, *value.keywords.values())
        case types.MethodType(__func__=types.FunctionType() as function):
            yield function
            yield from _attributes(value.__self__, function.__code__.co_names)
        case types.FunctionType():
            if value.__module__ == module:
                yield from _named_by_code(value)
        case type():
            return
        case _ if callable(getattr(value, "func", None)):  # a task, or another wrapper of a function
            yield value.func
        case _ if isinstance(call := type(value).__dict__.get("__call__"), types.FunctionType):
            yield types.MethodType(call, value)
        case _:
            return


def _named_by_code(function: types.FunctionType) -> Iterator[Any]:
    code, names = function.__code__, function.__code__.co_names
    for cell in function.__closure__ or ():
        yield from _path(cell_content(cell), names)
    for inner in (code, *(const for const in code.co_consts if isinstance(const, types.CodeType))):
        for name in inner.co_names:
            if name in function.__globals__:
                yield from _path(function.__globals__[name], inner.co_names)
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def _path(value: Any, names: tuple[str, ...]) -> Iterator[Any]:
    yield value
    if not callable(value):  # such as a module, or an object that holds graphs
        yield from _attributes(value, names)


def _attributes(owner: Any, names: tuple[str, ...]) -> Iterator[Any]:
    """Yield the values that an object stores under the given attribute names."""
    # From `__dict__`, and not with `getattr`: a property may run any code.
    attributes = getattr(owner, "__dict__", None)
    if isinstance(attributes, dict):
        yield from (attributes[name] for name in names if name in attributes)
