"""The graph API: nodes and edges over a shared state, lowered to channels."""

from .builder import CompiledStateGraph, StateGraph

__all__ = ["CompiledStateGraph", "StateGraph"]
