"""The product's source as lines and syntax trees, for tests that count in it."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "pregel_async" / "_runtime"


@cache
def modules(folder: Path) -> dict[str, str]:
    """The source of each module in a folder and below it, by its path from the root."""
    paths = sorted(folder.rglob("*.py"))
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def code_lines(source: str) -> set[int]:
    """The numbers of the lines that hold code: no docstring, comment or blank line."""
    docs: set[int] = set()
    for node in _documented(ast.parse(source)):
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            docs.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    no_code = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in no_code:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - docs


def _documented(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
            yield node


def none_tests(source: str) -> list[int]:
    """The lines that compare with None, or ask whether a name or attribute is true that is annotated `X | None`."""
    tree = ast.parse(source)
    attributes, names = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and _may_be_none(node.annotation):
            if isinstance(node.target, ast.Name):
                names.add(node.target.id)
            elif isinstance(node.target, ast.Attribute):
                attributes.add(node.target.attr)
    found: list[int] = []

    def visit(node: ast.AST, known: set[str]) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            known = known - {arg.arg for arg in given} | {arg.arg for arg in given if _may_be_none(arg.annotation)}
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            found.extend(node.lineno for side in sides if isinstance(side, ast.Constant) and side.value is None)
        elif isinstance(node, ast.MatchSingleton) and node.value is None:
            found.append(node.lineno)
        for asked in _truth_tests(node):
            if isinstance(asked, ast.Name) and asked.id in known:
                found.append(asked.lineno)
            elif isinstance(asked, ast.Attribute) and asked.attr in attributes | names:
                found.append(asked.lineno)
        for child in ast.iter_child_nodes(node):
            visit(child, known)

    visit(tree, names)
    return found


def _may_be_none(annotation: ast.expr | None) -> bool:
    return annotation is not None and any(part.strip() == "None" for part in ast.unparse(annotation).split("|"))


def _truth_tests(node: ast.AST) -> Iterable[ast.expr]:
    """The expressions of which a node asks whether they are true."""
    if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)):
        return [node.test]
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [node.operand]
    return node.ifs if isinstance(node, ast.comprehension) else []
