"""Check the declared rules for what other versions of a graph's code have stored, and add them to its program.

`compile` loads this module only for graphs that declare such rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from msgspec import structs

from .._checks.options import CompileOptions
from .._core.program import Program, Upgrades
from ..errors import GraphValidationError
from .specs import GraphSpec


def with_upgrades(program: Program, builder: GraphSpec, options: CompileOptions) -> Program:
    """Return the program with the rules that a builder and the options of `compile` declare.

    Raises:
        GraphValidationError: a rule is invalid, or contradicts the graph or another rule.
    """
    return structs.replace(program, upgrades=Upgrades(removed=_removed(builder, options.get("removed"))))


def _removed(builder: GraphSpec, given: object) -> frozenset[str]:
    names = _names("removed", given)
    for name in names:
        if name in builder.channels:
            raise GraphValidationError(f"removed names {name!r}, which is a key of the graph: take the key out first")
    return frozenset(names)


def _names(what: str, given: object) -> tuple[str, ...]:
    """Return names that were given as a sequence; none for None. Raises `GraphValidationError`."""
    if given is None:
        return ()
    names = cast("tuple[object, ...]", tuple(given) if isinstance(given, Iterable) else (given,))
    if isinstance(given, str) or not all(isinstance(name, str) for name in names):
        raise GraphValidationError(f"{what} is a sequence of names, not {given!r}")
    return cast("tuple[str, ...]", names)
