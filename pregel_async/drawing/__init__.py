"""A graph as nodes and edges, and what it is drawn as."""

from .._api.drawing import Drawing, Edge, drawing

__all__ = ["Drawing", "Edge", "drawing"]
