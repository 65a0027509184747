"""How a drawing names and marks nodes, for all renderers."""

from __future__ import annotations

from .._api.drawing import Outline
from ..types import END, START


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


def short_name(name: str, path: tuple[str, ...]) -> str:
    """A name without the group that it is shown in."""
    return name.removeprefix(path[-1] + ":") if path else name


def marks(outline: Outline, name: str) -> str:
    """What is special about a node or group: "deferred, interrupt before"; empty when nothing is."""
    found = ["deferred"] if name in outline.deferred else []
    if pause_names := pause_points(outline, name):
        found.append("interrupt " + " and ".join(pause_names))
    return ", ".join(found)


def pause_points(outline: Outline, name: str) -> list[str]:
    """Where a node is stopped at: before it, after it."""
    known = (("before", outline.interrupt_before), ("after", outline.interrupt_after))
    return [word for word, names in known if name in names]


def printable(text: str) -> str:
    """A text on one line, with nothing in it that would not be seen: no escape of a terminal, nothing XML refuses."""
    return "".join(one if one.isprintable() else " " if one.isspace() else "\ufffd" for one in text)


def is_end(name: str) -> bool:
    """Whether a node is where the graph begins or ends, rather than one that runs."""
    return name in (START, END)


def text_width(text: str) -> int:
    """Columns that a text takes in a terminal."""
    return sum(character_width(one) for one in text)


def character_width(character: str) -> int:
    """Columns that a character takes; a mark that goes on the one before takes none."""
    import unicodedata

    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
