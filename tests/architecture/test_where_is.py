"""The table `Where is …?` of docs/architecture.md: each path exists, and each name is defined in a file that its row names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.source import ROOT

PAGE = ROOT / "docs" / "architecture.md"
HEADING = "## Where is …?"
FOLDERS = (ROOT / "pregel_async", ROOT / "checkpoint_savers", ROOT)
"""The folders from which a row may write a path."""

NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?:\(\))?")
PATH = re.compile(r"[\w./-]+(?:\.\w+|/)")


def table(page: str) -> list[tuple[str, str]]:
    """Return the rows of the table, as pairs of question and place."""
    section = page.partition(f"\n{HEADING}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    cells = [tuple(cell.strip() for cell in line.strip("| ").split(" | ")) for line in lines]
    assert cells[0] == ("question", "place"), cells[:1]
    assert all(len(row) == 2 for row in cells), [row for row in cells if len(row) != 2]
    return [(question, place) for question, place in cells[1:]]


def term(question: str) -> str:
    """Return the search term with which a row begins, in the form by which rows are sorted."""
    return question.partition(":")[0].strip("*").casefold()


def is_path(code: str) -> bool:
    return PATH.fullmatch(code) is not None and ("/" in code or code.endswith(".py"))


def found_at(path: str) -> list[Path]:
    """Return the files or folders that a path may mean."""
    return [folder / path for folder in FOLDERS if (folder / path).exists()]


@cache
def defined_in(file: Path) -> frozenset[str]:
    """Return the names that a module defines: `name`, and `Class.member` for the members of a class."""
    return frozenset(_definitions(ast.parse(file.read_text("utf-8")).body, ""))


def _definitions(body: Sequence[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + node.name
            if prefix:  # a method: the attributes that it sets are the class's
                yield from (f"{prefix}{name}" for name in _attributes_set_in(node))
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name
            yield from _definitions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                names = (each for each in ast.walk(target) if isinstance(each, ast.Name))
                yield from (prefix + each.id for each in names)
        elif isinstance(node, (ast.If, ast.Try)):
            yield from _definitions([*node.body, *node.orelse], prefix)


def _attributes_set_in(method: ast.AST) -> Iterator[str]:
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                yield node.attr


def missing(row: tuple[str, str]) -> list[str]:
    """Return the paths of a row that do not exist, and the names that none of its files defines."""
    spans = re.findall(r"`([^`]+)`", " ".join(row))
    paths = [span for span in spans if is_path(span)]
    files = [
        file
        for path in paths
        for found in found_at(path)
        for file in (sorted(found.rglob("*.py")) if found.is_dir() else [found])
        if file.suffix == ".py"
    ]
    defined = {name for file in files for name in defined_in(file)}
    lost = [path for path in paths if not found_at(path)]
    for span in spans:
        if span not in paths and not (NAME.fullmatch(span) and span.removesuffix("()") in defined):
            lost.append(span)
    return lost


ROWS = table(PAGE.read_text("utf-8"))


def test_the_table_has_at_least_45_rows() -> None:
    assert len(ROWS) >= 45


def test_each_row_begins_with_a_search_term_and_asks_a_question() -> None:
    assert [question for question, _ in ROWS if not re.fullmatch(r"\*\*[^*]+\*\*: .+\?", question)] == []


def test_each_row_names_a_path() -> None:
    assert [question for question, place in ROWS if not any(map(is_path, re.findall(r"`([^`]+)`", place)))] == []


def test_the_rows_are_in_alphabetical_order() -> None:
    terms = [term(question) for question, _ in ROWS]
    assert terms == sorted(terms)


@pytest.mark.parametrize("row", ROWS, ids=[question for question, _ in ROWS])
def test_paths_exist_and_names_are_defined_in_them(row: tuple[str, str]) -> None:
    """Each path is a file or folder, and each name a definition in one of the files that its row names."""
    assert missing(row) == []


@pytest.mark.parametrize(
    ("place", "lost"),
    [
        ("`_runtime/tasks/retries.py`: `run_with_retries`", []),
        ("`_runtime/tasks/retries.py`: `run_with_hope`", ["run_with_hope"]),
        ("`_runtime/tasks/hopes.py`: `run_with_retries`", ["_runtime/tasks/hopes.py", "run_with_retries"]),
        ("`_runtime/tasks/retries.py`: `ThreadLease`", ["ThreadLease"]),
        ("`_runtime/persistence/lease.py`: `ThreadLease.failures`, `ThreadLease.hopes`", ["ThreadLease.hopes"]),
    ],
)
def test_a_made_up_name_is_found_to_be_missing(place: str, lost: list[str]) -> None:
    """The test above reports a name or path that does not exist, and a name of another file."""
    assert missing(("**retries**: where is a retry decided?", place)) == lost
