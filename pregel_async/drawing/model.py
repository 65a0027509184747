"""What a drawing shows, as data: nodes, edges, marks, the graphs within, and what belongs together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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


def arranged(nodes: Iterable[str], edges: Iterable[Edge]) -> tuple[Edge, ...]:
    """Each edge once, in the order of the nodes."""
    place = {name: index for index, name in enumerate(nodes)}
    return tuple(
        sorted(
            dict.fromkeys(edges),
            key=lambda edge: (place[edge.source], place[edge.target], edge.conditional, edge.label or ""),
        )
    )


def paths(outline: Outline) -> dict[str, tuple[str, ...]]:
    """The groups that each node and each group lies in, outermost first."""
    around = {name: group for group, members in outline.groups.items() for name in members}
    found: dict[str, tuple[str, ...]] = {}
    for name in (*outline.groups, *outline.nodes):
        path: list[str] = []
        at = name
        while at in around:
            at = around[at]
            path.append(at)
        found[name] = tuple(reversed(path))
    return found


def short(name: str, path: tuple[str, ...]) -> str:
    """A name without the group that it is shown in."""
    return name.removeprefix(path[-1] + ":") if path else name


def marks(outline: Outline, name: str) -> str:
    """What is special about a node or group: "deferred, interrupt before"; empty when nothing is."""
    said = ["deferred"] if name in outline.deferred else []
    pauses = [
        word
        for word, names in (("before", outline.interrupt_before), ("after", outline.interrupt_after))
        if name in names
    ]
    if pauses:
        said.append("interrupt " + " and ".join(pauses))
    return ", ".join(said)


def printable(text: str) -> str:
    """A text on one line, with nothing in it that would not be seen: no escape of a terminal, nothing XML refuses."""
    return "".join(one if one.isprintable() else " " if one.isspace() else "\ufffd" for one in text)


def is_end(name: str) -> bool:
    """Whether a node is where the graph begins or ends, rather than one that runs."""
    return name in (START, END)


def cells(text: str) -> int:
    """Columns that a text takes in a terminal."""
    return sum(character_cells(one) for one in text)


def character_cells(character: str) -> int:
    """Columns that a character takes; a mark that goes on the one before takes none."""
    import unicodedata

    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
