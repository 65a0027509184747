"""Audit one source file: bytes in, facts out. `audit` returns a finding for a bad file, and never raises."""

from __future__ import annotations

import ast
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeAlias

from .imports import Exports, exported_names, unused_imports

Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Place:
    """A named definition or import in a file; lines count from 1."""

    line: int
    name: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function with its cyclomatic complexity: 1, and 1 more for each place where its path can fork."""

    line: int
    name: str
    complexity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAudit:
    """The facts about one file.

    Attributes:
        path: relative to the tree's root.
        lines: number of lines, blank ones and comments included.
        functions, classes: numbers of definitions, at any depth.
        worst: the most complex function; None when there is none.
        undocumented: public definitions without a docstring.
        unused: imports that nothing uses.
        problem: why the file could not be analysed; the other facts are missing then.
    """

    path: str
    lines: int = 0
    functions: int = 0
    classes: int = 0
    worst: Function | None = None
    undocumented: tuple[Place, ...] = ()
    unused: tuple[Place, ...] = ()
    problem: str | None = None


def audit(path: str, data: bytes) -> FileAudit:
    """Audit a file.

    Args:
        path: the file's name in the tree; shows whether the module is private, or a package's `__init__`.
        data: the file's content, in the encoding that it declares.
    """
    lines = data.splitlines()
    try:
        tree = _parse(data)
    except Exception as error:  # the parser may raise anything for a bad file: report it as a fact about that file
        return FileAudit(path=path, lines=len(lines), problem=_describe(error))
    functions = sorted(_functions(tree), key=lambda function: (-function.complexity, function.line, function.name))
    nodes = list(ast.walk(tree))
    exports = exported_names(nodes)
    unused = unused_imports(tree, nodes, lines, exports, package=PurePosixPath(path).name == "__init__.py")
    return FileAudit(
        path=path,
        lines=len(lines),
        functions=len(functions),
        classes=sum(isinstance(node, ast.ClassDef) for node in nodes),
        worst=functions[0] if functions else None,
        undocumented=tuple(_undocumented(tree, exports, path)),
        unused=tuple(Place(line, name) for line, name in unused),
    )


_parsing = threading.Lock()


def _parse(data: bytes) -> ast.Module:
    """Return the syntax tree of a source."""
    # Tasks parse in many threads, and warning filters belong to the whole process: without the lock, one thread would
    # restore the filters during another's parsing. The parser holds the GIL anyway, so the lock costs no time.
    with _parsing, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a bad escape in an audited file is no warning for this program's user
        return ast.parse(data)


def _describe(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        where = f"line {error.lineno}: " if error.lineno else ""
        return f"{where}{error.msg}"
    if isinstance(error, (RecursionError, MemoryError)):
        return "nested too deeply for the parser"
    return f"{error}" or type(error).__name__


_FORKS = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler)


def _functions(tree: ast.Module) -> Iterator[Function]:
    """Yield every function with its complexity. Nested functions count separately; a lambda is part of its function."""
    # A work list instead of recursion: an expression may be nested more deeply than Python's stack.
    forks: list[int] = []
    places: list[Place] = []
    todo: list[tuple[ast.AST, str, int]] = [(tree, "", -1)]
    while todo:
        node, scope, owner = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            owner = len(forks)
            forks.append(0)
            places.append(Place(node.lineno, scope + node.name))
            scope += node.name + "."
        elif isinstance(node, ast.ClassDef):
            owner, scope = -1, scope + node.name + "."
        elif owner >= 0:
            forks[owner] += _forks(node)
        for child in ast.iter_child_nodes(node):
            todo.append((child, scope, owner))  # noqa: PERF401  # a generator per node would double the time
    for place, count in zip(places, forks, strict=True):
        yield Function(place.line, place.name, 1 + count)


def _forks(node: ast.AST) -> int:
    """Return the number of additional paths that this node alone creates."""
    if isinstance(node, _FORKS):
        return 1
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    if isinstance(node, ast.match_case):
        catches_all = isinstance(node.pattern, ast.MatchAs) and node.pattern.pattern is None and node.guard is None
        return 0 if catches_all else 1
    return 0


def _undocumented(tree: ast.Module, exports: Exports | None, path: str) -> Iterator[Place]:
    """Yield public definitions without a docstring, by line. A private module has none.

    If the module has `__all__`, exactly its names are public; otherwise every name without a leading underscore is.
    """
    parts = PurePosixPath(path).with_suffix("").parts
    if any(part.startswith("_") and part not in ("__init__", "__main__") for part in parts):
        return
    if tree.body and ast.get_docstring(tree, clean=False) is None:
        yield Place(1, "the module")
    public = None if exports is None or exports.dynamic else exports.names
    documented: dict[str, bool] = {}
    lines: dict[str, int] = {}
    for name, node in _definitions(tree.body, "", public):
        # One docstring is enough for several definitions of a name, such as variants for platforms.
        documented[name] = documented.get(name, False) or ast.get_docstring(node, clean=False) is not None
        lines.setdefault(name, node.lineno)
    yield from (Place(lines[name], name) for name in sorted(lines, key=lines.__getitem__) if not documented[name])


def _definitions(
    body: Sequence[ast.stmt], scope: str, public: frozenset[str] | None
) -> Iterator[tuple[str, Definition]]:
    """Yield the public definitions of a module or class, nested classes included. Functions hide their definitions."""
    todo: list[ast.AST] = list(reversed(body))
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if node.name in public if public is not None else _is_public(node):
                yield scope + node.name, node
                if isinstance(node, ast.ClassDef):
                    yield from _definitions(node.body, f"{scope}{node.name}.", None)
        elif isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case)):  # `if sys.platform == ...`, `try`, `with`
            todo.extend(reversed(list(ast.iter_child_nodes(node))))


def _is_public(node: Definition) -> bool:
    """Return False for a leading underscore, and for decorators that leave the documentation elsewhere."""
    if node.name.startswith("_"):
        return False
    for decorator in node.decorator_list:
        last = decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")
        if last in ("overload", "override", "setter", "deleter"):
            return False
    return True
