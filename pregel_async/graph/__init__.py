"""The graph API: `StateGraph`, nodes and edges over a shared state, which compilation lowers to channels."""

from .builder import CompiledStateGraph, StateGraph

__all__ = ["CompiledStateGraph", "StateGraph"]
