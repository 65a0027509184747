"""The nodes and edges of a graph, and the object with which users draw them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Never

import msgspec

from .._runtime.tasks.run_options import RunOptions
from ..types import END, START
from .plugins import plugin


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """An edge of a drawing.

    Attributes:
        source: the name of the node that the edge leaves.
        target: the name of the node that the edge leads to.
        conditional: True if a router decides whether the edge is taken.
        label: the value for which the router takes the edge, if it is not the target's name; else None.
    """

    source: str
    target: str
    conditional: bool = False
    label: str | None = None

    @property
    def data(self) -> str | None:
        """The label, under LangGraph's name."""
        return self.label


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a drawing. Renderers read it, and `Drawing` has the renderers as methods.

    Attributes:
        nodes: the names of the nodes, `__start__` first and `__end__` last if they have edges.
        edges: the edges, in the order of the nodes.
        deferred: the nodes that wait until nothing else is left to run.
        interrupt_before: the nodes before which a run pauses.
        interrupt_after: the nodes after which a run pauses.
        subgraphs: the drawings of the subgraphs, by node.
        groups: for each expanded node, the names of the nodes and groups directly in it. `deferred`,
            `interrupt_before` and `interrupt_after` may name groups too.
    """

    nodes: tuple[str, ...]
    edges: tuple[Edge, ...]
    deferred: frozenset[str] = frozenset()
    interrupt_before: frozenset[str] = frozenset()
    interrupt_after: frozenset[str] = frozenset()
    subgraphs: Mapping[str, Outline] = {}
    groups: Mapping[str, tuple[str, ...]] = {}


def sort_edges(nodes: Iterable[str], edges: Iterable[Edge]) -> tuple[Edge, ...]:
    """Return the edges without duplicates, in the order of the nodes."""
    index = {name: index for index, name in enumerate(nodes)}
    return tuple(
        sorted(
            dict.fromkeys(edges),
            key=lambda edge: (index[edge.source], index[edge.target], edge.conditional, edge.label or ""),
        )
    )


class Drawing(Outline, frozen=True, kw_only=True):
    """A drawing of a graph, which renders itself as mermaid, SVG, text or JSON. A notebook shows it as an image.

    The same graph gives the same output each time.
    """

    subgraphs: Mapping[str, Drawing] = {}

    def with_marks(self, options: RunOptions, subgraphs: Mapping[str, Drawing]) -> Drawing:
        """Add breakpoints and subgraphs to the drawing.

        Args:
            options: the options of the graph's runs, with its breakpoints.
            subgraphs: the drawings of the subgraphs, by node.

        Returns:
            A new drawing.
        """
        before, after = options.interrupt_before, options.interrupt_after
        return msgspec.structs.replace(self, interrupt_before=before, interrupt_after=after, subgraphs=subgraphs)

    def expanded(self, depth: int | bool = True) -> Drawing:
        """Replace the nodes that run subgraphs by the nodes of these subgraphs.

        A node `child` of the subgraph of node `name` is named `name:child`. Edges to the node lead to the subgraph's
        first nodes, and edges from the node start at the subgraph's last nodes. A graph that runs itself stays a node.

        Args:
            depth: the number of levels to expand; True for all, False for none.

        Returns:
            A new drawing.
        """
        expanded: Drawing = plugin("renderers", "inline").inlined(self, depth)
        return expanded

    def draw_mermaid(self) -> str:
        """Render the graph as a mermaid flowchart.

        Returns:
            The source text of the flowchart.
        """
        chart: str = plugin("renderers", "mermaid").mermaid(self)
        return chart

    def draw_svg(self) -> str:
        """Render the graph as an SVG image.

        Returns:
            One self-contained `<svg>` element, without scripts and external resources.
        """
        image: str = plugin("renderers", "svg").svg(self)
        return image

    def draw_mermaid_png(self, **options: Any) -> Never:
        """Raise an error: LangGraph's method needs a browser or a web service.

        Args:
            **options: not used.

        Raises:
            NotImplementedError: always. It names `draw_svg`, which needs neither.
        """
        raise NotImplementedError(
            "draw_mermaid_png() needs a browser or a web service: write draw_svg() to a file, which needs neither, or "
            "draw_mermaid(), the source of the same chart"
        )

    def draw_text(self, *, ascii: bool = False, width: int | None = 80) -> str:
        """Render the graph as boxes and arrows for a terminal. Dotted lines are conditional, double borders subgraphs.

        Args:
            ascii: True to use ASCII characters only; other characters of names are escaped.
            width: the greatest width, in columns. A graph that needs more is rendered as a list of nodes with their
                targets. None for no limit.

        Returns:
            The text, of several lines.
        """
        drawn: str = plugin("renderers", "text").text(self, ascii=ascii, width=width)
        return drawn

    def draw_ascii(self, *, width: int | None = 80) -> str:
        """Render the graph as boxes and arrows in ASCII: `draw_text(ascii=True)`.

        Args:
            width: as in `draw_text`, in columns.

        Returns:
            The text, of several lines.
        """
        return self.draw_text(ascii=True, width=width)

    def to_json(self) -> dict[str, Any]:
        """Render nodes and edges as values that can be encoded as JSON.

        Returns:
            A dict of lists. `nodes` have `id`, `type` ("start", "end", "node", or "graph" for a node with a subgraph),
            `data` with the name to show, and optionally `group` and `metadata` (`defer`: true; `__interrupt`: "before",
            "after" or "before,after"). `edges` have `source`, `target`, and optionally `data` (the label) and
            `conditional`: true. `groups`, in an expanded drawing, are like nodes.
        """
        values: dict[str, Any] = plugin("renderers", "as_json").as_json(self)
        return values

    def _repr_svg_(self) -> str:
        return self.draw_svg()

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        """Return the image for a notebook, and the text for one without images."""
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
    """Make a drawing from nodes and edges.

    Args:
        nodes: the names of the nodes, in any order.
        edges: the edges, in any order; duplicates are dropped.
        deferred: the nodes that wait until nothing else is left to run.
        interrupt_before: the nodes before which a run pauses.
        interrupt_after: the nodes after which a run pauses.
        subgraphs: the drawings of the subgraphs, by node; None for none.

    Returns:
        The drawing, with nodes sorted by name between start and end.
    """
    edges = list(edges)
    ends = {name for edge in edges for name in (edge.source, edge.target)}
    shown = (
        [START] * (START in ends) + sorted(name for name in nodes if name not in (START, END)) + [END] * (END in ends)
    )
    return Drawing(
        nodes=tuple(shown),
        edges=sort_edges(shown, edges),
        deferred=frozenset(deferred),
        interrupt_before=frozenset(interrupt_before),
        interrupt_after=frozenset(interrupt_after),
        subgraphs={} if subgraphs is None else subgraphs,
    )
