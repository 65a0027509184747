"""An asyncio-native runtime for stateful graphs: supersteps, structured concurrency, durable threads."""

from .compiled import PregelProtocol
from .errors import GraphDrained, GraphInterrupt
from .functional import TaskFuture, entrypoint, task
from .graph import CompiledStateGraph, StateGraph
from .managed import IsLastStep, ManagedValue, RemainingSteps
from .messages import REMOVE_ALL_MESSAGES, MessagesState, RemoveMessage, add_messages
from .node import NodeBuilder, PregelNode
from .parts import GraphOutput, StreamPart
from .pregel import Pregel
from .runtime import (
    ExecutionInfo,
    RunControl,
    Runtime,
    get_config,
    get_runtime,
    get_store,
    get_stream_writer,
    interrupt,
)
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
    "GraphDrained",
    "GraphInterrupt",
    "GraphOutput",
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
    "RunControl",
    "RunnableConfig",
    "Runtime",
    "Send",
    "StateGraph",
    "StateSnapshot",
    "StateUpdate",
    "StreamMode",
    "StreamPart",
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
