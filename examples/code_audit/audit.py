"""What there is to say about one source file. Bytes in, facts out; nothing here raises, whatever the bytes are."""

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
    """A named thing in a file; lines count from 1."""

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
    """What was found in one file.

    Attributes:
        path: relative to the tree's root.
        lines: all of them, blank ones and comments too.
        functions, classes: how many are defined, at any depth.
        worst: the most complex function; None when there is none.
        undocumented: public things without a docstring.
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
        path: its name in the tree; it says whether the module is private, or a package's `__init__`.
        data: its content, in whatever encoding it declares.
    """
    lines = data.splitlines()
    try:
        tree = _parse(data)
    except Exception as error:  # whatever a file of somebody else makes the parser raise is a fact about that file
        return FileAudit(path=path, lines=len(lines), problem=_told(error))
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


# ---- parsing ---------------------------------------------------------------------------------------------------------

_parsing = threading.Lock()


def _parse(data: bytes) -> ast.Module:
    """The syntax tree. Tasks parse in many threads, and the parser holds the GIL anyway: so one at a time."""
    with _parsing, warnings.catch_warnings():  # whose filters are the whole process's
        warnings.simplefilter("ignore")  # a bad escape in somebody's file is not for our reader's terminal
        return ast.parse(data)


def _told(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        where = f"line {error.lineno}: " if error.lineno else ""
        return f"{where}{error.msg}"
    if isinstance(error, (RecursionError, MemoryError)):
        return "nested too deeply for the parser"
    return f"{error}" or type(error).__name__


# ---- complexity ------------------------------------------------------------------------------------------------------

_FORKS = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler)


def _functions(tree: ast.Module) -> Iterator[Function]:
    """Every function with its complexity. One inside another counts by itself; a lambda is part of its function.

    A list of what is still to do in place of recursion: an expression may be nested more deeply than Python's stack.
    """
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
    """In how many more ways the program can go on, from this node alone."""
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


# ---- docstrings ------------------------------------------------------------------------------------------------------


def _undocumented(tree: ast.Module, exports: Exports | None, path: str) -> Iterator[Place]:
    """Public things without a docstring, by line. In a private module nothing is public.

    What `__all__` lists is public, and nothing else is; without it, every name that has no leading underscore.
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
        # Of variants for different platforms one docstring is enough.
        documented[name] = documented.get(name, False) or ast.get_docstring(node, clean=False) is not None
        lines.setdefault(name, node.lineno)
    yield from (Place(lines[name], name) for name in sorted(lines, key=lines.__getitem__) if not documented[name])


def _definitions(
    body: Sequence[ast.stmt], scope: str, public: frozenset[str] | None
) -> Iterator[tuple[str, Definition]]:
    """The public definitions of a module, or of a class and the classes in it; those inside functions are nobody's."""
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
    """A leading underscore hides; so do decorators that say that the documentation is elsewhere."""
    if node.name.startswith("_"):
        return False
    for decorator in node.decorator_list:
        last = decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")
        if last in ("overload", "override", "setter", "deleter"):
            return False
    return True
