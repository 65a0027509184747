"""Where everything in a drawing is, in cells: columns and rows as in a terminal, which an image only scales.

The second half of a layered drawing; `layers` is the first. Edges run along columns and rows, leave a box at its bottom
and enter one at its top. What holds of every layout, and is tested:

1. boxes, labels and titles do not meet each other, and no edge meets a box other than at its own two ends;
2. two edges cross or are apart: no two share a cell in the same direction, and none turns in another's cell;
3. a group's frame holds the group's boxes and no others;
4. the same drawing is laid out the same way each time.
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
"""Column and row."""

GAP = 3
"""Columns between two boxes."""


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """A node's place, its border included."""

    name: str
    x: int
    y: int
    width: int
    height: int


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """An edge's way.

    Attributes:
        points: its ends, on the borders of the two boxes, and the corners between.
        label_at: the middle of its label, on the way.
    """

    edge: Edge
    points: tuple[Point, ...]
    label_at: Point | None = None


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A group's border. The title is on its first row, from `title_at` on."""

    name: str
    x: int
    y: int
    width: int
    height: int
    title_at: int


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Everything, from column and row 0 on. Frames stand before those within them."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    routes: tuple[Route, ...]
    frames: tuple[Frame, ...]


SegmentEnd: TypeAlias = tuple[RowItem, Literal["top", "bottom"]]


class _Segment(msgspec.Struct, eq=False, kw_only=True):
    """A piece of an edge in the channel between two rows: from an end of a slot to an end of another.

    Both ends are on the same side of the channel where an edge turns round, to lead upwards or to leave off doing so.

    Attributes:
        columns: of either end, once there is one.
        track: the row of the part that runs along the channel, from the top of the drawing; None when it runs straight.
    """

    chain: int
    ends: tuple[SegmentEnd, SegmentEnd]
    columns: list[int]
    track: int | None = None


def layout(
    outline: Outline, size: Callable[[str], tuple[int, int]], title: Callable[[str], int], label: Callable[[Edge], int]
) -> Layout:
    """Lay a drawing out.

    Args:
        outline: what to draw.
        size: columns and rows that a node's box needs.
        title: columns of a group's title.
        label: columns of an edge's label; 0 when it has none.
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
    """From the first column of a slot to that of the next in its row. Frames that end or begin between have room."""
    gap = GAP if one.kind == two.kind == "node" else 1
    if one.path == two.path:
        return one.width + gap
    common = sum(a == b for a, b in zip(one.path, two.path, strict=False))
    return one.width + gap + 2 * (len(one.path) + len(two.path) - 2 * common)


def _place_items(rows: list[list[RowItem]]) -> None:
    """Put the slots of each row, in their order, as near as they come to what they are joined with."""
    tight = [list(accumulate((_distance(one, two) for one, two in pairwise(row)), initial=0)) for row in rows]
    pairs = [(row, least) for row, least in zip(rows, tight, strict=True) if row]
    for row, least in pairs:
        for item, column in zip(row, least, strict=True):
            item.x = column
    for turn in range(6):
        for row, least in pairs if turn % 2 == 0 else reversed(pairs):
            _fit_row(row, least, [_wished_x(item, turn) for item in row])


def _wished_x(item: RowItem, turn: int) -> float:
    """The column that a slot would begin at: in the middle of what it is joined with above, then below, then both."""
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
    """The nearest places to those wished for, by least squares, with the order and at least the distances of `tight`.

    Source: the pool-adjacent-violators algorithm. Slots that would come too near each other move as one block.
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


# A border of a group is one column for all its rows, so rows depend on each other where there are groups: slots move to
# the right until every border has its place. Rows agree on which group is left of which, so this ends.
Element: TypeAlias = RowItem | tuple[Literal["left", "right"], str]


def _place_borders(layering: Layering) -> dict[str, tuple[int, int]]:
    """The columns of each group's borders. Slots are moved to make room for them, and so that column 0 is the first."""
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
    """An edge's pieces, in its direction: down from bottoms to tops, or up the other way with a turn at either end."""
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
    """Give every end of every piece a column: two in one channel have the same only as the ends of a straight piece.

    From the top down. Ends at the top of a channel are two columns apart or more, by the widths of slots; ends at its
    bottom take columns that those leave free. `assign_layers` made boxes wide enough for that.
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
    """In which order pieces have their ends at a slot, from left to right.

    By where they come from or lead to. Pieces that turn round to the right are last, and the longest of them first, so
    that they lie within each other; to the left likewise.
    """
    segment, end = pair
    (item, here), (other, there) = segment.ends[end], segment.ends[1 - end]
    middle = other.x + other.width / 2
    if here == there:
        return (1 if other.x > item.x else -1), -middle, segment.chain
    return 0, segment.columns[1 - end] if there == "bottom" else middle, segment.chain


def _even_columns(item: RowItem, many: int) -> list[int]:
    """Columns for so many ends, evenly within a slot."""
    if item.kind == "bend":
        return [item.column]
    return [item.x + (number + 1) * (item.width - 1) // (many + 1) for number in range(many)]


def _assign_entries(item: RowItem, pairs: list[tuple[_Segment, int]], taken: set[int]) -> None:
    """Give the ends at the top of a slot their columns: straight below where they come from, or free ones."""
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
    """The column that makes a piece straight; None for one that turns round."""
    return segment.columns[1 - end] if segment.ends[1 - end][1] == "bottom" else None


def _column_penalty(column: int, wished: int, least: int, most: int, used: list[int]) -> tuple[bool, bool, int, int]:
    """Out of order is worst, then right beside another, then far from the place wished for."""
    return (not least < column < most, any(abs(column - one) == 1 for one in used), abs(column - wished), column)


def _assign_tracks(rows: list[list[RowItem]], channels: list[list[_Segment]]) -> tuple[list[int], int]:
    """Give every piece that is not straight a track in its channel.

    Returns:
        The first line of each row, and the height of all.
    """
    tops: list[int] = []
    line = 0
    for number, channel in enumerate(channels):
        bent = [segment for segment in channel if segment.columns[0] != segment.columns[1]]
        # Turns below a row lie next to it, the short within the long. Of the others, those that go right leave the
        # rightmost first, and those that go left the leftmost: so what comes out of one box does not cross.
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
            line += 1 if line else 0  # for the heads of arrows
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
    """Tracks, each with pieces that do not meet; a piece is on the first that has room for it."""
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
