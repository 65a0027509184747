"""Find the graphs that a function runs, by the names that its code uses.

LangGraph finds subgraphs in the same way, so programs written for it declare none. Observing runs instead would not do:
a process that only reads a thread has run no node, and needs the subgraphs to show the states that they stored.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any, Final, TypeAlias, TypeVar

from .fingerprints import cell_content

T = TypeVar("T")

AttributeNames: TypeAlias = tuple[str, ...]
"""The attributes that the code around a value names: only these are read from the value, on its path to a graph."""


def reachable(call: Any, kind: type[T]) -> Iterator[T]:
    """Yield the objects of a class that a function names, each once, in the order in which the code names them.

    The search covers the function's closure, globals, defaults and attribute paths, those of functions that are defined
    in it, the function that it wraps, and the functions that it names.

    Args:
        call: the function.
        kind: the class.
    """
    # Functions of other modules are not searched: through a library, half of Python may be reachable.
    module = _module_of(call)
    todo: list[tuple[Any, AttributeNames]] = [(call, ())]
    found: dict[int, T] = {}  # by id; the reference keeps the id from being reused
    # With the names: another function may name other attributes of an object.
    seen: dict[tuple[int, AttributeNames], Any] = {}
    while todo:
        value, names = todo.pop()
        if isinstance(value, kind):
            if id(value) not in found:
                found[id(value)] = value
                yield value
        elif (id(value), names) not in seen and type(value) not in _LEAVES:
            seen[id(value), names] = value
            todo += reversed([*_named_by(value, module), *_attributes(value, names)])


_LEAVES: Final = frozenset((str, int, float, bool, bytes, type(None)))
"""Types that are skipped: they lead to nothing, and code names many of them."""


def _module_of(call: Any) -> str:
    """Return the module of the innermost function: a partial's own is functools, a wrapper's may be a library."""
    seen: set[int] = set()
    while id(call) not in seen:
        seen.add(id(call))
        inner: Any = call
        call = inner.func if isinstance(inner, functools.partial) else _own(inner, "__wrapped__", inner)
    return getattr(call, "__module__", "")


def _named_by(value: Any, module: str) -> Iterator[tuple[Any, AttributeNames]]:
    """Yield what a value leads to by itself, whatever the code around it names."""
    match value:
        case list() | tuple():
            yield from ((each, ()) for each in value)
        case functools.partial():
            yield from ((each, ()) for each in (value.func, *value.args, *value.keywords.values()))
        case types.MethodType(__func__=types.FunctionType() as function):
            yield function, ()
            yield value.__self__, _names_in(function.__code__)
        case types.FunctionType():
            if value.__module__ == module:
                yield from _named_by_code(value)
        case staticmethod() | classmethod():
            yield value.__func__, ()
        case type():
            return
        case _ if callable(getattr(value, "func", None)):  # a task, or another wrapper of a function
            yield value.func, ()
        case _ if isinstance(call := type(value).__dict__.get("__call__"), types.FunctionType):
            yield types.MethodType(call, value), ()
        case _:
            pass
    wrapped = _own(value, "__wrapped__", None)
    if wrapped is not None:  # decorators of the standard library and of libraries, whose own code is not searched
        yield wrapped, ()


def _named_by_code(function: types.FunctionType) -> Iterator[tuple[Any, AttributeNames]]:
    names = _names_in(function.__code__)
    # Cells hold the variables of enclosing functions that this function, or a function defined in it, uses.
    yield from ((cell_content(cell), names) for cell in function.__closure__ or ())
    yield from ((function.__globals__[name], names) for name in names if name in function.__globals__)
    yield from ((each, names) for each in function.__defaults__ or ())
    yield from ((each, names) for each in (function.__kwdefaults__ or {}).values())


@functools.lru_cache(maxsize=1024)
def _names_in(code: types.CodeType) -> AttributeNames:
    """Return the globals and attributes that code names, and those of the functions defined in it, each once."""
    inner = [name for const in code.co_consts if isinstance(const, types.CodeType) for name in _names_in(const)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))


def _attributes(owner: Any, names: AttributeNames) -> Iterator[tuple[Any, AttributeNames]]:
    """Yield the values of an object's attributes with the given names. Their own attributes are searched as well."""
    # Not the exact path of the bytecode: `holder = self.holder` followed by `holder.graph` has to be found too.
    if names and not isinstance(owner, (types.FunctionType, types.MethodType)):
        for name in names:
            value = _own(owner, name, None)
            if value is None and not isinstance(owner, types.ModuleType):
                value = _inherited(owner, name)
            if value is not None:
                yield value, names


def _own(owner: Any, name: str, default: Any) -> Any:
    """Return the value that an object stores under a name."""
    # From `__dict__`, and not with `getattr`: a property may run any code.
    attributes = getattr(owner, "__dict__", None)
    return attributes.get(name, default) if isinstance(attributes, (dict, types.MappingProxyType)) else default


def _inherited(owner: Any, name: str) -> Any:
    """Return the value that an object's class stores under a name: a class attribute, a slot, or a property's code."""
    for base in owner.__mro__ if isinstance(owner, type) else type(owner).__mro__:
        if name in base.__dict__:
            value: Any = base.__dict__[name]
            if isinstance(value, types.MemberDescriptorType):
                return None if isinstance(owner, type) else value.__get__(owner, type(owner))
            if isinstance(value, property) and not isinstance(owner, type):
                value = value.fget
            if isinstance(value, types.FunctionType) and not isinstance(owner, type):
                return types.MethodType(value, owner)
            return value
    return None
