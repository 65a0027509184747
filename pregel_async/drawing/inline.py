"""Graphs within a graph, put in the place of the nodes that run them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from .._api.drawing import Edge, Outline, sort_edges
from ..types import END, START
from .model import is_end

OutlineT = TypeVar("OutlineT", bound=Outline)

# The two faces of an expanded node while edges are joined: what leads in, and what leads out. No node is called so.
_IN, _OUT = "\0in", "\0out"


def inlined(outline: OutlineT, depth: int | bool, above: tuple[Outline, ...] = ()) -> OutlineT:
    """The outline with the graphs of its nodes in the nodes' place, `depth` levels deep.

    Args:
        outline: what to expand.
        depth: how many levels; True is all of them, False and 0 none.
        above: the graphs that this one is being put into. One that contains itself is left a node there.
    """
    if depth is not True and depth <= 0:
        return outline
    line: tuple[Outline, ...] = (*above, outline)
    for name, within in outline.subgraphs.items():
        if name in outline.nodes and not any(within is one for one in line):
            inner = inlined(within, True if depth is True else depth - 1, line)
            outline = _replaced(outline, name, inner)
    return outline


def _replaced(outline: OutlineT, name: str, inner: Outline) -> OutlineT:
    """The outline with one node replaced by a graph."""
    new = {one: f"{name}:{one}" for one in (*inner.nodes, *inner.groups) if not is_end(one)}
    members = [new[one] for one in inner.nodes if one in new]
    if not members or not {*outline.nodes, *outline.groups}.isdisjoint(new.values()):
        return outline  # nothing to show instead, or it could not be told from what is there
    at = outline.nodes.index(name)
    nodes = (*outline.nodes[:at], *members, *outline.nodes[at + 1 :])
    inside = {one for held in inner.groups.values() for one in held}
    groups = {
        **outline.groups,
        name: tuple(new[one] for one in (*inner.groups, *inner.nodes) if one in new and one not in inside),
        **{new[group]: tuple(new[one] for one in held) for group, held in inner.groups.items()},
    }

    def marked(outer: frozenset[str], inner_: frozenset[str]) -> frozenset[str]:
        return outer | {new[one] for one in inner_ if one in new}

    return msgspec.structs.replace(
        outline,
        nodes=nodes,
        edges=sort_edges(nodes, _joined(outline, name, inner, new)),
        deferred=marked(outline.deferred, inner.deferred),
        interrupt_before=marked(outline.interrupt_before, inner.interrupt_before),
        interrupt_after=marked(outline.interrupt_after, inner.interrupt_after),
        subgraphs={
            **{one: within for one, within in outline.subgraphs.items() if one != name},
            **{new[one]: within for one, within in inner.subgraphs.items() if one in new},
        },
        groups=groups,
    )


def _joined(outline: Outline, name: str, inner: Outline, new: dict[str, str]) -> Iterable[Edge]:
    """The edges of both: those that met the node are joined with those that meet the graph's start and end."""
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
            source=_IN if edge.source == START else new[edge.source],
            target=_OUT if edge.target == END else new[edge.target],
        )
        for edge in _with_ends(inner)
    ]
    return _without(_without(edges, _IN), _OUT)


def _with_ends(inner: Outline) -> list[Edge]:
    """A graph's edges, its start and its end among them even where it does not say.

    Nodes that nothing leads to are its start then, and nodes that lead nowhere its end: nodes of the low level are
    triggered by channels, and a command may end a graph where no edge does. In a loop that says neither, it is the
    first node and the last.
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


def _without(edges: list[Edge], point: str) -> list[Edge]:
    """The edges with a point taken out: whatever led to it leads to all that it led to."""
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
