"""Replace nodes by the graphs that they run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from .._api.drawing import Edge, Outline, sort_edges
from ..types import END, START
from .model import is_end

OutlineT = TypeVar("OutlineT", bound=Outline)

# Stand-ins for an expanded node while edges are joined, one for edges that lead in and one for edges that lead out. No
# node has such a name.
_IN, _OUT = "\0in", "\0out"


def inlined(outline: OutlineT, depth: int | bool, above: tuple[Outline, ...] = ()) -> OutlineT:
    """Return the outline with nodes replaced by their graphs, `depth` levels deep.

    Args:
        outline: the drawing to expand.
        depth: the number of levels; True for all of them, False or 0 for none.
        above: the graphs that contain this one. A node that runs one of them is not replaced, which would never end.

    Returns:
        The expanded outline.
    """
    if depth is not True and depth <= 0:
        return outline
    chain: tuple[Outline, ...] = (*above, outline)
    for name, subgraph in outline.subgraphs.items():
        if name in outline.nodes and not any(subgraph is one for one in chain):
            inner = inlined(subgraph, True if depth is True else depth - 1, chain)
            outline = _replace_node(outline, name, inner)
    return outline


def _replace_node(outline: OutlineT, name: str, inner: Outline) -> OutlineT:
    """Return the outline with one node replaced by a graph."""
    renamed = {one: f"{name}:{one}" for one in (*inner.nodes, *inner.groups) if not is_end(one)}
    members = [renamed[one] for one in inner.nodes if one in renamed]
    if not members or not {*outline.nodes, *outline.groups}.isdisjoint(renamed.values()):
        return outline  # the graph has no nodes, or a new name would be ambiguous
    at = outline.nodes.index(name)
    nodes = (*outline.nodes[:at], *members, *outline.nodes[at + 1 :])
    inside = {one for held in inner.groups.values() for one in held}
    groups = {
        **outline.groups,
        name: tuple(renamed[one] for one in (*inner.groups, *inner.nodes) if one in renamed and one not in inside),
        **{renamed[group]: tuple(renamed[one] for one in held) for group, held in inner.groups.items()},
    }

    def marked(outer: frozenset[str], inner_: frozenset[str]) -> frozenset[str]:
        return outer | {renamed[one] for one in inner_ if one in renamed}

    return msgspec.structs.replace(
        outline,
        nodes=nodes,
        edges=sort_edges(nodes, _join_edges(outline, name, inner, renamed)),
        deferred=marked(outline.deferred, inner.deferred),
        interrupt_before=marked(outline.interrupt_before, inner.interrupt_before),
        interrupt_after=marked(outline.interrupt_after, inner.interrupt_after),
        subgraphs={
            **{one: subgraph for one, subgraph in outline.subgraphs.items() if one != name},
            **{renamed[one]: subgraph for one, subgraph in inner.subgraphs.items() if one in renamed},
        },
        groups=groups,
    )


def _join_edges(outline: Outline, name: str, inner: Outline, renamed: dict[str, str]) -> Iterable[Edge]:
    """Return the edges of both graphs, with the edges of the node joined to those of the graph's start and end."""
    edges = [
        msgspec.structs.replace(
            edge,
            source=_OUT if edge.source == name else edge.source,
            target=_IN if edge.target == name else edge.target,
        )
        for edge in outline.edges
    ]
    edges += [
        msgspec.structs.replace(
            edge,
            source=_IN if edge.source == START else renamed[edge.source],
            target=_OUT if edge.target == END else renamed[edge.target],
        )
        for edge in _edges_with_ends(inner)
    ]
    return _bypass(_bypass(edges, _IN), _OUT)


def _edges_with_ends(inner: Outline) -> list[Edge]:
    """Return a graph's edges, with edges from its start and to its end added if it has none.

    Low-level nodes are triggered by channels, and a command may end a graph without an edge. In such graphs, the start
    leads to the nodes without incoming edges, and nodes without outgoing edges lead to the end. In a loop with neither,
    the first node and the last node are used.
    """
    nodes = [one for one in inner.nodes if not is_end(one)]
    edges = list(inner.edges)
    if all(edge.source != START for edge in edges):
        entered = {edge.target for edge in edges if edge.source != edge.target}
        entries = [one for one in nodes if one not in entered] or nodes[:1]
        edges += [Edge(source=START, target=one) for one in entries]
    if all(edge.target != END for edge in edges):
        left = {edge.source for edge in edges if edge.source != edge.target}
        edges += [Edge(source=one, target=END) for one in nodes if one not in left] or [
            Edge(source=nodes[-1], target=END)
        ]
    return edges


def _bypass(edges: list[Edge], point: str) -> list[Edge]:
    """Return the edges without a point: each edge to it is joined with each edge from it."""
    before = [edge for edge in edges if edge.target == point and edge.source != point]
    after = [edge for edge in edges if edge.source == point and edge.target != point]
    through = [
        Edge(
            source=one.source,
            target=two.target,
            conditional=one.conditional or two.conditional,
            label=" / ".join(label for label in (one.label, two.label) if label is not None) or None,
        )
        for one in before
        for two in after
    ]
    return [edge for edge in edges if point not in (edge.source, edge.target)] + through
