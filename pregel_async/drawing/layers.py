"""Assign nodes to rows, and order each row: the first half of a layered drawing. The second half is `layout`.

Edges that close a cycle are left out when rows are assigned. Rows are longest paths. An edge over several rows gets a
bend in each row between, and sweeps order the rows to reduce crossings.

Source: Sugiyama, Tagawa, Toda, "Methods for Visual Understanding of Hierarchical System Structures" (1981); the borders
of groups as rows of their own, Sander, "Layout of Compound Directed Graphs" (1996).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from itertools import pairwise
from typing import Literal, TypeAlias, TypeVar

import msgspec

from .._api.drawing import Edge, Outline
from ..types import START
from .model import paths

Vertex: TypeAlias = str | tuple[Literal["top", "bottom"], str]
"""A vertex that is assigned a row: a node, or the border of a group."""

KeyT = TypeVar("KeyT", bound=Hashable)

SWEEPS = 8
FEW_SWEEPS = 2
MANY_ITEMS = 3000
"""From this number of items on, there are only `FEW_SWEEPS`: more would bring no visible gain."""


class RowItem(msgspec.Struct, eq=False, kw_only=True):
    """An item in a row. Items are changed while a layout is made, and not used afterwards.

    Attributes:
        index: its number in the drawing, in the order in which items are made.
        kind: a node; a bend of an edge; the title of a group, in its first row; or a filler, which reserves space for a
            group in a row where the group has no other item.
        row: the number of its row, from 0.
        path: the groups that contain it, outermost first.
        name: of a node or group.
        width, height: in cells.
        up: the items that edges connect it with in the row above; `down`, in the row below.
        anchor: for the first and last bend of an edge that leads upwards, the node in the same row that it belongs to.
        position: its index in its row during the sweeps.
        x: its first column; `column`, of a bend, the column of its line.
    """

    index: int
    kind: Literal["node", "bend", "title", "filler"]
    row: int
    path: tuple[str, ...]
    name: str = ""
    width: int = 3
    height: int = 1
    up: list[RowItem] = []
    down: list[RowItem] = []
    anchor: RowItem | None = None
    position: float = 0
    x: int = 0
    column: int = 0


class Chain(msgspec.Struct, eq=False, kw_only=True):
    """An edge with its bends, in its direction.

    An edge that leads upwards also has a bend in the row of each of its ends.

    Attributes:
        labelled: the bend that carries the label; None if there is no label.
    """

    edge: Edge
    source: RowItem
    target: RowItem
    bends: list[RowItem]
    upward: bool
    labelled: RowItem | None = None


class Layering(msgspec.Struct, kw_only=True):
    """The rows in order, the edges through them, and each group's first and last row, outer groups first."""

    rows: list[list[RowItem]]
    chains: list[Chain]
    spans: dict[str, tuple[int, int]]


def assign_layers(
    outline: Outline, size: Callable[[str], tuple[int, int]], title: Callable[[str], int], label: Callable[[Edge], int]
) -> Layering:
    """Assign the nodes, bends and groups of a drawing to rows.

    Args:
        outline: the drawing.
        size: returns the width and height of a node's box, in cells.
        title: returns the width of a group's title, in cells.
        label: returns the width of an edge's label, in cells; 0 for an edge without label.

    Returns:
        The rows, with the items of each in their order.
    """
    path = paths(outline)
    upward = _cycle_edges(outline)
    row = _assign_rows(outline, path, upward, label)
    layering = Layering(
        rows=[[] for _ in range(max(row.values(), default=-1) + 1)],
        chains=[],
        spans={
            group: (row["top", group], row["bottom", group])
            for group in sorted(outline.groups, key=lambda group: len(path[group]))
        },
    )
    items: list[RowItem] = []

    def add(item: RowItem) -> RowItem:
        item.index = len(items)
        items.append(item)
        layering.rows[item.row].append(item)
        return item

    for group, (top, _) in layering.spans.items():
        add(RowItem(index=0, kind="title", row=top, path=(*path[group], group), name=group, width=title(group) + 2))
    leaving, entering = Counter(e.source for e in outline.edges), Counter(e.target for e in outline.edges)
    nodes: dict[str, RowItem] = {}
    for name in outline.nodes:
        width, height = size(name)
        # Space for an edge in every other column, so that `layout` always finds a free column.
        width = max(width, 2 * max(leaving[name], entering[name]) + 3)
        nodes[name] = add(
            RowItem(index=0, kind="node", row=row[name], path=path[name], name=name, width=width, height=height)
        )
    for number, edge in enumerate(outline.edges):
        source, target = nodes[edge.source], nodes[edge.target]
        up = number in upward
        between = range(source.row, target.row - 1, -1) if up else range(source.row + 1, target.row)
        bends = [
            add(
                RowItem(
                    index=0,
                    kind="bend",
                    row=row_index,
                    path=_bend_groups(row_index, source.path, target.path, layering.spans),
                )
            )
            for row_index in between
        ]
        chain = Chain(edge=edge, source=source, target=target, bends=bends, upward=up)
        layering.chains.append(chain)
        if wide := label(edge):
            off_borders = [bend for bend in bends if all(bend.row not in layering.spans[group] for group in bend.path)]
            chain.labelled = (off_borders or bends)[0]
            chain.labelled.width = wide + 4
        if up:
            bends[0].anchor, bends[-1].anchor = source, target
        for one, two in pairwise(bends if up else [source, *bends, target]):
            above, below = (two, one) if up else (one, two)
            above.down.append(below)
            below.up.append(above)
    for group, (top, bottom) in layering.spans.items():
        for row_index in range(top + 1, bottom + 1):
            if all(group not in item.path for item in layering.rows[row_index]):
                add(RowItem(index=0, kind="filler", row=row_index, path=(*path[group], group), width=1))
    _order_rows(layering)
    return layering


def _cycle_edges(outline: Outline) -> frozenset[int]:
    """Return the numbers of the edges that close a cycle: those that lead back in a depth-first search."""
    leaving: dict[str, list[tuple[int, str]]] = {name: [] for name in outline.nodes}
    for number, edge in enumerate(outline.edges):
        leaving[edge.source].append((number, edge.target))
    entered = {edge.target for edge in outline.edges}
    roots = sorted(outline.nodes, key=lambda name: (name != START, name in entered))
    open_, done, closing = set[str](), set[str](), set[int]()
    for root in roots:
        if root in done:
            continue
        open_.add(root)
        stack = [(root, iter(leaving[root]))]
        while stack:
            name, rest = stack[-1]
            for number, target in rest:
                if target in open_:
                    closing.add(number)
                elif target not in done:
                    open_.add(target)
                    stack.append((target, iter(leaving[target])))
                    break
            else:
                stack.pop()
                open_.discard(name)
                done.add(name)
    return frozenset(closing)


def _assign_rows(
    outline: Outline, path: Mapping[str, tuple[str, ...]], upward: frozenset[int], label: Callable[[Edge], int]
) -> dict[Vertex, int]:
    """Return the row of each node and border: the length of the longest path to it."""
    after: dict[Vertex, list[tuple[Vertex, int]]] = {name: [] for name in outline.nodes}
    for group in outline.groups:
        after["top", group], after["bottom", group] = [], []
    for name in (*outline.groups, *outline.nodes):
        if path[name]:
            top: Vertex = ("top", name) if name in outline.groups else name
            bottom: Vertex = ("bottom", name) if name in outline.groups else name
            after["top", path[name][-1]].append((top, 1))
            after[bottom].append((("bottom", path[name][-1]), 1))
    downward = [edge for number, edge in enumerate(outline.edges) if number not in upward]
    for edge in downward:
        after[edge.source].append((edge.target, 2 if label(edge) else 1))  # a label has a row of its own
    for edge in downward:
        # An edge into a group enters through the group's top, and an edge out of it leaves through its bottom. If that
        # would close a cycle of rows, the edge crosses the frame's side instead.
        own, other = path[edge.source], path[edge.target]
        out = next((group for group in own if group not in other), None)
        into = next((group for group in other if group not in own), None)
        one: Vertex = edge.source if out is None else ("bottom", out)
        two: Vertex = edge.target if into is None else ("top", into)
        if (out or into) and not _reaches(after, two, one):
            after[one].append((two, 2 if label(edge) else 1))
    return longest_paths(after, dict.fromkeys(after, 0))


def _reaches(after: Mapping[Vertex, list[tuple[Vertex, int]]], start: Vertex, end: Vertex) -> bool:
    seen, todo = {start}, [start]
    while todo:
        if (vertex := todo.pop()) == end:
            return True
        for then, _ in after[vertex]:
            if then not in seen:
                seen.add(then)
                todo.append(then)
    return False


def longest_paths(after: Mapping[KeyT, list[tuple[KeyT, int]]], least: Mapping[KeyT, int]) -> dict[KeyT, int]:
    """Return the length of the longest path to each vertex of an acyclic graph.

    Args:
        after: for each vertex, the vertices after it and their minimum distances from it.
        least: the smallest value of each vertex.

    Returns:
        The smallest values that satisfy all minimum distances.
    """
    waiting = Counter(then for following in after.values() for then, _ in following)
    found = dict(least)
    ready = [key for key in after if not waiting[key]]
    for key in ready:
        for then, far in after[key]:
            found[then] = max(found[then], found[key] + far)
            waiting[then] -= 1
            if not waiting[then]:
                ready.append(then)
    return found


def _bend_groups(
    row: int, source: tuple[str, ...], target: tuple[str, ...], spans: Mapping[str, tuple[int, int]]
) -> tuple[str, ...]:
    """Return the groups that contain a bend: the innermost of either end in this row, or else those common to both."""
    common = [one for one, two in zip(source, target, strict=False) if one == two]
    for path in (source, target):
        inside = [group for group in path if spans[group][0] <= row <= spans[group][1]]
        if len(inside) > len(common):
            return tuple(inside)
    return tuple(common)


def _order_rows(layering: Layering) -> None:
    """Order each row by the barycentres of its items' neighbours in the row above, then in the row below, in turn.

    A group's items are adjacent in each row, and two groups have the same order in every row that both are in. Because
    a group has one place for all of its rows, `layout` can draw a frame around it that contains no other items.
    """
    items = [item for row in layering.rows for item in row]
    homes = {item.path for item in items}
    number = {group: -index for index, group in enumerate(layering.spans, 1)}
    for row in layering.rows:
        for position, item in enumerate(row):
            item.position = position

    def arrange(downward: bool) -> None:
        mean: dict[str, float] = {}
        if homes != {()}:
            within: dict[str, list[float]] = {group: [] for group in layering.spans}
            for item in items:
                for group in item.path:
                    within[group].append(item.position)
            mean = {group: sum(places) / len(places) for group, places in within.items()}
        for row in layering.rows if downward else reversed(layering.rows):
            wishes = {item.index: _barycentre(item, downward) for item in row}

            def place(item: RowItem, wishes: Mapping[int, float] = wishes) -> list[tuple[float, int, int]]:
                if item.kind == "title":
                    own = float("-inf"), item.index, 0
                elif item.anchor is not None and not (item.up if downward else item.down):
                    # Put it to the right of its anchor. Of several, the last one comes first: the node that it comes
                    # from is the rightmost.
                    own = wishes[item.anchor.index], item.anchor.index, len(items) - item.index
                else:
                    own = wishes[item.index], item.index, 0
                return [*((mean[group], number[group], 0) for group in item.path), own]

            row.sort(key=place)
            for position, item in enumerate(row):
                item.position = position

    arrange(True)
    best, fewest = [list(row) for row in layering.rows], _count_crossings(layering)
    for turn in range(SWEEPS if len(items) < MANY_ITEMS else FEW_SWEEPS):
        if not fewest:
            break
        arrange(turn % 2 == 1)
        if (now := _count_crossings(layering)) < fewest:
            best, fewest = [list(row) for row in layering.rows], now
    layering.rows[:] = best


def _barycentre(item: RowItem, downward: bool) -> float:
    """Return the mean position of an item's neighbours in the row above or below; without any, its own position."""
    joined = item.up if downward else item.down
    return sum(one.position for one in joined) / len(joined) if joined else item.position


def _count_crossings(layering: Layering) -> int:
    """Count the crossings of edges between adjacent rows."""
    found = 0
    for row in layering.rows:
        ends: list[float] = []
        for item in row:
            below = sorted(one.position for one in item.down)
            found += sum(len(ends) - bisect_right(ends, position) for position in below)
            for position in below:
                insort(ends, position)
    return found
