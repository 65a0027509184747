"""The language of the product: one meaning for a name, few words of the old dialect, comments that argue."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, modules

PACKAGES = ("pregel_async", "checkpoint_savers")

DIALECT = re.compile(r"\b(told|tells?|whoever|somebody|nobody|beside)\b", re.IGNORECASE)
"""Words that leave out who does what to whom."""

MOST_DIALECT = 60
"""Lines of the product in which such a word may stand."""

LEAST_COMMENTS = 0.03
"""The share of comment lines where a reader asks why: cancellation, leases, transactions, layout of rows."""

COMMENTED = (
    "pregel_async/_core",
    "pregel_async/_runtime",
    "checkpoint_savers/sqlite",
    "checkpoint_savers/postgres",
)

PRAGMA = re.compile(r"#\s*(type:|pyright:|mypy:|noqa|pragma)")
"""Comments for tools, which argue nothing."""


def product() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        yield from modules(ROOT / package).items()


def _type_names(tree: ast.Module) -> Iterator[str]:
    """Classes, and the names that a module gives to types; no type variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if ast.unparse(node.annotation).rpartition(".")[2] == "TypeAlias":
                yield node.target.id
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
            # `Recorder = Callable[...]`: a name in CamelCase for something subscripted, or for a union.
            if re.fullmatch(r"_?[A-Z][a-z]\w*", name) and isinstance(value, (ast.Subscript, ast.BinOp)):
                yield name


@pytest.mark.parametrize("package", PACKAGES)
def test_a_type_name_belongs_to_one_module(package: str) -> None:
    """A class or type alias is defined in one module of a package, leading underscores ignored."""
    found: dict[str, set[str]] = defaultdict(set)
    for file, source in modules(ROOT / package).items():
        for name in _type_names(ast.parse(source)):
            found[name.lstrip("_")].add(file)
    assert not {name: sorted(files) for name, files in found.items() if len(files) > 1}


def test_words_of_the_old_dialect_are_rare() -> None:
    """A sentence names the actor and the object."""
    lines = [
        f"{file}:{number}: {line.strip()}"
        for file, source in product()
        for number, line in enumerate(source.splitlines(), 1)
        if DIALECT.search(line)
    ]
    assert len(lines) <= MOST_DIALECT, "\n".join(lines)


def _public_docstrings() -> Iterator[tuple[str, str]]:
    for file, source in product():
        if any(part.startswith("_") and part != "__init__.py" for part in Path(file).parts):
            continue
        pending: list[ast.Module | ast.ClassDef] = [ast.parse(source)]
        while pending:
            outer = pending.pop()
            yield file, ast.get_docstring(outer) or ""
            for node in outer.body:
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_"):
                    yield f"{file}: {node.name}", ast.get_docstring(node) or ""
                elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    pending.append(node)


def test_no_public_docstring_has_a_word_of_the_old_dialect() -> None:
    assert not [place for place, doc in _public_docstrings() if DIALECT.search(doc)]


def _comments(source: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type == tokenize.COMMENT and not PRAGMA.match(token.string) for token in tokens)


@pytest.mark.parametrize("folder", COMMENTED)
def test_the_code_says_why(folder: str) -> None:
    """At least three lines of a hundred carry a comment. Whether it argues, a test cannot see."""
    sources = modules(ROOT / folder).values()
    lines = sum(len(source.splitlines()) for source in sources)
    share = sum(map(_comments, sources)) / lines
    assert share >= LEAST_COMMENTS, f"{share:.2%}"


def test_comments_for_tools_are_not_counted() -> None:
    assert _comments("a = 1  # why\nb = 2  # type: ignore\n# pragma: no cover\n") == 1
