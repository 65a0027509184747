"""How all renderers name and mark nodes."""

from __future__ import annotations

from .._api.drawing import Outline
from ..types import END, START


def paths(outline: Outline) -> dict[str, tuple[str, ...]]:
    """Find the groups that contain each node and each group.

    Args:
        outline: the drawing.

    Returns:
        For each name, the names of the groups, outermost first.
    """
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
    """Return a name without the prefix of the group that contains it.

    Args:
        name: a node or group.
        path: its groups, as `paths` returns them.

    Returns:
        The name to show.
    """
    return name.removeprefix(path[-1] + ":") if path else name


def marks(outline: Outline, name: str) -> str:
    """Describe the special properties of a node or group: "deferred, interrupt before".

    Args:
        outline: the drawing.
        name: a node or group.

    Returns:
        The description; "" if there is none.
    """
    found = ["deferred"] if name in outline.deferred else []
    if pause_names := pause_points(outline, name):
        found.append("interrupt " + " and ".join(pause_names))
    return ", ".join(found)


def pause_points(outline: Outline, name: str) -> list[str]:
    """Return where runs pause at a node.

    Args:
        outline: the drawing.
        name: a node or group.

    Returns:
        "before", "after", both, or neither.
    """
    known = (("before", outline.interrupt_before), ("after", outline.interrupt_after))
    return [word for word, names in known if name in names]


def printable(text: str) -> str:
    """Return a text on one line without invisible characters: terminals would obey some, and XML forbids some.

    Args:
        text: any text.

    Returns:
        The text. Blanks replace whitespace, and U+FFFD replaces other invisible characters.
    """
    return "".join(one if one.isprintable() else " " if one.isspace() else "\ufffd" for one in text)


def is_end(name: str) -> bool:
    """Return True if a node is the start or the end of the graph, not a node that runs.

    Args:
        name: a node.

    Returns:
        Whether it is `START` or `END`.
    """
    return name in (START, END)


def text_width(text: str) -> int:
    """Return the number of columns that a text takes in a terminal.

    Args:
        text: printable text.

    Returns:
        The width, in columns.
    """
    return sum(character_width(one) for one in text)


def character_width(character: str) -> int:
    """Return the number of columns that a character takes in a terminal.

    Args:
        character: one character.

    Returns:
        0 for a combining mark, 2 for a wide character, else 1.
    """
    import unicodedata

    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
