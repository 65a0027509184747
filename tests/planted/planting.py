"""A planted fault: a small edit of a symbol's code that removes the line that keeps a promise."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pregel_async", "checkpoint_savers")
_LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
    tokenize.ENDMARKER,
}


class Fault(NamedTuple):
    """One edit, and the tests that must notice it.

    Attributes:
        name: of the fault; unique.
        promise: the promise that it breaks, and how.
        symbol: the function, class, method or module that is edited: as much of the end of its dotted name as names no
            other ("Worker.run", "lease.acquire"). So a fault follows its code to another file.
        before: the code that is replaced, which the symbol contains exactly once. Code is compared token by token, so
            that layout does not count; a piece of a string is compared as text.
        after: the code in its place.
        tests: ids of tests as pytest takes them. Each must fail when the fault is there (of a test that has
            parameters: with one of them).
    """

    name: str
    promise: str
    symbol: str
    before: str
    after: str
    tests: tuple[str, ...]


class FaultNotFound(Exception):
    """A fault names no symbol, or several, or code that its symbol does not contain exactly once."""


class Location(NamedTuple):
    """Where a symbol is: a file from the root of the repository, and its lines, from 1."""

    file: str
    first: int
    last: int


def place_of(fault: Fault) -> Location:
    """Return the location of the fault's symbol.

    Raises:
        FaultNotFound: it is not there, or its name is ambiguous.
    """
    found = [name for name in symbols() if f".{name}".endswith(f".{fault.symbol}")]
    if len(found) != 1:
        raise FaultNotFound(f"fault {fault.name!r}: {fault.symbol} names {found or 'nothing'}")
    return symbols()[found[0]]


def planted(source: str, fault: Fault, first: int, last: int) -> str:
    """Return the source of a file with the fault in it.

    Args:
        first, last: the lines of the symbol.

    Raises:
        FaultNotFound: the code is not there exactly once.
    """
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    code = [token for token in _tokens(source) if first <= token.start[0] <= last]
    wanted = [token.string for token in _tokens(fault.before.strip())]
    size = len(wanted)
    found = [
        (
            starts[code[at].start[0] - 1] + code[at].start[1],
            starts[code[at + size - 1].end[0] - 1] + code[at + size - 1].end[1],
        )
        for at in range(len(code) - size + 1)
        if [token.string for token in code[at : at + size]] == wanted
    ]
    if not found:  # in a string
        at = source.find(fault.before, starts[first - 1], starts[last])
        while at >= 0:
            found.append((at, at + len(fault.before)))
            at = source.find(fault.before, at + 1, starts[last])
    if len(found) != 1:
        raise FaultNotFound(
            f"fault {fault.name!r}: {fault.symbol} contains its code {len(found)} times:\n{fault.before}"
        )
    start, end = found[0]
    return source[:start] + fault.after + source[end:]


@cache
def symbols() -> dict[str, Location]:
    """Return the modules, classes and functions of the packages, by dotted name. Of overloads, the last one counts."""
    found: dict[str, Location] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            source = path.read_text(encoding="utf-8")
            file = path.relative_to(ROOT).as_posix()
            found[module] = Location(file, 1, len(source.splitlines()))
            found.update(
                {name: Location(file, first, last) for name, first, last in _defined(ast.parse(source), module)}
            )
    return found


def _defined(node: ast.AST, around: str) -> Iterator[tuple[str, int, int]]:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            assert inner.end_lineno is not None
            yield f"{around}.{inner.name}", inner.lineno, inner.end_lineno
            yield from _defined(inner, f"{around}.{inner.name}")
        else:
            yield from _defined(inner, around)


@cache  # many faults are in one file
def _tokens(code: str) -> list[tokenize.TokenInfo]:
    """Return the tokens of code, which may be part of a statement."""
    found: list[tokenize.TokenInfo] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type not in _LAYOUT:
                found.append(token)
    except (tokenize.TokenError, IndentationError):  # a piece ends within brackets
        pass
    return found
