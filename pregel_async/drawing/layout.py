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
from .layers import Chain, Rows, Slot, layered, longest

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


End: TypeAlias = tuple[Slot, Literal["top", "bottom"]]


class _Link(msgspec.Struct, eq=False, kw_only=True):
    """A piece of an edge in the channel between two rows: from an end of a slot to an end of another.

    Both ends are on the same side of the channel where an edge turns round, to lead upwards or to leave off doing so.

    Attributes:
        columns: of either end, once there is one.
        track: the row of the part that runs along the channel, from the top of the drawing; None when it runs straight.
    """

    chain: int
    ends: tuple[End, End]
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
    made = layered(outline, size, title, label)
    slots = [slot for row in made.rows for slot in row]
    _spread(made.rows)
    borders = _borders(made)
    links = [_linked(number, chain) for number, chain in enumerate(made.chains)]
    channels: list[list[_Link]] = [[] for _ in range(len(made.rows) + 1)]
    for link in (link for chain in links for link in chain):
        slot, side = link.ends[0]
        channels[slot.row if side == "top" else slot.row + 1].append(link)
    _connect(made.rows, channels)
    tops, height = _stack(made.rows, channels)

    heights = [max((slot.height for slot in row), default=0) for row in made.rows]
    boxes = [
        Box(name=slot.name, x=slot.x, y=tops[slot.row], width=slot.width, height=slot.height)
        for slot in slots
        if slot.kind == "node"
    ]
    titles = {slot.name: slot.x + 1 for slot in slots if slot.kind == "title"}
    frames: list[Frame] = []
    for group, (left, right) in borders.items():
        top, bottom = (tops[row] for row in made.spans[group])
        width = right - left + 1
        frames.append(Frame(name=group, x=left, y=top, width=width, height=bottom - top + 1, title_at=titles[group]))
    routes: list[Route] = []
    for chain, linked in zip(made.chains, links, strict=True):
        points = [(linked[0].columns[0], tops[chain.source.row] + chain.source.height - 1)]
        for link in linked:
            if link.track is not None:
                points += [(column, link.track) for column in link.columns]
        points.append((linked[-1].columns[1], tops[chain.target.row]))
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


def _apart(one: Slot, two: Slot) -> int:
    """From the first column of a slot to that of the next in its row. Frames that end or begin between have room."""
    gap = GAP if one.kind == two.kind == "node" else 1
    if one.path == two.path:
        return one.width + gap
    common = sum(a == b for a, b in zip(one.path, two.path, strict=False))
    return one.width + gap + 2 * (len(one.path) + len(two.path) - 2 * common)


def _spread(rows: list[list[Slot]]) -> None:
    """Put the slots of each row, in their order, as near as they come to what they are joined with."""
    tight = [list(accumulate((_apart(one, two) for one, two in pairwise(row)), initial=0)) for row in rows]
    pairs = [(row, least) for row, least in zip(rows, tight, strict=True) if row]
    for row, least in pairs:
        for slot, column in zip(row, least, strict=True):
            slot.x = column
    for turn in range(6):
        for row, least in pairs if turn % 2 == 0 else reversed(pairs):
            _settle(row, least, [_wish(slot, turn) for slot in row])


def _wish(slot: Slot, turn: int) -> float:
    """The column that a slot would begin at: in the middle of what it is joined with above, then below, then both."""
    joined = slot.up + slot.down if turn >= 4 else slot.up if turn % 2 == 0 else slot.down
    if len(joined) == 1:
        return joined[0].x + (joined[0].width - slot.width) / 2
    if joined:
        middle = sum([2 * one.x + one.width - 1 for one in joined]) / (2 * len(joined))
        return middle - (slot.width - 1) / 2
    if slot.beside is not None:
        return slot.beside.x + slot.beside.width + 1
    return slot.x


def _settle(row: list[Slot], tight: list[int], wishes: list[float]) -> None:
    """The nearest places to those wished for, by least squares, with the order and at least the distances of `tight`.

    Source: the pool-adjacent-violators algorithm. Slots that would come too near each other move as one block.
    """
    blocks: list[tuple[float, int, int]] = []  # mean, weight, how many
    for slot, wish, offset in zip(row, wishes, tight, strict=True):
        mean, weight, many = wish - offset, 4 if slot.kind == "node" else 1, 1
        while blocks and blocks[-1][0] >= mean:
            before, heavy, more = blocks.pop()
            mean = (mean * weight + before * heavy) / (weight + heavy)
            weight, many = weight + heavy, many + more
        blocks.append((mean, weight, many))
    starts = [round(mean) for mean, _, many in blocks for _ in range(many)]
    for slot, start, offset in zip(row, starts, tight, strict=True):
        slot.x = start + offset


# A border of a group is one column for all its rows, so rows depend on each other where there are groups: slots move to
# the right until every border has its place. Rows agree on which group is left of which, so this ends.
Token: TypeAlias = Slot | tuple[Literal["left", "right"], str]


def _borders(made: Rows) -> dict[str, tuple[int, int]]:
    """The columns of each group's borders. Slots are moved to make room for them, and so that column 0 is the first."""
    if not made.spans:
        first = min((row[0].x for row in made.rows if row), default=0)
        for row in made.rows:
            for slot in row:
                slot.x -= first
        return {}
    after: dict[Token, list[tuple[Token, int]]] = {}
    least: dict[Token, int] = {}
    for row in made.rows:
        tokens = list(_tokens(row))
        for token in tokens:
            after.setdefault(token, [])
            least[token] = token.x if isinstance(token, Slot) else -(1 << 40)
        for one, two in pairwise(tokens):
            if not isinstance(one, Slot):
                after[one].append((two, 2))
            else:
                after[one].append((two, _apart(one, two) if isinstance(two, Slot) else one.width + 1))
    at = longest(after, least)
    for group in reversed(made.spans):  # from the inside out: a left border moves up to what is right of it
        at["left", group] = min(at[token] - far for token, far in after["left", group])
    first = min(at.values())
    for token, column in at.items():
        if isinstance(token, Slot):
            token.x = column - first
    return {group: (at["left", group] - first, at["right", group] - first) for group in made.spans}


def _tokens(row: list[Slot]) -> Iterator[Token]:
    path: tuple[str, ...] = ()
    for slot in [*row, None]:
        then = () if slot is None else slot.path
        common = sum(a == b for a, b in zip(path, then, strict=False))
        for group in reversed(path[common:]):
            yield "right", group
        for group in then[common:]:
            yield "left", group
        if slot is not None:
            yield slot
        path = then


def _linked(number: int, chain: Chain) -> list[_Link]:
    """An edge's pieces, in its direction: down from bottoms to tops, or up the other way with a turn at either end."""
    ends: list[End] = [(chain.source, "bottom")]
    for bend in chain.bends:
        top: End = (bend, "top")
        bottom: End = (bend, "bottom")
        ends += [bottom, top] if chain.upward else [top, bottom]
    ends.append((chain.target, "top"))
    return [
        _Link(chain=number, ends=(one, two), columns=[0, 0]) for one, two in zip(ends[::2], ends[1::2], strict=True)
    ]


def _connect(rows: list[list[Slot]], channels: list[list[_Link]]) -> None:
    """Give every end of every piece a column: two in one channel have the same only as the ends of a straight piece.

    From the top down. Ends at the top of a channel are two columns apart or more, by the widths of slots; ends at its
    bottom take columns that those leave free. `layered` made boxes wide enough for that.
    """
    for row, (above, below) in zip(rows, pairwise(channels), strict=True):
        entering: dict[Slot, list[tuple[_Link, int]]] = {slot: [] for slot in row}
        leaving: dict[Slot, list[tuple[_Link, int]]] = {slot: [] for slot in row}
        for links, side, found in ((above, "top", entering), (below, "bottom", leaving)):
            for link in links:
                for end, (slot, where) in enumerate(link.ends):
                    if where == side:
                        found[slot].append((link, end))
        taken = {link.columns[end] for link in above for end in (0, 1) if link.ends[end][1] == "bottom"}
        for slot in row:
            _enter(slot, entering[slot], taken)
            leaving[slot].sort(key=_order)
            for (link, end), column in zip(leaving[slot], _ports(slot, len(leaving[slot])), strict=True):
                link.columns[end] = column


def _order(pair: tuple[_Link, int]) -> tuple[int, float, int]:
    """In which order pieces have their ends at a slot, from left to right.

    By where they come from or lead to. Pieces that turn round to the right are last, and the longest of them first, so
    that they lie within each other; to the left likewise.
    """
    link, end = pair
    (slot, here), (other, there) = link.ends[end], link.ends[1 - end]
    middle = other.x + other.width / 2
    if here == there:
        return (1 if other.x > slot.x else -1), -middle, link.chain
    return 0, link.columns[1 - end] if there == "bottom" else middle, link.chain


def _ports(slot: Slot, many: int) -> list[int]:
    """Columns for so many ends, evenly within a slot."""
    if slot.kind == "bend":
        return [slot.column]
    return [slot.x + (number + 1) * (slot.width - 1) // (many + 1) for number in range(many)]


def _enter(slot: Slot, pairs: list[tuple[_Link, int]], taken: set[int]) -> None:
    """Give the ends at the top of a slot their columns: straight below where they come from, or free ones."""
    if slot.kind == "bend":
        [(link, end)] = pairs
        middle = slot.x + slot.width // 2
        inside = (middle, middle - 1, middle + 1)
        straight = _straight(link, end)
        slot.column = straight if straight in inside else next(one for one in inside if one not in taken)
        link.columns[end] = slot.column
        return
    pairs.sort(key=_order)
    room = range(slot.x + 1, slot.x + slot.width - 1)
    fixed = [column if (column := _straight(link, end)) in room else None for link, end in pairs]
    used = [column for column in fixed if column is not None]
    free = [column for column in room if column not in taken]
    least = slot.x
    for (link, end), column, wished in zip(pairs, fixed, _ports(slot, len(pairs)), strict=True):
        if column is None:
            most = min((one for one in used if one > least), default=room.stop)
            column = min(free, key=lambda one: _dislike(one, wished, least, most, used))
            free.remove(column)
            insort(used, column)
        link.columns[end] = least = column


def _straight(link: _Link, end: int) -> int | None:
    """The column that makes a piece straight; None for one that turns round."""
    return link.columns[1 - end] if link.ends[1 - end][1] == "bottom" else None


def _dislike(column: int, wished: int, least: int, most: int, used: list[int]) -> tuple[bool, bool, int, int]:
    """Out of order is worst, then right beside another, then far from the place wished for."""
    return (not least < column < most, any(abs(column - one) == 1 for one in used), abs(column - wished), column)


def _stack(rows: list[list[Slot]], channels: list[list[_Link]]) -> tuple[list[int], int]:
    """Give every piece that is not straight a track in its channel.

    Returns:
        The first line of each row, and the height of all.
    """
    tops: list[int] = []
    line = 0
    for number, channel in enumerate(channels):
        bent = [link for link in channel if link.columns[0] != link.columns[1]]
        # Turns below a row lie next to it, the short within the long. Of the others, those that go right leave the
        # rightmost first, and those that go left the leftmost: so what comes out of one box does not cross.
        over = [link for link in bent if {side for _, side in link.ends} != {"top"}]
        under = [link for link in bent if {side for _, side in link.ends} == {"top"}]
        over.sort(key=_track_order)
        under.sort(key=lambda link: (abs(link.columns[0] - link.columns[1]), link.chain))
        upper, lower = _packed(over), _packed(under)
        for index, track in enumerate([*upper, *reversed(lower)]):
            for link in track:
                link.track = line + index
        line += len(upper) + len(lower)
        if number < len(rows):
            line += 1 if line else 0  # for the heads of arrows
            tops.append(line)
            line += max(slot.height for slot in rows[number])
    return tops, line


def _track_order(link: _Link) -> tuple[int, int, int]:
    (_, side), (_, other) = link.ends
    start, end = link.columns if side == "bottom" else reversed(link.columns)
    if side == other:
        return 0, abs(start - end), link.chain
    return (1, -start, link.chain) if start < end else (2, start, link.chain)


def _packed(links: list[_Link]) -> list[list[_Link]]:
    """Tracks, each with pieces that do not meet; a piece is on the first that has room for it."""
    tracks: list[list[_Link]] = []
    taken: list[list[tuple[int, int]]] = []  # of each track, from left to right
    for link in links:
        low, high = sorted(link.columns)
        for track, spans in zip(tracks, taken, strict=True):
            at = bisect(spans, (low, high))
            if (at == 0 or spans[at - 1][1] + 1 < low) and (at == len(spans) or high + 1 < spans[at][0]):
                spans.insert(at, (low, high))
                track.append(link)
                break
        else:
            tracks.append([link])
            taken.append([(low, high)])
    return tracks
