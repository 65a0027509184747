"""The picture of the layers in docs/architecture.md: what stands on what, as the imports are.

    python tests/architecture/picture.py            writes docs/layers.svg

A box is a module or package right inside of one of the two packages. It stands one row above the highest of those that
it imports. A line is an import; it is left out where another way leads there too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "layers.svg"
PACKAGES = {"pregel_async": "#dbe9fb", "checkpoint_savers": "#e3f2df"}

Imports = dict[str, set[str]]
"""By box, as `package.name`: the boxes that it imports."""

CHARACTER, PADDING, GAP, BOX, ROW = 7, 8, 12, 24, 58  # pixels


def imports() -> Imports:
    """What is imported when code runs; what only type checkers see is left out."""
    found: Imports = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            module = parts[:-1] if parts[-1] == "__init__" else parts
            if len(module) > 1:
                mine = found.setdefault(_box(module), set())
                mine.update(_box(name) for name in _imported(file, module) if len(name) > 1)
    return {box: (others & found.keys()) - {box} for box, others in found.items()}


def _box(module: tuple[str, ...]) -> str:
    return ".".join(module[:2])


def _imported(file: Path, module: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    tree = ast.parse(file.read_text("utf-8"))
    unseen = {id(inner) for node in ast.walk(tree) if _is_for_checkers(node) for inner in ast.walk(node)}
    around = module if file.name == "__init__.py" else module[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in unseen:
            start = around[: len(around) - node.level + 1] if node.level else ()
            base = (*start, *(node.module or "").split(".")) if node.module else start
            for alias in node.names:
                yield (*base, alias.name) if len(base) == 1 else base


def _is_for_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def rows(found: Imports) -> list[list[str]]:
    """The boxes of each row, the lowest first. Raises `ValueError` when some import each other in a circle."""
    level: dict[str, int] = {}

    def place(box: str, above: tuple[str, ...]) -> int:
        if box in above:
            raise ValueError(f"a circle of imports: {' -> '.join((*above, box))}")
        if box not in level:
            level[box] = 1 + max([place(other, (*above, box)) for other in sorted(found[box])], default=-1)
        return level[box]

    for box in sorted(found):
        place(box, ())
    made: list[list[str]] = [[] for _ in range(1 + max(level.values()))]
    for box in sorted(found, key=lambda name: (name.startswith("checkpoint"), name)):
        made[level[box]].append(box)
    return made


def lines(found: Imports) -> list[tuple[str, str]]:
    """The imports without those that follow from others."""
    below: dict[str, set[str]] = {}

    def reach(box: str) -> set[str]:
        if box not in below:
            below[box] = {far for other in found[box] for far in (other, *reach(other))}
        return below[box]

    return [
        (box, other)
        for box in sorted(found)
        for other in sorted(found[box])
        if not any(other in reach(near) for near in found[box] if near != other)
    ]


def picture(found: Imports) -> str:
    """The SVG."""
    boxes = rows(found)
    widths = {box: 2 * PADDING + CHARACTER * len(_label(box)) for row in boxes for box in row}
    total = max(sum(widths[box] + GAP for box in row) for row in boxes) + GAP
    places: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(reversed(boxes)):
        x = (total - sum(widths[box] + GAP for box in row) + GAP) / 2
        for box in row:
            places[box] = x, GAP + number * ROW
            x += widths[box] + GAP
    height = GAP + len(boxes) * ROW
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{height}" viewBox="0 0 {total} {height}" '
        'font-family="ui-monospace, monospace" font-size="11.5">',
        "<title>What stands on what: modules of pregel_async (blue) and checkpoint_savers (green)</title>",
        f'<rect width="{total}" height="{height}" fill="#ffffff"/>',
    ]
    for box, other in lines(found):
        (x1, y1), (x2, y2) = places[box], places[other]
        drawn.append(
            f'<line x1="{x1 + widths[box] / 2:g}" y1="{y1 + BOX:g}" x2="{x2 + widths[other] / 2:g}" y2="{y2:g}" '
            'stroke="#9aa5b1" stroke-width="0.8"/>'
        )
    for box, (x, y) in places.items():
        colour = PACKAGES[box.partition(".")[0]]
        drawn.append(
            f'<rect x="{x:g}" y="{y:g}" width="{widths[box]}" height="{BOX}" rx="4" fill="{colour}" stroke="#5b6670"/>'
        )
        drawn.append(
            f'<text x="{x + widths[box] / 2:g}" y="{y + 16:g}" text-anchor="middle" fill="#1c2329">'
            f"{escape(_label(box))}</text>"
        )
    return "\n".join([*drawn, "</svg>"]) + "\n"


def _label(box: str) -> str:
    name = box.partition(".")[2]
    return f"{name}/" if (ROOT / Path(*box.split("."))).is_dir() else name


if __name__ == "__main__":
    PICTURE.write_text(picture(imports()), "utf-8")
