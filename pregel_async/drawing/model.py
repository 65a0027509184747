"""A graph as nodes and edges, and as mermaid text."""

from __future__ import annotations

import re

import msgspec

from ..types import END, START


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


class Drawing(msgspec.Struct, frozen=True, kw_only=True):
    """A graph to be drawn.

    Attributes:
        nodes: names, `__start__` first and `__end__` last where they have edges.
        edges: in the order of the nodes.
        deferred: nodes that wait until nothing else is left to run.
    """

    nodes: tuple[str, ...]
    edges: tuple[Edge, ...]
    deferred: frozenset[str] = frozenset()

    def draw_mermaid(self) -> str:
        """A mermaid flowchart."""
        ids = {name: f"n{index}_{re.sub(r'[^0-9A-Za-z]', '_', name)}" for index, name in enumerate(self.nodes)}
        lines = ["flowchart TD"]
        for name in self.nodes:
            text = _quoted(name + (" (deferred)" if name in self.deferred else ""))
            lines.append(f"    {ids[name]}([{text}])" if name in (START, END) else f"    {ids[name]}[{text}]")
        for edge in self.edges:
            arrow = "-.->" if edge.conditional else "-->"
            label = f"|{_quoted(edge.label)}|" if edge.label is not None else ""
            lines.append(f"    {ids[edge.source]} {arrow}{label} {ids[edge.target]}")
        return "\n".join(lines) + "\n"


def drawing(nodes: list[str], edges: list[Edge], deferred: frozenset[str] = frozenset()) -> Drawing:
    """Nodes by name between start and end; each edge once."""
    ends = {name for edge in edges for name in (edge.source, edge.target)}
    shown = (
        [START] * (START in ends) + sorted(name for name in nodes if name not in (START, END)) + [END] * (END in ends)
    )
    place = {name: index for index, name in enumerate(shown)}
    once = dict.fromkeys(edges)
    ordered = sorted(
        once, key=lambda edge: (place[edge.source], place[edge.target], edge.conditional, edge.label or "")
    )
    return Drawing(nodes=tuple(shown), edges=tuple(ordered), deferred=deferred)


def _quoted(text: str) -> str:
    return '"' + text.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;") + '"'
