"""Write a drawing as an SVG image.

The image is self-contained: no script, no external font or image, and no id that could clash with another in the same
page. Colours are attributes, which every renderer supports; a style sheet overrides them for dark themes. The
background is painted, so that the image is readable on any page.
"""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from .._api.drawing import Edge, Outline
from .layout import Box, Frame, Point, Route, layout
from .model import is_end, marks, paths, printable, short_name, text_width

WIDE, HIGH, MARGIN, ROUND = 10, 16, 12, 7
"""Pixels of a cell, around everything, and of the radius of corners."""

# Fill and stroke of each kind of shape, for light and then for dark themes.
COLOURS = {
    "paper": ("#ffffff", "none", "#0d1117", "none"),
    "node": ("#eef2ff", "#5661b3", "#1b2140", "#8b97ea"),
    "pause": ("#fff4dc", "#b7791f", "#33270e", "#e0aa4e"),
    "end": ("#e8f5ee", "#2f855a", "#12281d", "#62c08f"),
    "frame": ("none", "#8a93a3", "none", "#7d8796"),
    "line": ("none", "#57606a", "none", "#a0a8b3"),
    "head": ("#57606a", "none", "#a0a8b3", "none"),
    "text": ("#1f2328", "none", "#e6edf3", "none"),
    "faint": ("#57606a", "none", "#a0a8b3", "none"),
}


def svg(outline: Outline) -> str:
    """Write one `svg` element; see `Drawing.draw_svg`.

    Args:
        outline: the drawing.

    Returns:
        The element's source text.
    """
    path = paths(outline)

    def name_of(name: str) -> str:
        return printable(short_name(name, path[name]))

    def size(name: str) -> tuple[int, int]:
        mark_text = marks(outline, name)
        return max(text_width(name_of(name)), text_width(mark_text)) + 4, 4 if mark_text else 3

    def title(group: str) -> str:
        mark_text = marks(outline, group)
        return name_of(group) + (f" ({mark_text})" if mark_text else "")

    def label(edge: Edge) -> str:
        return "" if edge.label is None else printable(edge.label) or "''"

    laid = layout(outline, size, lambda group: text_width(title(group)) + 2, lambda edge: text_width(label(edge)))
    width, height = laid.width * WIDE + 2 * MARGIN, laid.height * HIGH + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="pregel-graph" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="graph" font-size="13" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace">',
        f"<style>@media (prefers-color-scheme: dark) {{{_dark()}}}</style>",
        f'<rect {_paint("paper")} width="{width}" height="{height}" rx="8"/>',
    ]
    parts += [_frame(frame, title(frame.name)) for frame in laid.frames]
    parts += [_edge(route) for route in laid.routes]
    parts += [_label(route.label_at, label(route.edge)) for route in laid.routes if route.label_at is not None]
    parts += [_node(outline, box, name_of(box.name)) for box in laid.boxes]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _dark() -> str:
    return " ".join(
        f".pregel-graph .{kind} {{fill: {fill}; stroke: {stroke}}}" for kind, (_, _, fill, stroke) in COLOURS.items()
    )


def _paint(kind: str) -> str:
    fill, stroke, _, _ = COLOURS[kind]
    return f'class="{kind}" fill="{fill}" stroke="{stroke}"'


def _cell_centre(point: Point) -> Point:
    """Return the centre of a cell, in pixels."""
    return MARGIN + point[0] * WIDE + WIDE // 2, MARGIN + point[1] * HIGH + HIGH // 2


def _rect(kind: str, box: Box | Frame, *, inset: int = 0, corner: int = 5, more: str = "") -> str:
    x, y = _cell_centre((box.x, box.y))
    width, height = (box.width - 1) * WIDE - 2 * inset, (box.height - 1) * HIGH - 2 * inset
    return (
        f'<rect {_paint(kind)} x="{x + inset}" y="{y + inset}" width="{width}" height="{height}" rx="{corner}"{more}/>'
    )


def _text(kind: str, x: int, y: int, text: str, more: str = ' text-anchor="middle"') -> str:
    return f'<text {_paint(kind)} x="{x}" y="{y + 4}"{more}>{escape(text)}</text>'


def _frame(frame: Frame, title: str) -> str:
    x, y = _cell_centre((frame.title_at, frame.y))
    width = (text_width(title) + 1) * WIDE
    paper = f'<rect {_paint("paper")} x="{x}" y="{y - HIGH // 2}" width="{width}" height="{HIGH}"/>'
    return (
        _rect("frame", frame, corner=8, more=' stroke-dasharray="2 3"')
        + paper
        + _text("faint", x + WIDE // 2, y, title, "")
    )


def _node(outline: Outline, box: Box, name: str) -> str:
    mark_text = marks(outline, box.name)
    pauses = box.name in outline.interrupt_before or box.name in outline.interrupt_after
    kind = "end" if is_end(box.name) else "pause" if pauses else "node"
    corner = (box.height - 1) * HIGH // 2 if is_end(box.name) else 5
    dashes = ' stroke-dasharray="6 4"' if box.name in outline.deferred else ""
    shapes = [_rect(kind, box, corner=corner, more=dashes)]
    if box.name in outline.subgraphs:
        shapes.append(_rect(kind, box, inset=3, corner=3))
    x, y = _cell_centre((box.x, box.y + 1))
    x += (box.width - 1) * WIDE // 2
    shapes.append(_text("text", x, y, name))
    if mark_text:
        shapes.append(_text("faint", x, y + HIGH, mark_text, ' text-anchor="middle" font-size="11"'))
    return f"<g data-node={quoteattr(printable(box.name))}>{''.join(shapes)}</g>"


def _edge(route: Route) -> str:
    edge = route.edge
    points = [_cell_centre(point) for point in route.points]
    x, y = points[-1]
    points[-1] = (x, y - 6)
    dashes = ' stroke-dasharray="5 4"' if edge.conditional else ""
    caption = f"{edge.source} → {edge.target}" + (f" [{edge.label}]" if edge.label is not None else "")
    return (
        f"<g><title>{escape(printable(caption))}</title>"
        f'<path {_paint("line")} stroke-width="1.4"{dashes} d="{_curve(points)}"/>'
        f'<path {_paint("head")} d="M{x - 4} {y - 8}L{x + 4} {y - 8}L{x} {y}Z"/></g>'
    )


def _curve(points: list[Point]) -> str:
    """Return the path data of a route with rounded corners."""
    drawn = [f"M{points[0][0]} {points[0][1]}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        drawn.append(
            "L{} {}Q{} {} {} {}".format(*_point_toward(corner, before), *corner, *_point_toward(corner, after))
        )
    drawn.append(f"L{points[-1][0]} {points[-1][1]}")
    return "".join(drawn)


def _point_toward(corner: Point, other: Point) -> Point:
    """Return a point near a corner in the direction of another point, at most halfway."""
    across, down = other[0] - corner[0], other[1] - corner[1]
    reach = min(ROUND, (abs(across) + abs(down)) // 2)
    return corner[0] + (across > 0) * reach - (across < 0) * reach, corner[1] + (down > 0) * reach - (down < 0) * reach


def _label(at: Point, text: str) -> str:
    x, y = _cell_centre(at)
    width = text_width(text) * WIDE
    paper = f'<rect {_paint("paper")} x="{x - width // 2}" y="{y - HIGH // 2}" width="{width}" height="{HIGH}"/>'
    return paper + _text("faint", x, y, text)
