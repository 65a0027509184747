"""How large classes may be."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
MOST = 400


class Found(msgspec.Struct, frozen=True):
    """A class: lines of its own, and the names of its bases."""

    lines: int
    bases: tuple[str, ...]
    is_suite: bool


@cache
def classes() -> dict[tuple[str, str], Found]:
    """All classes of both packages, by file and name."""
    found: dict[tuple[str, str], Found] = {}
    for package in ("pregel_async", "checkpoint_savers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text().splitlines()
            for node in ast.walk(ast.parse("\n".join(text))):
                if isinstance(node, ast.ClassDef):
                    bases = [
                        ast.unparse(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases
                    ]
                    found[str(path.relative_to(ROOT)), node.name] = Found(
                        lines=len(_code(node, text)),
                        bases=tuple(base.rpartition(".")[2] for base in bases),
                        is_suite="conformance" in path.parts,
                    )
    return found


def _code(kind: ast.ClassDef, text: list[str]) -> set[int]:
    """Numbers of the lines of a class that are neither empty nor a comment nor of a docstring."""
    lines = {at for at in range(kind.lineno, (kind.end_lineno or 0) + 1) if text[at - 1].strip()}
    lines -= {at for at in lines if text[at - 1].strip().startswith("#")}
    for node in ast.walk(kind):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node):
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def whole(file: str, name: str, seen: frozenset[str] = frozenset()) -> int:
    """Lines of a class and of its bases. Of several classes of a base's name, the one in the nearest file is meant."""
    places = [place for place in classes() if place[1] == name]
    if not places or name in seen:
        return 0
    nearest = max(places, key=lambda place: len(_common(place[0], file)))
    found = classes()[nearest]
    return found.lines + sum(whole(nearest[0], base, seen | {name}) for base in found.bases)


def _common(one: str, other: str) -> list[str]:
    return [a for a, b in zip(Path(one).parts, Path(other).parts, strict=False) if a == b]


def test_sizes_of_classes() -> None:
    """A class and its bases have at most 400 lines of code, docstrings and comments aside. Suites of conformance are
    lists of tests, which are as long as the promises are many."""
    sizes = {place: whole(*place) for place, found in classes().items() if not found.is_suite}
    large = {name: size for (_, name), size in sizes.items() if size > MOST}
    assert not large


def test_no_dispatch_by_setattr() -> None:
    """No object is given methods or attributes by a name that is computed: a reader finds them where the class is. What
    is set past a guard is set by `object.__setattr__`, which says so."""
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "pregel_async").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name) and node.id in ("setattr", "delattr")
    }
    assert found == SETS


SETS = {
    "pregel_async/serve/lifespan.py",  # an attribute of the state that belongs to the user's application
}
"""Files that do so still, each with its reason."""
