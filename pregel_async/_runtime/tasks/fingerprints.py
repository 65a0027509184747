"""What a node's function is known by, so that a kept result of one is never taken for another's.

A function at the top of a module is known by its name. That does not tell apart what is made at run time: closures,
lambdas, partials, methods of different objects, graphs. Those are known by their code and by what they hold: values by
their canonical form, objects that have none by their class and by what their attributes hold, and what these have in
them by its class alone. So a client within an object is no reason to find nothing again in another process.

A name that the user declares would be simpler, and is not asked for: LangGraph knows a closure by its name alone, so
that programs written for it declare none, and graphs that are built anew for each request find what earlier ones kept.
By name alone two closures of one function would get each other's results.
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
"""A value's canonical form. Raises `UnstorableValueError`."""


def function_fingerprint(call: Callable[..., Any], canonical: Canonical) -> bytes:
    """Equal for functions that give equal results for equal inputs, as far as can be seen; the same in any process."""
    return blake2b(_Fingerprinter(canonical).fingerprint(call), digest_size=20).digest()


class _Fingerprinter:
    """Tells what a function holds, each object once."""

    def __init__(self, canonical: Canonical) -> None:
        self._canonical = canonical
        self._seen: dict[int, tuple[int, object]] = {}  # by id, in order; and kept, so that no other gets the id

    def fingerprint(self, value: Any, *, in_attribute: bool = False) -> bytes:
        """
        Args:
            in_attribute: it is in an attribute of an object: if it is one itself, its class is enough.
        """
        if not callable(value):
            try:
                return self._canonical(value)
            except UnstorableValueError:
                pass
        seen = self._seen.setdefault(id(value), (len(self._seen), value))
        if seen[0] < len(self._seen) - 1:
            return b"again %d" % seen[0]
        program = getattr(getattr(value, "_definition", None), "program", None)
        if isinstance(program, Program):  # a graph
            return self._graph(program)
        match value:
            case FunctionType():
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
    """What a closure's cell holds; None if nothing is bound to its name yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _code(code: CodeType) -> bytes:
    consts = [_code(const) if isinstance(const, CodeType) else _const(const) for const in code.co_consts]
    return _joined([code.co_code, " ".join(code.co_names).encode("utf-8", "surrogatepass"), *consts])


def _const(const: object) -> bytes:
    return repr(sorted(map(repr, const)) if isinstance(const, frozenset) else const).encode("utf-8", "surrogatepass")


def _name(named: Any) -> bytes:
    module = getattr(named, "__module__", None)
    return f"{module}.{getattr(named, '__qualname__', type(named).__qualname__)}".encode("utf-8", "surrogatepass")


def _joined(parts: list[bytes]) -> bytes:
    """As one, so that no other parts give the same."""
    return b"".join([b"%d:" % len(part) + part for part in parts])
