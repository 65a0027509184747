"""Plots as SVG without a library: bars and lines on logarithmic scales, since engines differ by orders of magnitude."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from .engines import LIMIT, MICROSOFT, OURS, PEER, PYDANTIC, TRIO, UVLOOP

COLOURS = {
    OURS: "#1f6feb",
    UVLOOP: "#0a3d91",
    TRIO: "#2fa4c7",
    PEER: "#d9822b",
    PYDANTIC: "#c2337b",
    MICROSOFT: "#7a5cc4",
    LIMIT: "#57606a",
}
WIDTH = 720
INK, FAINT = "#24292f", "#d8dee4"


def number(value: float) -> str:
    """Format a number with three significant digits and separated thousands."""
    value = float(f"{value:.3g}") if value < 1000 else value
    if value >= 100 or value == 0:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.{2 - math.floor(math.log10(value))}f}"


def _text(x: float, y: float, text: str, anchor: str = "start", **style: str) -> str:
    extra = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _picture(title: str, height: float, parts: Sequence[str]) -> str:
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
            f'height="{height:.0f}" font-family="sans-serif" font-size="12" fill="{INK}" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{height:.0f}" rx="6" fill="#ffffff"/>',
            _text(16, 24, title, font_size="14", font_weight="bold"),
            *parts,
            "</svg>",
            "",
        )
    )


class Scale:
    """A logarithmic scale over some pixels, which begins and ends at 1, 2 or 5 times a power of ten."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        marks = [lead * 10.0**power for power in range(-6, 10) for lead in (1, 2, 5)]
        low = max(mark for mark in marks if mark <= min(values))
        high = min(mark for mark in marks if mark >= max(values) and mark > low)
        self.marks = [mark for mark in marks if low <= mark <= high]
        if len(self.marks) > 7:
            self.marks = [mark for mark in self.marks if f"{mark:e}".startswith("1")]
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value: float) -> float:
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + part * (self.end - self.start)


def bars(title: str, groups: Mapping[str, Mapping[str, float]], titles: Mapping[str, str]) -> str:
    """Draw a bar for each engine, in groups.

    Args:
        title: what is shown, with its unit.
        groups: values by engine, by the name of the group.
        titles: what engines are called.
    """
    values = [value for group in groups.values() for value in group.values()]
    scale = Scale([min(values) * 0.7, max(values)], 150, WIDTH - 90)
    parts: list[str] = []
    y = 44.0
    for name, group in groups.items():
        parts.append(_text(16, y + 12, name, font_weight="bold"))
        y += 20
        for engine, value in group.items():
            x = scale(value)
            parts.append(_text(142, y + 13, titles[engine], "end"))
            parts.append(
                f'<rect x="150" y="{y + 2:.1f}" width="{x - 150:.1f}" height="15" rx="2" fill="{COLOURS[engine]}"/>'
            )
            parts.append(_text(x + 6, y + 13, number(value)))
            y += 20
        y += 10
    axis = [_line(scale(mark), 64, scale(mark), y - 4, FAINT) for mark in scale.marks]
    axis += [_text(scale(mark), y + 10, f"{mark:g}", "middle", fill="#57606a") for mark in scale.marks]
    return _picture(title, y + 24, [*axis, *parts])


def lines(title: str, across: str, series: Mapping[str, Mapping[float, float]], titles: Mapping[str, str]) -> str:
    """Draw a line for each engine, both scales logarithmic.

    Args:
        title: what is shown upwards, with its unit.
        across: what is shown across.
        series: values by place across, by engine.
        titles: what engines are called.
    """
    places = sorted({place for each in series.values() for place in each})
    right, left, top, bottom = WIDTH - 170, 70, 48, 320
    x = Scale(places, left, right)
    y = Scale([value for each in series.values() for value in each.values()], bottom, top)
    parts = [_line(left, y(mark), right, y(mark), FAINT) for mark in y.marks]
    parts += [_text(left - 8, y(mark) + 4, f"{mark:g}", "end", fill="#57606a") for mark in y.marks]
    parts += [_text(x(place), bottom + 18, f"{place:,.0f}".replace(",", " "), "middle") for place in places]
    parts.append(_text((left + right) / 2, bottom + 36, across, "middle", fill="#57606a"))
    ends: list[tuple[float, str]] = []
    for engine, each in series.items():
        points = [(x(place), y(value)) for place, value in sorted(each.items())]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[engine]}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{COLOURS[engine]}"/>' for a, b in points]
        ends.append((points[-1][1], engine))
    at = float("-inf")
    for height, engine in sorted(ends):
        at = max(at + 15, height + 4)  # names of lines that end together stand one below the other
        last = series[engine][max(series[engine])]
        parts.append(_text(right + 10, at, f"{titles[engine]} {number(last)}", fill=COLOURS[engine]))
    return _picture(title, bottom + 50, parts)
