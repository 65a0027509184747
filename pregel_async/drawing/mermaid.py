"""Write a drawing as a mermaid flowchart."""

from __future__ import annotations

import re

from .._api.drawing import Outline
from .model import is_end, marks, paths, printable, short_name


def mermaid(outline: Outline) -> str:
    """Write a flowchart.

    Groups are clusters, nodes that are graphs have a double border, and conditional edges are dotted.

    Args:
        outline: the drawing.

    Returns:
        Mermaid's source text.
    """
    ids = {name: f"n{index}_{_word(name)}" for index, name in enumerate(outline.nodes)}
    clusters = {name: f"g{index}_{_word(name)}" for index, name in enumerate(outline.groups)}
    path = paths(outline)
    lines = ["flowchart TD"]

    def caption(name: str) -> str:
        mark_text = marks(outline, name)
        return _quoted(short_name(name, path[name]) + (f" ({mark_text})" if mark_text else ""))

    def show(name: str, indent: str) -> None:
        text = caption(name)
        if name in clusters:
            lines.append(f"{indent}subgraph {clusters[name]}[{text}]")
            for member in outline.groups[name]:
                show(member, indent + "    ")
            lines.append(f"{indent}end")
        elif is_end(name):
            lines.append(f"{indent}{ids[name]}([{text}])")
        elif name in outline.subgraphs:
            lines.append(f"{indent}{ids[name]}[[{text}]]")
        else:
            lines.append(f"{indent}{ids[name]}[{text}]")

    # A cluster takes the place of the first of its nodes.
    for top in dict.fromkeys(path[name][0] if path[name] else name for name in outline.nodes):
        show(top, "    ")
    for edge in outline.edges:
        arrow = "-.->" if edge.conditional else "-->"
        label = f"|{_quoted(edge.label)}|" if edge.label is not None else ""
        lines.append(f"    {ids[edge.source]} {arrow}{label} {ids[edge.target]}")
    return "\n".join(lines) + "\n"


def _word(name: str) -> str:
    return re.sub(r"[^0-9A-Za-z]", "_", name)


# Mermaid reads "#...;" as a character reference, and a leading backquote as markdown.
_ESCAPES = str.maketrans({"#": "#35;", "&": "#amp;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "`": "#96;"})


def _quoted(text: str) -> str:
    return '"' + printable(text).translate(_ESCAPES) + '"'
