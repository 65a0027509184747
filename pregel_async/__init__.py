"""An asyncio-native runtime for stateful graphs: supersteps, structured concurrency, durable threads."""

from .compiled import Pregel, PregelProtocol
from .errors import GraphInterrupt
from .graph import CompiledStateGraph, StateGraph
from .node import NodeBuilder, PregelNode
from .runtime import ExecutionInfo, Runtime, get_config, get_runtime, get_store, get_stream_writer, interrupt
from .types import (
    END,
    START,
    Command,
    Interrupt,
    PregelTask,
    RunnableConfig,
    Send,
    StateSnapshot,
    StateUpdate,
    StreamMode,
    StreamWriter,
)

__all__ = [
    "END",
    "START",
    "Command",
    "CompiledStateGraph",
    "ExecutionInfo",
    "GraphInterrupt",
    "Interrupt",
    "NodeBuilder",
    "Pregel",
    "PregelNode",
    "PregelProtocol",
    "PregelTask",
    "Runtime",
    "RunnableConfig",
    "Send",
    "StateGraph",
    "StateSnapshot",
    "StateUpdate",
    "StreamMode",
    "StreamWriter",
    "get_config",
    "get_runtime",
    "get_store",
    "get_stream_writer",
    "interrupt",
]
