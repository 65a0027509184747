"""Write a drawing as JSON values."""

from __future__ import annotations

from typing import Any

from .._api.drawing import Outline
from ..types import END, START
from .model import paths, pause_points, short_name


def as_json(outline: Outline) -> dict[str, Any]:
    """Convert a drawing to nodes, edges and groups; see `Drawing.to_json` for the format.

    Args:
        outline: the drawing.

    Returns:
        A dict of JSON values.
    """
    path = paths(outline)

    def described(name: str, kind: str) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        if name in outline.deferred:
            metadata["defer"] = True
        if pause_names := pause_points(outline, name):
            metadata["__interrupt"] = ",".join(pause_names)
        found: dict[str, Any] = {"id": name, "type": kind, "data": {"name": short_name(name, path[name])}}
        if path[name]:
            found["group"] = path[name][-1]
        if metadata:
            found["metadata"] = metadata
        return found

    kinds = {START: "start", END: "end"} | dict.fromkeys(outline.subgraphs, "graph")
    edges: list[dict[str, Any]] = []
    for edge in outline.edges:
        shown: dict[str, Any] = {"source": edge.source, "target": edge.target}
        if edge.label is not None:
            shown["data"] = edge.label
        if edge.conditional:
            shown["conditional"] = True
        edges.append(shown)
    found = {"nodes": [described(name, kinds.get(name, "node")) for name in outline.nodes], "edges": edges}
    if outline.groups:
        found["groups"] = [described(name, "graph") for name in outline.groups]
    return found
