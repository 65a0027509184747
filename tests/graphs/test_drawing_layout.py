"""The layout of drawings: the rules at the top of `drawing/layout.py`, checked on random drawings."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pregel_async import END, START
from pregel_async.drawing import Drawing, Edge, drawing
from pregel_async.drawing.layout import Layout, layout
from pregel_async.drawing.model import paths


def laid_out(drawn: Drawing) -> Layout:
    return layout(
        drawn,
        lambda name: (len(name) + 4, 4 if name in drawn.deferred else 3),
        len,
        lambda edge: len(edge.label or ""),
    )


@st.composite
def drawings(draw: st.DrawFn, depth: int = 2) -> Drawing:
    """Draw any graph: loops, double edges, unreachable nodes, graphs within graphs."""
    names = [f"{'n' * draw(st.integers(1, 9))}{number}" for number in range(draw(st.integers(0, 3 + depth)))]
    sources, targets = [*names, START], [*names, END]
    edges = draw(
        st.lists(
            st.builds(
                lambda source, target, conditional, label: Edge(
                    source=source, target=target, conditional=conditional, label=label
                ),
                st.sampled_from(sources),
                st.sampled_from(targets),
                st.booleans(),
                st.sampled_from([None, None, "yes", "on second thoughts"]),
            ),
            max_size=2 * len(sources),
        )
    )
    graphs = draw(st.lists(st.sampled_from(names), max_size=2, unique=True)) if names and depth else []
    return drawing(
        names,
        edges,
        frozenset(draw(st.lists(st.sampled_from(names), max_size=2))) if names else frozenset(),
        subgraphs={name: draw(drawings(depth=depth - 1)) for name in graphs},
    )


def cells_of(box: object) -> set[tuple[int, int]]:
    return {(x, y) for x in range(box.x, box.x + box.width) for y in range(box.y, box.y + box.height)}


def border_of(frame: object) -> set[tuple[int, int]]:
    inner = {
        (x, y)
        for x in range(frame.x + 1, frame.x + frame.width - 1)
        for y in range(frame.y + 1, frame.y + frame.height - 1)
    }
    return cells_of(frame) - inner


def steps(points: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    places = [points[0]]
    for (x, y), (to_x, to_y) in pairwise(points):
        assert (x == to_x) != (y == to_y), "along a column or a row, and never nowhere"
        length = abs(to_x - x) + abs(to_y - y)
        places += [(x + (to_x - x) // length * step, y + (to_y - y) // length * step) for step in range(1, length + 1)]
    return places


@settings(deadline=None)
@given(drawings())
def test_boxes_labels_and_titles_do_not_meet(drawn: Drawing) -> None:
    """Rule 1: every node has one box within the drawing, and text shares its cells with nothing else."""
    drawn = drawn.expanded()
    laid = laid_out(drawn)
    assert sorted(box.name for box in laid.boxes) == sorted(drawn.nodes)
    assert sorted(frame.name for frame in laid.frames) == sorted(drawn.groups)
    used: set[tuple[int, int]] = set()
    written = [cells_of(box) for box in laid.boxes]
    for route in laid.routes:
        assert (route.label_at is None) == (route.edge.label is None)
        if route.label_at is not None:
            (x, y), wide = route.label_at, len(route.edge.label or "")
            written.append({(column, y) for column in range(x - wide // 2, x - wide // 2 + wide)})
            assert (x, y) in steps(route.points), "a label is on its edge"
    for frame in laid.frames:
        title = {(x, frame.y) for x in range(frame.title_at, frame.title_at + len(frame.name))}
        assert title <= cells_of(frame)
        written.append(title)
    for cells in written:
        assert used.isdisjoint(cells)
        used |= cells
    used.update(*(steps(route.points) for route in laid.routes), *(cells_of(frame) for frame in laid.frames))
    assert all(0 <= x < laid.width and 0 <= y < laid.height for x, y in used)


@settings(deadline=None)
@given(drawings())
def test_edges_go_between_their_ends(drawn: Drawing) -> None:
    """Rule 1: each edge leaves its node's bottom, enters the other's top, and meets no box, label or title between."""
    drawn = drawn.expanded()
    laid = laid_out(drawn)
    boxes = {box.name: box for box in laid.boxes}
    walls = set().union(*(cells_of(box) for box in laid.boxes)) if laid.boxes else set()
    for frame in laid.frames:
        walls |= {(x, frame.y) for x in range(frame.title_at, frame.title_at + len(frame.name))}
    labels = [
        (route, {(x, route.label_at[1]) for x in range(route.label_at[0] - 2, route.label_at[0] + 3)})
        for route in laid.routes
        if route.label_at is not None
    ]
    assert [route.edge for route in laid.routes] == list(drawn.edges)
    for route in laid.routes:
        source, target = boxes[route.edge.source], boxes[route.edge.target]
        (x, y), (end, last) = route.points[0], route.points[-1]
        assert y == source.y + source.height - 1 and source.x < x < source.x + source.width - 1
        assert last == target.y and target.x < end < target.x + target.width - 1
        way = steps(route.points)
        assert walls.isdisjoint(way[1:-1])
        assert way[1] == (x, y + 1) and way[-2] == (end, last - 1), "down and out, down and in"
        assert way[-3][0] == end, "the head of the arrow has its cell to itself"
        assert all(other is route or label.isdisjoint(way) for other, label in labels)


@settings(deadline=None)
@given(drawings())
def test_edges_cross_or_are_apart(drawn: Drawing) -> None:
    """Rule 2: no two edges share a cell in one direction, and no edge turns in a cell that another passes."""
    laid = laid_out(drawn.expanded())
    across: set[tuple[int, int]] = set()
    down: set[tuple[int, int]] = set()
    turns: set[tuple[int, int]] = set()
    for route in laid.routes:
        way = steps(route.points)
        for before, place, then in zip(way, way[1:], way[2:], strict=False):
            if before[0] == then[0]:
                assert place not in down
                down.add(place)
            elif before[1] == then[1]:
                assert place not in across
                across.add(place)
            else:
                assert place not in turns
                turns.add(place)
    assert turns.isdisjoint(across | down)


@settings(deadline=None)
@given(drawings())
def test_frames_hold_their_own(drawn: Drawing) -> None:
    """Rule 3: a frame surrounds the boxes and frames of its group and no others; no edge runs along it."""
    drawn = drawn.expanded()
    laid = laid_out(drawn)
    path = paths(drawn)
    for frame in laid.frames:
        border = border_of(frame)
        inner = cells_of(frame) - border
        for other in (*laid.boxes, *laid.frames):
            if other is frame or other.name in path[frame.name]:
                continue
            cells = cells_of(other)
            assert cells <= inner if frame.name in path[other.name] else cells.isdisjoint(cells_of(frame))
        for route in laid.routes:
            # Passing a border is one cell on it; two in a row would be along it.
            assert not any({*pair} <= border for pair in pairwise(steps(route.points)))
    names = [frame.name for frame in laid.frames]
    assert all(names.index(outer) < names.index(name) for name in names for outer in path[name])


@settings(deadline=None)
@given(drawings())
def test_the_same_drawing_is_laid_out_the_same(drawn: Drawing) -> None:
    """Rule 4: two layouts of a drawing in one process are equal."""
    assert laid_out(drawn.expanded()) == laid_out(drawn.expanded())


def test_the_order_of_sets_is_not_seen() -> None:
    """Rule 4: layouts in processes with different hash seeds are equal."""
    code = (
        "from pregel_async.drawing import Drawing, Edge, drawing\n"
        "names = [f'n{i}' for i in range(20)]\n"
        "edges = [Edge(source=names[i], target=names[i * 7 % 20]) for i in range(20)]\n"
        "inner = drawing(['a', 'b'], [Edge(source='a', target='b')], frozenset(['a', 'b']))\n"
        "drawn = drawing(set(names), set(edges), interrupt_before=names[:3], subgraphs=dict.fromkeys(names[:4], inner))\n"
        "print(drawn.expanded().draw_svg(), drawn.expanded().draw_mermaid(), drawn.to_json())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(seen) == 1


@pytest.mark.parametrize("shape", ["chain", "fan", "random", "loops"])
def test_two_hundred_nodes_are_laid_out_in_time(shape: str) -> None:
    """No shape of a large graph takes long. The bound is about ten times the usual duration, for slow machines."""
    names = [f"node_{number:03}" for number in range(200)]
    pairs = {
        "chain": list(pairwise(names)),
        "fan": [(names[0], name) for name in names[1:]] + [(name, names[-1]) for name in names[:-1]],
        "random": [(names[number], names[number * number % 199]) for number in range(200)] + list(pairwise(names)),
        "loops": [*pairwise(names), *((name, names[number // 2]) for number, name in enumerate(names))],
    }[shape]
    drawn = drawing(names, [Edge(source=one, target=two) for one, two in [(START, names[0]), *pairs]])
    began = time.process_time()
    laid_out(drawn)
    assert time.process_time() - began < 10


@pytest.mark.parametrize("count", [0, 1, 5])
def test_nodes_without_edges_are_in_one_row(count: int) -> None:
    laid = laid_out(drawing([str(number) for number in range(count)], []))
    assert [(box.name, box.y) for box in laid.boxes] == [(str(number), 0) for number in range(count)]
