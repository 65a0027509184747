"""A graph as nodes and edges, and the formats that it can be drawn in."""

from .._api.drawing import Drawing, Edge, drawing

__all__ = ["Drawing", "Edge", "drawing"]
