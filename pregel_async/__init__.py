"""An asyncio-native runtime for stateful graphs: supersteps, structured concurrency, durable threads."""

from .compiled import PregelProtocol
from .errors import GraphInterrupt
from .functional import TaskFuture, entrypoint, task
from .graph import CompiledStateGraph, StateGraph
from .managed import IsLastStep, ManagedValue, RemainingSteps
from .messages import REMOVE_ALL_MESSAGES, MessagesState, RemoveMessage, add_messages
from .node import NodeBuilder, PregelNode
from .pregel import Pregel
from .runtime import ExecutionInfo, Runtime, get_config, get_runtime, get_store, get_stream_writer, interrupt
from .sync import open_sync
from .types import (
    END,
    START,
    Command,
    Interrupt,
    Overwrite,
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
    "REMOVE_ALL_MESSAGES",
    "START",
    "Command",
    "CompiledStateGraph",
    "ExecutionInfo",
    "GraphInterrupt",
    "Interrupt",
    "IsLastStep",
    "ManagedValue",
    "MessagesState",
    "NodeBuilder",
    "Overwrite",
    "Pregel",
    "PregelNode",
    "PregelProtocol",
    "PregelTask",
    "RemainingSteps",
    "RemoveMessage",
    "RunnableConfig",
    "Runtime",
    "Send",
    "StateGraph",
    "StateSnapshot",
    "StateUpdate",
    "StreamMode",
    "StreamWriter",
    "TaskFuture",
    "add_messages",
    "entrypoint",
    "get_config",
    "get_runtime",
    "get_store",
    "get_stream_writer",
    "interrupt",
    "open_sync",
    "task",
]
