"""A graph as nodes and edges, and the object that users draw it with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from .._runtime.tasks.run_options import RunOptions
from ..types import END, START
from .plugins import plugin


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """Where control may go.

    Attributes:
        conditional: a router decides.
        label: what the router says for it, when that is not the target's name.
    """

    source: str
    target: str
    conditional: bool = False
    label: str | None = None


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """A graph as it will be drawn. The renderers read it, and `Drawing` adds them as methods.

    Attributes:
        nodes: names, `__start__` first and `__end__` last where they have edges.
        edges: in the order of the nodes.
        deferred: nodes that wait until nothing else is left to run.
        interrupt_before: nodes before which a run pauses.
        interrupt_after: nodes after which a run pauses.
        subgraphs: the graphs of nodes that are graphs themselves, by the node's name.
        groups: what an expanded node was replaced by: the names of the nodes and groups directly in it, by its name.
            The three marks above may name a group as well.
    """

    nodes: tuple[str, ...]
    edges: tuple[Edge, ...]
    deferred: frozenset[str] = frozenset()
    interrupt_before: frozenset[str] = frozenset()
    interrupt_after: frozenset[str] = frozenset()
    subgraphs: Mapping[str, Outline] = {}
    groups: Mapping[str, tuple[str, ...]] = {}


def sort_edges(nodes: Iterable[str], edges: Iterable[Edge]) -> tuple[Edge, ...]:
    """Each edge once, in the order of the nodes."""
    index = {name: index for index, name in enumerate(nodes)}
    return tuple(
        sorted(
            dict.fromkeys(edges),
            key=lambda edge: (index[edge.source], index[edge.target], edge.conditional, edge.label or ""),
        )
    )


class Drawing(Outline, frozen=True, kw_only=True):
    """A graph to be drawn: as mermaid, as SVG, as text in a terminal, as JSON. A notebook shows it as an image.

    Every output is a function of what the drawing holds: the same graph is drawn the same way each time.
    """

    subgraphs: Mapping[str, Drawing] = {}

    def with_marks(self, options: RunOptions, subgraphs: Mapping[str, Drawing]) -> Drawing:
        """Return the drawing with where the graph's runs stop, and with the graphs that its nodes are."""
        before, after = options.interrupt_before, options.interrupt_after
        return msgspec.structs.replace(self, interrupt_before=before, interrupt_after=after, subgraphs=subgraphs)

    def expanded(self, depth: int | bool = True) -> Drawing:
        """The graphs of its nodes in the nodes' place, `depth` levels deep; True is all of them.

        A node `child` of the graph that node `name` runs is called `name:child`. What led to the node leads to where
        its graph starts, and what the node led to is reached from where its graph ends. A graph that contains itself
        stays a node there.
        """
        expanded: Drawing = plugin("renderers", "inline").inlined(self, depth)
        return expanded

    def draw_mermaid(self) -> str:
        """A mermaid flowchart."""
        chart: str = plugin("renderers", "mermaid").mermaid(self)
        return chart

    def draw_svg(self) -> str:
        """An SVG image: one element that stands alone, without scripts, and loads nothing."""
        image: str = plugin("renderers", "svg").svg(self)
        return image

    def draw_text(self, *, ascii: bool = False, width: int | None = 80) -> str:
        """Boxes and arrows for a terminal. Dotted lines are conditional, double borders are graphs.

        Args:
            ascii: use no other characters; those of names are written as escapes.
            width: what would be wider, in columns, is a list of nodes and where each leads. None draws it however wide.
        """
        drawn: str = plugin("renderers", "text").text(self, ascii=ascii, width=width)
        return drawn

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
        values: dict[str, Any] = plugin("renderers", "as_json").as_json(self)
        return values

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
        edges=sort_edges(shown, edges),
        deferred=frozenset(deferred),
        interrupt_before=frozenset(interrupt_before),
        interrupt_after=frozenset(interrupt_after),
        subgraphs={} if subgraphs is None else subgraphs,
    )
