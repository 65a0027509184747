"""A graph as nodes and edges, and what it is drawn as."""

from .face import Drawing, drawing
from .model import Edge

__all__ = ["Drawing", "Edge", "drawing"]
