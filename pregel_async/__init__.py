"""An asyncio-native runtime for stateful graphs: supersteps, structured concurrency, durable threads."""

from typing import TYPE_CHECKING

from checkpoint_savers.lazily import exported

from ._api import plugins
from ._api.compiled import PregelProtocol
from ._api.sync_verbs import open_sync
from ._checks.options import set_defaults
from .errors import GraphDrained, GraphInterrupt, NodeError
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
    patched,
    push_message,
    spend,
)
from .types import (
    END,
    REMOVED,
    START,
    Added,
    Budget,
    CachePolicy,
    Collect,
    Command,
    Interrupt,
    Overwrite,
    PregelTask,
    Renamed,
    RetryPolicy,
    Retyped,
    RunnableConfig,
    Send,
    StateSnapshot,
    StateUpdate,
    StreamMode,
    StreamWriter,
    TimeoutPolicy,
)

if TYPE_CHECKING:
    from .functional import TaskFuture, entrypoint, task
    from .versions import Versions

__all__ = [
    "END",
    "REMOVED",
    "REMOVE_ALL_MESSAGES",
    "START",
    "Added",
    "Budget",
    "CachePolicy",
    "Collect",
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
    "NodeError",
    "Overwrite",
    "Pregel",
    "PregelNode",
    "PregelProtocol",
    "PregelTask",
    "RemainingSteps",
    "RemoveMessage",
    "Renamed",
    "RetryPolicy",
    "Retyped",
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
    "TimeoutPolicy",
    "Versions",
    "add_messages",
    "entrypoint",
    "get_config",
    "get_runtime",
    "get_store",
    "get_stream_writer",
    "interrupt",
    "open_sync",
    "patched",
    "push_message",
    "set_defaults",
    "spend",
    "task",
]

plugins.register("renderers", "pregel_async.drawing")
plugins.register("model tokens", "pregel_async.adapters.langchain")
plugins.register("message types", "pregel_async.langchain")
plugins.register("tracing", "pregel_async.langchain.tracing")
plugins.register("runnables", "pregel_async.langchain.runnables")

__getattr__ = exported(
    __name__, {**dict.fromkeys(("TaskFuture", "entrypoint", "task"), ".functional"), "Versions": ".versions"}
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
