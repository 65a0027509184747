"""Place a drawing's boxes, edges and frames in cells: columns and rows as in a terminal, which an image scales.

This is the second half of a layered drawing; `layers` is the first. Edges run along columns and rows, leave a box at
its bottom and enter one at its top. Every layout has these properties, which tests check:

1. boxes, labels and titles do not overlap, and an edge touches only the boxes at its two ends;
2. two edges may only cross: they share no cell in the same direction, and neither turns in a cell of the other;
3. a group's frame contains the group's boxes and no others;
4. the same drawing always has the same layout.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from typing import Literal, TypeAlias

import msgspec

from .._api.drawing import Edge, Outline
from .layers import Chain, Layering, RowItem, assign_layers, longest_paths

Point: TypeAlias = tuple[int, int]
"""A column and a row."""

GAP = 3
"""Columns between two boxes."""


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a node, including its border."""

    name: str
    x: int
    y: int
    width: int
    height: int


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """The path of an edge.

    Attributes:
        points: its ends, on the borders of the two boxes, and its corners.
        label_at: the middle of its label, a point on the path; None for an edge without label.
    """

    edge: Edge
    points: tuple[Point, ...]
    label_at: Point | None = None


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """The border of a group. Its title is in its first row, from column `title_at` on."""

    name: str
    x: int
    y: int
    width: int
    height: int
    title_at: int


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The places of all parts, from column and row 0 on. Outer frames come before those inside them."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    routes: tuple[Route, ...]
    frames: tuple[Frame, ...]


SegmentEnd: TypeAlias = tuple[RowItem, Literal["top", "bottom"]]


class _Segment(msgspec.Struct, eq=False, kw_only=True):
    """A part of an edge in the channel between two rows, from an end of one item to an end of another.

    Both ends are on the same side of the channel if the edge turns there: to start leading upwards, or to stop doing
    so.

    Attributes:
        columns: the columns of its two ends, 0 until they are assigned.
        track: the row of its horizontal part in the drawing; None for a straight segment.
    """

    chain: int
    ends: tuple[SegmentEnd, SegmentEnd]
    columns: list[int]
    track: int | None = None


def layout(
    outline: Outline, size: Callable[[str], tuple[int, int]], title: Callable[[str], int], label: Callable[[Edge], int]
) -> Layout:
    """Place the parts of a drawing.

    Args:
        outline: the drawing.
        size: returns the width and height of a node's box, in cells.
        title: returns the width of a group's title, in cells.
        label: returns the width of an edge's label, in cells; 0 for an edge without label.

    Returns:
        The layout.
    """
    layering = assign_layers(outline, size, title, label)
    items = [item for row in layering.rows for item in row]
    _place_items(layering.rows)
    borders = _place_borders(layering)
    segments = [_split_chain(number, chain) for number, chain in enumerate(layering.chains)]
    channels: list[list[_Segment]] = [[] for _ in range(len(layering.rows) + 1)]
    for segment in (segment for chain in segments for segment in chain):
        item, side = segment.ends[0]
        channels[item.row if side == "top" else item.row + 1].append(segment)
    _assign_columns(layering.rows, channels)
    tops, height = _assign_tracks(layering.rows, channels)

    heights = [max((item.height for item in row), default=0) for row in layering.rows]
    boxes = [
        Box(name=item.name, x=item.x, y=tops[item.row], width=item.width, height=item.height)
        for item in items
        if item.kind == "node"
    ]
    titles = {item.name: item.x + 1 for item in items if item.kind == "title"}
    frames: list[Frame] = []
    for group, (left, right) in borders.items():
        top, bottom = (tops[row] for row in layering.spans[group])
        width = right - left + 1
        frames.append(Frame(name=group, x=left, y=top, width=width, height=bottom - top + 1, title_at=titles[group]))
    routes: list[Route] = []
    for chain, chain_segments in zip(layering.chains, segments, strict=True):
        points = [(chain_segments[0].columns[0], tops[chain.source.row] + chain.source.height - 1)]
        for segment in chain_segments:
            if segment.track is not None:
                points += [(column, segment.track) for column in segment.columns]
        points.append((chain_segments[-1].columns[1], tops[chain.target.row]))
        on = chain.labelled
        at = None if on is None else (on.column, tops[on.row] + (heights[on.row] - 1) // 2)
        routes.append(Route(edge=chain.edge, points=tuple(points), label_at=at))
    ends = [box.x + box.width for box in boxes] + [frame.x + frame.width for frame in frames]
    for route in routes:
        ends += [x + 1 for x, _ in route.points]
        if route.label_at is not None:
            wide = label(route.edge)
            ends.append(route.label_at[0] - wide // 2 + wide)
    return Layout(
        width=max(ends, default=0), height=height, boxes=tuple(boxes), routes=tuple(routes), frames=tuple(frames)
    )


def _distance(one: RowItem, two: RowItem) -> int:
    """Return the distance between the first columns of two adjacent items.

    It has space for the frames that start or end between them.
    """
    gap = GAP if one.kind == two.kind == "node" else 1
    if one.path == two.path:
        return one.width + gap
    common = sum(a == b for a, b in zip(one.path, two.path, strict=False))
    return one.width + gap + 2 * (len(one.path) + len(two.path) - 2 * common)


def _place_items(rows: list[list[RowItem]]) -> None:
    """Place the items of each row, in their order, as near as possible to the items that edges connect them with."""
    tight = [list(accumulate((_distance(one, two) for one, two in pairwise(row)), initial=0)) for row in rows]
    pairs = [(row, least) for row, least in zip(rows, tight, strict=True) if row]
    for row, least in pairs:
        for item, column in zip(row, least, strict=True):
            item.x = column
    for turn in range(6):
        for row, least in pairs if turn % 2 == 0 else reversed(pairs):
            _fit_row(row, least, [_wished_x(item, turn) for item in row])


def _wished_x(item: RowItem, turn: int) -> float:
    """Return the column that an item should start at: the middle of its neighbours above, then below, then both."""
    joined = item.up + item.down if turn >= 4 else item.up if turn % 2 == 0 else item.down
    if len(joined) == 1:
        return joined[0].x + (joined[0].width - item.width) / 2
    if joined:
        middle = sum([2 * one.x + one.width - 1 for one in joined]) / (2 * len(joined))
        return middle - (item.width - 1) / 2
    if item.anchor is not None:
        return item.anchor.x + item.anchor.width + 1
    return item.x


def _fit_row(row: list[RowItem], tight: list[int], wishes: list[float]) -> None:
    """Place a row's items as near as possible to the wished columns, by least squares.

    The order stays, and the distances are at least those of `tight`.

    Source: the pool-adjacent-violators algorithm. Items that would come too near each other move as one block.
    """
    blocks: list[tuple[float, int, int]] = []  # mean, weight, how many
    for item, wish, offset in zip(row, wishes, tight, strict=True):
        mean, weight, many = wish - offset, 4 if item.kind == "node" else 1, 1
        while blocks and blocks[-1][0] >= mean:
            before, heavy, more = blocks.pop()
            mean = (mean * weight + before * heavy) / (weight + heavy)
            weight, many = weight + heavy, many + more
        blocks.append((mean, weight, many))
    starts = [round(mean) for mean, _, many in blocks for _ in range(many)]
    for item, start, offset in zip(row, starts, tight, strict=True):
        item.x = start + offset


# A group's border has one column in all of the group's rows, so groups make rows depend on each other: items move to
# the right until every border fits. This terminates because all rows have the same order of groups.
Element: TypeAlias = RowItem | tuple[Literal["left", "right"], str]


def _place_borders(layering: Layering) -> dict[str, tuple[int, int]]:
    """Return the columns of each group's borders.

    Items are moved to make space for the borders, and so that the drawing starts at column 0.
    """
    if not layering.spans:
        first = min((row[0].x for row in layering.rows if row), default=0)
        for row in layering.rows:
            for item in row:
                item.x -= first
        return {}
    after: dict[Element, list[tuple[Element, int]]] = {}
    least: dict[Element, int] = {}
    for row in layering.rows:
        elements = list(_row_elements(row))
        for element in elements:
            after.setdefault(element, [])
            least[element] = element.x if isinstance(element, RowItem) else -(1 << 40)
        for one, two in pairwise(elements):
            if not isinstance(one, RowItem):
                after[one].append((two, 2))
            else:
                after[one].append((two, _distance(one, two) if isinstance(two, RowItem) else one.width + 1))
    at = longest_paths(after, least)
    for group in reversed(layering.spans):  # from the inside out: a left border moves up to what is right of it
        at["left", group] = min(at[element] - far for element, far in after["left", group])
    first = min(at.values())
    for element, column in at.items():
        if isinstance(element, RowItem):
            element.x = column - first
    return {group: (at["left", group] - first, at["right", group] - first) for group in layering.spans}


def _row_elements(row: list[RowItem]) -> Iterator[Element]:
    path: tuple[str, ...] = ()
    for item in [*row, None]:
        then = () if item is None else item.path
        common = sum(a == b for a, b in zip(path, then, strict=False))
        for group in reversed(path[common:]):
            yield "right", group
        for group in then[common:]:
            yield "left", group
        if item is not None:
            yield item
        path = then


def _split_chain(number: int, chain: Chain) -> list[_Segment]:
    """Return an edge's segments in its direction: downwards from bottom to top, or upwards with a turn at each end."""
    ends: list[SegmentEnd] = [(chain.source, "bottom")]
    for bend in chain.bends:
        top: SegmentEnd = (bend, "top")
        bottom: SegmentEnd = (bend, "bottom")
        ends += [bottom, top] if chain.upward else [top, bottom]
    ends.append((chain.target, "top"))
    return [
        _Segment(chain=number, ends=(one, two), columns=[0, 0]) for one, two in zip(ends[::2], ends[1::2], strict=True)
    ]


def _assign_columns(rows: list[list[RowItem]], channels: list[list[_Segment]]) -> None:
    """Assign a column to each end of every segment. Two ends in one channel share a column only in a straight segment.

    Works from the top down. Ends at the top of a channel are at least two columns apart, because of the items' widths.
    Ends at its bottom take columns that those leave free; `assign_layers` made the boxes wide enough for that.
    """
    for row, (above, below) in zip(rows, pairwise(channels), strict=True):
        entering: dict[RowItem, list[tuple[_Segment, int]]] = {item: [] for item in row}
        leaving: dict[RowItem, list[tuple[_Segment, int]]] = {item: [] for item in row}
        for segments, side, found in ((above, "top", entering), (below, "bottom", leaving)):
            for segment in segments:
                for end, (item, where) in enumerate(segment.ends):
                    if where == side:
                        found[item].append((segment, end))
        taken = {segment.columns[end] for segment in above for end in (0, 1) if segment.ends[end][1] == "bottom"}
        for item in row:
            _assign_entries(item, entering[item], taken)
            leaving[item].sort(key=_end_order)
            for (segment, end), column in zip(leaving[item], _even_columns(item, len(leaving[item])), strict=True):
                segment.columns[end] = column


def _end_order(pair: tuple[_Segment, int]) -> tuple[int, float, int]:
    """Return a sort key for the ends of segments at an item, from left to right.

    Ends are ordered by where the segments come from or lead to. Segments that turn to the right come last, the longest
    of them first, so that they nest instead of crossing; segments that turn to the left likewise come first.
    """
    segment, end = pair
    (item, here), (other, there) = segment.ends[end], segment.ends[1 - end]
    middle = other.x + other.width / 2
    if here == there:
        return (1 if other.x > item.x else -1), -middle, segment.chain
    return 0, segment.columns[1 - end] if there == "bottom" else middle, segment.chain


def _even_columns(item: RowItem, many: int) -> list[int]:
    """Return columns for a number of ends, evenly spaced within an item."""
    if item.kind == "bend":
        return [item.column]
    return [item.x + (number + 1) * (item.width - 1) // (many + 1) for number in range(many)]


def _assign_entries(item: RowItem, pairs: list[tuple[_Segment, int]], taken: set[int]) -> None:
    """Assign columns to the ends at the top of an item: straight below where they come from, or free ones."""
    if item.kind == "bend":
        [(segment, end)] = pairs
        middle = item.x + item.width // 2
        inside = (middle, middle - 1, middle + 1)
        straight = _straight_column(segment, end)
        item.column = straight if straight in inside else next(one for one in inside if one not in taken)
        segment.columns[end] = item.column
        return
    pairs.sort(key=_end_order)
    room = range(item.x + 1, item.x + item.width - 1)
    fixed = [column if (column := _straight_column(segment, end)) in room else None for segment, end in pairs]
    used = [column for column in fixed if column is not None]
    free = [column for column in room if column not in taken]
    least = item.x
    for (segment, end), column, wished in zip(pairs, fixed, _even_columns(item, len(pairs)), strict=True):
        if column is None:
            most = min((one for one in used if one > least), default=room.stop)
            column = min(free, key=lambda one: _column_penalty(one, wished, least, most, used))
            free.remove(column)
            insort(used, column)
        segment.columns[end] = least = column


def _straight_column(segment: _Segment, end: int) -> int | None:
    """Return the column that makes a segment straight; None for a segment that turns around."""
    return segment.columns[1 - end] if segment.ends[1 - end][1] == "bottom" else None


def _column_penalty(column: int, wished: int, least: int, most: int, used: list[int]) -> tuple[bool, bool, int, int]:
    """Return a sort key: columns out of order are worst, then those adjacent to a used one, then distant ones."""
    return (not least < column < most, any(abs(column - one) == 1 for one in used), abs(column - wished), column)


def _assign_tracks(rows: list[list[RowItem]], channels: list[list[_Segment]]) -> tuple[list[int], int]:
    """Assign a track in its channel to each segment that is not straight.

    Returns:
        The first line of each row, and the height of the drawing.
    """
    tops: list[int] = []
    line = 0
    for number, channel in enumerate(channels):
        bent = [segment for segment in channel if segment.columns[0] != segment.columns[1]]
        # Turns lie next to their row, short ones inside long ones. Of the other segments, those that lead right get
        # their tracks from the rightmost on, and those that lead left from the leftmost on: edges of one box then do
        # not cross each other.
        over = [segment for segment in bent if {side for _, side in segment.ends} != {"top"}]
        under = [segment for segment in bent if {side for _, side in segment.ends} == {"top"}]
        over.sort(key=_track_order)
        under.sort(key=lambda segment: (abs(segment.columns[0] - segment.columns[1]), segment.chain))
        upper, lower = _pack_tracks(over), _pack_tracks(under)
        for index, track in enumerate([*upper, *reversed(lower)]):
            for segment in track:
                segment.track = line + index
        line += len(upper) + len(lower)
        if number < len(rows):
            line += 1 if line else 0  # space for the arrowheads
            tops.append(line)
            line += max(item.height for item in rows[number])
    return tops, line


def _track_order(segment: _Segment) -> tuple[int, int, int]:
    (_, side), (_, other) = segment.ends
    start, end = segment.columns if side == "bottom" else reversed(segment.columns)
    if side == other:
        return 0, abs(start - end), segment.chain
    return (1, -start, segment.chain) if start < end else (2, start, segment.chain)


def _pack_tracks(segments: list[_Segment]) -> list[list[_Segment]]:
    """Distribute segments over tracks so that none overlap: each is on the first track with space for it."""
    tracks: list[list[_Segment]] = []
    taken: list[list[tuple[int, int]]] = []  # of each track, from left to right
    for segment in segments:
        low, high = sorted(segment.columns)
        for track, spans in zip(tracks, taken, strict=True):
            at = bisect(spans, (low, high))
            if (at == 0 or spans[at - 1][1] + 1 < low) and (at == len(spans) or high + 1 < spans[at][0]):
                spans.insert(at, (low, high))
                track.append(segment)
                break
        else:
            tracks.append([segment])
            taken.append([(low, high)])
    return tracks
