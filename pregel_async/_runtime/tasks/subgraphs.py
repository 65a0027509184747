"""Which graphs a function runs, as far as its code shows: those that it can reach by name."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any, TypeVar

T = TypeVar("T")

DEPTH = 8
"""How many functions deep to look."""


def reachable(call: Any, kind: type[T]) -> Iterator[T]:
    """The objects of a class that a function names: in its closure, its globals, defaults and attribute paths, and in
    the functions that it names. Each once, in the order in which the code names them."""
    found: set[int] = set()
    inmost = call
    while isinstance(inmost, functools.partial):  # whose own module is functools
        inmost = inmost.func
    for each in _walk(call, kind, set(), DEPTH, getattr(inmost, "__module__", "")):
        if id(each) not in found:
            found.add(id(each))
            yield each


def _walk(at: Any, kind: type[T], seen: set[int], depth: int, module: str) -> Iterator[T]:
    if isinstance(at, kind):
        yield at
        return
    if depth == 0 or id(at) in seen:
        return
    seen.add(id(at))
    if isinstance(at, (list, tuple)):
        for inner in at:
            yield from _walk(inner, kind, seen, depth - 1, module)
    elif isinstance(at, functools.partial):
        for inner in (at.func, *at.args, *at.keywords.values()):
            yield from _walk(inner, kind, seen, depth - 1, module)
    elif isinstance(at, types.MethodType):
        yield from _walk(at.__func__, kind, seen, depth - 1, module)
        yield from _attributes(at.__self__, at.__func__, kind)
    elif isinstance(at, types.FunctionType):
        if depth < DEPTH and at.__module__ != module:
            return  # a library's: what it names is its own affair
        for value in _named_by(at):
            yield from _walk(value, kind, seen, depth - 1, module)
    elif callable(getattr(at, "func", None)):  # a task, and what else wraps a function
        yield from _walk(at.func, kind, seen, depth - 1, module)
    elif (
        callable(at)
        and not isinstance(at, type)
        and isinstance(call := type(at).__dict__.get("__call__"), types.FunctionType)
    ):
        yield from _walk(types.MethodType(call, at), kind, seen, depth - 1, module)


def _named_by(function: types.FunctionType) -> Iterator[Any]:
    """What the code of a function names, and what the names lead to."""
    code, names = function.__code__, function.__code__.co_names
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        yield from _path(value, names)
    for inner in (code, *(const for const in code.co_consts if isinstance(const, types.CodeType))):
        for name in inner.co_names:
            if name in function.__globals__:
                yield from _path(function.__globals__[name], inner.co_names)
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def _path(value: Any, names: tuple[str, ...]) -> Iterator[Any]:
    """A value, and what is stored in it under the attributes that the code names."""
    yield value
    inside = getattr(value, "__dict__", None)
    if isinstance(inside, dict) and not callable(value):
        for name in names:
            if name in inside:
                yield inside[name]


def _attributes(owner: Any, function: Any, kind: type[T]) -> Iterator[T]:
    inside = getattr(owner, "__dict__", {})
    for name in function.__code__.co_names:
        if isinstance(inside.get(name), kind):
            yield inside[name]
