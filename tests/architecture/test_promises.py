"""docs/promises.md and the tests that cite its promises fit each other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "promises.md").read_text("utf-8")
SECTIONS = {match[1]: match[2] for match in re.finditer(r"^## P(\d+) .*\n((?:(?!## ).*\n?)*)", PAGE, re.MULTILINE)}
FILES = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "checkpoint_savers" / "conformance").rglob("*.py")]
TEXTS = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(
        file
        for folder in ("pregel_async", "checkpoint_savers", "examples", "tests")
        for file in (ROOT / folder).rglob("*.py")
        if file != Path(__file__)
    ),
]
ELSEWHERE = re.compile(
    r"\b[SQ]-\d+|\b[Ss]eeds? (?:\d{3}|and)\b|\b[Ii]ssue #?\d|(?:^|\"\"\"|, )[Ii]ssue[,:]|\b[Tt]he peer's\b|tests/face\b",
    re.MULTILINE,
)
"""Citations of documents that are not in the repository."""


def cited(path: Path) -> str:
    """The docstrings of a file."""
    tree = ast.parse(path.read_text("utf-8"))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return "\n".join(ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds))


def test_each_promise_has_an_entry() -> None:
    """P1 and those that follow, in order; each says what is not promised, too."""
    assert list(SECTIONS) == [str(number) for number in range(1, len(SECTIONS) + 1)]
    assert len(SECTIONS) >= 15
    assert [number for number, text in SECTIONS.items() if "\nNot promised" not in text] == []


@pytest.mark.parametrize("number", SECTIONS)
def test_the_named_tests_cite_the_promise(number: str) -> None:
    """Each promise names files of tests, and each of these cites it in a docstring."""
    named = re.findall(r"`((?:tests|checkpoint_savers)/[\w/]+\.py)`", SECTIONS[number])
    assert len(named) >= 3
    for name in named:
        assert re.search(rf"\bP{number}\b", cited(ROOT / name)), f"{name} does not cite P{number}"


def test_each_cited_promise_has_an_entry() -> None:
    """Tests cite no number that docs/promises.md does not have, and every one that it has."""
    assert {number for path in FILES for number in re.findall(r"\bP(\d+)\b", cited(path))} == SECTIONS.keys()


def test_nothing_is_cited_that_is_not_here() -> None:
    """A reader finds every document that code, tests and docs refer to by a number."""
    found = [(str(path.relative_to(ROOT)), ELSEWHERE.findall(path.read_text("utf-8"))) for path in TEXTS]
    assert [each for each in found if each[1]] == []
