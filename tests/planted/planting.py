"""A planted fault: a small edit of the source, by its text, that takes away the line which keeps a promise."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Fault(NamedTuple):
    """One edit, and the tests that must notice it.

    Attributes:
        name: of the fault; unique.
        promise: the promise that it breaks, and how.
        file: from the repository's root.
        within: the function, class or method that the text stands in ("Class.method"); "" for the whole file. Texts
            that stand in several functions are told apart by it, and it moves along when the function does.
        before: what stands there, exactly once. May span lines; keep it short.
        after: what is put in its place.
        tests: ids of tests as pytest takes them. Each must fail when the fault is there (of a test that has
            parameters: with one of them).
    """

    name: str
    promise: str
    file: str
    within: str
    before: str
    after: str
    tests: tuple[str, ...]


class FaultNotFound(Exception):
    """The text of a fault does not stand exactly once where it is said to: the list has to follow the source."""


def planted(source: str, fault: Fault) -> str:
    """The source of the fault's file, with the fault in it.

    Raises:
        FaultNotFound
    """
    start, end = _span(source, fault)
    found = source.count(fault.before, start, end)
    if found != 1:
        where = f"{fault.file}: {fault.within}" if fault.within else fault.file
        raise FaultNotFound(f"fault {fault.name!r}: its text is found {found} times in {where}:\n{fault.before}")
    at = source.index(fault.before, start, end)
    return source[:at] + fault.after + source[at + len(fault.before) :]


def _span(source: str, fault: Fault) -> tuple[int, int]:
    """From where to where in the source the fault's function stands."""
    if not fault.within:
        return 0, len(source)
    node: ast.AST = ast.parse(source)
    for name in fault.within.split("."):
        found = [
            each
            for each in ast.iter_child_nodes(node)
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and each.name == name
        ]
        if not found:
            raise FaultNotFound(f"fault {fault.name!r}: there is no {fault.within} in {fault.file}")
        node = found[-1]  # behind its overloads
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.end_lineno is not None
    lines = source.splitlines(keepends=True)
    return sum(map(len, lines[: node.lineno - 1])), sum(map(len, lines[: node.end_lineno]))
