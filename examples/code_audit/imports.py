"""Find unused imports. Anything that may be a use counts as one: a false report costs more than a missed import."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exports:
    """The content of `__all__`.

    Attributes:
        names: the names in it.
        dynamic: True if it may have more names at run time.
    """

    names: frozenset[str]
    dynamic: bool


def unused_imports(
    tree: ast.Module, nodes: Sequence[ast.AST], lines: Sequence[bytes], exports: Exports | None, *, package: bool
) -> list[tuple[int, str]]:
    """Return line and text of each unused import, in order.

    Never reported are:
        - `from __future__`, `*`, and names with two underscores on each side, which configure the module itself;
        - `import x as x`, a re-export (PEP 484), and `from _x import y`, by which a public module shows a private one;
        - imports at the top of a package's `__init__` and in class bodies, which other code may use as attributes;
        - `import a.b` next to another import of `a`, which may use the submodule;
        - imports inside handlers for import errors, which probe for a module;
        - lines with `# noqa`.

    Args:
        nodes: all nodes of the tree, in any order.
        lines: the source's lines, for comments.
        exports: the module's `__all__`, if it has one.
        package: True if the module is a package's `__init__`.
    """
    if (exports is not None and exports.dynamic) or _looks_at_itself(nodes):
        return []
    imported = list(_imports(tree, package=package))
    used = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)}
    used.update(exports.names if exports is not None else ())
    suspects = [item for item in imported if item.binds not in used]
    if not suspects:
        return []  # most files return here, so the code below may be slow
    used.update(_named_in_strings(nodes), _named_in_comments(lines))
    packages = {item.module for item in imported if not item.is_dotted}
    return sorted(
        (item.line, item.text)
        for item in suspects
        if item.binds not in used and not (item.is_dotted and item.binds in packages) and not _silenced(item, lines)
    )


def exported_names(nodes: Iterable[ast.AST]) -> Exports | None:
    """Return what the module assigns or adds to `__all__`, or None if it has no `__all__`."""
    names: set[str] = set()
    found = dynamic = False
    for node in nodes:
        value: ast.expr | None = None
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = node.value if any(_is_all(target) for target in targets) else None
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_all(node.func.value):
            value = ast.Tuple(elts=node.args, ctx=ast.Load())  # __all__.append("x"), .extend(["x"]), .remove("x")
        if value is not None:
            found = True
            names.update(_strings(value))
            dynamic = dynamic or not _is_literal(value)
    return Exports(frozenset(names), dynamic) if found else None


def _is_all(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "__all__"


_LITERAL = (ast.List, ast.Tuple, ast.Constant, ast.BinOp, ast.Add, ast.Load)


def _is_literal(node: ast.expr) -> bool:
    """Return True if the expression consists of literal lists, tuples and sums of them."""
    return all(isinstance(inner, _LITERAL) for inner in ast.walk(node))


@dataclass(frozen=True, slots=True)
class _Import:
    """One name of an import statement.

    Attributes:
        module: the root package of the import; "" for a relative import.
        binds: the name that the import defines.
        is_dotted: True for `import a.b`, which also loads a submodule.
    """

    line: int
    last_line: int
    module: str
    binds: str
    text: str
    is_dotted: bool = False


def _imports(tree: ast.Module, *, package: bool) -> Iterator[_Import]:
    """Yield the imports that may be reported."""
    # A work list of nodes, with True if imports below the node are excused.
    todo: list[tuple[ast.AST, bool]] = [(node, package) for node in tree.body]
    while todo:
        node, excused = todo.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if not excused:
                yield from _bindings(node)
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            excused = False
        elif isinstance(node, ast.ClassDef) or _may_fail(node):
            excused = True
        if not isinstance(node, ast.expr):  # imports are statements; expressions contain none
            for child in ast.iter_child_nodes(node):
                todo.append((child, excused))  # noqa: PERF401  # a generator per node would double the time


def _bindings(node: ast.Import | ast.ImportFrom) -> Iterator[_Import]:
    for alias in node.names:
        first, last = alias.lineno, alias.end_lineno or alias.lineno
        renamed = f" as {alias.asname}" if alias.asname else ""
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if _says_what_it_is(module, alias):
                continue
            root = "" if node.level else module.partition(".")[0]
            text = f"from {'.' * node.level}{module} import {alias.name}{renamed}"
            yield _Import(first, last, root, alias.asname or alias.name, text)
        elif alias.asname != alias.name:
            root = alias.name.partition(".")[0]
            dotted = root != alias.name and alias.asname is None
            yield _Import(first, last, root, alias.asname or root, f"import {alias.name}{renamed}", dotted)


def _says_what_it_is(module: str, alias: ast.alias) -> bool:
    """Return True if `from module import alias` has another purpose than use in this file."""
    name = alias.name
    is_dunder = name.startswith("__") and name.endswith("__")
    is_face = module.rpartition(".")[2].startswith("_")  # of `__future__` too
    return name == "*" or is_dunder or is_face or alias.asname == name


_PROBES = frozenset(("ImportError", "ModuleNotFoundError", "Exception", "BaseException"))


def _may_fail(node: ast.AST) -> bool:
    """Return True if imports in this block may fail (`try: ... except ImportError:`, `with suppress(ImportError):`)."""
    if isinstance(node, ast.Try):
        caught = [handler.type for handler in node.handlers]
        return None in caught or any(_names_probe(kind) for kind in caught if kind is not None)
    if isinstance(node, ast.With):
        return any(_names_probe(item.context_expr) for item in node.items)
    return False


def _names_probe(node: ast.expr) -> bool:
    return any(_last_name(inner) in _PROBES for inner in ast.walk(node))


_NOQA = re.compile(rb"#\s*noqa\b(?!\s*:(?!.*\bF401\b))", re.IGNORECASE)


def _silenced(item: _Import, lines: Sequence[bytes]) -> bool:
    return any(_NOQA.search(line) for line in lines[item.line - 1 : item.last_line])


def _looks_at_itself(nodes: Iterable[ast.AST]) -> bool:
    """Return True if the module looks up its own names by text, so that its uses are unknown."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("globals", "locals") or (node.func.id == "vars" and not node.args):
                return True
            if node.func.id in ("eval", "exec") and len(node.args) < 2:
                return True
    return False


_WORD = re.compile(r"[^\W\d]\w*")
_TYPE_COMMENT = re.compile(rb"#\s*type:(.*)")
_TAKES_TYPES = frozenset(("cast", "TypeVar", "NewType", "ForwardRef", "NamedTuple", "TypedDict"))


def _named_in_strings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield names in quoted annotations, in arguments of typing's functions and subscripts, and in doctests."""
    for node in nodes:
        quoted: list[ast.expr | None] = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            quoted.append(node.returns)
        elif isinstance(node, (ast.arg, ast.AnnAssign)):
            quoted.append(node.annotation)
        elif isinstance(node, ast.Subscript):
            quoted.append(node.slice)
        elif isinstance(node, ast.Call) and _last_name(node.func) in _TAKES_TYPES:
            quoted += [*node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.Global):
            yield from node.names
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and ">>>" in node.value:
            for line in node.value.splitlines():
                if line.lstrip().startswith((">>>", "...")):
                    yield from _WORD.findall(line)
        for expression in quoted:
            if expression is not None:
                for text in _strings(expression):
                    yield from _WORD.findall(text)


def _named_in_comments(lines: Sequence[bytes]) -> Iterator[str]:
    for line in lines:
        found = _TYPE_COMMENT.search(line)
        if found is not None:
            yield from _WORD.findall(found[1].decode(errors="replace"))


def _strings(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
