"""The drawing that users hold, and how a graph makes one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..types import END, START
from .model import Edge, Outline, arranged

# The renderers are imported by the methods that use them: a program that draws nothing does not load them.


class Drawing(Outline, frozen=True, kw_only=True):
    """A graph to be drawn: as mermaid, as SVG, as text in a terminal, as JSON. A notebook shows it as an image.

    Every output is a function of what the drawing holds: the same graph is drawn the same way each time.
    """

    subgraphs: Mapping[str, Drawing] = {}

    def expanded(self, depth: int | bool = True) -> Drawing:
        """The graphs of its nodes in the nodes' place, `depth` levels deep; True is all of them.

        A node `child` of the graph that node `name` runs is called `name:child`. What led to the node leads to where
        its graph starts, and what the node led to is reached from where its graph ends. A graph that contains itself
        stays a node there.
        """
        from .inline import inlined

        return inlined(self, depth)

    def draw_mermaid(self) -> str:
        """A mermaid flowchart."""
        from .mermaid import mermaid

        return mermaid(self)

    def draw_svg(self) -> str:
        """An SVG image: one element that stands alone, without scripts, and loads nothing."""
        from .svg import svg

        return svg(self)

    def draw_text(self, *, ascii: bool = False, width: int | None = 80) -> str:
        """Boxes and arrows for a terminal. Dotted lines are conditional, double borders are graphs.

        Args:
            ascii: use no other characters; those of names are written as escapes.
            width: what would be wider, in columns, is a list of nodes and where each leads. None draws it however wide.
        """
        from .text import text

        return text(self, ascii=ascii, width=width)

    def draw_ascii(self, *, width: int | None = 80) -> str:
        """`draw_text(ascii=True)`."""
        return self.draw_text(ascii=True, width=width)

    def to_json(self) -> dict[str, Any]:
        """Nodes and edges as values that JSON has.

        `nodes`: `id`, `type` (start, end, node, or graph for one that has a subgraph), `data` with the name to show,
        and where they say something `group` and `metadata` (`defer`: true; `__interrupt`: before, after, or both with
        a comma between).
        `edges`: `source`, `target`, and where they say something `data` (the label) and `conditional`: true.
        `groups`, in an expanded drawing: like nodes.
        """
        from .as_json import as_json

        return as_json(self)

    def _repr_svg_(self) -> str:
        return self.draw_svg()

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        """What a notebook shows: the image, or the text where it shows no images."""
        makers = {"image/svg+xml": self.draw_svg, "text/plain": self.draw_text}
        wanted = set(makers if include is None else include).difference(exclude or ())
        return {kind: make() for kind, make in makers.items() if kind in wanted}


def drawing(
    nodes: Iterable[str],
    edges: Iterable[Edge],
    deferred: Iterable[str] = frozenset(),
    *,
    interrupt_before: Iterable[str] = frozenset(),
    interrupt_after: Iterable[str] = frozenset(),
    subgraphs: Mapping[str, Drawing] | None = None,
) -> Drawing:
    """Nodes by name between start and end; each edge once."""
    edges = list(edges)
    ends = {name for edge in edges for name in (edge.source, edge.target)}
    shown = (
        [START] * (START in ends) + sorted(name for name in nodes if name not in (START, END)) + [END] * (END in ends)
    )
    return Drawing(
        nodes=tuple(shown),
        edges=arranged(shown, edges),
        deferred=frozenset(deferred),
        interrupt_before=frozenset(interrupt_before),
        interrupt_after=frozenset(interrupt_after),
        subgraphs={} if subgraphs is None else subgraphs,
    )
