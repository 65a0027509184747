"""An asyncio-native runtime for stateful graphs: supersteps, structured concurrency, durable threads."""

from .compiled import Pregel, PregelProtocol
from .graph import CompiledStateGraph, StateGraph
from .node import NodeBuilder, PregelNode
from .types import END, START, PregelTask, RunnableConfig, Send, StateSnapshot, StreamMode

__all__ = [
    "END",
    "START",
    "CompiledStateGraph",
    "NodeBuilder",
    "Pregel",
    "PregelNode",
    "PregelProtocol",
    "PregelTask",
    "RunnableConfig",
    "Send",
    "StateGraph",
    "StateSnapshot",
    "StreamMode",
]
