"""Fingerprints of node functions, so that a cached result of one function is never used for another.

A name identifies a function at the top of a module, but not objects made at run time: closures, lambdas, partials,
methods of different objects, graphs. Their code and the values that they hold identify those. A value contributes its
canonical form. An object without one contributes its class and its attributes, and objects in these attributes only
their class. So a client inside an object does not prevent another process from finding the cached result.

A name declared by the user would be simpler, but is not required. LangGraph identifies a closure by its name alone, so
programs written for it declare none, and their graphs, built anew for each request, must find the results of earlier
ones. By name alone, two closures of one function would get each other's results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from hashlib import blake2b
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

from checkpoint_savers.errors import UnstorableValueError

from ..._core.program import Program

Canonical = Callable[[object], bytes]
"""Returns the canonical form of a value, or raises `UnstorableValueError`."""


def function_fingerprint(call: Callable[..., Any], canonical: Canonical) -> bytes:
    """Return a digest that is equal for functions with equal code and held values, in any process.

    Args:
        call: the function.
        canonical: returns the canonical form of a value.
    """
    return blake2b(_Fingerprinter(canonical).fingerprint(call), digest_size=20).digest()


class _Fingerprinter:
    """Makes the fingerprint of one function. Visits each object once, so that cycles end."""

    def __init__(self, canonical: Canonical) -> None:
        self._canonical = canonical
        self._seen: dict[int, tuple[int, object]] = {}  # by id, numbered; the reference keeps the id

    def fingerprint(self, value: Any, *, in_attribute: bool = False) -> bytes:
        """Return the bytes that identify a value.

        Args:
            value: the value.
            in_attribute: True for values in attributes of an object. Of an object there, only the class counts.
        """
        if not callable(value):
            try:
                return self._canonical(value)
            except UnstorableValueError:
                pass
        # A number in visiting order, and not the id, stands for an object seen before: ids differ between processes.
        seen = self._seen.setdefault(id(value), (len(self._seen), value))
        if seen[0] < len(self._seen) - 1:
            return b"again %d" % seen[0]
        program = getattr(getattr(value, "_definition", None), "program", None)
        if isinstance(program, Program):  # a graph
            return self._graph(program)
        match value:
            case FunctionType():
                # "<" as in "<locals>" and "<lambda>". Otherwise the name identifies the function, and a change of its
                # code keeps the cached results.
                made = _code(value.__code__) if "<" in value.__qualname__ else b""
                held = [cell_content(cell) for cell in value.__closure__ or ()]
                return _joined([_name(value), made, self._each([*held, value.__defaults__, value.__kwdefaults__])])
            case MethodType():
                return self._each((value.__func__, value.__self__), in_attribute=in_attribute)
            case partial():
                return self._each((value.func, value.args, value.keywords), in_attribute=in_attribute)
            case type() | BuiltinFunctionType():
                return _name(value)
            case dict():
                # Sorted: equal dicts may differ in their order.
                items = sorted(value.items(), key=lambda item: str(item[0]))
                return self._each([part for item in items for part in item], in_attribute=in_attribute)
            case list() | tuple():
                return self._each(value, in_attribute=in_attribute)
            case _:
                attributes = {} if in_attribute else getattr(value, "__dict__", {})
                return _joined([_name(type(value)), self.fingerprint(attributes, in_attribute=True)])

    def _graph(self, program: Program) -> bytes:
        nodes = ([name, node.call, repr((node.triggers, node.edges))] for name, node in program.nodes.items())
        return self._each([program.name, *nodes])

    def _each(self, values: Iterable[object], *, in_attribute: bool = False) -> bytes:
        return _joined([self.fingerprint(one, in_attribute=in_attribute) for one in values])


def cell_content(cell: Any) -> object:
    """Return the value in a closure's cell, or None if its name is not bound yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _code(code: CodeType) -> bytes:
    consts = [_code(const) if isinstance(const, CodeType) else _const(const) for const in code.co_consts]
    return _joined([code.co_code, " ".join(code.co_names).encode("utf-8", "surrogatepass"), *consts])


def _const(const: object) -> bytes:
    # A frozenset's repr follows its hash order, which for strings differs from process to process.
    return repr(sorted(map(repr, const)) if isinstance(const, frozenset) else const).encode("utf-8", "surrogatepass")


def _name(named: Any) -> bytes:
    module = getattr(named, "__module__", None)
    return f"{module}.{getattr(named, '__qualname__', type(named).__qualname__)}".encode("utf-8", "surrogatepass")


def _joined(parts: list[bytes]) -> bytes:
    """Join parts with their lengths, so that different parts never give the same bytes."""
    return b"".join([b"%d:" % len(part) + part for part in parts])
