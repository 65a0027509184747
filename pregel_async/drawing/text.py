"""Write a drawing as text for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec

from .._api.drawing import Edge, Outline
from .layout import Layout, Route, layout
from .model import character_width, is_end, marks, paths, printable, short_name, text_width

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_ALL = 15


class _CharacterSet(msgspec.Struct, frozen=True, kw_only=True):
    """The characters of lines, by the neighbours that they connect, and of borders: corners, across, down."""

    solid: dict[int, str]
    dotted: dict[int, str]
    node: str
    end: str
    graph: str
    port: dict[str, str]
    head: str
    arrow: str
    dotted_arrow: str
    back: str


_CORNERS = {_DOWN | _RIGHT: "┌", _DOWN | _LEFT: "┐", _UP | _RIGHT: "└", _UP | _LEFT: "┘"}
_UNICODE = _CharacterSet(
    solid={_UP | _DOWN: "│", _LEFT | _RIGHT: "─", _ALL: "┼", **_CORNERS},
    dotted={_UP | _DOWN: "┆", _LEFT | _RIGHT: "╌", _ALL: "┼", **_CORNERS},
    node="┌┐└┘─│",
    end="╭╮╰╯─│",
    graph="╔╗╚╝═║",
    port={"─": "┬", "═": "╤"},
    head="▼",
    arrow="─▶",
    dotted_arrow="╌▶",
    back="↑",
)
_PLUS = dict.fromkeys(_CORNERS, "+")
_ASCII = _CharacterSet(
    solid={_UP | _DOWN: "|", _LEFT | _RIGHT: "-", _ALL: "|", **_PLUS},
    dotted={_UP | _DOWN: ":", _LEFT | _RIGHT: ".", _ALL: ":", **_PLUS},
    node="++++-|",
    end="....-|",
    graph="####=#",
    port={"-": "+", "=": "+"},
    head="v",
    arrow="->",
    dotted_arrow=".>",
    back="^",
)


def text(outline: Outline, *, ascii: bool = False, width: int | None = 80) -> str:
    """Draw boxes and arrows, or write a list if the boxes would be too wide; see `Drawing.draw_text`.

    Args:
        outline: the drawing.
        ascii: use only ASCII characters; those of names are written as escapes.
        width: the maximum width in columns; None for no maximum.

    Returns:
        The lines of the text.
    """
    characters, escape = (_ASCII, _escaped) if ascii else (_UNICODE, printable)
    path = paths(outline)

    def lines(name: str) -> list[str]:
        return [escape(short_name(name, path[name])), *filter(None, [marks(outline, name)])]

    def size(name: str) -> tuple[int, int]:
        shown = lines(name)
        return max(map(text_width, shown)) + 4, len(shown) + 2

    def title(name: str) -> str:
        mark_text = marks(outline, name)
        return f" {escape(short_name(name, path[name]))}{f' ({mark_text})' if mark_text else ''} "

    def label(edge: Edge) -> str:
        return "" if edge.label is None else escape(edge.label) or "''"

    laid = layout(outline, size, lambda name: text_width(title(name)), lambda edge: text_width(label(edge)))
    if width is not None and laid.width > width:
        return _list_edges(outline, laid, characters, escape)
    return _paint_boxes(outline, laid, characters, lines, title, label)


def _escaped(text: str) -> str:
    return printable(text).encode("ascii", "backslashreplace").decode("ascii")


def _paint_boxes(
    outline: Outline,
    laid: Layout,
    characters: _CharacterSet,
    lines: Callable[[str], list[str]],
    title: Callable[[str], str],
    label: Callable[[Edge], str],
) -> str:
    canvas = [[" "] * laid.width for _ in range(laid.height)]

    def write(x: int, y: int, text: str) -> None:
        for one in text:
            if not (wide := character_width(one)):
                canvas[y][x - 1] += one
                continue
            canvas[y][x : x + wide] = [one] + [""] * (wide - 1)
            x += wide

    def frame(x: int, y: int, width: int, height: int, border: str) -> None:
        across, down = border[4], border[5]
        write(x, y, border[0] + across * (width - 2) + border[1])
        write(x, y + height - 1, border[2] + across * (width - 2) + border[3])
        for line in range(y + 1, y + height - 1):
            write(x, line, down)
            write(x + width - 1, line, down)

    for group in laid.frames:
        frame(group.x, group.y, group.width, group.height, characters.graph)
        write(group.title_at, group.y, title(group.name))
    ways: dict[tuple[int, int], tuple[int, bool]] = {}
    for route in laid.routes:
        for place, way in _route_cells(route):
            known, dotted = ways.get(place, (0, False))
            # Where two lines cross, the vertical one decides between solid and dotted: in ASCII it passes in front.
            ways[place] = known | way, route.edge.conditional if not known or way == _UP | _DOWN else dotted
    for (x, y), (way, dotted) in ways.items():
        write(x, y, (characters.dotted if dotted else characters.solid)[way])
    for box in laid.boxes:
        border = (
            characters.end
            if is_end(box.name)
            else characters.graph
            if box.name in outline.subgraphs
            else characters.node
        )
        frame(box.x, box.y, box.width, box.height, border)
        for line, shown in enumerate(lines(box.name), box.y + 1):
            write(box.x + (box.width - text_width(shown)) // 2, line, shown)
    for route in laid.routes:
        (x, y), (end, last) = route.points[0], route.points[-1]
        write(x, y, characters.port[canvas[y][x]])
        write(end, last - 1, characters.head)
        if route.label_at is not None:
            shown = label(route.edge)
            write(route.label_at[0] - text_width(shown) // 2, route.label_at[1], shown)
    return "".join("".join(row).rstrip() + "\n" for row in canvas)


def _route_cells(route: Route) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield the cells between an edge's two ends, each with the neighbours that the line connects it with."""
    places: list[tuple[int, int]] = [route.points[0]]
    for (x, y), (to_x, to_y) in pairwise(route.points):
        length = abs(to_x - x) + abs(to_y - y)
        across, down = (to_x > x) - (to_x < x), (to_y > y) - (to_y < y)
        places += [(x + across * step, y + down * step) for step in range(1, length + 1)]
    for (x, y), place, (then_x, then_y) in zip(places, places[1:], places[2:], strict=False):
        yield place, _toward(x - place[0], y - place[1]) | _toward(then_x - place[0], then_y - place[1])


def _toward(across: int, down: int) -> int:
    return {(0, -1): _UP, (0, 1): _DOWN, (-1, 0): _LEFT, (1, 0): _RIGHT}[across, down]


def _list_edges(outline: Outline, laid: Layout, characters: _CharacterSet, escape: Callable[[str], str]) -> str:
    """List each node with its targets, from the top of the drawing down; an arrow up marks an edge that leads back."""
    place = {box.name: (box.y, box.x) for box in laid.boxes}
    leaving: dict[str, list[Edge]] = {name: [] for name in outline.nodes}
    for edge in outline.edges:
        leaving[edge.source].append(edge)

    def named(name: str) -> str:
        mark_text = [*filter(None, [marks(outline, name)]), *(["graph"] if name in outline.subgraphs else [])]
        return escape(name) + (f" ({', '.join(mark_text)})" if mark_text else "")

    shown: list[str] = []
    for name in sorted(outline.nodes, key=place.__getitem__):
        shown.append(named(name))
        for edge in sorted(leaving[name], key=lambda edge: place[edge.target]):
            arrow = characters.dotted_arrow if edge.conditional else characters.arrow
            label = "" if edge.label is None else f" [{escape(edge.label)}]"
            back = f" {characters.back}" if place[edge.target][0] <= place[edge.source][0] else ""
            shown.append(f"  {arrow} {escape(edge.target)}{label}{back}")
    shown += [named(group) for group in outline.groups if marks(outline, group)]
    return "".join(line + "\n" for line in shown)
